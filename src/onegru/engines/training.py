"""A layer that is trained: its weights are new in every call, and a call has gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from onegru import _native
from onegru.core.activations import Activation
from onegru.core.dtypes import ELEMENT_TYPES, Array, contiguous, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Direction, Spec
from onegru.engines.native import layer_arguments

_DEFAULT = (Activation("Sigmoid"), Activation("Tanh"))


class DirectionWeights(NamedTuple):
    """The weights of a direction, or the gradients by them; contiguous.

    Attributes:
        W: [3H, I].
        R: [3H, H].
        Wb: [3H]; None for zeros.
        Rb: [3H]; None for zeros.
    """

    W: Array | None
    R: Array | None
    Wb: Array | None
    Rb: Array | None


@dataclass(frozen=True, slots=True)
class Resets:
    """Where the state is set back inside sequences.

    Attributes:
        before: [T, B], booleans: whether the state is set back before this step is computed, in the order in
            which its direction computes steps.
        to_initial: whether to the initial state; else to zeros.
    """

    before: Array
    to_initial: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The inputs of a call, in canonical form, of the layer's type; the last axes are contiguous.

    Attributes:
        X: [T, B, I].
        initial_h: [D, B, H]; None for zeros.
        sequence_lens: [B], int64, each in 0…T; None for all T.
        attention: [T, B]; None without attention.
        resets: where the state is set back; None for nowhere.
    """

    X: Array
    initial_h: Array | None = None
    sequence_lens: Array | None = None
    attention: Array | None = None
    resets: Resets | None = None


def _check_shape(name: str, array: Array | None, *shape: int) -> None:
    if array is not None and array.shape != shape:
        raise SpecError(f"{name}: shape {list(array.shape)}; must be {list(shape)}")


