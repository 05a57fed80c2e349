"""Whole models in common use, made by PyTorch with fixed seeds and exported by it.

    gtcrn       convolutions and 14 GRUs of hidden 4 to 16, over frequency, over time and in attention
    ulunas      28 GRUs of hidden 4, whose weights are computed by nodes that an exporter does not fold
    nsnet2      2 GRUs of 400 between dense layers
    dfn3        5 GRUs of 256 after convolutions: DeepFilterNet 3
    wake word   13 → 20 over 29 steps
    classifier  2 layers of 64, the last step classified

Sizes are those of the published models, weights are random. All except the wake word take any number of
frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

__all__ = ["REAL", "RealModel", "draw_frames", "exported", "exported_ir"]

WAKE_STEPS = 29


@dataclass(frozen=True)
class RealModel:
    """Module and inputs of a model: sizes by input, 0 for the number of frames."""

    make: Callable[[], Any]
    inputs: Mapping[str, tuple[int, ...]]
    fixed_frames: int = 0
    folds: bool = True


def _gtcrn() -> Any:
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.gru = nn.GRU(channels, 2 * channels, batch_first=True)
            self.dense = nn.Linear(2 * channels, channels)

        def forward(self, x: Any) -> Any:
            energy = (x * x).mean(dim=3).transpose(1, 2)
            scores = torch.sigmoid(self.dense(self.gru(energy)[0])).transpose(1, 2)
            return x * scores[..., None]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm1, self.act1 = nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.PReLU()
            self.depth = nn.Conv2d(16, 16, (1, 3), padding=(0, 1), groups=16)
            self.norm2, self.act2 = nn.BatchNorm2d(16), nn.PReLU()
            self.last, self.norm3 = nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8)
            self.attention = Attention(8)

        def forward(self, x: Any) -> Any:
            one, two = x.chunk(2, dim=1)
            y = self.act1(self.norm1(self.first(one)))
            y = self.act2(self.norm2(self.depth(y)))
            y = self.attention(self.norm3(self.last(y)))
            return torch.stack([y, two], dim=2).flatten(1, 2)

    class Grouped(nn.Module):
        def __init__(self, size: int, hidden: int, both: bool) -> None:
            super().__init__()
            self.one = nn.GRU(size // 2, hidden, batch_first=True, bidirectional=both)
            self.two = nn.GRU(size // 2, hidden, batch_first=True, bidirectional=both)

        def forward(self, x: Any) -> Any:
            one, two = x.chunk(2, dim=2)
            return torch.cat([self.one(one)[0], self.two(two)[0]], dim=2)

    class TwoPaths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.within, self.dense1, self.norm1 = (
                Grouped(16, 4, True),
                nn.Linear(16, 16),
                nn.LayerNorm((33, 16)),
            )
            self.between, self.dense2, self.norm2 = (
                Grouped(16, 8, False),
                nn.Linear(16, 16),
                nn.LayerNorm((33, 16)),
            )

        def forward(self, x: Any) -> Any:
            y = x.permute(0, 2, 3, 1)
            z = self.dense1(self.within(y.flatten(0, 1))).unflatten(0, (1, -1))
            y = y + self.norm1(z)
            z = self.dense2(self.between(y[0].transpose(0, 1))).transpose(0, 1)[None]
            return (y + self.norm2(z)).permute(0, 3, 1, 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(
                nn.Conv2d(3, 16, (1, 5), (1, 2), (0, 2)),
                nn.BatchNorm2d(16),
                nn.PReLU(),
                nn.Conv2d(16, 16, (1, 5), (1, 2), (0, 2), groups=2),
                nn.BatchNorm2d(16),
                nn.PReLU(),
            )
            self.encoder = nn.ModuleList(Block() for _ in range(3))
            self.paths = nn.ModuleList(TwoPaths() for _ in range(2))
            self.decoder = nn.ModuleList(Block() for _ in range(3))
            self.leave = nn.Sequential(
                nn.ConvTranspose2d(16, 16, (1, 5), (1, 2), (0, 2), groups=2),
                nn.BatchNorm2d(16),
                nn.PReLU(),
                nn.ConvTranspose2d(16, 2, (1, 5), (1, 2), (0, 2)),
                nn.BatchNorm2d(2),
                nn.Tanh(),
            )

        def forward(self, x: Any) -> Any:
            y = self.enter(x)
            kept = []
            for block in self.encoder:
                y = block(y)
                kept.append(y)
            for paths in self.paths:
                y = paths(y)
            for block, other in zip(self.decoder, kept[::-1], strict=True):
                y = block(y + other)
            return self.leave(y)

    return Model()


def _ulunas() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.act = (
                nn.Conv2d(8, 8, (1, 3), padding=(0, 1)),
                nn.BatchNorm2d(8),
                nn.PReLU(),
            )
            self.within = nn.GRU(8, 4, batch_first=True, bidirectional=True)
            self.between = nn.GRU(8, 4, batch_first=True)
            self.dense = nn.Linear(4, 8)

        def forward(self, x: Any) -> Any:
            y = self.act(self.norm(self.conv(x)))[0].permute(1, 2, 0)
            y = self.within(y)[0].transpose(0, 1)
            y = self.dense(self.between(y)[0])
            return x + y.permute(2, 1, 0)[None]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Conv2d(2, 8, (1, 5), (1, 2), (0, 2))
            self.blocks = nn.Sequential(*(Block() for _ in range(14)))
            self.leave = nn.ConvTranspose2d(8, 2, (1, 5), (1, 2), (0, 2))

        def forward(self, x: Any) -> Any:
            return self.leave(self.blocks(self.enter(x)))

    return Model()


def _nsnet2() -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(161, 400)
            self.one, self.two = nn.GRU(400, 400, batch_first=True), nn.GRU(400, 400, batch_first=True)
            self.leave = nn.Sequential(
                nn.Linear(400, 600),
                nn.ReLU(),
                nn.Linear(600, 600),
                nn.ReLU(),
                nn.Linear(600, 161),
                nn.Sigmoid(),
            )

        def forward(self, x: Any, h1: Any, h2: Any) -> Any:
            y, h1 = self.one(self.enter(x), h1)
            y, h2 = self.two(y, h2)
            return self.leave(y), h1, h2

    torch.set_grad_enabled(False)
    return Model()


def _dfn3() -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(
                nn.Conv2d(1, 64, (1, 3), (1, 2), (0, 1)),
                nn.ReLU(),
                nn.Conv2d(64, 64, (1, 3), (1, 2), (0, 1), groups=64),
                nn.Conv2d(64, 64, 1),
                nn.ReLU(),
            )
            self.dense = nn.Linear(512, 256)
            self.embedding = nn.GRU(256, 256, batch_first=True)
            self.erb = nn.GRU(256, 256, 2, batch_first=True)
            self.erb_out = nn.Sequential(nn.Linear(256, 32), nn.Sigmoid())
            self.deep = nn.GRU(256, 256, 2, batch_first=True)
            self.deep_out = nn.Sequential(nn.Linear(256, 960), nn.Tanh())

        def forward(self, x: Any, h0: Any, h1: Any, h2: Any) -> Any:
            y = self.enter(x).permute(0, 2, 1, 3).flatten(2)
            y, h0 = self.embedding(torch.relu(self.dense(y)), h0)
            gains, h1 = self.erb(y, h1)
            filters, h2 = self.deep(y, h2)
            return self.erb_out(gains), self.deep_out(filters), h0, h1, h2

    return Model()


def _wake_word() -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.dense = nn.GRU(13, 20, batch_first=True), nn.Linear(20, 1)

        def forward(self, x: Any) -> Any:
            return torch.sigmoid(self.dense(self.gru(x)[0][:, -1]))

    return Model()


def _classifier() -> Any:
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.gru = nn.LayerNorm(40), nn.GRU(40, 64, 2, batch_first=True)
            self.dense = nn.Linear(64, 12)

        def forward(self, x: Any) -> Any:
            return self.dense(self.gru(self.norm(x))[0][:, -1])

    return Model()


REAL: Mapping[str, RealModel] = {
    "gtcrn": RealModel(_gtcrn, {"x": (1, 3, 0, 129)}),
    "ulunas": RealModel(_ulunas, {"x": (1, 2, 0, 65)}, folds=False),
    "nsnet2": RealModel(_nsnet2, {"x": (1, 0, 161), "h1": (1, 1, 400), "h2": (1, 1, 400)}),
    "dfn3": RealModel(_dfn3, {"x": (1, 1, 0, 32), "h0": (1, 1, 256), "h1": (2, 1, 256), "h2": (2, 1, 256)}),
    "wake word": RealModel(_wake_word, {"x": (1, 0, 13)}, WAKE_STEPS),
    "classifier": RealModel(_classifier, {"x": (1, 0, 40)}),
}


def draw_frames(real: RealModel, frames: int, seed: int = 0) -> dict[str, Array]:
    """Return normally distributed inputs with this number of frames, and states of zeros."""
    rng = np.random.default_rng(seed)
    frames = real.fixed_frames or frames
    shapes = {given: tuple(size or frames for size in sizes) for given, sizes in real.inputs.items()}
    return {
        given: np.zeros(shape, np.float32) if given[0] == "h" else rng.standard_normal(shape, np.float32)
        for given, shape in shapes.items()
    }


def exported(name: str, real: RealModel, folder: Path) -> Path:
    """Return the model as an ONNX file, which is written once."""
    path = folder / f"{name.replace(' ', '_')}.onnx"
    if path.exists():
        return path
    module = real.make()
    if isinstance(module, Path):
        return module
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    module = real.make().eval()
    sample = tuple(map(torch.from_numpy, draw_frames(real, 7).values()))
    axes = {
        given: {sizes.index(0): "frames"}
        for given, sizes in real.inputs.items()
        if 0 in sizes and not real.fixed_frames
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            sample,
            str(path),
            input_names=list(real.inputs),
            dynamic_axes=axes,
            opset_version=17,
            do_constant_folding=real.folds,
            dynamo=False,
        )
    return path


def exported_ir(name: str, real: RealModel, folder: Path) -> Path:
    """Return the model as an OpenVINO IR, in float32."""
    path = folder / f"{name.replace(' ', '_')}.xml"
    if not path.exists():
        import openvino

        openvino.save_model(
            openvino.convert_model(exported(name, real, folder)), path, compress_to_fp16=False
        )
    return path
