"""However a function is written, its polynomial is one."""

from __future__ import annotations

import numpy as np
import pytest

from onegru.dataflow.table import UnknownOpError
from onegru.fusion.cells.algebra import Algebra, Matrix
from onegru.fusion.cells.polynomial import Polynomial, add, close, constant, ratio, same, scalar, scale


def atom(algebra: Algebra, name: str, is_bool: bool = False) -> Polynomial:
    return algebra.value(name, name, name, is_bool)


@pytest.fixture
def A() -> Algebra:
    return Algebra()


@pytest.fixture
def x(A: Algebra) -> Polynomial:
    return atom(A, "x")


ONE = constant(1)


def test_blends_are_one(A: Algebra) -> None:
    z, h, n = (atom(A, name) for name in "zhn")
    away = add(ONE, z, -1.0)
    forms = [
        add(A.multiply(away, n), A.multiply(z, h)),
        add(n, A.multiply(z, add(h, n, -1.0))),
        add(h, A.multiply(away, add(h, n, -1.0)), -1.0),
        add(h, A.multiply(away, add(n, h, -1.0))),
    ]
    assert all(same(forms[0], form) for form in forms)
    assert not same(forms[0], add(A.multiply(z, n), A.multiply(away, h)))


def test_sigmoids_are_one(A: Algebra, x: Polynomial) -> None:
    minus = scale(x, -1.0)
    forms = [
        A.sigmoid(x),
        A.divide(ONE, add(ONE, A.exp(minus))),
        A.divide(A.exp(x), add(ONE, A.exp(x))),
        add(ONE, A.sigmoid(minus), -1.0),
        scale(add(A.tanh(scale(x, 0.5)), ONE), 0.5),
        A.divide(constant(2), add(constant(2), scale(A.exp(minus), 2.0))),
    ]
    assert all(same(forms[0], form) for form in forms)
    assert not same(forms[0], A.sigmoid(scale(x, 2.0)))


def test_tanhs_are_one(A: Algebra, x: Polynomial) -> None:
    both = A.exp(scale(x, 2.0))
    forms = [
        A.tanh(x),
        add(scale(A.sigmoid(scale(x, 2.0)), 2.0), ONE, -1.0),
        A.divide(add(both, ONE, -1.0), add(both, ONE)),
        scale(A.tanh(scale(x, -1.0)), -1.0),
        add(ONE, A.divide(constant(2), add(both, ONE)), -1.0),
    ]
    assert all(same(forms[0], form) for form in forms)


def test_softsigns_are_one(A: Algebra, x: Polynomial) -> None:
    under = add(ONE, A.absolute(x))
    forms = [
        A.odd_function("Softsign", x),
        A.divide(x, under),
        A.multiply(x, A.divide(ONE, under)),
        scale(A.odd_function("Softsign", scale(x, -1.0)), -1.0),
        A.divide(x, add(ONE, A.absolute(scale(x, -1.0)))),
    ]
    assert all(same(forms[0], form) for form in forms)


def test_softpluses_are_one(A: Algebra, x: Polynomial) -> None:
    assert same(A.function("Softplus", x), A.log(add(A.exp(x), ONE)))
    shifted = A.log(add(scale(A.exp(x), 2.0), ONE))
    assert same(shifted, A.function("Softplus", add(x, constant(np.log(2.0)))))


def test_clips_of_clips(A: Algebra, x: Polynomial) -> None:
    both = A.clip(x, -1.0, 2.0)
    assert same(both, A.clip(A.clip(x, -1.0, np.inf), -np.inf, 2.0))
    assert same(both, A.minimum(A.maximum(x, constant(-1)), constant(2)))
    assert same(both, A.clip(A.clip(x, -1.0, 2.0), -3.0, 4.0))
    assert same(both, A.clip(A.clip(x, -5.0, 2.0), -1.0, 4.0))
    assert same(A.clip(scale(A.clip(x, -1.0, 1.0), -2.0), -1.0, 3.0), A.clip(scale(x, -2.0), -1.0, 2.0))
    assert same(A.clip(x, -np.inf, np.inf), x)
    assert same(A.clip(constant(3), 0.0, 1.0), ONE)
    with pytest.raises(UnknownOpError):
        A.clip(x, 1.0, 0.0)


