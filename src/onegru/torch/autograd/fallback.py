"""Run a layer with PyTorch's own operators, for other devices and types, and for double gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.core.spec import attended
from onegru.torch.arguments import TorchGruConfig, check_steps, spec_of
from onegru.torch.autograd.memory import Tensors
from onegru.torch.autograd.watching import is_batched_gradient


class _TorchElementary:
    """Elementary functions of tensors, as in `onegru.core.elementary.Elementary`."""

    # At a kink, the gradient is the kernels': the left derivative, and 0 for HardSigmoid.

    add = staticmethod(torch.add)
    mul = staticmethod(torch.mul)
    div = staticmethod(torch.div)
    abs = staticmethod(torch.abs)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    relu = staticmethod(torch.relu)

    def expm1_of_negative(self, x: Tensor) -> Tensor:
        return torch.expm1(torch.clamp(x, max=0.0))

    def softplus(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    def maximum(self, x: Tensor, bound: float) -> Tensor:
        return torch.where(x <= bound, bound, x)

    def minimum(self, x: Tensor, bound: float) -> Tensor:
        return torch.where(x >= bound, bound, x)

    def where_less(self, x: Tensor, bound: float, then: float, otherwise: Tensor) -> Tensor:
        otherwise = torch.where(x == bound, otherwise.detach(), otherwise)  # no gradient at the kink
        return torch.where(x < bound, then, otherwise)

    def piecewise(self, x: Tensor, negative: Tensor, positive: Tensor) -> Tensor:
        return torch.where(x > 0, positive, negative)

    def finite(self, x: Tensor) -> Tensor:
        largest = torch.finfo(x.dtype).max / 4
        return torch.clamp(x, -largest, largest)


def _apply(activation: Activation, clip: float | None, x: Tensor) -> Tensor:
    if clip is not None:
        x = torch.clamp(x, -clip, clip)
    result: Tensor = ACTIVATIONS[activation.name].compute(_TorchElementary(), x, *activation.parameters)
    return result


def forward(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Return Y [T, B, D·H] and Y_h [D, B, H], as `onegru.torch.autograd.function.gru_layer`."""
    X, initial_h, attention, lengths, resets, *weights = tensors
    T, B, _ = X.shape
    check_steps("X", T)
    spec = spec_of(form, 1, 1, "float32", attention is not None)
    outputs: list[Tensor] = []
    last: list[Tensor] = []
    for d, backwards in enumerate(spec.reversed_directions):
        W, R, Wb, Rb = weights[4 * d : 4 * d + 4]
        H = R.shape[1]
        zeros = X.new_zeros(B, H)
        start = zeros if initial_h is None else initial_h[d]
        h, found = start, [zeros] * T
        f, g = spec.activations[d]
        for t in reversed(range(T)) if backwards else range(T):
            before = h
            if resets is not None:
                h = torch.where(resets[t][:, None], start if form.resets_to_initial else zeros, h)
            x_r, x_z, x_n = functional.linear(X[t], W, Wb).chunk(3, 1)
            if form.linear_before_reset:
                h_r, h_z, h_n = functional.linear(h, R, Rb).chunk(3, 1)
                r = _apply(f, spec.clip, x_r + h_r)
                n = _apply(g, spec.clip, x_n + r * h_n)
            else:
                bias = None if Rb is None else Rb[: 2 * H]
                h_r, h_z = functional.linear(h, R[: 2 * H], bias).chunk(2, 1)
                r = _apply(f, spec.clip, x_r + h_r)
                bias = None if Rb is None else Rb[2 * H :]
                n = _apply(g, spec.clip, x_n + functional.linear(r * h, R[2 * H :], bias))
            z = _apply(f, spec.clip, x_z + h_z)
            if attention is not None:
                z = attended(spec.attention, z, attention[t][:, None])
            h = (1 - z) * n + z * h
            found[t] = h
            if lengths is not None:
                runs = (t < lengths)[:, None]
                found[t] = torch.where(runs, h, zeros)
                h = torch.where(runs, h, before)
        if lengths is not None:
            h = torch.where((lengths > 0)[:, None], h, zeros)
        outputs.append(torch.stack(found))
        last.append(h)
    return torch.cat(outputs, 2), torch.stack(last)


def gradients(
    form: TorchGruConfig, tensors: Tensors, d_outputs: Tensors, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients of a call. They can be differentiated and transformed again."""
    values = [*tensors[:3], *tensors[5:]]
    indices = [index for index, is_wanted in enumerate(wanted) if is_wanted]

    def call(*chosen: Tensor) -> tuple[Tensor, Tensor]:
        own = [
            chosen[indices.index(index)] if index in indices else value for index, value in enumerate(values)
        ]
        return forward(form, (*own[:3], *tensors[3:5], *own[3:]))

    chosen = [values[index] for index in indices]
    results: Sequence[Tensor]
    if any(dy is not None and is_batched_gradient(dy) for dy in d_outputs):
        # `torch.func.vjp` rejects the batches of `is_grads_batched`; autograd accepts them. The views are
        # needed because a tensor may be passed twice.
        with torch.enable_grad():
            chosen = [value.view_as(value) for value in chosen]
            found = call(*chosen)
        pairs = [(y, dy) for y, dy in zip(found, d_outputs, strict=True) if dy is not None]
        ys, dys = zip(*pairs, strict=True)
        results = torch.autograd.grad(ys, chosen, dys, create_graph=torch.is_grad_enabled())
    else:
        found, pull = torch.func.vjp(call, *chosen)
        ends = zip(found, d_outputs, strict=True)
        results = pull(tuple(torch.zeros_like(y) if dy is None else dy for y, dy in ends))
    return [results[indices.index(index)] if index in indices else None for index in range(len(values))]
