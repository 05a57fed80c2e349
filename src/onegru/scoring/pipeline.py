"""Read, score and write parts at the same time, each in a separate thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from onegru.scoring.dataset import Part, Plan
from onegru.scoring.folder import Folder, record
from onegru.scoring.parallel import BatchMap, batch_map
from onegru.scoring.reader import RowWindow, read_windows
from onegru.scoring.scorer import Scorer

#: Called with the number of finished rows and of all rows.
Progress = Callable[[int, int], None]

Item = TypeVar("Item")


@dataclass(frozen=True)
class Job:
    """Data that any process needs to score parts of a run; it can be pickled."""

    scorer: Scorer  # the scorer
    plan: Plan  # the plan of the run
    output: str  # the folder of results, which must be locked, and the same for all processes
    largest_row: int  # the memory limit of a row, in bytes

    def run(self, parts: Sequence[Part], on_rows: Callable[[int], None] | None = None) -> None:
        """Score and write parts."""
        schema, folder = self.scorer.schema(self.plan.schema), Folder(Path(self.output))
        windows = read_windows(self.scorer, self.plan, parts, self.largest_row)
        with (
            batch_map(self.scorer.program.is_parallel) as run_all,
            ThreadPoolExecutor(1) as scorer,
            ThreadPoolExecutor(1) as reader,
        ):
            scored = _in_thread(scorer, self._score(_in_thread(reader, windows), run_all))
            for part, same in groupby(scored, lambda result: result.part):
                folder.write_part(
                    part.number, schema, ((r.table, r.skipped) for r in _counted(same, on_rows))
                )

    def _score(self, windows: Iterable[RowWindow], run_all: BatchMap) -> Iterator[_Result]:
        """Yield the results of windows; each starts before the previous one ends, so that no thread waits."""
        before: Callable[[], _Result] | None = None
        for finish in (self._begin(window, run_all) for window in windows):
            if before is not None:
                yield before()
            before = finish
        if before is not None:
            yield before()

    def _begin(self, window: RowWindow, run_all: BatchMap) -> Callable[[], _Result]:
        part, rows, first_row = window
        count, end = rows.count, self.scorer.begin(rows, run_all)

        def finish() -> _Result:
            found = end()
            skipped = [record(part.path, first_row + row.row, row) for row in found.skipped]
            return _Result(part, count, found.table, skipped)

        return finish


class _Result(NamedTuple):
    """Results of a window."""

    part: Part
    rows: int  # the number of rows that were read
    table: pa.Table  # the rows with their outputs
    skipped: list[dict[str, object]]  # the records of the rows without outputs


def _counted(results: Iterable[_Result], on_rows: Callable[[int], None] | None) -> Iterator[_Result]:
    for result in results:
        if on_rows is not None:
            on_rows(result.rows)
        yield result


def _in_thread(pool: ThreadPoolExecutor, items: Iterator[Item]) -> Iterator[Item]:
    """Yield items; the pool's only thread computes the next item while the current one is used."""
    following = pool.submit(next, items, None)
    while (item := following.result()) is not None:
        following = pool.submit(next, items, None)
        yield item
