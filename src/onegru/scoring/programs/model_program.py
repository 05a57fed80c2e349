"""Run a whole model over batches of rows; a trial run finds the axes of its outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from onegru.core.compare import why_inconclusive
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import FormatError, OneGRUError, SpecError, SpecWarning, callers_level
from onegru.core.wording import count, shape_words
from onegru.dataflow.walk import all_flows
from onegru.formats.graph import by_name
from onegru.models.inputs.random import DISTRIBUTIONS, draw_numbers
from onegru.models.model import Model
from onegru.operators import onnx, openvino
from onegru.scoring.columns import Field
from onegru.scoring.programs.model_inputs import Axes, ModelInputs
from onegru.scoring.programs.program import check_names
from onegru.timeline.read import read_model_flow

# Sizes of two runs that reveal an output's axes: rows and steps. No size occurs twice.
_ROWS, _STEPS = (2, 5), (3, 7)
# Largest allowed difference between the outputs of a row in a batch and by itself. It is far above rounding,
# and far below the effect of a mean over padding or over rows.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
_RANDOM = {*onnx.RANDOM, *openvino.RANDOM}
_BATCH = 33  # rows of the batch in that comparison


class ModelProgram:
    """Whole model.

    Its sequences are the inputs with a dynamic number of steps. Their axes of steps and rows follow from the
    GRU nodes that use the input, from the names of dimensions, or from `axes`. The lengths input gets the
    lengths of the sequences. Rows of different lengths share a batch only with `pad`, because the file does
    not show with certainty how the model treats padding.
    """

    is_parallel = False  # the other runtime has its own threads

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str] | None,
        axes: Mapping[str, Sequence[str]],
        pad: bool,
        most_rows: int = _BATCH,
    ) -> None:
        self._model = model
        self._inputs = ModelInputs(model, inputs, axes)
        self.fields = self._inputs.fields
        if not any(field.is_sequence for field in self.fields):
            raise SpecError(f"{model.path}: must have an input with a dynamic number of steps")
        self._axes: dict[str, Axes] = {}
        self.results = self._find_results(outputs)
        self.equal_lengths = not pad
        self.lengths_input = None if pad else self._inputs.lengths_input
        if pad:
            self._check_padding()
        if most_rows > 1:
            self._check_rows(min(_BATCH, most_rows))

    def run(self, arrays: Mapping[str, Array], lengths: Array) -> Mapping[str, Array]:
        """Run a batch; see `Program`."""
        outputs = self._model.run(self._inputs.fed(arrays, lengths))
        found: dict[str, Array] = {}
        for result in self.results:
            found[result.name] = self._checked(result, np.asarray(outputs[result.name]), lengths)
        return found

    def _checked(self, result: Field, array: Array, lengths: Array) -> Array:
        """Check and return an output, [T, B, width] or [B, width]."""
        front = self._axes[result.name].front
        sizes = [int(lengths.max()), len(lengths)][-len(front) :]
        fits = array.ndim > max(front) and [array.shape[axis] for axis in front] == sizes
        if not fits or array.size != math.prod([*sizes, result.width]):
            fed = f"{count(len(lengths), 'row')} of {count(int(lengths.max()), 'step')}"
            must = f"{count(result.width, 'number')} for each {'step' if len(front) > 1 else 'row'}"
            raise FormatError(
                f"{self._model.path}: output {result.name!r}: shape {shape_words(array.shape)} for {fed}; "
                f"must have {must}"
            )
        return np.moveaxis(array, front, range(len(front))).reshape(*sizes, result.width)

    # Trial runs

    def _draw(self, rows: int, steps: int, way: str = next(iter(DISTRIBUTIONS))) -> dict[str, Array]:
        """Return random values of all fields for `run`, generated in one of `DISTRIBUTIONS`."""
        rng = np.random.default_rng(0)
        return {
            field.name: draw_numbers(
                rng,
                numpy_dtype(field.dtype),
                (*([steps] if field.is_sequence else []), rows, field.width),
                way,
            )
            for field in self.fields
        }

    def _find_results(self, wanted: Mapping[str, str] | None) -> tuple[Field, ...]:
        """Return the outputs, with their axes, which two runs of different sizes reveal."""
        known = by_name(self._model.outputs)
        if wanted is not None:
            check_names("outputs", wanted, known)
        shapes: list[dict[str, Any]] = []
        for rows, steps in zip(_ROWS, _STEPS, strict=True):
            lengths = np.full(rows, steps, np.int64)
            try:
                shapes.append(self._model.run(self._inputs.fed(self._draw(rows, steps), lengths)))
            except OneGRUError as error:
                raise SpecError(
                    f"{self._model.path}: cannot be run on {rows} rows of {steps} steps ({error}); if its "
                    "axes have another order, specify them with axes (--axes X=batch,time,feature)"
                ) from error.__cause__
        columns = {name: name for name in known} if wanted is None else wanted
        results: list[Field] = []
        for name, column in columns.items():
            first, second = (np.asarray(trial[known[name].name]) for trial in shapes)
            sizes = list(zip(first.shape, second.shape, strict=False))
            counts = [sizes.count(_ROWS), sizes.count(_STEPS), sum(a == b for a, b in sizes)]
            fits = first.ndim == second.ndim == sum(counts) and counts[0] == 1 and counts[1] <= 1
            if not fits or (first.dtype.kind not in "biuf" and first.dtype.name != "bfloat16"):
                what = f"{first.dtype.name} {shape_words(first.shape)} for 2 rows of 3 steps"
                what = f"output {name!r}: {what}; must be numbers with one axis for rows"
                if wanted is not None:
                    raise SpecError(what)
                what += ", so the results do not contain it"
                warnings.warn(f"{self._model.path}: {what}", SpecWarning, stacklevel=callers_level())
                continue
            axes = Axes(sizes.index(_ROWS), sizes.index(_STEPS) if counts[1] else None)
            self._axes[known[name].name] = axes
            shape = tuple(a for axis, (a, _) in enumerate(sizes) if axis not in axes and a != 1)
            dtype = first.dtype.name
            results.append(Field(known[name].name, column, dtype, shape, axes.time is not None))
        if not results:
            raise SpecError(f"{self._model.path}: must have an output with an axis for rows")
        return tuple(results)

    def _check_padding(self) -> None:
        """Raise SpecError if a short row has other outputs in a batch with a long row."""
        if self._inputs.lengths_input is None:
            raise SpecError.of(
                "pad", f"{self._model.path} has no input for the lengths, or a column supplies it; remove it"
            )
        lengths = np.array([_STEPS[0] + 4, _STEPS[0]])
        try:
            found = self._find_influence(lengths, 1)
        except (OneGRUError, ValueError) as error:
            what = f"cannot be run on rows of different lengths ({error})"
            raise SpecError.of("pad", f"{self._model.path}: {what}; remove it") from error
        if found is not None:
            raise SpecError.of("pad", f"{self._model.path}: {found} its padding; remove it")

    def _check_rows(self, rows: int) -> None:
        """Raise SpecError if a row has other outputs in a batch with other rows."""
        lengths = np.full(rows, _STEPS[1])
        remedy = "pass batch=1 (--batch 1) to run one row at a time"
        for row in {0, 1, rows - 1}:
            try:
                found = self._find_influence(lengths, row)
            except (OneGRUError, ValueError) as error:
                what = f"cannot be run on {rows} rows of {_STEPS[1]} steps ({error})"
                raise SpecError(f"{self._model.path}: {what}; {remedy}") from error
            if found is not None:
                raise SpecError(f"{self._model.path}: {found} the other rows of its batch; {remedy}")

    def _find_influence(self, lengths: Array, row: int) -> str | None:
        """Return how a random row's batch influences its outputs; None if it does not."""
        steps, own_lengths = int(lengths[row]), lengths[row : row + 1]
        for way in DISTRIBUTIONS:  # until outputs are finite, because NaN equals any NaN
            arrays, own = self._draw_batch(lengths, row, way)
            with suppress(OneGRUError, ValueError):
                if not why_inconclusive(self.run(own, own_lengths)):
                    break
        else:
            arrays, own = self._draw_batch(lengths, row)
        together, exact = self.run(arrays, lengths), self.run(own, own_lengths)
        if why := why_inconclusive(exact):
            return f"{why} on random rows, so onegru cannot test whether a row depends on"
        for result in self.results:
            far, near = together[result.name], exact[result.name]
            finite = far[np.isfinite(far.astype(np.float64))]
            least = _ABSOLUTE * min(1.0, float(np.max(np.abs(finite), initial=0)))
            far, near = (far[:steps, row], near[:, 0]) if result.is_sequence else (far[row], near[0])
            far, near = far.astype(np.float64), near.astype(np.float64)
            if not np.allclose(far, near, rtol=_RELATIVE, atol=least, equal_nan=True):
                if names := self._random_operators():
                    return f"has random operators ({names}), so onegru cannot test whether a row depends on"
                return f"output {result.name!r} of a row depends on"
        return None

    def _random_operators(self) -> str:
        """Name an operator of each kind whose results differ between runs; empty without any."""
        read, found = read_model_flow(self._model.graph), dict[str, str]()
        for flow in all_flows(read.flow) if read is not None else ():
            found |= {op.label: op.name or op.output(0) for op in flow.ops if op.label in _RANDOM}
        return ", ".join(f"{kind} {name!r}" for kind, name in found.items())

    def _draw_batch(self, lengths: Array, row: int, *way: str) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return random values for rows of these lengths, and those of one row."""
        arrays = self._draw(len(lengths), int(lengths.max()), *way)
        steps, rows = slice(int(lengths[row])), slice(row, row + 1)
        own = {
            field.name: arrays[field.name][(steps, rows) if field.is_sequence else rows]
            for field in self.fields
        }
        return arrays, own
