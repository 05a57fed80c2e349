"""onegru's operators as subclasses of `openvino.Op`; imports OpenVINO, so that nothing else has to."""

from __future__ import annotations

import hashlib
import itertools
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import openvino

from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError, SpecError
from onegru.core.shapes import fits
from onegru.core.spec import reversed_directions
from onegru.core.wording import shape_words
from onegru.layers.gru import GRU
from onegru.operators.attributes import check_names
from onegru.operators.lowering import check_attributes, lower
from onegru.operators.openvino import OPERATORS
from onegru.operators.schema import WEIGHTS, Attribute, Operator, Port
from onegru.runtimes import openvino_failures
from onegru.runtimes.openvino_graph import sizes_of

RELEASE = tuple(map(int, openvino.__version__.split(".")[:2]))
_OLDEST = (2025, 0)  # before, its Python has no name for the type of an operator
if RELEASE < _OLDEST:
    raise FormatError(f"openvino {openvino.__version__}; must be {'.'.join(map(str, _OLDEST))} or newer")

_ELEMENT_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_LENGTH_TYPES = {"i32": "int32", "i64": "int64"}


@dataclass(eq=False)
class _Layer:
    """A layer, the ports of its operator, and the operator's weights."""

    layer: GRU
    ports: Sequence[Port]
    weights: tuple[Array, ...]


# Layers in use, by what they are made of: copies of a node, and nodes that share weights, share the layer.
_layers: WeakValueDictionary[str, _Layer] = WeakValueDictionary()

# The same by node, with the constants that its weights were. They lie here and not in the nodes, as OpenVINO
# keeps nodes beyond the interpreter's end.
_used: dict[int, tuple[_Layer, tuple[int, ...]]] = {}
_numbers = itertools.count()


