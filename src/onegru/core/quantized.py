"""Dequantize integers like DequantizeLinear."""

from __future__ import annotations

import numpy as np

from onegru.core.dtypes import Array, default_float_mode

_INTEGERS = {"int4", "uint4", "int8", "uint8", "int16", "uint16", "int32"}
_SMALL_FLOATS = {"float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
_SCALES = {"float16", "bfloat16", "float32"}


def dequantize(
    x: Array, scale: Array, zero_point: Array | None = None, axis: int = 1, block_size: int = 0
) -> Array | None:
    """Return (x - x_zero_point)·x_scale as ONNX Runtime computes DequantizeLinear; None if not supported."""
    is_small_float = x.dtype.name in _SMALL_FLOATS
    if scale.dtype.name not in _SCALES or (x.dtype.name not in _INTEGERS and not is_small_float):
        return None
    if (x.dtype == np.int32 or is_small_float) and zero_point is not None and zero_point.astype(bool).any():
        return None
    if zero_point is None:
        zero_point = np.zeros(scale.shape, x.dtype)
    if zero_point.shape != scale.shape or zero_point.dtype != x.dtype:
        return None
    of_each, of_zero = (_spread(array, x.shape, axis, block_size) for array in (scale, zero_point))
    if of_each is None or of_zero is None:
        return None
    with default_float_mode(), np.errstate(over="ignore", invalid="ignore"):
        offsets = x if is_small_float else x.astype(np.int32) - of_zero.astype(np.int32)
        return np.asarray((offsets.astype(np.float32) * of_each.astype(np.float32)).astype(scale.dtype))


def _spread(array: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array | None:
    """Return scales, one per tensor, slice or block, in a form that broadcasts to a shape."""
    if array.size == 1 and array.ndim <= 1 and block_size == 0:
        return array.reshape(())
    if not -len(shape) <= axis < len(shape) or block_size < 0:
        return None
    axis %= len(shape)
    if block_size == 0:
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        return array.reshape(sizes) if array.shape == (shape[axis],) else None
    wanted = (*shape[:axis], -(-shape[axis] // block_size), *shape[axis + 1 :])
    if array.shape != wanted:
        return None
    return np.take(array, np.arange(shape[axis]) // block_size, axis)
