"""Group rows of similar length into batches, and restore the order of the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from onegru.core.dtypes import Array, numpy_dtype
from onegru.scoring.columns import Field, Ragged

#: How many steps a batch has, padding included: its arrays stay in the cache.
STEPS = 8192

#: The most that it may be told to have: no model runs faster with more.
MOST_STEPS = 1 << 17

_TILE = 16  # rows that the kernels take at once


def batches(lengths: Array, steps: int, *, equal: bool) -> Iterator[Array]:
    """The rows of each batch, the longest first; every row once."""
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    first = 0
    while first < len(order):
        longest = int(ordered[first])
        count = max(1, steps // max(1, longest))
        if count > _TILE:
            count -= count % _TILE
        if equal:
            count = min(count, int(np.searchsorted(-ordered, -longest, "right")) - first)
        yield order[first : first + count]
        first += count


def padded(field: Ragged, rows: Array, longest: int) -> Array:
    """The steps of some rows as [T, B, width]; in the padding its last step again."""
    steps = np.minimum(np.arange(longest)[:, None], field.lengths[rows] - 1)
    found: Array = field.values.take(field.starts[rows] + steps, axis=0, mode="clip")  # the fastest mode
    return found


# ---- outputs


def arrow_type(result: Field) -> pa.DataType:
    """The type of a result's column: numbers, fixed-size lists of them, or lists of either.

    bfloat16, which Arrow lacks, becomes float32, which has its values.
    """
    kind = pa.from_numpy_dtype(np.dtype(_stored(result)))
    for size in reversed(result.shape):
        kind = pa.list_(kind, size)
    return pa.list_(kind) if result.is_sequence else kind


def plain_lists(schema: pa.Schema) -> pa.Schema:
    """A schema whose lists may have any length, where this one's are of a fixed size."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            return pa.list_(plain(kind.value_type))
        return kind

    return pa.schema([field.with_type(plain(field.type)) for field in schema])


def _stored(result: Field) -> str:
    return "float32" if result.dtype == "bfloat16" else result.dtype


class Assembly:
    """The outputs of rows, of which batches come in any order."""

    def __init__(self, results: Sequence[Field], lengths: Array) -> None:
        self._results = results
        self._starts = np.cumsum(lengths) - lengths
        self._offsets = np.concatenate([self._starts, [lengths.sum()]])
        count = {True: int(lengths.sum()), False: len(lengths)}
        self._arrays = [
            np.empty((count[result.is_sequence], result.width), numpy_dtype(_stored(result)))
            for result in results
        ]

    def add(self, rows: Array, lengths: Array, outputs: Mapping[str, Array]) -> None:
        """Put in the outputs of some rows: [B, width] each, or [T, B, width] of sequences."""
        for result, target in zip(self._results, self._arrays, strict=True):
            array = outputs[result.name]
            if result.is_sequence:
                steps = np.arange(len(array))[:, None]
                present = steps < lengths
                target[(self._starts[rows] + steps)[present]] = array[present]
            else:
                target[rows] = array

    def arrays(self) -> list[pa.Array]:
        """The columns, in the order of the results."""
        return [
            self._column(result, array) for result, array in zip(self._results, self._arrays, strict=True)
        ]

    def _column(self, result: Field, array: Array) -> pa.Array:
        column: pa.Array = pa.array(array.reshape(-1))
        for size in reversed(result.shape):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        if result.is_sequence:
            column = pa.ListArray.from_arrays(pa.array(self._offsets.astype(np.int32)), column)
        return column
