"""Train the enhancer and write its ONNX file, as such networks are published: whole sequences, no states.

Needs PyTorch 2.13 and onnx.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from signals import BINS, features, noise, spectra, speech
from torch import nn

HERE = Path(__file__).resolve().parent
CHANNELS, HIDDEN, SECONDS, BATCH = 6, 48, 2.0, 12


class Enhancer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Features [batch, frames, 129] to a gain for each, in the shape of DeepFilterNet's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, CHANNELS, (3, 5), stride=(1, 2))
        self.second = nn.Conv2d(CHANNELS, CHANNELS, (2, 5), stride=(1, 2))
        self.squeeze = nn.Linear(CHANNELS * 30, HIDDEN)
        self.gru = nn.GRU(HIDDEN, HIDDEN, num_layers=2, batch_first=True)
        self.smooth = nn.Conv1d(HIDDEN, HIDDEN, 3, dilation=2)
        self.gain = nn.Linear(HIDDEN, BINS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.pad(x.unsqueeze(1), (0, 0, 2, 0))  # two frames of zeros ahead: nothing is delayed
        y = torch.relu(self.first(y))
        y = torch.relu(self.second(nn.functional.pad(y, (0, 0, 1, 0))))
        y = torch.relu(self.squeeze(y.permute(0, 2, 1, 3).flatten(2)))
        h, _ = self.gru(y)
        s = torch.relu(self.smooth(nn.functional.pad(h.transpose(1, 2), (4, 0)))).transpose(1, 2)
        return torch.sigmoid(self.gain(h + s))


def batch(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of noisy sounds, and the loudness of the noisy and of the clean ones."""
    found = []
    for _ in range(BATCH):
        clean = speech(rng, SECONDS)
        noisy = spectra(clean + rng.uniform(0.3, 1.5) * noise(rng, SECONDS))
        found.append((features(noisy), np.abs(noisy), np.abs(spectra(clean))))
    return tuple(torch.tensor(np.stack(arrays)) for arrays in zip(*found, strict=True))


def main() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = Enhancer()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(400):
        heard, noisy, clean = batch(rng)
        loss = torch.mean(((model(heard) * noisy + 1e-3).pow(0.3) - (clean + 1e-3).pow(0.3)) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            untouched = torch.mean(((noisy + 1e-3).pow(0.3) - (clean + 1e-3).pow(0.3)) ** 2)
            print(f"step {step + 1}: error {loss.item():.4f}; that of the noise {untouched.item():.4f}")
    model.eval()
    torch.onnx.export(
        model,
        (torch.zeros(1, 40, BINS),),
        str(HERE / "enhancer.onnx"),
        dynamo=False,
        input_names=["x"],
        output_names=["gain"],
        dynamic_axes={"x": {0: "batch", 1: "frames"}, "gain": {0: "batch", 1: "frames"}},
    )


if __name__ == "__main__":
    main()
