"""Parameters of a recognized GRU cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onegru.core.activations import Activation
from onegru.core.dtypes import Array
from onegru.core.spec import Attention
from onegru.dataflow.view import View
from onegru.fusion.cells.polynomial import CLOSE

_PARAMETER_TOLERANCE = 1e-7  # of float32 parameters, as a hard sigmoid's 1/6 may be rounded once or twice
_LINEAR = Activation("Affine", 1.0, 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """Booleans that mask steps, per row. The state stays unchanged in a masked step."""

    view: View  # the Booleans
    is_off: bool  # whether True means masked


@dataclass(frozen=True, eq=False, slots=True)
class Cell:
    """One step of a GRU."""

    output: str  # the name of the new state h
    state: View  # the view of the old state
    inputs: tuple[View, ...]  # the views that are concatenated to x
    W: Array  # input weights, [3H, I], in gate order z, r, h, in float64
    R: Array  # recurrence weights, [3H, H]
    B: Array  # biases, [6H]: the biases of W, then of R
    activations: tuple[Activation, Activation]  # f and g
    linear_before_reset: bool  # whether the reset gate is applied after the recurrent matmul
    clip: float | None  # the clip value of the activations' inputs; None for no clipping
    attention: View | None  # the view of the score a; None without attention
    inverts_attention: bool  # whether `attention` is 1 - a instead of a
    masks: tuple[Mask, ...]  # the masks of steps
    name: str = ""  # the name of the cell's layer in the file; "" if it consists of other operators
    attention_kind: Attention = "openvino"  # the attention variant; see `Spec`
    # for each of `inputs`, whether all units of all gates use all of it. An unused value has weight 0 in W,
    # whose product with infinity is NaN. Empty if all are used
    shared: tuple[bool, ...] = ()

    @property
    def spec_attention(self) -> Attention | None:
        """Attention variant as in `Spec`; None without attention."""
        return None if self.attention is None else self.attention_kind

    @property
    def step_inputs(self) -> tuple[View, ...]:
        """Views of the values that differ from step to step, except masks: x and attention."""
        return self.inputs if self.attention is None else (*self.inputs, self.attention)

    @property
    def hidden_size(self) -> int:
        """Hidden size (H)."""
        return int(self.R.shape[1])

    @property
    def has_zero_R(self) -> bool:
        """Whether R is zero, so that a GRU node would not be faster."""
        return not self.R.any()

    def computes_as(self, other: Cell, *, is_float64: bool, from_zero: bool = False) -> bool:
        """Whether two cells are the same function of x and h; with `from_zero`, of x with h = 0."""
        tolerance = CLOSE if is_float64 else _PARAMETER_TOLERANCE
        shifts = [abs(item.parameters[1]) for item in self.activations if item.name == "HardSigmoid"]
        slack = 0.0, 0.0, CLOSE * max(shifts, default=0.0), 0.0  # biases cancel a hard sigmoid's beta
        forms = zip(self._normal(from_zero), other._normal(from_zero), slack, strict=True)
        return (
            [function.name for function in self.activations]
            == [function.name for function in other.activations]
            and self.linear_before_reset == other.linear_before_reset
            and self.clip == other.clip
            and self.spec_attention == other.spec_attention
            and self.inverts_attention == other.inverts_attention
            and [mask.is_off for mask in self.masks] == [mask.is_off for mask in other.masks]
            and all(a.shape == b.shape and np.allclose(a, b, tolerance, c) for a, b, c in forms)
        )

    def _normal(self, from_zero: bool) -> list[Array]:
        """Return W, R, B and the activations' parameters, equal for cells that only differ in scaling."""
        H = self.hidden_size
        W, R, B = self.W.copy(), self.R * (not from_zero), self.B.copy()
        gates = slice(0, 2 * H), slice(2 * H, 3 * H)
        rest: list[float] = []
        for function, rows in zip(self.activations, gates, strict=True):
            alpha, beta = function.parameters
            if function.name == "HardSigmoid":
                W[rows] *= alpha
                R[rows] *= alpha
                B[rows] = B[rows] * alpha + beta
                B[3 * H :][rows] *= alpha
            else:
                rest += [alpha, beta]
        f = self.activations[0]
        if f.name in ("Relu", "LeakyRelu") or f == _LINEAR:  # r and its factor may be scaled inversely
            r, n = slice(H, 2 * H), slice(2 * H, 3 * H)
            factor = max(float(np.max(np.abs(W[r]), initial=0)), float(np.max(np.abs(B[r])))) or 1.0
            W[r], R[r], B[r] = W[r] / factor, R[r] / factor, B[r] / factor
            R[n], B[5 * H :] = R[n] * factor, B[5 * H :] * factor
        return [W, R, B, np.array(rest)]


class MissError(Exception):
    """A recurrence is not a GRU; the message names the part that does not fit."""


class NoCellError(MissError):
    """A loop has no cell, so that it is not even a near miss."""
