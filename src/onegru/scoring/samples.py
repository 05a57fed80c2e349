"""Read rows of Parquet files as inputs of a model: samples for `onegru.quantize`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, SpecError, prefixed_errors
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.load import load
from onegru.models.model import Model
from onegru.scoring.columns import Field, Gathered, check_columns
from onegru.scoring.dataset import arrow_errors, find_files, open_parquet
from onegru.scoring.programs.model_inputs import ModelInputs
from onegru.scoring.programs.program import LayersProgram
from onegru.scoring.scorer import columns_of, find_faults

#: Default number of rows.
ROWS = 100

_AT_ONCE = 32  # rows that are decoded at once


def read_samples(
    model: str | os.PathLike[str] | GRU | Stack | Model,
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    inputs: Mapping[str, str] | Sequence[str] | None = None,
    axes: Mapping[str, Sequence[str]] | None = None,
    rows: int = ROWS,
) -> list[dict[str, Any]]:
    """Read the first rows of Parquet files as samples for `onegru.quantize`, each for a separate run.

    Args:
        model: the model to quantize: a model or its file, a layer or a stack.
        files: a Parquet file, a folder of them, a pattern such as "logs/*.parquet", or a list of these.
        inputs: the column of each of the model's inputs, as for `Scorer`; states without a column are zeros.
        axes: axes of a model's inputs, as for `Scorer`, except that "batch" and "time" may both be missing.
        rows: the largest number of rows. Default: 100.

    Raises:
        SpecError: an argument is invalid, or a column is missing or does not fit.
        FormatError: a file is broken, has a row that cannot be run, or no file has a row.
        OSError: a file cannot be read.
    """
    integer("rows", rows, 1)
    if not isinstance(model, str | os.PathLike | GRU | Stack | Model):
        raise SpecError.of("model", f"{shown(model)}; must be a model, its file, a GRU or a Stack")
    source = load(model) if isinstance(model, str | os.PathLike) else model
    columns = columns_of("inputs", inputs or {})
    feeds: ModelInputs | LayersProgram
    if isinstance(source, Model):
        feeds = ModelInputs(source, columns, axes or {}, single_rows=True)
    elif axes:
        raise SpecError.of("axes", "has no effect with layers, because their axes are known; remove it")
    else:
        feeds = LayersProgram(source, columns, None)
    paths = find_files([files] if isinstance(files, str | os.PathLike) else files, None)
    found: list[dict[str, Any]] = []
    for path in paths:
        left = rows - len(found)
        for arrays, lengths in _rows(path, feeds.fields, feeds.lengths_input, left) if left else ():
            found.append(feeds.fed(arrays, lengths))
    if not found:
        raise FormatError(f"{', '.join(map(str, paths))}: no rows; must have at least one")
    return found


def _rows(
    path: Path, fields: Sequence[Field], lengths_input: str | None, most: int
) -> Iterator[tuple[dict[str, Array], Array]]:
    """Yield the first rows of a file, each as a separate batch for `Program.run`."""
    names = list(dict.fromkeys(field.column for field in fields))
    with open_parquet(str(path)) as file, arrow_errors(str(path)):
        with prefixed_errors(f"{path}: "):
            check_columns(fields, lengths_input, file.schema_arrow)
        first = 0
        for batch in file.iter_batches(min(most, _AT_ONCE), columns=names, use_threads=False):
            batch.validate(full=True)
            table = pa.Table.from_batches([batch.slice(0, most - first)]).select(names)
            if faults := find_faults(fields, table):
                fault = faults[min(faults)]
                raise FormatError(f"{path}: row {first + fault.row}: {fault.column!r}: {fault.reason}")
            gathered = {field: Gathered(field) for field in fields}
            for field, item in gathered.items():
                item.add(table.column(field.column))
            found = [(field, item.ragged()) for field, item in gathered.items()]
            for row in range(len(table)):
                arrays, lengths = {}, np.ones(1, np.int64)
                for field, all_rows in found:
                    length = all_rows.lengths[row]
                    values = all_rows.values[all_rows.starts[row] :][:length]
                    arrays[field.name] = values[:, None] if field.is_sequence else values
                    lengths = np.array([length]) if field.is_sequence else lengths
                yield arrays, lengths
            first += len(table)
            if first == most:
                return
