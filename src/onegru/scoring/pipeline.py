"""Parts read, scored and written at the same time, each by a separate thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from onegru.scoring.dataset import Block, Part, Plan
from onegru.scoring.folder import Folder, record
from onegru.scoring.reader import Window, windows
from onegru.scoring.scorer import Scored, Scorer

#: Called with the rows that are done and the number of all rows of the run.
Progress = Callable[[int, int], None]

Item = TypeVar("Item")


@dataclass(frozen=True)
class Job:
    """What any process needs to do blocks of a run; it can be pickled."""

    scorer: Scorer  # what scores
    plan: Plan  # the run's work
    output: str  # the folder of results, which must be locked, and be the same for all processes
    largest_row: int  # how many bytes a row may take

    def run(
        self,
        blocks: Sequence[Block],
        done: Collection[int] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Do the parts of these blocks that are not done."""
        read: _Channel[Window] = _Channel()
        scored: _Channel[tuple[Window, Scored]] = _Channel()
        with _Helpers(read, scored) as helpers, self.scorer.workers() as workers:
            helpers.start(self._read, blocks, done, read)
            writer = helpers.start(self._write, scored)
            for window, end in _one_ahead((item, self.scorer.begin(item.rows, workers)) for item in read):
                scored.put((window, end()))
                if progress is not None:
                    progress(window.rows.rows)
            scored.close()
            while writer.is_alive() and not scored.stopped:
                writer.join(_POLL)

    def _read(self, blocks: Sequence[Block], done: Collection[int], target: _Channel[Window]) -> None:
        for window in windows(self.scorer, self.plan, blocks, done, self.largest_row):
            target.put(window)
        target.close()

    def _write(self, source: _Channel[tuple[Window, Scored]]) -> None:
        folder = Folder(Path(self.output))
        schema = self.scorer.schema(self.plan.schema)
        for first in source:
            folder.write_part(first[0].part.number, schema, _rows_of(first, source))


def _one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each when the one behind it has come: the threads that compute have what to go on with."""
    before: list[Item] = []
    for item in items:
        yield from before
        before = [item]
    yield from before


def _rows_of(
    item: tuple[Window, Scored], source: _Channel[tuple[Window, Scored]]
) -> Iterator[tuple[pa.Table, list[dict[str, object]]]]:
    """The rows of a part, whose first window is `item`, and what to record of those that were skipped."""
    while True:
        window, found = item
        path, first = window.path, window.first_row
        yield found.table, [record(path, first + row.row, row) for row in found.skipped]
        if window.is_last:
            return
        item = next(source)


def parts_of(blocks: Sequence[Block]) -> Iterator[Part]:
    """The parts of blocks, in order."""
    for block in blocks:
        yield from block.parts


# ---- threads

_POLL = 0.1  # seconds


class _Stopped(Exception):
    """Another thread has failed, or the run was interrupted."""


class _Channel(Generic[Item]):
    """Hands items from one thread to the next, one waiting at most."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(1)
        self.stopped = False

    def put(self, item: Item | None) -> None:
        """Hand on an item; None after the last."""
        while True:
            if self.stopped:
                raise _Stopped
            try:
                return self._queue.put(item, timeout=_POLL)
            except queue.Full:
                pass

    def close(self) -> None:
        """Say that no item follows."""
        self.put(None)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            if self.stopped:
                raise _Stopped
            try:
                item = self._queue.get(timeout=_POLL)
            except queue.Empty:
                continue
            if item is None:
                raise StopIteration
            return item


class _Helpers:
    """Threads that end with the block: on their own, or because one failed."""

    def __init__(self, *channels: _Channel[Window] | _Channel[tuple[Window, Scored]]) -> None:
        self._channels = channels
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Work in a separate thread."""
        thread = threading.Thread(target=self._work, args=(work, arguments), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _work(self, work: Callable[..., None], arguments: Sequence[object]) -> None:
        try:
            work(*arguments)
        except _Stopped:
            pass
        except BaseException as error:
            self._error = self._error or error
            self._stop()

    def _stop(self) -> None:
        for channel in self._channels:
            channel.stopped = True

    def __enter__(self) -> _Helpers:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._stop()
        for thread in self._threads:
            thread.join()
        if self._error is not None and (error is None or isinstance(error, _Stopped)):
            raise self._error
