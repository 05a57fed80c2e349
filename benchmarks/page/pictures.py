"""The pictures of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page.figures import threads_of

__all__ = ["draw_curves", "draw_ratios"]


def _axes(count: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), squeeze=False)
    return figure, axes[0]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_ratios(ratios: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """By machine, number of threads and shape, a bar for each on a logarithmic axis; nothing of nothing."""
    ratios = {machine: found for machine, found in ratios.items() if found}
    if not ratios:
        return
    labels = list(dict.fromkeys(label for by in ratios.values() for found in by.values() for label in found))
    figure, axes = _axes(len(ratios), 8.0 if len(ratios) == 1 else 6.0, 0.3 * len(labels) + 1.3)
    for axis, (machine, by_threads) in zip(axes, ratios.items(), strict=True):
        axis.set_xscale("log")
        height = 0.8 / len(by_threads)
        for index, (threads, found) in enumerate(by_threads.items()):
            places = [labels.index(label) + (index - (len(by_threads) - 1) / 2) * height for label in found]
            axis.barh(
                places, [value - 1 for value in found.values()], height, left=1, label=threads_of(threads)
            )
            for place, value in zip(places, found.values(), strict=True):
                axis.text(max(value, 1) * 1.02, place, f"{value:.1f}", va="center", fontsize=8)
        most = max((value for found in by_threads.values() for value in found.values()), default=1)
        least = min((value for found in by_threads.values() for value in found.values()), default=1)
        ticks = [
            tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30) if least * 0.7 < tick < most * 1.3
        ]
        axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.set_xlim(min(least, 1) * 0.97, most * 1.45)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.axvline(1, color="black", linewidth=1)
        axis.set_yticks(range(len(labels)), labels if axis is axes[0] else [""] * len(labels))
        axis.set_ylim(len(labels) - 0.4, -0.6)
        axis.set_xlabel("times as fast as the fastest peer")
        axis.set_title(machine)
        axis.legend(loc="lower right")
    _save(figure, path)


def draw_curves(
    ratios: Mapping[str, Sequence[float]], rates: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Sorted ratios by number of threads, and FLOP/s by number of rows; nothing without ratios."""
    if not ratios:
        return
    figure, (left, right) = _axes(2, 6.0, 4.0)
    for threads, found in ratios.items():
        left.plot([(i + 0.5) / len(found) for i in range(len(found))], found, label=threads_of(threads))
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter("{x:g}")
    left.axhline(1, color="black", linewidth=0.8)
    left.set_xlabel("share of the random shapes")
    left.set_ylabel("ONNX Runtime's time / onegru's")
    for name, flops in rates.items():
        right.plot(range(1, len(flops) + 1), [rate / 1e9 for rate in flops], marker=".", label=name)
    right.set_ylim(bottom=0)
    right.set_xlabel("B")
    right.set_ylabel("GFLOP/s, one thread")
    for axis in (left, right):
        if axis.lines and axis.get_legend_handles_labels()[0]:
            axis.legend()
    _save(figure, path)
