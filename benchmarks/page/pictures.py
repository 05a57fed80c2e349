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


def draw_ratios(ratios: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """By number of threads and case, a bar for each; nothing where there is nothing."""
    if not ratios:
        return
    figure, axes = _axes(len(ratios), 6.5, 0.22 * max(map(len, ratios.values())) + 1.5)
    for axis, (threads, found) in zip(axes, ratios.items(), strict=True):
        colours = ["tab:blue" if ratio >= 1 else "tab:red" for ratio in found.values()]
        axis.barh(range(len(found)), list(found.values()), color=colours)
        axis.set_yticks(range(len(found)), list(found), fontsize=7)
        axis.invert_yaxis()
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xlabel("fastest peer's time / onegru's")
        axis.set_title(threads_of(threads))
    _save(figure, path)


def draw_curves(
    ratios: Mapping[str, Sequence[float]], rates: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Sorted ratios by number of threads, and FLOP/s by number of rows; nothing where there is nothing."""
    if not ratios and not rates:
        return
    figure, (left, right) = _axes(2, 6.0, 4.0)
    for threads, found in ratios.items():
        left.plot([(i + 0.5) / len(found) for i in range(len(found))], found, label=threads_of(threads))
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter("{x:g}")
    left.axhline(1, color="black", linewidth=0.8)
    left.set_xlabel("part of the drawn shapes")
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
