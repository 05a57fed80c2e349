"""A match that is wrong is refused by the numeric check, and reported as a defect of onegru."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import UnknownOpError
from onegru.fusion import chain, whole
from onegru.fusion.cells.cell import Cell
from onegru.fusion.cells.match import find_cell
from onegru.fusion.drawn_inputs import DrawnSizes
from onegru.fusion.float64 import Float64Values
from onegru.fusion.numeric_check import compare
from tests.support.models.fusing import DEFECT, Net, Step, check_fused, flow, fused, one_step

# What a wrong match may have got wrong.


def one_bias(cell: Cell) -> dict[str, Any]:
    B = cell.B.copy()
    B[0] += 0.01
    return {"B": B}


def swapped_gates(cell: Cell) -> dict[str, Any]:
    H = cell.hidden_size
    order = np.concatenate([np.arange(H, 2 * H), np.arange(H), np.arange(2 * H, 3 * H)])
    return {
        "W": cell.W[order],
        "R": cell.R[order],
        "B": np.concatenate([cell.B[: 3 * H][order], cell.B[3 * H :]]),
    }


def other_reset(cell: Cell) -> dict[str, Any]:
    return {"linear_before_reset": not cell.linear_before_reset}


def one_weight(cell: Cell) -> dict[str, Any]:
    R = cell.R.copy()
    R[-1, -1] += 0.01
    return {"R": R}


def other_function(cell: Cell) -> dict[str, Any]:
    f, g = cell.activations
    return {"activations": (g, f)}


def a_clip(cell: Cell) -> dict[str, Any]:
    return {"clip": 1.0}


FAULTS = [one_bias, swapped_gates, other_reset, one_weight, other_function, a_clip]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_wrong_matches_are_refused(fault: Any, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Cell | None:
        cell = find_cell(*arguments)
        return None if cell is None else replace(cell, **fault(cell))

    for module in (chain, whole):
        monkeypatch.setattr(module, "find_cell", wrong)
    model = one_step(Step(after=after)).model()
    found, search = fused(model)
    assert not search.fused
    assert found == model
    (miss,) = search.near_misses
    assert DEFECT in miss.reason and "would differ by" in miss.reason


@pytest.mark.parametrize("dtype, by", [("float64", 1e-7), ("float64", 1e-10), ("float32", 1e-7)])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_matches_are_as_accurate_as_their_type(
    after: bool, dtype: str, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(*arguments: Any) -> Cell | None:
        cell = find_cell(*arguments)
        return None if cell is None else replace(cell, R=cell.R * (1 + by))

    monkeypatch.setattr(chain, "find_cell", nearly)
    _, search = fused(one_step(Step(after=after), dtype=dtype).model())
    assert len(search.fused) == (dtype == "float32")
    found = [
        DEFECT in miss.reason and "is float64 and would differ" in miss.reason for miss in search.near_misses
    ]
    assert found == [True] * (dtype == "float64")


def test_large_layers_in_float64_pass() -> None:
    """Their roundings add up."""
    net = one_step(Step(300, 200, after=True), dtype="float64")
    _, search = fused(net.model())
    assert len(search.fused) == 1 and not search.near_misses


def adding(kind: str) -> tuple[Flow, list[Op]]:
    """x + 1, and the same value computed again by another operator."""
    net = Net()
    net.input("x", "B", 3)
    net("Add", "x", net.const(1.0), output="y")
    net.output("y", ("B", 3))
    given = flow(net.model())
    return given, [Op(kind, ("x", "new/one"), ("y",))]


ONE = {"new/one": np.ones(())}


def test_equal_operators_agree() -> None:
    given, new = adding("Add")
    assert compare(given, new, ONE).difference == ""


def test_other_operators_differ() -> None:
    given, new = adding("Sub")
    assert "'y' would differ by 2" in compare(given, new, ONE).difference


@pytest.mark.parametrize("size", [1e-3, 1e-7, 1e-30, 1e-42])
@pytest.mark.parametrize("off", [1e-4, 1e-6])
def test_small_outputs_are_compared_by_their_own_size(size: float, off: float) -> None:
    net = Net()
    net.input("x", "B", 3)
    net("Mul", net("Add", "x", net.const(1.0)), net.const(size, "float64"), output="y")
    net.output("y", ("B", 3))
    given = flow(net.model())
    (first,) = [op for op in given.ops if op.kind == "Add"]
    new = [Op("Mul", (first.outputs[0], "new/size"), ("y",))]
    found = compare(given, new, {"new/size": np.array(size * (1 + off))})
    is_zero = size < np.finfo(np.float32).tiny
    assert ("'y' would differ by" in found.difference) == (off > 1e-5 and not is_zero)


def test_rounding_passes() -> None:
    given, new = adding("Add")
    assert compare(given, new, {"new/one": np.array(1 + 1e-7)}).difference == ""


def test_outputs_that_move_are_counted() -> None:
    given, new = adding("Add")
    found = compare(given, new, ONE)
    assert found.outputs == found.input_dependent == 12


def test_what_does_not_move_proves_nothing() -> None:
    net = Net()
    net.input("x", 2, 3)
    net("Mul", "x", net.const(0.0), output="y")
    net.output("y", (2, 3))
    with pytest.raises(UnknownOpError, match="no output depends on the inputs"):
        compare(flow(net.model()), [Op("Sub", ("x", "x"), ("y",))], {})


def test_where_rounding_decides_nothing_is_a_difference() -> None:
    """x + 0.1 - 0.1 is above 0 or not; both sides are right wherever it is within a rounding of 0."""
    net = Net()
    net.input("x", 2, 3)
    net("ThresholdedRelu", net("Add", "x", net.const(0.1)), alpha=float(np.float32(0.1)), output="y")
    net.output("y", (2, 3))
    new = [
        Op("Add", ("x", "new/less"), ("new/sum",)),
        Op("ThresholdedRelu", ("new/sum",), ("y",), {"alpha": float(np.float32(0.1))}),
    ]
    less = {"new/less": np.array(float(np.float32(0.1)) * (1 + 1e-15))}
    assert compare(flow(net.model()), new, less).difference == ""


def test_what_large_numbers_leave_where_they_cancel_is_no_difference() -> None:
    """x + 1e12 - 1e12 is x but for a rounding of 1e12, and that hardly changes where x hardly moves."""
    net = Net()
    net.input("x", 2, 3)
    large = net(
        "Mul", net("Clip", net("Mul", "x", net.const(1e9)), net.const(-1.0), net.const(1.0)), net.const(1e12)
    )
    net("Sub", net("Add", large, "x"), large, output="y")
    net.output("y", (2, 3))
    assert compare(flow(net.model()), [Op("Mul", ("x", "new/one"), ("y",))], ONE).difference == ""


def test_a_value_and_one_computed_from_it_are_not_drawn_apart() -> None:
    """As where a loop takes a sequence and, for what is computed ahead, the same sequence turned around."""
    net = Net()
    net.input("x", 4, 3)
    net("Neg", "x", output="n")
    net("Sub", "n", "x", output="y")
    net.output("y", (4, 3))
    new = [
        Op("Mul", ("n", "new/three"), ("new/3n",)),
        Op("Add", ("new/3n", "x"), ("y",)),  # y = -2x = 3n + x, if n is -x
    ]
    assert compare(flow(net.model()), new, {"new/three": np.array(3.0)}).difference == ""


def test_other_shapes_differ() -> None:
    given, _ = adding("Add")
    new = [Op("Add", ("x", "new/one"), ("new/y",)), Op("Unsqueeze", ("new/y", "new/axes"), ("y",))]
    assert "would become" in compare(given, new, {**ONE, "new/axes": np.array([0])}).difference


def test_operators_that_are_not_known_prove_nothing() -> None:
    given, new = adding("Det")
    with pytest.raises(UnknownOpError, match="Det is not a known operator"):
        compare(given, new, ONE)


def test_numbers_that_overflow_are_made_smaller() -> None:
    """Comparisons make finite numbers of what has overflowed; log(1 + e^x) has where Softplus has not."""
    net = Net()
    net.input("x", 2, 3)
    net.input("s", 2, 3)
    big = net("Mul", "x", net.const(100.0))
    total = net("Log", net("Add", net("Exp", big), net.const(1.0)))
    net("Where", net("Less", total, "s"), total, "s", output="low")
    net("Add", total, "low", output="y")
    net.output("y", (2, 3))
    given = flow(net.model())
    hundred = {"new/hundred": np.array(100.0)}
    new = [
        Op("Mul", ("x", "new/hundred"), ("new/big",)),
        Op("Softplus", ("new/big",), ("new/total",)),
        Op("Min", ("new/total", "s"), ("new/low",)),
        Op("Add", ("new/total", "new/low"), ("y",)),
    ]
    assert compare(given, new, hundred).difference == ""


def test_large_values_are_not_made() -> None:
    net = Net()
    net.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2**20, 2**20]))
    net("Add", "x", net.const(1.0), output="y")
    net.output("y", (2**20, 2**20))
    given = flow(net.model())
    with pytest.raises(UnknownOpError, match="too large"):
        compare(given, [Op("Add", ("x", "new/one"), ("y",))], ONE)


def test_sizes_with_names() -> None:
    sizes = DrawnSizes()
    assert sizes.shape(("a", 3, "b", "a")) == (sizes.of("a"), 3, sizes.of("b"), sizes.of("a"))
    assert sizes.of("a") != sizes.of("b")
    equal = DrawnSizes(equal=True)
    assert equal.of("a") == equal.of("b")


def test_operators_compute_in_float64() -> None:
    values = Float64Values(flow(Net().model()), {"x": np.array([1 / 3])}, {})
    values.run(Op("Cast", ("x",), ("c",), {"dtype": "float16"}))
    assert values["c"] == 1 / 3  # roundings of an element type are no part of what is computed
    values.update(a=np.zeros((1, 2)), b=np.zeros((1, 3)))
    with pytest.raises(UnknownOpError, match="Concat"):
        values.run(Op("Concat", ("a", "b"), ("d",), {"axis": 0}))


def test_what_only_a_shape_needs_is_not_computed() -> None:
    """The zeros of a decoder's first state take the shape of what the model has computed before."""
    net = Net()
    net.input("x", 2, 4, 3)
    net.input("sizes", 2, dtype="int64")
    net.feeds["sizes"] = np.array([6, 4])
    before = net("Reshape", net("Tanh", net("Reshape", "x", "sizes")), net.ints(-1, 4, 3))
    steps = net("Softmax", before, axis=2)
    rows = net("Slice", net("Shape", before), net.ints(0), net.ints(1), net.ints(0))
    state, step = net("Expand", net.const(0.0), net("Concat", rows, net.ints(2), axis=0)), Step()
    for t in range(4):
        state = step(net, net("Gather", steps, net.const(t, "int64"), axis=1), state)
    net("Identity", state, output="y")
    net.output("y", ("B", 2))
    _, search = check_fused(net.model(), net.feeds)
    assert [(item.form, item.steps) for item in search.fused] == [("chain", 4)] and not search.near_misses


