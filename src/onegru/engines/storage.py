"""Weight storage in 16 bits, or in int8 with scales."""

from __future__ import annotations

import numpy as np

from onegru.core.dtypes import BY_SIZE, Array, default_float_mode, group_size, in_groups, is_int8, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Weights

# The same limits as in native/packing/packed.h: the most inputs of a product; the least and the largest range
# of a channel, from which its scale follows.
_MOST_INPUTS = 1 << 17
LEAST_RANGE = np.float32(2.0**-100)
_LARGEST_RANGE = np.float32(float.fromhex("0x1.fffffp127"))

# The smallest number that rounds to infinity in each 16-bit type.
_INFINITE = {"float16": np.float32(65520), "bfloat16": np.float32(float.fromhex("0x1.ffp127"))}

# A value masks a unit if it is at least this large, and larger by this factor than others of its row.
_LEAST_SWITCH, _SWITCH_RATIO = np.float32(1e3), np.float32(1e3)


def quantize_channels(matrix: Array, group: int = 0) -> tuple[Array, Array]:
    """Quantize the rows of a float32 matrix to int8: w = q·scale, symmetric, one scale per group of a row."""
    # A scale has 16 bits. So q·scale is exact in float32, and quantizing it again yields equal q and scales.
    K = matrix.shape[-1]
    group = group or max(K, 1)
    with default_float_mode():
        groups = _in_groups(matrix, group)
        largest = np.abs(groups).max(-1, initial=0.0).astype(np.float32)
        bits = (np.clip(largest, LEAST_RANGE, _LARGEST_RANGE) / np.float32(127)).view(np.uint32)
        scale = ((bits + np.uint32(0xFF)) & ~np.uint32(0xFF)).view(np.float32)
        q = np.rint(groups * (np.float32(1) / scale[..., None])).astype(np.int8)
        return q.reshape(*matrix.shape[:-1], groups.shape[-2] * groups.shape[-1])[..., :K], scale


def dequantized(q: Array, scale: Array, group: int) -> Array:
    """Return the numbers that a result of `quantize_channels` represents."""
    found: Array = q * np.repeat(scale, group or max(q.shape[-1], 1), -1)[..., : q.shape[-1]]
    return found


def check_storage(weights: Weights, weight_storage: str | None) -> None:
    """Raise SpecError unless a float32 layer can store W and R in this type. None is the layer's type."""
    for name, matrix in (("W", weights.W), ("R", weights.R)):
        if problem := storage_problem(matrix, weight_storage):
            raise SpecError.of(name, problem)


def storage_problem(matrix: Array, weight_storage: str | None) -> str:
    """Return why a float32 matrix [..., rows, K] cannot be stored in a type; empty if it can.

    native/runtimes/onnx_checks.h has the same checks, for runtimes that hold the weights.
    """
    if weight_storage is None:
        return ""
    if not is_int8(weight_storage):
        lost = matrix[np.isfinite(matrix) & (np.abs(matrix) >= _INFINITE[weight_storage])]
        wider = "bfloat16 or float32" if weight_storage == "float16" else "float32"
        return (
            f"contains {lost[0]:.3g}, which is infinite in {weight_storage}; must be stored as {wider}"
            if lost.size
            else ""
        )
    if matrix.shape[-1] > _MOST_INPUTS:
        shape = list(matrix.shape)
        return f"shape {shape}; its last axis must be at most {_MOST_INPUTS} for int8"
    if not np.isfinite(matrix).all():
        return "contains NaN or infinity; must be finite for int8"
    if switch := _switch(matrix, group_size(weight_storage)):
        return (
            f"contains {switch:.3g}, a weight so large that int8 leaves no resolution for the "
            "other weights; must be stored as bfloat16 or float32"
        )
    return ""


def quantizable(argument: str, label: str, array: Array | None, group: int) -> Array:
    """Return a constant weight that can be stored as int8; for others raise SpecError about an argument."""
    advice = "to quantize only other layers, name them (--node)"
    if array is None:
        raise SpecError.of(
            argument,
            f"{label} is computed in each run, or has a default value; must be a constant; {advice}",
        )
    if array.dtype != np.float32:
        raise SpecError.of(argument, f"{label} has element type {array.dtype}; must be float32")
    if problem := storage_problem(array, in_groups("int8", group)):
        raise SpecError.of(argument, f"{label} {problem}; {advice}")
    return array


def _switch(matrix: Array, group: int) -> float:
    """Return a number too large for a weight, whose scale rounds other weights to 0; 0 if there is none."""
    if np.abs(matrix).max(initial=0.0) < _LEAST_SWITCH:
        return 0.0
    sizes = np.abs(_in_groups(matrix, group or matrix.shape[-1]))
    most = sizes.max(-1, keepdims=True)
    is_lost = sizes < most / np.float32(254)
    lost = sizes.max(-1, keepdims=True, where=is_lost, initial=0.0)
    kept = sizes.min(-1, keepdims=True, where=~is_lost, initial=np.inf)
    found = most[(most >= _LEAST_SWITCH) & (lost > 0) & (lost < kept / _SWITCH_RATIO)]
    return float(found[0]) if found.size else 0.0


def _in_groups(matrix: Array, group: int) -> Array:
    """Return [..., rows, groups, weights], with zeros after the last weights of a row."""
    K = matrix.shape[-1]
    padded = np.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, -K % group)])
    return padded.reshape(*matrix.shape[:-1], -(-K // group) or 1, -1)


def stored(weights: Weights, weight_storage: str) -> Weights:
    """Return the weights of a float32 layer with W and R rounded to a type; finite weights for int8."""
    return Weights(_stored(weights.W, weight_storage), _stored(weights.R, weight_storage), weights.B)


def rounded_to_bfloat16(matrix: Array) -> Array:
    """Return float32 numbers rounded to the nearest bfloat16, as float32."""
    return _stored(matrix, "bfloat16")


def lossless_storage(weights: Weights) -> str | None:
    """Return the smallest lossless `weight_storage` for W and R of a float32 layer; None if none is."""
    if weights.W.dtype != np.float32 or not all(np.isfinite(item).all() for item in (weights.W, weights.R)):
        return None
    for storage in BY_SIZE:
        # Check one row first, which nearly always decides.
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
