"""`python -m benchmarks.stacks`: compare two threads with one for stacks, whose layers run at the same time.

One and two threads alternate. Their outputs must be the same bits.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import onegru
import onegru.torch
from benchmarks.page.figures import mean_of
from benchmarks.training import best, threads

ROUNDS = 5
#: T, B, I, H and the number of layers.
CASES = (
    (100, 1, 40, 128, 2),
    (100, 1, 128, 128, 2),
    (64, 4, 128, 128, 2),
    (200, 4, 64, 128, 2),
    (300, 2, 40, 64, 2),
    (64, 1, 64, 64, 2),
    (100, 4, 64, 64, 3),
    (100, 1, 128, 128, 3),
    (200, 1, 40, 96, 4),
)


def ways(T: int, B: int, I: int, H: int, layers: int) -> dict[str, Callable[[], Tensor]]:
    """Return functions that run the same stack, by name."""
    torch.manual_seed(0)
    module, x = nn.GRU(I, H, layers), torch.randn(T, B, I)
    stack, X = onegru.from_torch(module), x.numpy()
    state = stack.stream(B)
    accelerated, frozen = copy.deepcopy(module), copy.deepcopy(module)
    onegru.torch.accelerate(accelerated)
    onegru.torch.freeze(frozen)

    def stream() -> Tensor:
        state.reset()
        return torch.from_numpy(state.run(X))

    return {
        "stack": lambda: torch.from_numpy(stack(X)[0]),
        "stream": stream,
        "frozen module": lambda: frozen(x)[0],
        "module": lambda: accelerated(x)[0],
    }


def measure(run: Callable[[], Tensor], seconds: float) -> list[float]:
    """Return the least times of a call in ms, on one thread and on two."""
    outputs, found = [], [math.inf, math.inf]
    for _ in range(ROUNDS):
        for index in (0, 1):
            with torch.no_grad(), threads(index + 1):
                outputs.append(run())
                found[index] = min(found[index], *best([run], seconds / ROUNDS / 2))
    assert all(torch.equal(outputs[0], output) for output in outputs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each pair of times")
    seconds = parser.parse_args().seconds
    found: dict[str, list[float]] = {}
    for case in CASES:
        words = []
        for name, run in ways(*case).items():
            single, double = measure(run, seconds)
            found.setdefault(name, []).append(single / double)
            words.append(f"{name} {1e3 * single:.0f} / {1e3 * double:.0f} µs, {single / double:.2f}×")
        print(f"{','.join(map(str, case))}: {'; '.join(words)}", flush=True)
    for name, ratios in found.items():
        print(f"{name}: geometric mean {mean_of(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
