"""The activation functions: the values of the text at chosen points, limits, NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest

import onegru
from onegru.core.activations import ACTIVATIONS, Activation, find_kind
from onegru.core.errors import SpecError
from onegru.engines.reference import activate

ALPHA, BETA = 0.75, -0.5
LN2 = math.log(2.0)

# For each function: points and the values that its formula gives there, with alpha = 0.75 and beta = -0.5.
VALUES = {
    "Relu": [(-2.0, 0.0), (0.0, 0.0), (3.0, 3.0)],
    "Tanh": [(0.0, 0.0), (LN2, 0.6), (-LN2, -0.6)],
    "Sigmoid": [(0.0, 0.5), (LN2, 2 / 3), (-LN2, 1 / 3)],
    "Affine": [(2.0, 1.0), (-2.0, -2.0)],
    "LeakyRelu": [(2.0, 2.0), (-2.0, -1.5), (0.0, 0.0)],
    "ThresholdedRelu": [(0.75, 0.75), (0.7499, 0.0), (2.0, 2.0), (-3.0, 0.0)],
    "ScaledTanh": [(-2 * LN2, 0.75 * 0.6), (0.0, 0.0)],
    "HardSigmoid": [(0.0, 0.0), (1.0, 0.25), (2.0, 1.0), (9.0, 1.0), (-9.0, 0.0)],
    "Elu": [(2.0, 2.0), (-LN2, -0.375), (0.0, 0.0)],
    "Softsign": [(1.0, 0.5), (-3.0, -0.75), (0.0, 0.0)],
    "Softplus": [(0.0, LN2), (math.log(3.0), math.log(4.0))],
}

# Limits at -∞ and +∞, with the parameters ALPHA and BETA.
LIMITS = {
    "Relu": (0.0, math.inf),
    "Tanh": (-1.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Affine": (-math.inf, math.inf),
    "LeakyRelu": (-math.inf, math.inf),
    "ThresholdedRelu": (0.0, math.inf),
    "ScaledTanh": (0.75, -0.75),
    "HardSigmoid": (0.0, 1.0),
    "Elu": (-0.75, math.inf),
    "Softsign": (-1.0, 1.0),
    "Softplus": (0.0, math.inf),
}


def make(name: str) -> Activation:
    takes = ACTIVATIONS[name].parameters
    return Activation(name, ALPHA if "alpha" in takes else None, BETA if "beta" in takes else None)


def test_number_of_functions() -> None:
    assert len(ACTIVATIONS) == 11
    assert set(ACTIVATIONS) == set(VALUES) == set(LIMITS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name: str) -> None:
    points, values = np.array(VALUES[name]).T
    np.testing.assert_allclose(activate(make(name), points), values, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limits_and_nan(name: str) -> None:
    with np.errstate(all="ignore"):
        found = activate(make(name), np.array([-np.inf, np.inf, np.nan]))
    np.testing.assert_array_equal(found, [*LIMITS[name], np.nan])


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh", "Softplus", "Elu", "Softsign"])
def test_nothing_overflows_or_cancels(name: str) -> None:
    """Against the formula in long double, where it is safe there, far out and near zero."""
    x = np.concatenate(
        [np.linspace(-700, 700, 801), np.geomspace(1e-300, 1, 601), -np.geomspace(1e-300, 1, 601)]
    )
    wide = x.astype(np.longdouble)
    formulas = {
        "Sigmoid": 1 / (1 + np.exp(-wide)),
        "Tanh": -np.expm1(-2 * wide) / (2 + np.expm1(-2 * wide)),
        "Softplus": np.log1p(np.exp(wide)),
        "Elu": np.where(wide >= 0, wide, np.longdouble(ALPHA) * np.expm1(wide)),
        "Softsign": wide / (1 + np.abs(wide)),
    }
    with np.errstate(over="raise", invalid="raise"):
        found = activate(make(name), x)
    np.testing.assert_allclose(found, formulas[name].astype(np.float64), rtol=1e-15, atol=5e-324)


def test_names_are_found_without_regard_to_case() -> None:
    assert find_kind("hardSIGMOID").name == "HardSigmoid"
    with pytest.raises(SpecError, match="unknown function 'gelu'"):
        find_kind("gelu")


def test_the_sign_of_a_zero_parameter_counts() -> None:
    """Scaled by -0, +1 is -0: in the reference and in the kernel."""
    one = np.ones((1, 1, 1), np.float32)
    for alpha in (0.0, -0.0):
        activation = Activation("ScaledTanh", alpha, 1.0)
        assert np.signbit(activate(activation, np.ones(1)))[0] == np.signbit(alpha)
        for engine in ("native", "reference"):
            layer = onegru.GRU(
                np.array([[[-100.0], [0.0], [1.0]]], np.float32),
                np.zeros((1, 3, 1), np.float32),
                activations=["Sigmoid", "ScaledTanh"],
                activation_alpha=[alpha],
                activation_beta=[1.0],
                engine=engine,
            )
            h = layer(one, -0.0 * one)[1]
            assert np.signbit(h).all() == np.signbit(alpha), engine


def test_defaults() -> None:
    defaults = {name: dict(kind.defaults) for name, kind in ACTIVATIONS.items() if kind.defaults}
    assert defaults == {
        "Affine": {"alpha": 1.0, "beta": 0.0},
        "LeakyRelu": {"alpha": 0.01},
        "ThresholdedRelu": {"alpha": 1.0},
        "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
        "Elu": {"alpha": 1.0},
    }
    assert ACTIVATIONS["HardSigmoid"].default("alpha") == float(np.float32(0.2))
    assert ACTIVATIONS["ScaledTanh"].default("alpha") is None


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_the_table_says_of_results(name: str) -> None:
    """Bounds are reached, and nothing is beyond; zeros are kept, or not, whatever the parameters."""
    kind = ACTIVATIONS[name]
    x = np.concatenate([[0.0], np.linspace(-3e4, 3e4, 2001), np.linspace(-9, 9, 2001)])
    lowest, highest, zeros = [], [], []
    for alpha, beta in ((1.0, 0.0), (0.3, 0.6), (-0.7, 0.2), (2.0, -1.0), (0.0, 1.0)):
        given = {"alpha": alpha, "beta": beta}
        with np.errstate(over="ignore"):
            results = activate(Activation(name, **{key: given[key] for key in kind.parameters}), x)
        lowest.append(results.min())
        highest.append(results.max())
        zeros.append(results[0] == 0)
    assert kind.keeps_zero == all(zeros)
    if kind.bounds is None:
        assert max(highest) - min(lowest) > 3
    else:
        np.testing.assert_allclose([min(lowest), max(highest)], kind.bounds, atol=1e-4)


def test_parameters_are_float32_numbers() -> None:
    """The reference and the kernels get the same numbers in float64, too."""
    assert Activation("HardSigmoid", 0.3, 0.4).parameters == (float(np.float32(0.3)), float(np.float32(0.4)))
    with pytest.raises(SpecError, match=r"^beta: 1e\+39; must be finite in float32$"):
        Activation("Affine", 1.0, 1e39)