class TrainedLayer:
    """A layer with the weights of one call.

    Args:
        spec: what to compute, in float32 or float64.
        weights: of each direction; they must not change as long as gradients are wanted.
        order: where z, r and n are among their gates.

    Raises:
        SpecError: the weights are of another shape.
    """

    def __init__(self, spec: Spec, weights: Sequence[DirectionWeights], order: tuple[int, int, int]) -> None:
        self.spec = spec
        self._weights = weights
        self._order = order
        kind = ELEMENT_TYPES.index(spec.dtype)
        H, I = spec.hidden_size, spec.input_size
        for own in weights:
            _check_shape("W", own.W, 3 * H, I)
            _check_shape("R", own.R, 3 * H, H)
            _check_shape("Wb", own.Wb, 3 * H)
            _check_shape("Rb", own.Rb, 3 * H)
        given = [list(own) for own in weights]
        self._is_default = spec.clip is None and set(spec.activations) == {_DEFAULT}
        self._native = _native.Layer(*layer_arguments(spec), kind, numpy_dtype(spec.dtype), given, order)

    def _check(self, call: Call) -> None:
        if call.X.ndim != 3:
            raise SpecError(f"X: shape {list(call.X.shape)}; must be [T, B, I]")
        T, B, _ = call.X.shape
        _check_shape("X", call.X, T, B, self.spec.input_size)
        _check_shape("initial_h", call.initial_h, self.spec.num_directions, B, self.spec.hidden_size)
        _check_shape("attention", call.attention, T, B)
        if call.resets is not None:
            _check_shape("resets", call.resets.before, T, B)
        if (lengths := call.sequence_lens) is not None:
            _check_shape("sequence_lens", lengths, B)
            if B and not 0 <= lengths.min() <= lengths.max() <= T:
                raise SpecError(f"sequence_lens: {lengths.min()}…{lengths.max()}; must be in 0…{T}")

    def forward(self, call: Call, *, saves: bool = False) -> tuple[Array, Array, Array | None]:
        """Y [T, D, B, H] and Y_h [D, B, H], zero past each row's end, and the gates of each step.

        Args:
            call: the call.
            saves: whether to keep the gates for the gradients: [T, D, B, S], S being 4·H in whole vectors.
                None are kept with resets, a bound, or activations other than Sigmoid and Tanh: the gradients
                compute them again.

        Raises:
            SpecError: an input is of another shape; sequence_lens are not in 0…T.
        """
        self._check(call)
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, call.X.dtype
        if call.resets is not None:
            return *self._forward_with_resets(call, call.resets), None
        Y, Y_h = np.empty((T, D, B, H), dtype), np.empty((D, B, H), dtype)
        gates = None
        if saves and self._is_default and T and B:
            gates = np.empty((T, D, B, self._native.saved_size), dtype)
        given = call.X, call.initial_h, call.sequence_lens, call.attention
        self._native.run(*given, Y, Y_h, False, gates)
        return Y, Y_h, gates

    def _forward_with_resets(self, call: Call, resets: Resets) -> tuple[Array, Array]:
        """The same from one reset of any row to the next."""
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, call.X.dtype
        Y, Y_h = np.zeros((T, D, B, H), dtype), np.zeros((D, B, H), dtype)
        lengths = np.full(B, T, np.int64) if call.sequence_lens is None else call.sequence_lens
        at = np.flatnonzero(resets.before.any(1))
        for d, backwards in enumerate(self.spec.reversed_directions):
            layer = self if D == 1 else self._one_direction(d, backwards)
            start = np.zeros((B, H), dtype) if call.initial_h is None else call.initial_h[d]
            state = start.copy()
            parts = list(pairwise(sorted({0, T, *(at + 1 if backwards else at).tolist()})))
            for begin, end in reversed(parts) if backwards else parts:
                first = end - 1 if backwards else begin
                rows = resets.before[first] & (lengths > first)
                state[rows] = start[rows] if resets.to_initial else 0
                taken = np.clip(lengths - begin, 0, end - begin)
                scores = None if call.attention is None else call.attention[begin:end]
                last = np.empty((1, B, H), dtype)
                y = Y[begin:end, d : d + 1]
                layer._native.run(call.X[begin:end], state[None], taken, scores, y, last, False)
                state = np.where((taken > 0)[:, None], last[0], state)
            Y_h[d] = np.where((lengths > 0)[:, None], state, 0)
        return Y, Y_h

    def _one_direction(self, d: int, backwards: bool) -> TrainedLayer:
        direction: Direction = "reverse" if backwards else "forward"
        spec = replace(self.spec, direction=direction, activations=self.spec.activations[d : d + 1])
        return TrainedLayer(spec, self._weights[d : d + 1], self._order)

    def gradients(
        self,
        call: Call,
        Y: Array,
        gates: Array | None,
        dY: Array | None,
        dY_h: Array | None,
        wanted: Collection[str],
        weights: Sequence[Collection[str]],
    ) -> tuple[dict[str, Array], list[DirectionWeights]]:
        """The gradients of a loss by the inputs and the weights of a call.

        Sums over steps and rows have an order that depends on the shapes alone: the bits are the same for
        any number of threads.

        Args:
            call: the call.
            Y: what `forward` gave for it.
            gates: likewise; None to compute them again.
            dY: the gradient by Y, its last axis contiguous; None for zeros.
            dY_h: the gradient by Y_h, likewise.
            wanted: by which inputs: "X", "initial_h", "attention".
            weights: by which weights of each direction: "W", "R", "Wb", "Rb".

        Returns:
            the gradients that are wanted, of the shapes of what they are by.

        Raises:
            SpecError: an array is of another shape; sequence_lens are not in 0…T.
        """
        self._check(call)
        T, B, I = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, call.X.dtype
        _check_shape("Y", Y, T, D, B, H)
        _check_shape("gates", gates, T, D, B, self._native.saved_size)
        _check_shape("dY", dY, T, D, B, H)
        _check_shape("dY_h", dY_h, D, B, H)
        shapes = {"X": (T, B, I), "initial_h": (D, B, H), "attention": (T, B)}
        found = {name: np.zeros(shapes[name], dtype) for name in wanted}
        sizes = {"W": (3 * H, I), "R": (3 * H, H), "Wb": (3 * H,), "Rb": (3 * H,)}
        by = [
            DirectionWeights(
                *(np.zeros(size, dtype) if name in own else None for name, size in sizes.items())
            )
            for own in weights
        ]
        resets = call.resets
        self._native.gradients(
            call.X,
            call.initial_h,
            call.sequence_lens,
            call.attention,
            None if resets is None else contiguous(resets.before, np.uint8),
            resets is not None and resets.to_initial,
            Y,
            gates,
            dY,
            dY_h,
            found.get("X"),
            [list(own) for own in by],
            found.get("initial_h"),
            found.get("attention"),
        )
        return found, by
