"""Store the tensors of quantized cases as integers.

A scale is a power of two times a 4-bit integer. So (q - zero point)·scale is exact in the case's type. The
expected outputs then do not depend on a runtime's rounding there, and the tolerance is that of a node with
plain weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onegru.conformance.expect import Expectation
from onegru.core.dtypes import Array

#: The smallest and the largest integer of each type; for int32, of the generated values.
_INTEGERS = {"int8": (-128, 127), "uint8": (0, 255), "uint4": (0, 15), "int32": (-(2**15), 2**15)}

#: The quantization of X, initial_h and Y: type, scale and zero point.
GRIDS = {"X": ("int8", 2.0**-6, 0), "initial_h": ("uint8", 2.0**-7, 128), "Y": ("int8", 2.0**-7, 0)}

_BLOCK = 2


@dataclass(frozen=True, slots=True)
class CaseStorage:
    """Storage of W and R in a case."""

    checks: str  # the requirement that a runtime must meet to pass
    kind: str = "int8"  # the type of the integers
    # the unit with one scale and zero point
    per: Literal["tensor", "row", "block"] = "row"
    zeros: tuple[int, int] | None = None  # the smallest and the largest zero point; None: without zero points
    # the attribute, or None; along axis 0, the rows of both directions form one matrix
    axis: int | None = 1
    opset: int = 13  # the oldest opset with the necessary operators
    has_lowest: bool = False  # whether each row contains the smallest integer
    bias: str = ""  # the type of the integers of B, which have one scale; "" for a plain B
    shrinks_R: float = 1.0  # factor of R


_ONE = "with one scale and one zero point"
_BLOCKS = "for every two columns of a row"

#: The storages of W and R in the suite, by name.
STORAGES: Mapping[str, CaseStorage] = {
    "int8 by row": CaseStorage("W and R are int8, with one scale for each row."),
    "int8 by tensor": CaseStorage(f"W and R are int8, each {_ONE}.", "int8", "tensor", (-9, 9)),
    "int8 with -128": CaseStorage("-128 is a valid integer.", has_lowest=True),
    "uint8 by row": CaseStorage(
        "W and R are uint8, with one zero point for each row; a negative axis counts from the end.",
        *("uint8", "row", (96, 160)),
        axis=-2,
        opset=19,
    ),
    "uint8 by tensor": CaseStorage(f"W and R are uint8, each {_ONE}.", "uint8", "tensor", (96, 160)),
    "int8 of both directions": CaseStorage(
        "The rows of both directions are one int8 matrix; a Reshape follows its DequantizeLinear.", axis=0
    ),
    "int8 in blocks": CaseStorage(
        f"W and R are int8, with a scale {_BLOCKS}; an odd one has its own.", per="block", axis=2, opset=21
    ),
    "uint4 in blocks": CaseStorage(
        f"W and R are uint4, with a scale and a zero point {_BLOCKS}.", "uint4", "block", (6, 9), 2, 21
    ),
    "int8 with B in int32": CaseStorage("B is stored as well: int32 with one scale.", bias="int32"),
    "W 128 times R": CaseStorage(
        "W and R have separate scales, here with a factor of 128 between them.", opset=21, shrinks_R=2.0**-7
    ),
    "int8 with float16": CaseStorage("Scales in float16 make weights in float16.", opset=19),
    "int8 with output_dtype": CaseStorage(
        "output_dtype can be the default type; the default axis is 1.", axis=None, opset=23
    ),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensor for DequantizeLinear."""

    kind: str  # the type of the integers
    q: Array  # the integers, in int64
    scale: Array  # in the tensor's own type: [], [rows] or [..., blocks]
    zero_point: Array | None  # the shape of scale, in int64; None: without zero points
    attributes: Mapping[str, Any]  # the attributes of DequantizeLinear
    shape: tuple[int, ...]  # the shape after a Reshape; q's own shape without one

    def dequantized(self) -> Array:
        """Return the values, in the type of the scale."""
        offsets = self.q if self.zero_point is None else self.q - _spread(self.zero_point, self.q.shape)
        numbers = offsets * _spread(self.scale, self.q.shape).astype(np.float64)
        return numbers.reshape(self.shape).astype(self.scale.dtype)


def _spread(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a scale or a zero point for each value of this shape, or for broadcasting to it."""
    if array.ndim == len(shape):
        return np.repeat(array, _BLOCK, -1)[..., : shape[-1]]
    return array if array.ndim == 0 else array[:, None]  # rows are the second-to-last axis


def store_weights(storage: CaseStorage, inputs: Mapping[str, Array], seed: int) -> dict[str, Stored]:
    """Return W and R, and B if it is stored, as integers close to the given values."""
    random = np.random.default_rng([seed, 8])  # independent of the inputs' values
    found = {
        "W": _store(storage, inputs["W"], random),
        "R": _store(storage, inputs["R"], random, storage.shrinks_R),
    }
    if storage.bias:
        found["B"] = _store(CaseStorage("", storage.bias, "tensor"), inputs["B"], random)
    return found


def _store(storage: CaseStorage, array: Array, random: np.random.Generator, factor: float = 1.0) -> Stored:
    numbers = array.astype(np.float64) * factor
    if storage.axis == 0:
        numbers = numbers.reshape(-1, array.shape[-1])
    *before, rows, columns = numbers.shape
    blocks = (*before, rows, -(-columns // _BLOCK))
    shape = {"tensor": (), "row": (rows,), "block": blocks}[storage.per]
    attributes = {
        "axis": storage.axis,
        "block_size": _BLOCK if storage.per == "block" else None,
        "output_dtype": 1 if storage.opset == 23 else None,  # float32
    }
    low, high = _INTEGERS[storage.kind]
    first, last = storage.zeros or (0, 0)
    zero_point = np.asarray(random.integers(first, last, shape, endpoint=True))
    # The largest value, in multiples of the smallest scale.
    reach = min(high - last, first - low)
    unit = 2.0 ** np.ceil(np.log2(np.abs(numbers).max() / reach))
    scale = np.asarray(unit * random.integers(8, 16, shape) / 8)
    q = np.rint(numbers / _spread(scale, numbers.shape)).astype(np.int64)
    if storage.has_lowest:
        np.put_along_axis(q, q.argmin(-1, keepdims=True), low, -1)
    return Stored(
        storage.kind,
        q + _spread(zero_point, q.shape),
        scale.astype(array.dtype),
        zero_point if storage.zeros else None,
        {name: value for name, value in attributes.items() if value is not None},
        array.shape,
    )


def on_grid(name: str, array: Array) -> Array:
    """Round X, initial_h or Y like QuantizeLinear and DequantizeLinear; scales are powers of two."""
    kind, scale, zero = GRIDS[name]
    found: Array = (np.clip(np.rint(array / scale) + zero, *_INTEGERS[kind]) - zero) * scale
    return found


def expect_on_grid(name: str, found: Expectation) -> Expectation:
    """Return the expected output after QuantizeLinear and DequantizeLinear, and its tolerance."""
    value, tolerance = found.values[name], found.tolerance[name]
    is_sure = on_grid(name, value - tolerance) == on_grid(name, value + tolerance)
    _, step, _ = GRIDS[name]
    more: dict[str, Any] = {name: np.where(is_sure, 0.0, step)}
    return Expectation({**found.values, name: on_grid(name, value)}, {**found.tolerance, **more})
