"""A bar for what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_PATIENCE = 2.0  # seconds


class Watch:
    """The time that something takes, and a bar on stderr once that is long."""

    def __init__(self, label: str) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        # Only where a person watches: in a log a bar is noise, whatever FORCE_COLOR says.
        watched = console.is_interactive and sys.stderr.isatty()
        self._bar = Progress(*columns, console=console, transient=True, disable=not watched)
        self._task = self._bar.add_task(escape(label), total=None)
        self._timer = threading.Timer(_PATIENCE, self._bar.start)
        self._timer.daemon = True
        self._began = time.perf_counter()
        self.seconds = 0.0

    def progress(self, done: int, total: int) -> None:
        """Note how far it is; a single step has no measure, so the bar then only moves."""
        self._bar.update(self._task, completed=done, total=total if total > 1 else None)

    def start(self) -> None:
        """Begin to count."""
        self._timer.start()
        self._began = time.perf_counter()

    def stop(self) -> None:
        """End."""
        self.seconds = time.perf_counter() - self._began
        self._timer.cancel()
        self._timer.join()  # else it might start the bar just after it was stopped
        self._bar.stop()


@contextmanager
def waiting(label: str) -> Iterator[Watch]:
    """Time what is done inside, with a bar if it takes longer than two seconds."""
    watch = Watch(label)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
