"""Build tables of sequences, in every Arrow type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onegru.core.dtypes import Array

LENGTHS = (3, 1, 7, 3, 12, 2, 1, 5)


def sequences(
    I: int = 5, lengths: Sequence[int] = LENGTHS, seed: int = 0, dtype: Any = np.float32
) -> list[Array]:
    """Return random sequences [T, I]."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((length, I)).astype(dtype) for length in lengths]


def column(rows: Sequence[Array], form: str = "list<fixed>", kind: Any = None) -> pa.Array:
    """Return sequences as a column with values of a type."""
    kind = pa.from_numpy_dtype(rows[0].dtype) if kind is None else kind
    width = rows[0].shape[1]
    types = {
        "list<fixed>": pa.list_(pa.list_(kind, width)),
        "list<list>": pa.list_(pa.list_(kind)),
        "large": pa.large_list(pa.large_list(kind)),
        "list": pa.list_(kind),
        "fixed<list>": pa.list_(pa.list_(kind), len(rows[0])),
        "fixed": pa.list_(kind, rows[0].size),
    }
    if form == "tensor":
        stored = pa.array([row.ravel() for row in rows], types["fixed"])
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(kind, rows[0].shape), stored)
    flat = form in ("list", "fixed")
    return pa.array([row.ravel() if flat else row.tolist() for row in rows], types[form])


def table(rows: Sequence[Array], form: str = "list<fixed>") -> pa.Table:
    """Return a table of sequences "X", with an "id" and a "day"."""
    count = len(rows)
    days = [f"day {index % 3}" for index in range(count)]
    return pa.table({"id": pa.array(range(count)), "day": days, "X": column(rows, form)})


def values(column: Any) -> list[Array]:
    """Return the rows of a column of results."""
    return [np.array(row) for row in column.to_pylist()]


def write_files(folder: Path, rows: Sequence[Array], files: int, row_group_size: int = 50) -> None:
    """Write a folder of Parquet files with these rows, in order."""
    folder.mkdir()
    whole = table(rows)
    each = -(-len(rows) // files)
    for index in range(files):
        piece = whole.slice(index * each, each)
        pq.write_table(piece, folder / f"{index:03}.parquet", row_group_size=row_group_size)


def read_results(folder: Path) -> pa.Table:
    """Return the rows of a folder of results, in order."""
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))