def test_leaky_and_thresholded(A: Algebra, x: Polynomial) -> None:
    leaky = A.function("LeakyRelu", x, parameters=(0.25,))
    assert same(leaky, A.maximum(x, scale(x, 0.25)))
    assert same(leaky, A.piecewise(x, x, scale(x, 0.25), True))
    assert same(leaky, A.piecewise(scale(x, -1.0), scale(x, 0.25), x, False))
    assert same(A.piecewise(x, x, constant(0), False), A.clip(x, 0.0, np.inf))
    thresholded, above = A.function("ThresholdedRelu", x, parameters=(0.5,)), add(x, constant(0.5), -1.0)
    assert same(thresholded, A.piecewise(above, x, constant(0), True))
    assert same(thresholded, A.piecewise(scale(above, -1.0), constant(0), x, False))
    for w, p, q, is_strict in ((above, x, constant(0), False), (scale(above, -1.0), constant(0), x, True)):
        with pytest.raises(UnknownOpError):  # x ≥ 0.5 keeps what is 0 here
            A.piecewise(w, p, q, is_strict)
    elu = A.piecewise(x, x, scale(add(A.exp(x), ONE, -1.0), 0.5), True)
    assert same(elu, A.function("Elu", x, parameters=(0.5,)))
    with pytest.raises(UnknownOpError):
        A.piecewise(x, atom(A, "y"), constant(0), True)


def test_booleans_are_their_own_squares(A: Algebra, x: Polynomial) -> None:
    m = atom(A, "m", is_bool=True)
    assert same(A.multiply(m, m), m)
    assert not same(A.multiply(x, x), x)
    off = add(ONE, m, -1.0)
    assert not A.multiply(m, off).atoms()


def test_products_with_matrices_are_distinguished(A: Algebra, x: Polynomial) -> None:
    first, second = Matrix("a", lambda: np.eye(2)), Matrix("b", lambda: np.ones((2, 2)))
    assert same(A.matmul(x, first, None), A.matmul(x, first, None))
    assert not same(A.matmul(x, first, None), A.matmul(x, second, None))
    assert not same(A.matmul(x, first, None), A.matmul(atom(A, "y"), first, None))


def test_equality() -> None:
    assert close(np.array(1.0), np.array([1.0, 1.0]))
    assert close(np.array(1.0), np.array(1 + 1e-14))
    assert not close(np.array(1.0), np.array(1 + 1e-12))
    assert not close(np.array([1.0, 1.0]), np.array([1.0, 1.0, 1.0]))
    assert scalar(np.array([2.0, 2.0])) == 2.0 and scalar(np.array([2.0, 1.0])) is None


def test_sums(A: Algebra, x: Polynomial) -> None:
    assert not add(x, x, -1.0).terms
    assert same(add(x, x), scale(x, 2.0))
    assert not scale(x, 0.0).terms
    assert not constant(np.zeros(3)).terms
    wide = scale(x, np.array([1.0, 2.0]))
    assert same(add(wide, x), scale(x, np.array([2.0, 3.0])))


def test_ratios(A: Algebra, x: Polynomial) -> None:
    p = add(x, constant(2))
    assert ratio(scale(p, 3.0), p) == pytest.approx(3.0)
    assert ratio(x, p) is None
    assert ratio(add(x, constant(3)), p) is None
    assert ratio(scale(x, np.array([2.0, 2.0])), x) == pytest.approx(2.0)


def test_limits(A: Algebra, x: Polynomial) -> None:
    power = x
    with pytest.raises(UnknownOpError):
        for _ in range(10):
            power = A.multiply(power, x)
    total = constant(0)
    with pytest.raises(UnknownOpError):
        for number in range(60):
            total = add(total, atom(A, f"v{number}"))
    with pytest.raises(UnknownOpError):
        A.divide(x, constant(0))


def test_numbers(A: Algebra) -> None:
    half = constant(0.5)
    for found, wanted in (
        (A.sigmoid(half), 1 / (1 + np.exp(-0.5))),
        (A.tanh(half), np.tanh(0.5)),
        (A.exp(half), np.exp(0.5)),
        (A.log(half), np.log(0.5)),
        (A.absolute(scale(half, -1.0)), 0.5),
    ):
        assert found.is_constant
        np.testing.assert_allclose(found.constant, wanted, rtol=1e-15)
