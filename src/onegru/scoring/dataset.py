"""Divide the Parquet files of a run into parts, which depend only on the files."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from onegru.core.arguments import shown
from onegru.core.errors import FormatError, SpecError
from onegru.scoring.columns import is_text
from onegru.scoring.footers import check_footers
from onegru.scoring.scorer import Scorer
from onegru.system.bounded import check_regular

# Rows that Arrow decodes at once if their memory is unknown; and if it copies a whole dictionary each time.
_AT_ONCE, _CODED_AT_ONCE = 32, 1024
# Encodings of strings that Arrow can read as a dictionary, so that a repeated string is stored once.
_CODED = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}

#: Approximate number of reads for the rows of a part.
READS = 16
_MOST_PARTS = 10**6  # of a row group, whose size is an unchecked claim of the file
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_WIDEST = 64  # width of byte arrays of fixed length that are decoded like numbers: float16, decimals, UUIDs


@dataclass(frozen=True, slots=True)
class File:
    """File of rows: its size and time, which reveal a change, and its number of rows."""

    size: int
    mtime_ns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that become one file: some row groups, or a part of a large one."""

    number: int  # its index among all parts
    path: str  # the file with the rows
    groups: tuple[int, ...]  # the row groups; empty if no file has rows
    groups_row: int  # the first row of the row groups, counted from the start of the file
    first: int  # the first row, counted from the start of the row groups
    rows: int  # the number of rows
    batch: int  # the number of rows that Arrow decodes at once
    coded: tuple[str, ...]  # string columns that are read as dictionaries, although the file has none


@dataclass(frozen=True, slots=True)
class Plan:
    """Work of a run."""

    files: Mapping[str, File]  # the files by their paths, in order
    parts: tuple[Part, ...]  # in the order of their rows; a single one without rows if there are none
    schema: pa.Schema  # the schema of the rows, from the first file
    part_bytes: int  # the approximate memory of a part's rows and outputs


def find_files(inputs: Sequence[str | os.PathLike[str]], output: Path | None) -> list[Path]:
    """Return the input files, in the order given; the files of a folder or pattern are sorted by name."""
    # In folders and patterns, names that begin with "_" or "." are skipped, as in Arrow.
    if isinstance(inputs, str | os.PathLike) or not isinstance(inputs, Iterable):
        raise SpecError.of("inputs", f"{shown(inputs)}; must be a list of files, folders or patterns")
    found: dict[str, Path] = {}
    read: set[str] = set()
    for item in inputs:
        text = os.fspath(item)
        if not text or "://" in text:
            what = "a URL" if text else "no name"
            raise SpecError.of("inputs", f"{text!r}: {what}; must be files on this machine")
        for path in _files_of(text, output, read):
            if _is_not_text(str(path)):
                raise SpecError(f"{str(path)!r}: a name that is not UTF-8; must be valid UTF-8")
            if found.setdefault(os.path.realpath(path), path) is not path:
                raise SpecError(f"{path}: is listed twice")
    if not found:
        raise SpecError.of("inputs", "empty; must contain at least one file")
    for folder in () if output is None else Path(os.path.realpath(output)).parents:
        if str(folder) in read:
            raise SpecError.of("output", f"{output}: is in the input folder {folder}; must be outside")
    return list(found.values())


def _is_not_text(name: str) -> bool:
    """Whether a name has bytes that are not text, which Arrow does not accept."""
    return any("\ud800" <= char <= "\udfff" for char in name)


def _files_of(text: str, output: Path | None, read: set[str]) -> list[Path]:
    """Return the files for a text, and add the folders that are read to `read`."""
    paths = [Path(text)]
    if not paths[0].exists() and glob.has_magic(text):
        found = (Path(name) for name in sorted(glob.glob(text, recursive=True)))  # noqa: PTH207
        own = None if output is None else os.path.realpath(output)
        paths = [path for path in found if not _is_hidden(path.name) and os.path.realpath(path) != own]
        if not paths:
            raise SpecError(f"{text}: no such file")
    # A pattern may match a folder as well as the folder's content.
    listed = dict.fromkeys(
        inner for item in paths for inner in (_files_in(item, read) if item.is_dir() else [item])
    )
    if not listed:
        raise SpecError(f"{text}: a folder without files")
    for item in listed:
        check_regular(item)
    return list(listed)


def _files_in(folder: Path, read: set[str]) -> list[Path]:
    found: list[Path] = []
    seen: set[str] = set()  # because links may form a cycle
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        folders[:] = [] if real in seen else [name for name in folders if not _is_hidden(name)]
        found += [] if real in seen else [Path(parent, name) for name in names if not _is_hidden(name)]
        seen.add(real)
    read |= seen
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def make_plan(scorer: Scorer, paths: Sequence[Path], part_bytes: int) -> Plan:
    """Divide files into parts of about `part_bytes` with outputs: row groups, or rows of a large group."""
    check_footers(paths)
    files: dict[str, File] = {}
    parts: list[Part] = []
    schema: pa.Schema | None = None
    columns = scorer.columns()
    for path in paths:
        with open_parquet(str(path)) as file, arrow_errors(str(path)):
            own = file.schema_arrow
            status = path.stat()
            _check_columns(scorer, path, own, schema)
            schema = own if schema is None else schema
            metadata = file.metadata
            files[str(path)] = File(status.st_size, status.st_mtime_ns, metadata.num_rows)
            types = {name: own.field(name).type for name in columns}
            groups = [metadata.row_group(index) for index in range(file.num_row_groups)]
            coded = tuple(name for name, kind in types.items() if _is_coded(name, kind, groups))
            measured = [_group_of(scorer, file.schema, group, types, coded) for group in groups]
        parts += _parts(str(path), measured, part_bytes, len(parts), coded)
    if not parts:
        parts.append(Part(0, str(paths[0]), (), 0, 0, 0, 1, ()))
    assert schema is not None
    wanted = pa.schema([field_of_values(schema.field(name)) for name in columns])
    return Plan(files, tuple(parts), wanted, part_bytes)


