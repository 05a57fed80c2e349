"""A layer that is trained: its weights are new in every call, and a call has gradients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.spec import Spec, Weights
from onegru.engines.interface import Problem
from onegru.engines.native import NativeEngine


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


class TrainedLayer:
    """A layer with the weights of one call.

    Args:
        spec: what to compute, in float32 or float64.
        weights: its weights, contiguous.
    """

    def __init__(self, spec: Spec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights
        self._engine = NativeEngine(spec, weights)

    def forward(self, call: Call) -> tuple[Array, Array]:
        """Y [T, D, B, H] and Y_h [D, B, H], zero past each row's end."""
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, call.X.dtype
        if call.resets is not None:
            return self._forward_with_resets(call, call.resets)
        Y, Y_h = np.empty((T, D, B, H), dtype), np.empty((D, B, H), dtype)
        self._engine.run(Problem(call.X, call.initial_h, call.sequence_lens, call.attention, Y, Y_h))
        return Y, Y_h

    def _forward_with_resets(self, call: Call, resets: Resets) -> tuple[Array, Array]:
        """The same from one reset of any row to the next."""
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, call.X.dtype
        Y, Y_h = np.zeros((T, D, B, H), dtype), np.zeros((D, B, H), dtype)
        lengths = np.full(B, T) if call.sequence_lens is None else call.sequence_lens
        at = np.flatnonzero(resets.before.any(1))
        for d, backwards in enumerate(self.spec.reversed_directions):
            engine = self._engine if D == 1 else self._one_direction(d, backwards)
            start = np.zeros((B, H), dtype) if call.initial_h is None else call.initial_h[d]
            state = start.copy()
            cuts = sorted({0, T, *(at + 1 if backwards else at).tolist()})
            parts = list(pairwise(cuts))
            for begin, end in reversed(parts) if backwards else parts:
                first = end - 1 if backwards else begin
                rows = resets.before[first] & (lengths > first)
                state[rows] = start[rows] if resets.to_initial else 0
                taken = np.clip(lengths - begin, 0, end - begin)
                scores = None if call.attention is None else call.attention[begin:end]
                last = np.empty((1, B, H), dtype)
                y = Y[begin:end, d : d + 1]
                engine.run(Problem(call.X[begin:end], state[None], taken, scores, y, last))
                state = np.where((taken > 0)[:, None], last[0], state)
            Y_h[d] = np.where((lengths > 0)[:, None], state, 0)
        return Y, Y_h

    def _one_direction(self, d: int, backwards: bool) -> NativeEngine:
        spec = replace(
            self.spec,
            direction="reverse" if backwards else "forward",
            activations=self.spec.activations[d : d + 1],
        )
        W, R, B = (array[d : d + 1] for array in (self.weights.W, self.weights.R, self.weights.B))
        return NativeEngine(spec, Weights(W, R, B))

    def gradients(
        self, call: Call, Y: Array, dY: Array | None, dY_h: Array | None, wanted: Collection[str]
    ) -> dict[str, Array]:
        """The gradients of a loss by the inputs of a call.

        Sums over steps and rows have an order that depends on the shapes alone: the bits are the same for
        any number of threads.

        Args:
            call: the call.
            Y: what `forward` gave for it.
            dY: the gradient by Y, its last axis contiguous; None for zeros.
            dY_h: the gradient by Y_h, likewise.
            wanted: which gradients: X, W, R, B, initial_h, attention.

        Returns:
            the gradients that are wanted, of the shapes of what they are by.
        """
        assert self._engine.native is not None
        shapes = {
            "X": call.X.shape,
            "W": self.weights.W.shape,
            "R": self.weights.R.shape,
            "B": self.weights.B.shape,
            "initial_h": (self.spec.num_directions, call.X.shape[1], self.spec.hidden_size),
            "attention": call.X.shape[:2],
        }
        found = {name: np.zeros(shapes[name], call.X.dtype) for name in wanted}
        resets = call.resets
        self._engine.native.gradients(
            call.X,
            call.initial_h,
            call.sequence_lens,
            call.attention,
            None if resets is None else np.ascontiguousarray(resets.before, np.uint8),
            resets is not None and resets.to_initial,
            Y,
            dY,
            dY_h,
            self.weights.W,
            self.weights.R,
            found.get("X"),
            found.get("W"),
            found.get("R"),
            found.get("B"),
            found.get("initial_h"),
            found.get("attention"),
        )
        return found
