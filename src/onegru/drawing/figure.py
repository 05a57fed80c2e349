"""Pictures as matplotlib's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from onegru.core.errors import SpecError, needs_extra
from onegru.drawing.colours import colours
from onegru.drawing.picture import Floats, Panel, Picture, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure

#: The kinds of files.
SUFFIXES = (".png", ".svg", ".pdf")

# Sizes in inches: the margin at the left, the width of a map, what is between two, the height of a panel.
_LEFT, _WIDTH, _BETWEEN, _HEIGHT = 0.75, 8.0, 0.85, 2.4

# Beyond so many steps several share a pixel, which then has a colour between theirs.
_MOST_NEAREST = 800

_INK, _FAINT = "#1f2430", "#6b7280"
_LINES = ("#1f4e9c", "#b4441f")  # of this run, and of the other


def check_target(path: Path) -> None:
    """Check what can be checked before there is something to draw.

    Raises:
        MissingExtraError: matplotlib is not installed.
        SpecError: no such kind of file can be drawn.
    """
    with _needs_matplotlib():
        import matplotlib.figure  # noqa: F401
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError.of(
            "target", f"{str(path)!r}; must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )


def _needs_matplotlib() -> AbstractContextManager[None]:
    return needs_extra("matplotlib", "plot", "a picture of gates")


def writer(figure: Figure, path: Path) -> Callable[[IO[bytes]], None]:
    """What writes a figure into a file of this name."""
    kind = path.suffix[1:].lower()
    return lambda file: figure.savefig(file, format=kind, dpi=130)


def draw(picture: Picture) -> Figure:
    """A picture: above each map the mean over units.

    Views stand side by side. Of two runs, each has a column, and their difference: views stand below each
    other then.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with _needs_matplotlib():
        from onegru.drawing.notebook_figure import NotebookFigure
    first = picture.views[0]
    if len(first.runs) == 2:
        blocks = [[(view, part) for part in range(3)] for view in picture.views]
        words = [f"{run.label}: {run.words}" for run in first.runs]
    else:
        blocks, words = [[(view, 0) for view in picture.views]], [picture.words]
    columns, high = len(blocks[0]), len(first.panels) * _HEIGHT + 0.2
    wide, head = (_WIDTH, 4.2)[columns > 1], 0.62 + 0.17 * len(words)
    size = _LEFT + columns * (wide + _BETWEEN), head + len(blocks) * high
    figure = NotebookFigure(figsize=size, facecolor="white")

    def axes(left: float, top: float, width: float, height: float, **options: Any) -> Any:
        """Axes at a place, in inches from the upper left corner."""
        place = left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1]
        return figure.add_axes(place, **options)

    at: dict[str, Any] = {"x": 0.14 / size[0], "ha": "left", "va": "top"}
    figure.text(y=1 - 0.13 / size[1], s=picture.title, fontsize=13, fontweight="bold", color=_INK, **at)
    figure.text(y=1 - 0.4 / size[1], s="\n".join(words), fontsize=9, color=_FAINT, **at)
    for number, column in np.ndindex(len(blocks), columns):
        view, part = blocks[number][column]
        left = _LEFT + column * (wide + _BETWEEN)
        for index, panel in enumerate(view.panels):
            top = head + number * high + index * _HEIGHT + 0.22
            above = axes(left, top, wide, 0.42)
            below = axes(left, top + 0.48, wide, 1.4, sharex=above)
            values = _part(view, index, part)
            limit = panel.apart or 1.0
            low, most = (-limit, limit) if part == 2 else (panel.low, panel.high)
            _mean(above, values, low, most, (*_LINES, _INK)[part])
            image = _map(below, values, view, low, most, "diverging" if part == 2 else panel.kind)
            bar = figure.colorbar(image, cax=axes(left + wide + 0.08, top + 0.48, 0.1, 1.4))
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=8, colors=_FAINT, length=2)
            place = column == 0, index == len(view.panels) - 1
            _label(above, below, panel, _column_words(picture, view, part), view.units, place)
    return figure


def draw_into(axes: object, view: View) -> Figure:
    """Draw the maps of a view into axes that are there.

    Args:
        axes: as many of matplotlib's Axes as the view has panels.
        view: what to draw, of one run.

    Raises:
        SpecError: they are something else.
    """
    given: Sequence[Any] = np.ravel(np.array(axes, object)).tolist()
    if len(given) != len(view.panels) or not all(hasattr(item, "imshow") for item in given):
        raise SpecError.of("target", f"must be a file, None, or {len(view.panels)} of matplotlib's Axes")
    for index, (panel, below) in enumerate(zip(view.panels, given, strict=True)):
        image = _map(below, _part(view, index, 0), view, panel.low, panel.high, panel.kind)
        below.figure.colorbar(image, ax=below)
        below.set_title(panel.title)
        below.set_xlabel("step")
        below.set_ylabel(f"{view.units} units, most active on top")
    figure: Figure = given[0].figure
    return figure


def _part(view: View, index: int, part: int) -> Floats:
    """The numbers of a panel in the first run, in the second, or their difference."""
    if part < 2:
        return view.runs[part].values[index]
    common = min(run.steps for run in view.runs)
    with np.errstate(all="ignore"):
        difference: Floats = view.runs[0].values[index][:common] - view.runs[1].values[index][:common]
    return difference


def _mean(axes: Any, values: Floats, low: float, high: float, colour: str) -> None:
    """The mean over units as a line."""
    with np.errstate(all="ignore"):
        axes.plot(values.mean(axis=1), color=colour, linewidth=1.0)
    axes.set_ylim(low, high)
    axes.set_yticks([low, (low + high) / 2, high] if low else [low, high])
    axes.tick_params(labelsize=7, colors=_FAINT, labelbottom=False, bottom=False)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _map(axes: Any, values: Floats, view: View, low: float, high: float, kind: str) -> Any:
    """Units over steps as colours."""
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    order = next(iter(view.orders.values()))
    shown = ListedColormap(colours("light", kind) / 255.0).with_extremes(bad="#bdbdbd")
    image = axes.imshow(
        np.ma.masked_invalid(values.T[list(order)]) if values.size else np.full((1, 1), np.nan),
        aspect="auto",
        interpolation="nearest" if len(values) < _MOST_NEAREST else "auto",
        cmap=shown,
        vmin=low,
        vmax=high,
        extent=(-0.5, max(1, len(values)) - 0.5, view.units, 0),
    )
    axes.tick_params(labelsize=8, colors=_FAINT, length=2)
    axes.set_xlim(-0.5, max(1, *(run.steps for run in view.runs)) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#d1d5db")
    return image


def _label(above: Any, below: Any, panel: Panel, words: str, units: int, place: tuple[bool, bool]) -> None:
    """Name a map; `place` is whether it is in the first column, and in the last row."""
    is_first, is_last = place
    title = panel.title if not words else f"{panel.title} – {words}"
    above.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK, pad=5)
    if is_first:
        above.set_ylabel("mean", fontsize=8, color=_FAINT)
        below.set_ylabel(f"{units} units, most\nactive on top", fontsize=8, color=_FAINT)
        if not words:
            above.set_title(panel.words, loc="right", fontsize=8.5, color=_FAINT, pad=5)
    if is_last:
        below.set_xlabel("step", fontsize=9, color=_FAINT)


def _column_words(picture: Picture, view: View, part: int) -> str:
    """What a column shows, where there are several."""
    parts = [view.name] if len(picture.views) > 1 else []
    if len(view.runs) == 2:
        parts.append("difference" if part == 2 else view.runs[part].label)
    return ", ".join(parts)
