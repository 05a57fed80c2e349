"""Check and rearrange shapes with lettered axes, for all operators.

The letters are those of `onegru.operators.schema`: ONNX's X is "TBI", as in the canonical form, and
OpenVINO's "BTI" is the same array with its axes in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, as_lengths
from onegru.core.errors import SpecError
from onegru.core.wording import shape_words

_TERMS = {
    "T": "seq_length",
    "B": "batch_size",
    "I": "input_size",
    "D": "num_directions",
    "H": "hidden_size",
    "G": "3*hidden_size",
    "1": "1",
}


def check_shape(
    name: str,
    shape: Sequence[int | None],
    axes: str,
    sizes: dict[str, int],
    terms: Mapping[str, str] | None = None,
) -> None:
    """Check a shape against its axes, and add the sizes of new axes to `sizes`."""
    words = {**_TERMS, **(terms or {})}
    wanted = [1 if axis == "1" else sizes.get(axis) for axis in axes]
    if not fits(shape, wanted):
        must = f"[{', '.join(words.get(axis, axis) for axis in axes)}]"
        if any(want is not None for want in wanted):
            must += f" = [{', '.join('any' if want is None else str(want) for want in wanted)}]"
        rank = "" if len(shape) == len(axes) else f"rank {len(shape)}, "
        raise SpecError.of(name, f"{rank}shape {shape_words(shape)}; must be {must}")
    known = ((axis, have) for axis, have in zip(axes, shape, strict=True) if have is not None)
    sizes.update({axis: have for axis, have in known if axis != "1"})


def fits(shape: Sequence[object], wanted: Sequence[object]) -> bool:
    """Whether a shape fits the wanted one; on either side, a non-integer stands for any size."""
    return len(shape) == len(wanted) and all(
        not isinstance(have, int) or not isinstance(want, int) or have == want
        for have, want in zip(shape, wanted, strict=True)
    )


def arrange(array: Array, have: str, want: str) -> Array:
    """Return a view of `array` with axes `want` instead of `have`; axes of size 1 are inserted or dropped."""
    kept = [axis for axis in have if axis in want and axis != "1"]
    view = array[tuple(slice(None) if axis in kept else 0 for axis in have)]
    view = view.transpose([kept.index(axis) for axis in want if axis in kept])
    return view[tuple(slice(None) if axis in kept else None for axis in want)]


def side_by_side(Y: Array, layout: int = 0) -> Array:
    """Return Y with concatenated directions: [T, B, D·H], or [B, T, D·H] under layout 1."""
    if layout == 0:
        Y = Y.transpose(0, 2, 1, 3)
    return Y.reshape(*Y.shape[:2], Y.shape[2] * Y.shape[3])


def empty(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, uninitialized."""
    try:
        return np.empty(shape, dtype)
    except ValueError as error:
        raise SpecError.of(name, f"shape {list(shape)}; must be a possible array shape ({error})") from error


def output(out: object, shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "") -> Array:
    """Return `out`, if it can hold a result of this shape and type; a new array if it is None."""
    if out is None:
        return empty(name or "Y", shape, dtype)
    prefix = f"out: {name} is " if name else "out: "
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != shape:
        given = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise SpecError(f"{prefix}{given}; must be an array, {dtype.name} {list(shape)}")
    if not out.flags.writeable:
        raise SpecError(f"{prefix}read-only; must be writeable")
    if np.ma.isMaskedArray(out) or overlaps_itself(out):
        raise SpecError(f"{prefix}masked or overlaps itself; must be a plain array")
    return out


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays share memory; also True if the exact check would take long."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # its stub knows only -1 and 0
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: Array) -> bool:
    """Whether elements of an array share memory; also True for strides that slicing cannot produce."""
    if array.size == 0:
        return False
    extent = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def as_rows(rows: object, count: int) -> Array:
    """Return `rows` as indices below `count`."""
    indices = as_lengths("rows", rows)
    check_shape("rows", indices.shape, "n", {}, {"n": "rows"})
    wrong = indices[(indices < 0) | (indices >= count)]
    if wrong.size:
        raise SpecError.of("rows", f"{wrong[0]}; must be in 0…{count - 1}")
    if len(np.unique(indices)) < len(indices):
        raise SpecError.of("rows", "an index is repeated; each must appear at most once")
    return indices.astype(np.int32)
