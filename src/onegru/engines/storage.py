"""Weights as a layer keeps them: in 16 bits, or in int8 with scales for each output channel."""

from __future__ import annotations

import numpy as np

from onegru.core.dtypes import (
    ACTIVATION_STORAGES,
    BY_SIZE,
    Array,
    default_float_mode,
    group_size,
    is_int8,
    numpy_dtype,
)
from onegru.core.errors import SpecError
from onegru.core.spec import Weights

# native/packed.h has these as well: the most inputs of a product; the least and the largest range of
# a channel, from which its scale follows.
_MOST_INPUTS = 1 << 17
LEAST_RANGE = np.float32(2.0**-100)
_LARGEST_RANGE = np.float32(float.fromhex("0x1.fffffp127"))

# A number so many times larger than all others of its row switches a unit on or off.
_LARGEST_RATIO = np.float32(1e9)


def quantize_channels(matrix: Array, group: int = 0) -> tuple[Array, Array]:
    """The rows of a float32 matrix in int8: w = q·scale, symmetric, one scale for each group of a row.

    The scale is a 127th of the group's largest |w|, rounded up to 16 bits, and q is w/scale, rounded to
    nearest even. q·scale is then exact in float32, and quantizing it again yields the same q and scale.

    Args:
        matrix: [..., rows, K], finite.
        group: how many weights of a row share a scale, the last ones perhaps fewer; 0 for the whole row.

    Returns:
        q, of the same shape, and scale [..., rows, groups], float32.
    """
    K = matrix.shape[-1]
    group = group or max(K, 1)
    with default_float_mode():
        padded = np.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, -K % group)])
        groups = padded.reshape(*matrix.shape[:-1], -(-K // group) or 1, -1)
        largest = np.abs(groups).max(-1, initial=0.0).astype(np.float32)
        bits = (np.clip(largest, LEAST_RANGE, _LARGEST_RANGE) / np.float32(127)).view(np.uint32)
        scale = ((bits + np.uint32(0xFF)) & ~np.uint32(0xFF)).view(np.float32)
        q = np.rint(groups * (np.float32(1) / scale[..., None])).astype(np.int8)
        return q.reshape(padded.shape)[..., :K], scale


def dequantized(q: Array, scale: Array, group: int) -> Array:
    """The numbers that the result of `quantize_channels` stands for."""
    found: Array = q * np.repeat(scale, group or max(q.shape[-1], 1), -1)[..., : q.shape[-1]]
    return found


def planes_of(activation_storage: str | None) -> int:
    """How many int8 hold an input of a product: 2 for int16, 1 for int8; 0 where it is a float."""
    return 0 if activation_storage is None else ACTIVATION_STORAGES[activation_storage]


def check_int8(weights: Weights) -> None:
    """Raise SpecError unless W and R can be kept in int8: scales are finite, and sums fit into 32 bits."""
    for name, matrix in (("W", weights.W), ("R", weights.R)):
        if matrix.shape[2] > _MOST_INPUTS:
            raise SpecError.of(
                name,
                f"shape {list(matrix.shape)}; its last axis must be at most {_MOST_INPUTS} "
                "to be kept in int8",
            )
        if not np.isfinite(matrix).all():
            raise SpecError.of(name, "holds NaN or infinity; must be finite to be kept in int8")
        if _has_switch(matrix):
            raise SpecError.of(
                name,
                f"holds {np.abs(matrix).max():.3g} as a switch, as masked steps have it, beside which int8 "
                "makes zeros of the other weights; must be kept in bfloat16 or float32",
            )


def _has_switch(matrix: Array) -> bool:
    """Whether a row has a number that is so much larger than all others that it can be no weight."""
    sizes = np.sort(np.abs(matrix), axis=-1)
    most, next_most = sizes[..., -1:], sizes[..., -2:-1]
    return bool(((next_most > 0) & (next_most < most / _LARGEST_RATIO)).any())


def stored(weights: Weights, weight_storage: str) -> Weights:
    """The weights of a float32 layer, finite ones for int8, after W and R are rounded to another type."""
    return Weights(_stored(weights.W, weight_storage), _stored(weights.R, weight_storage), weights.B)


def lossless_storage(weights: Weights) -> str | None:
    """The smallest `weight_storage` that keeps W and R of a float32 layer as they are; None if none does."""
    if weights.W.dtype != np.float32 or not all(np.isfinite(item).all() for item in (weights.W, weights.R)):
        return None
    for storage in BY_SIZE:
        # One row first: it decides for nearly all.
        rows = (part for matrix in (weights.W, weights.R) for part in (matrix[:1, :1], matrix))
        if all(np.array_equal(_stored(part, storage), part) for part in rows):
            return storage
    return None


def _stored(matrix: Array, weight_storage: str) -> Array:
    if is_int8(weight_storage):
        group = group_size(weight_storage)
        return dequantized(*quantize_channels(matrix, group), group)
    with default_float_mode(), np.errstate(over="ignore"):
        return matrix.astype(numpy_dtype(weight_storage)).astype(np.float32)
