"""Convert columns of Arrow tables to NumPy arrays, and find invalid rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onegru.core.arguments import shown
from onegru.core.dtypes import Array, default_float_mode, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.wording import count

# Extension types whose storage is a fixed-size list of numbers, in row-major order of `shape`.
_TENSORS = ("arrow.fixed_shape_tensor", "ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")


@dataclass(frozen=True, slots=True)
class Field:
    """Input or output of a model, for each row."""

    name: str  # the input's name, or the output's
    column: str  # the column with the input, or for the output
    dtype: str  # the element type, by NumPy's name
    shape: tuple[int, ...]  # the shape of one step of a sequence, or of the whole value
    is_sequence: bool  # whether each row has its own number of steps

    @property
    def width(self) -> int:
        """Return the number of elements of a step, or of the value."""
        return int(np.prod(self.shape))

    @property
    def inner(self) -> int:
        """Return the number of elements of the inner list."""
        return self.width if self.is_sequence else int(np.prod(self.shape[1:]))

    @property
    def words(self) -> str:
        """Describe the required content of its column."""
        width = self.width
        if not self.is_sequence:
            whole = "numbers" if not self.shape else f"lists of {count(width, 'number')}"
            return whole if len(self.shape) < 2 else f"{whole}, or of {self.shape[0]} lists of {self.inner}"
        if self.shape in ((), (1,)):
            return "lists of numbers"
        return f"lists of lists of {count(width, 'number')}, or lists of numbers, {width} for each step"


@dataclass(frozen=True, slots=True)
class Ragged:
    """Steps of all rows of a field, concatenated."""

    values: Array  # [steps of all rows, width], of the field's type; [rows, width] if it is not a sequence
    starts: Array  # [rows], the first step of each row
    lengths: Array  # [rows], the number of steps of each row


def check_columns(fields: Sequence[Field], reserved: str | None, schema: pa.Schema) -> None:
    """Raise SpecError unless a table has a fitting column for each field, and none named `reserved`."""
    for field in fields:
        _check_column(field, schema)
    is_read = any(field.column == reserved for field in fields)
    if reserved is not None and reserved in schema.names and not is_read:
        why = "a column has the name of the model's input for lengths, which onegru fills itself"
        raise SpecError(f"{reserved!r}: {why}; to use it, name it (inputs, --column {reserved}={reserved})")


def _check_column(field: Field, schema: pa.Schema) -> None:
    """Raise SpecError unless a table of this schema has a column that fits a field."""
    indices = schema.get_all_field_indices(field.column)
    if len(indices) != 1:
        what = f"{len(indices)} columns of that name" if indices else "no such column"
        listed = ", ".join(repr(name) for name in schema.names) or "none"
        raise SpecError(f"{field.column!r}: {what}; input {field.name!r} needs one; columns: {listed}")
    column_type = schema.field(indices[0]).type
    depth, kind, fixed = 0, column_type, 1
    if isinstance(kind, pa.BaseExtensionType):
        kind = _storage_type(field, kind)
    while _is_list(kind):
        depth += 1
        if pa.types.is_fixed_size_list(kind):
            fixed *= kind.list_size
        kind = kind.value_type
    deepest = 2 if field.is_sequence or len(field.shape) > 1 else 1
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if field.dtype == "bool":
        is_number = pa.types.is_boolean(kind)
    fits = depth <= deepest and is_number and depth >= (1 if field.is_sequence or field.width > 1 else 0)
    if not fits:
        raise SpecError(f"{field.column!r}: {column_type}; must be {field.words}, for input {field.name!r}")
    if numpy_dtype(field.dtype).kind in "iu" and not pa.types.is_integer(kind):
        raise SpecError(f"{field.column!r}: {column_type}; must be integers, for input {field.name!r}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _storage_type(field: Field, kind: Any) -> pa.DataType:
    """Return the storage type of a tensor."""
    shape = tuple(getattr(kind, "shape", ()))
    order = getattr(kind, "permutation", None)
    plain = order is None or list(order) == sorted(order)
    if kind.extension_name not in _TENSORS or not plain or not _fits_shape(field, shape):
        raise SpecError(f"{field.column!r}: {kind}; must be {field.words}, for input {field.name!r}")
    storage: pa.DataType = kind.storage_type
    return storage


def _fits_shape(field: Field, shape: Sequence[int]) -> bool:
    if not field.is_sequence:
        return int(np.prod(shape)) == field.width
    return int(np.prod(shape[1:])) == field.width or (len(shape) == 1 and shape[0] % field.width == 0)


# Rows that cannot be run


def find_bad_rows(field: Field, column: pa.ChunkedArray) -> dict[int, str]:
    """Return the faults of a column by row: nulls, empty sequences, wrong widths, NaN, overflow."""
    found: dict[int, str] = {}
    first = 0
    for chunk in column.chunks:
        for row, reason in _bad_rows(field, _storage(chunk)):
            found.setdefault(first + row, reason)
        first += len(chunk)
    return found


def _storage(chunk: pa.Array) -> pa.Array:
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk


def _extent(array: Any) -> tuple[Array, Array, pa.Array]:
    """Return the start and end of each row of a list array, and the part of its values that contains them."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        begin = np.arange(len(array), dtype=np.int64) * size
        # `values` belongs to the whole array, even if this one is a slice.
        return begin, begin + size, array.values.slice(array.offset * size, len(array) * size)
    if not len(array):
        none = np.zeros(0, np.int64)
        return none, none, array.values.slice(0, 0)
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    offsets = offsets - first
    return offsets[:-1], offsets[1:], array.values.slice(first, last - first)


