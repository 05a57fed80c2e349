"""Check a model's inputs against their types and shapes in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.shapes import fits
from onegru.core.wording import shape_words
from onegru.formats.graph import TensorInfo


class Inputs:
    """A fast check of a model's inputs."""

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        self._expected = [_expected_of(info) for info in infos]
        self._known = all(dtype is not None for _, _, dtype, _, _ in self._expected)
        self._is_same = all(name == value for name, value, _, _, _ in self._expected)

    def plain(self, inputs: Mapping[str, object]) -> Mapping[str, object] | None:
        """Return the input arrays by their names in the graph; None to use the general check."""
        if not self._known or len(inputs) != len(self._expected):
            return None
        for name, _, dtype, shape, open_axes in self._expected:
            array = inputs.get(name)
            if type(array) is not np.ndarray:
                return None
            # An unpickled array, such as from another process, has an equal but different dtype object.
            if array.dtype is not dtype and array.dtype != dtype:
                return None
            have = array.shape
            if have != shape:
                if len(have) != len(shape) or not open_axes:
                    return None
                for axis, size in enumerate(shape):
                    if size is not None and size != have[axis]:
                        return None
        return inputs if self._is_same else {value: inputs[name] for name, value, _, _, _ in self._expected}


_Expected = tuple[str, str, "np.dtype[Any] | None", tuple[int | None, ...], bool]


def _expected_of(info: TensorInfo) -> _Expected:
    """Return an input's name, name in the graph, type if plain, sizes, and whether a size is dynamic."""
    shape = tuple(size if isinstance(size, int) else None for size in info.shape or ())
    plain = info.is_tensor and info.shape is not None and info.dtype not in ("str", "unknown")
    return info.name, info.value, numpy_dtype(info.dtype) if plain else None, shape, None in shape


def fit(info: TensorInfo, value: object) -> Array:
    """Return `value` as an array that fits an input."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{info.name!r}: not an array ({error}); must be {words_of(info)}") from error
    if np.ma.isMaskedArray(value):
        raise SpecError(f"{info.name!r}: a masked array; must be a plain array: a mask would have no effect")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    check_fit(info, array.dtype, array.shape)
    is_text = array.dtype.kind in "UST" or (array.dtype.kind == "O" and info.dtype == "str")
    return array.astype(object) if is_text else array


def check_fit(info: TensorInfo, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise SpecError unless an array of this type and shape fits an input."""
    is_text = dtype.kind in "UST" or (dtype.kind == "O" and info.dtype == "str")
    have = "str" if is_text else dtype.name
    if info.dtype not in (have, "unknown"):
        raise SpecError(f"{info.name!r}: type {have}; must be {info.dtype}")
    if not fits_shape(info, shape):
        raise SpecError(f"{info.name!r}: shape {list(shape)}; must be {words_of(info)}")


def fits_shape(info: TensorInfo, shape: Sequence[int]) -> bool:
    """Whether an array of this shape fits an input."""
    return info.shape is None or fits(shape, info.shape)


def words_of(info: TensorInfo) -> str:
    """Return the type and shape of an input or output, as text."""
    return f"{info.dtype} {'of any rank' if info.shape is None else shape_words(info.shape)}"
