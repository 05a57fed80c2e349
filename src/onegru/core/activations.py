"""The eleven activation functions of the ONNX specification, as data.

Source: ONNX's GRU, section "Activation functions"; defaults are those of the ONNX operators of the same
names, Affine's those of a former ONNX operator. ScaledTanh has no defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onegru.core.arguments import number, shown
from onegru.core.dtypes import to_float32
from onegru.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class ActivationKind:
    """One activation function: its formula, and which of alpha and beta it takes.

    Attributes:
        name: as ONNX spells it.
        formula: in the symbols of the ONNX specification.
        takes: the parameters that the function takes, in order: "alpha", "beta" or both.
        defaults: the defaults of those parameters that have one.
        bounds: the ends of its range, whatever the parameters; None if it has not two.
        keeps_zero: whether it gives 0 for 0, whatever the parameters.
    """

    name: str
    formula: str
    takes: tuple[str, ...] = ()
    defaults: tuple[tuple[str, float], ...] = ()
    bounds: tuple[float, float] | None = None
    keeps_zero: bool = False

    def default(self, parameter: str) -> float | None:
        """The default of `parameter`, rounded to float32 as in a file; None if it has none."""
        value = dict(self.defaults).get(parameter)
        return None if value is None else to_float32(value)


_KINDS = (
    ActivationKind("Relu", "max(0, x)", keeps_zero=True),
    ActivationKind("Tanh", "(1 - e^{-2x}) / (1 + e^{-2x})", bounds=(-1.0, 1.0), keeps_zero=True),
    ActivationKind("Sigmoid", "1 / (1 + e^{-x})", bounds=(0.0, 1.0)),
    ActivationKind("Affine", "alpha*x + beta", ("alpha", "beta"), (("alpha", 1.0), ("beta", 0.0))),
    ActivationKind("LeakyRelu", "x if x >= 0 else alpha*x", ("alpha",), (("alpha", 0.01),), keeps_zero=True),
    ActivationKind(
        "ThresholdedRelu", "x if x >= alpha else 0", ("alpha",), (("alpha", 1.0),), keeps_zero=True
    ),
    ActivationKind("ScaledTanh", "alpha*Tanh(beta*x)", ("alpha", "beta"), keeps_zero=True),
    ActivationKind(
        "HardSigmoid",
        "min(max(alpha*x + beta, 0), 1)",
        ("alpha", "beta"),
        (("alpha", 0.2), ("beta", 0.5)),
        bounds=(0.0, 1.0),
    ),
    ActivationKind("Elu", "x if x >= 0 else alpha*(e^x - 1)", ("alpha",), (("alpha", 1.0),), keeps_zero=True),
    ActivationKind("Softsign", "x / (1 + |x|)", bounds=(-1.0, 1.0), keeps_zero=True),
    ActivationKind("Softplus", "log(1 + e^x)"),
)

#: Every activation function, by its ONNX name.
ACTIVATIONS: dict[str, ActivationKind] = {kind.name: kind for kind in _KINDS}

#: Those that ONNX has as operators, too.
AS_OPERATORS = tuple(name for name in ACTIVATIONS if name not in ("Affine", "ScaledTanh"))

_BY_LOWER_NAME = {kind.name.lower(): kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function with its parameters, rounded to float32.

    Attributes:
        name: a key of `ACTIVATIONS`.
        alpha: the value of alpha; None if the function takes none.
        beta: the value of beta; None if the function takes none.
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
            if (value is not None) != (parameter in kind.takes):
                verb = "needs" if parameter in kind.takes else "takes no"
                raise SpecError.of("activations", f"{self.name} {verb} {parameter}")
            if value is not None:
                object.__setattr__(self, parameter, number(parameter, value))

    @property
    def parameters(self) -> tuple[float, float]:
        """The values of alpha and beta; 0 for those that the function does not take."""
        return (0.0 if self.alpha is None else self.alpha, 0.0 if self.beta is None else self.beta)

    def __str__(self) -> str:
        values = [f"{value:g}" for value in (self.alpha, self.beta) if value is not None]
        return f"{self.name}({', '.join(values)})" if values else self.name


def find_kind(name: str, *, allowed: Sequence[str] = tuple(ACTIVATIONS)) -> ActivationKind:
    """Find an activation function by name, ignoring case.

    Args:
        name: the name to look for.
        allowed: the names to choose from.

    Raises:
        SpecError: there is no such function, or it is not allowed.
    """
    kind = _BY_LOWER_NAME.get(name.lower()) if name.isascii() else None
    if kind is None or kind.name not in allowed:
        raise SpecError.of("activations", f"unknown function {name!r}; must be one of {', '.join(allowed)}")
    return kind


def assign_parameters(
    kinds: Sequence[ActivationKind], alpha: Sequence[float], beta: Sequence[float]
) -> tuple[tuple[Activation, ...], int, int]:
    """Assign alpha and beta values, in order, to the functions that take them.

    Returns:
        the activations, then the numbers of alpha and beta values left over.

    Raises:
        SpecError: a parameter is neither given nor has a default.
    """
    alphas, betas = iter(alpha), iter(beta)
    activations = tuple(
        Activation(kind.name, _next(kind, "alpha", alphas), _next(kind, "beta", betas)) for kind in kinds
    )
    return activations, len(list(alphas)), len(list(betas))


def _next(kind: ActivationKind, parameter: str, values: Iterator[float]) -> float | None:
    if parameter not in kind.takes:
        return None
    value = next(values, kind.default(parameter))
    if value is None:
        raise SpecError(
            f"activation_{parameter}: no value left for {kind.name}, which has no default; "
            f"must hold one for each function that takes {parameter}"
        )
    return value
