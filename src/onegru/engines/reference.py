"""The reference: a GRU in float64, written from the equations, vectorized only over the batch.

It shares no code with the code that it checks. Every line of `step` is one line of the specification:

    zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
    rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
    ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)       linear_before_reset = 0
    ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)     linear_before_reset != 0
    Ht = (1 - zt) (.) ht + zt (.) Ht-1
    zt' = (1 - at) (.) zt                                      with attention, before the last line
    zt' = 1 - at (.) (1 - zt)                                  with DIEN's attention
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.core.dtypes import ACTIVATION_STORAGES, Array
from onegru.core.elementary import NumpyElementary
from onegru.core.spec import Spec, Weights, attended
from onegru.engines.interface import Problem
from onegru.engines.storage import LEAST_RANGE, quantize_channels, rounded_to_bfloat16

Float64 = npt.NDArray[np.float64]

#: The least states that are not flushed, for layers that are computed in float32 and in float64.
LEAST_STATES = 2.0**-100, 2.0**-1000
#: The least state of a layer that rounds activations to bfloat16: subnormal states are zero.
LEAST_NORMAL = 2.0**-126

# The approximate size in bytes of a block in `trace`.
_TRACED_BYTES = 64 << 20


def activate(activation: Activation, x: Float64) -> Float64:
    """Return the activation of each element of `x`. NaN gives NaN; ±∞ gives the limit."""
    result: Float64 = ACTIVATIONS[activation.name].compute(NumpyElementary(), x, *activation.parameters)
    return result


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A transposed int8 weight matrix that also rounds its operand to integers.

    A row x becomes q = x/s, rounded to nearest even, in float32: |q| ≤ 127 for one plane, 127·128 for two.
    The scale s is computed from the largest |x| of the row, or from 1 for a state within ±1. The product is

        Σ (s · scale of the group) · Σ q·w

    over the groups of the channel, with the scales' product rounded to float32, and the inner sum exact.
    """

    w: Float64  # int8 numbers, [K, channels]
    scale: Array  # the scale of each group of each channel, [groups, channels]
    group: int  # the number of weights of a channel that share a scale; 0 for all
    planes: int  # 1 or 2
    is_state: bool  # whether its rows are states, whose least range is 1

    __array_ufunc__ = None  # NumPy then calls __rmatmul__ for x @ matrix

    def __rmatmul__(self, x: Float64) -> Float64:
        numbers = x.astype(np.float32)
        most = np.float32(127 if self.planes == 1 else 127 * 128)
        largest = np.abs(numbers).max(-1, keepdims=True, initial=0.0)
        if self.is_state:
            within = largest <= np.float32(1 + 2.0**-20)
            range_ = np.where(within, np.float32(1), largest)
        else:
            range_ = np.maximum(largest, LEAST_RANGE)
        q = np.rint(np.clip(numbers * (most / range_), -most, most)).astype(np.float64)
        scale = np.where(np.isfinite(largest), range_ / most, np.float32(np.nan))
        q = np.where(np.isfinite(q), q, 0.0)
        products = np.zeros((*q.shape[:-1], self.w.shape[1]))
        for index, of_group in enumerate(self.scale):
            inputs = slice(index * self.group, (index + 1) * self.group or None)
            products += (scale * of_group).astype(np.float64) * (q[..., inputs] @ self.w[inputs])
        return products


# The inputs of a block, and the bound below which a result rounds to zero in float32.
_BLOCK, _LEAST = 32, 2.0**-126 - 2.0**-151


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A transposed bfloat16 weight matrix that also rounds its operand to bfloat16.

    A sum consists of blocks of 32 inputs. In a block, the products with even and with odd indices form two
    chains of fused multiply-adds in float32. The sum of both is added to the sum of the previous blocks. All
    start at 0, and subnormal numbers are 0. A product of two bfloat16 numbers has 16 bits. So float64 holds
    each sum exactly, or with an error that does not change its rounding to float32.
    """

    w: Float64  # bfloat16 numbers, [K, channels]

    __array_ufunc__ = None  # NumPy then calls __rmatmul__ for x @ matrix

    def __rmatmul__(self, x: Float64) -> Float64:
        K, channels = self.w.shape
        blocks = -(-K // _BLOCK)
        padding = (0, blocks * _BLOCK - K)
        count = int(np.prod(x.shape[:-1]))  # -1 is not possible for K = 0
        rows = rounded_to_bfloat16(x.reshape(count, K).astype(np.float32)).astype(np.float64)
        inputs = np.pad(_flushed(rows), ((0, 0), padding)).reshape(len(rows), blocks, _BLOCK, 1)
        weights = np.pad(_flushed(self.w), (padding, (0, 0))).reshape(blocks, _BLOCK, channels)
        chains = np.zeros((2, len(rows), blocks, channels))
        for k in range(min(K, _BLOCK)):
            chains[k % 2] = _to_float32(chains[k % 2] + inputs[:, :, k] * weights[:, k])
        total = np.zeros((len(rows), channels))
        for block in range(blocks):
            total = _to_float32(total + _to_float32(chains[0, :, block] + chains[1, :, block]))
        return total.reshape(*x.shape[:-1], channels)


def _flushed(x: Float64) -> Float64:
    return np.where(np.abs(x) < _LEAST, np.copysign(0.0, x), x)


def _to_float32(x: Float64) -> Float64:
    """Round to float32; subnormal results are zero."""
    return _flushed(x).astype(np.float32).astype(np.float64)


Operand = Float64 | QuantizedMatrix | RoundedMatrix


@dataclass(frozen=True, slots=True)
class ReferenceWeights:
    """One direction's weights in float64, named as in the equations. Matrices are transposed."""

    Wz: Operand
    Wr: Operand
    Wh: Operand
    Rz: Operand
    Rr: Operand
    Rh: Operand
    Wbz: Float64
    Wbr: Float64
    Wbh: Float64
    Rbz: Float64
    Rbr: Float64
    Rbh: Float64

    @classmethod
    def split(
        cls, weights: Weights, activation_storage: str | None = None, group: int = 0
    ) -> tuple[ReferenceWeights, ...]:
        """Return the gates of each direction; other matrices if activations are rounded."""

        def gates(matrix: Array, is_state: bool) -> list[Any]:
            wide = np.split(matrix.astype(np.float64), 3)
            if activation_storage is None:
                return [gate.T for gate in wide]
            if activation_storage == "bfloat16":
                return [RoundedMatrix(gate.T) for gate in wide]
            planes = ACTIVATION_STORAGES[activation_storage]
            q, scale = quantize_channels(matrix, group)
            parts = zip(np.split(q.astype(np.float64), 3), np.split(scale, 3), strict=True)
            return [QuantizedMatrix(w.T, of_w.T, group, planes, is_state) for w, of_w in parts]

        return tuple(
            cls(*gates(W, False), *gates(R, True), *np.split(B.astype(np.float64), 6))
            for W, R, B in zip(weights.W, weights.R, weights.B, strict=True)
        )


