"""Convert rows to inputs of a model, and find the axes of rows and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.wording import shape_words
from onegru.formats.graph import TensorInfo, by_name, initial_states
from onegru.models.inputs.lengths import find_lengths
from onegru.models.inputs.sizes import input_letters
from onegru.models.model import Model
from onegru.scoring.columns import Field
from onegru.scoring.programs.program import check_names

_BATCH = {"batch", "batch_size", "batchsize", "b", "n", "bs"}
_TIME = {"time", "times", "t", "seq", "seq_len", "seq_length", "sequence", "sequence_length", "length"}
_TIME |= {"steps", "time_steps", "timesteps", "num_steps", "frames", "num_frames"}
_LENGTHS = {"sequence_lens", "sequence_lengths", "seq_lens", "seq_lengths", "seq_len", "lens", "lengths"}
_LENGTHS |= {"length", "input_lengths", "x_lengths", "x_lens"}


class Axes(NamedTuple):
    """Axes of rows and of steps in a tensor; None for a missing axis."""

    batch: int | None
    time: int | None

    @property
    def front(self) -> list[int]:
        """Return the axis of steps, then the axis of rows, without missing ones."""
        return [axis for axis in (self.time, self.batch) if axis is not None]


class ModelInputs:
    """Inputs of a model as fields of rows, or as those of one row, where states without a column are 0."""

    def __init__(
        self,
        model: Model,
        columns: Mapping[str, str],
        axes: Mapping[str, Sequence[str]],
        *,
        single_rows: bool = False,
    ) -> None:
        infos = by_name(model.inputs)
        check_names("inputs", columns, infos)
        check_names("axes", {name: "" for name in axes}, infos)
        self._lengths = _find_lengths(model, {infos[name].name for name in columns})
        self.lengths_input = None if self._lengths is None else self._lengths.name
        own = {infos[name].name: column for name, column in columns.items()}
        orders = {infos[name].name: order for name, order in axes.items()}
        known = _dimensions(model, self._lengths, orders)
        graph = model.graph
        states = {*initial_states(graph), *(taker for _, taker in graph.states)} if single_rows else set()
        self._zeros: dict[str, Array] = {}
        fields: list[Field] = []
        self._axes: dict[str, Axes] = {}
        for info in model.inputs:
            may_lack = info.optional or info.name in graph.zero_inputs
            if info is self._lengths or (may_lack and info.name not in own):
                continue
            if info.name in states - own.keys():
                sizes = graph.starts.get(info.name, info.shape or ())
                shape = [size if isinstance(size, int) else 1 for size in sizes]
                self._zeros[info.name] = np.zeros(shape, numpy_dtype(info.dtype))
                continue
            found = _axes_of(model, info, orders.get(info.name), known, single_rows)
            self._axes[info.name] = found
            column, is_sequence = own.get(info.name, info.name), found.time is not None
            fields.append(Field(info.name, column, info.dtype, _rest(model, info, found), is_sequence))
        self.fields = tuple(fields)

    def fed(self, arrays: Mapping[str, Array], lengths: Array) -> dict[str, Array]:
        """Return the inputs in the model's own shapes."""
        fed = dict(self._zeros)
        for field in self.fields:
            axes, array = self._axes[field.name], arrays[field.name]
            array = array.reshape(*array.shape[:-1], *field.shape)
            if axes.batch is None:
                array = array[:, 0] if field.is_sequence else array[0]
            fed[field.name] = np.asarray(np.moveaxis(array, range(len(axes.front)), axes.front), order="C")
        if self._lengths is not None:
            fed[self._lengths.name] = lengths.astype(self._lengths.dtype)
        return fed


def _find_lengths(model: Model, given: set[str]) -> TensorInfo | None:
    """Return the input for the lengths of sequences; None if there is none, or a column supplies it."""
    used = {gru.step.value("sequence_lens") for gru in model.gru_nodes}
    found = find_lengths(model)
    for info in model.inputs:
        is_vector = info.dtype in ("int32", "int64") and len(info.shape or ()) == 1
        if not is_vector or info.name in given:
            continue
        lengths = found.get(info.name)
        is_sure = lengths is not None and lengths.is_sure and not lengths.is_scaled
        if info.value in used or is_sure or (lengths is not None and info.name.lower() in _LENGTHS):
            return info
    return None


