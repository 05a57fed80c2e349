"""A stream: a forward layer and the state that it keeps between calls."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from onegru import _native
from onegru.core.arguments import integer
from onegru.core.dtypes import Array, as_array_of, as_float_array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.pickling import state_of
from onegru.core.shapes import arrange, as_rows, check_shape, output
from onegru.core.spec import Spec
from onegru.engines.interface import Engine


class Layer(Protocol):
    """What a stream needs of a layer."""

    _engine: Engine

    @property
    def spec(self) -> Spec:
        """What it computes."""


class Stream(_native.Stepper):
    """A stream through a forward layer, from `GRU.stream`.

    A sequence fed in chunks of any size gives the same bits as one call: the state is kept in the type
    computed in (float64 for float64, else float32). A stream is not safe to call from several threads at
    once, but several streams may share a layer. A call that a signal handler's exception ends, as with
    Ctrl-C, leaves the state as it was; what it was writing is unspecified.
    """

    __module__ = "onegru.reports"

    def __init__(self, layer: Layer, batch_size: int) -> None:
        """Begin with a state of zeros; see `GRU.stream`."""
        spec = layer.spec
        if spec.direction != "forward":
            raise SpecError.of("stream", f"the layer's direction is {spec.direction!r}; must be 'forward'")
        shape = (integer("batch_size", batch_size, 1), spec.hidden_size)
        try:
            state = np.zeros(shape, np.float64 if spec.dtype == "float64" else np.float32)
        except (ValueError, MemoryError) as error:
            raise SpecError.of(
                "batch_size", f"{batch_size}; must be one whose state fits into memory"
            ) from error
        stream = layer._engine.stream(state)
        # Before anything is set, as it refuses to be initialised twice.
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
    def _with_state(cls, layer: Layer, state: Array) -> Self:
        """A stream of this class, made from one that was pickled or copied."""
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
        """B, the number of rows."""
        return self._shape[0]

    @property
    def input_size(self) -> int:
        """I."""
        return self._spec.input_size

    @property
    def hidden_size(self) -> int:
        """H."""
        return self._spec.hidden_size

    @property
    def state(self) -> Array:
        """A copy of the state, [B, H], in the type computed in. Assign to it to set the state."""
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
            OSError: it cannot be written; what was there before stays.
        """
        save_states(path, (self,))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Set the state to that of a file that `save` wrote.

        Raises:
            FormatError: it is not such a file.
            SpecError: the state does not fit this stream. The state stays as it is.
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
        """The general path of `step`, for arguments that the native fast path does not take."""
        array = as_array_of(self._spec.dtype, "x", x)
        B, H = self._shape
        indices = None if rows is None else as_rows(rows, B)
        sizes = {"B": B if indices is None else len(indices), "I": self._spec.input_size}
        check_shape("x", array.shape, "BI", sizes)
        scores = self._attention(attention, "B", sizes)
        h = output(out, (sizes["B"], H), self._dtype)
        self._run(array[None], None if scores is None else scores[None], indices, h[None, None])
        return h

    def run(self, X: ArrayLike, *, attention: ArrayLike | None = None, out: Array | None = None) -> Array:
        """Run the steps of X. An empty X leaves the state unchanged.

        Args:
            X: [T, B, I], of the layer's type; time first, in any layout of the layer.
            attention: [T, B] or [T, B, 1]; required if and only if the layer has attention.
            out: the array to write Y into. Default: None (a new one).

        Returns:
            Y, the state after each step, [T, B, H], of the layer's type.

        Raises:
            SpecError: an argument is invalid.
        """
        if (plain := self.try_run(X, attention, out)) is not None:
            return plain
        array = as_array_of(self._spec.dtype, "X", X)
        sizes = {"B": self._shape[0], "I": self._spec.input_size}
        check_shape("X", array.shape, "TBI", sizes)
        scores = self._attention(attention, "TB", sizes)
        Y = output(out, (sizes["T"], *self._shape), self._dtype)
        self._run(array, scores, None, Y[:, None])
        return Y

    def _write(self, values: Array, out: Array) -> Array:
        """Copy `values`, of the layer's type, to `out`, checked as by `step` and `run`."""
        output(out, values.shape, self._dtype)[...] = values
        return out

    def _attention(self, value: object, axes: str, sizes: dict[str, int]) -> Array | None:
        if value is None:
            if self._spec.attention:
                raise SpecError.of("attention", "missing; must be given")
            return None
        if not self._spec.attention:
            raise SpecError.of("attention", "given; must be None, as the layer was made without attention")
        array = as_array_of(self._spec.dtype, "attention", value)
        given = f"{axes}1" if array.ndim == len(axes) + 1 else axes
        check_shape("attention", array.shape, given, sizes)
        return arrange(array, given, axes)

    def _run(self, X: Array, attention: Array | None, rows: Array | None, Y: Array) -> None:
        Y = np.asarray(Y)  # as a plain array: a memory map is as good as any
        target = Y
        if np.may_share_memory(Y, X) or (attention is not None and np.may_share_memory(Y, attention)):
            target = np.empty(Y.shape, Y.dtype)
        self._stream.run(X, attention, rows, target)
        if target is not Y:
            Y[...] = target


def save_states(path: str | os.PathLike[str], streams: Sequence[Stream]) -> None:
    """Write the states of stacked streams, by number; raises as `Stream.save` does."""
    from onegru.layers.state_files import write_states  # slow to import, and few need it

    write_states(path, {str(index): stream.state for index, stream in enumerate(streams)})


def load_states(path: str | os.PathLike[str], streams: Sequence[Stream]) -> None:
    """Set the states of stacked streams, all or none; raises as `Stream.load` does."""
    from onegru.layers.state_files import read_states  # slow to import, and few need it
    from onegru.system.array_files import Header

    wanted = {str(index): stream.state for index, stream in enumerate(streams)}

    def expected(name: str, header: Header) -> str:
        if name not in wanted:
            raise SpecError(f"{path}: holds a state {name!r}; must hold {len(wanted)}, one for each layer")
        dtype, shape = wanted[name].dtype.name, wanted[name].shape
        if (header.dtype.name, header.shape) != (dtype, shape):
            is_ = f"{header.dtype.name} {list(header.shape)}"
            raise SpecError(f"{path}: state {name!r} is {is_}; must be {dtype} {list(shape)}")
        return dtype

    states = read_states(path, expected)
    if missing := [name for name in wanted if name not in states]:
        raise SpecError(f"{path}: has no state {missing[0]!r}; must hold {len(wanted)}, one for each layer")
    for stream, name in zip(streams, wanted, strict=True):
        stream.state = states[name]


# What a stack's stream does with those of its layers.


def state_in(stream: Stream) -> Array:
    """The memory of its state."""
    return stream._state


def write_out(stream: Stream, values: Array, out: Array) -> Array:
    """Copy `values` to `out`, checked as by `step` and `run`. Raises as they do."""
    return stream._write(values, out)
