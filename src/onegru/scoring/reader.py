"""Rows of a plan, part by part, in memory that is bounded whatever the files are like."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from onegru.core.errors import FormatError
from onegru.scoring.dataset import Block, Part, Plan, naming, opened


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are scored together: a part, or some of its rows where these take more than was thought.

    Attributes:
        part: the part that they belong to.
        rows: the rows.
        path: the file that they come from.
        first_row: the first row, counted from the first of the file.
        is_last: whether they are the last of the part.
    """

    part: Part
    rows: pa.Table
    path: str
    first_row: int
    is_last: bool

    def place(self, row: int) -> str:
        """What messages call a row of the window."""
        return f"{self.path}: row {self.first_row + row}"


def windows(plan: Plan, blocks: Sequence[Block], done: Collection[int], largest_row: int) -> Iterator[Window]:
    """Read the parts that are not done.

    Where a window ends depends on the files and the plan alone, not on which parts are done.

    Args:
        plan: the plan.
        blocks: those of its blocks to read.
        done: the numbers of the parts to leave out.
        largest_row: how many bytes a row may take.

    Raises:
        FormatError: a file is broken, has changed, or has a row that takes too much memory.
        OSError: a file cannot be read.
    """
    for block in blocks:
        parts = [part for part in block.parts if part.number not in done]
        if parts:
            yield from _of_block(plan, block, parts, largest_row)


def _of_block(plan: Plan, block: Block, parts: Sequence[Part], largest_row: int) -> Iterator[Window]:
    most = 2 * plan.part_bytes

    def window(part: Part, tables: list[pa.Table], first: int, is_last: bool) -> Window:
        rows = pa.concat_tables(tables) if tables else plan.schema.empty_table()
        return Window(part, rows, block.path, block.first_row + first, is_last)

    reading = _batches(plan, block)
    at = 0  # the row that comes next
    rest = plan.schema.empty_table()
    for part in parts:
        tables: list[pa.Table] = []
        start, size, end = part.first, 0, part.first + part.rows
        while at + len(rest) <= part.first and part.rows:
            at += len(rest)
            rest = _next(reading, block)
        rest, at = rest.slice(max(0, part.first - at)), max(at, part.first)
        while at < end:
            if not len(rest):
                rest = _next(reading, block)
            piece, rest = rest.slice(0, end - at), rest.slice(end - at)
            for bit in _split(piece, most, largest_row, f"{block.path}: row ", block.first_row + at):
                if tables and size + bit.nbytes > most:
                    yield window(part, tables, start, False)
                    start, size, tables = at, 0, []
                tables.append(bit)
                size += bit.nbytes
                at += len(bit)
        yield window(part, tables, start, True)


def _next(reading: Iterator[pa.Table], block: Block) -> pa.Table:
    found = next(reading, None)
    if found is None:
        raise FormatError(f"{block.path}: ends early; it has changed since the run began")
    return found


def _batches(plan: Plan, block: Block) -> Iterator[pa.Table]:
    """The rows of a block, some at a time."""
    names = plan.schema.names
    with opened(block.path) as file, naming(block.path):
        found = file.iter_batches(
            block.batch, row_groups=list(block.groups), columns=names, use_threads=False
        )
        for batch in found:
            yield pa.Table.from_batches([batch]).select(names)


def _split(table: pa.Table, most: int, largest_row: int, words: str, first: int) -> Iterator[pa.Table]:
    """A table, whose first row is `first`, in pieces of at most `most` bytes, or single rows."""
    size = table.nbytes
    if size <= most or len(table) == 1:
        if size > max(most, largest_row):
            what = f"{size >> 20} MB; must be at most {max(most, largest_row) >> 20} MB in this memory"
            raise FormatError(f"{words}{first}: {what}")
        yield table
        return
    half = len(table) // 2
    yield from _split(table.slice(0, half), most, largest_row, words, first)
    yield from _split(table.slice(half), most, largest_row, words, first + half)
