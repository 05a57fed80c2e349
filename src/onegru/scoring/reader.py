"""Read the rows of a plan part by part, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from onegru.core.errors import FormatError
from onegru.scoring.columns import bytes_of
from onegru.scoring.dataset import READS, Part, Plan, arrow_errors, check_same, open_parquet
from onegru.scoring.scorer import Rows, Scorer


class RowWindow(NamedTuple):
    """Rows of one part that are scored together: all of them, unless they take more than expected."""

    part: Part
    rows: Rows
    first_row: int  # the first row, counted from the start of the file


def read_windows(scorer: Scorer, plan: Plan, parts: Sequence[Part], largest_row: int) -> Iterator[RowWindow]:
    """Yield the rows of parts in windows, whose limits depend only on the files and the plan."""
    most = plan.part_bytes + plan.part_bytes // 4

    def begin(part: Part, first: int) -> RowWindow:
        first += part.groups_row
        return RowWindow(part, Rows(scorer, plan.schema, f"{part.path}: row ", first, most), first)

    for _, same in groupby(parts, lambda part: (part.path, part.groups)):
        reader: _RowReader | None = None
        for part in same:
            reader = reader or _RowReader(scorer, plan, part, largest_row)
            window = begin(part, part.first)
            for at, piece in reader.read(part, most):
                if window.rows.count and window.rows.bytes + bytes_of(piece) > most:
                    yield window
                    window = begin(part, at)
                window.rows.add(piece)
            if not part.rows:
                window.rows.add(plan.schema.empty_table())
            yield window


class _RowReader:
    """Reader of parts from the same row groups, in order."""

    def __init__(self, scorer: Scorer, plan: Plan, part: Part, largest_row: int) -> None:
        self._schema, self._largest_row = plan.schema, largest_row
        self._location = part.path, part.groups_row
        names = [field.column for field in scorer.program.fields]
        self._tables = _joined(_tables(plan, part), plan, names)
        self._rest = plan.schema.empty_table()
        self._at = 0  # the next row, counted from the start of the row groups

    def read(self, part: Part, most: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a part in tables of at most `most` bytes or one row, each with its first row."""
        end = part.first + part.rows
        while self._at < end:
            if not len(self._rest):
                self._rest = next(self._tables, None)
                if self._rest is None:
                    raise FormatError(f"{part.path}: ends early; it has changed since the run began")
            at = self._at
            table = self._rest.slice(0, (part.first if at < part.first else end) - at)
            self._rest = self._rest.slice(len(table))
            self._at += len(table)
            if at >= part.first:
                self._check_rows(table, at)
                for piece in _split(table, most):
                    yield at, _with_values(piece, self._schema)
                    at += len(piece)

    def _check_rows(self, table: pa.Table, first: int) -> None:
        """Raise FormatError if a single row takes too much memory."""
        size = bytes_of(table)
        if size <= self._largest_row:
            return
        if len(table) == 1:
            path, groups_row = self._location
            most = f"must be at most {self._largest_row / 1e6:.1f} MB by the memory limit (memory, --memory)"
            raise FormatError(f"{path}: row {groups_row + first}: needs {size / 1e6:.1f} MB; {most}")
        half = len(table) // 2
        self._check_rows(table.slice(0, half), first)
        self._check_rows(table.slice(half), first + half)


def _tables(plan: Plan, part: Part) -> Iterator[pa.Table]:
    """Yield the rows of a part's row groups, as Arrow decodes them."""
    names = plan.schema.names
    with open_parquet(part.path, part.coded) as file, arrow_errors(part.path):
        check_same(plan, part.path)
        for group in part.groups:  # one by one, because Arrow cannot join some types across groups
            for batch in file.iter_batches(part.batch, row_groups=[group], columns=names, use_threads=False):
                batch.validate(full=True)
                yield pa.Table.from_batches([batch]).select(names)


def _joined(tables: Iterator[pa.Table], plan: Plan, names: Sequence[str]) -> Iterator[pa.Table]:
    """Join small tables, because each has a cost, and combine the chunks of the named columns."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        is_small = bytes_of(table) <= plan.part_bytes // READS  # otherwise it is split first
        if held and (not is_small or size > plan.part_bytes // READS):
            yield _in_one_piece(held, names)
            held, size = [], 0
        if is_small:
            held.append(_with_values(table, plan.schema))
            size += bytes_of(held[-1])
        else:
            yield table
    if held:
        yield _in_one_piece(held, names)


def _in_one_piece(tables: Sequence[pa.Table], names: Sequence[str]) -> pa.Table:
    table = pa.concat_tables(tables)
    for name in names if len(tables) > 1 else ():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), table.column(index).combine_chunks())
    return table


def _split(table: pa.Table, most: int) -> Iterator[pa.Table]:
    """Split a table in halves until each takes at most `most` bytes, or is a single row."""
    if len(table) < 2 or bytes_of(table) <= most:
        yield table
        return
    half = len(table) // 2
    yield from _split(table.slice(0, half), most)
    yield from _split(table.slice(half), most)


def _with_values(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table of this schema with plain values, because each piece would repeat a dictionary."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = field.with_type(schema.field(field.name).type)
            table = table.set_column(index, plain, table.column(index).cast(plain.type))
    return table
