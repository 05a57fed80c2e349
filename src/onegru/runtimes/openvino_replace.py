"""Replace GRU layers of OpenVINO models by onegru's; the module imports OpenVINO."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import openvino

from onegru import _native
from onegru.core.arguments import shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError, prefixed_errors
from onegru.engines.interface import DEFAULT_OPTIONS, EngineOptions
from onegru.engines.select import check_names
from onegru.layers.call import apply
from onegru.layers.gru import GRU
from onegru.layers.layer_cache import LayerCache, PackedLayer, pack
from onegru.operators.lowering import check_attributes
from onegru.operators.openvino import ONLY_IN_MEMORY, OPERATORS, RANDOM
from onegru.operators.schema import WEIGHTS, OpSchema
from onegru.runtimes import openvino_failures
from onegru.runtimes.openvino_graph import bodies_of, sizes_of
from onegru.runtimes.openvino_op import (
    CLASSES,
    RELEASE,
    GruOp,
    array_of,
    attribute_sizes,
    attributes_of,
    digest_of,
    evaluated,
    set_outputs,
)

# Limits on the layers and numbers from which weights are computed, if their sources are constants. Exporters
# cut each gate's part out of a parameter and join them, in some 150 layers for a bidirectional bias.
_MOST_LAYERS = 10_000
_MOST_NUMBERS = 1 << 28

#: Called with the arrays of a layer after it has run, by the specification's names.
LayerObserver = Callable[[Mapping[str, Array]], None]


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A GRU layer of a model."""

    node: Any  # the layer
    bodies: tuple[Any, ...]  # the layers whose bodies contain it, the outermost first
    # The sources outside a body of those Parameters that are the same in every iteration, by the Parameter's
    # name, for all bodies.
    outside: Mapping[str, Any]


def layers_in(
    model: Any, bodies: tuple[Any, ...] = (), outside: Mapping[str, Any] | None = None
) -> Iterator[ModelLayer]:
    """Return the GRU layers of a model, including those of bodies."""
    outside = outside or {}
    for node in model.get_ordered_ops():
        if node.get_type_name() in OPERATORS:
            yield ModelLayer(node, bodies, outside)
        for body, descriptions in bodies_of(node):
            yield from layers_in(body, (*bodies, node), _sources_outside(node, descriptions, body, outside))


