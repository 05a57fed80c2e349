"""Detect tracing, transforms and tensor subclasses.

This needs PyTorch's private interface, which every release can change. So no other module uses it, and this
one tries every function at import. If one fails, GRUs run by PyTorch's own operators, which work in every
mode and transform.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_CLASSES = {Tensor, torch.nn.Parameter, type(None)}

#: How PyTorch shows the memory of its tensors, from 2.10 on; None where it does not.
EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)
#: Whether a profiler runs; a call then shows its name.
is_profiled = getattr(torch.autograd, "_profiler_enabled", lambda: True)


def is_known() -> bool:
    """Whether this PyTorch answers all questions here; if not, GRUs run by PyTorch's own operators."""
    return _MISSING is None


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether these are known to be of PyTorch's own classes, or None."""
    return _MISSING is None and _CLASSES.issuperset(map(type, tensors))


def is_plain_call() -> bool:
    """Whether no mode, transform or derivative in forward mode has to see this call."""
    return not (  # without other functions, which take time
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )


def is_intercepted(*tensors: Tensor | None) -> bool:
    """Whether something stands between these tensors and their numbers: a mode, a trace, a class of tensors.

    It has to see an operator, as it would not see that memory is read.
    """
    if _MISSING is not None:
        return False
    if _has_modes():
        return True
    if are_plain(tensors):
        return False
    plain = Tensor.__torch_dispatch__
    return any(tensor is not None and type(tensor).__torch_dispatch__ is not plain for tensor in tensors)


def is_transformed(tensor: Tensor | None) -> bool:
    """Whether `torch.func` stands between a tensor and its numbers."""
    if tensor is None or _MISSING is not None:
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or is_batched_gradient(tensor))


def is_batched_gradient(tensor: Tensor) -> bool:
    """Whether a gradient is one of those that `is_grads_batched` computes at once."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(tensor))


def is_of_zeros(tensor: Tensor) -> bool:
    """Whether a tensor has no memory because all its numbers are 0."""
    return bool(tensor._is_zerotensor())


def is_dual() -> bool:
    """Whether derivatives in forward mode are computed, which reads of memory would lose."""
    return _MISSING is None and bool(forward_ad._current_level >= 0)


def is_transforming() -> bool:
    """Whether a transform of `torch.func` makes this call."""
    return _MISSING is None and bool(torch._C._are_functorch_transforms_active())


def is_mapped() -> bool:
    """Whether `torch.vmap` may make this call; where nobody knows, it does not make a traced one."""
    return _is_within("Vmap") if _MISSING is None else not torch.jit.is_tracing()


def is_functionalized(alone: bool = False) -> bool:
    """Whether `torch.func.functionalize` may make this call, and with `alone` that nothing else does."""
    if _MISSING is not None:
        return not alone
    return _is_within("Functionalize") and not (alone and len(set(_transforms())) > 1)


def _has_modes() -> bool:
    """Whether a mode sees what runs: modes that trace before autograd have a separate stack."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch())


def _is_within(kind: str) -> bool:
    key = getattr(torch._C._functorch.TransformType, kind)
    return is_transforming() and key in _transforms()


def _transforms() -> list[Any]:
    return [item.key() for item in torch._C._functorch.get_interpreter_stack() or ()]


def _missing() -> str | None:
    """What PyTorch's private interface lacks; None if it answers every question."""
    tensor = torch.empty(0)
    try:
        for question in (is_batched_gradient, is_of_zeros, is_transformed, is_intercepted):
            question(tensor)
        is_plain_call()
        for kind in ("Vmap", "Functionalize"):
            _is_within(kind)
        _transforms()
    except (AttributeError, TypeError, RuntimeError) as error:
        return str(error)
    return None


_MISSING: str | None = None
_MISSING = _missing()
if _MISSING is not None:
    warnings.warn(
        f"onegru.torch: PyTorch {torch.__version__} lacks an interface that onegru needs ({_MISSING}), so "
        "GRUs run on PyTorch's slower operators; install an onegru that supports this version",
        RuntimeWarning,
        stacklevel=2,
    )
