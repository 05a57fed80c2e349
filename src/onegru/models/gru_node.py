"""The GRU nodes of a model, and their layers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, contiguous, numpy_dtype
from onegru.core.errors import SpecError, prefixed_errors
from onegru.core.pickling import state_of
from onegru.core.shapes import check_shape
from onegru.core.wording import count
from onegru.drawing.card import card
from onegru.engines.interface import EngineOptions
from onegru.formats.graph import Graph, GruStep, Runner, TensorInfo
from onegru.layers.call import apply, bind
from onegru.layers.gru import GRU
from onegru.layers.layer_cache import LayerCache, PackedLayer, WeightArrays, pack
from onegru.operators.lowering import check_attributes
from onegru.operators.schema import WEIGHTS, Port

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace


class GruNode:
    """A GRU node of a model, with its layer if the weights are constants."""

    def __init__(
        self, node: GruStep, location: str, options: EngineOptions, create: Callable[[], object] | None = None
    ) -> None:
        self.step = node
        self._packed: PackedLayer | None = None  # if the weights are constants
        self._has_own_state = False
        self._create_all = create  # creates the layers of all nodes; None if they exist
        self._location = location
        self._options = options
        self.is_fixed = False  # whether every run uses these weights
        self._cache = LayerCache()  # for computed weights

    @property
    def name(self) -> str:
        """Node name."""
        return self.step.name

    @property
    def operator(self) -> str:
        """Operator and version, such as "GRU-14"."""
        return str(self.step.operator)

    @property
    def bodies(self) -> tuple[str, ...]:
        """The subgraphs that contain this node, the outermost first."""
        return self.step.bodies

    @property
    def layer(self) -> GRU | None:
        """The node's layer; None if its weights are computed in each run."""
        self._prepare_now()
        return None if self._packed is None else self._packed.layer

    @property
    def has_own_state(self) -> bool:
        """Whether the initial state is a nonzero constant, which is not part of the layer."""
        self._prepare_now()
        return self._has_own_state

    @property
    def weights(self) -> tuple[Array, ...]:
        """W, R and, if present, B, in the node's layout; empty if they are computed in each run."""
        self._prepare_now()
        weights = () if self._packed is None else self._packed.weights
        return tuple(np.asarray(array) for array in weights if array is not None)

    def __repr__(self) -> str:
        return f"GruNode({self.name!r}, {self.operator}, {self.layer!r})"

    def _repr_html_(self) -> str:
        facts = [("operator", self.operator), *(("in", body) for body in self.bodies)]
        if self.layer is None:
            facts.append(("weights", "computed in each run"))
        own = "" if self.layer is None else self.layer._repr_html_()
        return card(f"GRU node · {self.name}", facts) + own

    def _prepare_now(self) -> None:
        """Create the layer of a node that another runtime runs, at its first access."""
        create_all, self._create_all = self._create_all, None
        if create_all is not None:
            create_all()

    def _prepare(
        self, constants: Mapping[str, object], defaults: Container[str], shared: dict[object, GruNode]
    ) -> None:
        """Make the layer before any run if its weights are constants."""
        node = self.step
        state = constants.get(node.value("initial_h"))
        self._create_all = None
        self._has_own_state = state is not None and bool(np.asarray(state).any())
        if any(name in node.inputs and node.inputs[name] not in constants for name in WEIGHTS):
            check_attributes(node.operator, node.attributes, self._location)
            return
        weights = self._weights_in(constants)
        options = self._options.for_node(self.name)
        key = (options, str(node.operator), repr(sorted(node.attributes.items())), *map(id, weights))
        twin = shared.setdefault(key, self)
        self._packed = self._pack(weights) if twin is self else twin._packed
        self.is_fixed = not any(node.inputs.get(name) in defaults for name in WEIGHTS)

    def __getstate__(self) -> Any:
        return state_of(self, _create_all=None, _cache=LayerCache())

    def _uses(self, packed: PackedLayer, values: Mapping[str, object]) -> bool:
        """Whether a run uses the weights of the layer."""
        return self.is_fixed or all(map(is_, self._weights_in(values), packed.weights))

    def _run(self, values: dict[str, Any]) -> None:
        node = self.step
        packed = self._packed
        if packed is None or not self._uses(packed, values):
            packed = self._cache.find(self._weights_in(values), self._location, self._pack)
        given = {name: values.get(value) for name, value in node.inputs.items() if name not in WEIGHTS}
        self._add_state(given, packed.layer)
        ports, outputs = ports_for(node, packed.ports), dict.fromkeys(node.outputs)
        with prefixed_errors(self._location):
            results = apply(packed.layer, ports, given, outputs, strict_types=True)
        values.update((node.outputs[name], array) for name, array in results.items())

    def _add_state(self, given: dict[str, Any], layer: GRU) -> None:
        """Use zeros for an omitted initial state."""
        ports = {port.role: port for port in self.step.ports}
        state = ports["initial_h"]
        if state.name in given and given[state.name] is None:
            spec, axes = layer.spec, ports["X"].axes
            shape = np.shape(given[ports["X"].name])
            sizes = {**dict(zip(axes, shape, strict=False)), "D": spec.num_directions, "H": spec.hidden_size}
            if len(shape) == len(axes):  # otherwise X is rejected later
                given[state.name] = np.zeros([sizes[axis] for axis in state.axes], numpy_dtype(spec.dtype))

    def _weights_in(self, values: Mapping[str, Any]) -> WeightArrays:
        inputs = self.step.inputs
        return tuple(values[inputs[name]] if name in inputs else None for name in WEIGHTS)

    def _pack(self, weights: WeightArrays) -> PackedLayer:
        step, options = self.step, self._options.for_node(self.name)
        with prefixed_errors(self._location):
            return pack(step.operator, step.attributes, weights, options, self._location)


