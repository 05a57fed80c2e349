"""A stream: a forward layer and the state that it keeps between calls."""

from __future__ import annotations

import numpy as np

from onegru import _native
from onegru.dtypes import Array, as_float_array, as_lengths, numpy_dtype
from onegru.errors import SpecError
from onegru.problem import Engine
from onegru.shapes import arrange, check_shape, overlaps_itself
from onegru.spec import Spec

__all__ = ["Stream"]


class Stream(_native.Stepper):
    """Rows that go through a forward layer step by step, by `step` or `run`; made by `GRU.stream`.

    Feeding a sequence in chunks of any size gives the bits that one call gives: the state is kept in the type
    that is computed in (float64 for float64, else float32). A stream is not safe to call from several threads
    at once; the layer under several streams is. A call that a signal's handler ends by an exception, as Ctrl-C
    does, leaves the state as it was; what it was writing is unspecified.
    """

    def __init__(self, spec: Spec, engine: Engine, batch_size: int) -> None:
        """Begin with a state of zeros; see `GRU.stream`."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise SpecError(f"batch_size: {batch_size!r}; must be an integer, at least 1")
        if spec.direction != "forward":
            raise SpecError(f"stream: the layer's direction is {spec.direction!r}; must be 'forward'")
        shape = (int(batch_size), spec.hidden_size)
        state = np.zeros(shape, np.float64 if spec.dtype == "float64" else np.float32)
        stream = engine.stream(state)
        # It refuses to be made a second time: nothing may have changed by then.
        super().__init__(stream.try_step)
        self._spec = spec
        self._dtype = numpy_dtype(spec.dtype)
        self._shape = shape
        self._state = state
        self._stream = stream

    def __repr__(self) -> str:
        B, H = self._shape
        return f"Stream({B} rows, {self._spec.input_size} → {H}, {self._spec.dtype})"

    @property
    def state(self) -> Array:
        """A copy of the state, [B, H], in the type that is computed in. Assign to it to set the state."""
        return self._state.copy()

    @state.setter
    def state(self, value: object) -> None:
        names = dict.fromkeys((self._state.dtype.name, self._dtype.name))
        array = as_float_array("state", value, tuple(names))
        check_shape("state", array.shape, "BH", {"B": self._shape[0], "H": self._shape[1]})
        self._state[...] = array

    def reset(self, rows: object = None) -> None:
        """Set the state of `rows` (indices; None for all) to zero.

        Raises:
            SpecError: rows are not indices of the batch, each at most once.
        """
        self._state[slice(None) if rows is None else self._rows(rows)] = 0

    def _step(
        self, x: object, *, attention: object = None, rows: object = None, out: Array | None = None
    ) -> Array:
        """`step`, which native code takes first: what is not plain, or not right."""
        if out is None and attention is None and rows is None:
            h = np.empty(self._shape, self._dtype)
            if self._stream.try_step(x, h):
                return h
        array = self._checked("x", x)
        sizes = self._sizes(rows)
        check_shape("x", array.shape, "BI", sizes)
        scores = self._attention(attention, ("B", "B1"), sizes)
        h = self._out(out, (sizes["B"], self._spec.hidden_size))
        self._run(array[None], None if scores is None else arrange(scores, "B", "TB"), rows, h[None, None])
        return h

    def run(self, X: object, *, attention: object = None, out: Array | None = None) -> Array:
        """Take as many steps as X has; none leave the state as it is.

        Args:
            X: [T, B, I], of the layer's type.
            attention: [T, B] or [T, B, 1]; required if and only if the layer has attention.
            out: what to write Y into; None for a new array.

        Returns:
            Y, the state after each step, [T, B, H], of the layer's type.

        Raises:
            SpecError: an argument is not legal.
        """
        array = self._checked("X", X)
        sizes = self._sizes(None)
        check_shape("X", array.shape, "TBI", sizes)
        scores = self._attention(attention, ("TB", "TB1"), sizes)
        Y = self._out(out, (sizes["T"], *self._shape))
        self._run(array, scores, None, Y[:, None])
        return Y

    def write(self, values: Array, out: Array) -> Array:
        """Put `values`, of the layer's type, into `out`, as `step` and `run` put theirs.

        Raises:
            SpecError: `out` is not an array of their type and shape that can be written.
        """
        self._out(out, values.shape)[...] = values
        return out

    def _sizes(self, rows: object) -> dict[str, int]:
        count = self._shape[0] if rows is None else len(self._rows(rows))
        return {"B": count, "I": self._spec.input_size, "H": self._spec.hidden_size}

    def _rows(self, rows: object) -> Array:
        indices = as_lengths("rows", rows)
        check_shape("rows", indices.shape, "n", {}, {"n": "rows"})
        wrong = indices[(indices < 0) | (indices >= self._shape[0])]
        if wrong.size:
            raise SpecError(f"rows: {wrong[0]}; must be in 0…{self._shape[0] - 1}")
        if len(np.unique(indices)) < len(indices):
            raise SpecError("rows: an index is there twice; must be there at most once")
        return indices.astype(np.int32)

    def _checked(self, name: str, value: object) -> Array:
        array = as_float_array(name, value)
        if array.dtype != self._dtype:
            raise SpecError(f"{name}: type {array.dtype.name}; must be {self._spec.dtype}, like W")
        return array

    def _attention(self, value: object, axes: tuple[str, str], sizes: dict[str, int]) -> Array | None:
        if value is None:
            if self._spec.attention:
                raise SpecError("attention: missing; must be given")
            return None
        if not self._spec.attention:
            raise SpecError("attention: given; must be None, as the layer was made without attention")
        array = self._checked("attention", value)
        plain, with_one = axes
        given = with_one if array.ndim == len(with_one) else plain
        check_shape("attention", array.shape, given, sizes)
        return arrange(array, given, plain)

    def _out(self, out: Array | None, shape: tuple[int, ...]) -> Array:
        if out is None:
            return np.empty(shape, self._dtype)
        if not isinstance(out, np.ndarray) or out.dtype != self._dtype or out.shape != shape:
            is_ = f"{out.dtype.name} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
            raise SpecError(f"out: {is_}; must be an array, {self._spec.dtype} {list(shape)}")
        if not out.flags.writeable:
            raise SpecError("out: read-only; must be writeable")
        if np.ma.isMaskedArray(out) or overlaps_itself(out):
            raise SpecError("out: masked or overlaps itself; must be a plain array")
        return out

    def _run(self, X: Array, attention: Array | None, rows: object, Y: Array) -> None:
        Y = np.asarray(Y)  # of NumPy's own class: a memory map is as good as any
        target = Y
        if np.may_share_memory(Y, X) or (attention is not None and np.may_share_memory(Y, attention)):
            target = np.empty(Y.shape, Y.dtype)
        self._stream.run(X, attention, None if rows is None else self._rows(rows), target)
        if target is not Y:
            Y[...] = target
