"""Loops as tf2onnx writes Keras' masked layers: a state, and outputs that are zero where a step is off."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from onegru.dataflow.flow import Flow
from onegru.fusion import drawn_inputs
from tests.support.models.fusing import (
    LOOPS,
    Array,
    Net,
    Step,
    by_onegru,
    by_onnxruntime,
    check_fused,
    directions,
    error,
    fused,
    kinds,
)

pytest.importorskip("onnxruntime")

I, H = 3, 2
# Measured over these masks: at most 9e-8, the rounding of float32.
BOUND = 5e-7
# Whether each step of each row is on, [rows, time].
MASKS = {
    "in the middle": [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1]],
    "a whole row": [[0, 0, 0], [1, 0, 1]],
    "all steps": [[0, 0, 0, 0], [0, 0, 0, 0]],
    "one step": [[1], [0], [1]],
}


def kind(net: Net) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(net.dtype))


def chosen(net: Net, on: str, value: str, otherwise: str) -> str:
    """What tf2onnx makes of a choice."""
    off = net("Cast", net("Not", on), to=kind(net))
    return net("Add", net("Mul", net("Cast", on, to=kind(net)), value), net("Mul", otherwise, off))


def turned(net: Net, value: str, lengths: str = "") -> str:
    """A value, [time, rows, ...], turned round as tf2onnx does it."""
    shape = net("Shape", value)
    steps, rows = net("Gather", shape, net.ints(0)), net("Gather", shape, net.ints(1))
    return net("ReverseSequence", value, lengths or net("Expand", steps, rows), batch_axis=1, time_axis=0)


@dataclass
class Layer:
    """A layer's loop.

    Attributes:
        fill: what its outputs are where they are off.
        reads: whether its steps take the output of the step before.
        last: whether its last output is used.
        holds: whether its outputs are those of the step before where they are off.
        other: the mask of its outputs; empty for that of its states.
        step: the class of its steps.
    """

    fill: float = 0.0
    reads: bool = False
    last: bool = False
    holds: bool = False
    other: str = ""
    step: type[Step] = Step

    def __call__(self, net: Net, x: str, mask: str) -> tuple[str, str]:
        """All outputs of [time, rows, I] and [time, rows, 1], and the last state, or the last output."""
        rows = net("Gather", net("Shape", x), net.ints(1))
        state = net("Expand", net.const([[0.0]]), net("Concat", rows, net.ints(H), axis=0))
        value = helper.make_tensor("value", kind(net), [1], [self.fill])
        filled = net("ConstantOfShape", net("Shape", state), value=value)
        steps = net("Reshape", net("Gather", net("Shape", x), net.ints(0)), net.ints())
        count = net("Cast", steps, to=TensorProto.FLOAT)
        goes = net("Less", net.const(0.0, "float32"), count)
        given = [steps, goes, net.const(0, "int64"), filled, state, filled]
        body = self.body(net, x, mask, count)
        _, out, h, _, outputs = net.several("Loop", given, 5, body=body.graph(body.prefix))
        return outputs, out if self.last else h

    def body(self, net: Net, x: str, mask: str, count: str) -> Net:
        body = Net(net.opset, net.dtype, seed=net.count)
        body.prefix = f"{net.fresh()}_"
        i, _, t = (body.input(body.fresh(), dtype=dtype) for dtype in ("int64", "bool", "int64"))
        out, h, filled = (body.input(body.fresh(), "rows", H) for _ in range(3))
        on = body("Gather", mask, t, axis=0)
        shown = body("Gather", self.other, t, axis=0) if self.other else on
        before = body("Add", h, body("Mul", out, body.const(0.5))) if self.reads else h
        new = self.step(after=True)(body, body("Gather", x, t, axis=0), before)
        found = chosen(body, shown, new, out if self.holds else filled)
        after = body("Add", t, body.const(1, "int64"))
        goes = [body("Less", body("Cast", name, to=TensorProto.FLOAT), count) for name in (i, after)]
        body.output(body("And", *goes), (), "bool")
        body.output(after, (), "int64")
        body.output(found, ("rows", H))
        body.output(chosen(body, on, new, h), ("rows", H))
        body.output(body("Identity", filled), ("rows", H))
        body.output(body("Identity", found), ("rows", H))
        return body


def both_directions(
    dtype: str = "float32", lengths: bool = False, forward: Layer | None = None, steps: str = "time"
) -> Net:
    """A bidirectional layer of [rows, time, I] and its mask, [rows, steps], and its last states."""
    net = Net(dtype=dtype)
    net.input("x", "rows", "time", I)
    net.input("m", "rows", steps, dtype="bool")
    if lengths:
        net.input("n", "rows", dtype="int64")
    if forward is not None and forward.other:
        net.input("other", "rows", "time", dtype="bool")
        forward = replace(forward, other=net("Transpose", net.unsqueeze("other", 2), perm=[1, 0, 2]))
    x = net("Transpose", "x", perm=[1, 0, 2])
    m = net("Transpose", net.unsqueeze("m", 2), perm=[1, 0, 2])
    n = "n" if lengths else ""
    first, last = (forward or Layer())(net, x, m)
    second, end = Layer()(net, turned(net, x, n), turned(net, m, n))
    net("Transpose", net("Concat", first, turned(net, second), axis=2), perm=[1, 0, 2], output="y")
    net.output("y", ("rows", "time", 2 * H))
    for name, value in (("last", last), ("end", end)):
        net("Identity", value, output=name)
        net.output(name, ("rows", H))
    return net


def feeds(mask: list[list[int]], dtype: str = "float32") -> dict[str, Array]:
    m = np.array(mask, bool)
    return {"x": np.random.default_rng(0).standard_normal((*m.shape, I)).astype(dtype), "m": m}


@pytest.mark.parametrize("mask", MASKS)
def test_outputs_that_are_zero_where_steps_are_off(mask: str) -> None:
    model, search = check_fused(both_directions().model(), feeds(MASKS[mask]), BOUND)
    assert directions(model) == 2 and not set(kinds(model)) & set(LOOPS) and not search.near_misses
    assert [(item.direction, item.masked) for item in search.fused] == [("forward", True), ("reverse", True)]


@pytest.mark.parametrize("mask", MASKS)
def test_float64(mask: str) -> None:
    """ONNX Runtime has no GRU of that type."""
    model, given = both_directions("float64").model(), feeds(MASKS[mask], "float64")
    found, search = fused(model)
    assert directions(found) == 2 and not search.near_misses
    assert error(by_onegru(found, given), by_onnxruntime(model, given)) <= 1e-15


@pytest.mark.parametrize("mask", MASKS)
def test_the_last_output_of_a_layer_that_holds_its_outputs_is_its_state(mask: str) -> None:
    """Keras passes on both."""
    net = both_directions(forward=Layer(last=True, holds=True))
    model, search = check_fused(net.model(), feeds(MASKS[mask]), BOUND)
    assert directions(model) == 2 and not set(kinds(model)) & set(LOOPS) and not search.near_misses


class Bilinear(Step):
    """A step whose update gate takes a product of two values, which has to be computed before the loop."""

    def of_x(self, net: Net, gate: str, x: str) -> str:
        value = super().of_x(net, gate, x)
        return net("Mul", value, super().of_x(net, "2z", x)) if gate == "z" else value


@pytest.mark.parametrize("holds", [False, True], ids=["zeros", "held"])
def test_masks_and_outputs_where_x_is_computed_before_the_loop(holds: bool) -> None:
    """The search for the loop's cells is made twice."""
    net = both_directions(forward=Layer(last=holds, holds=holds, step=Bilinear))
    model, search = check_fused(net.model(), feeds(MASKS["in the middle"]), BOUND)
    assert directions(model) == 2 and not set(kinds(model)) & set(LOOPS) and not search.near_misses


