"""A layer in all its directions as an operator of PyTorch, with its gradients."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.engines.training import Call, DirectionWeights, Resets, TrainedLayer
from onegru.torch import fallback
from onegru.torch.arguments import Form, form_from, spec_of
from onegru.torch.export import export_layer, is_exporting

_TYPES = {torch.float32: "float32", torch.float64: "float64"}
_GATES = (1, 0, 2)  # where z, r and n are in PyTorch's order r, z, n
# The inputs that have gradients; behind them come lengths, resets and the weights.
_INPUTS = ("X", "initial_h", "attention")
_WEIGHTS = ("W", "R", "Wb", "Rb")


class _Last(threading.local):
    """The layer of a call, from `forward` to `setup_context`, between which only tensors pass."""

    layer: TrainedLayer | None = None


_last = _Last()


def gru_layer(
    form: Form,
    X: Tensor,
    weights: Sequence[Tensor | None],
    initial_h: Tensor | None = None,
    lengths: Tensor | None = None,
    attention: Tensor | None = None,
    resets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A layer in all its directions.

    Args:
        form: what to compute.
        X: [T, B, I].
        weights: for each direction weight_ih [3H, I], weight_hh [3H, H], bias_ih and bias_hh [3H], gate order
            r, z, n; both biases may be None.
        initial_h: [D, B, H]; None for zeros.
        lengths: [B], int64, each in 0…T; None for all T.
        attention: [T, B]; None for none.
        resets: [T, B], booleans; None for none.

    Returns:
        Y [T, B, D·H], zero past each row's end, and Y_h [D, B, H].
    """
    if (
        X.device.type != "cpu"
        or X.dtype not in _TYPES
        or any(w is not None and w.dtype != X.dtype for w in weights)
    ):
        return fallback.forward(form, X, weights, initial_h, lengths, attention, resets)
    tensors = (X, initial_h, attention, lengths, resets, *weights)
    if is_exporting():
        return _exported(form, tensors)
    if torch.jit.is_tracing():
        raise SpecError("trace: torch.jit.trace takes only what torch.nn.GRU computes; must be torch.export")
    if torch.compiler.is_compiling():
        given = [tensor for tensor in tensors if tensor is not None]
        found = _operator(given, [tensor is not None for tensor in tensors], form.words)
        return found[0], found[1]
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    found = _Function.apply(form, saves, *tensors)
    return found[0], found[1]


def _exported(form: Form, tensors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The layer as a node of ONNX."""
    if torch.compiler.is_compiling():
        return export_layer(form, tensors, None)
    present = [tensor is not None for tensor in tensors]
    return export_layer(form, tensors, lambda given: _forward(form, _spread(given, present))[:2])


def _array(tensor: Tensor) -> Array:
    """A tensor's memory, its last axis contiguous."""
    tensor = tensor.detach()
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    array: Array = tensor.numpy()
    return array


def _layer(form: Form, X: Tensor, weights: Sequence[Tensor | None], attention: bool) -> TrainedLayer:
    each = len(weights) // form.num_directions
    arrays = [None if weight is None else np.ascontiguousarray(_array(weight)) for weight in weights]
    own = [DirectionWeights(*arrays[d * each : (d + 1) * each]) for d in range(form.num_directions)]
    assert own[0].R is not None
    # Sizes are tensors while a call is traced.
    spec = spec_of(form, int(X.shape[2]), int(own[0].R.shape[1]), _TYPES[X.dtype], attention)
    return TrainedLayer(spec, own, _GATES)


def _call(form: Form, tensors: Sequence[Tensor | None]) -> Call:
    X, initial_h, attention, lengths, resets = tensors
    assert X is not None
    return Call(
        _array(X),
        None if initial_h is None else _array(initial_h),
        None if lengths is None else np.ascontiguousarray(_array(lengths), np.int64),
        None if attention is None else _array(attention),
        None if resets is None else Resets(_array(resets), form.resets_to_initial),
    )


def _forward(
    form: Form, tensors: Sequence[Tensor | None], saves: bool = False
) -> tuple[Tensor, Tensor, Tensor, TrainedLayer]:
    """Y [T, D, B, H], Y_h and the gates, empty if none are saved, and the layer that gave them."""
    X = tensors[0]
    assert X is not None
    layer = _layer(form, X, tensors[5:], tensors[2] is not None)
    Y, Y_h, gates = layer.forward(_call(form, tensors[:5]), saves=saves)
    saved = X.new_empty(0) if gates is None else torch.from_numpy(gates)
    return torch.from_numpy(Y), torch.from_numpy(Y_h), saved, layer


def _side_by_side(Y: Tensor) -> Tensor:
    """[T, D, B, H] as [T, B, D·H]."""
    T, D, B, H = Y.shape
    return Y[:, 0] if D == 1 else Y.transpose(1, 2).reshape(T, B, D * H)


def _backward(
    form: Form,
    tensors: Sequence[Tensor | None],
    Y: Tensor,
    dY: Tensor | None,
    dY_h: Tensor | None,
    wanted: Sequence[bool],
    gates: Tensor | None = None,
    layer: TrainedLayer | None = None,
) -> list[Tensor | None]:
    """The gradients by X, initial_h, attention and the weights, those that are wanted."""
    X, attention = tensors[0], tensors[2]
    assert X is not None
    if layer is None:
        layer = _layer(form, X, tensors[5:], attention is not None)
    T, D, B, H = Y.shape
    if dY is not None:
        dY = dY.reshape(T, B, D, H).permute(0, 2, 1, 3)
    inputs = [name for name, is_wanted in zip(_INPUTS, wanted, strict=False) if is_wanted]
    weights = [
        [name for name, is_wanted in zip(_WEIGHTS, wanted[first : first + 4], strict=True) if is_wanted]
        for first in range(3, 3 + 4 * D, 4)
    ]
    found, by = layer.gradients(
        _call(form, tensors[:5]),
        _array(Y),
        _array(gates) if gates is not None and gates.numel() else None,
        None if dY is None else _array(dY),
        None if dY_h is None else _array(dY_h),
        inputs,
        weights,
    )
    arrays = [*(found.get(name) for name in _INPUTS), *(array for own in by for array in own)]
    return [None if array is None else torch.from_numpy(array) for array in arrays]


def _is_transformed(tensor: Tensor | None) -> bool:
    """Whether `torch.func` stands between a tensor and its numbers."""
    return tensor is not None and bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


class _Function(torch.autograd.Function):
    """The layer outside of compiled code."""

    @staticmethod
    def forward(form: Form, saves: bool, *tensors: Tensor | None) -> Any:
        Y, Y_h, gates, _last.layer = _forward(form, tensors, saves)
        output = _side_by_side(Y)
        # Not a view of what is saved: it may be changed in place.
        return output.clone(memory_format=torch.contiguous_format) if saves else output, Y_h, Y, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        form, _, *tensors = inputs
        ctx.form = form
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[2:])
        # Its packed weights serve once more; autograd checks that the tensors they come from are unchanged.
        ctx.layer, _last.layer = (_last.layer if any(ctx.needs_input_grad) else None), None

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None, *_: None) -> Any:
        *tensors, Y, gates = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        wanted = (*needed[:3], *needed[5:])
        if torch.is_grad_enabled() or any(map(_is_transformed, (dY, dY_h))):
            given = fallback.gradients(ctx.form, tensors, (dY, dY_h), wanted)
        else:
            layer, ctx.layer = ctx.layer, None  # or an output that is kept would keep the packed weights
            given = _backward(ctx.form, tensors, Y, dY, dY_h, wanted, gates, layer)
        return None, None, *given[:3], None, None, *given[3:]

    @staticmethod
    def vmap(info: Any, in_dims: Any, form: Form, saves: bool, *tensors: Tensor | None) -> Any:
        """One call after the other."""
        results = []
        for index in range(info.batch_size):
            taken = [
                tensor if tensor is None or dim is None else tensor.select(dim, index)
                for tensor, dim in zip(tensors, in_dims[2:], strict=True)
            ]
            results.append(_Function.apply(form, saves, *taken))
        return tuple(torch.stack(items) for items in zip(*results, strict=True)), (0, 0, 0, 0)


