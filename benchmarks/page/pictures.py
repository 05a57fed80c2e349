"""The pictures of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page.figures import mean_of, threads_of

__all__ = ["draw_curves", "draw_page", "draw_rows"]


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


def draw_rows(rows: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Draw the geometric mean of each row as a bar, and its range as a line; nothing without rows.

    Few rows and large letters make it readable on a phone.
    """
    if not rows:
        return
    figure, (axis,) = _axes(1, 8.0, 0.72 * len(rows) + 1.5)
    most = max(max(found) for found in rows.values())
    for place, found in enumerate(rows.values()):
        mean = mean_of(found)
        axis.barh(place, mean - 1, 0.62, left=1, color="#2a6f97")
        axis.plot([min(found), max(found)], [place, place], color="black", linewidth=1.6, alpha=0.55)
        axis.text(most * 1.12, place, f"{mean:.1f}×", va="center", fontsize=19, fontweight="bold")
    least = min(min(found) for found in rows.values())
    axis.set_xscale("log")
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20) if least * 0.9 < tick < most * 1.1]
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], fontsize=15)
    axis.set_xticks([], minor=True)
    axis.set_xlim(min(least, 1) * 0.93, most * 2.4)
    axis.axvline(1, color="black", linewidth=1.2)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=17)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, fontsize=16, loc="right")
    _save(figure, path)


def draw_curves(
    ratios: Mapping[str, Sequence[float]], rates: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Draw sorted ratios by thread count, and FLOP/s by batch size; nothing without ratios."""
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


def draw_page(page: Path, columns: Sequence[int], threads: str, against: str, path: Path) -> None:
    """Draw a point for each machine and each row of a page's tables: the ratio in a column, on a log axis.

    Args:
        page: the page, a section for each machine.
        columns: the indices of the columns with the row's name and its ratio.
        threads: the heading of the tables in a section; empty if a section has one table.
        against: the baseline of the ratios.
        path: the picture's file.
    """
    found: dict[str, dict[str, float]] = {}
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        machine = section.partition("\n")[0]
        table = section.partition(f"### {threads}")[2].partition("###")[0] if threads else section
        for line in table.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) > max(columns) and (ratio := re.match(r"[\d.]+(?=×)", cells[columns[1]])):
                found.setdefault(cells[columns[0]], {})[machine] = float(ratio[0])
    machines = list(dict.fromkeys(name for by_machine in found.values() for name in by_machine))
    figure, (axis,) = _axes(1, 8.0, 0.34 * len(found) + 1.6)
    for number, machine in enumerate(machines):
        points = [(by[machine], place) for place, by in enumerate(found.values()) if machine in by]
        axis.plot(*zip(*points, strict=True), "osD^v"[number % 5], markersize=8, label=machine, alpha=0.85)
    axis.set_xscale("log")
    ratios = [value for by_machine in found.values() for value in by_machine.values()]
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15) if min(ratios) * 0.8 < t < max(ratios) * 1.2]
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], fontsize=12)
    axis.set_xticks([], minor=True)
    axis.axvline(1, color="black", linewidth=1)
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.set_yticks(range(len(found)), list(found), fontsize=11)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlabel(f"times as fast as {against}", fontsize=12)
    axis.legend(fontsize=11)
    _save(figure, path)