def _nulls(array: pa.Array) -> Array:
    """Return the indices of nulls."""
    if not array.null_count:
        return np.zeros(0, np.int64)
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))


def _bad_rows(field: Field, array: Any) -> Iterator[tuple[int, str]]:
    for row in _nulls(array):
        yield int(row), "null"
    if not _is_list(array.type):
        for row, reason in _bad_numbers(field, array):
            yield row, reason
        return
    begin, end, values = _extent(array)
    ends = [end]  # of rows in steps, and of steps in values
    width = field.width
    if _is_list(values.type):
        width = field.inner
        for row in () if field.is_sequence else np.flatnonzero(end - begin != field.shape[0]):
            yield int(row), f"{count((end - begin)[row], 'list')}; must be {field.shape[0]}"
        for step in _nulls(values):
            yield _owner(ends, int(step)), f"step {_place(begin, ends, int(step))} is null"
        inner_begin, inner_end, numbers = _extent(values)
        widths = inner_end - inner_begin
        for step in np.flatnonzero(widths != width) if not _all_are(widths, width) else ():
            at = _place(begin, ends, int(step))
            yield _owner(ends, int(step)), f"step {at} has {count(widths[step], 'number')}; must have {width}"
        ends.append(inner_end)
    else:
        numbers = values
        counts = end - begin
        wrong = counts % width != 0 if field.is_sequence else counts != width
        must = f"a multiple of {width}" if field.is_sequence else str(width)
        for row in np.flatnonzero(wrong):
            yield int(row), f"{count(counts[row], 'number')}; must be {must}"
    if field.is_sequence:
        for row in np.flatnonzero(end == begin):
            yield int(row), "empty; must have at least one step"
    for index, reason in _bad_numbers(field, numbers):
        yield _owner(ends, index), reason


def _all_are(widths: Array, width: int) -> bool:
    return not widths.size or bool(widths.min() == width == widths.max())


def _owner(ends: Sequence[Array], index: int) -> int:
    """Return the row of a step or a value."""
    for end in reversed(ends):
        index = int(np.searchsorted(end, index, "right"))
    return index


def _place(begin: Array, ends: Sequence[Array], step: int) -> int:
    """Return the index of a step in its row."""
    return step - int(begin[_owner(ends, step)])


def _bad_numbers(field: Field, numbers: pa.Array) -> Iterator[tuple[int, str]]:
    """Yield the indices of values that the model must not get, with reasons."""
    for index in _nulls(numbers):
        yield int(index), "contains a null"
    array = _plain(numbers)
    if not array.size:
        return
    if array.dtype.kind == "f" and np.isnan(array.min()):  # NaN if any value is NaN
        missing = numbers.is_null().to_numpy(zero_copy_only=False) if numbers.null_count else False
        for index in np.flatnonzero(np.isnan(array) & ~np.asarray(missing)):
            yield int(index), "NaN"
    for index in _inexact(field, array):
        yield int(index), f"{shown(array[index].item())}, which {field.dtype} cannot represent"


