"""A layer in all its directions as an operator of PyTorch, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onegru import _native
from onegru.core.dtypes import Array, contiguous
from onegru.core.errors import SpecError
from onegru.engines.training import Call, DirectionWeights, Outputs, Resets, TrainedLayer
from onegru.torch import fallback
from onegru.torch.arguments import TorchGruConfig, check_steps, form_from, spec_of
from onegru.torch.export import export_layer, is_exporting
from onegru.torch.few_steps import (
    are_few,
    are_few_trained,
    gradients_of_few_steps,
    has_memory,
    is_dual,
    run_few_steps,
)
from onegru.torch.threads import with_threads

_TYPES = {torch.float32: "float32", torch.float64: "float64"}
_DTYPES = {kind: np.dtype(name) for kind, name in _TYPES.items()}
_DTYPES |= {torch.int64: np.dtype(np.int64), torch.bool: np.dtype(np.bool_)}
_GATES = (1, 0, 2)  # where z, r and n are in PyTorch's order r, z, n
# The inputs that have gradients; behind them come lengths, resets and the weights.
_INPUTS = ("X", "initial_h", "attention")
_WEIGHTS = ("W", "R", "Wb", "Rb")


def gru_layer(
    form: TorchGruConfig,
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
        X: [T, B, I]; T is not 0.
        weights: for each direction weight_ih [3H, I], weight_hh [3H, H], bias_ih and bias_hh [3H], gate order
            r, z, n; both biases may be None.
        initial_h: [D, B, H]; None for zeros.
        lengths: [B], int64, each in 0…T; None for all T.
        attention: [T, B]; None for none.
        resets: [T, B], booleans; None for none.

    Returns:
        Y [T, B, D·H], zero past each row's end, and Y_h [D, B, H].
    """
    tensors = (X, initial_h, attention, lengths, resets, *weights)
    if any(tensor is not None and tensor.device != X.device for tensor in tensors):
        devices = {str(tensor.device) for tensor in tensors if tensor is not None}
        raise SpecError.of(
            "input", f"on {X.device}, and others on {', '.join(sorted(devices))}; must be on one device"
        )
    if (
        X.device.type != "cpu"
        or X.dtype not in _TYPES
        or any(w is not None and w.dtype != X.dtype for w in weights)
    ):
        return fallback.forward(form, X, weights, initial_h, lengths, attention, resets)
    if is_exporting():
        return _exported(form, tensors)
    if torch.jit.is_tracing():
        raise SpecError("trace: torch.jit.trace takes only what torch.nn.GRU computes; must be torch.export")
    if torch.compiler.is_compiling():
        given = [tensor for tensor in tensors if tensor is not None]
        found = _operator(given, [tensor is not None for tensor in tensors], form.words)
        return found[0], found[1]
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    is_transforming = torch._C._are_functorch_transforms_active()
    is_hidden = is_transforming or is_dual() or is_watched(*tensors)
    if not saves and not is_hidden and _are_few(X, weights):
        done = run_few_steps(form, tensors)
        if done is not None:
            return done[0], done[1]
    kind = _TransformedOnegruGRU if is_transforming else OnegruGRU
    found = kind.apply(form, saves, *tensors)
    return found[0], found[1]


_CLASSES = {Tensor, torch.nn.Parameter, type(None)}


def quick_call(
    form: TorchGruConfig,
    X: Tensor,
    hx: Tensor | None,
    weights: Sequence[Tensor | None],
    layers: int,
    H: int,
) -> tuple[Tensor, Tensor] | None:
    """A call of few steps with plain tensors, with the fewest questions; None for any other.

    Args:
        form: what to compute.
        X: [T, B, I].
        hx: [L·D, B, H].
        weights: of each layer and direction, four; biases may be None.
        layers: L.
        H: hidden_size.
    """
    T, B, I = X.shape
    given = (X, hx, *weights)
    if not _CLASSES.issuperset(map(type, given)):
        return None
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    if not (are_few_trained if saves else are_few)(T, B, H):
        return None
    if has_modes() or torch._C._are_functorch_transforms_active():
        return None
    if torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or is_exporting() or is_dual():
        return None
    D, dtype, W = form.num_directions, X.dtype, weights[0]
    if dtype not in _TYPES or W is None or W.shape[-1] != I:
        return None
    if any(tensor is not None and (tensor.dtype is not dtype or not tensor.is_cpu) for tensor in given):
        return None
    if hx is not None and hx.shape != (layers * D, B, H):
        return None
    last = []
    for number in range(layers):
        start = hx if hx is None or layers == 1 else hx[number * D : (number + 1) * D]
        tensors = (X, start, None, None, None, *weights[4 * D * number : 4 * D * (number + 1)])
        if saves:
            X, Y_h = OnegruGRU.apply(form, True, *tensors)
        else:
            found = run_few_steps(form, tensors)
            if found is None:
                return None
            X, Y_h, _ = found
        last.append(Y_h)
    return X, last[0] if layers == 1 else torch.cat(last)


