"""Define decomposed GRUs in PyTorch, in common styles, and export them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

I, H = 3, 4


class Cells(nn.Module):  # type: ignore[misc]
    """nn.GRUCell in a loop; time first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(I, H)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.zeros(x.size(1), 4)
        states: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h = self.cell(x[t], h)
            states.append(h)
        return torch.stack(states), h


class SideBySide(nn.Module):  # type: ignore[misc]
    """GRU with one product of concatenated x and h for both gates; reset before the product."""

    def __init__(self) -> None:
        super().__init__()
        self.zr, self.n = nn.Linear(I + H, 2 * H), nn.Linear(I + H, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        for t in range(x.size(1)):
            xt = x[:, t]
            z, r = torch.sigmoid(self.zr(torch.cat([xt, h], 1))).chunk(2, 1)
            n = torch.tanh(self.n(torch.cat([xt, r * h], 1)))
            h = (1 - z) * n + z * h
        return h


class Lerp(nn.Module):  # type: ignore[misc]
    """GRU with x projected at once, reset after the product, and torch.lerp for the blend."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_h = nn.Linear(I, 3 * H), nn.Linear(H, 3 * H, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        sums = self.of_x(x)
        for t in range(x.size(1)):
            xz, xr, xn = sums[:, t].chunk(3, 1)
            hz, hr, hn = self.of_h(h).chunk(3, 1)
            z, r = torch.sigmoid(xz + hz), torch.sigmoid(xr + hr)
            h = torch.lerp(torch.tanh(xn + r * hn), h, z)
        return h


class Matrices(nn.Module):  # type: ignore[misc]
    """GRU with a matrix for each product and a hard sigmoid, from the last step to the first; all states."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.ParameterList([nn.Parameter(torch.randn(I, H) * 0.3) for _ in range(3)])
        self.U = nn.ParameterList([nn.Parameter(torch.randn(H, H) * 0.3) for _ in range(3)])
        self.b = nn.ParameterList([nn.Parameter(torch.randn(H)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        states: list[torch.Tensor] = []
        for step in range(x.size(1)):
            xt = x[:, x.size(1) - 1 - step]
            z = nn.functional.hardsigmoid(xt @ self.W[0] + h @ self.U[0] + self.b[0])
            r = nn.functional.hardsigmoid(xt @ self.W[1] + h @ self.U[1] + self.b[1])
            n = torch.tanh(xt @ self.W[2] + (r * h) @ self.U[2] + self.b[2])
            h = z * h + (1 - z) * n
            states.insert(0, h)
        return torch.stack(states, 1)


class Einsums(nn.Module):  # type: ignore[misc]
    """GRU with one Einsum for all gates, an initial state, and a blend by difference."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(3, H, I) * 0.3), nn.Parameter(torch.randn(3, H, H) * 0.3)
        self.b = nn.Parameter(torch.randn(3, H))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        for t in range(x.size(1)):
            of_x = torch.einsum("bi,ghi->gbh", x[:, t], self.w) + self.b[:, None]
            of_h = torch.einsum("bi,ghi->gbh", h, self.u)
            z, r = torch.sigmoid(of_x[0] + of_h[0]), torch.sigmoid(of_x[1] + of_h[1])
            n = torch.tanh(of_x[2] + r * of_h[2])
            h = h - (1 - z) * (h - n)
        return h


class Rows(nn.Module):  # type: ignore[misc]
    """GRU with weights in PyTorch's layout, [3H, I], written by hand; n + z∘(h - n)."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(3 * H, I)), nn.Parameter(torch.randn(3 * H, H) * 0.5)
        self.b = nn.Parameter(torch.randn(3 * H))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        for t in range(x.size(1)):
            xr, xz, xn = (torch.matmul(x[:, t], self.w.t()) + self.b).chunk(3, 1)
            hr, hz, hn = torch.matmul(h, self.u.t()).chunk(3, 1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = n + z * (h - n)
        return h


class Attention(nn.Module):  # type: ignore[misc]
    """AUGRU with the update gate times 1 - a."""

    def __init__(self, input_size: int = I) -> None:
        super().__init__()
        self.zr, self.n = nn.Linear(input_size + H, 2 * H), nn.Linear(input_size + H, H)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        for t in range(x.size(1)):
            xt = x[:, t]
            z, r = torch.sigmoid(self.zr(torch.cat([xt, h], 1))).chunk(2, 1)
            z = (1 - a[:, t : t + 1]) * z
            n = torch.tanh(self.n(torch.cat([xt, r * h], 1)))
            h = (1 - z) * n + z * h
        return h


class Evolution(Attention):
    """AUGRU as in the paper on DIEN: its update gate u is 1 - z, multiplied by a."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 4)
        for t in range(x.size(1)):
            xt = x[:, t]
            u, r = torch.sigmoid(self.zr(torch.cat([xt, h], 1))).chunk(2, 1)
            u = a[:, t : t + 1] * u
            n = torch.tanh(self.n(torch.cat([xt, r * h], 1)))
            h = (1 - u) * h + u * n
        return h


class Interest(nn.Module):  # type: ignore[misc]
    """Interest layer of DIEN: a GRU, attention to a target, and AUGRU."""

    def __init__(self, evolve: Callable[[int], nn.Module] = Attention) -> None:
        super().__init__()
        self.gru = nn.GRU(I, H, batch_first=True)
        self.score = nn.Linear(H, I, bias=False)
        self.evolve = evolve(H)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y, _ = self.gru(x)
        a = torch.softmax(torch.einsum("bth,bh->bt", self.score(y), target), 1)
        return self.evolve(y, a)


class Case:
    """Module to export.

    Attributes:
        module: its class.
        inputs: the shapes of its inputs: T, B and fixed sizes.
        nodes: the number of resulting GRU nodes.
        scripted: whether torch.jit.script supports it.
    """

    def __init__(
        self,
        module: Callable[[], Any],
        inputs: Mapping[str, Sequence[int | str]],
        nodes: Sequence[str] = ("GRU",),
        scripted: bool = True,
    ) -> None:
        self.module, self.inputs, self.nodes, self.scripted = module, inputs, list(nodes), scripted

    def draw(self, T: int, B: int) -> dict[str, Any]:
        """Return random inputs."""
        sizes = {"T": T, "B": B}
        shapes = {name: [sizes.get(str(s), s) for s in shape] for name, shape in self.inputs.items()}
        return {
            name: torch.rand(*shape) if name == "a" else torch.randn(*shape) for name, shape in shapes.items()
        }


CASES = {
    "cells": Case(
        Cells, {"x": ("T", "B", I)}, scripted=False
    ),  # torch 2.13 fails to export a scripted GRUCell
    "side by side": Case(SideBySide, {"x": ("B", "T", I)}),
    "lerp": Case(Lerp, {"x": ("B", "T", I)}),
    "matrices": Case(Matrices, {"x": ("B", "T", I)}, scripted=False),
    "einsums": Case(Einsums, {"x": ("B", "T", I), "h": ("B", H)}),
    "rows": Case(Rows, {"x": ("B", "T", I)}),
    "attention": Case(Attention, {"x": ("B", "T", I), "a": ("B", "T")}, ["AUGRU"]),
    "evolution": Case(Evolution, {"x": ("B", "T", I), "a": ("B", "T")}, ["AUGRU"]),
    "interest": Case(Interest, {"x": ("B", "T", I), "target": ("B", I)}, ["AUGRU", "GRU"]),
    "interest of the paper": Case(
        lambda: Interest(Evolution), {"x": ("B", "T", I), "target": ("B", I)}, ["AUGRU", "GRU"]
    ),
}
EXPORTERS = ("torchscript", "dynamo", "scripted")
EXPORTS = [
    (name, how) for name, case in CASES.items() for how in EXPORTERS if how != "scripted" or case.scripted
]


def export(name: str, how: str, path: Path, T: int, B: int) -> tuple[Any, dict[str, Any]]:
    """Export a case; return the module and the inputs."""
    torch.manual_seed(list(CASES).index(name))
    case = CASES[name]
    module = case.module().eval()
    feeds = case.draw(T, B)
    source = torch.jit.script(module) if how == "scripted" else module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "dynamo":
            shapes = tuple({list(case.inputs[item]).index("B"): torch.export.Dim("B")} for item in feeds)
            torch.onnx.export(
                source, tuple(feeds.values()), str(path), dynamo=True, external_data=False, verbose=False,
                input_names=list(feeds), dynamic_shapes=shapes,
            )  # fmt: skip
        else:
            axes = {item: {list(case.inputs[item]).index("B"): "B"} for item in feeds}
            torch.onnx.export(
                source, tuple(feeds.values()), str(path), dynamo=False, input_names=list(feeds),
                dynamic_axes=axes,
            )  # fmt: skip
    return module, feeds
