"""Models with decomposed GRUs, as exporters write them, with fixed seeds.

keras        13 → 20 over 29 steps: Keras' GRU by tf2onnx, a Loop (a file: TensorFlow is large)
cells        64 → 64 over 50 steps: PyTorch's nn.GRUCell in a loop
by hand      32 → 64 over 30 steps, four rows: a cell of two dense layers
augru        36 → 36 over 60 steps, 128 rows and one: the same with attention, as in DIEN
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.models.real import RealModel

__all__ = ["DECOMPOSED", "FUSED_TARGETS", "KERAS"]

KERAS = Path(__file__).parent / "files" / "keras_13_20.onnx"

#: The target of each on one thread: the speed-up of the fused model over ONNX Runtime on the original.
FUSED_TARGETS: Mapping[str, float] = {
    "keras": 10.0,
    "cells": 8.0,
    "by hand": 4.0,
    "augru, 128 rows": 1.7,
    "augru, 1 row": 8.0,
}


def _cells() -> Any:
    import torch
    from torch import nn

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(64, 64)

        def forward(self, x: Any) -> Any:
            h = torch.zeros(x.shape[1], 64)
            states = []
            for frame in x:
                h = self.cell(frame, h)
                states.append(h)
            return torch.stack(states)

    return Cells()


def _by_hand(inputs: int, hidden: int, attention: bool) -> Any:
    import torch
    from torch import nn

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.Linear(inputs + hidden, 2 * hidden)
            self.candidate = nn.Linear(inputs + hidden, hidden)

        def forward(self, x: Any, scores: Any = None) -> Any:
            h = x.new_zeros(x.shape[0], hidden)
            for step in range(x.shape[1]):
                z, r = torch.sigmoid(self.gates(torch.cat([x[:, step], h], 1))).chunk(2, 1)
                if attention:
                    z = (1 - scores[:, step : step + 1]) * z
                n = torch.tanh(self.candidate(torch.cat([x[:, step], r * h], 1)))
                h = (1 - z) * n + z * h
            return h

    return ByHand()


DECOMPOSED: Mapping[str, RealModel] = {
    "keras": RealModel(lambda: KERAS, {"keras_tensor": (1, 29, 13)}, 29),
    "cells": RealModel(_cells, {"x": (50, 1, 64)}, 50),
    "by hand": RealModel(lambda: _by_hand(32, 64, False), {"x": (4, 30, 32)}, 30),
    "augru, 128 rows": RealModel(
        lambda: _by_hand(36, 36, True), {"x": (128, 60, 36), "scores": (128, 60)}, 60
    ),
    "augru, 1 row": RealModel(lambda: _by_hand(36, 36, True), {"x": (1, 60, 36), "scores": (1, 60)}, 60),
}
