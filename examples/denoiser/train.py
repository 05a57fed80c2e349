"""Train the denoiser and write its checkpoint and its ONNX file. Needs PyTorch 2.13, onnx and safetensors.

The denoiser takes frames of 16 samples of a noisy tone and gives them without the noise; a GRU of 48
remembers what it heard. Its state is an input and an output, as streaming models have it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

HERE = Path(__file__).resolve().parent
FRAME, HIDDEN, STEPS = 16, 48, 60


class Denoiser(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Frames x [1, T, 16] and the state h [1, 1, 48] to clean frames and the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(FRAME, HIDDEN, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, FRAME)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h_out = self.gru(x, h)
        return self.head(y), h_out


def tones(rng: np.random.Generator, count: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy tones and the same tones without noise, [count, steps, 16]."""
    time = np.arange(steps * FRAME) / 16
    frequency, phase = rng.uniform(0.2, 2, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
    clean = np.sin(frequency * time + phase).reshape(count, steps, FRAME)
    noisy = clean + 0.5 * rng.standard_normal(clean.shape)
    return torch.tensor(noisy, dtype=torch.float32), torch.tensor(clean, dtype=torch.float32)


def main() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(1500):
        noisy, clean = tones(rng, 64, STEPS)
        loss = torch.nn.functional.mse_loss(model(noisy, torch.zeros(1, 64, HIDDEN))[0], clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 249:
            print(f"step {step + 1}: mean squared error {loss.item():.4f}; that of the noise is 0.25")
    model.eval()
    save_file(model.state_dict(), HERE / "denoiser.safetensors")
    torch.onnx.export(
        model,
        (torch.zeros(1, STEPS, FRAME), torch.zeros(1, 1, HIDDEN)),
        str(HERE / "denoiser.onnx"),
        dynamo=False,
        input_names=["x", "h"],
        output_names=["y", "h_out"],
        dynamic_axes={"x": {1: "frames"}, "y": {1: "frames"}},
    )


if __name__ == "__main__":
    main()
