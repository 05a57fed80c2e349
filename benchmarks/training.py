"""`python -m benchmarks.training`: onegru.torch beside PyTorch's own GRU, inference and training, in turns.

Each line is checked before it is timed: the same outputs and gradients, but for rounding. Times are processor
time of the best of many runs, one thread each.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import onegru
import onegru.torch

#: T, B, I, H, layers, both directions.
SHAPES = (
    *((100, 1, 64, 64, 1, False), (1000, 1, 128, 128, 1, False), (500, 4, 384, 256, 1, True)),
    *((100, 128, 36, 36, 1, False), (20, 8, 256, 256, 1, False), (32, 64, 32, 128, 1, False)),
    *((100, 32, 256, 256, 1, False), (100, 256, 128, 128, 1, False), (50, 64, 512, 512, 1, False)),
    *((100, 100, 10, 128, 2, True), (1, 1, 256, 256, 1, False), (1, 8, 512, 512, 1, False)),
)


def drawn(count: int) -> list[tuple[int, int, int, int, int, bool]]:
    """Shapes that nobody tuned."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        T, B = int(rng.choice([1, 5, 20, 100])), int(rng.choice([1, 1, 2, 8, 32]))
        found.append(
            (T, B, int(rng.integers(1, 300)), int(rng.integers(1, 300)), 1, bool(rng.random() < 0.3))
        )
    return found


def infer(module: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of a call."""
    with torch.no_grad():
        return [module(x)[0]]


def train(module: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradients by the input and all parameters."""
    x = x.detach().requires_grad_()
    module.zero_grad()
    y = module(x)[0]
    y.backward(torch.ones_like(y))
    return [x.grad, *(p.grad for p in module.parameters())]


def best(runs: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The least processor time of each, in turns."""
    found = [math.inf] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for place, run in enumerate(runs):
            begin = time.process_time()
            run()
            found[place] = min(found[place], time.process_time() - begin)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawn", type=int, default=0, help="so many drawn shapes in place of the table's")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    onegru.set_num_threads(1)
    print(
        f"PyTorch {torch.__version__}, onegru {onegru.__version__} on {onegru.targets().chosen}, one thread"
    )
    print(f"{'T,B,I,H,layers,both':28}{'inference, ms':>20}{'times':>7}{'training, ms':>22}{'times':>7}")
    ratios: list[float] = []
    for shape in drawn(options.drawn) if options.drawn else SHAPES:
        T, B, I, H, layers, both = shape
        torch.manual_seed(0)
        theirs = torch.nn.GRU(I, H, layers, bidirectional=both)
        ours = copy.deepcopy(theirs)
        onegru.torch.accelerate(ours)
        x = torch.randn(T, B, I)
        line, times = f"{','.join(map(str, shape)):28}", [0.0, 0.0]
        for work in (infer, train):
            for a, b in zip(work(theirs, x), work(ours, x), strict=True):
                scale = float(a.abs().max()) + 1e-3
                assert float((a - b).abs().max()) <= 2e-5 * scale, shape
            times = best([partial(work, module, x) for module in (theirs, ours)], options.seconds)
            line += f"{times[0] * 1e3:12.2f}{times[1] * 1e3:10.2f}{times[0] / times[1]:7.2f}"
        ratios.append(times[0] / times[1])
        print(line, flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(
        f"training: geometric mean {mean:.2f}, least {min(ratios):.2f}, {sum(r < 1 for r in ratios)} below 1"
    )


if __name__ == "__main__":
    main()
