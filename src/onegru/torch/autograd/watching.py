"""Detect tracing, transforms and tensor subclasses.

This needs PyTorch's private interface, which every release can change. So only this module uses it, except
for a type of TorchScript in `export.py`. It tries every function at import. If one fails, GRUs run on
PyTorch's own operators, which work in every mode and transform.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_CLASSES = {Tensor, torch.nn.Parameter, type(None)}

#: PyTorch's interface to the memory of tensors, from version 2.10 on; else None.
EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)
#: Whether a profiler runs. A call then records its name.
is_profiled = getattr(torch.autograd, "_profiler_enabled", lambda: True)


def is_known() -> bool:
    """Whether this PyTorch has the private interface; if not, GRUs run on PyTorch's own operators."""
    return _MISSING is None


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Whether all tensors are known to have PyTorch's own classes, or are None."""
    return _MISSING is None and _CLASSES.issuperset(map(type, tensors))


def is_plain_call() -> bool:
    """Whether no mode, transform or forward-mode derivative must see this call."""
    return not (  # no other functions, because they take time
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    )


def is_intercepted(*tensors: Tensor | None) -> bool:
    """Whether a mode, a trace or a tensor subclass must see an operator instead of reads of memory."""
    if _MISSING is not None:
        return False
    if _has_modes():
        return True
    if are_plain(tensors):
        return False
    plain = Tensor.__torch_dispatch__
    return any(tensor is not None and type(tensor).__torch_dispatch__ is not plain for tensor in tensors)


def is_transformed(tensor: Tensor | None) -> bool:
    """Whether a tensor is a wrapper of `torch.func`."""
    if tensor is None or _MISSING is not None:
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or is_batched_gradient(tensor))


def is_batched_gradient(tensor: Tensor) -> bool:
    """Whether a gradient belongs to a batch of `is_grads_batched`."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(tensor))


def is_of_zeros(tensor: Tensor) -> bool:
    """Whether a tensor has no memory because all its values are 0."""
    return bool(tensor._is_zerotensor())


def scalar_of_class(cls: Any, like: Tensor) -> Any:
    """Return a tensor of a class, without axes and memory, of another tensor's type and device."""
    return Tensor._make_wrapper_subclass(cls, (), dtype=like.dtype, device=like.device)


def is_dual() -> bool:
    """Whether forward-mode derivatives are computed, which reads of memory would lose."""
    return _MISSING is None and bool(forward_ad._current_level >= 0)


def is_transforming() -> bool:
    """Whether a transform of `torch.func` makes this call."""
    return _MISSING is None and bool(torch._C._are_functorch_transforms_active())


def is_mapped() -> bool:
    """Whether `torch.vmap` may make this call. Without the private interface, assume it unless tracing."""
    return _is_within("Vmap") if _MISSING is None else not torch.jit.is_tracing()


def is_functionalized(as_only_transform: bool = False) -> bool:
    """Whether `torch.func.functionalize` may make this call; `as_only_transform` excludes others."""
    if _MISSING is not None:
        return not as_only_transform
    return _is_within("Functionalize") and not (as_only_transform and len(set(_transforms())) > 1)


def _has_modes() -> bool:
    """Whether a mode sees operators: modes that trace before autograd have a separate stack."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch())


def _is_within(kind: str) -> bool:
    key = getattr(torch._C._functorch.TransformType, kind)
    return is_transforming() and key in _transforms()


def _transforms() -> list[Any]:
    return [item.key() for item in torch._C._functorch.get_interpreter_stack() or ()]


def _missing() -> str | None:
    """Return the missing part of PyTorch's private interface; None if it is complete."""
    tensor = torch.empty(0)
    try:
        for question in (is_batched_gradient, is_of_zeros, is_transformed, is_intercepted):
            question(tensor)
        is_plain_call()
        for kind in ("Vmap", "Functionalize"):
            _is_within(kind)
        _transforms()
        scalar_of_class(type("_Probe", (Tensor,), {"__torch_dispatch__": classmethod(print)}), tensor)
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