FAULTS = {
    "a last output that began with ones": Layer(fill=1.0, last=True, holds=True),
    "ones where steps are off": Layer(fill=1.0),
    "an output that the next step takes": Layer(reads=True),
    "the last output": Layer(last=True),
    "outputs with a mask of their own": Layer(other="other"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_other_outputs_stay_in_the_loop(fault: str) -> None:
    net = both_directions(forward=FAULTS[fault])
    given = feeds(MASKS["in the middle"])
    given |= {"other": ~given["m"]} if "own" in fault else {}
    model, search = check_fused(net.model(), given)
    assert kinds(model).count("Loop") == 1 and search.near_misses
    assert [item.direction for item in search.fused if item.form == "loop"] == ["reverse"]


def test_rows_that_are_turned_by_their_own_lengths_are_turned_outside_the_node() -> None:
    net = both_directions(lengths=True)
    given = {**feeds(MASKS["in the middle"]), "n": np.array([5, 3, 1])}
    model, search = check_fused(net.model(), given)
    assert kinds(model).count("ReverseSequence") == 3
    assert [(item.form, item.direction) for item in search.fused] == [("loop", "forward")] * 2


def test_a_mask_that_may_be_longer_stays_in_the_loop() -> None:
    net = both_directions(steps="other")
    _, search = check_fused(net.model(), feeds(MASKS["in the middle"]))
    assert not [item for item in search.fused if item.form == "loop"]
    words = "the number of slices may differ from the number of iterations"
    assert sum(words in item.reason for item in search.near_misses) == 2


def test_what_all_iterations_have_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """W and R are not made float64 at each of the steps that the check computes."""
    asked: list[str] = []
    constant = Flow.constant

    def noted(flow: Flow, name: str) -> Array | None:
        asked.append(name)
        return constant(flow, name)

    monkeypatch.setattr(Flow, "constant", noted)
    monkeypatch.setattr(drawn_inputs, "LEAST_STEPS", 4)
    fused(both_directions().model())
    few = len(asked)
    asked.clear()
    monkeypatch.setattr(drawn_inputs, "LEAST_STEPS", 40)
    _, search = fused(both_directions().model())
    assert len(search.fused) == 2 and len(asked) == few
