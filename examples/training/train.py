"""Train four small programs twice, side by side: with PyTorch's own recurrence and with onegru's.

Both start from the same parameters and see the same batches, so their loss curves have to be the same but for
rounding. README.md says what the programs are; all data is drawn.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import onegru
import onegru.torch

ROOT = Path(__file__).resolve().parents[2]
SEED = 0
BASES = 5  # A, C, G, T and a gap
ACTIONS = 4
BANDS = 24
ITEMS, CATEGORIES, EMBEDDING = 600, 20, 18
ALIKE = 0.02  # how far apart two losses of the same step may be: rounding grows as training goes on

Batch = tuple[Any, ...]


# --- a consensus network of nanopore reads: 2 layers in both directions, 10 -> 128


class Tagger(nn.Module):  # type: ignore[misc, unused-ignore]
    """The base at each place of an alignment."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2 * BASES, 128, num_layers=2, bidirectional=True)
        self.head = nn.Linear(256, BASES)

    def forward(self, counts: Tensor, bases: Tensor) -> Tensor:
        """The loss of counts [T, B, 10], drawn from bases [T, B]."""
        logits = self.head(self.gru(counts)[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), bases.flatten())


def reads(draw: torch.Generator) -> Batch:
    """How often reads of both strands show each base; errors come from neighbours and at random."""
    T, B = 100, 100
    bases = torch.randint(BASES, (T, B), generator=draw)
    truth = nn.functional.one_hot(bases, BASES).float()
    seen = 0.55 * truth + 0.25 * truth.roll(1, 0) + 0.2 * torch.rand((T, B, BASES), generator=draw)
    strands = torch.cat((seen, seen), 2) * torch.randint(3, 20, (1, B, 2 * BASES), generator=draw)
    counts = torch.poisson(strands, generator=draw)
    return counts / counts.sum(2, keepdim=True).clamp(min=1), bases


# --- a recommender with interest evolution: a GRU, attention, an AUGRU, 36 -> 36


class LoopedAUGRU(nn.Module):  # type: ignore[misc, unused-ignore]
    """The AUGRU of the paper on DIEN, as recommenders have it in PyTorch: a loop over the steps."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        like = nn.GRU(input_size, hidden_size)
        for name, value in like.named_parameters():
            setattr(self, name, nn.Parameter(value.detach().clone()))

    def forward(self, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state [1, B, H]."""
        h, H = x.new_zeros(x.shape[1], self.hidden_size), self.hidden_size
        inputs = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        by_rz, by_n = self.weight_hh_l0.split((2 * H, H))
        bias_rz, bias_n = self.bias_hh_l0.split((2 * H, H))
        outputs = []
        for step, a in zip(inputs, attention, strict=True):
            r, z = torch.sigmoid(step[:, : 2 * H] + nn.functional.linear(h, by_rz, bias_rz)).chunk(2, 1)
            n = torch.tanh(step[:, 2 * H :] + nn.functional.linear(r * h, by_n, bias_n))
            u = a[:, None] * (1 - z)  # equations 14 to 16 of the paper on DIEN, whose gate u is 1 - z
            h = (1 - u) * h + u * n
            outputs.append(h)
        return torch.stack(outputs), h[None]


