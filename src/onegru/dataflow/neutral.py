"""Recognize constants with one value, and operators that they leave without effect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.core.dtypes import ELEMENT_TYPES, Array, numpy_dtype
from onegru.dataflow.operator import Facts, Op
from onegru.dataflow.table import operator_of

_NUMBERS = (*ELEMENT_TYPES, "int32", "int64", "uint8", "bool")


def beside_ones(flow: Facts, op: Op) -> str | None:
    """The value that an operator multiplies by ones, or divides by them; None if it does more."""
    # Keras multiplies by its dropout, which is a tensor of ones outside of training.
    # Not sums with zeros, because these can be an initial state, which identifies a cell.
    for index in operator_of(op.kind).ones_at if len(op.inputs) == 2 else ():
        name, other = op.inputs[1 - index], op.inputs[index]
        if flow.fill(other) == 1:
            shape, beside = flow.shape(name), flow.shape(other)
            if shape is None or beside is None or len(beside) > len(shape):
                continue
            sizes = zip(beside[::-1], shape[::-1], strict=False)
            if all(size in (1, whole) for size, whole in sizes):  # else it may become larger
                return name
    return None


def one_number(array: Array, casts: Sequence[str]) -> int | float | None:
    """The number that every element of an array is, if casts leave it as it is; else None."""
    flat = array.ravel()
    if flat.dtype.name not in _NUMBERS or not flat.size or not np.all(flat == flat[0]):
        return None
    number: int | float = flat[0].item()
    if not set(casts) <= set(_NUMBERS):
        return None
    with np.errstate(all="ignore"):
        is_same = all(np.array(number).astype(numpy_dtype(name)) == number for name in casts)
    return number if is_same else None
