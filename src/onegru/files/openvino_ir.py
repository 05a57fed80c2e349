"""From an OpenVINO IR (.xml with .bin) to a `Graph`.

Read: Parameter, Const, Convert, Result, GRUCell, GRUSequence, AUGRUCell and AUGRUSequence, in any
arrangement. Source of the format: OpenVINO's IR versions 10 and 11, as `semantics` in the project's
documentation settles them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from onegru.dialects.openvino import OPERATORS
from onegru.dialects.schema import Attribute
from onegru.dtypes import Array, numpy_dtype
from onegru.errors import FormatError, SpecError
from onegru.files.graph import Conversion, Dimension, Graph, GruNode, Step, TensorInfo
from onegru.files.openvino_xml import IrPort, Layer, Net, parse_net, read_xml

__all__ = ["load_ir"]

_Item = TypeVar("_Item")

_ELEMENT_TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "boolean": "bool",
}

_PLAIN = ("Parameter", "Const", "Convert", "Result")


def load_ir(path: Path) -> Graph:
    """Read an IR; its weights lie in the file of the same name that ends in .bin.

    Raises:
        FormatError: a file is broken, hostile, or holds what onegru does not run.
        SpecError: a layer's text forbids an attribute that it has.
    """
    return _Reader(path, parse_net(path, read_xml(path))).read()


class _Reader:
    """One IR being read. A value goes by the layer and port that give it, "layer:port"."""

    def __init__(self, path: Path, net: Net) -> None:
        self.path = path
        self.net = net
        self.constants: dict[str, Array] = {}
        self.early: set[str] = set()
        self.types: dict[str, str] = {}
        self._same: dict[str, str] = {}
        self._consts: dict[tuple[object, ...], str] = {}
        self._conversions: dict[tuple[str, str], str] = {}
        self._const_bytes = 0
        self._converted_bytes = 0
        self._lengths: dict[str, int] = {}
        self._weights: bytes | None = None

    def error(self, message: str) -> FormatError:
        return FormatError(f"{self.path}: {message}")

    def read(self) -> Graph:
        for layer in self.net.layers.values():
            self._check_layer(layer)
        parameters = [self._parameter(layer) for layer in self._of_type("Parameter")]
        prelude: list[Step] = []
        steps: list[Step] = []
        for layer in self._order():
            if layer.type == "Const":
                self._const(layer)
            elif layer.type == "Convert":
                conversion = self._convert(layer)
                if conversion is not None:
                    (prelude if conversion.output in self.early else steps).append(conversion)
            elif layer.type in OPERATORS:
                steps.append(self._gru(layer))
        results = [self._result(layer) for layer in self._of_type("Result")]
        if not results:
            raise self.error("no Result layer; must have at least one")
        parameters, results = self._distinct("inputs", parameters), self._distinct("outputs", results)
        return Graph(
            path=str(self.path),
            inputs=tuple(parameters),
            outputs=tuple(results),
            constants=self.constants,
            steps=tuple(steps),
            prelude=tuple(prelude),
        )

    def _distinct(self, side: str, infos: list[TensorInfo]) -> list[TensorInfo]:
        """The same with a name of its own for each: the first that no other has before it."""
        taken: set[str] = set()
        distinct: list[TensorInfo] = []
        for info in infos:
            names = (info.name, *info.aliases)
            name = next((name for name in names if name not in taken), None)
            if name is None:
                raise self.error(f"two {side} have the same name, {info.name!r}")
            taken.add(name)
            aliases = tuple(other for other in names if other != name)
            distinct.append(replace(info, name=name, aliases=aliases))
        return distinct

    # Layers

    def _of_type(self, kind: str) -> list[Layer]:
        return [layer for layer in self.net.layers.values() if layer.type == kind]

    def _check_layer(self, layer: Layer) -> None:
        if layer.type in OPERATORS:
            operator = OPERATORS[layer.type]
            if operator.version:
                opset = re.fullmatch(r"opset(\d{1,3})", layer.version)
                if opset is None or int(opset[1]) < operator.version:
                    raise self.error(
                        f"{layer}: version {layer.version!r}; must be opset{operator.version} or later"
                    )
            return
        if layer.type not in _PLAIN:
            readable = ", ".join((*_PLAIN, *OPERATORS))
            raise self.error(
                f"{layer}: layers of this type are not read from an IR; must be one of {readable}"
            )
        inputs, outputs = (int(layer.type in kinds) for kinds in (("Convert", "Result"), _PLAIN[:3]))
        if len(layer.inputs) != inputs or len(layer.outputs) != outputs:
            raise self.error(f"{layer}: must have {inputs} input(s) and {outputs} output(s)")

    def _order(self) -> list[Layer]:
        """The layers in an order in which they can be run."""
        waits = {
            layer.id: {self._giver(layer, port)[0] for port in layer.inputs}
            for layer in self.net.layers.values()
        }
        takers: dict[str, list[str]] = {key: [] for key in waits}
        for key, givers in waits.items():
            for giver in givers:
                takers[giver].append(key)
        ready = [key for key, givers in waits.items() if not givers]
        for key in ready:  # grows while it is walked
            for taker in takers[key]:
                waits[taker].discard(key)
                if not waits[taker]:
                    ready.append(taker)
        if len(ready) < len(waits):
            stuck = next(self.net.layers[key] for key, givers in waits.items() if givers)
            raise self.error(f"{stuck}: waits for itself; the graph has a cycle")
        return [self.net.layers[key] for key in ready]

    def _giver(self, layer: Layer, port: IrPort) -> tuple[str, str]:
        giver = self.net.edges.get((layer.id, port.id))
        if giver is None:
            raise self.error(f"{layer}: no edge leads to its input port {port.id!r}")
        return giver

    def _taken(self, layer: Layer, index: int = 0) -> str:
        """The value that an input of a layer takes."""
        value = ":".join(self._giver(layer, layer.inputs[index]))
        return self._same.get(value, value)

    def _given(self, layer: Layer, index: int = 0) -> str:
        """The value that an output of a layer gives."""
        return f"{layer.id}:{layer.outputs[index].id}"

    def _parameter(self, layer: Layer) -> TensorInfo:
        value = self._given(layer)
        dtype = self._element_type(layer, "element_type")
        self.types[value] = dtype
        shape = self._list(layer, "shape", self._dimension)
        names = (*layer.outputs[0].names, layer.name)
        return TensorInfo(names[0], dtype, shape, aliases=names[1:], value=value)

    def _result(self, layer: Layer) -> TensorInfo:
        value = self._taken(layer)
        giver_id, port_id = self._giver(layer, layer.inputs[0])
        port = next(port for port in self.net.layers[giver_id].outputs if port.id == port_id)
        names = (*port.names, layer.name)
        shape = tuple(self._dimension(layer, "dim", dim) for dim in port.dims) if port.dims else None
        return TensorInfo(names[0], self.types[value], shape, aliases=names[1:], value=value)

    def _const(self, layer: Layer) -> None:
        dtype = self._element_type(layer, "element_type")
        shape = self._list(layer, "shape", self._integer)
        offset, size = (self._integer(layer, name, self._data(layer, name)) for name in ("offset", "size"))
        value = self._given(layer)
        self.types[value] = dtype
        first = self._consts.setdefault((dtype, shape, offset, size), value)
        if first != value:
            self._same[value] = first
            return
        wanted = math.prod(shape) * numpy_dtype(dtype).itemsize
        if size != wanted:
            raise self.error(f"{layer}: size {size}; must be {wanted} for {dtype} {list(shape)}")
        weights = self._read_weights(layer) if size else b""
        if offset + size > len(weights) and size:
            raise self.error(f"{layer}: ends at byte {offset + size} of its .bin, which has {len(weights)}")
        self._const_bytes += size
        if self._const_bytes > 4 * len(weights) + 2**20:
            raise self.error(f"{layer}: constants overlap, and come to far more than its .bin holds")
        raw = np.frombuffer(weights, np.uint8, size, offset if size else 0)
        if dtype == "bool":
            self.constants[value] = (raw != 0).reshape(shape)
        else:
            self.constants[value] = raw.view(numpy_dtype(dtype).newbyteorder("<")).reshape(shape)
        self.early.add(value)
        self._lengths[value] = math.prod(shape)

    def _read_weights(self, layer: Layer) -> bytes:
        if self._weights is None:
            path = self.path.with_suffix(
                ".bin"
            )  # a link is followed: the file's name is the user's, not the IR's
            if path.exists() and not path.is_file():
                raise self.error(f"{layer}: {path.name!r} is not a regular file")
            try:
                self._weights = path.read_bytes()
            except OSError as error:
                raise self.error(f"{layer}: {path.name!r} cannot be read ({error.strerror})") from None
        return self._weights

    def _convert(self, layer: Layer) -> Conversion | None:
        """The conversion, unless there is the same one already."""
        dtype = self._element_type(layer, "destination_type")
        taken, value = self._taken(layer), self._given(layer)
        self.types[value] = dtype
        first = self._conversions.setdefault((taken, dtype), value)
        if first != value:
            self._same[value] = first
            return None
        if taken in self.early:
            self.early.add(value)
            self._lengths[value] = self._lengths[taken]
            self._converted_bytes += self._lengths[value] * numpy_dtype(dtype).itemsize
            if self._converted_bytes > 16 * len(self._weights or b"") + 2**20:
                raise self.error(f"{layer}: conversions of constants come to far more than the .bin holds")
        return Conversion(layer.name, taken, value, dtype)

    def _gru(self, layer: Layer) -> GruNode:
        operator = OPERATORS[layer.type]
        place = f"{self.path}: {layer}"
        least = sum(port.required for port in operator.inputs)
        if not least <= len(layer.inputs) <= len(operator.inputs):
            names = ", ".join(port.name for port in operator.inputs)
            raise SpecError(f"{place}: {len(layer.inputs)} inputs; must be {names}")
        is_cell = len(operator.outputs) == 1
        if not 1 <= len(layer.outputs) <= 2:
            raise SpecError(f"{place}: {len(layer.outputs)} outputs; must be 1 or 2")
        if is_cell and len(layer.outputs) == 2:
            self._same[self._given(layer, 1)] = self._given(layer, 0)  # both carry Ho
        inputs = {
            port.name: self._taken(layer, index)
            for index, port in enumerate(operator.inputs[: len(layer.inputs)])
        }
        count = 1 if is_cell else len(layer.outputs)
        outputs = {
            port.name: self._given(layer, index) for index, port in enumerate(operator.outputs[:count])
        }
        self.types.update(dict.fromkeys(outputs.values(), self.types[inputs["X"]]))
        attributes = {
            name: self._attribute(layer, operator.attributes.get(name), text)
            for name, text in layer.data.items()
        }
        return GruNode(layer.name, operator, attributes, inputs, outputs)

    # Words

    def _attribute(self, layer: Layer, attribute: Attribute | None, text: str) -> object:
        """The value that a text stands for; the text itself where the operator has no such attribute."""
        if attribute is None:
            return text.strip()
        match attribute.kind:
            case "int":
                return self._integer(layer, attribute.name, text)
            case "float":
                return self._number(layer, attribute.name, text)
            case "flag":
                if text.strip().lower() not in ("true", "false", "1", "0"):
                    raise self.error(f"{layer}: {attribute.name}: {text!r}; must be true, false, 1 or 0")
                return text.strip().lower() in ("true", "1")
            case "floats":
                return [self._number(layer, attribute.name, item) for item in _split(text)]
            case "strings":
                return _split(text)
            case _:
                return text.strip()

    def _data(self, layer: Layer, name: str) -> str:
        if name not in layer.data:
            raise self.error(f"{layer}: its <data> has no {name!r}")
        return layer.data[name]

    def _element_type(self, layer: Layer, name: str) -> str:
        words = self._data(layer, name)
        if words not in _ELEMENT_TYPES:
            raise self.error(f"{layer}: {name} {words!r}; must be one of {', '.join(_ELEMENT_TYPES)}")
        return _ELEMENT_TYPES[words]

    def _list(self, layer: Layer, name: str, read: Callable[[Layer, str, str], _Item]) -> tuple[_Item, ...]:
        return tuple(read(layer, name, item) for item in _split(self._data(layer, name)))

    def _integer(self, layer: Layer, name: str, text: str) -> int:
        if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is None:
            raise self.error(f"{layer}: {name}: {text!r}; must be a number, at least 0")
        return int(text)

    def _number(self, layer: Layer, name: str, text: str) -> float:
        words = text.strip().lower()
        if re.fullmatch(r"[+-]?(inf|infinity|nan|[0-9.]+(e[+-]?[0-9]+)?)", words) is None:
            raise self.error(f"{layer}: {name}: {text!r}; must be a number")
        try:
            number = float(words)
        except ValueError:
            raise self.error(f"{layer}: {name}: {text!r}; must be a number") from None
        if math.isinf(number) and "inf" not in words:
            raise self.error(f"{layer}: {name}: {text!r}; must be within float64")
        return number

    def _dimension(self, layer: Layer, name: str, text: str) -> Dimension:
        """A size; None where it is open: "?", "-1", or a range such as "1..8"."""
        if text in ("?", "-1") or re.fullmatch(r"[0-9]*\.\.[0-9]*", text):
            return None
        return self._integer(layer, name, text)


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []
