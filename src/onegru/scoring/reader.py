"""Read the rows of a plan part by part, in bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from onegru.core.errors import FormatError
from onegru.scoring.columns import Buffers, bytes_of
from onegru.scoring.dataset import STEPS, Block, Part, Plan, check_same, naming, opened
from onegru.scoring.scorer import Gathering, Scorer


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that are scored together, of one part."""

    part: Part  # the part that they belong to
    rows: Gathering  # the rows
    path: str  # the file that they come from
    first_row: int  # the first row, counted from the first of the file
    is_last: bool  # whether they are the last of the part


def windows(
    scorer: Scorer, plan: Plan, blocks: Sequence[Block], done: Collection[int], largest_row: int
) -> Iterator[Window]:
    """Read the parts that are not done.

    Where a window ends depends only on the files and the plan, not on which parts are done.
    """
    schema = scorer.schema(plan.schema)
    together = [field.column for field in scorer.program.fields]
    most = plan.part_bytes + plan.part_bytes // 4  # a part is one window, but for unusual rows
    at_once = 5  # windows: read, waiting, two that are scored, and one that has just been
    buffers = Buffers(at_once * len(scorer.program.fields), most)
    for block in blocks:
        parts = [part for part in block.parts if part.number not in done]
        rows = _Rows(plan, block, largest_row, together) if parts else None
        for part in parts:
            assert rows is not None
            rows.skip_to(part.first)
            gathering, start = Gathering(scorer, schema, buffers), part.first
            for at, piece in rows.until(part.first + part.rows, most):
                if gathering.rows and gathering.bytes + bytes_of(piece) > most:
                    yield Window(part, gathering, block.path, block.first_row + start, False)
                    gathering, start = Gathering(scorer, schema, buffers), at
                gathering.add(piece, f"{block.path}: row ", block.first_row + at)
            yield Window(part, gathering, block.path, block.first_row + start, True)


class _Rows:
    """The rows of a block, some at a time, from its first to its last."""

    def __init__(self, plan: Plan, block: Block, largest_row: int, together: Sequence[str]) -> None:
        self._block = block
        self._largest_row = largest_row
        self._reading = _batches(plan, block, together)
        self._schema = plan.schema
        self._rest = plan.schema.empty_table()
        self._at = 0  # the row that comes next

    def skip_to(self, row: int) -> None:
        """Leave out rows."""
        while self._at < row:
            self._take(row)

    def until(self, row: int, most: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows before `row`, in tables of at most `most` bytes or of one row; each with its first row."""
        while self._at < row:
            at = self._at
            for piece in self._split(self._take(row), most, at):
                yield at, piece
                at += len(piece)

    def _take(self, end: int) -> pa.Table:
        if not len(self._rest):
            found = next(self._reading, None)
            if found is None:
                raise FormatError(f"{self._block.path}: ends early; it has changed since the run began")
            self._rest = found
        piece = self._rest.slice(0, end - self._at)
        self._rest = self._rest.slice(len(piece))
        self._at += len(piece)
        return piece

    def _split(self, table: pa.Table, most: int, first: int) -> Iterator[pa.Table]:
        size = bytes_of(table)
        if size > most and len(table) > 1:
            half = len(table) // 2
            yield from self._split(table.slice(0, half), most, first)
            yield from self._split(table.slice(half), most, first + half)
            return
        self._check_rows(table, first)
        yield _with_values(table, self._schema)

    def _check_rows(self, table: pa.Table, first: int) -> None:
        """Raise FormatError if a single row takes too much."""
        size = bytes_of(table)
        if size <= self._largest_row:
            return
        if len(table) == 1:
            place = f"{self._block.path}: row {self._block.first_row + first}"
            most = f"must be at most {self._largest_row / 1e6:.1f} MB in this memory"
            raise FormatError(f"{place}: takes {size / 1e6:.1f} MB; {most} (memory, --memory)")
        half = len(table) // 2
        self._check_rows(table.slice(0, half), first)
        self._check_rows(table.slice(half), first + half)


def _batches(plan: Plan, block: Block, together: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a block, some at a time; the columns `together` in one piece each."""
    names = plan.schema.names
    with opened(block.path, block.coded) as file, naming(block.path):
        check_same(plan, block.path)
        held: list[pa.Table] = []
        # Group by group: Arrow does not put some types together beyond one.
        found = chain.from_iterable(
            file.iter_batches(block.batch, row_groups=[group], columns=names, use_threads=False)
            for group in block.groups
        )
        for batch in found:
            batch.validate(full=True)
            table = pa.Table.from_batches([batch]).select(names)
            # Each piece of a dictionary has all of it. Values that take much are made when it is split.
            is_large = bytes_of(table) > plan.part_bytes
            if is_large and held:
                yield _joined(held, together)
                held = []
            held.append(table if is_large else _with_values(table, plan.schema))
            if (
                is_large
                or sum(map(len, held)) >= block.step
                or sum(map(bytes_of, held)) > plan.part_bytes // STEPS
            ):
                yield _joined(held, together)
                held = []
        if held:
            yield _joined(held, together)


def _with_values(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table of this schema, with the values of dictionaries."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = field.with_type(schema.field(field.name).type)
            table = table.set_column(index, plain, table.column(index).cast(plain.type))
    return table


def _joined(tables: Sequence[pa.Table], together: Sequence[str]) -> pa.Table:
    table = pa.concat_tables(tables)
    for name in together if len(tables) > 1 else ():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), table.column(index).combine_chunks())
    return table
