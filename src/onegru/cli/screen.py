"""Terminal output: safe text and progress bars."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Self

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from onegru.core.wording import printable

_SHORTEST = 12  # characters of a name that is cut
_PATIENCE = 2.0  # seconds


class Screen(Console):
    """A console that raises BrokenPipeError instead of ending the process."""

    def on_broken_pipe(self) -> None:
        """Raise, where Rich would end the process with exit code 1."""
        raise BrokenPipeError


def safe(text: str) -> str:
    """Return text from a file or another program that is safe to print with markup."""
    return escape(printable(text))


def say(console: Console, *lines: str) -> None:
    """Print lines without wrapping them."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


class FrontCut:
    """A name in a table that is shortened at its beginning, because names of nodes differ at their ends."""

    def __init__(self, markup: str) -> None:
        self._text = Text.from_markup(markup)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = self._text.cell_len
        return Measurement(min(width, _SHORTEST), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._text
        while text.cell_len > options.max_width:
            text = Text("…") + text[-options.max_width + 1 :] if text is self._text else text[:1] + text[2:]
        yield text


class RuledTable(Table):
    """A table whose first column has names."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row. Long names are cut at the beginning, and several words are wrapped."""
        name, *others = cells
        if isinstance(name, str) and " " not in name.strip():
            name = FrontCut(name)
        super().add_row(name, *others, **options)


def ruled_table(headings: Iterable[str], figures: Iterable[str]) -> Table:
    """Return a table with a line below its headings. Columns of figures are aligned right."""
    table = RuledTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def fits(console: Console, table: Table) -> bool:
    """Whether a table is not wider than the console."""
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width


class ProgressBar:
    """A progress bar on stderr, shown if the work takes longer than two seconds."""

    _most_words, _bar_width = 45, 20

    def __init__(self, label: str) -> None:
        # The whole line fits 80 columns.
        words = Column(no_wrap=True, overflow="ellipsis", max_width=self._most_words)
        label_column = TextColumn("{task.description}", table_column=words)
        columns = (SpinnerColumn(), label_column, BarColumn(self._bar_width), *self._figures())
        console = Console(stderr=True)
        # Only in a terminal: a log needs no bar, even with FORCE_COLOR.
        watched = console.is_interactive and sys.stderr.isatty()
        self._bar = Progress(*columns, console=console, transient=True, disable=not watched)
        self._task = self._bar.add_task(escape(label), total=None)
        self._timer = threading.Timer(_PATIENCE, self._bar.start)
        self._timer.daemon = True
        self._began = time.perf_counter()
        self.seconds = 0.0

    def _figures(self) -> tuple[ProgressColumn, ...]:
        """Return the columns after the bar."""
        return (TimeElapsedColumn(),)

    def progress(self, done: int, total: int) -> None:
        """Update the bar; with a single step it only pulses."""
        self._bar.update(self._task, completed=done, total=total if total > 1 else None)

    def __enter__(self) -> Self:
        self._timer.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._timer.cancel()
        self._timer.join()  # otherwise it might start the bar after the stop
        self._bar.stop()


class CountingBar(ProgressBar):
    """A progress bar with the number of finished items, the rate and the remaining time."""

    _most_words, _bar_width = 24, 10

    def __init__(self, things: str, label: str) -> None:
        self._things = things
        super().__init__(label)

    def _figures(self) -> tuple[ProgressColumn, ...]:
        return (MofNCompleteColumn(), _Rate(self._things), TimeRemainingColumn(), TextColumn("left"))


class _Rate(ProgressColumn):
    """The number of finished items per second."""

    def __init__(self, things: str) -> None:
        self._things = things
        super().__init__()

    def render(self, task: Task) -> Text:
        """Return the rate of the last seconds; empty if there is none yet."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._things}/s")
