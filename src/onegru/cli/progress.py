"""A progress bar for what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self

from rich.console import Console
from rich.markup import escape
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
from rich.text import Text

_PATIENCE = 2.0  # seconds


class waiting:  # reads as a verb: `with waiting("loading"):`
    """Measures the time that something takes, and shows a bar on stderr if that is long."""

    def __init__(self, label: str) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *self._figures())
        console = Console(stderr=True)
        # Only if a person watches: in a log a bar is noise, whatever FORCE_COLOR says.
        watched = console.is_interactive and sys.stderr.isatty()
        self._bar = Progress(*columns, console=console, transient=True, disable=not watched)
        self._task = self._bar.add_task(escape(label), total=None)
        self._timer = threading.Timer(_PATIENCE, self._bar.start)
        self._timer.daemon = True
        self._began = time.perf_counter()
        self.seconds = 0.0

    def _figures(self) -> tuple[ProgressColumn, ...]:
        """What follows the bar."""
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
        self._timer.join()  # else it might start the bar just after it was stopped
        self._bar.stop()


class counting(waiting):
    """Likewise for many things of a kind: how many are done, how many a second, and the time left."""

    def __init__(self, things: str, label: str) -> None:
        self._things = things
        super().__init__(label)

    def _figures(self) -> tuple[ProgressColumn, ...]:
        return (MofNCompleteColumn(), _Rate(self._things), TimeRemainingColumn(), TextColumn("left"))


class _Rate(ProgressColumn):
    """How many things are done in a second."""

    def __init__(self, things: str) -> None:
        self._things = things
        super().__init__()

    def render(self, task: Task) -> Text:
        """The rate of the last seconds; nothing before there is one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._things}/s")
