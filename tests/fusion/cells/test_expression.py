"""Columns of values are followed through operators that only move elements; products are distinguished."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onegru.dataflow.operator import LoopIndex
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.table.cutting import reversed_axis, reversed_role
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.polynomial import Polynomial, same
from tests.support.models.fusing import Net, flow

Make = Callable[[Net], str]


def at(net: Net) -> Expressions:
    return Expressions(flow(net.model()), Algebra())


#: An operator that gives all columns of x, [2, 6], moved about; and the columns in their new order.
MOVES: dict[str, tuple[Make, list[int]]] = {
    "Identity": (lambda net: net("Identity", "x"), [0, 1, 2, 3, 4, 5]),
    "Slice": (lambda net: net("Slice", "x", net.ints(2), net.ints(5), net.ints(1)), [2, 3, 4]),
    "Slice back": (
        lambda net: net("Slice", "x", net.ints(4), net.ints(1), net.ints(1), net.ints(-1)),
        [4, 3, 2],
    ),
    "Split": (lambda net: net.several("Split", ["x", net.ints(2, 4)], 2, axis=1)[1], [2, 3, 4, 5]),
    "Gather": (lambda net: net("Gather", "x", net.ints(5, 0, -2), axis=1), [5, 0, 4]),
    "Concat": (
        lambda net: net("Concat", *(net("Gather", "x", net.ints(i), axis=1) for i in (3, 1)), axis=1),
        [3, 1],
    ),
    "Reshape": (
        lambda net: net("Reshape", net("Reshape", "x", net.ints(2, 2, 3)), net.ints(2, 6)),
        [0, 1, 2, 3, 4, 5],
    ),
    "Transpose": (lambda net: net("Transpose", net("Transpose", "x")), [0, 1, 2, 3, 4, 5]),
    "Transpose inside": (
        lambda net: net(
            "Reshape",
            net("Transpose", net("Reshape", "x", net.ints(2, 2, 3)), perm=[0, 2, 1]),
            net.ints(2, 6),
        ),
        [0, 3, 1, 4, 2, 5],
    ),
    "Squeeze": (
        lambda net: net("Squeeze", net("Unsqueeze", "x", net.ints(1)), net.ints(1)),
        [0, 1, 2, 3, 4, 5],
    ),
    "Flatten": (lambda net: net("Flatten", "x"), [0, 1, 2, 3, 4, 5]),
    "Cast": (lambda net: net("Cast", "x", to=1), [0, 1, 2, 3, 4, 5]),
    "Expand": (lambda net: net("Expand", "x", net.ints(2, 6)), [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("name", MOVES)
def test_columns(name: str) -> None:
    make, columns = MOVES[name]
    net = Net()
    net.input("x", 2, 6)
    moved = make(net)
    found = at(net)
    view = found.whole(moved)
    assert view is not None and view.width == len(columns)
    one = found.polynomial(view)
    if name == "Concat":  # put together of parts
        parts = [
            found.polynomial(View(moved, (ROWS, COLUMNS), np.array([[place]])))
            for place in range(len(columns))
        ]
        wanted = [found.polynomial(View("x", (ROWS, COLUMNS), np.array([[column]]))) for column in columns]
        assert all(same(a, b) for a, b in zip(parts, wanted, strict=True))
        return
    assert same(one, found.polynomial(View("x", (ROWS, COLUMNS), np.array([columns]))))


def arithmetic(net: Net, kind: str) -> list[str]:
    """Ways to write one function of x, [2, 3]."""
    one, half = net.const(1.0), net.const(0.5)
    if kind == "product":
        W = net.const(np.arange(12.0).reshape(3, 4) - 5)
        WT = net("Transpose", W)
        return [
            net("MatMul", "x", W),
            net("MatMul", "x", net("Identity", net("Reshape", W, net.ints(3, 4)))),
            net("Gemm", "x", W),
            net("Gemm", "x", WT, transB=1),
            net("Gemm", "x", net("Mul", W, net.const(2.0)), alpha=0.5),
            net("Einsum", "x", W, equation="bi,io->bo"),
            net("Einsum", WT, "x", equation="oi,bi->bo"),
        ]
    if kind == "sum":
        total = net("Add", "x", one)
        return [
            total,
            net("Sub", "x", net.const(-1.0)),
            net("Sum", half, "x", half),
            net("Neg", net("Sub", net("Neg", "x"), one)),
            net("Div", net("Add", net("Add", "x", "x"), net.const(2.0)), net.const(2.0)),
            net("Mul", net("Add", net("Mul", "x", half), half), net.const([2.0, 2.0, 2.0])),
        ]
    if kind == "Relu":
        zero = net.const(0.0)
        return [
            net("Relu", "x"),
            net("Max", zero, "x"),
            net("Clip", "x", zero),
            net("Where", net("Greater", "x", zero), "x", net.const([0.0, 0.0, 0.0])),
            net("Where", net("Less", "x", zero), net.const([0.0, 0.0, 0.0]), "x"),
        ]
    if kind == "LeakyRelu":
        return [
            net("LeakyRelu", "x", alpha=0.25),
            net("PRelu", "x", net.const([0.25])),
            net("Max", "x", net("Mul", net.const(0.25), "x")),
        ]
    bounds = net.const(0.0), net.const(1.0)
    linear = net("Add", net("Mul", "x", net.const(0.25)), half)
    return [
        net("HardSigmoid", "x", alpha=0.25),
        net("Clip", linear, *bounds),
        net("Min", net("Max", linear, bounds[0]), bounds[1]),
        net("Max", bounds[0], net("Min", bounds[1], linear)),
    ]


def of(found: Expressions, name: str) -> Polynomial:
    result = found.definition(name)
    assert result is not None
    return result


@pytest.mark.parametrize("kind", ["sum", "Relu", "LeakyRelu", "HardSigmoid"])
def test_functions_are_one_however_they_are_written(kind: str) -> None:
    net = Net()
    net.input("x", 2, 3)
    names = arithmetic(net, kind)
    found = at(net)
    first = of(found, names[0])
    for name in names[1:]:
        assert same(of(found, name), first)


def test_products_have_one_matrix() -> None:
    net = Net()
    net.input("x", 2, 3)
    names = arithmetic(net, "product")
    found = at(net)
    matrices = []
    for name in names:
        ((monomial, coefficient),) = of(found, name).terms.items()
        matrix = found.algebra.atoms[monomial[0]].matrix
        assert matrix is not None
        matrices.append(matrix.make() * coefficient)
    for array in matrices:
        np.testing.assert_array_equal(array, np.arange(12.0).reshape(3, 4) - 5)


def test_constants_that_differ_from_row_to_row_are_values() -> None:
    net = Net()
    net.input("x", 2, 3)
    name = net("Add", "x", net.const([[1.0], [2.0]]))
    same_rows = net("Add", "x", net.const([[1.0], [1.0]]))
    found = at(net)
    assert len(of(found, name).atoms()) == 2
    assert len(of(found, same_rows).atoms()) == 1


def test_values_that_cannot_be_followed_have_no_polynomial() -> None:
    net = Net()
    net.input("x", 2, 3)
    net.input("n", "B", "F")
    odd = net("CumSum", "x", net.const(1, "int64"))
    found = at(net)
    assert found.definition(odd) is None and found.definition("n") is None
    view = found.whole(odd)
    assert view is not None and len(found.polynomial(view).atoms()) == 1


# Reversals


def reversals(net: Net) -> dict[str, int | None]:
    least = net.ints(-(2**63))
    back = (net.ints(-1), least, net.ints(0), net.ints(-1))
    return {
        net("Slice", "x", *back): 0,
        net("Gather", "x", net.ints(3, 2, 1, 0), axis=0): 0,
        net("ReverseSequence", "x", net.ints(4, 4), time_axis=0, batch_axis=1): 0,
        net("ReverseSequence", "x", net.ints(4, 3), time_axis=0, batch_axis=1): None,
        net("Gather", "x", net.ints(3, 1, 2, 0), axis=0): None,
        net("Slice", "x", net.ints(2), least, net.ints(0), net.ints(-1)): None,
        net("Slice", "x", net.ints(-1), least, net.ints(2), net.ints(-1)): 2,
        net("Slice", "x", net.ints(0), net.ints(4), net.ints(0)): None,
    }


def test_reversals() -> None:
    net = Net()
    net.input("x", 4, 2, 3)
    wanted = reversals(net)
    known = flow(net.model())
    for name, axis in wanted.items():
        op = known.find_producer(name)
        assert op is not None and reversed_axis(known, op) == axis


def test_indices_backwards() -> None:
    assert reversed_role(0, 5) == 4 and reversed_role(3, 5) == 1
    assert reversed_role(LoopIndex(1, 0), "T") == LoopIndex(-1, -1, "T")
    assert reversed_role(LoopIndex(-1, -1, "T"), "T") == LoopIndex(1, 0)
    with pytest.raises(UnknownOpError):
        reversed_role(ROWS, 5)


def test_sizes_that_do_not_broadcast_are_unknown() -> None:
    net = Net()
    net.input("x", 1, 6)
    net.input("y", 6, 4)
    views, view = at(net), View("z", (ROWS, COLUMNS), np.arange(6)[None])
    assert views.input_view(view, "x", (2, 6)).roles == (0, COLUMNS)
    with pytest.raises(UnknownOpError):
        views.input_view(view, "y", (2, 6))
