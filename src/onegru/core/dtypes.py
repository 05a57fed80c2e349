"""Define element types, and convert arrays to them."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onegru import _native
from onegru.core.errors import SpecError, needs_extra

Array = npt.NDArray[Any]

#: Element types of operators, by their names in NumPy (or ml_dtypes).
ELEMENT_TYPES = ("float16", "bfloat16", "float32", "float64")

#: The largest finite value of each type.
LARGEST: Mapping[str, float] = {
    **{name: float(np.finfo(name).max) for name in ("float16", "float32", "float64")},
    "bfloat16": (2.0 - 2.0**-7) * 2.0**127,
}


class WeightStorage(NamedTuple):
    """Storage type of a float32 layer's matrices."""

    name: str  # as in arguments
    bytes: int  # per weight
    is_int8: bool = False  # whether weights are int8 with scales
    # number of weights of an output channel that share a scale; 0: all of them, or no scales
    group: int = 0


_STORAGES = (
    *(WeightStorage("float16", 2), WeightStorage("bfloat16", 2), WeightStorage("int8", 1, is_int8=True)),
    *(WeightStorage(f"int8_g{group}", 1, is_int8=True, group=group) for group in (32, 64, 128)),
)
WEIGHT_STORAGES: Mapping[str, WeightStorage] = {storage.name: storage for storage in _STORAGES}

#: Types to which activations are rounded before matrix products, and their sizes in bytes.
ACTIVATION_STORAGES: Mapping[str, int] = {"int16": 2, "int8": 1, "bfloat16": 2}
DEFAULT_ACTIVATION_STORAGE = "int16"  # with int8 weights


def is_int8(weight_storage: object) -> bool:
    """Whether weights are stored as int8 with scales."""
    return any(storage.is_int8 and storage.name == weight_storage for storage in _STORAGES)


def may_round(weight_storage: object, activation_storage: object) -> bool:
    """Whether activations can be rounded to this type before they are multiplied by these weights."""
    if activation_storage == "bfloat16":
        return weight_storage == "bfloat16"
    return activation_storage is not None and is_int8(weight_storage)


def group_size(weight_storage: str | None) -> int:
    """Return the number of weights of an output channel that share a scale; 0 for all, or no scales."""
    return WEIGHT_STORAGES[weight_storage].group if weight_storage else 0


def in_groups(weight_storage: str | None, group: int) -> str | None:
    """Return the storage with a scale for each `group` weights of an output channel; 0: one scale."""
    storage = WEIGHT_STORAGES.get(weight_storage or "")
    if storage is None or not storage.is_int8:
        return weight_storage
    return next(item.name for item in _STORAGES if item.is_int8 and item.group == group)


def bytes_per_weight(weight_storage: str | None) -> int:
    """Return the bytes per weight of a float32 layer in this storage."""
    return 4 if weight_storage is None else WEIGHT_STORAGES[weight_storage].bytes


#: The storage types from the smallest on, scales included.
BY_SIZE = tuple(
    storage.name
    for storage in sorted(_STORAGES, key=lambda item: (item.bytes, -(item.group or 1 << 30), item.name))
)


def check_group_size(value: object) -> int:
    """Check a group size of weights, given as an argument; return 0 for None."""
    sizes = [size for size in map(group_size, WEIGHT_STORAGES) if size]
    if value is not None and (
        not isinstance(value, numbers.Integral) or isinstance(value, bool) or value not in sizes
    ):
        raise SpecError.of("group_size", f"{value!r}; must be {', '.join(map(str, sizes))} or None")
    return int(value or 0)