class Recommender(nn.Module):  # type: ignore[misc, unused-ignore]
    """Whether a user accepts an item, from the items accepted before."""

    def __init__(self, augru: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, EMBEDDING)
        self.categories = nn.Embedding(CATEGORIES, EMBEDDING)
        self.interest = nn.GRU(2 * EMBEDDING, 2 * EMBEDDING)
        self.evolution = augru(2 * EMBEDDING, 2 * EMBEDDING)
        self.head = nn.Sequential(nn.Linear(4 * EMBEDDING, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, history: Tensor, item: Tensor, accepted: Tensor) -> Tensor:
        """The loss of histories [T, B], offered items [B] and answers [B]."""

        def embed(items: Tensor) -> Tensor:
            return torch.cat((self.items(items), self.categories(items % CATEGORIES)), -1)

        interests = self.interest(embed(history))[0]
        offered = embed(item)
        attention = torch.softmax((interests * offered).sum(2), 0)
        last = self.evolution(interests, attention)[1][0]
        logits = self.head(torch.cat((last, offered), 1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, accepted)


def visits(draw: torch.Generator) -> Batch:
    """Users whose interest moves from category to category; half of the offers meet it."""
    T, B = 100, 128
    moves = (torch.rand((T, B), generator=draw) < 0.05).cumsum(0)
    category = (torch.randint(CATEGORIES, (B,), generator=draw) + 7 * moves) % CATEGORIES
    anything = torch.randint(ITEMS // CATEGORIES, (T + 1, B), generator=draw) * CATEGORIES
    accepted = torch.rand(B, generator=draw) < 0.5
    other = (category[-1] + torch.randint(1, CATEGORIES, (B,), generator=draw)) % CATEGORIES
    return anything[:T] + category, anything[T] + torch.where(accepted, category[-1], other), accepted.float()


# --- a recurrent policy, whose episodes end inside a sequence: 32 -> 128


class LoopedMemory(nn.Module):  # type: ignore[misc, unused-ignore]
    """As policies have it in PyTorch: a cell, and a mask before each step."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(input_size, hidden_size)

    def forward(self, x: Tensor, resets: Tensor) -> Tensor:
        """Outputs [T, B, H]."""
        h = x.new_zeros(x.shape[1], self.cell.hidden_size)
        outputs = []
        for step, reset in zip(x, resets, strict=True):
            h = self.cell(step, h * ~reset[:, None])
            outputs.append(h)
        return torch.stack(outputs)


class Memory(nn.Module):  # type: ignore[misc, unused-ignore]
    """The same by onegru: one call."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gru = onegru.torch.GRU(input_size, hidden_size)

    def forward(self, x: Tensor, resets: Tensor) -> Tensor:
        """Outputs [T, B, H]."""
        outputs: Tensor = self.gru(x, resets=resets)[0]
        return outputs


class Policy(nn.Module):  # type: ignore[misc, unused-ignore]
    """Learns, from an expert, to act on what was shown when the episode began."""

    def __init__(self, memory: type[nn.Module]) -> None:
        super().__init__()
        self.memory = memory(32, 128)
        self.head = nn.Linear(128, ACTIONS)

    def forward(self, seen: Tensor, resets: Tensor, actions: Tensor) -> Tensor:
        """The loss of observations [T, B, 32], begun episodes [T, B] and the expert's actions [T, B]."""
        logits = self.head(self.memory(seen, resets))
        return nn.functional.cross_entropy(logits.flatten(0, 1), actions.flatten())


def episodes(draw: torch.Generator) -> Batch:
    """Sequences of 32 steps in which episodes begin at random."""
    T, B = 32, 64
    resets = torch.rand((T, B), generator=draw) < 0.1
    resets[0] = True
    cues = torch.randint(ACTIONS, (T, B), generator=draw)
    begun = torch.where(resets, torch.arange(T)[:, None], 0).cummax(0).values
    seen = 0.5 * torch.randn((T, B, 32), generator=draw)
    seen[..., :ACTIONS] += 2 * nn.functional.one_hot(cues, ACTIONS) * resets[..., None]
    return seen, resets, cues.gather(0, begun)


# --- a denoiser: gains of frequency bands, 24 -> 96 -> 96


class Denoiser(nn.Module):  # type: ignore[misc, unused-ignore]
    """How much of each band is speech."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(BANDS, 96, num_layers=2)
        self.head = nn.Linear(96, BANDS)

    def forward(self, noisy: Tensor, gains: Tensor) -> Tensor:
        """The loss of log energies [T, B, 24] and wanted gains."""
        return nn.functional.mse_loss(torch.sigmoid(self.head(self.gru(noisy)[0])), gains)


def speech(draw: torch.Generator) -> Batch:
    """Syllables over steady noise, as energies of bands."""
    T, B = 100, 32
    loud = torch.rand((T // 10, B, 1), generator=draw).repeat_interleave(10, 0) > 0.4
    voice = torch.rand((1, B, BANDS), generator=draw) * loud * (0.5 + torch.rand((T, B, 1), generator=draw))
    noise = 0.5 * torch.rand((1, B, BANDS), generator=draw) * torch.rand((T, B, BANDS), generator=draw)
    return torch.log(voice + noise + 1e-3), voice / (voice + noise + 1e-3)


# --- both, side by side


@dataclass
class Program:
    """A program in two forms that compute the same."""

    name: str
    peer: str
    theirs: nn.Module
    ours: nn.Module
    draw: Callable[[torch.Generator], Batch]
    steps: int
    losses: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    @property
    def difference(self) -> float:
        """The largest between two losses of the same step, relative."""
        return max(abs(a - b) / abs(a) for a, b in zip(*self.losses, strict=True))


def programs(scale: float) -> list[Program]:
    """All of them, for so many times the usual steps."""

    def steps(usual: int) -> int:
        return max(round(usual * scale), 2)

    found = []
    for name, kind, draw, usual in (
        ("consensus of reads", Tagger, reads, 80),
        ("denoiser", Denoiser, speech, 300),
    ):
        theirs = kind()
        ours = copy.deepcopy(theirs)
        onegru.torch.accelerate(ours)  # all that a finished program needs
        found.append(Program(name, "nn.GRU", theirs, ours, draw, steps(usual)))
    slow, fast = Recommender(LoopedAUGRU), Recommender(partial(onegru.torch.AUGRU, attention="dien"))
    fast.load_state_dict(slow.state_dict(), strict=False)  # which do not say what they compute
    onegru.torch.accelerate(fast)
    found.append(Program("recommender", "nn.GRU, loop", slow, fast, visits, steps(300)))
    policy, quick = Policy(LoopedMemory), Policy(Memory)
    names = {"weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0", "bias_ih": "bias_ih_l0"}
    names["bias_hh"] = "bias_hh_l0"
    for name, place in names.items():
        getattr(quick.memory.gru, place).data.copy_(getattr(policy.memory.cell, name).data)
    quick.head.load_state_dict(policy.head.state_dict())
    found.append(Program("policy with resets", "loop of cells", policy, quick, episodes, steps(400)))
    return found


def train(program: Program, advance: Callable[[], None]) -> None:
    """Train both forms, a step of one after a step of the other, on the same batches."""
    draw = torch.Generator().manual_seed(SEED)
    pair = program.theirs, program.ours
    optimizers = [torch.optim.Adam(module.parameters(), lr=1e-3) for module in pair]
    for _ in range(program.steps):
        batch = program.draw(draw)
        for place, (module, optimizer) in enumerate(zip(pair, optimizers, strict=True)):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            program.seconds[place] += time.perf_counter() - begin
            program.losses[place].append(loss.item())
        advance()


def picture(done: list[Program], path: Path) -> None:
    """The curves, one over the other, and the times."""
    figure, axes = plt.subplots(1, len(done) + 1, figsize=(3.2 * (len(done) + 1), 3.2), layout="constrained")
    for program, place in zip(done, axes, strict=False):
        place.plot(program.losses[0], color="#c44e52", linewidth=4, alpha=0.45, label=program.peer)
        place.plot(program.losses[1], color="#1f4e79", linewidth=1, label="onegru")
        place.set(title=program.name, xlabel="step", ylabel="loss")
        place.legend(fontsize=7)
    names = [program.name for program in done]
    times = [program.seconds[0] / program.seconds[1] for program in done]
    bars = axes[-1].barh(names, times, color="#1f4e79")
    axes[-1].bar_label(bars, fmt="%.1f×", padding=3)
    axes[-1].axvline(1, color="#c44e52")
    axes[-1].set(title="how many times as fast", xlim=(0, 1.25 * max(times)))
    axes[-1].invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Train, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the usual steps")
    parser.add_argument("--threads", type=int, default=1, help="of both")
    parser.add_argument("--picture", type=Path, default=ROOT / "build" / "training.png")
    options = parser.parse_args()
    if not 0 < options.scale <= 1000:
        parser.error("--scale: must be more than 0 and at most 1000")
    if not 1 <= options.threads <= 1024:
        parser.error("--threads: must be in 1…1024")
    torch.set_num_threads(options.threads)
    onegru.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    console = Console()
    console.print(
        f"PyTorch {torch.__version__}, onegru {onegru.__version__} ({onegru.targets().chosen}), "
        f"threads: {options.threads}"
    )
    done = programs(options.scale)
    columns = TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.percentage:3.0f} %")
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        tasks = [progress.add_task(program.name, total=program.steps) for program in done]
        for program, task in zip(done, tasks, strict=True):
            train(program, lambda task=task: progress.advance(task))  # type: ignore[misc]
    table = Table("program", "peer", "loss", "apart", "peer, s", "ours, s", "times")
    for program in done:
        seconds = program.seconds
        table.add_row(
            program.name,
            program.peer,
            f"{program.losses[1][0]:.3f} → {program.losses[1][-1]:.3f}",
            f"{program.difference:.1e}",
            *(f"{each:.1f}" for each in seconds),
            f"{seconds[0] / seconds[1]:.1f}",
        )
    console.print(table)
    picture(done, options.picture)
    console.print(f"Curves and times: {options.picture}")
    apart = [program.name for program in done if not program.difference <= ALIKE]
    if apart:
        print(f"Not the same curves: {', '.join(apart)}", file=sys.stderr)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
