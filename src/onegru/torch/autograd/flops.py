"""Count the floating-point operations of a call, for PyTorch's `FlopCounterMode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from onegru.torch.autograd import operators as operators  # registers the operators

_Shape = Sequence[int]


def _sizes(X: _Shape, R: Sequence[_Shape]) -> tuple[int, int, int, int]:
    """Return T·B·D, 3·H, I and H."""
    (T, B, I), H = X, R[0][1]
    return T * B * len(R), 3 * H, I, H


@register_flop_formula(torch.ops.onegru.gru)  # type: ignore[untyped-decorator, unused-ignore]
def _forward_flops(
    X: Any, h: Any, scores: Any, lengths: Any, resets: Any, W: Any, R: Any, *_: Any, **__: Any
) -> int:
    rows, gates, I, H = _sizes(X, R)
    return 2 * rows * gates * (I + H)


@register_flop_formula(torch.ops.onegru.gru_backward)  # type: ignore[untyped-decorator, unused-ignore]
def _backward_flops(*arguments: Any, **_: Any) -> int:
    X, R, wanted = arguments[0], arguments[6], arguments[12]
    rows, gates, I, H = _sizes(X, R)
    by_weights = wanted[3:]
    inputs = I * (bool(wanted[0]) + any(by_weights[::4]))
    states = H * (1 + any(by_weights[1::4]))  # backpropagation through time, and the gradient of R
    return 2 * rows * gates * (inputs + states)
