"""How many floating-point operations a call takes, for PyTorch's `FlopCounterMode`: those of its products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from onegru.torch import function as function  # which has made the operators
from onegru.torch.arguments import form_from

_Shape = Sequence[int]


def _sizes(shapes: Sequence[_Shape], present: Sequence[bool], form: str) -> tuple[int, int, int, int]:
    """Rows of all steps in all directions, 3·H, I and H."""
    T, B, I = shapes[0]
    H = shapes[sum(present[:5]) + 1][1]
    return T * B * form_from(form).num_directions, 3 * H, I, H


@register_flop_formula(torch.ops.onegru.gru)  # type: ignore[untyped-decorator, unused-ignore]
def _forward_flops(shapes: Any, present: Any, form: str, *_: Any, **__: Any) -> int:
    rows, gates, I, H = _sizes(shapes, present, form)
    return 2 * rows * gates * (I + H)


@register_flop_formula(torch.ops.onegru.gru_backward)  # type: ignore[untyped-decorator, unused-ignore]
def _backward_flops(shapes: Any, present: Any, wanted: Any, *others: Any, **__: Any) -> int:
    rows, gates, I, H = _sizes(shapes, present, others[3])
    by_weights = wanted[3:]
    inputs = I * (bool(wanted[0]) + any(by_weights[::4]))
    states = H * (1 + any(by_weights[1::4]))  # back through time, and by R
    return 2 * rows * gates * (inputs + states)
