"""`python -m benchmarks.training`: compare onegru.torch with PyTorch in inference and training.

The baseline is torch.nn.GRU, or a loop over the steps if PyTorch has no such GRU. Outputs and gradients must
agree up to rounding before a case is timed. Calls alternate. Times are the best of many runs.
"""

from __future__ import annotations

import argparse
import copy
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import onegru
import onegru.torch
from benchmarks.harness import programs
from benchmarks.harness.processors import microarchitecture
from benchmarks.page.pictures import draw_page

PAGE = Path(__file__).with_name("results") / "training.md"

INTRODUCTION = """# Training: raw data

These are the measurements of [training in PyTorch](../../docs/guides/training.md), written by
`python -m benchmarks.training --page --drawn 240`. They compare `onegru.torch` with PyTorch in float32, with all
gradients. The two alternate on each machine. Outputs and gradients are compared first.

A time is the best of many runs in ms, as PyTorch's / onegru's. The baseline is `torch.nn.GRU`. `torch.nn.GRU` has no
attention, no resets, and no reset gate before the matmul. For these, the baseline is a loop over the steps. Shapes are
T,B,I,H.

![Speed-up of training compared with PyTorch](training.png)"""  # noqa: E501

REASONS = """## Limits

- **Batches**: matmuls take most of the time. In PyTorch and in onegru, they reach 60 to 80 % of the peak of
  multiply-adds. With AVX2 and the shape 100,256,128,128, the forward pass reaches 67 of 104 GFLOP/s, and the gradients
  reach 69. For a speed-up of 1.6, both would need 85.
- **Small H or few rows**: PyTorch's many small operators take most of its time. onegru does not need them.
- **Single steps** read each weight once. In training they also write one gradient for each weight. From H = 256 on,
  memory limits PyTorch and onegru. On two threads, PyTorch is better there.
- **Tiny calls** are limited by Python. One takes 16 µs without gradients (`nn.GRU`: 30), and 118 µs with gradients
  (`nn.GRU`: 155). About 40 µs of these are autograd's cost for a function with that many tensors.

| Change that was tried | Gain | Kept |
| --- | --- | --- |
| store the gates for the gradients instead of computing them again | a fifth to a quarter less time | yes |
| blocks of weight gradients that stay in the cache | – | yes |
| memory kept between calls | 0 to 3 % | no |

## Compared with oneDNN and torch.compile

`python -m benchmarks.onednn` compares only the kernels with oneDNN 3.2, on one thread. oneDNN also gets its weights in
PyTorch's order.

| Shapes | Geometric mean | Lowest | Highest |
| --- | ---: | --- | --- |
| 11 of the shapes above | 1.06 | 0.79 (a step of 8 rows, 512 units) | 1.84 (one row of 64 units) |
| random shapes | 1.07 | 0.85 | – |

At H = 512 and 64 rows, oneDNN is faster: the ratio is 0.84.

| Training | PyTorch, eager | `torch.compile` | onegru |
| --- | ---: | ---: | ---: |
| `nn.GRU`, 100,32,256,256 | 151 ms | 161 ms | 116 ms |
| an AUGRU as a loop of cells, with the compiled cell, 100,128,36,36 | 66 ms | 59 ms | 20 ms |"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """One or several layers. target: the required training speed-up over the baseline."""

    T: int
    B: int
    I: int
    H: int
    target: float = 1.0
    layers: int = 1
    both: bool = False
    form: str = ""  # "reset before", "AUGRU", "resets": loops in PyTorch; "cells": nn.GRUCell
    name: str = ""

    def __str__(self) -> str:
        words = [f"{self.T},{self.B},{self.I},{self.H}"]
        words += [f"{self.layers} layers"] if self.layers > 1 else []
        words += ["both directions"] if self.both else []
        return ", ".join([*words, *filter(None, [self.form])])


CASES = (
    Case(100, 1, 64, 64, 12, name="a small layer, one row"),
    Case(1000, 1, 128, 128, 12, name="one long row"),
    Case(500, 4, 384, 256, 3.5, both=True, name="speech recognition"),
    Case(100, 128, 36, 36, 2.8, name="recommender, interests"),
    Case(100, 128, 36, 36, 4.5, form="AUGRU", name="recommender, their evolution"),
    Case(20, 8, 256, 256, 1.9, name="short sentences"),
    Case(32, 64, 32, 128, 1.9, name="policy"),
    Case(32, 64, 32, 128, 1.9, form="resets", name="policy, resets"),
    Case(100, 32, 256, 256, 1.6, name="time series"),
    Case(100, 32, 256, 256, 1.6, form="reset before", name="time series, reset before"),
    Case(100, 256, 128, 128, 1.6, name="a large batch"),
    Case(50, 64, 512, 512, 1.05, name="a large layer"),
    Case(100, 100, 10, 128, 1.6, 2, True, name="consensus of reads"),
    Case(1, 1, 128, 128, 1.2, name="a frame"),
    Case(1, 16, 64, 64, 1.2, name="a policy that acts"),
    Case(1, 1, 256, 256, 1.2, name="one step"),
    Case(1, 8, 512, 512, 1.2, name="one step, 8 rows"),
    Case(4, 2, 64, 64, 1.2, name="few steps"),
    Case(5, 8, 256, 256, 1.2, name="few steps, 8 rows"),
    Case(20, 1, 64, 64, form="cells", name="a loop of cells"),
    Case(20, 16, 256, 128, form="cells", name="a loop of cells, 16 rows"),
    Case(20, 8, 256, 256, form="cells", name="a loop of large cells"),
)


def drawn(count: int) -> list[Case]:
    """Return random shapes without tuning."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        T, B = int(rng.choice([1, 5, 20, 100])), int(rng.choice([1, 1, 2, 8, 32]))
        I, H = (int(size) for size in rng.integers(1, 300, 2))
        found.append(Case(T, B, I, H, both=bool(rng.random() < 0.3)))
    return found


