"""Weights as a layer keeps them: in 16 bits, or in int8 with a scale for each output channel."""

from __future__ import annotations

import numpy as np

from onegru.core.dtypes import Array, default_float_mode, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Weights

# native/packed.h has these as well: the most inputs of a product; the least and the largest range of
# a channel, from which its scale follows.
_MOST_INPUTS = 1 << 17
LEAST_RANGE = np.float32(2.0**-100)
_LARGEST_RANGE = np.float32(float.fromhex("0x1.fffffp127"))


def quantize_channels(matrix: Array) -> tuple[Array, Array]:
    """The rows of a float32 matrix in int8: w = q·scale, symmetric, one scale for each row.

    The scale is a 127th of the row's largest |w|, rounded up to 16 bits, and q is w/scale, rounded to nearest
    even. q·scale is then exact in float32, and quantizing it again yields the same q and scale.

    Args:
        matrix: [..., rows, K], finite.

    Returns:
        q, of the same shape, and scale [..., rows], float32.
    """
    with default_float_mode():
        largest = np.abs(matrix).max(-1, initial=0.0).astype(np.float32)
        bits = (np.clip(largest, LEAST_RANGE, _LARGEST_RANGE) / np.float32(127)).view(np.uint32)
        scale = ((bits + np.uint32(0xFF)) & ~np.uint32(0xFF)).view(np.float32)
        return np.rint(matrix * (np.float32(1) / scale[..., None])).astype(np.int8), scale


def planes_of(activation_storage: str | None) -> int:
    """How many int8 hold an input of a product: 2 for int16, 1 for int8; 0 where it is a float."""
    return 0 if activation_storage is None else {"int16": 2, "int8": 1}[activation_storage]


def check_int8(weights: Weights) -> None:
    """Raise SpecError unless W and R can be kept in int8: scales are finite, and sums fit into 32 bits."""
    for name, matrix in (("W", weights.W), ("R", weights.R)):
        if matrix.shape[2] > _MOST_INPUTS:
            raise SpecError(
                f"{name}: shape {list(matrix.shape)}; its last axis must be at most {_MOST_INPUTS} "
                "to be kept in int8"
            )
        if not np.isfinite(matrix).all():
            raise SpecError(f"{name}: holds NaN or infinity; must be finite to be kept in int8")


def stored(weights: Weights, weight_storage: str) -> Weights:
    """The weights of a float32 layer, finite ones for int8, after W and R are rounded to another type."""
    return Weights(_stored(weights.W, weight_storage), _stored(weights.R, weight_storage), weights.B)


def _stored(matrix: Array, weight_storage: str) -> Array:
    if weight_storage == "int8":
        q, scale = quantize_channels(matrix)
        return q * scale[..., None]
    with default_float_mode(), np.errstate(over="ignore"):
        return matrix.astype(numpy_dtype(weight_storage)).astype(np.float32)
