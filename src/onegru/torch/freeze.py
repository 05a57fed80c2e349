"""Modules with weights that are packed once, for inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from onegru.core.errors import SpecError
from onegru.core.spec import Weights
from onegru.layers.gru import GRU as Layer
from onegru.layers.stack import Stack
from onegru.torch.arguments import TorchGruConfig, swap_gates
from onegru.torch.autograd.function import gru_layer, gru_layers
from onegru.torch.autograd.memory import Tensors, array_if_given, array_of
from onegru.torch.autograd.watching import is_dual, is_intercepted, is_known, is_transforming
from onegru.torch.threads import with_threads


class Freezable(nn.Module):
    """Module that can be frozen: its layers then use weights that were packed before."""

    #: The packed layers of a frozen module, in order.
    frozen_layers: Sequence[Layer] | None = None
    #: The parameters from which they were packed.
    frozen_parameters: Sequence[Tensor] = ()
    #: Whether the module was PyTorch's before.
    replaced_by_freeze = False

    def parameter_list(self) -> tuple[Tensor, ...]:
        """Return `parameters()`, without its overhead if there are no submodules."""
        found = self.parameters() if self._modules else self._parameters.values()
        return tuple({id(parameter): parameter for parameter in found if parameter is not None}.values())

    def run_layer(self, number: int, form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Run a layer on checked arguments; see `onegru.torch.autograd.function.gru_layer`."""
        if self.frozen_layers is None or not is_known():
            return gru_layer(form, tensors)
        found: tuple[Tensor, Tensor] = _run(self, self.frozen_layers[number], *tensors[:5])
        return found

    def run_layers(
        self, X: Tensor, initial_h: Tensor | None, lengths: Tensor | None, weights: Sequence[Tensors]
    ) -> tuple[Tensor, Tensor] | None:
        """Run several layers together, so that they can share threads; None if this is not possible."""
        if len(weights) == 1 or not is_known():
            return None
        if self.frozen_layers is None:
            return gru_layers(self.form, X, initial_h, weights) if lengths is None else None
        stack = Stack(self.frozen_layers)
        found: tuple[Tensor, Tensor] = _run(self, stack, X, initial_h, None, lengths, None)
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self.frozen_layers is None:
            applied: Any = super()._apply(fn, recurse)
            return applied
        before = {name: (tensor.dtype, tensor.device) for name, tensor in self.named_parameters()}
        for name, tensor in self.named_parameters():
            like = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
            if (like.dtype, like.device) != before[name]:
                raise _refusal("so its type and device cannot change")
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        if self.frozen_layers is None:
            super()._load_from_state_dict(state_dict, prefix, *others)
            return
        messages: list[str] = others[-1]
        messages.append(f"{prefix.removesuffix('.') or 'the module'} is frozen; {_REMEDY}")


def packed_layers(module: Any) -> list[Layer]:
    """Return the layers of one of onegru's modules, with its current weights."""
    D, specs = module.form.num_directions, module.specs()
    found = []
    for number, spec in enumerate(specs):
        own = module.weights_of(number)
        dtype = str(own[0].dtype).removeprefix("torch.")
        sides: list[list[Any]] = [
            [None if w is None else swap_gates(array_of("weights", w)) for w in own[4 * d : 4 * d + 4]]
            for d in range(D)
        ]
        W, R = (np.stack([side[index] for side in sides]) for index in (0, 1))
        zeros = np.zeros(W.shape[1], W.dtype)
        B = np.stack([np.concatenate([zeros if b is None else b for b in side[2:]]) for side in sides])
        found.append(Layer.from_canonical(replace(spec, dtype=dtype), Weights(W, R, B)))
    return found


_REMEDY = "onegru.torch.restore(model) makes it trainable again"


def _refusal(why: str, remedy: str = _REMEDY) -> SpecError:
    return SpecError.of("model", f"frozen, {why}; {remedy}")


@torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
def _run(
    module: Freezable,
    run: Callable[..., Any],
    X: Tensor,
    initial_h: Tensor | None,
    attention: Tensor | None,
    lengths: Tensor | None,
    resets: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run one packed layer, or all."""
    given = [tensor for tensor in (X, initial_h, attention) if tensor is not None]
    if is_transforming():
        raise _refusal("and torch.func cannot transform this call")
    if torch.jit.is_tracing() or is_dual() or is_intercepted(*given, lengths):
        raise _refusal("and a traced call would store its values as constants")
    parameters = module.parameter_list()
    if [*map(id, parameters)] != [*map(id, module.frozen_parameters)] or is_parametrized(module):
        raise _refusal("and this call replaces its parameters")
    tensors = (*given, *parameters)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise _refusal("and this call needs gradients", f"call it under torch.no_grad(), or {_REMEDY}")
    if resets is not None:
        raise _refusal("and does not support resets")
    if any(tensor.device.type != "cpu" for tensor in given):
        raise _refusal("and runs only on the CPU")
    state, steps, scores = (array_if_given("input", item) for item in (initial_h, lengths, attention))
    x = array_of("input", X)
    options: dict[str, Any] = {} if scores is None else {"attention": scores}
    Y, last = with_threads(run, x, state, sequence_lens=steps, layout=0, **options)
    states, Y_h = torch.from_numpy(Y), np.concatenate(last) if isinstance(last, tuple) else last
    return (states[:, 0] if Y.shape[1] == 1 else states.transpose(1, 2).flatten(2)), torch.from_numpy(Y_h)
