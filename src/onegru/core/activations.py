"""List the activation functions of the ONNX specification.

Source: section "Activation functions" of ONNX's GRU. The defaults are those of the ONNX operators with these
names. Affine was an operator in early versions of ONNX. ScaledTanh has no defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any

from onegru.core.arguments import number, shown
from onegru.core.dtypes import to_float32
from onegru.core.elementary import Elementary
from onegru.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class ActivationKind:
    """Activation function: its formula and its parameters."""

    name: str  # as in ONNX
    formula: str  # as text for documents, in the symbols of the ONNX specification
    # computes the formula from (the elementary functions `ops`, x, alpha, beta)
    compute: Callable[[Elementary, Any, float, float], Any]
    parameters: tuple[str, ...] = ()  # the function's parameters, in order: "alpha", "beta" or both
    defaults: tuple[tuple[str, float], ...] = ()  # the defaults of those parameters that have one
    # the ends of its range for all parameters; None unless both are finite
    bounds: tuple[float, float] | None = None
    keeps_zero: bool = False  # whether f(0) = 0 for all parameters
    is_odd: bool = False  # whether f(-x) = -f(x) for all parameters
    is_operator: bool = True  # whether ONNX's operator of this name computes this formula by default
    # only of functions without parameters: their names in keras.activations (of Keras 2 or 3, not with two
    # meanings), flax.linen.activation and OpenVINO; other names are in frameworks/layouts.py
    framework_names: Mapping[str, str] = field(default_factory=dict)

    def default(self, parameter: str) -> float | None:
        """Return the default of `parameter`, rounded to float32 as in a file; None if it has none."""
        value = dict(self.defaults).get(parameter)
        return None if value is None else to_float32(value)


_KINDS = (
    ActivationKind(
        "Relu",
        "max(0, x)",
        lambda ops, x, alpha, beta: ops.relu(x),
        keeps_zero=True,
        framework_names={"Keras": "relu", "Flax": "relu", "OpenVINO": "ReLU"},
    ),
    ActivationKind(
        "Tanh",
        "(1 - e^{-2x}) / (1 + e^{-2x})",
        lambda ops, x, alpha, beta: ops.tanh(x),
        bounds=(-1.0, 1.0),
        keeps_zero=True,
        is_odd=True,
        framework_names={"Keras": "tanh", "Flax": "tanh", "OpenVINO": "Tanh"},
    ),
    ActivationKind(
        "Sigmoid",
        "1 / (1 + e^{-x})",
        lambda ops, x, alpha, beta: ops.sigmoid(x),
        bounds=(0.0, 1.0),
        framework_names={"Keras": "sigmoid", "Flax": "sigmoid", "OpenVINO": "Sigmoid"},
    ),
    ActivationKind(
        "Affine",
        "alpha*x + beta",
        lambda ops, x, alpha, beta: ops.add(ops.mul(x, alpha), beta),
        ("alpha", "beta"),
        (("alpha", 1.0), ("beta", 0.0)),
        is_operator=False,
    ),
    ActivationKind(
        "LeakyRelu",
        "x if x >= 0 else alpha*x",
        lambda ops, x, alpha, beta: ops.piecewise(x, ops.mul(x, alpha), x),
        ("alpha",),
        (("alpha", 0.01),),
        keeps_zero=True,
    ),
    ActivationKind(
        "ThresholdedRelu",
        "x if x >= alpha else 0",
        lambda ops, x, alpha, beta: ops.where_less(x, alpha, 0.0, x),
        ("alpha",),
        (("alpha", 1.0),),
        keeps_zero=True,
    ),
    ActivationKind(
        "ScaledTanh",
        "alpha*Tanh(beta*x)",
        lambda ops, x, alpha, beta: ops.mul(ops.tanh(ops.mul(x, beta)), alpha),
        ("alpha", "beta"),
        keeps_zero=True,
        is_odd=True,
        is_operator=False,
    ),
    ActivationKind(
        "HardSigmoid",
        "min(max(alpha*x + beta, 0), 1)",
        lambda ops, x, alpha, beta: ops.maximum(ops.minimum(ops.add(ops.mul(x, alpha), beta), 1.0), 0.0),
        ("alpha", "beta"),
        (("alpha", 0.2), ("beta", 0.5)),
        bounds=(0.0, 1.0),
    ),
    ActivationKind(
        "Elu",
        "x if x >= 0 else alpha*(e^x - 1)",
        lambda ops, x, alpha, beta: ops.piecewise(x, ops.mul(ops.expm1_of_negative(x), alpha), x),
        ("alpha",),
        (("alpha", 1.0),),
        keeps_zero=True,
    ),
    ActivationKind(
        "Softsign",
        "x / (1 + |x|)",
        lambda ops, x, alpha, beta: ops.div(ops.finite(x), ops.add(ops.abs(ops.finite(x)), 1.0)),
        bounds=(-1.0, 1.0),
        keeps_zero=True,
        is_odd=True,
        framework_names={"Keras": "softsign", "Flax": "soft_sign", "OpenVINO": "SoftSign"},
    ),
    ActivationKind(
        "Softplus",
        "log(1 + e^x)",
        lambda ops, x, alpha, beta: ops.softplus(x),
        framework_names={"Keras": "softplus", "Flax": "softplus", "OpenVINO": "SoftPlus"},
    ),
)

#: Every activation function, by its ONNX name.
ACTIVATIONS: dict[str, ActivationKind] = {kind.name: kind for kind in _KINDS}

#: Functions that ONNX also has as operators.
AS_OPERATORS = tuple(kind.name for kind in _KINDS if kind.is_operator)


def onnx_names_in(framework: str) -> dict[str, str]:
    """Return the ONNX names of functions without parameters, by a framework's names."""
    known = [kind for kind in _KINDS if framework in kind.framework_names]
    return {kind.framework_names[framework]: kind.name for kind in known}


