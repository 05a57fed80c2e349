"""A layer in all its directions as a function of PyTorch, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd import fallback
from onegru.torch.autograd.compute import TYPES, backward, forward, output_of
from onegru.torch.autograd.few_steps_function import call_few_steps
from onegru.torch.autograd.operators import call_backward_operator, call_operator
from onegru.torch.autograd.saving import by_arguments, pulled, save
from onegru.torch.autograd.watching import is_dual, is_functionalized, is_transforming, is_watched
from onegru.torch.export import export_layer, is_exporting


def gru_layer(
    form: TorchGruConfig,
    X: Tensor,
    weights: Sequence[Tensor | None],
    initial_h: Tensor | None = None,
    lengths: Tensor | None = None,
    attention: Tensor | None = None,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A layer in all its directions."""
    tensors = (X, initial_h, attention, lengths, resets, *weights)
    if any(tensor is not None and tensor.device != X.device for tensor in tensors):
        devices = {str(tensor.device) for tensor in tensors if tensor is not None}
        raise SpecError.of(
            "input", f"on {X.device}, and others on {', '.join(sorted(devices))}; must be on one device"
        )
    if (
        X.device.type != "cpu"
        or X.dtype not in TYPES
        or any(w is not None and w.dtype != X.dtype for w in weights)
    ):
        return fallback.forward(form, X, weights, initial_h, lengths, attention, resets)
    if is_exporting():
        return _exported(form, tensors)
    if is_dual():  # derivatives in forward mode are those of PyTorch's own operators
        return fallback.forward(form, X, weights, initial_h, lengths, attention, resets)
    if torch.jit.is_tracing():
        raise SpecError("trace: torch.jit.trace takes only what torch.nn.GRU computes; must be torch.export")
    if torch.compiler.is_compiling() or is_functionalized(alone=True):
        return call_operator(form, tensors)[:2]
    if is_functionalized():  # and transformed otherwise, which has no rule for an operator
        return fallback.forward(form, X, weights, initial_h, lengths, attention, resets)
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    kind = _TransformedOnegruGRU if is_transforming() else OnegruGRU
    if kind is OnegruGRU and not is_watched(*tensors):
        few = call_few_steps(form, tensors, saves)
        if few is not None:
            return few
    found = kind.apply(form, saves, *tensors)
    return found[0], found[1]


def _exported(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The layer as a node of ONNX."""
    if torch.compiler.is_compiling():
        return export_layer(form, tensors, None)
    present = [tensor is not None for tensor in tensors]

    def compute(given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        rest = iter(given)
        Y, Y_h, _ = forward(form, [next(rest) if is_there else None for is_there in present])
        return Y.transpose(1, 2), Y_h

    return export_layer(form, tensors, compute)


# --- outside of compiled code


def _pulled(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
    """The gradients by all arguments of a call."""
    tensors, (Y, gates), wanted, is_again = pulled(ctx, ctx.form, dY, dY_h)
    if is_again:
        return by_arguments(fallback.gradients(ctx.form, tensors, (dY, dY_h), wanted))
    if is_watched(*tensors, Y, dY, dY_h):
        return by_arguments(call_backward_operator(ctx.form, tensors, Y, dY, dY_h, wanted))
    return by_arguments(backward(ctx.form, tensors, Y, dY, dY_h, wanted, gates))


def _seen_forward(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `forward`."""
    if not is_watched(*tensors):
        return forward(form, tensors, saves)
    _, Y_h, Y = call_operator(form, tensors)
    return Y, Y_h, Y.new_empty(0)


class OnegruGRU(torch.autograd.Function):
    """The layer; its name is that of `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        """Y and Y_h."""
        Y, Y_h, gates = _seen_forward(form, tensors, saves)
        if saves:
            ctx.form = form
            ctx.set_materialize_grads(False)
            save(ctx, tensors, Y, gates)
        return output_of(Y, saves), Y_h

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
        """The gradients by all arguments."""
        return _pulled(ctx, dY, dY_h)


class _TransformedOnegruGRU(torch.autograd.Function):
    """The layer in transforms of `torch.func`, which want to see all that is saved; it takes longer."""

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
        return _pulled(ctx, dY, dY_h)

    @staticmethod
    def vmap(info: Any, in_dims: Any, form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        """One call after the other."""
        if info.batch_size == 0:
            raise SpecError("vmap: of no calls; must be of 1 or more")
        results = []
        for index in range(info.batch_size):
            taken = [
                tensor if tensor is None or dim is None else tensor.select(dim, index)
                for tensor, dim in zip(tensors, in_dims[2:], strict=True)
            ]
            results.append(_TransformedOnegruGRU.apply(form, saves, *taken))
        return tuple(torch.stack(items) for items in zip(*results, strict=True)), (0, 0, 0, 0)
