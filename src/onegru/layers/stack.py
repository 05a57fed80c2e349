"""Stacks of layers: each layer reads the outputs of the previous one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from onegru import _native
from onegru.core.arguments import integer
from onegru.core.dtypes import Array, as_float_array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.pickling import state_of
from onegru.core.shapes import arrange, output, side_by_side
from onegru.core.wording import count
from onegru.layers.gru import GRU
from onegru.layers.stream import Stream, load_states, save_states

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace

# The least FLOPs of a call whose layers may run as a pipeline, measured. Below, setup takes longer.
_PIPELINE_FLOPS = 4e6


class Stack:
    """A stack of GRU layers: each layer reads the outputs of the previous one.

    Each step of a layer gets the concatenated outputs of the previous layer's directions. Its input size is
    D·H of that layer.

    Args:
        layers: the layers, the lowest first.
        layout: the layout of calls that do not pass one: 0 for time first, 1 for batch first. Default: None
        (the layers' layout, which must be the same for all).

    Raises:
        SpecError: there is no layer, a layer has attention, or an input size, type or layout does not match.
    """

    __module__ = "onegru"

    def __init__(self, layers: Sequence[GRU], *, layout: int | None = None) -> None:
        if isinstance(layers, str | np.ndarray) or not isinstance(layers, Iterable):
            raise SpecError.of("layers", f"{type(layers).__name__}; must be a sequence of GRU layers")
        self._layers = tuple(layers)
        if not self._layers:
            raise SpecError.of("layers", "empty; must contain at least one layer")
        for index, layer in enumerate(self._layers):
            if not isinstance(layer, GRU):
                raise SpecError(f"layers[{index}]: {type(layer).__name__}; must be a GRU")
            if layer.spec.attention:
                raise SpecError(f"layers[{index}]: has attention; layers of a stack must have no attention")
        for index, (below, above) in enumerate(zip(self._layers, self._layers[1:], strict=False), start=1):
            width = below.spec.num_directions * below.spec.hidden_size
            if above.spec.input_size != width:
                raise SpecError(
                    f"layers[{index}]: input size {above.spec.input_size}; must be {width}, the output size "
                    "of the layer below"
                )
            if above.spec.dtype != below.spec.dtype:
                raise SpecError(f"layers[{index}]: type {above.spec.dtype}; must be {below.spec.dtype}")
            if layout is None and above.layout != below.layout:
                raise SpecError(
                    f"layers[{index}]: layout {above.layout}; must be {below.layout}, like the layer below; "
                    "to override the layouts, pass layout to the stack"
                )
        self._layout = self._layers[0].layout if layout is None else integer("layout", layout, 0, 1)
        self._flops_of_row = flops_of_row((layer.input_size, layer.hidden_size) for layer in self._layers)

    @property
    def layers(self) -> tuple[GRU, ...]:
        """The layers, the lowest first."""
        return self._layers

    @property
    def layout(self) -> int:
        """The layout of calls that do not pass one: 0 for time first, 1 for batch first."""
        return self._layout

    def __repr__(self) -> str:
        return f"Stack({', '.join(map(repr, self._layers))}, layout={self._layout})"

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        from onegru.layers.cards import stack_card

        layout = f"{self._layout}, {('time', 'batch')[self._layout]} first"
        return stack_card([(item.spec, item.weight_storage) for item in self], [("layout", layout)])

    def with_storage(self, weight_storage: str | None, activation_storage: str | None = None) -> Stack:
        """Return the stack with all weights stored in another type.

        Raises:
            SpecError: an argument is invalid, or the layers are not float32.
        """
        layers = [layer.with_storage(weight_storage, activation_storage) for layer in self]
        return Stack(layers, layout=self._layout)

    @property
    def input_size(self) -> int:
        """Input size (I) of the lowest layer."""
        return self._layers[0].input_size

    @property
    def hidden_size(self) -> int:
        """Hidden size (H) of the last layer."""
        return self._layers[-1].hidden_size

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[GRU]:
        return iter(self._layers)

    def __getitem__(self, index: int) -> GRU:
        return self._layers[index]

    def __call__(
        self,
        X: ArrayLike,
        initial_h: ArrayLike | Sequence[ArrayLike | None] | None = None,
        *,
        sequence_lens: ArrayLike | None = None,
        layout: int | None = None,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Run all layers over a batch of sequences."""
        if (results := self._run_pipeline(X, initial_h, sequence_lens, layout)) is not None:
            return results
        last: list[Array] = []

        def run(layer: GRU, Y: ArrayLike, **arguments: Any) -> Array:
            Y, Y_h = layer(Y, **arguments)
            last.append(Y_h)
            return Y

        Y = through(self, run, X, initial_h, sequence_lens, layout)
        return Y, tuple(last)

    def _run_pipeline(
        self, X: Any, initial_h: Any, sequence_lens: Any, layout: int | None
    ) -> tuple[Array, tuple[Array, ...]] | None:
        """Run the layers together on several threads; return None if this is not possible or not faster."""
        layout = self._layout if layout is None else integer("layout", layout, 0, 1)
        is_plain = type(X) is np.ndarray and X.ndim == 3 and X.dtype == numpy_dtype(self[0].spec.dtype)
        # A subclass may change what a call computes.
        is_forward = all(type(layer) is GRU and layer.spec.direction == "forward" for layer in self)
        if not is_plain or not is_forward or sequence_lens is not None or len(self) == 1:
            return None
        B = X.shape[1 - layout]
        if not may_pipeline(B, X.shape[0] * X.shape[1] * self._flops_of_row):
            return None
        states = _initial_states(self, initial_h, layout)
        streams = [layer.stream(B) for layer in self]
        for stream, state in zip(streams, states, strict=True):
            if state is None:
                continue
            shape = (B, 1, stream.hidden_size) if layout else (1, B, stream.hidden_size)
            if type(state) is not np.ndarray or (state.dtype, state.shape) != (X.dtype, shape):
                return None
            stream.state = state[:, 0] if layout else state[0]
        if (Y := _native.run_stack(streams, X, layout == 1)) is None:
            return None
        with np.errstate(all="ignore"):  # float16 may overflow
            last = [stream.state.astype(X.dtype, copy=False) for stream in streams]
        return Y, tuple(np.expand_dims(state, layout) for state in last)

    def trace(
        self,
        X: ArrayLike,
        initial_h: ArrayLike | Sequence[ArrayLike | None] | None = None,
        *,
        sequence_lens: ArrayLike | None = None,
        layout: int | None = None,
    ) -> tuple[GateTrace, ...]:
        """Return the gates of each layer at each step.

        Args:
            X: as in `__call__`, like all arguments.
            initial_h: as in `__call__`.
            sequence_lens: as in `__call__`.
            layout: as in `__call__`.

        Raises:
            SpecError: an argument is invalid; the message names the layer.
        """
        traces: list[GateTrace] = []

        def run(layer: GRU, Y: ArrayLike, *, layout: int, **arguments: Any) -> Array:
            traces.append(layer.trace(Y, layout=layout, **arguments))
            return arrange(traces[-1].h, "TDBH", "BTDH" if layout else "TDBH")

        through(self, run, X, initial_h, sequence_lens, layout)
        return tuple(traces)

    def stream(self, batch_size: int = 1) -> StackStream:
        """Create a stream of `batch_size` rows through forward layers.

        Raises:
            SpecError: batch_size is less than 1, or a layer does not run only forward.
        """
        return StackStream([layer.stream(batch_size) for layer in self._layers])


class StackStream:
    """A stream through all layers of a stack, from `Stack.stream`.

    A sequence fed in chunks of any size gives bitwise the same results as one call. Not thread-safe.
    """

    __module__ = "onegru.reports"

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = tuple(streams)

    def __repr__(self) -> str:
        return f"StackStream({', '.join(map(repr, self._streams))})"

    def __getstate__(self) -> Any:
        return state_of(self, _streams=tuple(map(copy, self._streams)))  # a copy has a separate state

    @property
    def batch_size(self) -> int:
        """Batch size (B), the number of rows."""
        return self._streams[0].batch_size

    @property
    def input_size(self) -> int:
        """Input size (I) of the lowest layer."""
        return self._streams[0].input_size

    @property
    def hidden_size(self) -> int:
        """Hidden size (H) of the last layer."""
        return self._streams[-1].hidden_size

    @property
    def state(self) -> tuple[Array, ...]:
        """A copy of each layer's state, [B, H]. Assign a sequence with one state per layer to set them."""
        return tuple(stream.state for stream in self._streams)

    @state.setter
    def state(self, values: Sequence[ArrayLike]) -> None:
        if not isinstance(values, list | tuple) or len(values) != len(self._streams):
            raise SpecError.of("state", f"must be {len(self._streams)} arrays, one for each layer")
        before = self.state
        try:
            for stream, value in zip(self._streams, values, strict=True):
                stream.state = value
        except SpecError:  # set all states or none
            for stream, old in zip(self._streams, before, strict=True):
                stream.state = old
            raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layers' states to a file, in NumPy's `.npz` format.

        Raises:
            SpecError: path is not the name of a file.
            OSError: the file cannot be written. An existing file stays as it is.
        """
        save_states(path, self._streams)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Set the states to those in a file from `save`.

        Raises:
            FormatError: the file is not from `save`.
            SpecError: the states do not fit this stream. The current states stay.
            OSError: the file cannot be opened.
        """
        load_states(path, self._streams)

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Set the states of `rows` (indices; None for all) to zero."""
        for stream in self._streams:
            stream.reset(rows)

    def step(self, x: ArrayLike, *, rows: ArrayLike | None = None, out: Array | None = None) -> Array:
        """Run one step, and return the last layer's state.

        Args:
            x: the inputs [B, I], or [n, I] with `rows`, of the layers' type.
            rows: indices of the rows that take the step, each at most once. Default: None (all rows).
            out: the array for the state. Default: None (a new array).

        Raises:
            SpecError: an argument is invalid. In this case, all states stay.
        """
        return self._through(lambda stream, h: stream.step(h, rows=rows), x, out)

    def run(self, X: ArrayLike, *, out: Array | None = None) -> Array:
        """Run X [T, B, I], and return the last layer's Y [T, B, H].

        Raises:
            SpecError: an argument is invalid. In this case, all states stay.
        """
        # A subclass may change the computation of a chunk.
        is_plain = out is None and all(type(stream) is Stream for stream in self._streams)
        if is_plain and (Y := _native.run_stack(self._streams, X, False)) is not None:
            return Y[:, 0]
        return self._through(lambda stream, Y: stream.run(Y), X, out)

    def _through(self, take: Callable[[Stream, ArrayLike], Array], x: ArrayLike, out: Array | None) -> Array:
        """Call `take` on each layer in turn. If a layer or Ctrl-C ends this early, restore all states."""
        # A stream that fails keeps its state. So the last stream has moved only if `out` is rejected.
        moving = self._streams[:-1] if out is None else self._streams
        before = [stream.state for stream in moving]
        try:
            for stream in self._streams:
                x = take(stream, x)
            h = np.asarray(x)
            if out is not None:
                output(out, h.shape, h.dtype)[...] = h
            return h if out is None else out
        except BaseException:
            for stream, state in zip(moving, before, strict=True):
                stream.state = state
            raise


def flops_of_row(sizes: Iterable[tuple[int, int]]) -> float:
    """Return the FLOPs of a step of one row through layers of these sizes (I, H)."""
    return sum(6.0 * H * (I + H) for I, H in sizes)


def may_pipeline(rows: int, flops: float) -> bool:
    """Whether layers may be faster as a pipeline; with more rows, each thread computes a share of them."""
    threads = _native.num_threads()
    return threads > 1 and 0 < rows < 4 * threads and flops >= _PIPELINE_FLOPS


def layers_of(source: GRU | Stack) -> Sequence[GRU]:
    """Return the layers of a stack, or the layer itself."""
    if isinstance(source, GRU):
        return (source,)
    if isinstance(source, Stack):
        return source.layers
    raise SpecError.of("source", f"{type(source).__name__}; must be a GRU or a Stack")


def through(
    stack: Stack,
    run: Callable[..., Array],
    X: ArrayLike,
    initial_h: Any = None,
    sequence_lens: Any = None,
    layout: int | None = None,
) -> Array:
    """Run all layers of a stack by `run`, which takes a layer and the arguments of a call and returns Y."""
    layout = stack.layout if layout is None else integer("layout", layout, 0, 1)
    states = _initial_states(stack, initial_h, layout)
    Y = X
    for index, (layer, state) in enumerate(zip(stack, states, strict=True)):
        if index:
            Y = side_by_side(np.asarray(Y), layout)
        try:
            Y = run(layer, Y, initial_h=state, sequence_lens=sequence_lens, layout=layout)
        except SpecError as error:
            location = f"layer {index}: " if len(stack) > 1 else ""
            raise SpecError(f"{location}{error}", error.argument) from error.__cause__
    return np.asarray(Y)


def _initial_states(stack: Stack, initial_h: Any, layout: int) -> Sequence[Any]:
    if initial_h is None:
        return (None,) * len(stack)
    if isinstance(initial_h, list | tuple):
        if len(initial_h) != len(stack):
            raise SpecError.of(
                "initial_h", f"{count(len(initial_h), 'array')}; must be {len(stack)}, one for each layer"
            )
        return initial_h
    array = as_float_array("initial_h", initial_h)
    counts = [layer.spec.num_directions for layer in stack]
    if array.ndim != 3 or len(array) != sum(counts):
        raise SpecError.of(
            "initial_h",
            f"shape {list(array.shape)}; must be [{sum(counts)}, batch_size, hidden_size], or "
            "one array for each layer",
        )
    states = np.split(array, np.cumsum(counts)[:-1])
    return [state.swapaxes(0, 1) for state in states] if layout else states
