"""Run a layer in all its directions as a function of PyTorch, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd import fallback
from onegru.torch.autograd.compute import forward, forward_of_layers, output_of
from onegru.torch.autograd.few_steps import run_few_steps
from onegru.torch.autograd.few_steps_function import train_few_steps
from onegru.torch.autograd.memory import Tensors
from onegru.torch.autograd.operators import call_operator, gradients
from onegru.torch.autograd.saving import by_arguments, save, unpack_saved
from onegru.torch.autograd.watching import are_plain, is_intercepted, is_profiled
from onegru.torch.export import export_layer
from onegru.torch.route import Route, choose_layer_route, wants_gradients
from onegru.torch.threads import with_threads


def gru_layer(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Return Y [T, B, D·H] and Y_h [D, B, H] of a layer in all its directions."""
    X = tensors[0]
    if any(tensor is not None and tensor.device != X.device for tensor in tensors):
        devices = {str(tensor.device) for tensor in tensors if tensor is not None}
        raise SpecError.of(
            "input",
            f"on {X.device}, others on {', '.join(sorted(devices))}; all must be on one device",
        )
    few, kind = None, OnegruGRU
    match choose_layer_route(tensors):
        case Route.ELEMENTARY:
            return fallback.forward(form, tensors)
        case Route.NODE:
            return _exported(form, tensors)
        case Route.OPERATOR:
            return call_operator(form, tensors)[:2]
        case Route.FEW_STEPS:
            few = run_few_steps(form, tensors)
        case Route.TRAINED_FEW_STEPS:
            few = train_few_steps(form, tensors)
        case Route.TRANSFORMED:
            kind = _TransformedOnegruGRU
    return few or kind.apply(form, wants_gradients(tensors), *tensors)[:2]


def gru_layers(
    form: TorchGruConfig, X: Tensor, initial_h: Tensor | None, weights: Sequence[Tensors]
) -> tuple[Tensor, Tensor] | None:
    """Run the layers of a module together on several threads; None if this is not possible or not faster."""
    is_plain = are_plain((X, initial_h, *(weight for own in weights for weight in own)))
    if len(weights) == 1 or form.direction != "forward" or not is_plain:
        return None
    for own in weights:
        tensors = (X, initial_h, None, None, None, *own)
        is_packed = choose_layer_route(tensors) is Route.KERNELS
        if not is_packed or wants_gradients(tensors) or is_intercepted(*tensors):
            return None
    with record_function("onegru::layers") if is_profiled() else nullcontext():
        return with_threads(forward_of_layers, form, X, initial_h, weights)


def _exported(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Export the layer as an ONNX node."""
    if torch.compiler.is_compiling():
        return export_layer(form, tensors, None)
    present = [tensor is not None for tensor in tensors]

    def compute(given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        rest = iter(given)
        Y, Y_h, _ = forward(form, [next(rest) if is_there else None for is_there in present])
        return Y.transpose(1, 2), Y_h

    return export_layer(form, tensors, compute)


# --- outside of compiled code


def _backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
    """Return the gradients of all arguments of a call."""
    saved = unpack_saved(ctx, ctx.form, dY, dY_h)
    return by_arguments(gradients(ctx.form, saved, saved.others[0], (dY, dY_h), saved.others[1]))


def _seen_forward(form: TorchGruConfig, tensors: Tensors, saves: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run `forward`, or the operator if something intercepts the call."""
    if not is_intercepted(*tensors):
        return forward(form, tensors, saves)
    _, Y_h, Y = call_operator(form, tensors)
    return Y, Y_h, Y.new_empty(0)


class OnegruGRU(torch.autograd.Function):
    """Autograd function of a layer. Its name appears in `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        """Return Y and Y_h."""
        Y, Y_h, gates = _seen_forward(form, tensors, saves)
        if saves:
            ctx.form = form
            ctx.set_materialize_grads(False)
            save(ctx, tensors, Y, gates)
        return output_of(Y, saves), Y_h

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
        """Return the gradients of all arguments."""
        return _backward(ctx, dY, dY_h)


class _TransformedOnegruGRU(torch.autograd.Function):
    """Autograd function for transforms of `torch.func`, which must see all saved tensors; it is slower."""

    @staticmethod
    def forward(form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        Y, Y_h, gates = _seen_forward(form, tensors, saves)
        return output_of(Y, saves), Y_h, Y, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        form, _, *tensors = inputs
        ctx.form, ctx.leaves = form, ()
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[2:])

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None, *_: None) -> Any:
        return _backward(ctx, dY, dY_h)

    @staticmethod
    def vmap(info: Any, in_dims: Any, form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        """Run the calls of a batch sequentially."""
        if info.batch_size == 0:
            raise SpecError("vmap: batch size 0; must be at least 1")
        results = []
        for index in range(info.batch_size):
            selected = [
                tensor if tensor is None or dim is None else tensor.select(dim, index)
                for tensor, dim in zip(tensors, in_dims[2:], strict=True)
            ]
            results.append(_TransformedOnegruGRU.apply(form, saves, *selected))
        return tuple(torch.stack(items) for items in zip(*results, strict=True)), (0, 0, 0, 0)
