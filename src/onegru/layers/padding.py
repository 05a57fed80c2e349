"""Pad sequences of different lengths to one array with lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, as_lengths, contiguous, refuse_grad
from onegru.core.errors import SpecError
from onegru.core.shapes import check_shape, empty
from onegru.core.tensors import as_tensor
from onegru.core.wording import count


def pad(sequences: Sequence[ArrayLike] | Any, *, layout: int = 0) -> tuple[Array, Array]:
    """Pad sequences of different lengths to one array.

        X, sequence_lens = onegru.pad([first, second, third])
        Y, Y_h = layer(X, sequence_lens=sequence_lens)

    Args:
        sequences: arrays [T_i, I], at least one, of the same element type and I. Any T_i may be 0. Or a
            PyTorch `PackedSequence`; its rows are returned in the order before packing.
        layout: of X: 0 for time first, 1 for batch first.

    Returns:
        X [T, B, I], or [B, T, I] under layout 1, of the sequences' type, where T is the longest length; and
        sequence_lens [B], int32.

    Raises:
        SpecError: an argument is invalid.
    """
    layout = integer("layout", layout, 0, 1)
    X, lengths = _unpacked(sequences) if hasattr(sequences, "batch_sizes") else _side_by_side(sequences)
    return (contiguous(X.swapaxes(0, 1)) if layout else X), lengths


def _side_by_side(sequences: object) -> tuple[Array, Array]:
    if isinstance(sequences, str | bytes | np.ndarray) or not isinstance(sequences, Iterable):
        raise SpecError.of(
            "sequences", f"{shown(sequences)}; must be a list of arrays [seq_length, input_size]"
        )
    arrays: list[Array] = []
    sizes: dict[str, int] = {}
    for index, item in enumerate(sequences):
        name = f"sequences[{index}]"
        array = _tensor(name, item)
        if arrays and array.dtype != arrays[0].dtype:
            raise SpecError.of(
                name, f"type {array.dtype.name}; must be {arrays[0].dtype.name}, like the first array"
            )
        sizes.pop("T", None)
        check_shape(name, array.shape, "TI", sizes)
        arrays.append(array)
    if not arrays:
        raise SpecError.of("sequences", "empty; must contain at least one array")
    lengths = np.array([len(array) for array in arrays], np.int32)
    X = empty("sequences", (int(lengths.max()), len(arrays), sizes["I"]), arrays[0].dtype)
    for row, array in enumerate(arrays):
        X[: len(array), row] = array
        X[len(array) :, row] = 0
    return X, lengths


def _unpacked(packed: Any) -> tuple[Array, Array]:
    """Return X and lengths of a PackedSequence, whose rows are stored by step, the longest sequence first."""
    data = _tensor("sequences.data", getattr(packed, "data", None))
    check_shape("sequences.data", data.shape, "NI", {}, {"N": "steps of all rows"})
    counts = as_lengths("sequences.batch_sizes", packed.batch_sizes)
    if counts.ndim != 1 or not len(counts) or counts[-1] < 1 or (np.diff(counts) > 0).any():
        raise SpecError.of(
            "sequences.batch_sizes", "must be the number of rows of each step, and must not increase"
        )
    if counts.sum() != len(data):
        raise SpecError.of(
            "sequences.data", f"{count(len(data), 'row')}; must be {counts.sum()}, the sum of batch_sizes"
        )
    T, B = len(counts), int(counts[0])
    X = np.zeros((T, B, data.shape[1]), data.dtype)
    present = np.arange(B) < counts[:, None]
    X[present] = data
    lengths = present.sum(0, dtype=np.int32)
    order = getattr(packed, "sorted_indices", None)
    if order is None:
        return X, lengths
    order = as_lengths("sequences.sorted_indices", order)
    if order.shape != (B,) or (np.sort(order) != np.arange(B)).any():
        raise SpecError.of("sequences.sorted_indices", f"must be a permutation of the {B} row indices")
    rows = np.argsort(order)
    return X[:, rows], lengths[rows]


def _tensor(name: str, value: object) -> Array:
    refuse_grad(name, value)
    return as_tensor(name, value)
