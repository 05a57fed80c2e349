"""Forward pass and gradients of a layer in training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from onegru import _native
from onegru.core.activations import DEFAULT_ACTIVATIONS
from onegru.core.dtypes import ELEMENT_TYPES, Array, contiguous, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Direction, Spec
from onegru.engines.native import layer_arguments

_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


class DirectionWeights(NamedTuple):
    """The contiguous weights of a direction, or their gradients."""

    W: Array | None  # [3H, I]
    R: Array | None  # [3H, H]
    Wb: Array | None  # [3H]; None for zeros
    Rb: Array | None  # [3H]; None for zeros


class Outputs(NamedTuple):
    """The outputs of a call; the last axes are contiguous."""

    Y: Array  # [T, D, B, H], zero in the padding
    Y_h: Array  # [D, B, H], the last state
    # the gates of each step, [T, D, B, S], where S is 4·H in whole vectors; None if they are not saved
    gates: Array | None


@dataclass(frozen=True, slots=True)
class Resets:
    """The steps at which the state is reset inside sequences."""

    # [T, B], booleans: whether a direction resets the state before it computes this step.
    before: Array
    to_initial: bool = False  # whether a reset restores the initial state; else it sets zeros


@dataclass(frozen=True, slots=True)
class LayerCall:
    """The inputs of a call in canonical form, of the layer's type. The last axes are contiguous."""

    X: Array  # [T, B, I]
    initial_h: Array | None = None  # [D, B, H]; None for zeros
    sequence_lens: Array | None = None  # [B], int64, each in 0…T; None for all T
    attention: Array | None = None  # [T, B]; None without attention
    resets: Resets | None = None  # resets of the state; None without resets


def _check_array(name: str, array: Array | None, dtype: np.dtype[Any], *shape: int) -> None:
    if array is None:
        return
    if array.shape != shape:
        raise SpecError.of(name, f"shape {list(array.shape)}; must be {list(shape)}")
    if array.dtype != dtype:
        raise SpecError.of(name, f"{array.dtype}; must be {dtype}")


