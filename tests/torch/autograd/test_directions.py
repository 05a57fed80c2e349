"""Two directions at the same time, on two threads, against one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import onegru  # noqa: E402
from onegru.torch.arguments import form_of  # noqa: E402
from onegru.torch.autograd.function import gru_layer  # noqa: E402
from onegru.torch.route import are_few_trained  # noqa: E402


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads(), onegru.get_num_threads()
    yield
    torch.set_num_threads(before[0])
    onegru.set_num_threads(before[1])


@pytest.mark.parametrize("is_few", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_two_threads_give_the_bits_of_one(seed: int, is_few: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float64])
    B, I, H = rng.randint(1, 3), rng.randint(1, 90), rng.randint(70, 90)
    T = rng.randint(40, 120 // B) if is_few else rng.randint(260, 300) // B
    assert are_few_trained(T, B, H) == is_few
    attention: Any = rng.choice([None, "openvino", "dien"])
    form = form_of("bidirectional", rng.random() < 0.5, None, None, None, None, True, attention or "openvino")
    X, h, scores = (torch.randn(*shape, dtype=dtype) for shape in ((T, B, I), (2, B, H), (T, B)))
    resets = torch.rand(T, B) < 0.1 if rng.random() < 0.5 else None
    lengths = torch.randint(0, T + 1, (B,)) if rng.random() < 0.5 else None
    shapes = ((3 * H, I), (3 * H, H), (3 * H,), (3 * H,))
    learned = [X, h, *([scores.sigmoid()] if attention else [])]
    learned += [torch.randn(shape, dtype=dtype) / 8 for shape in shapes * 2]
    frozen = {*rng.sample(range(len(learned)), 2)} if rng.random() < 0.5 else set()
    by = torch.randn(T, B, 2 * H, dtype=dtype)

    def trained(threads: int) -> list[Any]:
        torch.set_num_threads(threads)
        onegru.set_num_threads(threads)
        own = [item.clone().requires_grad_(place not in frozen) for place, item in enumerate(learned)]
        weights = own[-8:]
        tensors = (*own[:2], own[2] if attention else None, lengths, resets, *weights)
        Y, Y_h = gru_layer(form, tensors)
        ((Y * by).sum() + Y_h.sin().sum()).backward()
        with torch.no_grad():
            outputs = gru_layer(form, tensors)
        return [Y.detach(), Y_h.detach(), *outputs, *(item.grad for item in own if item.requires_grad)]

    wanted = trained(1)
    for threads in (2, 2, 3):  # first asleep, then awake
        for number, (mine, right) in enumerate(zip(trained(threads), wanted, strict=True)):
            assert mine.numpy().tobytes() == right.numpy().tobytes(), number
