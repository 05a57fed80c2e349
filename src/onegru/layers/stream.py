"""A stream: a forward layer with a state that it keeps between calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from onegru import _native
from onegru.core.arguments import integer
from onegru.core.dtypes import Array, as_float_array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.pickling import state_of
from onegru.core.shapes import as_rows, check_shape, output
from onegru.engines.interface import Problem
from onegru.layers.call import CallableLayer, attention_ports, bind, execute
from onegru.operators.schema import Port


class Stream(_native.Stepper):
    """A stream through a forward layer, from `GRU.stream`.

    A sequence fed in chunks of any size gives bitwise the same results as one call. The state has the type of
    the computation: float64 for float64 layers, else float32. A stream is not thread-safe, but several
    streams may share a layer. If the exception of a signal handler ends a call, as with Ctrl-C, the state is
    the one before or the one after all steps, and the contents of the call's outputs are unspecified.
    """

    __module__ = "onegru.reports"

    def __init__(self, layer: CallableLayer, batch_size: int) -> None:
        """Start with a state of zeros. `GRU.stream` documents the arguments."""
        spec = layer.spec
        if spec.direction != "forward":
            raise SpecError.of("stream", f"the layer's direction is {spec.direction!r}; must be 'forward'")
        shape = (integer("batch_size", batch_size, 1), spec.hidden_size)
        try:
            state = np.zeros(shape, np.float64 if spec.dtype == "float64" else np.float32)
        except (ValueError, MemoryError) as error:
            raise SpecError.of(
                "batch_size", f"{batch_size}; must be small enough for the state to fit into memory"
            ) from error
        stream = layer.prepared_engine.stream(state)
        # This comes first, because it rejects a second initialization.
        super().__init__(stream.native)
        self._layer = layer
        self._spec = spec
        self._dtype = numpy_dtype(spec.dtype)
        self._shape = shape
        self._state = state
        self._stream = stream

    def __repr__(self) -> str:
        B, H = self._shape
        return f"Stream({B} rows, {self._spec.input_size} → {H}, {self._spec.dtype})"

    @classmethod
    def _with_state(cls, layer: CallableLayer, state: Array) -> Self:
        """Return a stream of this class from a pickled or copied stream."""
        stream = cls.__new__(cls)
        Stream.__init__(stream, layer, len(state))
        stream._state[...] = state
        return stream

    def __getstate__(self) -> Any:
        return state_of(self, ("_layer", "_spec", "_dtype", "_shape", "_state", "_stream"))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._with_state, (self._layer, self.state), self.__getstate__())

    @property
    def batch_size(self) -> int:
        """Batch size (B), the number of rows."""
        return self._shape[0]

    @property
    def input_size(self) -> int:
        """Input size (I)."""
        return self._spec.input_size

    @property
    def hidden_size(self) -> int:
        """Hidden size (H)."""
        return self._spec.hidden_size

    @property
    def state(self) -> Array:
        """A copy of the state, [B, H], in the type of the computation. Assign an array to set the state."""
        return self._state.copy()

    @state.setter
    def state(self, value: ArrayLike) -> None:
        names = dict.fromkeys((self._state.dtype.name, self._dtype.name))
        array = as_float_array("state", value, tuple(names))
        check_shape("state", array.shape, "BH", {"B": self._shape[0], "H": self._shape[1]})
        self._state[...] = array

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, in NumPy's `.npz` format.

        Raises:
            SpecError: path is not the name of a file.
            OSError: the file cannot be written. An existing file stays as it is.
        """
        save_states(path, (self,))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Set the state to that in a file from `save`.

        Raises:
            FormatError: the file is not from `save`.
            SpecError: the state does not fit this stream. The current state stays.
            OSError: the file cannot be opened.
        """
        load_states(path, (self,))

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Set the state of `rows` (indices; None for all) to zero.

        Raises:
            SpecError: rows are not indices of the batch, each at most once.
        """
        self._state[slice(None) if rows is None else as_rows(rows, self._shape[0])] = 0

    def _step(
        self,
        x: ArrayLike,
        *,
        attention: ArrayLike | None = None,
        rows: ArrayLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """Run a step with arguments that the native fast path does not accept."""
        indices = None if rows is None else as_rows(rows, self.batch_size)
        n = self.batch_size if indices is None else len(indices)
        ports = [Port("x", "X", "BI"), *attention_ports(self._spec, attention, "B")]
        inputs, _ = bind(self._spec, ports, {"x": x, "attention": attention}, batch_size=n)
        h = output(out, (n, self.hidden_size), self._dtype)
        self._run(inputs, indices, h[None, None])
        return h

    def run(self, X: ArrayLike, *, attention: ArrayLike | None = None, out: Array | None = None) -> Array:
        """Run the steps of X. An empty X leaves the state unchanged.

        Args:
            X: [T, B, I], of the layer's type. Time comes first, regardless of the layer's layout.
            attention: [T, B] or [T, B, 1]; required if and only if the layer has attention.
            out: the array for Y. Default: None (a new array).

        Returns:
            Y, the state after each step, [T, B, H], of the layer's type.

        Raises:
            SpecError: an argument is invalid.
        """
        if (plain := self.try_run(X, attention, out)) is not None:
            return plain
        ports = [Port("X", "X", "TBI"), *attention_ports(self._spec, attention, "TB")]
        values = {"X": X, "attention": attention}
        inputs, sizes = bind(self._spec, ports, values, batch_size=self.batch_size)
        Y = output(out, (sizes["T"], *self._shape), self._dtype)
        self._run(inputs, None, Y[:, None])
        return Y

    def _run(self, inputs: Mapping[str, Array], rows: Array | None, Y: Array) -> None:
        def run(problem: Problem) -> None:
            assert problem.Y is not None
            self._stream.run(problem.X, problem.attention, rows, problem.Y)

        execute(run, inputs, {"Y": Y})


def save_states(path: str | os.PathLike[str], streams: Sequence[Stream]) -> None:
    """Write the states of stacked streams, by number. Raises the errors of `Stream.save`."""
    from onegru.layers.state_files import write_states  # slow import, rarely needed

    write_states(path, {str(index): stream.state for index, stream in enumerate(streams)})


def load_states(path: str | os.PathLike[str], streams: Sequence[Stream]) -> None:
    """Set the states of stacked streams, all or none. Raises the errors of `Stream.load`."""
    from onegru.layers.state_files import read_states  # slow import, rarely needed
    from onegru.system.array_files import Header

    wanted = {str(index): stream.state for index, stream in enumerate(streams)}

    def expected(name: str, header: Header) -> str:
        if name not in wanted:
            raise SpecError(f"{path}: contains state {name!r}; must be {len(wanted)}, one for each layer")
        dtype, shape = wanted[name].dtype.name, wanted[name].shape
        if (header.dtype.name, header.shape) != (dtype, shape):
            found = f"{header.dtype.name} {list(header.shape)}"
            raise SpecError(f"{path}: state {name!r} is {found}; must be {dtype} {list(shape)}")
        return dtype

    states = read_states(path, expected)
    if missing := [name for name in wanted if name not in states]:
        raise SpecError(f"{path}: lacks state {missing[0]!r}; must have {len(wanted)}, one for each layer")
    for stream, name in zip(streams, wanted, strict=True):
        stream.state = states[name]
