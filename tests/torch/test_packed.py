"""PackedSequences: results, gradients, dropout and memory go by the steps that exist."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
import onegru.torch.packed as packed  # noqa: E402


def sequence(lengths: list[int], width: int, is_sorted: bool = False) -> PackedSequence:
    rows = [torch.randn(length, width) for length in lengths]
    return pack_sequence(sorted(rows, key=len, reverse=True) if is_sorted else rows, enforce_sorted=is_sorted)


@pytest.mark.parametrize("free", [0, 1 << 21])
@pytest.mark.parametrize("seed", range(15))
def test_results_gradients_and_dropout_are_pytorchs(
    seed: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_FREE", free)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    lengths = [rng.choice([1, 2, 3, 10, 40, rng.randint(1, 60)]) for _ in range(rng.randint(1, 30))]
    options: dict[str, Any] = {"num_layers": rng.randint(1, 3), "bidirectional": rng.random() < 0.5}
    options["dropout"] = rng.choice([0, 0.3]) if options["num_layers"] > 1 else 0
    theirs, mine = nn.GRU(5, 7, **options), ours.GRU(5, 7, **options)
    mine.load_state_dict(theirs.state_dict())
    given = sequence(lengths, 5, rng.random() < 0.3)
    D = options["num_layers"] * (1 + options["bidirectional"])
    h = torch.randn(D, len(lengths), 7) if rng.random() < 0.5 else None
    found = []
    for module in (theirs, mine):
        data = given.data.clone().requires_grad_()
        rebuilt = PackedSequence(data, given.batch_sizes, given.sorted_indices, given.unsorted_indices)
        torch.manual_seed(seed)
        y, last = module(rebuilt, h)
        (y.data.sin().sum() + last.cos().sum()).backward()
        found.append([y.data, last, data.grad, *(p.grad for p in module.parameters())])
    for wanted, result in zip(*found, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def test_rows_are_padded_by_little() -> None:
    for lengths in ([2000] + [10] * 255, list(range(1, 300)), [7] * 400, [1]):
        given = sequence(lengths, 64)
        groups = packed.groups_of(given, 200)
        total = sum(len(group.index) * group.index.shape[1] for group in groups)
        assert [group.rows.start for group in groups] + [len(lengths)] == [
            0,
            *(group.rows.stop for group in groups),
        ]
        assert sum(len(group.steps) for group in groups) == sum(lengths)
        assert total <= max(1.5 * sum(lengths), packed._FREE / 200)
        X = torch.arange(sum(lengths), dtype=torch.float32)[:, None]
        assert torch.equal(packed.joined(groups, [group.take(X) for group in groups]), X)


def test_an_uneven_sequence_takes_little_memory() -> None:
    """One long row with many short ones was padded to 512,000 steps; 4,550 exist."""
    given, module = sequence([2000] + [10] * 255, 64), ours.GRU(64, 128)
    biggest = 0

    def pack(tensor: Any) -> Any:
        nonlocal biggest
        biggest = max(biggest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), warnings.catch_warnings():
        y, _ = module(given)
    y.data.sum().backward()
    assert biggest < 6000 * 128 * 5


@pytest.mark.parametrize("options", [{}, {"clip": 2.0}, {"linear_before_reset": False}])
def test_other_devices_and_types(options: dict[str, Any]) -> None:
    given = sequence([3, 5, 2], 4)
    module = ours.GRU(4, 6, **options)
    for target in ("meta", torch.bfloat16):
        moved = copy.deepcopy(module).to(target)
        y, h = moved(given.to(target) if target != "meta" else given._replace(data=given.data.to("meta")))
        assert y.data.shape == (10, 6) and h.shape == (1, 3, 6)


@pytest.mark.parametrize("sizes", [[2, 3], [1, 2], [1, 3, 2], [2, 2], [3, 0], []])
def test_steps_that_are_none(sizes: list[int]) -> None:
    packed = nn.utils.rnn.PackedSequence(torch.randn(5, 3), torch.tensor(sizes, dtype=torch.int64))
    with pytest.raises(onegru.SpecError, match="input: a PackedSequence"):
        ours.GRU(3, 5)(packed)
    floats = nn.utils.rnn.PackedSequence(torch.randn(4, 3), torch.tensor([2.0, 2.0]))
    with pytest.raises(onegru.SpecError, match="int64"):
        ours.GRU(3, 5)(floats)