def _are_few(X: Tensor, weights: Sequence[Tensor | None], is_trained: bool = False) -> bool:
    R = weights[1]
    if R is None or R.dim() != 2 or X.dim() != 3:
        return False
    return (are_few_trained if is_trained else are_few)(X.shape[0], X.shape[1], R.shape[1])


def _exported(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """The layer as a node of ONNX."""
    if torch.compiler.is_compiling():
        return export_layer(form, tensors, None)
    present = [tensor is not None for tensor in tensors]

    def compute(given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        Y, Y_h, _ = _forward(form, _spread(given, present))
        return Y.transpose(1, 2), Y_h

    return export_layer(form, tensors, compute)


# --- tensors as the engine takes them


def has_modes() -> bool:
    """Whether a mode sees what runs: those that trace before autograd have a stack of their own."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch())


def is_watched(*tensors: Tensor | None) -> bool:
    """Whether something stands between these tensors and their numbers: a mode, a trace, a class of tensors.

    It has to see an operator, as it would not see that memory is read.
    """
    if has_modes():
        return True
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
    if not torch._C._are_functorch_transforms_active():
        return False
    mapped = torch._C._functorch.TransformType.Vmap
    return any(item.key() == mapped for item in torch._C._functorch.get_interpreter_stack() or ())


def _array(name: str, tensor: Tensor) -> Array:
    """A tensor's memory as an array, its last axis contiguous, for the time of a call.

    Unlike `Tensor.numpy` it leaves the memory to PyTorch, which may resize it later.
    """
    if not tensor.is_cpu or tensor.dtype not in _DTYPES or tensor.layout is not torch.strided:
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device.type}"
        raise SpecError.of(name, f"{kind}; must be float32 or float64 with strides on the CPU")
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    shape, strides = tensor.shape, tensor.stride()
    if strides and strides[-1] != 1 and shape[-1] > 1:
        tensor = tensor.contiguous()
        strides = tensor.stride()
    address = tensor.data_ptr()
    if not has_memory(tensor):
        if tensor._is_zerotensor():
            return np.zeros(shape, _DTYPES[tensor.dtype])
        raise SpecError.of(name, "a tensor whose memory was freed; must have its numbers")
    return _native.array_at(tensor, address, shape, strides, _DTYPES[tensor.dtype])


def _new(X: Tensor, shape: tuple[int, ...]) -> Array:
    """The memory of a new tensor, of X's type."""
    made = X.new_empty(shape)
    return _native.array_at(made, made.data_ptr(), shape, made.stride(), _DTYPES[made.dtype])


def _given(name: str, tensor: Tensor | None) -> Array | None:
    return None if tensor is None else _array(name, tensor)


def _layer(
    form: TorchGruConfig, X: Tensor, weights: Sequence[Tensor | None], attention: bool, packs: bool = True
) -> TrainedLayer:
    each = len(weights) // form.num_directions
    read = each if packs else 2  # gradients from saved gates read the matrices alone
    arrays = [
        None if weight is None or place % each >= read else contiguous(_array(_WEIGHTS[place % each], weight))
        for place, weight in enumerate(weights)
    ]
    own = [DirectionWeights(*arrays[d * each : (d + 1) * each]) for d in range(form.num_directions)]
    assert own[0].R is not None
    if X.dim() != 3 or own[0].R.ndim != 2:  # hooks of saved tensors may return anything
        raise SpecError(f"X, R: {X.dim()} and {own[0].R.ndim} axes; must have 3 and 2")
    # Sizes are tensors while a call is traced.
    spec = spec_of(form, int(X.shape[2]), int(own[0].R.shape[1]), _TYPES[X.dtype], attention)
    return TrainedLayer(spec, own, _GATES, packs=packs)


def _call(form: TorchGruConfig, tensors: Sequence[Tensor | None]) -> Call:
    X, initial_h, attention, lengths, resets = tensors
    assert X is not None
    if lengths is not None:
        lengths = lengths.to(torch.int64).contiguous()
    call = Call(
        _array("X", X),
        _given("initial_h", initial_h),
        _given("lengths", lengths),
        _given("attention", attention),
        None if resets is None else Resets(_array("resets", resets), form.resets_to_initial),
    )
    check_steps("X", call.X.shape[0])
    return call


def _forward(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Y [T, B, D, H], Y_h and the gates, empty if none are saved."""
    X = tensors[0]
    assert X is not None
    call = _call(form, tensors[:5])
    layer = _layer(form, X, tensors[5:], tensors[2] is not None)
    T, B, _ = call.X.shape
    D, H = form.num_directions, layer.spec.hidden_size
    size = layer.saved_size(call) if saves else 0
    Y, Y_h = X.new_empty((T, B, D, H)), X.new_empty((D, B, H))
    gates = X.new_empty((T, D, B, size) if size else 0)
    saved = _array("gates", gates) if size else None
    with_threads(
        layer.forward, call, out=Outputs(_array("Y", Y).transpose(0, 2, 1, 3), _array("Y_h", Y_h), saved)
    )
    return Y, Y_h, gates


def _backward(
    form: TorchGruConfig,
    tensors: Sequence[Tensor | None],
    Y: Tensor,
    dY: Tensor | None,
    dY_h: Tensor | None,
    wanted: Sequence[bool],
    gates: Tensor | None = None,
) -> list[Tensor | None]:
    """The gradients by X, initial_h, attention and the weights, those that are wanted."""
    X, attention = tensors[0], tensors[2]
    assert X is not None
    if gates is not None and gates.dim() == 5:
        few = gradients_of_few_steps(form, tensors, Y, gates, (dY, dY_h), wanted)
        if few is not None:
            return few
        gates = None  # other memory than that of the call: they are computed again
    saved = gates if gates is not None and gates.numel() else None
    layer = _layer(form, X, tensors[5:], attention is not None, packs=saved is None)
    if dY is not None:
        dY = dY.reshape(Y.shape).transpose(1, 2)
    inputs = [name for name, is_wanted in zip(_INPUTS, wanted, strict=False) if is_wanted]
    weights = [
        [name for name, is_wanted in zip(_WEIGHTS, wanted[first : first + 4], strict=True) if is_wanted]
        for first in range(3, 3 + 4 * form.num_directions, 4)
    ]
    found, by = with_threads(
        layer.gradients,
        _call(form, tensors[:5]),
        _array("Y", Y.transpose(1, 2)),
        _given("gates", saved),
        _given("dY", dY),
        _given("dY_h", dY_h),
        inputs,
        weights,
        lambda shape: _new(X, shape),
    )
    arrays = [*(found.get(name) for name in _INPUTS), *(array for own in by for array in own)]
    return [None if array is None else array.base for array in arrays]  # the tensor that it is the memory of


# --- outside of compiled code


def _save(ctx: Any, tensors: Sequence[Tensor | None], Y: Tensor, gates: Tensor) -> None:
    """Save a call for backward.

    A program may assign to the `data` of a tensor meanwhile, which then has other memory, and autograd does
    not see it. PyTorch's own operators read views, which keep the old one: so does what is detached here.
    Second derivatives need the parameters themselves.
    """
    leaves = {n: t.detach() for n, t in enumerate(tensors) if t is not None and t.requires_grad and t.is_leaf}
    own = [t if t is None or t.requires_grad else t.detach() for t in tensors]
    for place in (3, 4):  # lengths and resets: a program may write to their memory, too
        if (item := own[place]) is not None:
            own[place] = item.clone()
    ctx.leaves = tuple(leaves)
    ctx.save_for_backward(*leaves.values(), *own, Y, gates)


def _pulled(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
    """The gradients by all arguments of a call."""
    leaves: Sequence[int] = ctx.leaves
    saved = ctx.saved_tensors
    *tensors, Y, gates = saved[len(leaves) :]
    needed = ctx.needs_input_grad[2:]
    wanted = (*needed[:3], *needed[5:])
    is_again = torch.is_grad_enabled() or any(map(is_transformed, (dY, dY_h)))
    for place, numbers in zip(leaves, saved, strict=False):
        if not is_again:
            tensors[place] = numbers
        elif not _is_same(tensors[place], numbers):
            name = (*_INPUTS, "", "", *_WEIGHTS * ctx.form.num_directions)[place]
            raise SpecError.of(name, "has other data than in the call; must not, to differentiate twice")
    if is_again:
        given = fallback.gradients(ctx.form, tensors, (dY, dY_h), wanted)
    elif is_watched(*tensors, Y, dY, dY_h):
        given = _backward_by_operator(ctx.form.words, tensors, Y, dY, dY_h, wanted)
    else:
        given = _backward(ctx.form, tensors, Y, dY, dY_h, wanted, gates)
    return None, None, *given[:3], None, None, *given[3:]


def _is_same(tensor: Tensor, numbers: Tensor) -> bool:
    """Whether a tensor still holds these numbers, be it in other memory, as copies by hooks are."""
    if is_watched(tensor, numbers):
        return True
    is_alike = tensor.shape == numbers.shape and tensor.dtype == numbers.dtype
    is_own = is_alike and tensor.data_ptr() == numbers.data_ptr()
    return is_own or (is_alike and bool(torch.equal(tensor.detach(), numbers)))


def _seen_forward(
    form: TorchGruConfig, tensors: Sequence[Tensor | None], saves: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_forward`; the gates of few steps have five axes."""
    if not is_watched(*tensors):
        X = tensors[0]
        assert X is not None
        if saves and _are_few(X, tensors[5:], is_trained=True):
            done = run_few_steps(form, tensors, saves=True)
            if done is not None and done[2] is not None:
                return done[0], done[1], done[2]
        return _forward(form, tensors, saves)
    given, present = [t for t in tensors if t is not None], [t is not None for t in tensors]
    _, Y_h, Y = _operator(given, present, form.words)
    return Y, Y_h, Y.new_empty(0)


def _output(Y: Tensor, saves: bool) -> Tensor:
    """Y [T, B, D, H] as [T, B, D·H]; not a view of what is saved: it may be changed in place."""
    output = Y.flatten(2)
    return output.clone() if saves else output


class OnegruGRU(torch.autograd.Function):
    """The layer; its name is that of `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        """Y and Y_h."""
        Y, Y_h, gates = _seen_forward(form, tensors, saves)
        if saves:
            ctx.form = form
            ctx.set_materialize_grads(False)
            _save(ctx, tensors, Y, gates)
        return _output(Y, saves), Y_h

    @staticmethod
    def backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None) -> Any:
        """The gradients by all arguments."""
        return _pulled(ctx, dY, dY_h)


class _TransformedOnegruGRU(torch.autograd.Function):
    """The layer in transforms of `torch.func`, which want to see all that is saved; it takes longer."""

    @staticmethod
    def forward(form: TorchGruConfig, saves: bool, *tensors: Tensor | None) -> Any:
        Y, Y_h, gates = _seen_forward(form, tensors, saves)
        return _output(Y, saves), Y_h, Y, gates

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


# --- for compiled code and export


def _spread(tensors: Sequence[Any], present: Sequence[bool]) -> list[Any]:
    rest = iter(tensors)
    return [next(rest) if is_there else None for is_there in present]


# The schemas are written out, as PyTorch 2.6 does not read lists from annotations.
@torch.library.custom_op(
    "onegru::gru", mutates_args=(), schema="(Tensor[] tensors, bool[] present, str form) -> Tensor[]"
)
def _operator(tensors: list[Tensor], present: list[bool], form: str) -> list[Tensor]:
    Y, Y_h, _ = _forward(form_from(form), _spread(tensors, present))
    return [_output(Y, True), Y_h, Y]


@_operator.register_fake
def _(tensors: list[Tensor], present: list[bool], form: str) -> list[Tensor]:
    X, R = tensors[0], tensors[sum(present[:5]) + 1]
    T, B, H, D = X.shape[0], X.shape[1], R.shape[1], form_from(form).num_directions
    return [X.new_empty(T, B, D * H), X.new_empty(D, B, H), X.new_empty(T, B, D, H)]


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


def _backward_by_operator(
    form: str,
    tensors: Sequence[Tensor | None],
    Y: Tensor,
    dY: Tensor | None,
    dY_h: Tensor | None,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """As `_backward`."""
    T, B, D, H = Y.shape
    dY = Y.new_zeros(T, B, D * H) if dY is None else dY
    dY_h = Y.new_zeros(D, B, H) if dY_h is None else dY_h
    given, present = [t for t in tensors if t is not None], [t is not None for t in tensors]
    found = iter(_backward_operator(given, present, list(wanted), Y, dY, dY_h, form))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.present, ctx.form = inputs
    ctx.save_for_backward(*tensors, output[2])


def _operator_backward(ctx: Any, grads: Sequence[Tensor | None]) -> Any:
    *tensors, Y = ctx.saved_tensors
    needed = _spread(ctx.needs_input_grad[0], ctx.present)
    wanted = [bool(is_needed) for is_needed in (*needed[:3], *needed[5:])]
    results = _backward_by_operator(ctx.form, _spread(tensors, ctx.present), Y, grads[0], grads[1], wanted)
    every = [*results[:3], None, None, *results[3:]]
    return [item for item, is_there in zip(every, ctx.present, strict=True) if is_there], None, None


_operator.register_autograd(_operator_backward, setup_context=_setup)
