"""Read the footers of Parquet files in a child process first, because broken ones can crash it.

PyArrow does not declare that `RowGroupMetaData.column` can raise, so an exception ends the process (26.0).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from onegru.core.errors import FormatError
from onegru.system.child_process import child_folder, run_child, run_limits

# Seconds per file, and the minimum for all files together.
_EACH, _LEAST = 1.0, 60.0


def check_footers(paths: Sequence[Path]) -> None:
    """Raise FormatError for the first file whose footer crashes the process that reads it."""
    with child_folder() as folder:
        limits = run_limits(_LEAST + _EACH * len(paths))
        # In a file, because the system limits the length of an argument.
        (folder / "paths").write_text(json.dumps([str(path.absolute()) for path in paths]))
        ended = run_child(__name__, [], folder, limits)
        begun = folder / "begun"
        index = begun.stat().st_size - 1 if begun.exists() else -1
    if ended.code != 0:
        name = f"{paths[index]}: " if index >= 0 else ""
        if ended.code is None:
            raise FormatError(f"{name}its footer takes too long to read; copy it to a faster disk")
        raise FormatError(f"{name}not a Parquet file, or broken (its footer ends the process that reads it)")


def main(_: Sequence[str]) -> None:
    """Read footers as a plan does; write one byte to `begun` for each file."""
    with Path("begun").open("wb", buffering=0) as begun:
        for path in json.loads(Path("paths").read_text()):
            begun.write(b".")
            try:
                metadata = pq.ParquetFile(path, pre_buffer=False).metadata
                for group in map(metadata.row_group, range(metadata.num_row_groups)):
                    for index in range(group.num_columns):
                        _ = group.column(index).encodings
            except Exception:  # the plan raises it again with the file's name
                continue
