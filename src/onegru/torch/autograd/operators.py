"""Define the PyTorch operators `onegru::gru` and `onegru::gru_backward`.

Compiled and exported programs, traces, and tensors without data use them. Arguments have the names of the
specifications; Wb and Rb are empty without biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig, form_of_scalars
from onegru.torch.autograd import fallback
from onegru.torch.autograd.compute import backward, forward, output_of
from onegru.torch.autograd.memory import TYPES, Tensors
from onegru.torch.autograd.saving import Saved
from onegru.torch.autograd.watching import is_intercepted

_TENSORS = (
    "Tensor X, Tensor? initial_h, Tensor? attention, Tensor? sequence_lens, Tensor? resets, "
    "Tensor[] W, Tensor[] R, Tensor[] Wb, Tensor[] Rb"
)
_FORM = (
    "str direction, bool linear_before_reset, float clip, str[] activations, float[] activation_alpha, "
    "float[] activation_beta, bool resets_to_initial, str attention_form"
)
_INPUTS = 5  # number of tensors before the weights


class _OperatorTensors(NamedTuple):
    """Tensors of an operator, in the order of its schema."""

    X: Tensor
    initial_h: Tensor | None
    attention: Tensor | None
    sequence_lens: Tensor | None
    resets: Tensor | None
    W: Sequence[Tensor]
    R: Sequence[Tensor]
    Wb: Sequence[Tensor]
    Rb: Sequence[Tensor]

    def in_a_row(self) -> list[Tensor | None]:
        """Return the tensors in the order of `gru_layer`: the inputs, then the weights of each direction."""
        biases = [own or [None] * len(self.W) for own in (self.Wb, self.Rb)]
        return [*self[:_INPUTS], *(w for own in zip(self.W, self.R, *biases, strict=True) for w in own)]


def _operator_tensors(tensors: Tensors) -> _OperatorTensors:
    """Return the inverse of `in_a_row`. If only one direction has a bias, the other bias is zero."""
    X, W = tensors[0], tensors[_INPUTS::4]
    weights: list[list[Tensor]] = []
    for index in range(4):
        own = tensors[_INPUTS + index :: 4]
        is_there = any(item is not None for item in own)
        zero = [
            X.new_zeros(w.shape[0]) if item is None and w is not None else item
            for item, w in zip(own, W, strict=True)
        ]
        weights.append([item for item in zero if item is not None] if is_there else [])
    return _OperatorTensors(X, *tensors[1:_INPUTS], *weights)


def _check(given: _OperatorTensors, form: TorchGruConfig) -> None:
    """Raise SpecError unless the lists match the number of directions, and a kernel has X's type."""
    D = form.num_directions
    lists = {"W": given.W, "R": given.R, "Wb": given.Wb, "Rb": given.Rb}
    for name, count in ((name, len(items)) for name, items in lists.items()):
        if count != D and not (count == 0 and name in ("Wb", "Rb")):
            raise SpecError.of(name, f"{count} tensors; must be {D}, one for each direction")
    if given.X is None or given.X.dtype not in TYPES:
        found = None if given.X is None else given.X.dtype
        raise SpecError.of("X", f"{found}; must be float32 or float64")


