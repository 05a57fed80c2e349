"""Shapes by lettered axes: one check, one message and one rearrangement for every operator.

The letters are those of `dialects.schema`: a specification says that X is "TBI", the canonical form
wants "TBI" as well, and OpenVINO's "BTI" is the same array seen along other axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onegru.dtypes import Array, as_lengths
from onegru.errors import SpecError

__all__ = ["arrange", "as_rows", "check_shape", "empty", "overlap", "overlaps_itself"]

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
    shape: tuple[int, ...],
    axes: str,
    sizes: dict[str, int],
    terms: Mapping[str, str] | None = None,
) -> None:
    """Check a shape against its axes, and note in `sizes` what it says of axes not yet known.

    Args:
        name: the argument's name.
        shape: its shape.
        axes: its axes, by letter.
        sizes: what is known of each axis; extended.
        terms: what to call an axis in messages, beyond the common terms.

    Raises:
        SpecError: the rank or a dimension does not fit.
    """
    words = {**_TERMS, **(terms or {})}
    wanted = [1 if axis == "1" else sizes.get(axis) for axis in axes]
    fits = len(shape) == len(axes) and all(
        want is None or have == want for have, want in zip(shape, wanted, strict=True)
    )
    if not fits:
        must = f"[{', '.join(words[axis] for axis in axes)}]"
        if any(want is not None for want in wanted):
            must += f" = [{', '.join('any' if want is None else str(want) for want in wanted)}]"
        rank = "" if len(shape) == len(axes) else f"rank {len(shape)}, "
        raise SpecError(f"{name}: {rank}shape {list(shape)}; must be {must}")
    sizes.update({axis: have for axis, have in zip(axes, shape, strict=True) if axis != "1"})


def arrange(array: Array, have: str, want: str) -> Array:
    """A view of `array`, whose axes are `have`, with the axes `want`.

    An axis that only one side has must be of size one: it is dropped, or put in.
    """
    kept = [axis for axis in have if axis in want and axis != "1"]
    view = array[tuple(slice(None) if axis in kept else 0 for axis in have)]
    view = view.transpose([kept.index(axis) for axis in want if axis in kept])
    return view[tuple(slice(None) if axis in kept else None for axis in want)]


def empty(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array, its elements not set.

    Raises:
        SpecError: there is no array of this shape.
        MemoryError: there is no room for it.
    """
    try:
        return np.empty(shape, dtype)
    except ValueError as error:
        raise SpecError(
            f"{name}: shape {list(shape)}; must be one that an array may have ({error})"
        ) from None


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays share memory; True as well where finding out would take long."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # its stub knows -1 and 0 alone
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: Array) -> bool:
    """Whether elements of an array share memory; True as well for what no slicing of a plain array makes."""
    if array.size == 0:
        return False
    extent = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def as_rows(rows: object, count: int) -> Array:
    """`rows` as indices of some of `count` rows.

    Raises:
        SpecError: they are no integers of one axis, beyond the rows, or not each another one.
    """
    indices = as_lengths("rows", rows)
    check_shape("rows", indices.shape, "n", {}, {"n": "rows"})
    wrong = indices[(indices < 0) | (indices >= count)]
    if wrong.size:
        raise SpecError(f"rows: {wrong[0]}; must be in 0…{count - 1}")
    if len(np.unique(indices)) < len(indices):
        raise SpecError("rows: an index is there twice; must be there at most once")
    return indices.astype(np.int32)