GruNode.__module__ = "onegru.reports"


def prepare_nodes(nodes: Iterable[GruNode], constants: Mapping[str, object], graph: Graph) -> None:
    """Make the layers of the nodes whose weights are constants."""
    shared: dict[object, GruNode] = {}
    defaults = {info.value for info in graph.inputs}
    for node in nodes:
        node._prepare(constants, defaults, shared)
        spec = None if node._packed is None else node._packed.layer.spec
        sizes = (
            {} if spec is None else {"D": spec.num_directions, "H": spec.hidden_size, "I": spec.input_size}
        )
        check_declared(node.step, constants, graph, sizes)


def check_declared(
    node: GruStep, constants: Mapping[str, object], graph: Graph, sizes: Mapping[str, int] | None = None
) -> None:
    """Reject a node whose inputs and constants in the file cannot be valid."""
    if node.bodies:
        return
    known = dict(sizes or {})
    if not known and isinstance(hidden := node.attributes.get("hidden_size"), int):
        known = {"H": hidden, "G": 3 * hidden}
    for port in node.ports[: len(node.operator.inputs)]:
        value = node.inputs.get(port.name)
        found: Any = next((info for info in graph.inputs if info.value == value), constants.get(value or ""))
        is_constant = port.role in WEIGHTS and not isinstance(found, TensorInfo)  # checked with its layer
        if is_constant or not isinstance(found, TensorInfo | np.ndarray):
            continue
        given = found.dtype if isinstance(found, TensorInfo) else found.dtype.name
        with prefixed_errors(f"{graph.path}: {node}: "):
            if port.types and given not in port.types:
                raise SpecError.of(port.name, f"type {given}; must be {' or '.join(port.types)}")
            if found.shape is not None:
                shape = [size if isinstance(size, int) else None for size in found.shape]
                check_shape(port.name, shape, port.axes, known)


def find_node(nodes: Sequence[GruNode], node: object) -> int:
    """Return the index of a node."""
    if isinstance(node, str):
        found = [index for index, item in enumerate(nodes) if item.name == node]
        if len(found) == 1:
            return found[0]
        if found:
            indices = f"{', '.join(map(str, found[:-1]))} or {found[-1]}"
            words = f"{len(found)} nodes are called {shown(node)}; use an index: {indices}"
            raise SpecError.of("node", words)
        names = ", ".join(repr(item.name) for item in nodes) or "none"
        raise SpecError.of("node", f"{shown(node)}; must be one of the GRU nodes: {names}")
    index = integer("node", node)
    if not 0 <= index < len(nodes):
        raise SpecError.of("node", f"{index}; must be the index of one of {count(len(nodes), 'GRU node')}")
    return index


