"""Recognize constants with one value, and operators without effect on other inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onegru.core.dtypes import ELEMENT_TYPES, Array, numpy_dtype
from onegru.dataflow.operator import Facts, Op
from onegru.dataflow.table import operator_of

_NUMBER_TYPES = (*ELEMENT_TYPES, "int32", "int64", "uint8", "bool")


def scaled_by_ones(flow: Facts, op: Op) -> str | None:
    """Return the value that an operator multiplies by ones, or divides by them; None for others."""
    # Keras multiplies by its dropout, a tensor of ones outside training. Sums with zeros are excluded,
    # because these can be an initial state, which identifies a cell.
    for index in operator_of(op.kind).factor_inputs if len(op.inputs) == 2 else ():
        name, other = op.inputs[1 - index], op.inputs[index]
        if flow.fill_value(other) == 1:
            shape, other_shape = flow.shape(name), flow.shape(other)
            if shape is None or other_shape is None or len(other_shape) > len(shape):
                continue
            sizes = zip(other_shape[::-1], shape[::-1], strict=False)
            if all(size in (1, whole) for size, whole in sizes):  # otherwise broadcasting may enlarge it
                return name
    return None


def one_number(array: Array, casts: Sequence[str]) -> int | float | None:
    """Return the value of all elements of an array, if casts keep it; else None."""
    flat = array.ravel()
    if flat.dtype.name not in _NUMBER_TYPES or not flat.size or not np.all(flat == flat[0]):
        return None
    number: int | float = flat[0].item()
    if not set(casts) <= set(_NUMBER_TYPES):
        return None
    with np.errstate(all="ignore"):
        is_same = all(np.array(number).astype(numpy_dtype(name)) == number for name in casts)
    return number if is_same else None
