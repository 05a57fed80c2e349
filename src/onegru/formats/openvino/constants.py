"""Read the constants of an IR, with their values in the .bin."""

from __future__ import annotations

import math

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import FormatError
from onegru.formats.openvino.fields import ELEMENT_TYPES, AttributeParser
from onegru.formats.openvino.xml import Layer

#: The content of a .bin, or the reason why it cannot be read.
BinContent = Array | FormatError | OSError

# Bits per element of types that NumPy does not have; OpenVINO unpacks them.
_PACKED = {"u1": 1, "u2": 2, "u4": 4, "i4": 4, "nf4": 4, "f4e2m1": 4, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8}

#: The alignment of constants in a .bin that onegru writes.
ALIGNED = 64

# Limits of the bytes of constants and of their conversions, as multiples of the .bin, plus a constant.
_MOST_OVERLAP, _MOST_CONVERTED, _FREE = 4, 16, 2**20


class Constants:
    """Const layers of a file, which are checked before use."""

    def __init__(self, parser: AttributeParser, weights: BinContent) -> None:
        self.parser = parser
        self._weights = weights
        self._seen: set[tuple[object, ...]] = set()
        self._bytes = 0
        self._converted_bytes = 0

    @property
    def weights(self) -> Array:
        """The bytes of the .bin; empty if it cannot be read."""
        return np.zeros(0, np.uint8) if isinstance(self._weights, Exception) else self._weights

    def check(self, layer: Layer) -> tuple[object, ...]:
        """Reject a constant whose size differs from its shape, or that extends beyond the .bin."""
        parser = self.parser
        key = kind, shape, offset, size = self._fields(layer)
        if key in self._seen:
            return key
        self._seen.add(key)
        bits = _PACKED[kind] if kind in _PACKED else numpy_dtype(ELEMENT_TYPES[kind]).itemsize * 8
        wanted = (math.prod(shape) * bits + 7) // 8
        if size != wanted and (wanted or size > 1):  # OpenVINO writes one byte for an empty constant
            named = ELEMENT_TYPES.get(kind, kind)
            raise parser.error(f"{layer}: size {size}; must be {wanted} for {named} {list(shape)}")
        length = len(self._read(layer)) if size else 0
        if size and offset + size > length:
            raise parser.error(f"{layer}: ends at byte {offset + size} of its .bin, which has {length}")
        self._bytes += size
        if self._bytes > _MOST_OVERLAP * length + _FREE:
            raise parser.error(f"{layer}: constants overlap, and are far larger than the .bin")
        return key

    def array(self, layer: Layer) -> Array:
        """Return the values of a checked constant."""
        dtype = self.parser.element_type(layer, "element_type")
        _, shape, offset, size = self._fields(layer)
        raw = self.weights[offset : offset + size] if math.prod(shape) else np.zeros(0, np.uint8)
        numbers: Array = raw != 0 if dtype == "bool" else raw.view(numpy_dtype(dtype).newbyteorder("<"))
        array = numbers.reshape(shape)
        array.flags.writeable = False
        return array

    def count_conversion(self, layer: Layer, length: int, dtype: str) -> None:
        """Reject conversions of constants that are far larger than the file."""
        self._converted_bytes += length * numpy_dtype(dtype).itemsize
        if self._converted_bytes > _MOST_CONVERTED * len(self.weights) + _FREE:
            raise self.parser.error(f"{layer}: conversions of constants are far larger than the .bin")

    def _fields(self, layer: Layer) -> tuple[str, tuple[int, ...], int, int]:
        parser = self.parser
        kind = parser.data(layer, "element_type")
        if kind not in _PACKED:
            parser.element_type(layer, "element_type")
        shape = parser.items(layer, "shape", parser.integer)
        offset, size = (parser.integer(layer, name, parser.data(layer, name)) for name in ("offset", "size"))
        return kind, shape, offset, size

    def _read(self, layer: Layer) -> Array:
        if isinstance(self._weights, FormatError):
            raise self._weights
        if isinstance(self._weights, OSError):
            name = self.parser.path.with_suffix(".bin").name
            raise self.parser.error(f"{layer}: {name!r} cannot be read ({self._weights.strerror})")
        return self._weights
