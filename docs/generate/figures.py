"""The figures of docs/index.md, out of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate.markdown import table

_REPORT = Path(__file__).resolve().parents[1] / "performance.md"

# What is shown, and the row of the report's targets that it is in.
_ROWS = {
    "a GRU call, 300 random shapes, beside ONNX Runtime": "of (?:300 )?drawn shapes",
    "a whole ONNX model, beside ONNX Runtime": "whole models, onnx",
    "a whole OpenVINO IR, beside OpenVINO": "whole models, ir",
}


def figures() -> str:
    """How many times as fast as other runtimes: the geometric mean and the lowest case, by threads."""
    text = _REPORT.read_text(encoding="utf-8")
    rows = []
    for what, pattern in _ROWS.items():
        for threads in ("1", "2"):
            mean = _find(text, f"{pattern}, geometric mean|geometric mean {pattern}", threads)
            low = _find(text, f"{pattern}, lowest|lowest {pattern}", threads)
            rows.append([what, threads, mean, low])
    return table(["onegru's speed", "threads", "geometric mean", "lowest case"], rows)


def _find(text: str, names: str, threads: str) -> str:
    match = re.search(rf"^\| (?:{names}) \| {threads} \| [^|]* \| ([0-9.]+) \|", text, re.MULTILINE)
    assert match is not None, names
    return f"{float(match[1]):.2f}×"