def _fast_run(
    node: GruStep, layer: GRU, otherwise: Callable[[dict[str, Any]], None]
) -> Callable[[dict[str, Any]], None]:
    """Return the fast path, which calls the layer directly; `otherwise` is the general path."""
    ports = {port.role: port for port in node.ports}
    x, h, lens, scores = (
        node.inputs.get(ports[role].name) if role in ports else None
        for role in ("X", "initial_h", "sequence_lens", "A")
    )
    sequence, last = (node.outputs.get(ports[role].name) if role in ports else None for role in ("Y", "Y_h"))
    is_cell, layout = "T" not in ports["X"].axes, int(ports["X"].axes.startswith("BT"))
    is_required = ports["initial_h"].required
    types = {np.dtype(name) for name in ports["sequence_lens"].types or ()} if lens is not None else ()
    is_by_direction = "Y" in ports and ports["Y"].axes.startswith("BDT")  # a layer's call returns BTDH
    try_call = layer.try_call

    def run(values: dict[str, Any]) -> None:
        X: Any = values[x or ""]
        state: Any = None if h is None else values.get(h)
        lengths = None if lens is None else values.get(lens)
        attention = None if scores is None else values[scores]
        if is_cell:  # one step: add a time axis and a direction axis
            if type(X) is not np.ndarray or type(state) is not np.ndarray:
                return otherwise(values)
            X, state, attention = X[None], state[None], None if attention is None else attention[None]
        if (lengths is not None and getattr(lengths, "dtype", None) not in types) or (
            is_required and state is None
        ):
            return otherwise(values)  # the specification allows no other type
        if attention is not None and np.ndim(attention) != 3:
            return otherwise(values)  # a layer would also accept 2 dimensions
        done = try_call(X, state, sequence_lens=lengths, attention=attention, layout=layout)
        if done is None:
            return otherwise(values)
        if sequence is not None:
            Y = done[0]
            values[sequence] = contiguous(Y.transpose(0, 2, 1, 3)) if is_by_direction else Y
        if last is not None:
            values[last] = done[1][0] if is_cell else done[1]

    return run


# Internal functions for other modules of the package.


def runner_of(node: GruNode) -> Runner:
    """Return the function that runs the node, on the fast path if possible."""
    step, fixed = node.step, WEIGHTS if node.is_fixed else ()
    reads = {value for name, value in step.inputs.items() if name not in fixed}
    packed = node._packed
    if packed is None:
        return Runner(reads, node._run)
    fast = _fast_run(step, packed.layer, node._run)
    if node.is_fixed:
        return Runner(reads, fast)

    def run(values: dict[str, Any]) -> None:
        (fast if node._uses(packed, values) else node._run)(values)

    return Runner(reads, run)


def trace_node(node: GruNode, runs: Sequence[Mapping[str, Array]], source: str) -> GateTrace:
    """Return the gates of the node, as the model runs it."""
    from onegru.layers.gates.data import join_runs

    if not runs:
        raise SpecError.of("node", f"{node.name!r} did not run on these inputs; must be a node that runs")
    return join_runs([_trace_once(node, arrays, source) for arrays in runs])


def _trace_once(node: GruNode, arrays: Mapping[str, Array], source: str) -> GateTrace:
    node._prepare_now()
    packed = node._packed
    if packed is None or not node.is_fixed:
        packed = node._pack(tuple(arrays.get(name) for name in WEIGHTS))
    given = {name: arrays.get(name) for name in node.step.inputs if name not in WEIGHTS}
    node._add_state(given, packed.layer)
    from onegru.layers.gates.data import gates_of
    from onegru.layers.gates.trace import GateTrace

    with prefixed_errors(node._location):
        return gates_of(GateTrace, packed.layer, _optional_lengths(packed.ports), given, node.name, source)


def ports_for(node: GruStep, ports: Sequence[Port]) -> Sequence[Port]:
    """Return the ports for a new run."""
    return _optional_lengths(ports) if node.full_length else ports


def _optional_lengths(ports: Sequence[Port]) -> list[Port]:
    """Return the ports of a finished run, with optional lengths: nodes that use all steps have none."""
    return [replace(port, required=False) if port.role == "sequence_lens" else port for port in ports]


def repeat(node: GruNode, layer: GRU, arrays: Mapping[str, Array]) -> Callable[[], dict[str, Array]]:
    """Return a function that runs another layer of the node's shapes, in any layout."""
    assert node._packed is not None
    ports = node._packed.ports
    given = {name: arrays.get(name) for name in node.step.inputs if name not in WEIGHTS}
    node._add_state(given, layer)
    inputs, _ = bind(layer.spec, _optional_lengths(ports), given)
    names = {"A": "attention"}
    arguments: dict[str, Any] = {names.get(role, role): array for role, array in inputs.items()}
    wanted = [port.role for port in ports if port.name in node.step.outputs]

    def run() -> dict[str, Array]:
        Y, Y_h = layer(**arguments, layout=0)
        return {role: array for role, array in (("Y", Y), ("Y_h", Y_h)) if role in wanted}

    return run
