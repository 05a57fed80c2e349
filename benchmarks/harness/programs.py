"""Whole PyTorch programs with GRUs in their usual form. The time is that of the whole call.

`onegru.torch.accelerate` replaces their PyTorch GRUs. Each program runs, and takes a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import onegru.torch


class Actor(nn.Module):  # type: ignore[misc, unused-ignore]
    """A recurrent policy. It runs one step of 64 environments, and learns from 32 steps of them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(48, 128), nn.ELU())
        self.gru = nn.GRU(128, 128)
        self.actions, self.value = nn.Linear(128, 12), nn.Linear(128, 1)

    def forward(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means of actions, values, and the state, from observations [T, B, 48]."""
        y, state = self.gru(self.encode(seen), state)
        return self.actions(y), self.value(y), state

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run one step."""
        mean, _, state = self(inputs[0][:1], inputs[1])
        return torch.cat([mean.flatten(), state.flatten()])

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a chunk."""
        mean, value, _ = self(*inputs)
        return mean.square().mean() + (value - 1).square().mean()


class Denoiser(nn.Module):  # type: ignore[misc, unused-ignore]
    """Gains for a noisy spectrum's bands. It runs frame by frame, and learns from 8 pieces of 100 frames."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(257, 128), nn.Linear(128, 257)
        self.gru = nn.GRU(128, 128, num_layers=2)

    def forward(self, spectrum: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the spectrum [T, B, 257] without noise, and the state."""
        y, state = self.gru(torch.relu(self.enter(spectrum)), state)
        return spectrum * torch.sigmoid(self.leave(y)), state

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run 20 frames, one by one."""
        spectrum, state = inputs[0][:20, :1], inputs[1][:, :1].contiguous()
        frames = []
        for frame in spectrum:
            clean, state = self(frame[None], state)
            frames.append(clean)
        return torch.cat(frames)

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of the pieces."""
        return self(*inputs)[0].abs().mean()


class Translator(nn.Module):  # type: ignore[misc, unused-ignore]
    """A bidirectional encoder, and a decoder with attention that calls an nn.GRUCell step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.encoder = nn.GRU(128, 64, bidirectional=True)
        self.cell = nn.GRUCell(256, 128)
        self.leave = nn.Linear(256, 1000)

    def forward(self, source: Tensor, target: Tensor | None, steps: int) -> Tensor:
        """Return scores of words [steps, B, 1000]. Inputs are the target's words, or the best so far."""
        memory, last = self.encoder(self.words(source))
        state = torch.cat([last[0], last[1]], 1)
        word, found = torch.zeros_like(source[0]), []
        for t in range(steps):
            weights = torch.softmax((memory * state).sum(2), 0)
            context = (weights[:, :, None] * memory).sum(0)
            state = self.cell(torch.cat([self.words(word), context], 1), state)
            found.append(self.leave(torch.cat([state, context], 1)))
            word = found[-1].argmax(1) if target is None else target[t]
        return torch.stack(found)

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Translate one sentence greedily."""
        return self(inputs[0][:, :1], None, 20)

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of 16 sentences."""
        scores = self(*inputs, 20)
        return nn.functional.cross_entropy(scores.flatten(0, 1), inputs[1].flatten())


class Interests(nn.Module):  # type: ignore[misc, unused-ignore]
    """Deep interest evolution: a GRU over clicked items, then an attention GRU for a candidate."""

    def __init__(self, evolve: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.items = nn.Embedding(5000, 36)
        self.extract = nn.GRU(36, 36)
        self.evolve = evolve(36, 36)
        self.score = nn.Sequential(nn.Linear(108, 80), nn.PReLU(), nn.Linear(80, 1))

    def forward(self, clicked: Tensor, candidate: Tensor) -> Tensor:
        """Return scores [B] for clicked items [T, B] and a candidate [B]."""
        items, own = self.items(clicked), self.items(candidate)
        interests, _ = self.extract(items)
        attention = torch.softmax((interests * own).sum(2), 0)
        _, last = self.evolve(interests, attention)
        score: Tensor = self.score(torch.cat([last[0], own, items.mean(0)], 1))[:, 0]
        return score

    def run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Score 128 candidates."""
        scores: Tensor = self(*inputs)
        return scores

    def loss(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of 128 clicks."""
        return nn.functional.softplus(-self(*inputs)).mean()


class EvolutionLoop(nn.Module):  # type: ignore[misc, unused-ignore]
    """The attention GRU of the paper as in PyTorch projects: a cell in a loop."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        cell = nn.GRUCell(input_size, hidden_size)
        for name, value in cell.named_parameters():
            self.register_parameter(f"{name}_l0", nn.Parameter(value.detach().clone()))

    def forward(self, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the same as `onegru.torch.AUGRU` with attention "dien"."""
        linear = nn.functional.linear
        inputs = linear(x, self.weight_ih_l0, self.bias_ih_l0)
        h, outputs = x.new_zeros(x.shape[1], self.weight_hh_l0.shape[1]), []
        for step, score in zip(inputs, attention, strict=True):
            x_r, x_z, x_n = step.chunk(3, 1)
            h_r, h_z, h_n = linear(h, self.weight_hh_l0, self.bias_hh_l0).chunk(3, 1)
            n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
            u = score[:, None] * (1 - torch.sigmoid(x_z + h_z))
            h = (1 - u) * h + u * n
            outputs.append(h)
        return torch.stack(outputs), h[None]


@dataclass(frozen=True)
class Program:
    """A program: its name, descriptions of its run and its training step, and how to make both models."""

    name: str
    words: str
    inputs: Callable[[], tuple[Tensor, ...]]
    theirs: Callable[[], Any]
    ours: Callable[[], Any] | None = None

    def pair(self) -> tuple[Any, Any]:
        """Return PyTorch's model, and onegru's with the same parameters."""
        theirs = self.theirs()
        ours = theirs.__class__() if self.ours is None else self.ours()
        ours.load_state_dict(theirs.state_dict(), strict=self.ours is None)
        onegru.torch.accelerate(ours)
        return theirs, ours


PROGRAMS = (
    Program(
        "an actor of 64 environments",
        "one step; 32 steps",
        lambda: (torch.randn(32, 64, 48), torch.zeros(1, 64, 128)),
        Actor,
    ),
    Program(
        "a streamed denoiser",
        "20 frames; 8 × 100 frames",
        lambda: (torch.rand(100, 8, 257), torch.zeros(2, 8, 128)),
        Denoiser,
    ),
    Program(
        "a decoder with attention",
        "a sentence; 16 sentences",
        lambda: (torch.randint(1000, (20, 16)), torch.randint(1000, (20, 16))),
        Translator,
    ),
    Program(
        "a recommender (DIEN)",
        "128 rows of 50",
        lambda: (torch.randint(5000, (50, 128)), torch.randint(5000, (128,))),
        lambda: Interests(EvolutionLoop),
        lambda: Interests(lambda I, H: onegru.torch.AUGRU(I, H, linear_before_reset=True, attention="dien")),
    ),
)


def run(model: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the outputs of a model."""
    with torch.no_grad():
        return [model.run(inputs)]


def learn(model: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the gradients of a training step."""
    model.zero_grad()
    model.loss(inputs).backward()
    return [parameter.grad for parameter in model.parameters()]
