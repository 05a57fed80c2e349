"""From an .onnx file to a `Graph`.

A model of nothing but GRU nodes and nodes that move axes becomes steps, which NumPy does. Every other one
is run as a whole by ONNX Runtime, which gives the GRU nodes to onegru.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.formats.graph import STATES_KEY, STATES_WORD, Graph, GruStep, Step, initial_states
from onegru.formats.onnx.functions import unfold_functions
from onegru.formats.onnx.nested import find_nested
from onegru.formats.onnx.node import (
    constant_value,
    fixed_sizes,
    is_plain_constant,
    node_attributes,
    tensor_info,
)
from onegru.formats.onnx.order import node_inputs, sort_nodes
from onegru.formats.onnx.read import (
    Source,
    attribute_graphs,
    describe,
    external_tensors,
    is_gru,
    is_onnx,
    read_model,
    to_array,
)
from onegru.formats.onnx.sizes import OnnxSizes
from onegru.formats.onnx.states import find_states
from onegru.formats.onnx.views import ViewStep, view_of
from onegru.formats.onnx.whole.bounds import Ahead, check_bounds
from onegru.formats.onnx.whole.constant_grus import has_constant_grus
from onegru.formats.onnx.whole.model import OnnxWhole, runnable
from onegru.operators.lowering import check_attributes, check_weights
from onegru.operators.onnx import gru_version
from onegru.operators.schema import Operator

_WEIGHTS = ("W", "R", "B")
_SEARCHED = 1 << 20

# These give other results each time: they are never run ahead of time. Dropout may, too.
_RANDOM = {
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}


def load_onnx(path: Path) -> Graph:
    """Read a model from a file; its external data must lie in the file's folder.

    Raises:
        FormatError: the file is broken, hostile or beyond what onegru reads.
        SpecError: a GRU node's text forbids an attribute that it has.
    """
    try:
        source = Source.of(path)
        if (size := path.stat().st_size) >= 2**31:  # which may be a hole, and takes memory all the same
            raise source.error(f"has {size} bytes; an ONNX model has less than 2 GiB")
        data = path.read_bytes()
    except OSError as error:
        raise Source(str(path)).error(f"cannot be read ({error.strerror})") from None
    return parse_onnx(data, source)


def parse_onnx(data: bytes, source: Source) -> Graph:
    """Read a serialized model. Raises as `load_onnx` does."""
    return _Reader(source, data).read()


class _Constants(Mapping[str, Array]):
    """The constants that the GRU nodes of a model use, read when they are first asked for."""

    def __init__(self, source: Source, data: bytes) -> None:
        self._source = source
        self._data = data

    @functools.cached_property
    def _arrays(self) -> dict[str, Array]:
        return _Reader(self._source, self._data).constants()

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class _Reader:
    """One model being read."""

    def __init__(self, source: Source, data: bytes) -> None:
        self.source = source
        self.data = data
        given = read_model(source, data)
        self.model = model = unfold_functions(source, given)
        self.is_changed = model is not given
        self.graph = model.graph
        self.opset = model_opset(source, model)
        self.nodes = sort_nodes(source, self.graph)
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.sparse = {tensor.values.name for tensor in self.graph.sparse_initializer}
        # From IR version 4 on, an initializer that is an input as well is an input with a default.
        inputs = {value.name for value in self.graph.input}
        self.defaults = set(self.tensors) & inputs if model.ir_version >= 4 else set()
        self.givers = {name: node for node in self.nodes for name in node.output if name}
        has_none = len(data) < _SEARCHED and b"location" not in data  # which takes long in large ones
        external = [] if has_none else external_tensors(model)
        most = check_bounds(source, model, self.nodes, len(data), external)
        self.ahead = Ahead(model, self.nodes, most, set(self.tensors) - self.defaults | self.sparse)
        values = (*self.graph.value_info, *self.graph.output, *self.graph.input)
        self.stated = {value.name: value.type for value in values}
        self.sizes = OnnxSizes(self.givers, self._shape, self._any_integers)
        self.grus = {id(node): self.sizes.add(self._gru_node(node)) for node in self.nodes if is_gru(node)}
        self.nested, self.inner = find_nested(self.nodes, self._gru_node, self._constant)
        self._check_sparse()

    def read(self) -> Graph:
        """The model as a graph."""
        inputs = tuple(
            tensor_info(value, optional=value.name in self.defaults)
            for value in self.graph.input
            if value.name in self.defaults or value.name not in self.tensors
        )
        outputs = tuple(tensor_info(value) for value in self.graph.output)
        states = find_states(self.graph, self.opset, self.nodes, self.grus.values(), inputs, outputs)
        ahead = self._ahead_of_runs()
        steps = self._steps({id(node) for node in ahead})
        constants: Mapping[str, Array] | None = None if steps is None else self._folded(ahead)
        whole: OnnxWhole | None = None
        if steps is None or constants is None:
            constants, steps = _Constants(self.source, self.data), ()
            plain = sum(map(is_plain_constant, self.nodes))
            whole = self._whole(len(self.nodes) - plain - len(self.grus) - len(ahead))
        is_ours = any(
            (item.key, item.value) == (STATES_KEY, STATES_WORD) for item in self.model.metadata_props
        )
        graph = Graph(
            path=self.source.name,
            inputs=inputs,
            outputs=outputs,
            constants=constants,
            steps=steps,
            grus=(*self.grus.values(), *(gru for _, gru in self.nested)),
            whole=whole,
            states=states,
        )
        return replace(graph, zero_inputs=initial_states(graph)) if is_ours and steps else graph

    def constants(self) -> dict[str, Array]:
        """Those that GRU nodes use, as far as they may be known ahead of runs."""
        found = self._folded(self._ahead_of_runs())
        if found is None:
            found = self._folded([]) or {}
        for name, constant in self.inner.items():
            if isinstance(constant, NodeProto):
                found[name] = constant_value(self.source, constant)
            else:
                found[name] = to_array(self.source, constant)
        return found

    # GRU nodes

    def _operator(self) -> Operator:
        operator = gru_version(self.opset)
        assert operator is not None, "model_opset lets none below 1 through"
        return operator

    def _gru_node(self, node: NodeProto, bodies: tuple[str, ...] = ()) -> GruStep:
        operator = self._operator()
        place = f"{self.source.name}: {describe(node)}"
        if len(node.input) > len(operator.inputs):
            raise SpecError(f"{place}: {len(node.input)} inputs; must be at most {len(operator.inputs)}")
        if len(node.output) > len(operator.outputs):
            raise SpecError(f"{place}: {len(node.output)} outputs; must be at most {len(operator.outputs)}")
        attributes = node_attributes(self.source, node, operator)
        scope = "".join(f"{body}/" for body in bodies)  # the same name may be another value elsewhere
        ports = zip(operator.inputs, node.input, strict=False)
        inputs = {port.name: scope + name for port, name in ports if name}
        ports = zip(operator.outputs, node.output, strict=False)
        outputs = {port.name: scope + name for port, name in ports if name}
        for port in operator.inputs:
            if port.required and port.name not in inputs:
                raise SpecError(f"{place}: {port.name}: missing; {operator} requires it")
        for port in operator.outputs:
            if port.required and port.name not in outputs:
                raise SpecError(f"{place}: output {port.name}: missing; {operator} requires it")
        asked = "output_sequence" in operator.attributes and attributes.get("output_sequence") == 1
        if asked and "Y" not in outputs:
            raise SpecError(f"{place}: output Y: missing; {operator} requires it with output_sequence = 1")
        name = node.name or next((name for name in node.output if name), "GRU")
        return GruStep(name, operator, attributes, inputs, outputs, bodies)

    def _constant(self, name: str) -> TensorProto | NodeProto | None:
        """What gives a constant of the model that is held in the file itself, and is dense."""
        if not self._is_inline(name) or name in self.sparse:
            return None
        return self.givers.get(name) or self.tensors[name]

    def _check_sparse(self) -> None:
        taken = {name for gru in self.grus.values() for name in gru.inputs.values()}
        for name in sorted(taken | {value.name for value in self.graph.output}):
            if name in self.sparse:
                raise self.source.error(f"sparse initializer {name!r}: is used by a GRU node or an output")
            giver = self.givers.get(name)
            if giver is not None and giver.op_type == "Constant" and not is_plain_constant(giver):
                raise self.source.error(f"sparse Constant {name!r}: is used by a GRU node or an output")

    # As a whole

    def _whole(self, count: int) -> OnnxWhole:
        """The model for ONNX Runtime; each GRU node gets a name of its own."""
        names: dict[str, None] = {}
        own = [(node, self.grus[id(node)]) for node in self.nodes if id(node) in self.grus]
        for node, gru in (*own, *self.nested):
            place = f"{self.source.name}: {describe(node)}: "
            check_attributes(gru.operator, gru.attributes, place)
            self._check_weights(gru, place)
            name, number = gru.name, 2
            while name in names:
                name, number = f"{gru.name}#{number}", number + 1
            names[name] = None
            if name != node.name:
                node.name, self.is_changed = name, True
        self._check_inputs()
        outputs = {value.name for value in self.graph.output}
        shared = outputs & ({value.name for value in self.graph.input} | self.tensors.keys())
        others = [n for n in self.nodes if not is_gru(n) and not is_plain_constant(n)] or self.nodes
        where = describe(others[0]) if others else "the model"
        data = runnable(
            self.source, self.model, self.nodes, None if self.is_changed else self.data, self.opset
        )
        most = self.ahead.most
        folds = has_constant_grus(self.model)
        source = self.source if data is self.data else replace(self.source, file=None)
        return OnnxWhole(source, data, where, tuple(names), frozenset(shared), folds, most, count)

    def _check_inputs(self) -> None:
        """Give the inputs whose type is not stated that of the weights of a GRU node that takes them."""
        for value in self.graph.input:
            kind = value.type
            if kind.WhichOneof("value") not in (None, "tensor_type") or kind.tensor_type.elem_type:
                continue
            takers = [gru for gru in self.grus.values() if value.name in gru.inputs.values()]
            types = {
                self.tensors[name].data_type for gru in takers if (name := gru.inputs["W"]) in self.tensors
            }
            if len(types) != 1:
                raise self.source.error(f"graph input {value.name!r}: its type is unknown; must be given")
            kind.tensor_type.elem_type, self.is_changed = types.pop(), True

    def _check_weights(self, gru: GruStep, place: str) -> None:
        """Check the sizes of weights that the file holds."""
        arrays: dict[str, Array] = {}
        for name in _WEIGHTS:
            if name in gru.inputs:
                value = gru.inputs[name]
                constant = self.inner.get(value) or self.tensors.get(value)
                if not isinstance(constant, TensorProto) or value in self.defaults:
                    return
                dtype = onnx.helper.tensor_dtype_to_np_dtype(constant.data_type)
                arrays[name] = np.broadcast_to(np.zeros((), dtype), tuple(constant.dims))
        W, R, B = map(arrays.get, _WEIGHTS)
        check_weights(gru.operator, gru.attributes, W, R, B, place)

    # What is known before any input is

    def _ahead_of_runs(self) -> list[NodeProto]:
        """The nodes that compute weights from constants alone, as far as those are not too large."""
        known = dict.fromkeys(set(self.tensors) - self.defaults | self.sparse, True)
        chosen: set[int] = set()

        def look(name: str) -> None:
            """Find out whether a value depends on constants alone; choose the nodes that compute it."""
            waiting = [name]
            while waiting:
                node = self.givers.get(waiting[-1])
                if waiting[-1] in known or node is None:
                    known.setdefault(waiting.pop(), False)
                    continue
                may = is_onnx(node) and not is_gru(node) and node.op_type not in _RANDOM
                may = may and (is_plain_constant(node) or self.ahead.fits(node))
                may = may and not any(attribute_graphs(node))
                inputs = [taken for taken in node.input if taken] if may else []
                if missing := [taken for taken in inputs if taken not in known]:
                    waiting += missing
                    continue
                may = may and all(known[taken] for taken in inputs)
                known.update(dict.fromkeys(node.output, may))
                if may and not is_plain_constant(node):
                    chosen.add(id(node))

        weights = [gru.inputs[n] for gru in self.grus.values() for n in _WEIGHTS if n in gru.inputs]
        for name in weights:
            look(name)
        wanted = {name for name in weights if known[name]}
        needed: list[NodeProto] = []
        for node in reversed(self.nodes) if chosen else ():
            if id(node) in chosen and wanted & set(node.output):
                needed.append(node)
                wanted |= node_inputs(node)
        return needed[::-1]

    def _folded(self, ahead: Sequence[NodeProto]) -> dict[str, Array] | None:
        """The constants that GRU nodes and outputs use, and the defaults of inputs.

        Args:
            ahead: nodes that compute some of them.

        Returns:
            the constants by name; None if the nodes cannot be run here.
        """
        wanted = {name for gru in self.grus.values() for name in gru.inputs.values()}
        wanted |= {value.name for value in self.graph.output} | self.defaults
        found: dict[str, Array] = {}
        for name in wanted:
            if name in self.tensors:
                found[name] = to_array(self.source, self.tensors[name])
            elif name in self.givers and is_plain_constant(self.givers[name]):
                found[name] = constant_value(self.source, self.givers[name])
        names = sorted({name for node in ahead for name in node.output} & wanted)
        computed = self._computed(ahead, names) if names else {}
        return None if computed is None else found | computed

    def _computed(self, nodes: Sequence[NodeProto], names: Sequence[str]) -> dict[str, Array] | None:
        """What nodes give that take constants alone; None where onnx's own evaluator does not run them."""
        used = {name for node in nodes for name in node_inputs(node)}
        givers = (self.givers[name] for name in sorted(used & self.givers.keys()))
        constants = {id(node): node for node in givers if is_plain_constant(node)}
        outputs = [onnx.ValueInfoProto(name=name) for name in names]
        graph = onnx.helper.make_graph([*constants.values(), *nodes], "constants", [], outputs)
        graph.initializer.extend(
            onnx.numpy_helper.from_array(to_array(self.source, self.tensors[name]), name)
            for name in sorted(used & self.tensors.keys())
        )
        graph.sparse_initializer.extend(
            tensor for tensor in self.graph.sparse_initializer if tensor.values.name in used
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.opset)])
        try:
            from onnx.reference import ReferenceEvaluator

            with np.errstate(all="ignore"):
                arrays = list(ReferenceEvaluator(model).run(None, {}))
        except Exception:  # whatever it cannot do, or what is wrong with the nodes: a runtime will tell
            return None
        known = [array for array in arrays if isinstance(array, np.ndarray)]
        return dict(zip(names, known, strict=True)) if len(known) == len(names) else None

    # As steps

    def _steps(self, ahead: set[int]) -> tuple[Step, ...] | None:
        """What to run, if it is GRU nodes and moves of axes alone; else None.

        Args:
            ahead: the nodes that are run ahead of all runs, by their identities.
        """
        if self.nested:
            return None
        steps: list[Step] = []
        wanted = {value.name for value in self.graph.output}
        for node in reversed(self.nodes):
            if (gru := self.grus.get(id(node))) is not None:
                steps.append(gru)
                wanted |= set(gru.inputs.values())
            elif wanted & set(node.output) and not is_plain_constant(node) and id(node) not in ahead:
                if view_of(node, self.opset, self._integers) is None or self._is_inline(node.input[0]):
                    return None
                taken, given = (node.input[0],), (node.output[0],)
                steps.append(ViewStep(self.source, [node], taken, given, self.opset, self._integers))
                wanted.add(node.input[0])
        return tuple(steps[::-1])

    def _any_integers(self, name: str) -> Array | None:
        """The constant of a name, if it is one of integers."""
        if not self._is_inline(name) or name in self.sparse:
            return None
        if name in self.givers:
            array = constant_value(self.source, self.givers[name])
        elif self.tensors[name].data_type in (TensorProto.INT32, TensorProto.INT64):
            array = to_array(self.source, self.tensors[name])
        else:
            return None
        return array if array.dtype.kind == "i" else None

    def _integers(self, name: str) -> tuple[int, ...] | None:
        """The constant of a name, if it is one axis of 64-bit integers."""
        array = self._any_integers(name)
        return None if array is None or array.ndim != 1 or array.dtype != np.int64 else tuple(array.tolist())

    def _shape(self, name: str) -> tuple[int | None, ...] | None:
        """What the file says of a value's shape."""
        if name in self.stated:
            return fixed_sizes(self.stated[name])
        return tuple(self.tensors[name].dims) if name in self.tensors else None

    def _is_inline(self, name: str) -> bool:
        """Whether this value is a constant: an initializer or a Constant node."""
        if name in self.givers:
            return is_plain_constant(self.givers[name])
        return (name in self.tensors or name in self.sparse) and name not in self.defaults


def model_opset(source: Source, model: ModelProto) -> int:
    """The version of the ONNX operators that a model uses.

    Raises:
        FormatError: it names none, or several.
    """
    versions = [entry.version for entry in model.opset_import if is_onnx(entry)]
    if not versions:
        if model.ir_version < 3:
            return 1  # before IR version 3 a model had no way to say
        if any(is_onnx(node) for node in model.graph.node):
            raise source.error("opset_import: no version of the ONNX operators; must name one")
        return onnx.defs.onnx_opset_version()
    if len(set(versions)) > 1:
        raise source.error(f"opset_import: versions {versions} of the ONNX operators; must be one")
    if not versions[0] >= 1:
        raise source.error(f"opset_import: version {versions[0]}; must be at least 1")
    return int(versions[0])
