"""Save tensors for autograd functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd.compute import INPUTS, WEIGHTS
from onegru.torch.autograd.memory import Tensors
from onegru.torch.autograd.watching import is_intercepted, is_transformed

_CLONED = (3, 4)  # lengths and resets, because a program may write to their memory


def save(ctx: Any, tensors: Tensors, *others: Tensor) -> None:
    """Save the inputs of a call for backward, and then other tensors."""
    # A program may assign to the `data` of a tensor before backward. Autograd does not see that change of
    # memory. Detached tensors, like the views in PyTorch's own operators, keep the old memory. Second
    # derivatives need the parameters themselves.
    leaves = {n: t.detach() for n, t in enumerate(tensors) if t is not None and t.requires_grad and t.is_leaf}
    own = [t if t is None or t.requires_grad else t.detach() for t in tensors]
    for index in _CLONED:
        if (item := own[index]) is not None:
            own[index] = item.clone()
    ctx.leaves = tuple(leaves)
    ctx.save_for_backward(*leaves.values(), *own, *others)


class Saved(NamedTuple):
    """Start of a backward pass."""

    # the inputs as they were in the call; for second derivatives, the inputs themselves
    tensors: list[Tensor | None]
    others: list[Tensor]  # the other tensors that were saved
    wanted: tuple[bool, ...]  # whether the gradients of X, initial_h, attention and each weight are wanted
    create_graph: bool  # whether the gradients will be differentiated or transformed again


def unpack_saved(ctx: Any, form: TorchGruConfig, *d_outputs: Tensor | None) -> Saved:
    """Return the saved tensors of a call, given the gradients of its outputs."""
    inputs = 5 + 4 * form.num_directions
    needed, leaves = ctx.needs_input_grad[2 : 2 + inputs], ctx.leaves
    create_graph = torch.is_grad_enabled() or any(map(is_transformed, d_outputs))
    found = list(ctx.saved_tensors)
    tensors = found[len(leaves) :]
    for index, numbers in zip(leaves, found, strict=False):
        if not create_graph:
            tensors[index] = numbers
        elif not _is_same(tensors[index], numbers):
            name = (*INPUTS, "", "", *WEIGHTS * form.num_directions)[index]
            raise SpecError.of(name, "data changed since the call; must be unchanged to differentiate twice")
    return Saved(tensors[:inputs], tensors[inputs:], (*needed[:3], *needed[5:]), create_graph)


def by_arguments(gradients: Tensors) -> Any:
    """Return the gradients of X, initial_h, attention and the weights, in the order of the arguments."""
    return None, None, *gradients[:3], None, None, *gradients[3:]


def _is_same(tensor: Tensor, numbers: Tensor) -> bool:
    """Whether a tensor still has these values, even in other memory, such as a copy by a hook."""
    if is_intercepted(tensor, numbers):
        return True
    is_alike = tensor.shape == numbers.shape and tensor.dtype == numbers.dtype
    is_own = is_alike and tensor.data_ptr() == numbers.data_ptr()
    return is_own or (is_alike and bool(torch.equal(tensor.detach(), numbers)))
