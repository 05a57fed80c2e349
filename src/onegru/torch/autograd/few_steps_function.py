"""Autograd function for short calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd.few_steps import SAVED, Memory, gradients_of_few_steps, memory_of, run_on_memory
from onegru.torch.autograd.loop_gradients import SavedStep, StepsGradient, weights_of_loop
from onegru.torch.autograd.memory import Tensors
from onegru.torch.autograd.operators import gradients
from onegru.torch.autograd.saving import by_arguments, save, unpack_saved
from onegru.torch.autograd.watching import is_intercepted


def train_few_steps(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor] | None:
    """Run a short call with gradients; None if a tensor's memory is not plain."""
    memory = memory_of(form, tensors)
    if memory is None:
        return None
    shared = weights_of_loop(form, tensors) if memory.is_cell else None
    found: Any = OnegruFewSteps.apply(form, memory, *tensors, None if shared is None else shared.token)
    if shared is not None:
        found.grad_fn.shared = shared  # so that the next step finds it
    return (found, found) if memory.is_cell else found


class OnegruFewSteps(torch.autograd.Function):
    """Autograd function of a short call or a cell's step. Its name appears in `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, memory: Memory, *given: Any) -> Any:
        """Return Y and Y_h, or the state of a cell. The last tensor is `LoopWeights.token`, or None."""
        *tensors, _ = given
        X = tensors[0]
        (T, B, _, H, _), D, is_cell = memory.sizes, form.num_directions, X.dim() == 2
        Y = X.new_empty((B, H) if is_cell else (T, B, D * H))
        Y_h = Y if is_cell else X.new_empty((D, B, H))
        gates = X.new_empty((T, D, B, SAVED, H))
        run_on_memory(form, memory, tensors[2] is not None, Y, Y_h, gates)
        ctx.form, ctx.is_cell = form, is_cell
        ctx.set_materialize_grads(False)
        save(ctx, tensors, gates)
        return Y if is_cell else (Y, Y_h)

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None = None) -> Any:
        """Return the gradients of all arguments."""
        form, is_cell = ctx.form, ctx.is_cell
        saved = unpack_saved(ctx, form, dY, dY_h)
        gates = saved.others[0]
        if gates.dim() != 5:  # hooks of saved tensors may return anything
            raise SpecError.of("gates", f"{gates.dim()} dimensions; must have 5")
        if not saved.create_graph and not is_intercepted(*saved.tensors, gates, dY, dY_h):
            wanted, of_loop = saved.wanted, None
            if ctx.needs_input_grad[-1] and dY is not None:  # the weights get gradients from the loop
                of_loop = StepsGradient.of(
                    dY, form, wanted[3:], (SavedStep(saved.tensors, gates, dY),), dY.shape[0], []
                )
                wanted = (*wanted[:3], *(False for _ in wanted[3:]))
            found = gradients_of_few_steps(form, saved.tensors, gates, (dY, dY_h), wanted)
            if found is not None:
                return *by_arguments(found), of_loop
        # A mode must see an operator, or hooks replaced the memory: compute the gates again.
        if is_cell:
            saved.tensors[:3] = [None if item is None else item[None] for item in saved.tensors[:3]]
            dY = None if dY is None else dY[None]
        found = gradients(form, saved, gates[:, :, :, 4].transpose(1, 2).contiguous(), (dY, dY_h))
        if is_cell:
            found[:3] = [None if item is None else item[0] for item in found[:3]]
        return *by_arguments(found), None
