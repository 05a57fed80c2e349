"""Make a published network stream, and hear a sound through it frame by frame.

python stream.py               a sound made here
python stream.py noisy.wav     a WAV file: mono, 8,000 samples of 16 bits per second
"""

from __future__ import annotations

import sys
import time
import wave
from pathlib import Path

import numpy as np
import onnxruntime
from matplotlib.figure import Figure
from signals import HOP, RATE, features, noise, sound_of, spectra, speech

import onegru

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"


def main() -> None:
    rng = np.random.default_rng(7)
    noisy = read(sys.argv[1]) if len(sys.argv) > 1 else speech(rng, 6.0) + noise(rng, 6.0)
    frames = spectra(noisy)
    x = features(frames)[None]

    BUILD.mkdir(exist_ok=True)
    target = BUILD / "enhancer-streaming.onnx"
    report = onegru.make_streaming(HERE / "enhancer.onnx", target)
    print(*(f"{node.name}: {words}" for node in report.nodes for words in node.done), *report.notes, sep="\n")

    whole = onegru.load(HERE / "enhancer.onnx").run({"x": x})["gain"][0]
    stream = onegru.load(target).stream()
    began = time.perf_counter()
    heard = np.concatenate([stream.step({"x": x[:, i : i + 1]})["gain"][0] for i in range(x.shape[1])])
    ours = (time.perf_counter() - began) / len(heard)
    theirs = in_onnx_runtime(target, x)
    print(f"frame by frame: the largest difference from the whole is {np.abs(heard - whole).max():.1e}")
    print(f"frame by frame in ONNX Runtime by itself: {np.abs(theirs - whole).max():.1e}")
    print(f"a frame of {1e3 * HOP / RATE:.0f} ms takes {ours * 1e6:.0f} µs")
    write(BUILD / "enhanced.wav", sound_of(heard * frames))
    draw(frames, whole, heard)
    print(f"sound: {BUILD / 'enhanced.wav'}\npicture: {BUILD / 'enhanced.png'}")


def in_onnx_runtime(path: Path, x: np.ndarray) -> np.ndarray:
    """The same file without onegru: each state is zeros at first, then what the last run gave."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    states = {
        item.name: np.zeros([1 if size == "batch" else size for size in item.shape], np.float32)
        for item in session.get_inputs()
        if item.name.endswith("_in")
    }
    parts = []
    for index in range(x.shape[1]):
        found = dict(zip(names, session.run(names, {"x": x[:, index : index + 1], **states}), strict=True))
        states = {name: found[name.removesuffix("_in") + "_out"] for name in states}
        parts.append(found["gain"][0])
    return np.concatenate(parts)


def read(path: str) -> np.ndarray:
    with wave.open(path) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            sys.exit(f"{path}: must be mono, of 16 bits and {RATE} samples per second")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def write(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def draw(frames: np.ndarray, whole: np.ndarray, heard: np.ndarray) -> None:
    figure = Figure(figsize=(9, 8))
    panels = [
        ("noisy", 20 * np.log10(np.abs(frames) + 1e-3), "dB"),
        ("enhanced as a whole", 20 * np.log10(np.abs(whole * frames) + 1e-3), "dB"),
        ("enhanced frame by frame", 20 * np.log10(np.abs(heard * frames) + 1e-3), "dB"),
        ("difference of the gains", np.abs(heard - whole), ""),
    ]
    for axes, (title, values, unit) in zip(figure.subplots(4, 1, sharex=True), panels, strict=True):
        limits = (-40, 20) if unit else (0, None)
        image = axes.imshow(values.T, aspect="auto", origin="lower", vmin=limits[0], vmax=limits[1])
        figure.colorbar(image, ax=axes, label=unit)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("bin")
    axes.set_xlabel("frame")
    figure.tight_layout()
    figure.savefig(BUILD / "enhanced.png", dpi=110)


if __name__ == "__main__":
    main()
