"""The operators as functions, one for each specification, with the specification's argument names.

Each call converts its weights to canonical form again; `onegru.GRU` does so once for many calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from onegru.core.arguments import integer
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.spec import Direction
from onegru.layers.call import apply
from onegru.layers.gru import GRU, present
from onegru.operators.lowering import lower
from onegru.operators.onnx import gru_version
from onegru.operators.openvino import AUGRU_CELL, AUGRU_SEQUENCE, GRU_CELL, GRU_SEQUENCE
from onegru.operators.schema import OpSchema


def gru(
    X: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    sequence_lens: ArrayLike | None = None,
    initial_h: ArrayLike | None = None,
    *,
    hidden_size: int | None = None,
    direction: Direction | Literal["foward"] = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,
    clip: float | None = None,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    output_sequence: int | None = None,
    opset: int = 22,
    engine: str = "auto",
) -> tuple[Array, Array]:
    """Compute ONNX's GRU, in versions 1, 3, 7, 14 and 22.

        zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
        rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
        ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)         linear_before_reset = 0
        ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)       linear_before_reset != 0
        Ht = (1 - zt) (.) ht + zt (.) Ht-1

    Source: the published specifications of GRU-1, 3, 7 and 14; version 22 adds bfloat16.

    Args:
        X: input, [T, B, I], or [B, T, I] under layout 1; float16, bfloat16, float32 or float64.
        W: input weights, [D, 3H, I], gate order z, r, h; D = 2 if bidirectional, else 1. All tensors share
            X's type.
        R: recurrence weights, [D, 3H, H].
        B: biases, [D, 6H] = Wb (z, r, h), then Rb (z, r, h). Default: None (zeros).
        sequence_lens: [B], any integers, each in 0…T. Default: None (all T steps). In the padding, Y is 0.
        initial_h: initial state, [D, B, H], or [B, D, H] under layout 1. Default: None (zeros).
        hidden_size: H. Default: None (from the shape of R).
        direction: "forward", "reverse" or "bidirectional"; at opsets 1 and 2 also "foward", as in files.
        layout: 0 for time first, 1 for batch first (opset 14 and later).
        linear_before_reset: 0 to apply the reset gate before the recurrent product, else after it
            (opset 3 and later).
        clip: bound > 0 on the inputs of the activations. Default: None (no bound).
        activations: names of f and g, for each direction, ignoring case. Default: None (Sigmoid and Tanh).
        activation_alpha: values for the functions that have alpha, in order. Default: None (their defaults).
        activation_beta: values for the functions that have beta, in order. Default: None (ONNX's defaults).
        output_sequence: 0 or 1 (opsets below 7). Both outputs are returned in any case.
        opset: selects the newest version at or below it.
        engine: the engine, as in `onegru.GRU`.

    Returns:
        Y, every state, [T, D, B, H], or [B, T, D, H] under layout 1; and Y_h, each row's last state,
        [D, B, H], or [B, D, H]; 0 for a row of length 0.

    Raises:
        SpecError: an argument that this version's specification forbids.

    Warns:
        SpecWarning: alpha or beta values that no function has.
    """
    operator = gru_version(integer("opset", opset))
    if operator is None:
        raise SpecError.of("opset", f"{opset}; must be at least 1")
    attributes = present(
        hidden_size=hidden_size,
        direction=direction,
        clip=clip,
        activations=activations,
        activation_alpha=activation_alpha,
        activation_beta=activation_beta,
        output_sequence=output_sequence,
    )
    # Their signatures have defaults, which must not reach a version that lacks the attribute.
    for name, value in (("layout", layout), ("linear_before_reset", linear_before_reset)):
        if value is not None and (name in operator.attributes or not _is_zero(value)):
            attributes[name] = value
    inputs = {"X": X, "sequence_lens": sequence_lens, "initial_h": initial_h}
    outputs = _call(operator, attributes, inputs, W, R, B, engine)
    return outputs["Y"], outputs["Y_h"]


def gru_cell(
    X: ArrayLike,
    initial_hidden_state: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike | None = None,
    *,
    hidden_size: int,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    engine: str = "auto",
) -> Array:
    """Compute one step of OpenVINO's GRUCell-3.

        zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
        rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
        ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)         linear_before_reset = False
        ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)       linear_before_reset = True
        Ht = (1 - zt) (.) ht + zt (.) Ht-1

    Source: the published specification of GRUCell-3.

    Args:
        X: input, [B, I]; float16, bfloat16, float32 or float64.
        initial_hidden_state: [B, H]. All tensors share X's type.
        W: input weights, [3H, I], gate order z, r, h.
        R: recurrence weights, [3H, H].
        B: biases: [3H], the sums Wb + Rb of z, r and h; or with linear_before_reset [4H], the sums of
            z and r, then Wbh, then Rbh. None for zeros.
        hidden_size: H, at least 1.
        activations: f and g, any of relu, sigmoid and tanh.
        activations_alpha: has no effect, because none of the three has alpha.
        activations_beta: values of beta, in order.
        clip: bound on the inputs of the activations; None, 0 or infinity: no clipping.
        linear_before_reset: whether the reset gate acts after the recurrent product.
        engine: the engine, as in `onegru.GRU`.

    Returns:
        Ho, the new state, [B, H].

    Raises:
        SpecError: an argument that the specification forbids.

    Warns:
        SpecWarning: activations_alpha or activations_beta are not empty.
    """
    attributes = present(
        hidden_size=hidden_size,
        activations=activations,
        activations_alpha=activations_alpha,
        activations_beta=activations_beta,
        clip=clip,
        linear_before_reset=linear_before_reset,
    )
    inputs = {"X": X, "initial_hidden_state": initial_hidden_state}
    return _call(GRU_CELL, attributes, inputs, W, R, B, engine)["Ho"]


def gru_sequence(
    X: ArrayLike,
    initial_hidden_state: ArrayLike,
    sequence_lengths: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike,
    *,
    hidden_size: int,
    direction: Direction = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    engine: str = "auto",
) -> tuple[Array, Array]:
    """Compute OpenVINO's GRUSequence-5: several steps, in one or both directions.

    The equations are those of `gru_cell`. Source: the published specification of GRUCell-3, over sequences.

    Args:
        X: input, [B, T, I]; float16, bfloat16, float32 or float64.
        initial_hidden_state: [B, D, H], D = 2 if bidirectional, else 1. All tensors share X's type.
        sequence_lengths: [B], any integers, each in 0…T. In the padding, Y is 0.
        W: input weights, [D, 3H, I], gate order z, r, h.
        R: recurrence weights, [D, 3H, H].
        B: biases, [D, 3H], or with linear_before_reset [D, 4H], as in `gru_cell`.
        hidden_size: H, at least 1.
        direction: "forward", "reverse" or "bidirectional".
        activations: f and g, any of relu, sigmoid and tanh, for both directions.
        activations_alpha: has no effect, because none of the three has alpha.
        activations_beta: values of beta, in order.
        clip: bound on the inputs of the activations; None, 0 or infinity: no clipping.
        linear_before_reset: whether the reset gate acts after the recurrent product.
        engine: the engine, as in `onegru.GRU`.

    Returns:
        Y, every state, [B, D, T, H]; and Ho, each row's last state, [B, D, H], 0 for a row of length 0.

    Raises:
        SpecError: an argument that the specification forbids.

    Warns:
        SpecWarning: activations_alpha or activations_beta are not empty.
    """
    attributes = present(
        hidden_size=hidden_size,
        direction=direction,
        activations=activations,
        activations_alpha=activations_alpha,
        activations_beta=activations_beta,
        clip=clip,
        linear_before_reset=linear_before_reset,
    )
    inputs = {"X": X, "initial_hidden_state": initial_hidden_state, "sequence_lengths": sequence_lengths}
    outputs = _call(GRU_SEQUENCE, attributes, inputs, W, R, B, engine)
    return outputs["Y"], outputs["Ho"]


def augru_cell(
    X: ArrayLike,
    H_t: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike,
    A: ArrayLike,
    *,
    hidden_size: int,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = 0.0,
    linear_before_reset: bool = False,
    engine: str = "auto",
) -> Array:
    """Compute one step of OpenVINO's AUGRUCell, a GRU with attention.

        rt  = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
        zt  = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
        ht  = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)
        zt' = (1 - at) (.) zt
        Ht  = (1 - zt') (.) ht + zt' (.) Ht-1

    Source: the published specification of AUGRUCell, which allows few options. `onegru.GRU(…,
    attention=True)` takes any activation, clip, direction and reset mode.

    Args:
        X: input, [B, I]; float16, bfloat16, float32 or float64.
        H_t: initial state, [B, H]. All tensors share X's type.
        W: input weights, [3H, I], gate order z, r, h.
        R: recurrence weights, [3H, H].
        B: biases, [3H], the sums Wb + Rb of z, r and h.
        A: attention scores, [B, 1]; not clamped.
        hidden_size: H, at least 1.
        activations: f and g, sigmoid or tanh.
        activations_alpha: must be empty.
        activations_beta: must be empty.
        clip: must be 0 or None (no clipping).
        linear_before_reset: must be False.
        engine: the engine, as in `onegru.GRU`.

    Returns:
        Ho, the new state, [B, H].

    Raises:
        SpecError: an argument that the specification forbids.
    """
    attributes = present(
        hidden_size=hidden_size,
        activations=activations,
        activations_alpha=activations_alpha,
        activations_beta=activations_beta,
        clip=clip,
        linear_before_reset=linear_before_reset,
    )
    return _call(AUGRU_CELL, attributes, {"X": X, "H_t": H_t, "A": A}, W, R, B, engine)["Ho"]


def augru_sequence(
    X: ArrayLike,
    H_t: ArrayLike,
    sequence_lengths: ArrayLike,
    W: ArrayLike,
    R: ArrayLike,
    B: ArrayLike,
    A: ArrayLike,
    *,
    hidden_size: int,
    direction: Literal["forward"] = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = 0.0,
    linear_before_reset: bool = False,
    engine: str = "auto",
) -> tuple[Array, Array]:
    """Compute OpenVINO's AUGRUSequence: several steps of AUGRUCell.

    The equations are those of `augru_cell`. Source: the published specification of AUGRUCell, over sequences.

    Args:
        X: input, [B, T, I]; float16, bfloat16, float32 or float64.
        H_t: initial state, [B, 1, H]. All tensors share X's type.
        sequence_lengths: [B], any integers, each in 0…T. In the padding, Y is 0.
        W: input weights, [1, 3H, I], gate order z, r, h.
        R: recurrence weights, [1, 3H, H].
        B: biases, [1, 3H], the sums of z, r and h.
        A: attention scores, [B, T, 1]; not clamped.
        hidden_size: H, at least 1.
        direction: must be "forward".
        activations: f and g, sigmoid or tanh.
        activations_alpha: must be empty.
        activations_beta: must be empty.
        clip: must be 0 or None (no clipping).
        linear_before_reset: must be False.
        engine: the engine, as in `onegru.GRU`.

    Returns:
        Y, every state, [B, 1, T, H]; and Ho, each row's last state, [B, 1, H], 0 for a row of length 0.

    Raises:
        SpecError: an argument that the specification forbids.
    """
    attributes = present(
        hidden_size=hidden_size,
        direction=direction,
        activations=activations,
        activations_alpha=activations_alpha,
        activations_beta=activations_beta,
        clip=clip,
        linear_before_reset=linear_before_reset,
    )
    inputs = {"X": X, "H_t": H_t, "sequence_lengths": sequence_lengths, "A": A}
    outputs = _call(AUGRU_SEQUENCE, attributes, inputs, W, R, B, engine)
    return outputs["Y"], outputs["Ho"]


def _is_zero(value: object) -> bool:
    return isinstance(value, bool | int | np.integer | np.bool_) and value == 0


def _call(
    operator: OpSchema,
    attributes: Mapping[str, object],
    inputs: Mapping[str, object],
    W: object,
    R: object,
    B: object,
    engine: str,
) -> dict[str, Array]:
    lowered = lower(operator, attributes, W, R, B)
    wanted = {port.name: None for port in operator.outputs}
    layer = GRU.from_canonical(lowered.spec, lowered.weights, engine=engine)
    return apply(layer, lowered.ports, inputs, wanted)
