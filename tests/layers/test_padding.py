"""Sequences of different lengths: side by side as layers take them, or a message that says how."""

from __future__ import annotations

import re
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError
from tests.support.layers import make_gru, make_stack

RNG = np.random.default_rng(3)
I = 5
LENGTHS = [3, 0, 6, 1]
SEQUENCES = [RNG.standard_normal((n, I)).astype(np.float32) for n in LENGTHS]

Packed = namedtuple("Packed", ["data", "batch_sizes", "sorted_indices", "unsorted_indices"])


class Tensor:
    """What PyTorch's tensors do that matters here."""

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        self.array = np.asarray(array)
        self.requires_grad = requires_grad
        self.dtype, self.shape = self.array.dtype, self.array.shape

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.__array__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()")
        return self.array

    def __len__(self) -> int:
        return len(self.array)


def pack(sequences: list[Any], order: list[int] | None) -> Packed:
    """As `pack_sequence` does it, the sequences sorted by `order` where one is given."""
    chosen = [sequences[i] for i in order] if order is not None else sequences
    counts = [sum(len(s) > t for s in chosen) for t in range(len(chosen[0]))]
    data = np.concatenate([[s[t] for s in chosen[:n]] for t, n in enumerate(counts)])
    unsorted = None if order is None else Tensor(np.argsort(order))
    return Packed(Tensor(data), Tensor(counts), None if order is None else Tensor(order), unsorted)


@pytest.mark.parametrize("layout", [0, 1])
def test_each_row_is_its_sequence(layout: int) -> None:
    layer = make_gru(direction="bidirectional", layout=layout)
    X, lengths = onegru.pad(SEQUENCES, layout=layout)
    assert X.shape == ((6, 4, I), (4, 6, I))[layout] and X.flags.c_contiguous and X.dtype == np.float32
    assert lengths.tolist() == LENGTHS and lengths.dtype == np.int32
    Y, Y_h = layer(X, sequence_lens=lengths)
    for row, sequence in enumerate(SEQUENCES):
        y, h = layer(sequence[:, None], layout=0)
        own = Y.transpose(1, 2, 0, 3)[:, :, row] if layout else Y[:, :, row]
        np.testing.assert_array_equal(own[: len(sequence)], y[:, :, 0])
        assert not own[len(sequence) :].any()
        np.testing.assert_array_equal(Y_h[row] if layout else Y_h[:, row], h[:, 0])
        np.testing.assert_array_equal((X[row] if layout else X[:, row])[: len(sequence)], sequence)
    assert not X[(1, slice(None)) if layout else (slice(None), 1)].any()


@pytest.mark.parametrize("order", [None, [1, 0, 2], [2, 1, 0]])
def test_packed_sequences(order: list[int] | None) -> None:
    sequences = [SEQUENCES[i] for i in (2, 0, 3)]
    if order is not None:  # as they were before they were sorted by length
        sequences = [sequences[i] for i in np.argsort(order)]
    X, lengths = onegru.pad(pack(sequences, order))
    expected, expected_lengths = onegru.pad(sequences)
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_array_equal(lengths, expected_lengths)


def test_tensors_lists_and_generators_will_do() -> None:
    expected = onegru.pad(SEQUENCES)
    for given in ([Tensor(s) for s in SEQUENCES], (s for s in SEQUENCES), tuple(SEQUENCES)):
        for actual, wanted in zip(onegru.pad(given), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
    X, lengths = onegru.pad([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    assert X.tolist() == [[[1, 2], [3, 4]], [[0, 0], [5, 6]]] and lengths.tolist() == [1, 2]


DATA = np.zeros((4, I), np.float32)


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("sequences: empty; must contain at least one array", []),
        ("sequences: 3; must be a list of arrays", 3),
        ("sequences[1]: type float64; must be float32, like the first array", [DATA, DATA.astype(float)]),
        ("sequences[1]: shape [4, 4]; must be [seq_length, input_size] = [any, 5]", [DATA, DATA[:, 1:]]),
        ("sequences[0]: rank 1, shape [5]; must be [seq_length, input_size]", [DATA[0]]),
        ("sequences[0]: a tensor that requires grad; must be an array; try", [Tensor(DATA, True)]),
        ("sequences.data: a tensor that requires grad", Packed(Tensor(DATA, True), [2, 2], None, None)),
        ("sequences.data: rank 1, shape [4]; must be", Packed(DATA[:, 0], [2, 2], None, None)),
        ("sequences.data: 4 rows; must be 3, the sum", Packed(DATA, [2, 1], None, None)),
        ("sequences.batch_sizes: must be the number of rows", Packed(DATA, [1, 3], None, None)),
        ("sequences.batch_sizes: must be the number of rows", Packed(DATA, [4, 0], None, None)),
        ("sequences.batch_sizes: must be the number of rows", Packed(DATA[:0], [], None, None)),
        ("sequences.sorted_indices: must be a permutation of the 2 row", Packed(DATA, [2, 2], [0, 0], None)),
        ("sequences.sorted_indices: must be a permutation of the 2 row", Packed(DATA, [2, 2], [0, 2], None)),
    ],
)
def test_what_cannot_be_padded(message: str, given: Any) -> None:
    with pytest.raises(SpecError, match="^" + re.escape(message)):
        onegru.pad(given)


def test_a_layer_says_how_to_make_an_input_fit() -> None:
    X = np.zeros((3, 2, I), np.float32)
    layer, stack = make_gru(), make_stack(2)
    ragged = "X: sequences of different lengths; must be one array; try onegru.pad(X)"
    cases: list[tuple[str, Any]] = [
        ("X: type float64; must be float32, like W; try X.astype(np.float32)", X.astype(np.float64)),
        ("X: type float64; must be float32, like W; try np.array(X, np.float32)", X.tolist()),
        ("X: type int64; must be float32, like W; try X.astype(np.float32)", X.astype(np.int64)),
        ("X: a tensor that requires grad; must be an array; try X.detach()", Tensor(X, True)),
        (ragged, SEQUENCES),
        (ragged, pack([SEQUENCES[2], SEQUENCES[0]], None)),
    ]
    for message, given in cases:
        for call in (layer, layer.stream(2).run, lambda X: onegru.gru(X, layer.weights.W, layer.weights.R)):
            with pytest.raises(SpecError) as caught:
                call(given)
            assert str(caught.value) == message
        with pytest.raises(SpecError, match="^layer 0: " + re.escape(message)):
            stack(given)
    bfloat16: Any = pytest.importorskip("ml_dtypes").bfloat16
    with pytest.raises(SpecError, match=re.escape("try X.astype(ml_dtypes.bfloat16)")):
        make_gru(dtype="bfloat16")(X)
    assert make_gru(dtype="bfloat16")(X.astype(bfloat16))[0].dtype == bfloat16
    W, R = (Tensor(array, True) for array in (layer.weights.W, layer.weights.R))
    with pytest.raises(SpecError, match="W: a tensor that requires grad"):
        onegru.GRU(W, R)
    with pytest.raises(SpecError, match=re.escape("R: type float16; must be float32, like W; try R.astype")):
        onegru.GRU(layer.weights.W, layer.weights.R.astype(np.float16))