def _sources_outside(node: Any, descriptions: Any, body: Any, outside: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sources of Parameters of a body that are the same in every iteration."""
    parameters = body.get_parameters()
    found = dict(outside)
    for description in descriptions:
        if type(description).__name__ == "InvariantInputDescription":
            parameter = parameters[description.body_parameter_index]
            found[parameter.get_name()] = node.input_value(description.input_index)
    return found


_kept: list[object] = []  # for models whose end cannot be observed


class PreparedLayer(NamedTuple):
    """A layer that was checked, with its GRU if its weights are constants."""

    layer: ModelLayer
    operator: OpSchema
    attributes: Mapping[str, Any]
    options: EngineOptions
    packed: PackedLayer | None


def prepare(
    layer: ModelLayer, operator: OpSchema, attributes: Mapping[str, Any], options: EngineOptions, where: str
) -> PreparedLayer:
    """Check a layer, and pack its weights if they are constants. The model does not change."""
    check_attributes(operator, attributes, where)
    with prefixed_errors(where):
        options = options.for_node(layer.node.get_friendly_name())
        weights = weights_in(layer, operator)
        packed = None
        if all(array is not None for array in weights.values()):
            packed = pack(operator, attributes, tuple(map(weights.get, WEIGHTS)), options)
        return PreparedLayer(layer, operator, attributes, options, packed)


def replace_layer(
    ready: PreparedLayer,
    *,
    observer: LayerObserver | None = None,
    all_steps: bool = False,
    is_watched: bool = False,
    keep: Callable[[object], None] = _kept.append,
) -> None:
    """Replace a layer by onegru's operator."""
    operator, attributes, options, node = ready.operator, ready.attributes, ready.options, ready.layer.node
    names = [port.name for port in operator.inputs[: node.get_input_size()]]
    sources = {name: node.input_value(index) for index, name in enumerate(names)}
    lengths = operator.input("sequence_lens")
    if lengths is not None:
        sources[lengths.name] = _as_int(sources[lengths.name])
    packed = ready.packed
    state = _OpState(operator, attributes, names, packed, options, observer, is_watched)
    if packed is not None:
        if lengths is not None and all_steps:
            del sources[lengths.name]
        inputs = {name: value for name, value in sources.items() if name not in WEIGHTS}
        # A name from the content, so that OpenVINO's cache finds the same model, and only that.
        name = digest_of(f"{operator} {packed.layer.spec!r} {options!r}", packed.weights)
        new = None if observer is not None else _native_node(packed.layer, name, operator, inputs, is_watched)
        if new is None:
            state = replace(state, names=list(inputs))
            new = _PythonGru.make(state, name, inputs.values(), keep)
    elif observer is not None or options != DEFAULT_OPTIONS:
        new = _PythonGru.make(state, "", sources.values(), keep)
    else:
        new = next(c for c in CLASSES if c.operator is operator)(list(sources.values()), **attributes)
        new.is_watched = is_watched
    if not isinstance(new, GruOp):
        new.get_rt_info()["opset"] = f"none, as it is {ONLY_IN_MEMORY}"  # the readers' errors name it
    new.set_friendly_name(node.get_friendly_name())
    for index in range(node.get_output_size()):
        new_output = new.output(min(index, new.get_output_size() - 1))
        old = node.output(index)
        new_output.get_tensor().set_names(old.get_names())
        for target in list(old.get_target_inputs()):
            target.replace_source_output(new_output)
    placeholder = openvino.op.Constant(np.zeros((), np.float32)).output(0)
    for port in node.inputs():  # OpenVINO never frees operators made in Python, so they must not hold inputs
        port.replace_source_output(placeholder)


def _as_int(output: Any) -> Any:
    """Return lengths as int32 or int64, as the operator's specification requires. OpenVINO takes any type."""
    if output.get_element_type() in (openvino.Type.i32, openvino.Type.i64, openvino.Type.dynamic):
        return output
    return openvino.opset13.convert(output, "i64").output(0)


def weights_in(layer: ModelLayer, operator: OpSchema) -> dict[str, Array | None]:
    """Return the weights of a layer by name; None for weights that are computed in each run."""
    names = [port.name for port in operator.inputs[: layer.node.get_input_size()]]
    return {
        name: _constant(layer.node.input_value(index), layer.outside)
        for index, name in enumerate(names)
        if name in WEIGHTS
    }


def _constant(output: Any, outside: Mapping[str, Any]) -> Array | None:
    """Return the array of an output that depends only on constants; None for other outputs."""
    known: set[str] = set()
    given: dict[str, Any] = {}  # Parameters of bodies on the path
    waiting = [output.get_node()]
    numbers = 0
    while waiting:
        node = waiting.pop()
        name = node.get_name()
        if name in known:
            continue
        known.add(name)
        is_plain = node.get_input_size() > 0 or node.get_type_name() == "Constant" or name in outside
        if not is_plain or node.get_type_name() in RANDOM or isinstance(node, GruOp):
            return None
        for port in node.outputs():
            shape = port.get_partial_shape()
            if shape.is_dynamic:
                return None
            numbers += int(np.prod([size.get_length() for size in shape], dtype=object))
        if len(known) > _MOST_LAYERS or numbers > _MOST_NUMBERS:
            return None
        if name in outside:
            given[name] = node
        waiting += [node.input_value(index).get_node() for index in range(node.get_input_size())]
    arrays = {name: _constant(outside[name], outside) for name in given}
    if output.get_node().get_name() in given:
        return arrays[output.get_node().get_name()]
    if output.get_node().get_type_name() == "Constant":
        tensor = output.get_node().get_tensor_view()
    else:
        tensor = openvino.Tensor(output.get_element_type(), output.get_shape())
        tensors = []
        for name, node in given.items():
            array = arrays[name]
            tensors.append(openvino.Tensor(node.get_output_element_type(0), node.get_output_shape(0)))
            if array is None or list(tensors[-1].shape) != list(array.shape):
                return None
            array_of(tensors[-1])[...] = array
        found = evaluated(openvino.Model([output], list(given.values()), "weights"), tensor, tensors)
        if found is None:
            return None
        tensor = found
    return np.array(array_of(tensor))


# --- the operator in C++


@functools.cache
def _factory() -> Any:
    """Return the factory for nodes of the C++ operator; None, with one warning, if it does not work."""
    factory, problem = load_operator()
    if problem:
        warnings.warn(
            f"GRU layers in OpenVINO run through Python, which is several times slower: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )
    return factory


def load_operator() -> tuple[Any, str]:
    """Return the factory for nodes of the C++ operator, or None, and the problem as text."""
    release = ".".join(map(str, RELEASE))
    folder = Path(_native.__file__).parent
    library = folder / f"_openvino_gru_{release.replace('.', '_')}.so"
    if not library.exists():
        if not sys.platform.startswith("linux"):
            return None, "the C++ operator exists only on Linux"
        others = sorted(p.stem.removeprefix("_openvino_gru_") for p in folder.glob("_openvino_gru_*.so"))
        words = f"only for {', '.join(others).replace('_', '.')}" if others else "without an OpenVINO release"
        remedy = "install onegru again to build the C++ operator for this release"
        return None, f"onegru was built {words}, but OpenVINO is {release}; {remedy}"
    try:
        # The operator is not linked to OpenVINO, whose symbols must be visible to the whole process.
        libraries = Path(openvino.__file__).parent / "libs"
        for path in (*libraries.glob("libtbb.so.*"), *libraries.glob("libopenvino.so.*")):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        connect = ctypes.CDLL(str(library)).onegru_connect
        connect.argtypes = [ctypes.c_void_p]
        connect(_native.graph_api())
        from openvino.utils.node_factory import NodeFactory

        factory = NodeFactory()
        factory.add_extension(str(library))
    except (OSError, AttributeError, ImportError, RuntimeError) as error:
        return None, f"{library.name} does not load ({' '.join(str(error).split())})"
    return factory, ""


def _native_node(
    layer: GRU, name: str, operator: OpSchema, inputs: Mapping[str, Any], is_watched: bool
) -> Any:
    native = layer.prepared_engine.native
    if native is None or (factory := _factory()) is None:
        return None
    native.set_name(name)
    lengths = operator.input("sequence_lens")
    attributes = {
        "layer": name,
        "is_watched": is_watched,
        "hidden_size": layer.hidden_size,
        "num_directions": layer.spec.num_directions,
        "is_sequence": len(operator.outputs) == 2,
        "has_lengths": lengths is not None and lengths.name in inputs,
        "has_attention": operator.attention,
    }
    return factory.create("OneGRU", list(inputs.values()), attributes)


# --- the operator in Python


@dataclass(eq=False)
class _OpState:
    operator: OpSchema
    attributes: Mapping[str, Any]
    names: Sequence[str]
    packed: PackedLayer | None  # if the weights are constants, which are then not inputs
    options: EngineOptions
    observer: LayerObserver | None
    is_watched: bool
    cache: LayerCache = field(default_factory=LayerCache)  # for computed weights


# Layers by name. They are not stored in the nodes, because OpenVINO never frees nodes made in Python.
_states: WeakValueDictionary[str, _OpState] = WeakValueDictionary()
_numbers = itertools.count(1)


class _PythonGru(openvino.Op):  # type: ignore[misc]
    """A layer as an operator with the specification's inputs, except constants."""

    class_type_info: ClassVar[Any] = openvino.DiscreteTypeInfo("OneGRUInPython", "extension")

    @classmethod
    def make(cls, state: _OpState, name: str, inputs: Iterable[Any], keep: Callable[[object], None]) -> Any:
        """Return a node of this layer, which finds the layer by this name."""
        if state.is_watched:  # it may end before an equal layer, so it needs a unique name
            name = str(next(_numbers))
        _states[name] = state
        keep(state)
        return cls(list(inputs), name)

    def __init__(self, inputs: Sequence[Any] | None = None, layer: str = "") -> None:
        super().__init__(self)
        self._attributes = {"layer": layer}
        if inputs is not None:
            self.set_arguments(list(inputs))
            self.constructor_validate_and_infer_types()

    def visit_attributes(self, visitor: Any) -> bool:
        visitor.on_attributes(self._attributes)
        return True

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> Any:
        return _PythonGru(new_inputs, self._attributes["layer"])

    def validate_and_infer_types(self) -> None:
        state = _states[self._attributes["layer"]]
        sizes: dict[str, int | None] = {**attribute_sizes(state.attributes)}
        ports = {port.name: port for port in state.operator.inputs}
        for index, name in enumerate(state.names):  # only the state or the lengths may give the batch
            shape, axes = sizes_of(self.get_input_partial_shape(index)), ports[name].axes
            if ports[name].role not in WEIGHTS and shape is not None and len(shape) == len(axes):
                known = {axis: size for axis, size in zip(axes, shape, strict=True) if axis in "BT"}
                sizes |= {axis: size for axis, size in known.items() if sizes.get(axis) is None}
        set_outputs(self, state.operator, sizes)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        state = _states[self._attributes["layer"]]
        return openvino_failures.evaluate(
            lambda: self._compute(state, outputs, inputs),
            state.operator,
            attribute_sizes(state.attributes),
            inputs,
            outputs,
            is_watched=state.is_watched,
        )

    def _compute(self, state: _OpState, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        arrays = {name: array_of(tensor) for name, tensor in zip(state.names, inputs, strict=True)}
        packed, name = state.packed, self.get_friendly_name()
        if packed is not None:  # OpenVINO may use float32 instead of other types
            dtype = numpy_dtype(packed.layer.spec.dtype)
            arrays = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in arrays.items()}
            arrays |= {n: a for n, a in zip(WEIGHTS, packed.weights, strict=True) if a is not None}
        with prefixed_errors(f"OneGRU node '{name}': "):
            if packed is None:
                make = partial(pack, state.operator, state.attributes, options=state.options)
                packed = state.cache.find(map(arrays.get, WEIGHTS), f"GRU layer {name!r}: ", make)
            given = {name: array for name, array in arrays.items() if name not in WEIGHTS}
            ports = [port for port in packed.ports if port.name in given or port.role in ("Y", "Y_h")]
            wanted: dict[str, Array | None] = dict.fromkeys(port.name for port in state.operator.outputs)
            results = apply(packed.layer, ports, given, wanted, strict_types=True)
        for tensor, array in zip(outputs, results.values(), strict=True):
            tensor.shape = list(array.shape)
            if array.size:
                array_of(tensor)[...] = array
        if state.observer is not None:
            state.observer({**arrays, **results})


def check_model(model: object) -> None:
    """Raise SpecError if the argument is not a model."""
    if not isinstance(model, openvino.Model):
        raise SpecError.of("model", f"{shown(model)}; must be an openvino.Model")


def replace_all(model: Any, options: EngineOptions) -> int:
    """Replace every GRU layer of a model; see `onegru.openvino.replace_grus`."""
    layers = list(layers_in(model))
    check_names(options, [layer.node.get_friendly_name() for layer in layers])
    ready = []  # all are checked before the first is replaced, so that an error leaves the model unchanged
    for layer in layers:
        operator = OPERATORS[layer.node.get_type_name()]
        location = f"{operator.name} layer {layer.node.get_friendly_name()!r}: "
        if (sizes_of(layer.node.get_input_partial_shape(0)) or (None,))[0] == 0:
            raise SpecError(
                f"{location}fixed batch size 0; must be dynamic or at least 1, because OpenVINO writes no "
                "states for an empty batch"
            )
        ready.append(prepare(layer, operator, attributes_of(layer.node, operator), options, location))
    for item in ready:
        replace_layer(item)
    model.validate_nodes_and_infer_types()
    return len(layers)