_BY_LOWER_NAME = {kind.name.lower(): kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function with its parameters, rounded to float32.

    Attributes:
        name: a key of `ACTIVATIONS`.
        alpha: the value of alpha; None if the function has no alpha.
        beta: the value of beta; None if the function has no beta.
    """

    __module__ = "onegru"

    name: str
    alpha: float | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        kind = ACTIVATIONS.get(self.name) if isinstance(self.name, str) else None
        if kind is None:
            known = ", ".join(ACTIVATIONS)
            raise SpecError.of("activations", f"unknown function {shown(self.name)}; must be one of {known}")
        for parameter in ("alpha", "beta"):
            value = getattr(self, parameter)
            if (value is not None) != (parameter in kind.parameters):
                verb = "needs" if parameter in kind.parameters else "takes no"
                raise SpecError.of("activations", f"{self.name} {verb} {parameter}")
            if value is not None:
                given = number(parameter, value)
                rounded = to_float32(given)
                if isinf(rounded) and not isinf(given):
                    raise SpecError.of(parameter, f"{value!r}; must be finite in float32")
                object.__setattr__(self, parameter, rounded)

    @property
    def parameters(self) -> tuple[float, float]:
        """Return alpha and beta; 0 for a parameter that the function does not have."""
        return (0.0 if self.alpha is None else self.alpha, 0.0 if self.beta is None else self.beta)

    def __str__(self) -> str:
        values = [f"{value:g}" for value in (self.alpha, self.beta) if value is not None]
        return f"{self.name}({', '.join(values)})" if values else self.name


#: f and g of the GRUs of all frameworks.
DEFAULT_ACTIVATIONS = (Activation("Sigmoid"), Activation("Tanh"))


def find_kind(name: str, *, allowed: Sequence[str] = tuple(ACTIVATIONS)) -> ActivationKind:
    """Find an activation function by name, ignoring case."""
    kind = _BY_LOWER_NAME.get(name.lower()) if name.isascii() else None
    if kind is None or kind.name not in allowed:
        raise SpecError.of("activations", f"unknown function {name!r}; must be one of {', '.join(allowed)}")
    return kind


def assign_parameters(
    kinds: Sequence[ActivationKind], alpha: Sequence[float], beta: Sequence[float]
) -> tuple[tuple[Activation, ...], int, int]:
    """Assign alpha and beta values, in order, to the functions that have them."""
    alphas, betas = iter(alpha), iter(beta)
    activations = tuple(
        Activation(kind.name, _next(kind, "alpha", alphas), _next(kind, "beta", betas)) for kind in kinds
    )
    return activations, len(list(alphas)), len(list(betas))


def _next(kind: ActivationKind, parameter: str, values: Iterator[float]) -> float | None:
    if parameter not in kind.parameters:
        return None
    value = next(values, kind.default(parameter))
    if value is None:
        raise SpecError(
            f"activation_{parameter}: no value for {kind.name}, which has no default; "
            f"must have one for each function that uses {parameter}"
        )
    return value
