"""Run GRUs as functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.core.spec import Attention
from onegru.torch.arguments import check_steps, form_of
from onegru.torch.autograd.function import gru_layer
from onegru.torch.autograd.watching import is_intercepted, is_transformed
from onegru.torch.route import is_recorded


def gru(
    X: Tensor,
    weights: Sequence[Tensor | None],
    initial_h: Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    attention: Tensor | None = None,
    resets: Tensor | None = None,
    resets_to_initial: bool = False,
    direction: str = "forward",
    linear_before_reset: bool = True,
    clip: float | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    attention_kind: Attention = "openvino",
) -> tuple[Tensor, Tensor]:
    """Run one GRU layer, in one or both directions, with gradients.

        z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
        r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
        n = g(clip(x·Wnᵀ + r∘(h·Rnᵀ + Rbn) + Wbn))       linear_before_reset = True
        n = g(clip(x·Wnᵀ + (r∘h)·Rnᵀ + Wbn + Rbn))       linear_before_reset = False
        z = (1 - a)·z                                     with attention, "openvino"
        z = 1 - a·(1 - z)                                 with attention, "dien"
        h = (1 - z)∘n + z∘h

    Source: ONNX GRU-14, with PyTorch's names, gate order and defaults. Attention is as in OpenVINO's
    AUGRUCell, or as in equation 16 of the DIEN paper (arXiv 1809.03672), where the update gate is 1 - z.

    Args:
        X: [T, B, I], float32 or float64; T must not be 0.
        weights: for each direction, weight_ih [3H, I], weight_hh [3H, H], bias_ih and bias_hh [3H], in gate
            order r, z, n. Biases can be None.
        initial_h: [D, B, H]. Default: None (zeros).
        lengths: [B], integers in 0…T: the number of steps of each sequence. Default: None (all T steps).
        attention: attention scores, [T, B] or [T, B, 1]. Default: None (no attention).
        resets: [T, B], booleans: whether the state is reset before a step. Default: None (no resets).
        resets_to_initial: whether a reset restores `initial_h` instead of zeros.
        direction: "forward", "reverse" or "bidirectional".
        linear_before_reset: whether the reset gate acts after the recurrent product, as in PyTorch.
        clip: clip value > 0 for the inputs of the activations; the gradient beyond it is zero. Default: None
            (no clipping).
        activations: the names of f and g for each direction. Default: None (Sigmoid and Tanh).
        activation_alpha: alpha for the functions that have it, in order.
        activation_beta: beta for the functions that have it, in order.
        attention_kind: the equation of attention, "openvino" or "dien".

    Returns:
        Y [T, B, D·H], which is zero in the padding, and the last states [D, B, H].

    Raises:
        SpecError: an argument is invalid. The message gives its name, its value and the rule.
    """
    form = form_of(
        direction,
        linear_before_reset,
        clip,
        activations,
        activation_alpha,
        activation_beta,
        resets_to_initial,
        attention_kind,
    )
    must_be_tensors(X=X, initial_h=initial_h, lengths=lengths, attention=attention, resets=resets)
    _check(X, weights, form.num_directions)
    H = weights[1].shape[1]  # type: ignore[union-attr]
    state = checked_state(initial_h, X, (form.num_directions, X.shape[1], H))
    lengths, scores = checked_lengths(lengths, X), checked_attention(attention, X)
    return gru_layer(form, (X, state, scores, lengths, checked_resets(resets, X), *weights))


def _check(X: Tensor, weights: Sequence[Tensor | None], num_directions: int) -> None:
    is_list = isinstance(weights, Sequence) and not isinstance(weights, str)
    if not is_list or not all(item is None or isinstance(item, Tensor) for item in weights):
        raise SpecError.of("weights", f"{type(weights).__name__}; must be a list of tensors and None")
    if X.dim() != 3:
        raise SpecError.of("X", f"shape {list(X.shape)}; must be [T, B, I]")
    must_have_steps("X", X)
    if len(weights) != 4 * num_directions:
        raise SpecError.of("weights", f"{len(weights)}; must be 4 for each of {num_directions} directions")
    for d in range(num_directions):
        W, R, *biases = weights[4 * d : 4 * d + 4]
        if W is None or R is None or R.dim() != 2 or R.shape[0] != 3 * R.shape[1]:
            shape = None if R is None else list(R.shape)
            raise SpecError.of("weights", f"weight_hh {shape}; must be [3H, H]")
        H = R.shape[1]
        if weights[1].shape[1] != H:  # type: ignore[union-attr]
            raise SpecError.of("weights", f"weight_hh {list(R.shape)}; must be as in the other direction")
        if tuple(W.shape) != (3 * H, X.shape[2]):
            raise SpecError.of("weights", f"weight_ih {list(W.shape)}; must be {[3 * H, X.shape[2]]}")
        for bias in biases:
            if bias is not None and tuple(bias.shape) != (3 * H,):
                raise SpecError.of("weights", f"a bias {list(bias.shape)}; must be {[3 * H]}")
        if len({bias is None for bias in biases}) > 1:
            raise SpecError.of("weights", "one bias is None; must be both or neither")
    if len({weight is None for weight in weights[2::4]}) > 1:
        raise SpecError.of("weights", "one direction has biases; must be both or neither")
    types = {weight.dtype for weight in weights if weight is not None} | {X.dtype}
    if len(types) > 1:
        raise SpecError.of("weights", f"{', '.join(sorted(map(str, types)))} with X; must have one type")


def must_be_tensors(**given: object) -> None:
    """Raise SpecError unless each value is a tensor, or None where that is allowed."""
    for name, value in given.items():
        if (value is not None or name in ("X", "input")) and not isinstance(value, Tensor):
            raise SpecError.of(name, f"{type(value).__name__}; must be a tensor")


def must_have_steps(name: str, X: Tensor) -> None:
    """Raise SpecError if X [T, B, I] has no steps."""
    if not is_recorded():
        check_steps(name, X.shape[0])


def checked_state(
    state: Tensor | None, X: Tensor, shape: tuple[int, ...], name: str = "initial_h"
) -> Tensor | None:
    """Return an initial state. Raise SpecError if its shape or type is wrong."""
    if state is None:
        return None
    if state.layout is not torch.strided:
        raise SpecError.of(name, f"{state.layout}; must be a tensor with strides")
    if tuple(state.shape) != shape or state.dtype != X.dtype:
        raise SpecError.of(name, f"{state.dtype} {list(state.shape)}; must be {X.dtype} {list(shape)}")
    return state


def checked_lengths(lengths: Tensor | None, X: Tensor) -> Tensor | None:
    """Return lengths as int64. Raise SpecError if they are not lengths of X's sequences."""
    if lengths is None:
        return None
    T, B = X.shape[:2]
    if lengths.is_meta and not X.is_meta:
        raise SpecError.of("lengths", "on the meta device; must have values")
    if lengths.dtype not in (torch.int32, torch.int64) or tuple(lengths.shape) != (B,):
        raise SpecError.of("lengths", f"{lengths.dtype} {list(lengths.shape)}; must be int64 or int32 {[B]}")
    is_hidden = is_recorded() or is_transformed(lengths) or is_intercepted(lengths)
    if not is_hidden and B and not bool(((lengths >= 0) & (lengths <= T)).all()):
        raise SpecError.of("lengths", f"{int(lengths.min())}…{int(lengths.max())}; must be 0…{T}")
    return lengths.to(X.device, torch.int64)