def _inexact(field: Field, array: Array) -> Array:
    """Return the indices of integers that the type lacks, and of values beyond its largest."""
    target = numpy_dtype(field.dtype)
    if array.dtype == target or array.dtype.kind == "b" or np.can_cast(array.dtype, target, "safe"):
        return np.zeros(0, np.int64)
    with np.errstate(all="ignore"), default_float_mode():
        cast = array.astype(target)
        if array.dtype.kind == "f":
            return np.flatnonzero(np.isinf(cast) & np.isfinite(array))
        # Python's integers, because the float next to int64's largest value is beyond it.
        back = cast.astype(np.float64) if target.kind == "f" else cast
        return (
            np.flatnonzero([not np.isfinite(a) or int(a) != int(b) for a, b in zip(back, array, strict=True)])
            if np.any(back != array) or np.abs(array.astype(np.float64)).max() >= 2.0**53
            else np.zeros(0, np.int64)
        )


def _plain(numbers: pa.Array) -> Array:
    """Return values as an array, without a copy if there are no nulls; nulls become 0."""
    if numbers.null_count:
        numbers = numbers.fill_null(False if pa.types.is_boolean(numbers.type) else 0)
    array: Array = numbers.to_numpy(zero_copy_only=False)
    return array


# Rows that can be run


def bytes_of(rows: pa.Table) -> int:
    """Return the memory of rows; for a dictionary, the memory of the values that they use."""
    size = 0
    for column in rows.columns:
        for chunk in column.chunks:
            size += chunk.indices.nbytes if pa.types.is_dictionary(chunk.type) else chunk.nbytes
            if pa.types.is_dictionary(chunk.type) and is_text(chunk.type.value_type):
                lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
                size += pc.sum(lengths.cast(pa.int64())).as_py() or 0
    return size


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings of characters or bytes, of any length."""
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )


# A larger array is grown as needed, because the system may not reserve that much.
_LARGEST_ROOM = 1 << 28


class Gathered:
    """Values of a field from tables without bad rows: in place, or in a new array of `room` bytes."""

    def __init__(self, field: Field, room: int = 0) -> None:
        self._field = field
        self._dtype = numpy_dtype(field.dtype)
        self._numbers: Array = np.empty(min(room, _LARGEST_ROOM) // self._dtype.itemsize, self._dtype)
        self._size = 0
        self._counts = [np.zeros(0, np.int64)]

    def add(self, column: pa.ChunkedArray) -> int:
        """Add rows, and return their numbers of steps."""
        self._counts.append(step_counts(self._field, column))
        for chunk in column.chunks:
            numbers = _plain(_leaves(chunk))
            before, self._size = self._size, self._size + len(numbers)
            if not self._numbers.size and numbers.dtype == self._dtype:
                self._numbers = numbers
                continue
            if self._size > len(self._numbers):
                larger = np.empty(self._size + self._size // 2, self._dtype)
                larger[:before] = self._numbers[:before]
                self._numbers = larger
            with np.errstate(all="ignore"), default_float_mode():
                self._numbers[before : self._size] = numbers
        return int(self._counts[-1].sum())

    def ragged(self) -> Ragged:
        """Return the steps of all rows."""
        counts = np.concatenate(self._counts)
        values = self._numbers[: self._size].reshape(-1, self._field.width)
        return Ragged(values, np.cumsum(counts) - counts, counts)


def step_counts(field: Field, column: pa.ChunkedArray) -> Array:
    """Return the number of steps of each row; 1 if it is not a sequence."""
    counts = [np.zeros(0, np.int64)]
    for array in map(_storage, column.chunks):
        if not field.is_sequence:
            counts.append(np.ones(len(array), np.int64))
            continue
        begin, end, values = _extent(array)
        counts.append((end - begin) // (1 if _is_list(values.type) else field.width))
    return np.concatenate(counts)


def _leaves(chunk: pa.Array) -> pa.Array:
    """Return the values of all rows."""
    array = _storage(chunk)
    while _is_list(array.type):
        array = _extent(array)[2]
    return array