def _dimensions(
    model: Model, lengths: TensorInfo | None, orders: Mapping[str, Sequence[str]]
) -> dict[object, str]:
    """Return the dimensions of rows ("batch") or steps ("time"), by name, and by input and axis."""
    words = {"T": "time", "B": "batch"}
    known: dict[object, str] = {key: words[letter] for key, letter in input_letters(model).items()}
    for info in model.inputs:
        for axis, size in enumerate(info.shape or ()):
            order = orders.get(info.name, ())
            meaning = order[axis] if axis < len(order) else known.get((info.name, axis), "")
            if isinstance(size, str) and meaning in words.values():
                known.setdefault(size, meaning)
    if lengths is not None and lengths.shape and isinstance(lengths.shape[0], str):
        known.setdefault(lengths.shape[0], "batch")
    return known


def _axes_of(
    model: Model,
    info: TensorInfo,
    order: Sequence[str] | None,
    known: Mapping[object, str],
    single_rows: bool,
) -> Axes:
    """Return the axes of an input that are its rows and its steps."""
    where = f"{model.path}: input {info.name!r}"
    if not info.is_tensor or info.dtype in ("str", "unknown"):
        raise SpecError(f"{where}: {info.dtype}; must be a tensor of numbers")
    if order is not None:
        rank = len(order) if info.shape is None else len(info.shape)
        counts = order.count("batch"), order.count("time")
        if len(order) != rank or max(counts) > 1 or not counts[0] + single_rows:
            must = (
                f'{rank} names, {"at most one" if single_rows else "one"} of them "batch", at most one "time"'
            )
            raise SpecError(f"axes[{info.name!r}]: {', '.join(order)}; must be {must}")
        found = {name: axis for axis, name in enumerate(order) if name in ("batch", "time")}
        return _checked(where, info, found)
    ask = f"specify its axes with axes (--axes {info.name}=batch,time,feature)"
    if info.shape is None:
        raise SpecError(f"{where}: of unknown rank; {ask}")
    found = {}
    unclear: list[int] = []
    for axis, size in enumerate(info.shape):
        meaning = known.get((info.name, axis), "")
        if isinstance(size, int):
            if single_rows and meaning:
                found[meaning] = axis
            continue
        meaning = meaning or known.get(size, "")
        if not meaning and isinstance(size, str):
            meaning = "batch" if size.lower() in _BATCH else "time" if size.lower() in _TIME else ""
        if not meaning:
            unclear.append(axis)
        elif meaning in found:
            unclear += [axis, found[meaning]]
        else:
            found[meaning] = axis
    if len(unclear) == 1 and len(found) == 1 and len(info.shape) > 1:  # the only remaining axis
        found["time" if "batch" in found else "batch"] = unclear.pop()
    only_one = sum(not isinstance(size, int) for size in info.shape) == 1
    if len(unclear) == 1 and not found and only_one and not single_rows:
        found["batch"] = unclear.pop()
    if unclear or ("batch" not in found and not single_rows):
        words = shape_words(info.shape)
        what = "its axes of rows and steps are ambiguous" if unclear else "no dynamic axis for rows"
        raise SpecError(f"{where}: {words}; {what}; {ask}")
    return _checked(where, info, found)


def _checked(where: str, info: TensorInfo, found: Mapping[str, int]) -> Axes:
    """Check and return the axes."""
    axes = Axes(found.get("batch"), found.get("time"))
    shape = info.shape or ()
    rows = shape[axes.batch] if shape and axes.batch is not None else 1
    if isinstance(rows, int) and rows != 1:
        raise SpecError(f"{where}: {shape_words(shape)}, fixed batch size {rows}; must be dynamic, or 1")
    return axes


def _rest(model: Model, info: TensorInfo, axes: Axes) -> tuple[int, ...]:
    """Return the sizes of the other axes, which must be fixed."""
    shape = info.shape or ()
    rest = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    if info.shape is None or not all(isinstance(size, int) and size > 0 for size in rest):
        words = "?" if info.shape is None else shape_words(info.shape)
        raise SpecError(
            f"{model.path}: input {info.name!r}: {words}; all axes but rows and steps must be known"
        )
    return tuple(int(size) for size in rest if isinstance(size, int))
