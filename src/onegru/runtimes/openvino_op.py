"""onegru's operators as subclasses of `openvino.Op`; the module imports OpenVINO."""

from __future__ import annotations

import hashlib
import itertools
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import openvino

from onegru.core.dtypes import Array, as_array_of, as_float_array, bfloat16
from onegru.core.errors import MissingExtraError, SpecError
from onegru.core.shapes import check_shape
from onegru.core.spec import reversed_directions
from onegru.layers.call import apply
from onegru.layers.layer_cache import LayerCache, PackedLayer, WeightArrays, pack, raw_bytes
from onegru.operators.attributes import check_names
from onegru.operators.lowering import check_attributes, check_weights
from onegru.operators.openvino import OPERATORS
from onegru.operators.schema import WEIGHTS, Attribute, OpSchema
from onegru.runtimes import openvino_failures
from onegru.runtimes.openvino_graph import sizes_of

RELEASE = tuple(map(int, openvino.__version__.split(".")[:2]))
_OLDEST = (2025, 0)  # in older versions, the Python API has no name for an operator's type
if RELEASE < _OLDEST:
    raise MissingExtraError(
        f"openvino>={'.'.join(map(str, _OLDEST))}",
        "openvino",
        f"onegru.openvino (openvino {openvino.__version__} is installed)",
    )
# OpenVINO finds NumPy's interface with its first tensor. Two threads that both create the first one deadlock.
# An import runs on one thread, so create it here.
openvino.Tensor(np.zeros(1, np.float32))


# Layers in use, by content. Copies of a node and nodes that share weights share a layer.
_layers: WeakValueDictionary[str, PackedLayer] = WeakValueDictionary()

# The layers by node, with the constants of their weights. They are not stored in the nodes, because OpenVINO
# keeps nodes after the interpreter's end.
_layers_of_nodes: dict[int, tuple[LayerCache, tuple[int, ...]]] = {}
_numbers = itertools.count()