def field_of_values(field: pa.Field) -> pa.Field:
    """Return a field with the value type of a dictionary, because each piece would repeat the dictionary."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def open_parquet(path: str, coded: Sequence[str] = ()) -> Any:
    """Open a Parquet file; the columns `coded` are read as dictionaries."""
    with arrow_errors(path):
        # Pages are read on demand, so no whole row group is in memory.
        return pq.ParquetFile(path, read_dictionary=coded, pre_buffer=False, buffer_size=1 << 20)


def check_same(plan: Plan, path: str) -> None:
    """Raise FormatError if a file has changed since the plan was made."""
    known = plan.files[path]
    status = os.stat(path)  # noqa: PTH116
    if (status.st_size, status.st_mtime_ns) != (known.size, known.mtime_ns):
        raise FormatError(f"{path}: has changed since the run began")


class arrow_errors:  # in lower case, because it is used like a function
    """Context that adds the file name to errors of Arrow, which have many types."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise OSError(error.errno, os.strerror(error.errno or 0), self._path) from error
        if isinstance(error, pa.ArrowException | OSError | UnicodeError):
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{self._path}: not a Parquet file, or broken ({words})") from error


def _check_columns(scorer: Scorer, path: Path, own: pa.Schema, first: pa.Schema | None) -> None:
    """Raise SpecError or FormatError unless a file's columns fit the model, and the first file."""
    try:
        scorer.schema(own)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error.__cause__
    for name in scorer.keep if first is not None else ():
        now, before = (field_of_values(schema.field(name)).type for schema in (own, first))  # type: ignore[union-attr]
        if now != before:
            what = f"{now}, but {before} in the first file"
            raise FormatError(f"{path}: {name!r}: {what}; must be the same in all files")


def _is_coded(name: str, kind: pa.DataType, groups: Iterable[Any]) -> bool:
    """Whether a column contains strings that Arrow can read as a dictionary."""
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    return is_text(kind) and all(
        chunk.physical_type == "BYTE_ARRAY" and _CODED.issuperset(chunk.encodings)
        for chunk in chunks
        if chunk.path_in_schema == name
    )


def _group_of(
    scorer: Scorer, schema: Any, group: Any, columns: Mapping[str, pa.DataType], coded: Collection[str]
) -> _Group:
    """Measure a row group; the string columns in `coded` are read as dictionaries."""
    total, at_once = 0, None
    numbers = {name: 0 for name in columns}
    for index in range(group.num_columns):
        chunk = group.column(index)
        name = next((name for name in columns if f"{chunk.path_in_schema}.".startswith(f"{name}.")), None)
        if name is not None:
            fixed = schema.column(index).length
            width = _WIDTHS.get(chunk.physical_type, fixed if 0 < fixed <= _WIDEST else None)
            total += chunk.num_values * (8 if width is None else width)  # bytes have offsets
            total += chunk.total_uncompressed_size if width is None else 0
            if width is None:  # a dictionary stores repeated strings once
                is_coded = name in coded or pa.types.is_dictionary(columns[name])
                limit = _CODED_AT_ONCE if is_coded else _AT_ONCE
                at_once = min(limit, at_once or limit)
            numbers[name] += chunk.num_values
    program = scorer.program
    sequence = next(field for field in program.fields if field.is_sequence)
    steps = numbers[sequence.column] // sequence.width
    for result in program.results:
        total += (steps if result.is_sequence else group.num_rows) * result.width * 8
    return _Group(group.num_rows, total, at_once)


class _Group(NamedTuple):
    """Row group: the memory of its rows and outputs, and the rows to decode at once if that is uncertain."""

    rows: int
    bytes: int
    at_once: int | None


def _parts(
    path: str, groups: Sequence[_Group], part_bytes: int, number: int, coded: tuple[str, ...]
) -> list[Part]:
    """Return the parts of a file, numbered from `number`: small row groups are joined, large ones split."""
    found: list[Part] = []
    first_row = 0
    for chosen in _join_small(path, groups, part_bytes):
        rows = sum(groups[index].rows for index in chosen)
        size = sum(groups[index].bytes for index in chosen)
        each = max(1, rows * part_bytes // max(size, part_bytes))
        limits = [rows_at_once for index in chosen if (rows_at_once := groups[index].at_once) is not None]
        limits.append(max(1, each // READS))
        # Few rows of a large group at once, because some may be far longer than the average.
        if size > 2 * part_bytes:
            limits.append(_AT_ONCE)
        for first in range(0, rows, each):
            own = min(each, rows - first)
            found.append(Part(number + len(found), path, chosen, first_row, first, own, min(limits), coded))
        first_row += rows
    return found


def _join_small(path: str, groups: Sequence[_Group], part_bytes: int) -> Iterator[tuple[int, ...]]:
    """Group row groups so that each group fits into a part; a larger row group is one group."""
    chosen: list[int] = []
    size = 0
    for index, group in enumerate(groups):
        if not group.rows:
            continue
        if group.bytes > _MOST_PARTS * part_bytes:
            what = f"row group {index} states an impossible size, {group.bytes} bytes; the file is broken"
            raise FormatError(f"{path}: {what}")
        if chosen and size + group.bytes > part_bytes:
            yield tuple(chosen)
            chosen, size = [], 0
        chosen.append(index)
        size += group.bytes
    if chosen:
        yield tuple(chosen)
