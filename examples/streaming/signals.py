"""Speech-like sounds, noise, and their spectra: what the example is trained on and heard with."""

from __future__ import annotations

import numpy as np

RATE, WINDOW, HOP = 8000, 256, 128
BINS = WINDOW // 2 + 1
_SHAPE = np.sqrt(np.hanning(WINDOW + 1)[:-1]).astype(np.float32)


def speech(rng: np.random.Generator, seconds: float) -> np.ndarray:
    """Syllables: harmonics of a gliding pitch under two formants, with pauses."""
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 + 60 * np.sin(2 * np.pi * rng.uniform(0.2, 0.6) * time + rng.uniform(0, 6))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    loud = np.clip(np.sin(2 * np.pi * rng.uniform(1, 3) * time + rng.uniform(0, 6)), 0, 1) ** 0.5
    formants = 500 + 300 * np.sin(2 * np.pi * 0.7 * time), 1700 + 500 * np.sin(2 * np.pi * 0.4 * time)
    sound = np.zeros_like(time)
    for harmonic in range(1, 25):
        frequency = harmonic * pitch
        near = sum(np.exp(-(((frequency - formant) / 250) ** 2)) for formant in formants)
        sound += (near + 0.05) * np.sin(harmonic * phase) * (frequency < RATE / 2 - 200)
    return (0.15 * loud * sound).astype(np.float32)


def noise(rng: np.random.Generator, seconds: float) -> np.ndarray:
    """Coloured noise and a hum."""
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count))
    spectrum *= 1 / np.sqrt(1 + np.arange(len(spectrum)) / len(spectrum) * rng.uniform(0, 30))
    coloured = np.fft.irfft(spectrum, count)
    hum = np.sin(2 * np.pi * rng.uniform(50, 400) * np.arange(count) / RATE)
    return np.asarray(0.06 * coloured / coloured.std() + 0.03 * hum, np.float32)


def spectra(sound: np.ndarray) -> np.ndarray:
    """Frames of a sound, complex [frames, 129]."""
    count = 1 + (len(sound) - WINDOW) // HOP
    frames = np.stack([sound[index * HOP : index * HOP + WINDOW] for index in range(count)])
    return np.fft.rfft(frames * _SHAPE).astype(np.complex64)


def sound_of(frames: np.ndarray) -> np.ndarray:
    """The sound that these frames overlap to."""
    parts = np.fft.irfft(frames, WINDOW).astype(np.float32) * _SHAPE
    sound = np.zeros(HOP * (len(parts) - 1) + WINDOW, np.float32)
    for index, part in enumerate(parts):
        sound[index * HOP : index * HOP + WINDOW] += part
    return sound


def features(frames: np.ndarray) -> np.ndarray:
    """What the network hears: [frames, 129], float32."""
    return np.asarray(np.log10(np.abs(frames) + 1e-3), np.float32)