class Loop(nn.Module):  # type: ignore[misc, unused-ignore]
    """The usual PyTorch code for layers that nn.GRU cannot compute."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.is_after, self.H = case.form == "resets", case.H
        for name, value in nn.GRU(case.I, case.H).named_parameters():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(self, x: Tensor, attention: Tensor | None = None, resets: Tensor | None = None) -> Any:
        H, linear = self.H, nn.functional.linear
        h = x.new_zeros(x.shape[1], H)
        inputs = linear(x, self.weight_ih_l0, self.bias_ih_l0)
        by_n, bias_n = self.weight_hh_l0[2 * H :], self.bias_hh_l0[2 * H :]
        outputs = []
        for t, step in enumerate(inputs):
            if resets is not None:
                h = h * ~resets[t][:, None]
            if self.is_after:
                by_h = linear(h, self.weight_hh_l0, self.bias_hh_l0)
                r, z = torch.sigmoid(step[:, : 2 * H] + by_h[:, : 2 * H]).chunk(2, 1)
                n = torch.tanh(step[:, 2 * H :] + r * by_h[:, 2 * H :])
            else:
                by_h = linear(h, self.weight_hh_l0[: 2 * H], self.bias_hh_l0[: 2 * H])
                r, z = torch.sigmoid(step[:, : 2 * H] + by_h).chunk(2, 1)
                n = torch.tanh(step[:, 2 * H :] + linear(r * h, by_n, bias_n))
            if attention is not None:
                z = (1 - attention[t][:, None]) * z
            h = n + z * (h - n)
            outputs.append(h)
        return torch.stack(outputs), h[None]


class Cells(nn.Module):  # type: ignore[misc, unused-ignore]
    """A loop that calls an nn.GRUCell step by step, as decoders do."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.cell = nn.GRUCell(case.I, case.H)

    def forward(self, x: Tensor) -> Any:
        h, outputs = x.new_zeros(x.shape[1], self.cell.hidden_size), []
        for step in x:
            h = self.cell(step, h)
            outputs.append(h)
        return torch.stack(outputs), h[None]


def pair(case: Case) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
    """Return the baseline, onegru's module, and the other arguments of a call."""
    torch.manual_seed(0)
    if case.form in ("", "cells"):
        theirs = Cells(case) if case.form else nn.GRU(case.I, case.H, case.layers, bidirectional=case.both)
        ours = copy.deepcopy(theirs)
        onegru.torch.accelerate(ours)
        return theirs, ours, {}
    theirs = Loop(case)
    kind = onegru.torch.AUGRU if case.form == "AUGRU" else onegru.torch.GRU
    ours = kind(case.I, case.H, linear_before_reset=case.form == "resets")
    ours.load_state_dict(theirs.state_dict(), strict=False)  # it does not hold the options
    more = {"AUGRU": ("attention", torch.rand), "resets": ("resets", lambda T, B: torch.rand(T, B) < 0.1)}
    if case.form not in more:
        return theirs, ours, {}
    name, draw = more[case.form]
    return theirs, ours, {name: draw(case.T, case.B)}


def infer(module: Any, x: Tensor, more: dict[str, Tensor]) -> list[Tensor]:
    """Return the outputs of a call."""
    with torch.no_grad():
        return [module(x, **more)[0]]


def train(module: Any, x: Tensor, more: dict[str, Tensor]) -> list[Tensor]:
    """Return the gradients of the inputs and all parameters."""
    given = {name: v.detach().requires_grad_(v.is_floating_point()) for name, v in {"": x, **more}.items()}
    x = given.pop("")
    module.zero_grad()
    y = module(x, **given)[0]
    y.backward(torch.ones_like(y))
    learned = [x, *(v for v in given.values() if v.requires_grad), *module.parameters()]
    return [tensor.grad for tensor in learned]