# --- for compiled code and export


def _spread(tensors: Sequence[Any], present: Sequence[bool]) -> list[Any]:
    rest = iter(tensors)
    return [next(rest) if is_there else None for is_there in present]


# The schemas are written out, as PyTorch 2.6 does not read lists from annotations.
@torch.library.custom_op(
    "onegru::gru", mutates_args=(), schema="(Tensor[] tensors, bool[] present, str form) -> Tensor[]"
)
def _operator(tensors: list[Tensor], present: list[bool], form: str) -> list[Tensor]:
    Y, Y_h, *_ = _forward(form_from(form), _spread(tensors, present))
    return [_side_by_side(Y).clone(), Y_h, Y]


@_operator.register_fake
def _(tensors: list[Tensor], present: list[bool], form: str) -> list[Tensor]:
    X, R = tensors[0], tensors[sum(present[:5]) + 1]
    T, B, H, D = X.shape[0], X.shape[1], R.shape[1], form_from(form).num_directions
    return [X.new_empty(T, B, D * H), X.new_empty(D, B, H), X.new_empty(T, D, B, H)]


@torch.library.custom_op(
    "onegru::gru_backward",
    mutates_args=(),
    schema="(Tensor[] tensors, bool[] present, bool[] wanted, Tensor Y, Tensor dY, Tensor dY_h, str form) "
    "-> Tensor[]",
)
def _backward_operator(
    tensors: list[Tensor],
    present: list[bool],
    wanted: list[bool],
    Y: Tensor,
    dY: Tensor,
    dY_h: Tensor,
    form: str,
) -> list[Tensor]:
    found = _backward(form_from(form), _spread(tensors, present), Y, dY, dY_h, wanted)
    return [item for item in found if item is not None]


@_backward_operator.register_fake
def _(tensors: list[Tensor], present: list[bool], wanted: list[bool], *rest: Any) -> list[Tensor]:
    given = _spread(tensors, present)
    by = (*given[:3], *given[5:])
    return [
        tensor.new_empty(tensor.shape)
        for tensor, is_wanted in zip(by, wanted, strict=True)
        if is_wanted and tensor is not None
    ]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.present, ctx.form = inputs
    ctx.save_for_backward(*tensors, output[2])


def _operator_backward(ctx: Any, grads: Sequence[Tensor | None]) -> Any:
    *tensors, Y = ctx.saved_tensors
    needed = _spread(ctx.needs_input_grad[0], ctx.present)
    wanted = [bool(is_needed) for is_needed in (*needed[:3], *needed[5:])]
    dY, dY_h = grads[:2]
    T, D, B, H = Y.shape
    dY = Y.new_zeros(T, B, D * H) if dY is None else dY
    dY_h = Y.new_zeros(D, B, H) if dY_h is None else dY_h
    found = iter(_backward_operator(tensors, ctx.present, wanted, Y, dY, dY_h, ctx.form))
    results = [next(found) if is_wanted else None for is_wanted in wanted]
    every = [*results[:3], None, None, *results[3:]]
    return [item for item, is_there in zip(every, ctx.present, strict=True) if is_there], None, None


_operator.register_autograd(_operator_backward, setup_context=_setup)
