"""Write the results of a run to a folder, and find the missing parts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from onegru.core.errors import FormatError, SpecError
from onegru.core.wording import count
from onegru.scoring.dataset import arrow_errors
from onegru.scoring.scorer import SkippedRow
from onegru.system.atomic_write import write_files
from onegru.system.bounded import parse_json
from onegru.system.file_lock import try_lock

_MANIFEST = "_onegru.json"
_LOCK = "_onegru.lock"
_SUCCESS = "_SUCCESS"
_ERRORS = "_errors"
_LONGEST_VALUE = 200  # characters of a kept column's value
_KEY = b"onegru"  # key of the counts in a part's metadata
_PART = re.compile(r"part-[0-9]{6,}\.parquet")
# Temporary file of an unfinished part.
_LEFTOVER = re.compile(r"\.(part-|_onegru|_SUCCESS).*\.[0-9a-f]{16}\.tmp")


class Folder:
    """Folder of results.

    Each part `part-000000.parquet`, … is written atomically. `_errors/` has a file for each part with skipped
    rows. `_onegru.json` identifies the run, and `_SUCCESS` marks it as complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if necessary, and lock it against other runs."""
        if self.path.exists() and not self.path.is_dir():
            raise SpecError(f"{self.path}: not a folder; must be a folder, or not exist")
        self.path.mkdir(parents=True, exist_ok=True)
        others = [item.name for item in self.path.iterdir() if item.name not in (_LOCK, _MANIFEST)]
        if not (self.path / _MANIFEST).exists() and any(not _is_leftover(name) for name in others):
            raise SpecError(
                f"{self.path}: has other files; must be new, empty, or the folder of an earlier run"
            )
        with (self.path / _LOCK).open("a") as lock:
            if not try_lock(lock):
                raise SpecError(f"{self.path}: another run is writing to it")
            yield

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the earlier run in this folder; None if it has no written part."""
        path = self.path / _MANIFEST
        try:
            found = parse_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise FormatError(f"{path}: not the record of a run ({error})") from error
        if not isinstance(found, dict):
            raise FormatError(f"{path}: not the record of a run")
        return found if any(_PART.fullmatch(item.name) for item in self.path.iterdir()) else None

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Record the run's manifest."""
        text = json.dumps(manifest, indent=1).encode()
        write_files([(self.path / _MANIFEST, lambda file: file.write(text))])

    def clear_leftovers(self) -> None:
        """Remove unfinished files of a run that was killed."""
        for folder in (self.path, self.path / _ERRORS):
            for item in folder.iterdir() if folder.is_dir() else ():
                # The errors of a part are written before the part.
                is_early = folder != self.path and not (self.path / f"{item.stem}.parquet").exists()
                if _is_leftover(item.name) or (is_early and _PART.fullmatch(f"{item.stem}.parquet")):
                    item.unlink(missing_ok=True)

    def part(self, number: int) -> Path:
        """Return the file of a part."""
        return self.path / f"part-{number:06}.parquet"

    def done(self, parts: int) -> set[int]:
        """Return the numbers of the existing parts."""
        names = {item.name for item in self.path.iterdir()}
        return {number for number in range(parts) if self.part(number).name in names}

    def write_part(
        self, number: int, schema: pa.Schema, windows: Iterator[tuple[pa.Table, list[dict[str, object]]]]
    ) -> None:
        """Write a part atomically."""
        repeats = [name for name in schema.names if _may_repeat(schema.field(name).type)]

        def write(file: IO[bytes]) -> None:
            skipped: list[dict[str, object]] = []
            # Outputs rarely repeat, so a dictionary would not help.
            with pq.ParquetWriter(file, schema, use_dictionary=repeats, write_statistics=repeats) as writer:
                for table, more in windows:
                    writer.write_table(table)
                    skipped += more
                writer.add_key_value_metadata({_KEY: json.dumps({"skipped": len(skipped)})})
            if skipped:
                # Written before the part, so that each part has its errors.
                lines = "".join(f"{json.dumps(item)}\n" for item in skipped).encode()
                (self.path / _ERRORS).mkdir(exist_ok=True)
                target = self.path / _ERRORS / f"part-{number:06}.jsonl"
                write_files([(target, lambda errors: errors.write(lines))])

        write_files([(self.part(number), write)])

    def counts(self, number: int, rows: int, skips: bool) -> tuple[int, int]:
        """Return the number of rows and of skipped rows of an existing part."""
        path = str(self.part(number))
        with arrow_errors(path):
            metadata = pq.read_metadata(path)
        entry = (metadata.metadata or {}).get(_KEY)
        if entry is None:
            raise FormatError(f"{path}: not a part of this run; remove it")
        skipped = int(json.loads(entry)["skipped"])
        if metadata.num_rows != (must := rows - skipped if skips else rows):
            raise FormatError(f"{path}: {count(metadata.num_rows, 'row')}; must be {must}; remove it")
        return metadata.num_rows, skipped

    def success(self) -> dict[str, Any]:
        """Return the recorded summary of a complete run."""
        path = self.path / _SUCCESS
        try:
            found = parse_json(path.read_bytes())
            return {"rows": int(found["rows"]), "skipped": int(found["skipped"])}
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: not the record of a complete run ({error})") from error

    def remove_success(self) -> None:
        """Remove the mark of a complete run, because parts are missing."""
        (self.path / _SUCCESS).unlink(missing_ok=True)

    def succeed(self, summary: Mapping[str, Any]) -> None:
        """Record that the run is complete."""
        text = json.dumps(summary).encode()
        write_files([(self.path / _SUCCESS, lambda file: file.write(text))])

    @property
    def is_complete(self) -> bool:
        """Whether the run is complete."""
        return (self.path / _SUCCESS).exists()


def record(path: str, row: int, item: SkippedRow) -> dict[str, object]:
    """Return the record of a skipped row."""
    kept = {"kept": {name: _in_json(value) for name, value in item.kept.items()}} if item.kept else {}
    return {"file": path, "row": row, "column": item.column, "reason": item.reason} | kept


def _in_json(value: object) -> object:
    """Return a value for JSON, else as text; long values are truncated."""
    is_plain = (
        value is None or isinstance(value, bool | int) or (type(value) is float and math.isfinite(value))
    )
    return value if is_plain else str(value)[:_LONGEST_VALUE]


def _is_leftover(name: str) -> bool:
    return _LEFTOVER.fullmatch(name) is not None


def _may_repeat(kind: pa.DataType) -> bool:
    """Whether values of this type may repeat, so that a dictionary helps."""
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    return not pa.types.is_floating(kind)


def refuse_differences(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise SpecError unless two runs are the same; the message names the difference."""
    for name in now:
        if before.get(name) == now[name]:
            continue
        old, new = before.get(name), now[name]
        what = f"{name}: {_short(new)}, but {_short(old)} before"
        if name == "inputs" and isinstance(old, list):
            what = _files_differ(old, new)
        elif name == "model":
            what = "model: another one, or its file has changed"
        raise SpecError(f"{folder}: contains results of another run: {what}; use another folder")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _files_differ(old: list[Any], new: list[Any]) -> str:
    names = [item.get("path") for item in new]
    earlier = [item.get("path") for item in old]
    if names == earlier:
        changed = next(item["path"] for item, other in zip(new, old, strict=True) if item != other)
        return f"inputs: {changed} has changed"
    added = [name for name in names if name not in earlier]
    gone = [name for name in earlier if name not in names]
    if added:
        return f"inputs: {added[0]} is new"
    if gone:
        return f"inputs: {gone[0]} is missing"
    return f"inputs: {count(len(new), 'file')} in another order"