def bfloat16() -> np.dtype[Any]:
    """Return ml_dtypes's bfloat16, and import ml_dtypes on the first call."""
    with needs_extra("ml_dtypes", "bfloat16", "bfloat16"):
        import ml_dtypes
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`, including bfloat16."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


@contextmanager
def default_float_mode() -> Iterator[None]:
    """Set IEEE 754's default mode for this thread, and restore the caller's mode at the end."""
    mode = _native.set_float_mode(None)
    try:
        yield
    finally:
        _native.set_float_mode(mode)


def to_float32(value: float) -> float:
    """Return the float32 number nearest to `value`; infinity beyond the largest."""
    with default_float_mode(), np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


def contiguous(value: object, dtype: npt.DTypeLike | None = None) -> Array:
    """Return a C-contiguous array of the same shape, even for rank 0; copy only if necessary."""
    return np.asarray(value, dtype, order="C")


def convert(value: object, dtype: str) -> Array:
    """Convert `value` to another element type like OpenVINO's Convert, which rounds floats towards zero."""
    array = np.asarray(value)
    target = numpy_dtype(dtype)
    if target.kind in "iu" and array.dtype.kind != "b":
        limits = np.iinfo(target)
        if array.dtype.kind in "iu":
            fits = (array >= limits.min) & (array <= limits.max)
        else:
            numbers = np.trunc(array.astype(np.float64))  # float64 has both limits exactly, even of 64 bits
            fits = (numbers >= float(limits.min)) & (numbers < limits.max + 1.0)
        if not np.all(fits):
            raise SpecError(f"contains a value that is not finite in {dtype}; must be finite")
    with default_float_mode(), np.errstate(over="ignore"):
        return array.astype(target)


def as_float_array(name: str, value: object, must_be: tuple[str, ...] = ELEMENT_TYPES) -> Array:
    """Return `value` as an array of one of the element types `must_be`, in native byte order."""
    array = _as_array(name, value)
    if array.dtype.name not in must_be:
        raise SpecError.of(name, f"type {array.dtype.name}; must be {_either(must_be)}")
    return array


def as_array_of(dtype: str, name: str, value: object) -> Array:
    """Return `value` as an array of the element type `dtype` of the weights."""
    array = _as_array(name, value)
    if array.dtype.name == dtype:
        return array
    how = ""
    if array.dtype.name in ELEMENT_TYPES or array.dtype.kind in "iu":
        target = f"{'ml_dtypes' if dtype == 'bfloat16' else 'np'}.{dtype}"
        is_array = isinstance(value, np.ndarray)
        how = f"; try {name}.astype({target})" if is_array else f"; try np.array({name}, {target})"
    raise SpecError.of(name, f"type {array.dtype.name}; must be {dtype}, like W{how}")


def as_lengths(name: str, value: object, must_be: tuple[str, ...] | None = None) -> Array:
    """Return a copy of `value` as an array of integers, whose values are not checked."""
    if isinstance(value, list | tuple) and not value:
        value = np.zeros(0, np.int64)
    array = _as_array(name, value)
    if must_be is not None and array.dtype.name not in must_be:
        raise SpecError.of(name, f"type {array.dtype.name}; must be {_either(must_be)}")
    if array.dtype.kind not in "iu":
        raise SpecError.of(name, f"type {array.dtype.name}; must be an integer type")
    return array.copy()


def refuse_grad(name: str, value: object) -> None:
    """Raise SpecError for a PyTorch tensor whose gradient would be lost."""
    if getattr(value, "requires_grad", False) is True:
        raise SpecError.of(name, f"a tensor that requires grad; must be an array; try {name}.detach()")


def is_ragged(value: object) -> bool:
    """Whether a value is PyTorch's PackedSequence, or a list of sequences of different lengths."""
    if hasattr(value, "batch_sizes"):
        return True
    if not isinstance(value, list | tuple):
        return False
    shapes = [
        (len(item),) if isinstance(item, list | tuple) else getattr(item, "shape", None) for item in value
    ]
    return len({shape[0] for shape in shapes if isinstance(shape, tuple) and shape}) > 1


# Errors of other packages' tensors. Other errors have other causes, such as a signal handler or a lack of
# memory.
_NO_ARRAY = (ArithmeticError, AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError)


def _as_array(name: str, value: object) -> Array:
    refuse_grad(name, value)
    if name == "X" and is_ragged(value):
        raise SpecError.of("X", "sequences of different lengths; must be one array; try onegru.pad(X)")
    try:
        array = np.asarray(value)
    except _NO_ARRAY as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise SpecError.of(name, f"not an array ({first}); must be an array") from error
    # Not imported here, because a fork during the import would leave the child waiting for Python's import
    # lock.
    if "numpy.ma" in sys.modules and np.ma.isMaskedArray(value):
        raise SpecError.of(name, "a masked array; must be a plain array, because a mask would have no effect")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def as_text(array: Array) -> Array:
    """Return strings as NumPy's own; bytes that are not UTF-8, from runtimes, as their codes."""
    if array.dtype.kind in "UT":
        return array.astype(np.str_)
    plain = (
        str(item, "utf-8", "backslashreplace") if isinstance(item, bytes) else item for item in array.flat
    )
    return np.array([*map(str, plain)], np.str_).reshape(array.shape)
