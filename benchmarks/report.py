"""From measurements to a page: tables, what was to be reached and was it, a picture.

python -m benchmarks.report build/benchmarks/results.json docs   writes docs/performance.md and .png again.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case

__all__ = ["TARGETS", "write_report"]

#: regime → the ratio, fastest peer's time over ours, that is to be reached on one thread and on two.
TARGETS = {
    "step 64": (5.0, 5.0),
    "step 128": (3.5, 4.0),
    "step 256": (2.0, 2.0),
    "step 512": (1.5, 1.5),
    "step 1024": (1.3, 1.3),
    "tiny": (5.0, 5.0),
    "sequence 64…128": (1.7, 1.7),
    "sequence 256": (1.4, 1.6),
    "sequence 384…512": (1.2, 1.2),
    "large": (1.15, 1.15),
    "scoring": (1.6, 1.6),
    "batch": (1.3, 1.3),
    "DIEN": (2.0, 2.0),
}
BFLOAT16_TARGET = 1.7  # of the regimes "large" and "step 1024" with 16-bit weights
PEAK_TARGET = 0.85  # of the FMA peak, in the regime "batch" where H is at least 256
MEAN_TARGET = 2.0  # geometric mean over all cases

OTHERS = ("onnxruntime", "openvino", "torch")


def ours(entry: dict[str, Any]) -> float:
    """Our time: of a stream's step where that is what the case is, else of the layer."""
    peers = entry["peers"]
    times = [peers[name]["median"] for name in ("onegru", "onegru step") if "median" in peers.get(name, {})]
    return min(times, default=math.nan)


def fastest(entry: dict[str, Any]) -> tuple[str, float]:
    """The fastest peer and its time."""
    found = {name: e["median"] for name, e in entry["peers"].items() if name in OTHERS and "median" in e}
    name = min(found, key=lambda n: found[n], default="")
    return name, found.get(name, math.nan)


def write_report(document: dict[str, Any], folder: Path) -> None:
    """Write performance.md and performance.png, and print the targets."""
    cases = {str(case): case for case in CASES}
    lines = _head(document)
    lines += _targets(document, cases)
    for threads, limits in document["limits"].items():
        lines += _table(document, cases, threads, limits)
    lines += _whole(document)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance.md").write_text("\n".join(lines) + "\n")
    _picture(document, folder / "performance.png")
    print("\n".join(_targets(document, cases)))
    print(f"wrote {folder / 'performance.md'} and {folder / 'performance.png'}")


def _head(document: dict[str, Any]) -> list[str]:
    machine = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        "# Performance",
        "",
        "Made by `make bench`. Median time of a call in µs; float32, both outputs, an initial state, biases. "
        "Peers at their best: constant weights, static shapes, bound outputs, inference mode, pinned. "
        "Results are checked against float64 first; then all take turns. Figures are of one run on one "
        "machine: ratios count, not times.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, SIMD target {machine['target']}; Python "
        f"{machine['python']}, {versions}; {machine['date']}.",
        "",
        "![ratios](performance.png)",
        "",
    ]


def _targets(document: dict[str, Any], cases: dict[str, Case]) -> list[str]:
    lines = [
        "## Targets",
        "",
        "| regime | threads | at least | lowest measured | |",
        "| --- | --- | --- | --- | --- |",
    ]

    def row(regime: str, threads: str, wanted: float, found: float, unit: str = "") -> None:
        verdict = "reached" if found >= wanted else "**missed**"
        lines.append(f"| {regime} | {threads} | {wanted:g}{unit} | {found:.2f}{unit} | {verdict} |")

    ratios: list[float] = []
    for threads, limits in document["limits"].items():
        entries = [e for e in document["results"] if str(e["threads"]) == threads]
        by_regime: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            by_regime.setdefault(cases[entry["case"]].shape.regime, []).append(entry)
        for regime, members in by_regime.items():
            found = [fastest(e)[1] / ours(e) for e in members]
            ratios += found
            if regime in TARGETS:
                row(regime, threads, TARGETS[regime][int(threads) > 1], min(found))
        for regime in ("large", "step 1024"):
            narrow = [
                fastest(e)[1] / e["peers"]["onegru bfloat16"]["median"]
                for e in by_regime.get(regime, [])
                if "median" in e["peers"].get("onegru bfloat16", {})
            ]
            if narrow:
                row(f"{regime}, bfloat16 weights", threads, BFLOAT16_TARGET, min(narrow))
        shares = [
            cases[e["case"]].shape.flops / ours(e) / limits["fma"]
            for e in by_regime.get("batch", [])
            if cases[e["case"]].shape.H >= 256
        ]
        if shares:
            row("batch, share of the FMA peak, H ≥ 256", threads, PEAK_TARGET, min(shares))
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        row("geometric mean of all", "all", MEAN_TARGET, mean)
    return [*lines, ""]


