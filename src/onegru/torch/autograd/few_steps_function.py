"""Autograd function for short calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd import fallback
from onegru.torch.autograd.compute import backward
from onegru.torch.autograd.few_steps import (
    Memory,
    are_few,
    are_few_trained,
    gradients_of_few_steps,
    memory_of,
    run_few_steps,
    run_on_memory,
)
from onegru.torch.autograd.operators import call_backward_operator
from onegru.torch.autograd.saving import by_arguments, pulled, save
from onegru.torch.autograd.watching import are_plain, is_plain_call, is_watched
from onegru.torch.export import is_exporting


def call_few_steps(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool
) -> tuple[Tensor, Tensor] | None:
    """A call if it is of few steps, and its memory is plain: Y [T, B, D·H] and Y_h [D, B, H]."""
    X, R = tensors[0], tensors[6]
    if X is None or R is None or R.dim() != 2 or X.dim() != 3:
        return None
    if not (are_few_trained if saves else are_few)(X.shape[0], X.shape[1], R.shape[1]):
        return None
    return _call(form, tensors, saves)


def _call(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool
) -> tuple[Tensor, Tensor] | None:
    if not saves:
        return run_few_steps(form, tensors)
    memory = memory_of(form, tensors)
    if memory is None:
        return None
    found: tuple[Tensor, Tensor] = OnegruFewSteps.apply(form, memory, *tensors)
    return found


def _is_plain() -> bool:
    """Whether nothing has to see this call but autograd."""
    return is_plain_call() and not (
        torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or is_exporting()
    )


def quick_call(
    form: TorchGruConfig, X: Tensor, hx: Tensor | None, weights: Sequence[Tensor | None], layers: int, H: int
) -> tuple[Tensor, Tensor] | None:
    """A call of few steps with plain tensors, with the fewest questions; None for any other."""
    given = (X, hx, *weights)
    if not are_plain(given):
        return None
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    T, B, _ = X.shape
    if not (are_few_trained if saves else are_few)(T, B, H) or not _is_plain():
        return None
    if layers == 1:  # whose memory says the rest
        return _call(form, (X, hx, None, None, None, *weights), saves)
    D = form.num_directions
    if hx is not None and hx.shape != (layers * D, B, H):
        return None
    last = []
    for number in range(layers):
        start = None if hx is None else hx[number * D : (number + 1) * D]
        tensors = (X, start, None, None, None, *weights[4 * D * number : 4 * D * (number + 1)])
        done = _call(form, tensors, saves)
        if done is None:
            return None
        X, Y_h = done
        last.append(Y_h)
    return X, torch.cat(last)


def quick_step(
    form: TorchGruConfig,
    input: Tensor,
    hx: Tensor | None,
    attention: Tensor | None,
    weights: Sequence[Tensor | None],
    H: int,
) -> Tensor | None:
    """The same of a step of a cell: the state [B, H]."""
    tensors = (input, hx, attention, None, None, *weights)
    if not are_plain(tensors) or input.dim() != 2:
        return None
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    B = input.shape[0]
    if not (are_few_trained if saves else are_few)(1, B, H) or not _is_plain():
        return None
    if saves:
        memory = memory_of(form, tensors)
        return None if memory is None else OnegruFewSteps.apply(form, memory, *tensors)
    done = run_few_steps(form, tensors)
    return None if done is None else done[0]


class OnegruFewSteps(torch.autograd.Function):
    """A layer of few steps, or a step of a cell; its name is that of `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, memory: Memory, *tensors: Tensor | None) -> Any:
        """Y and Y_h; of a cell the state alone."""
        X = tensors[0]
        assert X is not None
        (T, B, _, H, _), D, is_cell = memory.sizes, form.num_directions, X.dim() == 2
        Y = X.new_empty((B, H) if is_cell else (T, B, D * H))
        Y_h = Y if is_cell else X.new_empty((D, B, H))
        gates = X.new_empty((T, D, B, 5, H))
        run_on_memory(form, memory, tensors[2] is not None, Y, Y_h, gates)
        ctx.form, ctx.is_cell = form, is_cell
        ctx.set_materialize_grads(False)
        save(ctx, tensors, gates)
        return Y if is_cell else (Y, Y_h)

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None = None) -> Any:
        """The gradients by all arguments."""
        form, is_cell = ctx.form, ctx.is_cell
        tensors, (gates,), wanted, is_again = pulled(ctx, form, dY, dY_h)
        if gates.dim() != 5:  # hooks of saved tensors may return anything
            raise SpecError.of("gates", f"{gates.dim()} axes; must have 5")
        if not is_again and not is_watched(*tensors, gates, dY, dY_h):
            found = gradients_of_few_steps(form, tensors, gates, (dY, dY_h), wanted)
            if found is not None:
                return by_arguments(found)
        if is_cell:
            tensors[:3] = [None if item is None else item[None] for item in tensors[:3]]
            dY = None if dY is None else dY[None]
        if is_again:
            found = fallback.gradients(form, tensors, (dY, dY_h), wanted)
        else:  # something has to see an operator, or hooks gave other memory: gates are computed again
            Y = gates[:, :, :, 4].transpose(1, 2).contiguous()
            way = call_backward_operator if is_watched(*tensors, gates, dY, dY_h) else backward
            found = way(form, tensors, Y, dY, dY_h, wanted)
        if is_cell:
            found[:3] = [None if item is None else item[0] for item in found[:3]]
        return by_arguments(found)
