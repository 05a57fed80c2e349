"""A stream of a model, which carries its states from run to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.pickling import state_of
from onegru.core.shapes import as_rows, fits
from onegru.core.wording import count, shape_words
from onegru.formats.graph import Graph, TensorInfo, batch_axes
from onegru.models.inputs.check import fits_shape

_Run = Callable[[Mapping[str, object]], dict[str, Array]]


class ModelStream:
    """A stream of a model that carries its states, from `Model.stream`.

    Initial states are the input's default in the file, or zeros. Symbolic sizes come from the other inputs of
    the first step, by name; pass other sizes as `dims` of `Model.stream`. Not thread-safe.
    """

    __module__ = "onegru.reports"

    def __init__(
        self,
        graph: Graph,
        run: _Run,
        pairs: Mapping[str, str],
        dims: Mapping[str, int],
        named: Sequence[str] = (),
    ) -> None:
        self._graph = graph
        self._run = run
        self._inputs = {info.name: info for info in graph.inputs}
        outputs = {info.name: info for info in graph.outputs}
        self._pairs = dict(pairs)
        self._named = frozenset(named)
        if not all(isinstance(name, str) for pair in self._pairs.items() for name in pair):
            raise SpecError.of("state", "must be a mapping from names of outputs to names of inputs")
        if len(set(self._pairs.values())) < len(self._pairs):
            raise SpecError.of("state", "an input is fed by two outputs; map each input once")
        for output, taker in self._pairs.items():
            for side, name, known in (("output", output, outputs), ("input", taker, self._inputs)):
                if name not in known:
                    names = ", ".join(map(repr, known))
                    raise SpecError.of(
                        "state", f"{name!r} is not an {side} of {graph.path}; must be one of {names}"
                    )
            source, target = outputs[output], self._inputs[taker]
            if source.dtype != target.dtype:
                raise SpecError.of(
                    "state",
                    f"{output!r} is {source.dtype}, {taker!r} is {target.dtype}; must have equal types",
                )
            if source.shape is not None and target.shape is not None and not fits(source.shape, target.shape):
                raise SpecError.of(
                    "state",
                    f"{output!r} is {shape_words(source.shape)}, {taker!r} is "
                    f"{shape_words(target.shape)}; must have equal shapes",
                )
        self._open_outputs = [
            output
            for output, taker in self._pairs.items()
            if outputs[output].shape != self._inputs[taker].shape
        ]
        self._returns_states = outputs.keys() <= self._pairs.keys()
        self._dims = self._checked_dims(dims)
        self._state: dict[str, Array] = {}

    def _checked_dims(self, dims: object) -> dict[str, int]:
        if not isinstance(dims, Mapping):
            raise SpecError.of("dims", f"{shown(dims)}; must be a mapping from names to sizes")
        takers = self._pairs.values()
        known = [size for name in takers for size in self._inputs[name].shape or () if isinstance(size, str)]
        for name in dims:
            if name not in known:
                names = ", ".join(map(repr, dict.fromkeys(known))) or "none"
                raise SpecError.of("dims", f"{shown(name)}; must be a dynamic dimension of a state: {names}")
        return {name: integer(f"dims[{name!r}]", size, 1) for name, size in dims.items()}

    def __repr__(self) -> str:
        pairs = ", ".join(
            f"{output} → {taker}{' (by name)' if output in self._named else ''}"
            for output, taker in self._pairs.items()
        )
        return f"ModelStream({self._graph.path!r}, {pairs})"

    def __getstate__(self) -> Any:
        return state_of(self, _state=self.state)  # a copy has its own state

    @property
    def pairs(self) -> dict[str, str]:
        """The state input for each state output, by name."""
        return dict(self._pairs)

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the states, by input name; states that are not set yet are missing.

        Assign a mapping to set some or all states.
        """
        return {name: array.copy() for name, array in self._state.items()}

    @state.setter
    def state(self, values: Mapping[str, object]) -> None:
        if not isinstance(values, Mapping):
            raise SpecError.of("state", f"{type(values).__name__}; must be a mapping from names to arrays")
        self._state.update({name: self._fit(name, value) for name, value in values.items()})

    def reset(self) -> None:
        """Restore the initial states."""
        self._state.clear()

    def step(self, inputs: Mapping[str, object], *, rows: object = None) -> dict[str, Array]:
        """Run the model once, and keep its new states.

        Args:
            inputs: an array for each input that is not a state, by name. An array for a state replaces it.
            rows: indices of the rows of the batch that take this step. `inputs` and outputs then contain only
                these rows, in this order, and the states of other rows stay unchanged. The model's batch size
                must be dynamic, and its rows must be independent. Default: None (all rows).

        Returns:
            an array for each output that is not a state, by name. If all outputs are states, as in a cell,
            all outputs.

        Raises:
            SpecError: an input is missing, unknown, or does not fit. The states stay as they are.
            FormatError: another runtime fails on its part of the model. The states stay as they are.
        """
        if type(inputs) is not dict and not isinstance(inputs, Mapping):  # the second check is slow
            raise SpecError.of("inputs", f"{type(inputs).__name__}; must be a mapping from names to arrays")
        if rows is not None:
            return self._step_of(rows, inputs)
        given = {**self._state, **inputs}
        if len(self._state) < len(self._pairs):
            missing = [name for name in self._pairs.values() if name not in given]
            given.update(self._initial_values(missing, inputs))
        try:
            results = self._run(given)
        except SpecError as error:
            raise SpecError(
                f"{error}{self._unpaired(given, str(error))}", error.argument
            ) from error.__cause__
        for output in self._open_outputs:
            info, new = self._inputs[self._pairs[output]], results[output].shape
            if not fits_shape(info, new):
                raise SpecError.of(
                    "state",
                    f"{output!r} is {list(new)}; must be {shape_words(info.shape or ())}, the shape of its "
                    f"input {info.name!r}",
                )
        if self._returns_states:
            self._state.update({taker: results[output].copy() for output, taker in self._pairs.items()})
            return results
        for output, taker in self._pairs.items():
            self._state[taker] = results.pop(output)
        return results

    def _unpaired(self, given: Mapping[str, object], error: str) -> str:
        """Return a hint how to name a missing state if an output has a matching name; else an empty text."""
        from onegru.timeline.pairs import is_next_name

        lacking = [name for name in self._inputs.keys() - given if error.startswith(f"{name!r}: missing")]
        free = [info.name for info in self._graph.outputs if info.name not in self._pairs]
        found = {output: name for name in lacking for output in free if is_next_name(name, output)}
        if not found:
            return ""
        listed = ", ".join(f'"{output}": "{name}"' for output, name in {**self._pairs, **found}.items())
        return f"; if it is a state whose next value does not depend on it, use stream({{{listed}}})"

    def _step_of(self, rows: object, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Run a step of some rows."""
        if not self._pairs:
            raise SpecError.of("rows", "must be None, because the model has no state")
        axes = self._row_axes()
        missing = [name for name in axes if name not in self._state]
        states = {**self._state, **self._initial_values(missing, {})}
        for name in missing:
            if name not in states:
                words = f"state {name!r} is not set; run one step with all rows first, or set stream.state"
                raise SpecError.of("rows", words)
        counts = {states[name].shape[axis] for name, axis in axes.items()}
        if len(counts) > 1:
            raise SpecError.of("rows", f"the states have {sorted(counts)} rows; must have equal batch sizes")
        indices = as_rows(rows, counts.pop())
        given = {name: np.take(states[name], indices, axis) for name, axis in axes.items()} | dict(inputs)
        results = self._run(given)
        fresh: dict[str, Array] = {}
        for output, taker in self._pairs.items():
            axis, new, state = axes[taker], results[output], states[taker].copy()
            wanted = (*state.shape[:axis], len(indices), *state.shape[axis + 1 :])
            if new.shape != wanted:
                raise SpecError.of("rows", f"{output!r} is {list(new.shape)}; must be {list(wanted)}")
            state[(slice(None),) * axis + (indices,)] = new
            fresh[taker] = state
        self._state = fresh
        returns_states = self._returns_states
        return {name: array for name, array in results.items() if returns_states or name not in self._pairs}

    def _row_axes(self) -> dict[str, int]:
        """Return the row axis of each state: that of its GRU node, or the axis named as in other inputs."""
        takers = list(self._pairs.values())
        shapes = {name: self._inputs[name].shape or () for name in takers}
        known_axes = batch_axes(self._graph)
        named = {shapes[name][axis] for name, axis in known_axes.items() if shapes.get(name)}
        if not named:
            others = (info.shape or () for name, info in self._inputs.items() if name not in shapes)
            named = set.intersection(*map(set, shapes.values())).intersection(chain.from_iterable(others))
        named = {size for size in named if isinstance(size, str)}
        axes: dict[str, int] = {}
        for name, shape in shapes.items():
            candidates = [axis for axis, size in enumerate(shape) if size in named]
            axis = known_axes.get(name, candidates[0] if len(candidates) == 1 else None)
            if axis is None or axis >= len(shape):
                raise SpecError.of(
                    "rows",
                    f"must be None: the batch axis of state {name!r}, {shape_words(shape)}, is unknown",
                )
            if isinstance(shape[axis], int):
                raise SpecError.of(
                    "rows", f"must be None: the batch size of state {name!r} is fixed at {shape[axis]}"
                )
            axes[name] = axis
        return axes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states to a file in NumPy's `.npz` format.

        Args:
            path: the file to write or replace.

        Raises:
            OSError: the file cannot be written; an existing file stays unchanged.
        """
        from onegru.layers.state_files import write_states  # slow import, rarely needed

        write_states(path, self._state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load states from a file of `save`; missing states are reset.

        Raises:
            FormatError: `save` did not write this file.
            SpecError: a state does not fit this model. The states stay unchanged.
        """
        from onegru.layers.state_files import read_states  # slow import, rarely needed
        from onegru.system.array_files import Header

        def expected(name: str, header: Header) -> str:
            info = self._info(name)
            is_bits = info.dtype == "bfloat16" and header.dtype == np.uint16
            self._check(info, info.dtype if is_bits else header.dtype.name, header.shape)
            return info.dtype

        self._state = {name: self._fit(name, array) for name, array in read_states(path, expected).items()}

    def _fit(self, name: str, value: object) -> Array:
        info = self._info(name)
        try:
            array = np.array(value)
        except (TypeError, ValueError) as error:
            raise SpecError.of("state", f"{name!r} is not an array ({error})") from error
        self._check(info, array.dtype.name, array.shape)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _info(self, name: str) -> TensorInfo:
        if name not in self._pairs.values():
            names = ", ".join(map(repr, self._pairs.values()))
            path = self._graph.path
            raise SpecError.of("state", f"{name!r} is not a state of {path}; must be one of {names}")
        return self._inputs[name]

    def _check(self, info: TensorInfo, dtype: str, shape: Sequence[int]) -> None:
        if dtype != info.dtype or not fits_shape(info, shape):
            raise SpecError.of(
                "state",
                f"{info.name!r} is {dtype} {list(shape)}; must be {info.dtype} "
                f"{'of any shape' if info.shape is None else shape_words(info.shape)}",
            )

    def _initial_values(self, names: Sequence[str], inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return the initial values of states without a default: values of the file, or zeros."""
        sizes, owners = dict(self._dims), dict[str, str]()
        takers = self._pairs.values()
        needed = {
            size for name in takers for size in self._graph.starts.get(name, self._inputs[name].shape or ())
        }
        for name, value in inputs.items():
            info, shape = self._inputs.get(name), getattr(value, "shape", ())
            if info is not None and info.shape is not None and len(info.shape) == len(shape):
                known = zip(info.shape, shape, strict=True)
                named = {size: have for size, have in known if isinstance(size, str)}
                for size in named.keys() & self._dims.keys():
                    if named[size] != self._dims[size]:
                        raise SpecError(
                            f"{name!r}: {size} is {named[size]}; must be {self._dims[size]}, as in dims="
                        )
                for size in named.keys() & needed & sizes.keys():
                    if named[size] != sizes[size]:
                        raise SpecError(
                            f"{name!r}: {size} is {named[size]}, and {sizes[size]} in {owners[size]!r}; must "
                            "be equal, because a state has this size"
                        )
                sizes.update(named)
                owners.update(dict.fromkeys(named, name))
        for name, (axis, least) in self._graph.least_steps.items() if names else ():
            shape = getattr(inputs.get(name), "shape", ())
            if axis < len(shape) and shape[axis] < least:
                raise SpecError(
                    f"{name!r}: {count(shape[axis], 'step')} in the first run; must be at least {least}, "
                    f"because outputs are delayed by {count(least - 1, 'step')}"
                )
        found: dict[str, Array] = {}
        for name in names:
            info = self._inputs[name]
            if info.optional:
                continue
            if info.shape is None:
                raise SpecError.of(
                    "state", f"{name!r} has an unknown rank; set stream.state before the first step"
                )
            shape = self._graph.starts.get(name, info.shape)
            wanted = [size if isinstance(size, int) else sizes.get(size or "") for size in shape]
            if any(size is None for size in wanted):
                if name in self._graph.zero_inputs:
                    continue
                raise SpecError.of(
                    "state",
                    f"{name!r} is {shape_words(info.shape)}, and the inputs do not determine its sizes; pass "
                    "dims= to stream(), or set stream.state before the first step",
                )
            try:
                found[name] = np.zeros([size or 0 for size in wanted], numpy_dtype(info.dtype))
                if name in self._graph.initial:
                    found[name][...] = self._graph.initial[name]
            except (ValueError, MemoryError) as error:
                raise SpecError.of("state", f"{name!r} has shape {wanted}; must fit into memory") from error
        return found


def first_states(graph: Graph, inputs: Mapping[str, object]) -> dict[str, Array]:
    """Return the states before the first run that the model's file gives, except those in `inputs`."""
    missing = [name for name in graph.starts if name not in inputs]
    return ModelStream(graph, lambda _: {}, dict(graph.states), {})._initial_values(missing, inputs)