def _table(
    document: dict[str, Any], cases: dict[str, Case], threads: str, limits: dict[str, float]
) -> list[str]:
    said = ", ".join(f"{name} {value / 1e9:.0f} GB/s" for name, value in limits.items() if name != "fma")
    names = ("onegru", "onegru step", "onegru alloc", "onegru bfloat16", *OTHERS)
    lines = [
        f"## {threads} thread{'s' if threads != '1' else ''}",
        "",
        f"FMA peak {limits['fma'] / 1e9:.0f} GFLOP/s; reading: {said}.",
        "",
        f"| T,B,I,H,D reset | {' | '.join(names)} | ratio | spread | GFLOP/s | of peak |",
        "| --- |" + " ---: |" * (len(names) + 4),
    ]
    for entry in document["results"]:
        if str(entry["threads"]) != threads:
            continue
        case, peers = cases[entry["case"]], entry["peers"]
        cells = [f"{peers[n]['median'] * 1e6:.1f}" if "median" in peers.get(n, {}) else "" for n in names]
        _, peer = fastest(entry)
        mine = ours(entry)
        spread = (peers["onegru"]["high"] - peers["onegru"]["low"]) / peers["onegru"]["median"]
        rate = case.shape.flops / mine
        lines.append(
            f"| {case} | {' | '.join(cells)} | {peer / mine:.2f} | {spread:.0%} | {rate / 1e9:.0f} "
            f"| {rate / limits['fma']:.0%} |"
        )
    return [*lines, ""]


def _whole(document: dict[str, Any]) -> list[str]:
    if not document.get("whole"):
        return []
    lines = [
        "## A whole model at batch 1",
        "",
        "Two convolutions over frequency, three GRUs of 256, a linear head, states as inputs and outputs "
        "(`benchmarks/models.py`). onegru by `InferenceSession` and its streams, ONNX Runtime by its own "
        "`run`, states handed on by the caller.",
        "",
        "| frames | threads | onegru | onnxruntime | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for entry in document["whole"]:
        times = [entry["peers"].get(name, {}).get("median", math.nan) for name in ("onegru", "onnxruntime")]
        lines.append(
            f"| {entry['case']} | {entry['threads']} | {times[0] * 1e6:.1f} | {times[1] * 1e6:.1f} "
            f"| {times[1] / times[0]:.2f} |"
        )
    return [*lines, ""]


def _picture(document: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = list(document["limits"])
    longest = max(sum(str(e["threads"]) == t for e in document["results"]) for t in counts)
    figure, axes = pyplot.subplots(
        1, len(counts), figsize=(6.5 * len(counts), 0.22 * longest + 1.5), squeeze=False
    )
    for axis, threads in zip(axes[0], counts, strict=True):
        entries = [e for e in document["results"] if str(e["threads"]) == threads]
        ratios = [fastest(e)[1] / ours(e) for e in entries]
        colours = ["tab:blue" if ratio >= 1 else "tab:red" for ratio in ratios]
        axis.barh(range(len(entries)), ratios, color=colours)
        axis.set_yticks(range(len(entries)), [e["case"] for e in entries], fontsize=7)
        axis.invert_yaxis()
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xlabel("fastest peer's time / onegru's")
        axis.set_title(f"{threads} thread{'s' if threads != '1' else ''}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    write_report(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
