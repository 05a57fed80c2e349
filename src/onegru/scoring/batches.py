"""Rows of similar length put together, so that little is padded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onegru.core.dtypes import Array
from onegru.scoring.columns import Ragged

#: How many steps a batch has, padding included: its arrays stay in the cache.
STEPS = 8192
_TILE = 16  # rows that the kernels take at once


def batches(lengths: Array, steps: int, *, equal: bool) -> Iterator[Array]:
    """The rows of each batch, the longest first; every row once.

    Args:
        lengths: [rows].
        steps: how many a batch may have, with padding; a longer row is a batch of its own.
        equal: whether all rows of a batch must be of the same length.
    """
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
    """The steps of some rows as [T, B, width]; past a row's end its last step again."""
    steps = np.minimum(np.arange(longest)[:, None], field.lengths[rows] - 1)
    found: Array = field.values.take(field.starts[rows] + steps, axis=0)
    return found
