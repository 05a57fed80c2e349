"""Take the noise out of a tone, frame by frame; draw it; compare with one call and with ONNX Runtime."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime
from matplotlib.figure import Figure

import onegru

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "build" / "denoiser.png"
FRAME, FRAMES = 16, 500


def main() -> None:
    rng = np.random.default_rng(1)
    clean = np.sin(0.7 * np.arange(FRAMES * FRAME) / 16).astype(np.float32)
    noisy = clean + 0.5 * rng.standard_normal(clean.shape).astype(np.float32)
    frames = noisy.reshape(1, FRAMES, FRAME)

    model = onegru.load(HERE / "denoiser.onnx")
    stream = model.stream()  # finds that h_out is the next step's h
    parts, times = [], []
    for index in range(FRAMES):
        began = time.perf_counter()
        out = stream.step({"x": frames[:, index : index + 1]})
        times.append(time.perf_counter() - began)
        parts.append(out["y"])
    heard = np.concatenate(parts, axis=1)

    zeros = np.zeros((1, 1, 48), np.float32)
    whole = model.run({"x": frames, "h": zeros})["y"]
    session = onnxruntime.InferenceSession(HERE / "denoiser.onnx", providers=["CPUExecutionProvider"])
    theirs = np.asarray(session.run(["y"], {"x": frames, "h": zeros})[0])

    def error(signal: np.ndarray) -> float:
        return float(np.mean((signal.ravel() - clean) ** 2))

    print(f"states: {stream.pairs}")
    print(f"mean squared error: {error(noisy):.4f} before, {error(heard):.4f} after")
    print(f"the same bits as one call over all frames: {np.array_equal(heard, whole)}")
    print(f"largest difference from ONNX Runtime: {np.abs(heard - theirs).max():.1e}")
    print(f"a frame takes {statistics.median(times) * 1e6:.0f} µs")
    draw(noisy, heard.ravel(), clean)
    print(f"picture: {PICTURE}")


def draw(noisy: np.ndarray, heard: np.ndarray, clean: np.ndarray) -> None:
    figure = Figure(figsize=(9, 3))
    axes = figure.subplots()
    part = slice(0, 40 * FRAME)
    axes.plot(noisy[part], color="0.8", linewidth=0.8, label="noisy")
    axes.plot(clean[part], color="black", linewidth=1, label="clean")
    axes.plot(heard[part], color="tab:red", linewidth=1, label="denoised, frame by frame")
    axes.set_xlabel("sample")
    axes.legend(loc="lower right", ncols=3)
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
