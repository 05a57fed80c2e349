"""What a model is given: each input checked against what the file says of it; conversions between types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onegru.dtypes import Array, numpy_dtype
from onegru.errors import SpecError
from onegru.files.graph import TensorInfo

__all__ = ["Input", "convert", "fit", "value_of", "words_of"]


class Input:
    """An input, for a quick look at what is given for it."""

    def __init__(self, info: TensorInfo) -> None:
        self.name = info.name
        self.value = value_of(info)
        plain = info.is_tensor and info.shape is not None and info.dtype not in ("str", "unknown")
        self._dtype = numpy_dtype(info.dtype) if plain else None
        self._rank = len(info.shape or ())
        self._fixed = [(axis, size) for axis, size in enumerate(info.shape or ()) if isinstance(size, int)]

    def has_plain(self, inputs: Mapping[str, object]) -> bool:
        """Whether there is an array for it that fits; others need a closer look."""
        array = inputs.get(self.name)
        if type(array) is not np.ndarray or array.dtype != self._dtype:
            return False
        shape = array.shape
        if len(shape) != self._rank:
            return False
        for axis, size in self._fixed:  # noqa: SIM110  # a generator takes three times as long
            if shape[axis] != size:
                return False
        return True


def convert(value: object, dtype: str) -> Array:
    """`value` with another element type, as OpenVINO's Convert: towards zero from floating point to integer.

    Raises:
        SpecError: a number does not fit an integer type.
    """
    array = np.asarray(value)
    target = numpy_dtype(dtype)
    if target.kind in "iu" and array.dtype.kind != "b":
        limits = np.iinfo(target)
        if array.dtype.kind in "iu":
            fits = (array >= limits.min) & (array <= limits.max)
        else:
            numbers = array.astype(np.float64)
            fits = (numbers > limits.min - 1.0) & (numbers < limits.max + 1.0)
        if not np.all(fits):
            raise SpecError(f"a number is not finite, or beyond {dtype}; must fit it")
    with np.errstate(over="ignore"):
        return array.astype(target)


def fit(info: TensorInfo, value: object) -> Array:
    """`value` as an array that fits an input.

    Raises:
        SpecError: it does not.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{info.name!r}: not an array ({error}); must be {words_of(info)}") from None
    if np.ma.isMaskedArray(value):
        raise SpecError(f"{info.name!r}: a masked array; must be a plain one, as a mask would have no effect")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    is_text = array.dtype.kind in "UST" or (array.dtype.kind == "O" and info.dtype == "str")
    have = "str" if is_text else array.dtype.name
    if info.dtype not in (have, "unknown"):
        raise SpecError(f"{info.name!r}: type {have}; must be {info.dtype}")
    fits = info.shape is None or (
        len(info.shape) == array.ndim
        and all(
            not isinstance(want, int) or want == size
            for want, size in zip(info.shape, array.shape, strict=True)
        )
    )
    if not fits:
        raise SpecError(f"{info.name!r}: shape {list(array.shape)}; must be {words_of(info)}")
    return array.astype(object) if have == "str" else array


def words_of(info: TensorInfo) -> str:
    """What an input must be, in words."""
    if info.shape is None:
        return info.dtype
    return f"{info.dtype} [{', '.join('?' if size is None else str(size) for size in info.shape)}]"


def value_of(info: TensorInfo) -> str:
    """What steps call an input or output."""
    return info.value or info.name
