"""Parse the attributes in an IR layer's <data>."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from onegru.core.errors import FormatError
from onegru.formats.graph import Dimension
from onegru.formats.openvino.xml import IrPort, Layer
from onegru.operators.schema import Attribute

_Item = TypeVar("_Item")

#: The element types that NumPy has, by their names in an IR.
ELEMENT_TYPES: Mapping[str, str] = {
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

#: The names in <data> by element type.
ELEMENT_WORDS: Mapping[str, str] = {dtype: words for words, dtype in ELEMENT_TYPES.items()}

#: The names in ports by element type.
PRECISIONS: Mapping[str, str] = {
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "bool": "BOOL",
    **{dtype: words.upper() for dtype, words in ELEMENT_WORDS.items() if words[0] in "iu"},
}

_BY_PRECISION = {words: dtype for dtype, words in PRECISIONS.items()}


_CUT = {"axis": "0", "start": "0", "end": "-1", "stride": "1", "part_size": "1"}


class AttributeParser:
    """Parser of a file's attributes, which names the layer in errors."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, message: str) -> FormatError:
        """Create a FormatError that names the file."""
        return FormatError(f"{self.path}: {message}")

    def data(self, layer: Layer, name: str) -> str:
        """Return an entry of a layer's <data>."""
        if name not in layer.data:
            raise self.error(f"{layer}: its <data> has no {name!r}")
        return layer.data[name]

    def element_type(self, layer: Layer, name: str) -> str:
        """Return an element type by NumPy's name."""
        words = self.data(layer, name)
        if words not in ELEMENT_TYPES:
            raise self.error(f"{layer}: {name} {words!r}; must be one of {', '.join(ELEMENT_TYPES)}")
        return ELEMENT_TYPES[words]

    def precision(self, port: IrPort) -> str:
        """Return the stated element type of a port; "unknown" if there is none, or NumPy does not have it."""
        return _BY_PRECISION.get(port.precision.upper(), "unknown")

    def items(self, layer: Layer, name: str, read: Callable[[Layer, str, str], _Item]) -> tuple[_Item, ...]:
        """Parse the items of a list."""
        return tuple(read(layer, name, item) for item in _split(self.data(layer, name)))

    def shape(self, layer: Layer, name: str) -> tuple[Dimension, ...] | None:
        """Parse a shape, whose sizes can be dynamic; None for "...", a dynamic rank."""
        return None if self.data(layer, name).strip() == "..." else self.items(layer, name, self.dimension)

    def integer(self, layer: Layer, name: str, text: str) -> int:
        """Parse an integer of at least 0."""
        if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is None:
            raise self.error(f"{layer}: {name}: {text!r}; must be an integer of at least 0")
        return int(text)

    def number(self, layer: Layer, name: str, text: str) -> float:
        """Parse a number, including infinities and NaN."""
        words = text.strip().lower()
        number_form = r"[+-]?(inf|infinity|nan|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)"
        if re.fullmatch(number_form, words) is None:
            raise self.error(f"{layer}: {name}: {text!r}; must be a number")
        number = float(words)
        if math.isinf(number) and "inf" not in words:
            raise self.error(f"{layer}: {name}: {text!r}; must be in float64's range")
        return number

    def dimension(self, layer: Layer, name: str, text: str) -> Dimension:
        """Parse a size; None if it is dynamic: "?", "-1", or a range such as "1..8"."""
        if text in ("?", "-1") or re.fullmatch(r"[0-9]*\.\.[0-9]*", text):
            return None
        return self.integer(layer, name, text)

    def cut(self, layer: Layer, entry: ET.Element) -> tuple[int, ...]:
        """Return how a loop slices a port: axis, start, end, stride and part_size of a port_map entry."""
        numbers: list[int] = []
        for name, default in _CUT.items():
            text = entry.get(name, default)
            if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text) is None:
                raise self.error(f"{layer}: its port_map: {name} {text!r}; must be an integer")
            numbers.append(int(text))
        if numbers[-1] < 1:  # OpenVINO divides by it
            raise self.error(f"{layer}: its port_map: part_size {numbers[-1]}; must be at least 1")
        return tuple(numbers)

    def attribute(self, layer: Layer, attribute: Attribute | None, text: str) -> object:
        """Parse the value of an attribute; the string itself if the operator does not have the attribute."""
        if attribute is None:
            return text.strip()
        match attribute.kind:
            case "int":
                if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is None:
                    raise self.error(f"{layer}: {attribute.name}: {text!r}; must be an integer of at least 1")
                return int(text)
            case "float":
                return self.number(layer, attribute.name, text)
            case "flag":
                word = text.strip().lower()
                if word not in ("true", "false", "1", "0"):
                    raise self.error(f"{layer}: {attribute.name}: {text!r}; must be true, false, 1 or 0")
                return word in ("true", "1")
            case "floats":
                return [self.number(layer, attribute.name, item) for item in _split(text)]
            case "strings":
                return _split(text)
            case _:
                return text.strip()


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []
