"""A whole model over batches of rows: which of its axes are rows and steps, by its file and by trying it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import OneGRUError, SpecError
from onegru.core.wording import shape_words
from onegru.formats.graph import TensorInfo, by_name
from onegru.models.model import Model
from onegru.models.random_inputs import input_letters
from onegru.scoring.columns import Field
from onegru.scoring.program import check_names

_BATCH = {"batch", "batch_size", "batchsize", "b", "n", "bs"}
_TIME = {"time", "times", "t", "seq", "seq_len", "seq_length", "sequence", "sequence_length", "length"}
_TIME |= {"steps", "time_steps", "timesteps", "num_steps", "frames", "num_frames"}
_LENGTHS = {"sequence_lens", "sequence_lengths", "seq_lens", "seq_lengths", "seq_len", "lens", "lengths"}
_LENGTHS |= {"length", "input_lengths", "x_lengths", "x_lens"}

# Sizes of two runs that reveal an output's axes: rows and steps. No size occurs twice.
_ROWS, _STEPS = (2, 5), (3, 7)
# How far the outputs of a row may be apart, padded and alone, where padding is said not to matter: far more
# than rounding, far less than a mean over steps that are not there.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


class _Axes(NamedTuple):
    """Where the rows and the steps of a tensor are; time is None if it has none."""

    batch: int
    time: int | None


class ModelProgram:
    """A whole model.

    Its sequences are the inputs whose steps have an open number; which axis that is, and which one is the
    rows, follows from the GRU nodes that take the input, from the names of dimensions, or from `axes`. An
    input of lengths gets the lengths of the sequences. Rows of different lengths share a batch only with
    `pad`: what a model does with the steps that are not there, its file does not say for certain.

    Args:
        model: the model.
        inputs: the columns of its inputs, by name.
        outputs: the columns of its outputs, by name; None for all that have one value for each row.
        axes: of inputs, as in `Scorer`.
        pad: whether the model ignores what comes after the end of a row.

    Raises:
        SpecError: there is no such input or output, it is unclear or unfit what its axes are, or the model
            does not ignore that.
    """

    is_parallel = False  # the other runtime has threads of its own

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str] | None,
        axes: Mapping[str, Sequence[str]],
        pad: bool,
    ) -> None:
        self._model = model
        infos = by_name(model.inputs)
        check_names("inputs", inputs, infos)
        check_names("axes", {name: "" for name in axes}, infos)
        self._lengths = _find_lengths(model, {infos[name].name for name in inputs})
        columns = {infos[name].name: column for name, column in inputs.items()}
        told = {infos[name].name: order for name, order in axes.items()}
        known = _dimensions(model, self._lengths, told)
        fields: list[Field] = []
        self._axes: dict[str, _Axes] = {}
        for info in model.inputs:
            may_lack = info.optional or info.name in model._graph.zero_inputs
            if info is self._lengths or (may_lack and info.name not in columns):
                continue
            place = _place(model, info, told.get(info.name), known)
            self._axes[info.name] = place
            shape = _rest(model, info, place)
            column = columns.get(info.name, info.name)
            fields.append(Field(info.name, column, info.dtype, shape, place.time is not None))
        if not any(field.is_sequence for field in fields):
            raise SpecError(f"{model.path}: no input has an open number of steps; at least one must")
        self.fields = tuple(fields)
        self._places: dict[str, _Axes] = {}
        self.results = self._find_results(outputs)
        self.equal_lengths = not pad
        if pad:
            self._check_padding()

    def run(self, arrays: Mapping[str, Array], lengths: Array) -> Mapping[str, Array]:
        """Run a batch; see `Program`."""
        outputs = self._model.run(self._fed(arrays, lengths))
        found: dict[str, Array] = {}
        for result in self.results:
            place, array = self._places[result.name], outputs[result.name]
            front = (place.batch,) if place.time is None else (place.time, place.batch)
            array = np.moveaxis(array, front, range(len(front)))
            found[result.name] = array.reshape(*array.shape[: len(front)], result.width)
        return found

    def _fed(self, arrays: Mapping[str, Array], lengths: Array) -> dict[str, Array]:
        """The model's inputs, in its own shapes."""
        fed: dict[str, Array] = {}
        for field in self.fields:
            place, array = self._axes[field.name], arrays[field.name]
            front = array.shape[:2] if field.is_sequence else array.shape[:1]
            array = array.reshape(*front, *field.shape)
            back = (place.batch,) if place.time is None else (place.time, place.batch)
            fed[field.name] = np.ascontiguousarray(np.moveaxis(array, range(len(back)), back))
        if self._lengths is not None:
            fed[self._lengths.name] = lengths.astype(self._lengths.dtype)
        return fed

    # ---- trials

    def _draw(self, rows: int, steps: int) -> dict[str, Array]:
        """Random values of all fields, as `run` takes them."""
        rng = np.random.default_rng(0)
        return {
            field.name: (
                rng.integers(0, 2, (*([steps] if field.is_sequence else []), rows, field.width))
                if numpy_dtype(field.dtype).kind in "biu"
                else rng.standard_normal((*([steps] if field.is_sequence else []), rows, field.width))
            ).astype(numpy_dtype(field.dtype))
            for field in self.fields
        }

    def _find_results(self, wanted: Mapping[str, str] | None) -> tuple[Field, ...]:
        """The outputs, with their axes as two runs of different sizes show them."""
        known = by_name(self._model.outputs)
        if wanted is not None:
            check_names("outputs", wanted, known)
        shapes: list[dict[str, Any]] = []
        for rows, steps in zip(_ROWS, _STEPS, strict=True):
            lengths = np.full(rows, steps, np.int64)
            try:
                shapes.append(self._model.run(self._fed(self._draw(rows, steps), lengths)))
            except OneGRUError as error:
                raise SpecError(
                    f"{self._model.path}: cannot be run on {rows} rows of {steps} steps ({error}); axes "
                    "(--axes X=batch,time,feature) may say which axes they are"
                ) from None
        columns = {name: name for name in known} if wanted is None else wanted
        results: list[Field] = []
        for name, column in columns.items():
            first, second = (np.asarray(trial[known[name].name]) for trial in shapes)
            sizes = list(zip(first.shape, second.shape, strict=False))
            counts = [sizes.count(_ROWS), sizes.count(_STEPS), sum(a == b for a, b in sizes)]
            fits = first.ndim == second.ndim == sum(counts) and counts[0] == 1 and counts[1] <= 1
            if not fits or (first.dtype.kind not in "biuf" and first.dtype.name != "bfloat16"):
                if wanted is None:
                    continue
                what = f"{first.dtype.name} {shape_words(first.shape)} for 2 rows of 3 steps"
                raise SpecError(f"output {name!r}: {what}; must be numbers with one axis of rows")
            place = _Axes(sizes.index(_ROWS), sizes.index(_STEPS) if counts[1] else None)
            self._places[known[name].name] = place
            shape = tuple(a for axis, (a, _) in enumerate(sizes) if axis not in place and a != 1)
            dtype = first.dtype.name
            results.append(Field(known[name].name, column, dtype, shape, place.time is not None))
        if not results:
            raise SpecError(f"{self._model.path}: no output has an axis of rows; at least one must")
        return tuple(results)

    def _check_padding(self) -> None:
        """Raise SpecError if a short row beside a long one gives something else than alone."""
        if self._lengths is None:
            raise SpecError(f"pad: {self._model.path} has no input of lengths; must be left out")
        rows, steps = _ROWS[0], _STEPS[0]
        arrays = self._draw(rows, steps + 4)
        lengths = np.array([steps + 4, steps])
        alone = {
            field.name: arrays[field.name][:steps, 1:] if field.is_sequence else arrays[field.name][1:]
            for field in self.fields
        }
        try:
            padded, exact = self.run(arrays, lengths), self.run(alone, lengths[1:])
        except (OneGRUError, ValueError) as error:
            what = f"cannot be run on rows of different lengths ({error})"
            raise SpecError(f"pad: {self._model.path}: {what}; must be left out") from None
        for result in self.results:
            far, near = padded[result.name], exact[result.name]
            far, near = (far[:steps, 1], near[:, 0]) if result.is_sequence else (far[1], near[0])
            far, near = far.astype(np.float64), near.astype(np.float64)
            if not np.allclose(far, near, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True):
                what = f"output {result.name!r} of a row depends on how it is padded"
                raise SpecError(f"pad: {self._model.path}: {what}; must be left out")


def _find_lengths(model: Model, given: set[str]) -> TensorInfo | None:
    """The input that takes the lengths of sequences; None if there is none, or if it has a column."""
    taken = {
        gru._step.inputs.get(port.name, "")
        for gru in model.gru_nodes
        for port in gru._step.ports
        if port.role == "sequence_lens"
    }
    for info in model.inputs:
        is_vector = info.dtype in ("int32", "int64") and len(info.shape or ()) == 1
        if is_vector and info.name not in given and (info.value in taken or info.name.lower() in _LENGTHS):
            return info
    return None


def _dimensions(
    model: Model, lengths: TensorInfo | None, told: Mapping[str, Sequence[str]]
) -> dict[object, str]:
    """Which dimensions are rows ("batch") or steps ("time"): by their names, and by input and axis."""
    words = {"T": "time", "B": "batch"}
    known: dict[object, str] = {place: words[letter] for place, letter in input_letters(model).items()}
    for info in model.inputs:
        for axis, size in enumerate(info.shape or ()):
            order = told.get(info.name, ())
            meaning = order[axis] if axis < len(order) else known.get((info.name, axis), "")
            if isinstance(size, str) and meaning in words.values():
                known.setdefault(size, meaning)
    if lengths is not None and lengths.shape and isinstance(lengths.shape[0], str):
        known.setdefault(lengths.shape[0], "batch")
    return known


def _place(model: Model, info: TensorInfo, told: Sequence[str] | None, known: Mapping[object, str]) -> _Axes:
    """Which axes of an input are its rows and its steps.

    Raises:
        SpecError: it is not clear, or `told` does not fit.
    """
    where = f"{model.path}: input {info.name!r}"
    if not info.is_tensor or info.dtype in ("str", "unknown"):
        raise SpecError(f"{where}: {info.dtype}; must be a tensor of numbers")
    if told is not None:
        rank = len(told) if info.shape is None else len(info.shape)
        if len(told) != rank or told.count("batch") != 1 or told.count("time") > 1:
            must = f'{rank} names, one of them "batch", at most one "time"'
            raise SpecError(f"axes[{info.name!r}]: {', '.join(told)}; must be {must}")
        return _Axes(told.index("batch"), told.index("time") if "time" in told else None)
    ask = f"say which axes they are with axes (--axes {info.name}=batch,time,feature)"
    if info.shape is None:
        raise SpecError(f"{where}: of unknown rank; {ask}")
    found: dict[str, int] = {}
    unclear: list[int] = []
    for axis, size in enumerate(info.shape):
        meaning = known.get((info.name, axis)) or known.get(size, "") if not isinstance(size, int) else ""
        if not meaning and isinstance(size, str):
            meaning = "batch" if size.lower() in _BATCH else "time" if size.lower() in _TIME else ""
        if isinstance(size, int):
            continue
        if not meaning:
            unclear.append(axis)
        elif meaning in found:
            unclear += [axis, found[meaning]]
        else:
            found[meaning] = axis
    if len(unclear) == 1 and len(found) == 1 and len(info.shape) > 1:  # the only one that is left
        found["time" if "batch" in found else "batch"] = unclear.pop()
    if len(unclear) == 1 and not found and sum(not isinstance(size, int) for size in info.shape) == 1:
        found["batch"] = unclear.pop()
    if unclear or "batch" not in found:
        words = shape_words(info.shape)
        what = "which are the rows, and which the steps, is not clear" if unclear else "no open axis of rows"
        raise SpecError(f"{where}: {words}; {what}; {ask}")
    return _Axes(found["batch"], found.get("time"))


def _rest(model: Model, info: TensorInfo, place: _Axes) -> tuple[int, ...]:
    """The sizes of the other axes, which must be known."""
    shape = info.shape or ()
    rest = tuple(size for axis, size in enumerate(shape) if axis not in place)
    if info.shape is None or not all(isinstance(size, int) and size > 0 for size in rest):
        words = "?" if info.shape is None else shape_words(info.shape)
        raise SpecError(
            f"{model.path}: input {info.name!r}: {words}; all axes but rows and steps must be known"
        )
    return tuple(int(size) for size in rest if isinstance(size, int))
