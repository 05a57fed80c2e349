"""Train two GRUs to take the noise out of tones, 16 samples at a time, for denoiser.cc: a minute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import onegru

HERE = Path(__file__).resolve().parent
FRAME, HIDDEN, FRAMES, ROWS = 16, 48, 60, 64


def main() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    layers = torch.nn.ModuleList(
        [torch.nn.GRU(FRAME, HIDDEN, batch_first=True), torch.nn.GRU(HIDDEN, FRAME, batch_first=True)]
    )
    optimizer = torch.optim.Adam(layers.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for step in range(1500):
        clean = tones(rng, ROWS)
        heard = torch.from_numpy(clean + noise(rng, clean.shape))
        for layer in layers:
            heard, _ = layer(heard)
        loss = torch.mean((heard - torch.from_numpy(clean)) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            print(f"step {step + 1}: mean squared error {loss.item():.4f}")
    made = [onegru.from_torch(layer) for layer in layers]
    stack = onegru.Stack([layer for layer in made if isinstance(layer, onegru.GRU)])
    onegru.save_layers(stack, HERE / "denoiser.safetensors")


def tones(rng: np.random.Generator, rows: int) -> np.ndarray:
    time = np.arange(FRAMES * FRAME)
    pitch, phase = rng.uniform(0.02, 0.08, (rows, 1)), rng.uniform(0, 2 * np.pi, (rows, 1))
    loud = rng.uniform(0.3, 0.8, (rows, 1))
    return (loud * np.sin(pitch * time + phase)).astype(np.float32).reshape(rows, FRAMES, FRAME)


def noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


if __name__ == "__main__":
    main()