class GruOp(openvino.Op):  # type: ignore[misc]
    """One of the operators.

    Args:
        inputs: the nodes or outputs that it takes, in the operator's order.
        attributes: as the specification names them.

    Raises:
        SpecError: an attribute, type or shape that the specification forbids.
    """

    operator: ClassVar[Operator]

    def __init__(self, inputs: Sequence[Any] | None = None, **attributes: Any) -> None:
        super().__init__(self)
        check_names(self.operator, attributes)
        self._attributes = {
            name: _to_visit(attribute, attributes.get(name, attribute.default))
            for name, attribute in self.operator.attributes.items()
        }
        self.is_watched = False  # whether whoever runs the model looks for failures
        self._number = next(_numbers)
        weakref.finalize(self, _used.pop, self._number, None)  # at the interpreter's end, too
        if inputs is not None:
            self.set_arguments(list(inputs))
            self.constructor_validate_and_infer_types()

    # What OpenVINO calls

    def visit_attributes(self, visitor: Any) -> bool:
        """Let OpenVINO read or write the attributes."""
        visitor.on_attributes(self._attributes)
        return True

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> GruOp:
        """The same operator on other inputs."""
        copy = type(self)(new_inputs, **self._attributes)
        copy.is_watched = self.is_watched
        return copy

    def validate_and_infer_types(self) -> None:
        """Check attributes, types and shapes as far as they are known; set those of the outputs."""
        try:
            self._infer()
        except SpecError as error:
            raise SpecError(f"{self._place()}{error}") from None

    def has_evaluate(self) -> bool:
        """Always true."""
        return True

    def evaluate(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Compute the outputs; NaN where OpenVINO would lose the error (`onegru.openvino_errors`)."""
        return openvino_failures.evaluate(
            lambda: self._run(outputs, inputs),
            self.operator,
            attribute_sizes(self._values()),
            inputs,
            outputs,
            is_watched=self.is_watched,
        )

    # Shapes

    def _place(self) -> str:
        name = self.get_friendly_name()
        if re.fullmatch(rf"{self.operator.name}_\d+", name) and self.get_input_size():
            # While a file is read, a node has no name yet, but its input has one.
            return f"{self.operator.name} node on {self.input_value(0).get_node().get_friendly_name()!r}: "
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
        H = int(values["hidden_size"])
        sizes: dict[str, int | None] = {
            **attribute_sizes(values),
            "G": 3 * H,
            "N": (4 if values.get("linear_before_reset") else 3) * H,
        }
        for index, port in enumerate(ports):
            self._check_type(port, self.get_input_element_type(index).to_string())
            self._check_shape(port, self.get_input_partial_shape(index), sizes)
        set_outputs(self, operator, sizes)

    def _check_type(self, port: Port, words: str) -> None:
        X = self.get_input_element_type(0).to_string()
        if "dynamic" in (words, X):
            return
        if port.types is not None:
            if _LENGTH_TYPES.get(words) not in port.types:
                raise SpecError(f"{port.name}: type {words}; must be i32 or i64")
        elif words not in _ELEMENT_TYPES:
            raise SpecError(f"{port.name}: type {words}; must be one of {', '.join(_ELEMENT_TYPES)}")
        elif words != X:
            raise SpecError(f"{port.name}: type {words}; must be {X}, like X")

    @staticmethod
    def _check_shape(port: Port, shape: Any, sizes: dict[str, int | None]) -> None:
        """Check a shape that may be open against the sizes known so far, and add its own."""
        have = sizes_of(shape)
        if have is None:
            return
        wanted = [sizes.get(axis) for axis in port.axes]
        if not fits(have, wanted):
            raise SpecError(f"{port.name}: shape {shape_words(have)}; must be {shape_words(wanted)}")
        sizes.update({axis: size for axis, size in zip(port.axes, have, strict=True) if size is not None})

    # Numbers

    def _values(self) -> dict[str, Any]:
        """The attributes in the specification's form."""
        known = self.operator.attributes
        return {name: _visited(known[name], value) for name, value in self._attributes.items()}

    def _run(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        try:
            self._compute(outputs, inputs)
        except SpecError as error:
            raise SpecError(f"{self._place()}{error}") from None

    def _compute(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        ports = self.operator.inputs[: len(inputs)]
        arrays = {port.role: array_of(tensor) for port, tensor in zip(ports, inputs, strict=True)}
        prepared = self._layer(tuple(arrays[role] for role in WEIGHTS if role in arrays))
        given = {port.name: arrays[port.role] for port in ports if port.role not in WEIGHTS}
        spec, X = prepared.layer.spec, arrays["X"]
        sizes = {"D": spec.num_directions, "H": spec.hidden_size}
        sizes |= dict(zip(self.operator.inputs[0].axes, X.shape, strict=True))
        targets: dict[str, Array | None] = {}
        for port, tensor in zip(self.operator.outputs, outputs, strict=True):
            tensor.shape = [sizes[axis] for axis in port.axes]
            # The memory of an empty tensor has strides that no array has: use a new array.
            targets[port.name] = array_of(tensor) if tensor.size else None
        prepared.layer._apply(prepared.ports, given, targets, strict_types=True)

    def _layer(self, weights: tuple[Array, ...]) -> _Layer:
        """The layer of these weights: prepared once, and again only when they change."""
        used, constants = _used.get(self._number, (None, ()))
        now = self._constants()
        if used is not None and ((now and now == constants) or all(map(_same, weights, used.weights))):
            return used
        values = self._values()
        digest = digest_of(repr((self.operator.name, sorted(values.items()))), weights)
        layer = _layers.get(digest)
        if layer is None:
            lowered = lower(self.operator, values, *weights)
            made = GRU.from_canonical(lowered.spec, lowered.weights)
            layer = _Layer(made, lowered.ports, tuple(array.copy() for array in weights))
            _layers[digest] = layer
        _used[self._number] = (layer, now)
        return layer

    def _constants(self) -> tuple[int, ...]:
        """Which constants of the network the weights are; empty if any of them is computed."""
        ports = self.operator.inputs[: self.get_input_size()]
        nodes = [self.input_value(i).get_node() for i, port in enumerate(ports) if port.role in WEIGHTS]
        if any(node.get_type_name() != "Constant" for node in nodes):
            return ()
        return tuple(node.get_instance_id() for node in nodes)


def _to_visit(attribute: Attribute, value: Any) -> Any:
    """A value in the form that OpenVINO's visitor takes: numbers as text, as it takes no empty list."""
    match attribute.kind:
        case "floats":
            return value if isinstance(value, str) else ", ".join(str(float(item)) for item in value)
        case "strings":
            return [str(item) for item in value]
        case "float":
            return 0.0 if value is None else float(value)  # of clip, where 0 is none
        case "int":
            return 0 if value is None else int(value)
        case "flag":
            return bool(value)
        case _:
            return str(value)


def _visited(attribute: Attribute, value: Any) -> Any:
    """The value that the visitor's form stands for."""
    if attribute.kind != "floats":
        return value
    try:
        return [float(item) for item in value.split(",")] if value.strip() else []
    except ValueError:
        raise SpecError(f"{attribute.name}: {value!r}; must be numbers") from None


def attributes_of(node: Any, operator: Operator) -> dict[str, Any]:
    """The attributes of a layer, OpenVINO's own or one of these, in the specification's form."""
    values: dict[str, Any] = {}
    for name, value in node.get_attributes().items():
        if (attribute := operator.attributes.get(name)) is not None:
            is_text = attribute.kind == "floats" and isinstance(value, str)
            values[name] = _visited(attribute, value) if is_text else value
            if attribute.kind == "string":
                values[name] = str(value).lower()
    return values


def attribute_sizes(attributes: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of axes that attributes tell, by letter."""
    D = len(reversed_directions(attributes.get("direction")))
    return {"H": int(attributes["hidden_size"]), "D": D, "1": 1}


def set_outputs(node: Any, operator: Operator, sizes: Mapping[str, int | None]) -> None:
    """Set the outputs of a node to those of the operator, of X's type.

    Args:
        node: an `openvino.Op` that has its inputs.
        operator: what it is.
        sizes: of axes, by letter; others are open.
    """
    node.set_output_size(len(operator.outputs))
    for index, port in enumerate(operator.outputs):
        known = (sizes.get(axis) for axis in port.axes)
        dims = [openvino.Dimension(-1 if size is None else size) for size in known]
        node.set_output_type(index, node.get_input_element_type(0), openvino.PartialShape(dims))


def array_of(tensor: Any) -> Array:
    """The memory of a tensor."""
    array: Array = tensor.data
    return array.view(bfloat16()) if tensor.element_type.to_string() == "bf16" else array


def digest_of(words: str, arrays: Iterable[Array]) -> str:
    """A name for words and arrays, which no others have."""
    digest = hashlib.sha256(words.encode())
    for array in arrays:
        digest.update(repr((array.dtype.name, array.shape)).encode())
        digest.update(_bytes(array).data)
    return digest.hexdigest()


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _make_class(operator: Operator) -> type[GruOp]:
    members: dict[str, Any] = {
        "__doc__": f"{operator.name} as onegru computes it; see `onegru.openvino_extensions`.",
        "__module__": __name__,
        "operator": operator,
        # OpenVINO gives every operator that is added to it this version.
        "class_type_info": openvino.DiscreteTypeInfo(operator.name, "extension"),
    }
    return type(operator.name, (GruOp,), members)


#: A class for each operator.
CLASSES: tuple[type[GruOp], ...] = tuple(_make_class(operator) for operator in OPERATORS.values())
