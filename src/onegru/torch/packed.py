"""Run PackedSequences in groups of similar lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from onegru.core.errors import SpecError
from onegru.torch.route import is_recorded

#: The padding allowed in total, in values, and the largest ratio of padded to existing values in a group.
_FREE = 1 << 21
_MOST_PADDED = 1.4


class RowGroup(NamedTuple):
    """Adjacent rows of a PackedSequence, the longest first."""

    rows: slice  # the rows of the group
    lengths: Tensor  # their numbers of steps, [rows], int64
    index: Tensor  # index of step t of each row in the data, [T, rows]; any index in the padding
    steps: Tensor  # which of these steps are not padding, in order

    def take(self, data: Tensor) -> Tensor:
        """Return the group's rows of packed data, padded: [T, rows, …]."""
        T, count = self.index.shape
        return data.index_select(0, self.index.flatten()).view(T, count, *data.shape[1:])


def must_be_packed(packed: PackedSequence) -> None:
    """Raise SpecError for an invalid PackedSequence, because programs can construct one."""
    sizes, data = packed.batch_sizes, packed.data
    if sizes.dtype != torch.int64 or sizes.dim() != 1 or not sizes.is_cpu or data.dim() != 2:
        raise SpecError.of(
            "input",
            f"a PackedSequence with batch_sizes {sizes.dtype} {list(sizes.shape)}, data {list(data.shape)}; "
            "must be int64 [T] on the CPU, and [steps, I]",
        )
    if is_recorded():
        return
    counts = sizes.numpy()
    if not counts.size or counts.min() < 1 or (np.diff(counts) > 0).any() or counts.sum() != len(data):
        raise SpecError.of(
            "input",
            f"a PackedSequence with batch_sizes {str(counts.tolist())[:60]} and {len(data)} "
            "steps; must be positive, not ascending, and add up to the steps",
        )


def groups_of(packed: PackedSequence, width: int) -> list[RowGroup]:
    """Return the rows of a PackedSequence in groups, so that a call per group needs little padding."""
    sizes, device = packed.batch_sizes.numpy(), packed.data.device
    B = int(sizes[0])
    lengths = np.searchsorted(-sizes, -np.arange(B), side="left")  # sizes are in descending order
    starts = np.concatenate([[0], np.cumsum(sizes)])
    bounds = [0]
    if int(lengths[0]) * B * width > _FREE:
        steps = 0
        for row, length in enumerate(lengths.tolist()):
            steps += length
            if (row + 1 - bounds[-1]) * int(lengths[bounds[-1]]) > _MOST_PADDED * steps:
                bounds.append(row)
                steps = length
    found = []
    for first, last in zip(bounds, [*bounds[1:], B], strict=True):
        T, own = int(lengths[first]), lengths[first:last]
        is_there = np.arange(T)[:, None] < own
        index = np.where(is_there, starts[:T, None] + np.arange(first, last), 0)
        found.append(
            RowGroup(
                slice(first, last),
                *(
                    torch.from_numpy(array.astype(np.int64)).to(device)
                    for array in (own, index, np.flatnonzero(is_there))
                ),
            )
        )
    return found


def joined(groups: Sequence[RowGroup], results: Sequence[Tensor]) -> Tensor:
    """Return the packed data of the results [T, rows, …] of each group."""
    indices = torch.cat([group.index.flatten().index_select(0, group.steps) for group in groups])
    parts = [Y.flatten(0, 1).index_select(0, group.steps) for group, Y in zip(groups, results, strict=True)]
    return torch.cat(parts).index_select(0, torch.argsort(indices))