# Schemas are written out because PyTorch 2.6 does not read lists from annotations.
@torch.library.custom_op(
    "onegru::gru", mutates_args=(), schema=f"({_TENSORS}, {_FORM}) -> (Tensor, Tensor, Tensor)"
)
def _operator(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return Y [T, B, D·H], Y_h, and Y [T, B, D, H] for the gradients."""
    given = _OperatorTensors(*arguments[: len(_OperatorTensors._fields)])
    form = form_of_scalars(arguments[len(given) :])
    _check(given, form)
    Y, Y_h, _ = forward(form, given.in_a_row())
    return output_of(Y, True), Y_h, Y


@_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    X, R = arguments[0], _OperatorTensors(*arguments[: len(_OperatorTensors._fields)]).R
    T, B, D, H = X.shape[0], X.shape[1], len(R), R[0].shape[1]
    return X.new_empty(T, B, D * H), X.new_empty(D, B, H), X.new_empty(T, B, D, H)


@torch.library.custom_op(
    "onegru::gru_backward",
    mutates_args=(),
    schema=f"({_TENSORS}, Tensor Y, Tensor? dY, Tensor? dY_h, bool[] wanted, {_FORM}) -> Tensor[]",
)
def _backward_operator(*arguments: Any) -> list[Tensor]:
    """Return the wanted gradients of X, initial_h, attention, and each direction's weights."""
    given = _OperatorTensors(*arguments[: len(_OperatorTensors._fields)])
    Y, dY, dY_h, wanted, *scalars = arguments[len(given) :]
    form = form_of_scalars(scalars)
    _check(given, form)
    tensors = given.in_a_row()
    derived = (*tensors[:3], *tensors[_INPUTS:])
    if len(wanted) != len(derived) or any(w and t is None for w, t in zip(wanted, derived, strict=True)):
        raise SpecError.of(
            "wanted", f"{list(wanted)}; must be {len(derived)}, True only for tensors that are given"
        )
    found = backward(form, tensors, Y, (dY, dY_h), wanted)
    return [item for item in found if item is not None]


@_backward_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    tensors = _OperatorTensors(*arguments[: len(_OperatorTensors._fields)]).in_a_row()
    wanted = arguments[len(_OperatorTensors._fields) + 3]
    derived = (*tensors[:3], *tensors[_INPUTS:])
    return [
        tensor.new_empty(tensor.shape)
        for tensor, is_wanted in zip(derived, wanted, strict=True)
        if is_wanted and tensor is not None
    ]


def call_operator(form: TorchGruConfig, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Return Y [T, B, D·H], Y_h and Y [T, B, D, H], computed by the operator."""
    found: tuple[Tensor, Tensor, Tensor] = _operator(*_operator_tensors(tensors), *form.scalars)
    return found


def call_backward_operator(
    form: TorchGruConfig, tensors: Tensors, Y: Tensor, d_outputs: Tensors, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradients, as `onegru.torch.autograd.compute.backward`, computed by the operator."""
    found = iter(_backward_operator(*_operator_tensors(tensors), Y, *d_outputs, list(wanted), *form.scalars))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def gradients(
    form: TorchGruConfig, saved: Saved, Y: Tensor, d_outputs: Tensors, gates: Tensor | None = None
) -> list[Tensor | None]:
    """Return the gradients of a call: differentiable, by an operator that modes see, or by the kernels."""
    tensors, _, wanted, create_graph = saved
    if create_graph:
        return fallback.gradients(form, tensors, d_outputs, wanted)
    if is_intercepted(*tensors, Y, *d_outputs):
        return call_backward_operator(form, tensors, Y, d_outputs, wanted)
    return backward(form, tensors, Y, d_outputs, wanted, gates)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    given = _OperatorTensors(*inputs[: len(_OperatorTensors._fields)])
    ctx.form, ctx.has_biases = inputs[len(given) :], [bool(own) for own in given[-2:]]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])  # the gradients need only its values
    ctx.save_for_backward(*given.in_a_row(), output[2])


def _operator_backward(ctx: Any, dY: Tensor | None, dY_h: Tensor | None, _: Any) -> Any:
    *tensors, Y = ctx.saved_tensors
    needed = ctx.needs_input_grad
    by_weights = [
        bool(own[d]) if own else False for d in range(Y.shape[2]) for own in needed[_INPUTS : _INPUTS + 4]
    ]
    wanted = [*map(bool, needed[:3]), *by_weights]
    form = form_of_scalars(ctx.form)
    found = call_backward_operator(form, tensors, Y, (dY, dY_h), wanted)
    lists = [found[3 + index :: 4] for index in range(4)]
    for index, has_any in enumerate(ctx.has_biases, 2):
        lists[index] = lists[index] if has_any else []
    # PyTorch reads an empty list as a list of tensors.
    rest: list[Any] = [[] if isinstance(item, list) and not item else None for item in ctx.form]
    return (*found[:3], None, None, *lists, *rest)


_operator.register_autograd(_operator_backward, setup_context=_setup)