def checked_attention(attention: Tensor | None, X: Tensor, batch_first: bool = False) -> Tensor | None:
    """Return scores as [T, B]. Raise SpecError if their shape or type is wrong."""
    if attention is None:
        return None
    T, B = X.shape[:2]
    shape = tuple(attention.shape)  # torch.compile does not find it inside other calls for dynamic sizes
    if (shape != (T, B) and shape != (T, B, 1)) or attention.dtype != X.dtype:
        found, wanted, other = (_shown(item, batch_first) for item in (shape, (T, B), (T, B, 1)))
        raise SpecError.of("attention", f"{attention.dtype} {found}; must be {X.dtype} {wanted} or {other}")
    return attention.reshape(T, B)


def _shown(shape: Sequence[int], batch_first: bool) -> list[int]:
    """Return a shape of time, batch and other axes in the caller's order."""
    return [*shape[1::-1], *shape[2:]] if batch_first else list(shape)


def checked_resets(resets: Tensor | None, X: Tensor, batch_first: bool = False) -> Tensor | None:
    """Return a mask of resets. Raise SpecError if its shape or type is wrong."""
    if resets is None:
        return None
    if resets.dtype != torch.bool or tuple(resets.shape) != tuple(X.shape[:2]):
        raise SpecError.of(
            "resets",
            f"{resets.dtype} {_shown(resets.shape, batch_first)}; must be torch.bool "
            f"{_shown(X.shape[:2], batch_first)}",
        )
    return resets
