"""Convert a specified operator to the canonical form: one algorithm for all operators.

`lower` takes an operator, its attributes and its weights, and returns a `Spec`, `Weights`, and the ports
for the inputs and outputs of a call.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from onegru.core.activations import Activation, assign_parameters, find_kind
from onegru.core.dtypes import Array, as_array_of, as_float_array
from onegru.core.errors import SpecError, SpecWarning, callers_level, prefixed_errors
from onegru.core.shapes import arrange, check_shape
from onegru.core.spec import Attention, Direction, Spec, Weights, attention_of, reversed_directions
from onegru.core.wording import count
from onegru.operators.attributes import read_attributes
from onegru.operators.schema import OpSchema, Port


@dataclass(frozen=True, slots=True)
class Lowered:
    """An operator in canonical form."""

    spec: Spec  # the computation
    weights: Weights  # the weights
    ports: tuple[Port, ...]  # the inputs and outputs, with their axes in the operator's layout


def lower(
    operator: OpSchema,
    attributes: Mapping[str, object],
    W: object,
    R: object,
    B: object = None,
    *,
    attention: Attention | bool | None = None,
    where: str = "",
) -> Lowered:
    """Convert an operator with its attributes and weights to canonical form."""
    values = read_attributes(operator, attributes)
    direction, num_directions = _direction(values)

    W, R, B = _typed_weights(operator, W, R, B)
    sizes = {"D": num_directions}
    _check_weights(operator, values, W, R, B, sizes)

    spec = Spec(
        input_size=sizes["I"],
        hidden_size=sizes["H"],
        dtype=W.dtype.name,
        direction=direction,
        linear_before_reset=bool(values.get("linear_before_reset", False)),
        clip=read_clip(operator, values["clip"]),
        activations=read_activations(operator, values, num_directions, where),
        attention=_attention(operator, values) if attention is None else attention,
    )
    port_axes = {port.role: port.axes for port in operator.inputs}
    weights = Weights(
        arrange(W, port_axes["W"], "DGI"),
        arrange(R, port_axes["R"], "DGH"),
        _canonical_biases(operator, spec, B, W),
    )
    weights.check(spec)
    return Lowered(spec, weights, operator.ports(cast(int, values.get("layout", 0))))


def _attention(operator: OpSchema, values: Mapping[str, object]) -> Attention | None:
    return attention_of(values.get("attention", True)) if operator.attention else None


def check_attributes(operator: OpSchema, attributes: Mapping[str, object], where: str = "") -> None:
    """Check the parts of an operator that do not depend on its weights."""
    with prefixed_errors(where):
        values = read_attributes(operator, attributes)
        read_clip(operator, values["clip"])
        read_activations(operator, values, _direction(values)[1], where)


def check_weights(
    operator: OpSchema, attributes: Mapping[str, object], W: object, R: object, B: object, where: str = ""
) -> None:
    """Check the types and shapes of weights, but not their values."""
    with prefixed_errors(where):
        values = read_attributes(operator, attributes)
        _check_weights(operator, values, *_typed_weights(operator, W, R, B), {"D": _direction(values)[1]})


def _direction(values: Mapping[str, Any]) -> tuple[Direction, int]:
    """Return the direction, and the number of directions."""
    direction = cast(Direction, values.get("direction", "forward"))
    return direction, len(reversed_directions(direction))


def _typed_weights(operator: OpSchema, W: object, R: object, B: object) -> tuple[Array, Array, Array | None]:
    for name, value in (("W", W), ("R", R)):
        if value is None:
            raise SpecError.of(name, f"missing; {operator} requires it")
    if B is None and (port := operator.input("B")) is not None and port.required:
        raise SpecError.of("B", f"missing; {operator} requires it")
    W = as_float_array("W", W, (*operator.element_types, *operator.type_needs))
    if (opset := operator.type_needs.get(W.dtype.name)) is not None:
        raise SpecError.of("W", f"type {W.dtype.name}, which needs opset {opset}; must fit {operator}")
    R = as_array_of(W.dtype.name, "R", R)
    return W, R, None if B is None else as_array_of(W.dtype.name, "B", B)


def _check_weights(
    operator: OpSchema, values: Mapping[str, Any], W: Array, R: Array, B: Array | None, sizes: dict[str, int]
) -> None:
    axes = {port.role: port.axes for port in operator.inputs}
    hidden_size = values["hidden_size"]
    if R.ndim == len(axes["R"]):
        sizes["H"] = R.shape[-1] if hidden_size is None else hidden_size
        sizes["G"] = 3 * sizes["H"]
        if sizes["H"] != R.shape[-1] and R.shape[-2] == 3 * R.shape[-1]:
            raise SpecError.of(
                "hidden_size", f"{hidden_size}; must be {R.shape[-1]}, because R has shape {list(R.shape)}"
            )
    check_shape("R", R.shape, axes["R"], sizes)
    if sizes["H"] < 1:
        raise SpecError.of("R", f"shape {list(R.shape)}, hidden_size 0; must be at least 1")
    check_shape("W", W.shape, axes["W"], sizes)
    if B is not None:
        parts = 6 if operator.biases == "separate" else 3 + bool(values.get("linear_before_reset", False))
        sizes["N"] = parts * sizes["H"]
        check_shape("B", B.shape, axes["B"], sizes, {"N": f"{parts}*hidden_size"})


def _canonical_biases(operator: OpSchema, spec: Spec, B: Array | None, W: Array) -> Array:
    """Return Wbz, Wbr, Wbh, Rbz, Rbr, Rbh as [D, 6H]. If the operator has sums, they are Wb, and Rb is 0."""
    H = spec.hidden_size
    canonical = np.zeros((spec.num_directions, 6 * H), W.dtype)
    port = operator.input("B")
    if B is None or port is None:
        return canonical
    given = arrange(B, port.axes, "DN")
    if operator.biases == "separate":
        return given
    canonical[:, : 3 * H] = given[:, : 3 * H]
    if spec.linear_before_reset:
        canonical[:, 5 * H :] = given[:, 3 * H :]
    return canonical


def read_clip(operator: OpSchema, clip: float | None) -> float | None:
    """Return the bound that the attribute specifies; None without a bound."""
    if clip is None or clip == np.inf or (clip == 0 and operator.clip_zero_is_none):
        return None
    if not clip > 0:
        least = "at least 0 (0: no clipping)" if operator.clip_zero_is_none else "> 0"
        raise SpecError.of("clip", f"{clip:g}; must be {least}")
    return clip


def read_activations(
    operator: OpSchema, values: Mapping[str, Any], num_directions: int, where: str = ""
) -> tuple[tuple[Activation, Activation], ...]:
    """Return (f, g) for each direction, with alpha and beta assigned in order."""
    shared = operator.activation_count == "shared"
    wanted = 2 if shared else 2 * num_directions
    names = values["activations"]
    if not names and not shared:  # in ONNX, an empty list means the default
        names = ("Sigmoid", "Tanh") * (wanted // 2)
    if shared and num_directions == 2 and len(names) == 4:  # OpenVINO's converter copies them from ONNX so
        if [name.lower() for name in names[:2]] != [name.lower() for name in names[2:]]:
            raise SpecError.of(
                "activations",
                f"two different pairs, {', '.join(names)}; must be one pair, because OpenVINO uses the "
                "first pair for both directions",
            )
        names = names[:2]
    if len(names) != wanted:
        reason = "" if shared else f", 2 for each of {count(num_directions, 'direction')}"
        raise SpecError.of("activations", f"{len(names)} names; must be {wanted}{reason}")
    kinds = [find_kind(name, allowed=operator.activations) for name in names]

    prefix = "activations_" if "activations_alpha" in values else "activation_"
    alpha, beta = (values[prefix + parameter] or () for parameter in ("alpha", "beta"))
    activations, spare_alpha, spare_beta = assign_parameters(kinds, alpha, beta)
    for parameter, spare in (("alpha", spare_alpha), ("beta", spare_beta)):
        if spare:
            warnings.warn(
                f"{where}{prefix}{parameter}: {count(spare, 'value')} too many for "
                f"{', '.join(kind.name for kind in kinds)}; without effect",
                SpecWarning,
                stacklevel=callers_level(),
            )
    pairs = tuple(zip(activations[::2], activations[1::2], strict=True))
    return pairs * num_directions if shared else pairs
