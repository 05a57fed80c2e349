"""Define the paths of the repository and its examples."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
DENOISER = ROOT / "examples" / "denoiser" / "denoiser.onnx"
