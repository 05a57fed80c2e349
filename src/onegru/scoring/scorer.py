"""`Scorer`: add the outputs of a model to the rows of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as data_field
from typing import Any

import numpy as np
import pyarrow as pa

from onegru.core.arguments import choice, flag, integer, shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import FormatError, OneGRUError, SpecError
from onegru.core.wording import count
from onegru.engines.native import MOST_THREADS, set_num_threads
from onegru.engines.select import engine_options
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.model import Model
from onegru.scoring.batches import MOST_STEPS, STEPS, Assembly, arrow_type, batches, padded, plain_lists
from onegru.scoring.columns import Field, Gathered, bytes_of, check_columns, find_bad_rows, step_counts
from onegru.scoring.parallel import BatchMap, batch_map
from onegru.scoring.programs.program import Program
from onegru.scoring.programs.source import open_program

# Hint at the end of a row's error.
_GOES_ON = "; on_error (--on-error) can skip such rows"

#: Handling of rows that cannot be run.
ON_ERROR = ("raise", "skip", "null")


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """Row that was not run.

    Attributes:
        row: its index in the input table.
        column: the column with the fault; "" if the model fails on the row.
        reason: the fault.
        kept: the row's values in the columns of `keep`.
    """

    row: int
    column: str
    reason: str
    kept: Mapping[str, Any] = data_field(default_factory=dict)

    __module__ = "onegru.scoring"


@dataclass(frozen=True, slots=True)
class Scored:
    """Result of `Scorer.run`.

    Attributes:
        table: the rows, in the order of the input: the columns of `keep`, then the outputs.
        skipped: the rows that were not run, in the same order.
        steps: the number of steps of all rows that were run.
        padding: the number of additional steps, because rows of a batch differ in length.
    """

    table: pa.Table
    skipped: tuple[SkippedRow, ...]
    steps: int
    padding: int

    __module__ = "onegru.scoring"


class Scorer:
    """Run a model over the rows of Arrow tables, whose sequences may have any lengths.

    A row's result does not depend on other rows. It is the same bit for bit if all operators are onegru's;
    see docs/guides/scoring.md for other operators. Each process loads the model on first use. Until then, and
    in pickles, a scorer consists of its arguments.

        scorer = Scorer("model.pt", inputs={"X": "events"}, keep=["id"])
        scored = scorer(table)
        dataset.map_batches(scorer, batch_format="pyarrow")  # Ray Data; or the class and its arguments
        frame.mapInArrow(scorer.batches, schema)              # Spark

    Args:
        model: the name of a file that `onegru.load` or `onegru.load_layers` reads; or a `GRU`, `Stack` or
            `Model`, which is pickled as a whole.
        inputs: the column of each of the model's inputs. Default for an input: the column of the same name. A
            layer's inputs are "X", "A" for attention scores, and "initial_h", the concatenated states of all
            layers and directions (default: zeros).
        outputs: names of outputs, or a column for each. Default: None (all outputs of a model; "Y_h", the
            last layer's last state, of a layer). A layer also has "Y", the state after every step, and
            "states", the last states of all layers.
        keep: columns to copy to the result.
        nodes: names of GRUs in a file with several, the lowest first. They are then run as a layer or stack,
            even if the file is a model.
        axes: for an input whose shape is ambiguous, the names of its axes in order, with one "batch" and one
            "time": {"X": ("batch", "time", "feature")}.
        pad: whether rows of different lengths share a batch of a whole model, which is faster if few rows
            have equal lengths. The model must have an input for lengths, and must ignore padding: a trial run
            checks it. Layers always pad.
        batch: steps of a batch, padding included, at most 131072. Default: None (8192).
        on_error: handling of a row that is invalid because it is null, empty, has another width, contains a
            null or NaN, or because the model fails on it: "raise" an error that names it, "skip" the row, or
            "null" for its outputs.
        weight_storage: storage type of the weights of float32 GRUs in a file, as in `onegru.GRU`. Default:
            None (float32). GRUs, stacks and models have their own storage.
        activation_storage: type to which activations are rounded, as in `onegru.GRU`.
        num_threads: number of threads of the process, as in `onegru.set_num_threads`. Default: None
            (unchanged). Each thread runs a batch of a layer. Meanwhile, other calls of onegru in the process
            use one thread each.

    Raises:
        SpecError: an argument is invalid. Arguments that depend on the model are checked when it is loaded.
    """

    __module__ = "onegru.scoring"

    def __init__(
        self,
        model: str | os.PathLike[str] | GRU | Stack | Model,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] = (),
        nodes: Sequence[str] = (),
        axes: Mapping[str, Sequence[str]] | None = None,
        pad: bool = False,
        batch: int | None = None,
        on_error: str = "raise",
        weight_storage: str | None = None,
        activation_storage: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        if not isinstance(model, str | os.PathLike | GRU | Stack | Model):
            raise SpecError.of(
                "model", f"{shown(model)}; must be the name of a file, a GRU, a Stack or a Model"
            )
        self._model = os.fspath(model) if isinstance(model, str | os.PathLike) else model
        self._inputs = columns_of("inputs", inputs or {})
        self._outputs = None if outputs is None else columns_of("outputs", outputs)
        self._keep = _names("keep", keep)
        self._nodes = _names("nodes", nodes)
        self._axes = {name: _names(f"axes[{name!r}]", order) for name, order in (axes or {}).items()}
        self._pad = flag("pad", pad)
        self._batch = None if batch is None else integer("batch", batch, 1, MOST_STEPS)
        self._on_error = choice("on_error", on_error, ON_ERROR)
        self._options = engine_options("auto", weight_storage, activation_storage)
        if weight_storage is not None and not isinstance(self._model, str):
            raise SpecError.of(
                "weight_storage",
                f"{weight_storage!r}; must be None if model is not a file; try "
                "with_storage of a layer, or onegru.load(…, weight_storage=…)",
            )
        self._num_threads = (
            None if num_threads is None else integer("num_threads", num_threads, 1, MOST_THREADS)
        )
        self._program: Program | None = None

    def __repr__(self) -> str:
        return f"Scorer({self._model!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_program": None}

    @property
    def model(self) -> str | GRU | Stack | Model:
        """The model, or the name of its file."""
        return self._model

    def arguments(self) -> dict[str, object]:
        """The arguments that results depend on, except the model, in JSON types."""
        return {
            "columns": self._inputs,
            "outputs": self._outputs,
            "keep": list(self._keep),
            "nodes": list(self._nodes),
            "axes": {name: list(order) for name, order in self._axes.items()},
            "pad": self._pad,
            "batch": self._batch,
            "on_error": self._on_error,
            "weight_storage": self._options.weight_storage,
            "activation_storage": self._options.activation_storage,
        }

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns that are copied to the result."""
        return self._keep

    @property
    def on_error(self) -> str:
        """Handling of rows that cannot be run."""
        return self._on_error

    @property
    def num_threads(self) -> int | None:
        """Number of threads of the process; None if it is unchanged."""
        return self._num_threads

    @property
    def program(self) -> Program:
        """The program of the model, loaded on first use.

        Raises:
            SpecError, FormatError, MissingExtraError, OSError: as `onegru.load` and `onegru.load_layers`;
            SpecError also if an input or output does not exist, or its axes are unknown.
        """
        if self._program is None:
            if self._num_threads is not None:
                set_num_threads(self._num_threads)
            self._program = open_program(
                self._model,
                self._inputs,
                self._outputs,
                self._nodes,
                self._axes,
                self._pad,
                self._batch or STEPS,  # a batch has no more rows than steps
                self._options,
            )
        return self._program

    def columns(self) -> tuple[str, ...]:
        """The columns that the scorer reads, each once; tables may have others."""
        return tuple(dict.fromkeys((*self._keep, *(field.column for field in self.program.fields))))

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of `scorer(table)` for tables of this schema.

        Raises:
            SpecError: a column is missing, duplicated, or has an unsuitable type.
        """
        check_columns(self.program.fields, self.program.lengths_input, schema)
        fields: list[pa.Field] = []
        for name in self._keep:
            indices = schema.get_all_field_indices(name)
            if len(indices) != 1:
                what = f"{len(indices)} columns of that name" if indices else "no such column"
                listed = ", ".join(map(repr, schema.names)) or "none"
                raise SpecError.of("keep", f"{name!r}: {what}; must be exactly one column; columns: {listed}")
            fields.append(schema.field(indices[0]).with_nullable(True))  # other files may have nulls
        for result in self.program.results:
            fields.append(pa.field(result.column, arrow_type(result)))
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"{name!r}: two columns would have this name; rename an output")
        return pa.schema(fields)

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """Score the rows of a table."""
        return self.run(rows).table

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score record batches one by one, as for Spark's `mapInArrow`. Raises the errors of a call.

        Lists of a fixed size become lists of any size, because Spark has no others.
        """
        for batch in batches:
            table = self(batch)
            yield from table.cast(plain_lists(table.schema)).to_batches()

    def run(self, rows: pa.Table | pa.RecordBatch) -> Scored:
        """Score the rows of a table, and return the skipped rows too.

        Args:
            rows: a table or record batch.

        Raises:
            SpecError, FormatError: as a call.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if not isinstance(rows, pa.Table):
            raise SpecError.of("rows", f"{shown(rows)}; must be a table or a record batch of pyarrow")
        gathered = Rows(self, rows.schema)
        gathered.add(rows)
        with batch_map(self.program.is_parallel) as run_all:
            return self.begin(gathered, run_all)()

    def begin(self, rows: Rows, run_all: BatchMap) -> Callable[[], Scored]:
        """Begin to score rows.

        Returns:
            a function that waits for the result. It raises FormatError if another runtime fails on all rows
            of a batch, or, with on_error="raise", on one row.
        """
        program = self.program
        fields = {name: item.ragged() for name, item in rows.fields.items()}
        lengths = next(fields[field.name].lengths for field in program.fields if field.is_sequence)
        assembly = Assembly(program.results, lengths)

        def try_rows(chosen: Array) -> OneGRUError | None:
            """Run rows; if that fails, run each half, down to the failing row."""
            own = lengths[chosen]
            longest = int(own[0])
            arrays = {
                field.name: padded(fields[field.name], chosen, longest)
                if field.is_sequence
                else fields[field.name].values[chosen]
                for field in program.fields
            }
            try:
                assembly.add(chosen, own, program.run(arrays, own))
            except (FormatError, SpecError) as error:  # a GRU node gets invalid values
                if len(chosen) == 1:
                    row_name = rows.skip(int(chosen[0]), str(error))
                    if self._on_error == "raise":
                        raise type(error)(f"{row_name}: {error}{_GOES_ON}") from error.__cause__
                    return error
                middle = len(chosen) // 2
                parts = [try_rows(part) for part in (chosen[:middle], chosen[middle:])]
                return error if None not in parts else None
            return None

        def run(chosen: Array) -> int:
            error = try_rows(chosen)
            if error is not None and len(chosen) > 1:  # otherwise the model fails
                raise error
            return int(lengths[chosen[0]]) * len(chosen)

        each = batches(lengths, self._batch or STEPS, equal=program.equal_lengths)
        counts = run_all(run, each)

        def end() -> Scored:
            steps = int(lengths.sum())
            padding = sum(counts) - steps
            # These functions refer to each other, so Python would keep the values for long.
            fields.clear()
            rows.fields.clear()
            return Scored(*rows.results(assembly.arrays()), steps, padding)

        return end


class Rows:
    """Rows that are scored together, gathered from successive tables."""

    def __init__(
        self, scorer: Scorer, schema: pa.Schema, prefix: str = "row ", first: int = 0, room: int = 0
    ) -> None:
        self._scorer = scorer
        self._schema = scorer.schema(schema)
        self._prefix, self._first = prefix, first  # of row numbers in messages, and the first number
        self.fields = {field.name: Gathered(field, room) for field in scorer.program.fields}
        self._kept: list[pa.Table] = []
        self._is_run: list[Array] = []
        self._skipped: dict[int, SkippedRow] = {}
        self.count = 0
        #: Approximate memory of the rows and their outputs.
        self.bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Add the rows of a table, and gather the values of valid ones."""
        fields, results = self._scorer.program.fields, self._scorer.program.results
        faults = find_faults(fields, rows)
        if faults and self._scorer.on_error == "raise":
            fault = faults[min(faults)]
            raise FormatError(
                f"{self._row_name(self.count + fault.row)}: {fault.column!r}: {fault.reason}{_GOES_ON}"
            )
        is_run = np.ones(len(rows), np.bool_)
        is_run[list(faults)] = False
        clean = rows.filter(pa.array(is_run)) if faults else rows
        counts, numbers = {True: 0, False: len(clean)}, 0
        for field in fields:
            counts[field.is_sequence] = self.fields[field.name].add(clean.column(field.column))
            numbers += counts[field.is_sequence] * field.width * numpy_dtype(field.dtype).itemsize
        self._kept.append(rows.select(list(self._scorer.keep)))
        self._is_run.append(is_run)
        for row, fault in faults.items():
            self._skipped[self.count + row] = replace(fault, row=self.count + row)
        self.count += len(rows)
        self.bytes += max(bytes_of(rows), bytes_of(self._kept[-1]) + numbers)
        self.bytes += sum(2 * 8 * counts[result.is_sequence] * result.width for result in results)

    def skip(self, index: int, reason: str) -> str:
        """Drop a row on which the model fails; return its name for messages."""
        row = int(np.flatnonzero(np.concatenate(self._is_run))[index])
        self._skipped[row] = SkippedRow(row, "", reason)
        return self._row_name(row)

    def _row_name(self, row: int) -> str:
        return f"{self._prefix}{self._first + row}"

    def results(self, outputs: Sequence[pa.Array]) -> tuple[pa.Table, tuple[SkippedRow, ...]]:
        """Return all rows with their outputs, and the skipped rows."""
        kept, is_run = pa.concat_tables(self._kept), np.concatenate(self._is_run)
        skipped, keep = self._skipped, self._scorer.keep
        listed: tuple[SkippedRow, ...] = ()
        if skipped:
            is_empty = np.zeros(len(is_run), np.bool_)
            is_empty[list(skipped)] = True
            values = kept.filter(pa.array(is_empty)).to_pylist() if keep else [{}] * len(skipped)
            listed = tuple(
                replace(skipped[row], kept=own) for row, own in zip(sorted(skipped), values, strict=True)
            )
            indices = np.cumsum(is_run) - 1  # indices of rows among the outputs
            if self._scorer.on_error == "skip":
                kept = kept.filter(pa.array(~is_empty)) if keep else kept
                indices, is_empty = indices[~is_empty], is_empty[~is_empty]
            outputs = [array.take(pa.array(indices, mask=is_empty)) for array in outputs]
        return pa.table([*kept.columns, *outputs], schema=self._schema), listed


def find_faults(fields: Sequence[Field], rows: pa.Table) -> dict[int, SkippedRow]:
    """Return the rows that cannot be run, each with its first fault."""
    found: dict[int, SkippedRow] = {}
    for field in fields:
        for row, reason in find_bad_rows(field, rows.column(field.column)).items():
            found.setdefault(row, SkippedRow(row, field.column, reason))
    sequences = [field for field in fields if field.is_sequence]
    if len(sequences) > 1:
        good = np.setdiff1d(np.arange(len(rows)), list(found))
        clean = rows.take(pa.array(good)) if found else rows
        lengths = [step_counts(field, clean.column(field.column)) for field in sequences]
        for field, own in zip(sequences[1:], lengths[1:], strict=True):
            for index in np.flatnonzero(own != lengths[0]):
                steps = count(own[index], "step")
                reason = f"{steps}; must be {lengths[0][index]}, as {sequences[0].column!r}"
                row = int(good[index])
                found.setdefault(row, SkippedRow(row, field.column, reason))
    return found


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """Check and return names, each once."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise SpecError.of(argument, f"{shown(names)}; must be a list of names")
    listed = tuple(names)
    for name in listed:
        if not isinstance(name, str) or listed.count(name) > 1:
            raise SpecError.of(argument, f"{shown(name)}; must be names without duplicates")
    return listed


def columns_of(argument: str, columns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return a column for each name; a list means columns of the same names."""
    if not isinstance(columns, Mapping):
        return {name: name for name in _names(argument, columns)}
    for name, column in columns.items():
        if not isinstance(name, str) or not isinstance(column, str):
            raise SpecError.of(argument, f"{shown(name)}: {shown(column)}; must map names to column names")
    return dict(columns)
