"""Choose the code that computes a call."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from onegru.core.errors import SpecError
from onegru.torch.autograd import watching
from onegru.torch.autograd.memory import TYPES, Tensors


class Route(Enum):
    """Code that can compute a call."""

    PYTORCH = auto()  # `torch.nn.GRU` or `torch.nn.GRUCell`
    LAYERS = auto()  # each layer with its own route, one of those below
    FEW_STEPS = auto()  # kernels that read the parameters in place
    TRAINED_FEW_STEPS = auto()  # the same kernels, with gradients
    KERNELS = auto()  # kernels that pack the parameters in each call
    TRANSFORMED = auto()  # the packing kernels in a transform of `torch.func`
    OPERATOR = auto()  # the operator `onegru::gru` for compiled code
    ELEMENTARY = auto()  # PyTorch's elementary operators
    NODE = auto()  # an ONNX node


def choose_route(module: Any, input: Any, tensors: Tensors | None, T: int, B: int) -> Route:
    """Return the route of a module's call; `tensors` is None if the kernels cannot read all of them."""
    H = module.hidden_size
    if tensors is not None and not is_recorded() and watching.are_plain(tensors):
        route, is_supported = _few_steps(tensors, T, B, H), input.is_cpu and input.dtype in TYPES
        if route and is_supported and watching.is_plain_call() and not torch.is_autocast_enabled("cpu"):
            return route
    if module.has_attention or not module.form.matches_nn_gru or watching.is_mapped():
        return Route.LAYERS  # vmap has no rule for PyTorch's operator
    X = input.data if isinstance(input, PackedSequence) else input
    # Compiled code works for any T, so nothing may read T there.
    is_kernel_slower = not torch.compiler.is_compiling() and X.is_cpu and torch.is_grad_enabled()
    is_kernel_slower = is_kernel_slower and T == 1 and B > 0 and not are_few_trained(T, B, H)
    if isinstance(module, nn.RNNCellBase):
        is_pytorchs = (is_kernel_slower or torch.jit.is_tracing()) and not is_exporting()
    else:
        is_pytorchs = is_kernel_slower or _is_for_pytorch(module, X, X is not input)
    return Route.PYTORCH if is_pytorchs else Route.LAYERS


def _is_for_pytorch(module: Any, X: Tensor, is_packed: bool) -> bool:
    """Whether another device or type, a trace or an export needs PyTorch's operator."""
    is_small = X.dtype in (torch.float16, torch.bfloat16) and X.dtype == module.weights_of(0)[0].dtype
    if torch.jit.is_tracing() or not (X.is_cpu or X.is_meta) or is_small:
        return not torch.is_autocast_enabled(X.device.type)
    # PyTorch's newer exporter gives nn.GRU's node fixed sizes; onegru's node has dynamic sizes.
    return is_exporting() and (is_packed or not hasattr(torch.onnx, "ops"))


def choose_layer_route(tensors: Tensors) -> Route:
    """Return the route of a layer with checked tensors."""
    X, R = tensors[0], tensors[6]
    if not X.is_cpu or X.dtype not in TYPES or any(w is not None and w.dtype != X.dtype for w in tensors[5:]):
        return Route.ELEMENTARY
    if is_exporting():
        return Route.NODE
    if watching.is_dual():  # PyTorch's own operators compute forward-mode derivatives
        return Route.ELEMENTARY
    if torch.jit.is_tracing():
        raise SpecError("trace: torch.jit.trace supports only torch.nn.GRU's equation; use torch.export")
    if torch.compiler.is_compiling() or watching.is_functionalized(as_only_transform=True):
        return Route.OPERATOR
    if watching.is_functionalized():  # other transforms as well, which have no rule for an operator
        return Route.ELEMENTARY
    if watching.is_transforming():
        return Route.TRANSFORMED
    if watching.is_intercepted(*tensors) or R.dim() != 2:
        return Route.KERNELS
    T, B, _ = X.shape
    return _few_steps(tensors, T, B, R.shape[1]) or Route.KERNELS


def _few_steps(tensors: Tensors, T: int, B: int, H: int) -> Route | None:
    if wants_gradients(tensors):
        return Route.TRAINED_FEW_STEPS if are_few_trained(T, B, H) else None
    return Route.FEW_STEPS if are_few(T, B, H) else None


def are_few(T: int, B: int, H: int) -> bool:
    """Whether a call without gradients runs on unpacked parameters; packing takes longer (measured)."""
    small = H <= 64
    most = (384 if small else 256) if T <= 8 else 128 if small else 64 if H <= 256 else 32
    return 0 < T * B <= most


def are_few_trained(T: int, B: int, H: int) -> bool:
    """Whether a call with gradients does so; PyTorch's operator is faster for a step of more rows."""
    most = 128 if T == 1 or T > 64 else 512 if T <= 16 else 256
    return 0 < T * B <= most


def wants_gradients(tensors: Tensors) -> bool:
    """Whether autograd records a call."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def is_recorded() -> bool:
    """Whether the call is compiled or traced, for any sizes and values."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def is_exporting() -> bool:
    """Whether `torch.onnx.export` traces this call."""
    return is_recorded() and bool(torch.onnx.is_in_onnx_export())  # the first check is faster
