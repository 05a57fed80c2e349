"""What stands between tensors and their numbers: modes, traces, transforms, classes of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_CLASSES = {Tensor, torch.nn.Parameter, type(None)}


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether these are of PyTorch's own classes, or None."""
    return _CLASSES.issuperset(map(type, tensors))


def has_modes() -> bool:
    """Whether a mode sees what runs: those that trace before autograd have a stack of their own."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch())


def is_watched(*tensors: Tensor | None) -> bool:
    """Whether something stands between these tensors and their numbers: a mode, a trace, a class of tensors.

    It has to see an operator, as it would not see that memory is read.
    """
    if has_modes():
        return True
    if are_plain(tensors):
        return False
    plain = Tensor.__torch_dispatch__
    return any(tensor is not None and type(tensor).__torch_dispatch__ is not plain for tensor in tensors)


def is_transformed(tensor: Tensor | None) -> bool:
    """Whether `torch.func` stands between a tensor and its numbers."""
    found = torch._C._functorch
    # The latter is what `is_grads_batched` makes of gradients.
    return tensor is not None and bool(
        found.is_functorch_wrapped_tensor(tensor) or found.is_legacy_batchedtensor(tensor)
    )


def is_mapped() -> bool:
    """Whether `torch.vmap` makes this call."""
    return _is_within(torch._C._functorch.TransformType.Vmap)


def is_functionalized(alone: bool = False) -> bool:
    """Whether `torch.func.functionalize` makes this call, and with `alone` nothing else does."""
    kind = torch._C._functorch.TransformType.Functionalize
    return _is_within(kind) and not (alone and any(key != kind for key in _transforms()))


def _is_within(kind: Any) -> bool:
    return torch._C._are_functorch_transforms_active() and kind in _transforms()


def _transforms() -> list[Any]:
    return [item.key() for item in torch._C._functorch.get_interpreter_stack() or ()]