@pytest.mark.parametrize("take", ["Gather", "Gather from the end", "Slice", "Slice from the end"])
def test_open_axes_are_as_long_as_the_steps_that_are_read(take: str) -> None:
    net, step = Net(), Step(3, 2)
    x, state = net.input("x", "B", "T", 3, fill=9), net.input("h", "B", 2, fill=9)
    for t in range(9):
        place = t - 9 if "end" in take else t
        if "Gather" in take:
            now = net("Gather", x, net.const(place, "int64"), axis=1)
        else:
            last = place + 1 or 2**31 - 1
            now = net("Slice", x, net.ints(place), net.ints(last), net.ints(1))
            now = net("Squeeze", now, net.ints(1))
        state = step(net, now, state)
    net("Identity", state, output="y")
    net.output("y", ("B", 2))
    _, search = check_fused(net.model(), net.feeds)
    assert sum(item.steps or 0 for item in search.fused) == 9 and not search.near_misses


def test_a_difference_at_infinity_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "'h' would differ by inf where 'x' is infinite"
    monkeypatch.setattr("onegru.fusion.numeric_check._Comparison.at_infinity", lambda self: found)
    _, search = fused(one_step(Step()).model())
    assert [miss.reason for miss in search.near_misses] == [f"it is a GRU only for finite values: {found}"]
    assert not search.fused and not search.refuted