def best(runs: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the least time of each in ms; runs are interleaved."""
    found = [math.inf] * len(runs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for place, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            found[place] = min(found[place], time.perf_counter() - begin)
    return [1e3 * each for each in found]


def measure(case: Case, seconds: float) -> list[list[float]]:
    """Return the baseline's and onegru's times in ms, for inference and training."""
    *pairs, more = pair(case)
    x = torch.randn(case.T, case.B, case.I)
    return _both(str(case), pairs, (infer, train), (x, more), seconds)


def measure_program(program: programs.Program, seconds: float) -> list[list[float]]:
    """Return the same times for a whole program."""
    torch.manual_seed(0)
    return _both(program.name, program.pair(), (programs.run, programs.learn), (program.inputs(),), seconds)


def _both(
    name: str,
    modules: Sequence[Any],
    works: Sequence[Callable[..., list[Tensor]]],
    given: Any,
    seconds: float,
) -> list[list[float]]:
    found = []
    for work in works:
        for a, b in zip(*(work(module, *given) for module in modules), strict=True):
            assert float((a - b).abs().max()) <= 2e-5 * (float(a.abs().max()) + 1e-3), name
        runs = [lambda module=module, work=work: work(module, *given) for module in modules]
        found.append(best(runs, seconds))
    return found


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of both."""
    torch.set_num_threads(count)
    onegru.set_num_threads(count)
    yield


def summary(ratios: Sequence[float]) -> str:
    """Return a summary of many cases."""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = sum(ratio < 1 for ratio in ratios)
    return f"geometric mean {mean:.2f}, lowest {min(ratios):.2f}, {below} of {len(ratios)} below 1"


def table(
    cases: Sequence[Case | programs.Program], count: int, seconds: float
) -> tuple[list[str], list[float], list[float]]:
    """Return rows of the page, and the speed-ups of inference and training."""
    rows, inference, training = [], [], []
    with threads(count):
        for number, case in enumerate(cases, 1):
            if isinstance(case, programs.Program):
                times, what, target = measure_program(case, seconds), case.words, 1.0
            else:
                times, what, target = measure(case, seconds), str(case), case.target
            ratios = [theirs / ours for theirs, ours in times]
            inference.append(ratios[0])
            training.append(ratios[1])
            figures = " | ".join(f"{a:.2f} / {b:.2f} | {a / b:.2f}×" for a, b in times)
            rows.append(f"| {case.name or 'random'} | {what} | {figures} |")
            missed = f" missed: {target:g}" if count == 1 and 0 < ratios[1] < target else ""
            print(f"{number}/{len(cases)}, threads {count}: {rows[-1]}{missed}", flush=True)
    return rows, inference, training


def machine() -> str:
    """Return the processor's name and the SIMD target."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    info = {name.strip(): value.strip() for name, _, value in lines}
    name = microarchitecture(info) or info.get("model name") or platform.processor()
    return f"{name}, {onegru.targets().chosen}"


def write_page(page: Path, introduction: str, place: str, section: str, reasons: str) -> None:
    """Write the page; sections of other machines stay."""
    others = page.read_text().split("\n## ")[1:] if page.exists() else []
    headings = tuple(line[3:] for line in reasons.splitlines() if line.startswith("## "))
    kept = ["## " + other.strip() for other in others if not other.startswith((place, *headings))]
    page.write_text("\n\n".join([introduction, *sorted([*kept, section]), reasons]) + "\n")


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drawn", type=int, default=0, help="number of additional random shapes")
    parser.add_argument("--only", default="", help="only cases with this text in their name or shape")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each pair of times")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--page", action="store_true", help=f"write benchmarks/results/{PAGE.name}")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in f"{case.name} {case}"]
    whole = [program for program in programs.PROGRAMS if options.only in program.name]
    place = machine()
    lines = [f"## {place}", "", f"PyTorch {torch.__version__}, onegru {onegru.__version__}."]
    for count in options.threads:
        rows, inference, training = table(cases, count, options.seconds)
        lines += ["", f"### {count} thread{'s'[: count > 1]}", ""]
        lines += ["| case | shape | inference, ms | speed-up | training, ms | speed-up |"]
        lines += ["| --- | --- | ---: | ---: | ---: | ---: |", *rows, ""]
        lines += [f"Inference: {summary(inference)}. Training: {summary(training)}."] if rows else []
        rows, inference, training = table(whole, count, options.seconds)
        lines += (
            ["", "| program | description | inference, ms | speed-up | training step, ms | speed-up |"]
            if rows
            else []
        )
        lines += ["| --- | --- | ---: | ---: | ---: | ---: |", *rows] if rows else []
        if options.drawn:
            shapes = drawn(options.drawn)
            rows, inference, training = table(shapes, count, options.seconds / 4)
            lines += [
                "",
                f"{options.drawn} random shapes. Inference: {summary(inference)}. "
                f"Training: {summary(training)}.",
            ]
            few = [ratio for case, ratio in zip(shapes, training, strict=True) if case.T == 1]
            lines += [f"Training of single steps: {summary(few)}."] if few else []
        print("\n".join(lines[-2:]))
    if options.page:
        write_page(PAGE, INTRODUCTION, place, "\n".join(lines), REASONS)
        draw_page(PAGE, (0, 5), "2 threads", "PyTorch: training, two threads", PAGE.with_name("training.png"))


if __name__ == "__main__":
    main()