def run(spec: Spec, weights: tuple[ReferenceWeights, ...], problem: Problem, least: float = 0.0) -> None:
    """Run all directions and rows, and write the outputs, which are zero in the padding."""
    X, attention, Y = problem.X, problem.attention, problem.Y
    T, B, _ = X.shape
    lengths = np.full(B, T) if problem.sequence_lens is None else problem.sequence_lens
    Y_h = np.zeros((spec.num_directions, B, spec.hidden_size))
    if Y is not None:
        Y[...] = 0
    # The caller is responsible for overflows and NaN inputs. Results follow IEEE 754.
    with np.errstate(all="ignore"):
        if problem.initial_h is not None:
            Y_h[...] = problem.initial_h
        for d, backwards in enumerate(spec.reversed_directions):
            H = Y_h[d]
            for done in range(int(lengths.max(initial=0))):
                rows = np.flatnonzero(done < lengths)
                t = lengths[rows] - 1 - done if backwards else np.full(len(rows), done)
                a = None if attention is None else attention[t, rows].astype(np.float64)[:, None]
                h = step(spec, weights[d], d, X[t, rows].astype(np.float64), H[rows], a).h
                H[rows] = np.where(np.abs(h) < least, 0.0, h)
                if Y is not None:
                    Y[t, d, rows] = H[rows]
            H[lengths == 0] = 0
        if problem.Y_h is not None:
            problem.Y_h[...] = Y_h


class StepResult(NamedTuple):
    """The results of a step, [B, H] each, or the results of all steps."""

    raw_z: Any  # the update gate before attention
    z: Any  # the update gate as the step uses it; without attention the same array
    r: Any  # the reset gate
    n: Any  # the candidate, ht in the equations
    h: Any  # the new state


def step(
    spec: Spec, w: ReferenceWeights, d: int, Xt: Any, H: Any, at: Any, activate: Callable[..., Any] = activate
) -> StepResult:
    """Compute one step by the equations."""
    f, g = spec.activations[d]

    def clip(x: Any) -> Any:
        return x if spec.clip is None else np.clip(x, -spec.clip, spec.clip)

    raw_zt = zt = activate(f, clip(Xt @ w.Wz + H @ w.Rz + w.Wbz + w.Rbz))
    rt = activate(f, clip(Xt @ w.Wr + H @ w.Rr + w.Wbr + w.Rbr))
    if spec.linear_before_reset:
        ht = activate(g, clip(Xt @ w.Wh + rt * (H @ w.Rh + w.Rbh) + w.Wbh))
    else:
        ht = activate(g, clip(Xt @ w.Wh + (rt * H) @ w.Rh + w.Rbh + w.Wbh))
    if at is not None:
        zt = attended(spec.attention, zt, at)
    return StepResult(raw_zt, zt, rt, ht, (1 - zt) * ht + zt * H)


def trace(
    spec: Spec, weights: tuple[ReferenceWeights, ...], problem: Problem, before: Array, found: StepResult
) -> None:
    """Write the gates of a call with known states, step by step."""
    X, attention = problem.X, problem.attention
    T, B, I = X.shape
    lengths = np.full(B, T) if problem.sequence_lens is None else problem.sequence_lens
    all_t, all_b = np.nonzero(np.arange(T)[:, None] < lengths)
    count = max(1, _TRACED_BYTES // (8 * (I + 12 * spec.hidden_size)))
    with np.errstate(all="ignore"):
        for d in range(spec.num_directions):
            for begin in range(0, len(all_t), count):
                t, b = all_t[begin : begin + count], all_b[begin : begin + count]
                a = None if attention is None else attention[t, b].astype(np.float64)[:, None]
                H = before[t, d, b].astype(np.float64)
                done = step(spec, weights[d], d, X[t, b].astype(np.float64), H, a)
                for into, gate in zip(found[:4], done[:4], strict=True):
                    into[t, d, b] = gate
