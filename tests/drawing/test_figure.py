"""Pictures by matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import onegru
from tests.support.layers import draw, make_gru
from tests.support.machine.processes import run_python_without


def trace_of(direction: str = "forward", T: int = 20) -> onegru.reports.GateTrace:
    layer = make_gru(direction=direction)
    return layer.trace(draw(layer, T=T)[0])


@pytest.mark.parametrize("suffix", [".png", ".SVG"])
def test_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"gates{suffix}"
    trace_of().plot(path)
    begin = {".png": b"\x89PNG", ".SVG": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(begin)


def maps_of(figure: Figure) -> list[tuple[str, np.ndarray]]:
    """Above each map the title of its line, and the numbers shown."""
    axes = [item for item in figure.axes if item.get_images() or item.get_lines()]
    titles = [item.get_title(loc="left") for item in axes if item.get_lines()]
    images = [np.asarray(item.get_images()[0].get_array()) for item in axes if item.get_images()]
    return list(zip(titles, images, strict=True))


def test_maps_are_sorted_by_activity() -> None:
    trace = trace_of()
    maps = maps_of(trace.plot(row=1))
    assert [title for title, _ in maps] == ["update gate z", "reset gate r", "candidate n", "state h"]
    activity = np.abs(trace.h - trace.previous_h)[:, 0, 1].mean(axis=0)
    order = np.argsort(-activity, kind="stable")
    assert not np.array_equal(order, np.arange(4))
    for (_, image), name in zip(maps, "zrnh", strict=True):
        np.testing.assert_array_equal(image, getattr(trace, name)[:, 0, 1].T[order])


def test_directions_and_comparisons_are_columns() -> None:
    both, other = trace_of("bidirectional"), trace_of("bidirectional", T=12)
    assert [title for title, _ in maps_of(both.plot())[::4]] == [
        "update gate z – forward",
        "update gate z – reverse",
    ]
    assert len(maps_of(both.plot(direction="reverse"))) == 4
    maps = maps_of(both.plot(against=other, direction="reverse"))
    assert [title.partition(" – ")[2] for title, _ in maps[::4]] == ["this run", "other run", "difference"]
    images = dict(maps)
    difference = images["state h – this run"][:, :12] - images["state h – other run"]
    np.testing.assert_array_equal(images["state h – difference"], difference)


@pytest.mark.parametrize(
    ("made", "direction", "words"),
    [("forward", None, ""), ("reverse", None, "reverse, "), ("bidirectional", None, "")]
    + [("bidirectional", way, f"{way}, ") for way in ("forward", "reverse")],
)
def test_one_direction_is_named(made: str, direction: str | None, words: str) -> None:
    trace = trace_of(made)
    expected = f"{words}row 0 of 3, 20 steps, "
    assert trace.plot(direction=direction).texts[1].get_text().startswith(expected)
    assert f'"words": "{expected}' in trace.to_html(direction=direction)
    compared = trace.plot(direction=direction, against=trace).texts[1].get_text().splitlines()
    assert [line.partition(": ")[2].partition(expected)[0] for line in compared] == ["", ""]
    assert all(expected in line for line in compared)


@pytest.mark.parametrize(("T", "other"), [(1, 1), (2, 3), (20, 12), (12, 20), (700, 7)])
def test_steps_are_whole_and_compared_runs_share_them(T: int, other: int) -> None:
    figures = [trace_of(T=T).plot(), trace_of(T=T).plot(against=trace_of(T=other))]
    for figure, steps in zip(figures, (T, max(T, other)), strict=True):
        maps = [item for item in figure.axes if item.get_images() and item.get_xlabel() == "step"]
        assert len(maps) == (1, 3)[figure is figures[1]]
        for axes in maps:
            assert axes.get_xlim() == (-0.5, steps - 0.5)
            ticks = [tick for tick in axes.get_xticks() if -0.5 <= tick <= steps - 0.5]
            assert ticks and all(float(tick).is_integer() for tick in ticks)


def test_axes_that_are_there() -> None:
    figure = Figure()
    axes = figure.subplots(2, 2)
    assert trace_of().plot(axes) is figure
    assert [item.get_title() for item in axes.flat][3] == "state h"
    for target in (3, axes[0], [None] * 4):
        with pytest.raises(
            onegru.SpecError, match=r"^target: must be a file, None, or 4 of matplotlib's Axes"
        ):
            trace_of().plot(target)
    with pytest.raises(onegru.SpecError, match=r"^target: an array, .*; must be a file or None"):
        trace_of("bidirectional").plot(axes)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(onegru.SpecError, match=r"^target: '.*gates.jpg'; must end in .png, .svg or .pdf"):
        trace_of().plot(tmp_path / "gates.jpg")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib() -> None:
    code = """
        import numpy as np
        import onegru
        trace = onegru.GRU(np.ones((1, 6, 3)), np.ones((1, 6, 2))).trace(np.ones((2, 1, 3)))
        assert trace._repr_html_() and trace.to_html()
        try:
            trace.plot()
        except onegru.MissingExtraError as error:
            print(error)
    """
    result = run_python_without("name == 'matplotlib'", code)
    assert result.stdout == "a picture of gates needs matplotlib: pip install 'onegru[plot]'\n", result.stderr
