"""Group rows of similar length into batches, and restore the order of the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from onegru.core.dtypes import Array, numpy_dtype
from onegru.scoring.columns import Field, Ragged

#: Steps of a batch, padding included. Its arrays then stay in the cache.
STEPS = 8192

#: The largest allowed number of steps of a batch. No model runs faster with more steps.
MOST_STEPS = 1 << 17

_TILE = 16  # rows in a tile of the kernels


def batches(lengths: Array, steps: int, *, equal: bool) -> Iterator[Array]:
    """Yield the rows of each batch, the longest first; every row once."""
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
    """Return the steps of some rows as [T, B, width]; the padding repeats the last step."""
    steps = np.minimum(np.arange(longest)[:, None], field.lengths[rows] - 1)
    found: Array = field.values.take(field.starts[rows] + steps, axis=0, mode="clip")  # the fastest mode
    return found


# Outputs


def arrow_type(result: Field) -> pa.DataType:
    """Return the type of a result's column; bfloat16, which Arrow lacks, becomes float32."""
    kind = pa.from_numpy_dtype(np.dtype(_stored(result)))
    for size in reversed(result.shape):
        kind = pa.list_(kind, size)
    return pa.list_(kind) if result.is_sequence else kind


def plain_lists(schema: pa.Schema) -> pa.Schema:
    """Return a schema with lists of any length instead of fixed-size lists."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            return pa.list_(plain(kind.value_type))
        return kind

    return pa.schema([field.with_type(plain(field.type)) for field in schema])


def _stored(result: Field) -> str:
    return "float32" if result.dtype == "bfloat16" else result.dtype


class Assembly:
    """Outputs of rows, from batches in any order."""

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
        """Store the outputs of some rows: [B, width] each, or [T, B, width] for sequences."""
        for result, target in zip(self._results, self._arrays, strict=True):
            array = outputs[result.name]
            if result.is_sequence:
                steps = np.arange(len(array))[:, None]
                present = steps < lengths
                target[(self._starts[rows] + steps)[present]] = array[present]
            else:
                target[rows] = array

    def arrays(self) -> list[pa.Array]:
        """Return the columns, in the order of the results."""
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