class GruOp(openvino.Op):  # type: ignore[misc]
    """Base class of onegru's operators for OpenVINO."""

    operator: ClassVar[OpSchema]

    def __init__(self, inputs: Sequence[Any] | None = None, **attributes: Any) -> None:
        super().__init__(self)
        check_names(self.operator, attributes)
        self._attributes = {
            name: _to_visitor(attribute, attributes.get(name, attribute.default))
            for name, attribute in self.operator.attributes.items()
        }
        self._may_go_on = self._goes_on = False  # with arguments that the specification forbids
        self.is_watched = False  # whether the caller looks for failures
        self._number = next(_numbers)
        weakref.finalize(self, _layers_of_nodes.pop, self._number, None)  # also at the interpreter's end
        if inputs is not None:
            self.set_arguments(list(inputs))
            self.constructor_validate_and_infer_types()

    # Called by OpenVINO

    def visit_attributes(self, visitor: Any) -> bool:
        """Let OpenVINO read or write the attributes."""
        visitor.on_attributes(self._attributes)
        return True

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> GruOp:
        """Return the same operator on other inputs."""
        copy = type(self)(**self._attributes)
        copy.is_watched = self.is_watched
        copy.set_arguments(list(new_inputs))
        copy._may_go_on = openvino_failures.are_lost()
        copy.constructor_validate_and_infer_types()
        copy._may_go_on = copy._goes_on
        return copy

    def validate_and_infer_types(self) -> None:
        """Check the known attributes, types and shapes, and set those of the outputs."""
        try:
            self._infer()
        except SpecError as error:
            # With dynamic shapes, a run copies the node for its actual shapes and validates it again. If an
            # exception would be lost, the run goes on, and `evaluate` fails for the same reason.
            if not self._may_go_on:
                raise SpecError(f"{self._location()}{error}", error.argument) from error.__cause__
            self._goes_on = True
            X = sizes_of(self.get_input_partial_shape(0)) or ()
            set_outputs(
                self,
                self.operator,
                attribute_sizes(self._values()) | dict(zip(self.operator.inputs[0].axes, X, strict=False)),
            )

    def has_evaluate(self) -> bool:
        """Always true."""
        return True

    def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Compute the outputs; NaN where OpenVINO would lose the error (`onegru.openvino.errors`)."""
        return openvino_failures.evaluate(
            lambda: self._run(outputs, inputs),
            self.operator,
            attribute_sizes(self._values()),
            inputs,
            outputs,
            is_watched=self.is_watched,
        )

    # Shapes

    def _location(self) -> str:
        name = self.get_friendly_name()
        if re.fullmatch(rf"{self.operator.name}_\d+", name) and self.get_input_size():
            # While a file is read, a node has no name yet, but its input has a name.
            return f"{self.operator.name} node of {self.input_value(0).get_node().get_friendly_name()!r}: "
        return f"{self.operator.name} node {name!r}: "

    def _infer(self) -> None:
        operator = self.operator
        values = self._values()
        check_attributes(operator, values)
        ports = operator.inputs[: self.get_input_size()]
        least = sum(port.required for port in operator.inputs)
        if not least <= self.get_input_size() <= len(operator.inputs):
            names = ", ".join(port.name for port in operator.inputs)
            raise SpecError(f"{self.get_input_size()} inputs; must be {names}")
        dtypes = {port.role: _dtype_of(self.get_input_element_type(at)) for at, port in enumerate(ports)}
        shapes = {port.role: sizes_of(self.get_input_partial_shape(at)) for at, port in enumerate(ports)}
        blank = {role: _blank(dtypes[role], shapes[role]) for role in WEIGHTS if role in shapes}
        sizes = attribute_sizes(values)
        if (W := blank["W"]) is not None and all(array is not None for array in blank.values()):
            check_weights(operator, values, W, blank["R"], blank.get("B"))
            sizes["I"] = W.shape[-1]
        if dtypes["W"] is not None:
            as_float_array("W", np.zeros((), dtypes["W"]), operator.element_types)
        for port in ports:
            dtype, shape = dtypes[port.role], shapes[port.role]
            if dtype is not None and port.types is not None and dtype.name not in port.types:
                raise SpecError.of(port.name, f"type {dtype.name}; must be {' or '.join(port.types)}")
            if port.types is None and dtype is not None and dtypes["W"] is not None:
                as_array_of(dtypes["W"].name, port.name, np.zeros((), dtype))
            if shape is not None and port.role not in WEIGHTS:
                check_shape(port.name, shape, port.axes, sizes)
        set_outputs(self, operator, sizes)

    # Numbers

    def _values(self) -> dict[str, Any]:
        """Return the attributes in the specification's form."""
        known = self.operator.attributes
        return {name: _from_visitor(known[name], value) for name, value in self._attributes.items()}

    def _run(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        try:
            self._compute(outputs, inputs)
        except SpecError as error:
            raise SpecError(f"{self._location()}{error}", error.argument) from error.__cause__

    def _compute(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        ports = self.operator.inputs[: len(inputs)]
        arrays = {port.role: array_of(tensor) for port, tensor in zip(ports, inputs, strict=True)}
        packed = self._layer(tuple(arrays[role] for role in WEIGHTS if role in arrays))
        given = {port.name: arrays[port.role] for port in ports if port.role not in WEIGHTS}
        spec, X = packed.layer.spec, arrays["X"]
        sizes = {"D": spec.num_directions, "H": spec.hidden_size}
        sizes |= dict(zip(self.operator.inputs[0].axes, X.shape, strict=True))
        targets: dict[str, Array | None] = {}
        for port, tensor in zip(self.operator.outputs, outputs, strict=True):
            tensor.shape = [sizes[axis] for axis in port.axes]
            # The memory of an empty tensor has strides that no array has: use a new array.
            targets[port.name] = array_of(tensor) if tensor.size else None
        apply(packed.layer, packed.ports, given, targets, strict_types=True)

    def _layer(self, weights: WeightArrays) -> PackedLayer:
        """Return the layer of these weights. It is packed once, and again only when they change."""
        cache, constants = _layers_of_nodes.get(self._number) or (LayerCache(), ())
        now = self._constants()
        packed = cache.last
        if packed is None or not now or now != constants:
            packed = cache.find(weights, f"GRU layer {self.get_friendly_name()!r}: ", self._pack)
            _layers_of_nodes[self._number] = cache, now
        return packed

    def _pack(self, weights: WeightArrays) -> PackedLayer:
        values = self._values()
        digest = digest_of(repr((self.operator.name, sorted(values.items()))), weights)
        packed = _layers.get(digest)
        if packed is None:
            _layers[digest] = packed = pack(self.operator, values, weights)
        return packed

    def _constants(self) -> tuple[int, ...]:
        """Return the constants of the network that the weights are; empty if any weight is computed."""
        ports = self.operator.inputs[: self.get_input_size()]
        nodes = [self.input_value(i).get_node() for i, port in enumerate(ports) if port.role in WEIGHTS]
        if any(node.get_type_name() != "Constant" for node in nodes):
            return ()
        return tuple(node.get_instance_id() for node in nodes)


def _dtype_of(kind: Any) -> np.dtype[Any] | None:
    """Return NumPy's type for an OpenVINO type; None if it is not known yet."""
    if kind.is_dynamic():
        return None
    return bfloat16() if kind == openvino.Type.bf16 else np.dtype(kind.to_dtype())


def _blank(dtype: np.dtype[Any] | None, shape: Sequence[int | None] | None) -> Array | None:
    """Return an array of this type and shape, without memory; None if type or shape is unknown."""
    if dtype is None or shape is None or None in shape:
        return None
    return np.broadcast_to(np.zeros((), dtype), [size or 0 for size in shape])


def _to_visitor(attribute: Attribute, value: Any) -> Any:
    """Return a value as OpenVINO's visitor takes it: numbers as text, because it takes no empty list."""
    match attribute.kind:
        case "floats":
            return value if isinstance(value, str) else ", ".join(str(float(item)) for item in value)
        case "strings":
            return [str(item) for item in value]
        case "float":
            return 0.0 if value is None else float(value)  # clip, for which 0 means none
        case "int":
            return 0 if value is None else int(value)
        case "flag":
            return bool(value)
        case _:
            return str(value)


def _from_visitor(attribute: Attribute, value: Any) -> Any:
    """Return the value of an attribute from its form for the visitor."""
    if attribute.kind != "floats":
        return value
    try:
        return [float(item) for item in value.split(",")] if value.strip() else []
    except ValueError as error:
        raise SpecError.of(attribute.name, f"{value!r}; must be numbers") from error


def attributes_of(node: Any, operator: OpSchema) -> dict[str, Any]:
    """Return the attributes of a layer, OpenVINO's or onegru's, in the specification's form."""
    values: dict[str, Any] = {}
    for name, value in node.get_attributes().items():
        if (attribute := operator.attributes.get(name)) is not None:
            is_text = attribute.kind == "floats" and isinstance(value, str)
            values[name] = _from_visitor(attribute, value) if is_text else value
            if attribute.kind == "string":
                values[name] = str(value).lower()
    return values


def attribute_sizes(attributes: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of axes that attributes give, by letter."""
    D = len(reversed_directions(attributes.get("direction")))
    return {"H": int(attributes["hidden_size"]), "D": D, "1": 1}


def set_outputs(node: Any, operator: OpSchema, sizes: Mapping[str, int | None]) -> None:
    """Set the outputs of a node to those of the operator, with X's type."""
    node.set_output_size(len(operator.outputs))
    for index, port in enumerate(operator.outputs):
        known = (sizes.get(axis) for axis in port.axes)
        dims = [openvino.Dimension(-1 if size is None else size) for size in known]
        node.set_output_type(index, node.get_input_element_type(0), openvino.PartialShape(dims))


def array_of(tensor: Any) -> Array:
    """Return the memory of a tensor as an array."""
    array: Array = tensor.data
    return array.view(bfloat16()) if tensor.element_type.to_string() == "bf16" else array


def digest_of(words: str, arrays: WeightArrays) -> str:
    """Return a name that is unique to these words and arrays."""
    digest = hashlib.sha256(words.encode())
    for array in arrays:
        if array is not None:
            digest.update(repr((array.dtype.name, array.shape)).encode())
            digest.update(raw_bytes(array).data)
    return digest.hexdigest()


def _make_class(operator: OpSchema) -> type[GruOp]:
    members: dict[str, Any] = {
        "__doc__": f"{operator.name} as onegru computes it; see `onegru.openvino.extensions`.",
        "__module__": __name__,
        "operator": operator,
        # OpenVINO gives this version to every operator that is added to it.
        "class_type_info": openvino.DiscreteTypeInfo(operator.name, "extension"),
    }
    return type(operator.name, (GruOp,), members)


#: A class for each operator.
CLASSES: tuple[type[GruOp], ...] = tuple(_make_class(operator) for operator in OPERATORS.values())


def create_core() -> Any:
    """Return an `openvino.Core` with onegru's operators."""
    core = openvino.Core()
    for operator in CLASSES:
        core.add_extension(operator)
    return core


def evaluated(model: Any, result: Any, inputs: list[Any]) -> Any:
    """Return a model's output as a tensor, in `result` if possible; None if OpenVINO cannot compute it."""
    try:
        return result if model.evaluate([result], inputs) else None
    except RuntimeError:  # only the CPU plugin supports some operators, such as opset 16's Identity
        pass
    try:
        request = openvino.compile_model(
            model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        ).create_infer_request()
        request.infer(dict(enumerate(inputs)))
    except RuntimeError:
        return None
    return request.get_output_tensor(0)