class TrainedLayer:
    """A layer with the weights of one call."""

    def __init__(
        self,
        spec: Spec,
        weights: Sequence[DirectionWeights],
        order: tuple[int, int, int],
        *,
        packs: bool = True,
    ) -> None:
        self.spec = spec
        self._weights = weights
        self._order = order
        self._dtype = numpy_dtype(spec.dtype)
        kind = ELEMENT_TYPES.index(spec.dtype)
        H, I = spec.hidden_size, spec.input_size
        for own in weights:
            _check_array("W", own.W, self._dtype, 3 * H, I)
            _check_array("R", own.R, self._dtype, 3 * H, H)
            _check_array("Wb", own.Wb, self._dtype, 3 * H)
            _check_array("Rb", own.Rb, self._dtype, 3 * H)
        given = [list(own) for own in weights]
        self._is_default = spec.clip is None and set(spec.activations) == {DEFAULT_ACTIVATIONS}
        self._native = _native.Layer(*layer_arguments(spec), kind, self._dtype, given, order, packs)

    def stream(self, state: Array) -> _native.Stream:
        """Return a native stream through this forward layer, which changes `state` [B, H] in place."""
        return _native.Stream(self._native, state)

    def saved_size(self, call: LayerCall) -> int:
        """Return the saved values per row and step; 0 if the gradients compute the gates again."""
        T, B, _ = call.X.shape
        keeps = self._is_default and call.resets is None and T and B
        return self._native.saved_size if keeps else 0

    def _check(self, call: LayerCall) -> None:
        if call.X.ndim != 3:
            raise SpecError.of("X", f"shape {list(call.X.shape)}; must be [T, B, I]")
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, self._dtype
        _check_array("X", call.X, dtype, T, B, self.spec.input_size)
        _check_array("initial_h", call.initial_h, dtype, D, B, H)
        _check_array("attention", call.attention, dtype, T, B)
        if call.resets is not None:
            _check_array("resets", call.resets.before, _BOOL, T, B)
        if (lengths := call.sequence_lens) is not None:
            _check_array("sequence_lens", lengths, _INT64, B)
            if B and not 0 <= lengths.min() <= lengths.max() <= T:
                raise SpecError.of("sequence_lens", f"{lengths.min()}…{lengths.max()}; must be in 0…{T}")

    def forward(self, call: LayerCall, *, saves: bool = False, out: Outputs | None = None) -> Outputs:
        """Return the outputs of a call."""
        self._check(call)
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, self._dtype
        if out is None:
            size = self.saved_size(call) if saves else 0
            gates = np.empty((T, D, B, size), dtype) if size else None
            out = Outputs(np.empty((T, D, B, H), dtype), np.empty((D, B, H), dtype), gates)
        else:
            _check_array("Y", out.Y, dtype, T, D, B, H)
            _check_array("Y_h", out.Y_h, dtype, D, B, H)
            _check_array("gates", out.gates, dtype, T, D, B, self._native.saved_size)
        if call.resets is not None:
            self._forward_with_resets(call, call.resets, out)
        else:
            given = call.X, call.initial_h, call.sequence_lens, call.attention
            self._native.run(*given, out.Y, out.Y_h, False, out.gates)
        return out

    def _forward_with_resets(self, call: LayerCall, resets: Resets, out: Outputs) -> None:
        """Compute the outputs in parts, each from one reset of any row to the next."""
        T, B, _ = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, self._dtype
        Y, Y_h, _ = out
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
                row_steps = np.clip(lengths - begin, 0, end - begin)
                scores = None if call.attention is None else call.attention[begin:end]
                last = np.empty((1, B, H), dtype)
                y = Y[begin:end, d : d + 1]
                layer._native.run(call.X[begin:end], state[None], row_steps, scores, y, last, False)
                state = np.where((row_steps > 0)[:, None], last[0], state)
            Y_h[d] = np.where((lengths > 0)[:, None], state, 0)

    def _one_direction(self, d: int, backwards: bool) -> TrainedLayer:
        direction: Direction = "reverse" if backwards else "forward"
        spec = replace(self.spec, direction=direction, activations=self.spec.activations[d : d + 1])
        return TrainedLayer(spec, self._weights[d : d + 1], self._order)

    def gradients(
        self,
        call: LayerCall,
        Y: Array,
        gates: Array | None,
        dY: Array | None,
        dY_h: Array | None,
        wanted: Collection[str],
        weights: Sequence[Collection[str]],
        new: Callable[[tuple[int, ...]], Array] | None = None,
    ) -> tuple[dict[str, Array], list[DirectionWeights]]:
        """Return the gradients of inputs and weights, bitwise equal for any number of threads."""
        self._check(call)
        T, B, I = call.X.shape
        D, H, dtype = self.spec.num_directions, self.spec.hidden_size, self._dtype
        _check_array("Y", Y, dtype, T, D, B, H)
        _check_array("gates", gates, dtype, T, D, B, self._native.saved_size)
        _check_array("dY", dY, dtype, T, D, B, H)
        _check_array("dY_h", dY_h, dtype, D, B, H)
        made = new or (lambda shape: np.empty(shape, dtype))
        shapes = {"X": (T, B, I), "initial_h": (D, B, H), "attention": (T, B)}
        found = {name: made(shapes[name]) for name in wanted}
        sizes = {"W": (3 * H, I), "R": (3 * H, H), "Wb": (3 * H,), "Rb": (3 * H,)}
        by = [
            DirectionWeights(*(made(size) if name in own else None for name, size in sizes.items()))
            for own in weights
        ]
        # Gradients of inputs are accumulated. Gradients of weights are overwritten, if there is any step.
        lengths = call.sequence_lens
        has_steps = bool(T and B and (lengths is None or lengths.max()))
        for array in (*found.values(), *(() if has_steps else (array for own in by for array in own))):
            if array is not None:
                array.fill(0)
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
