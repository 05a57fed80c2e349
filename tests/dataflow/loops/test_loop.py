"""Loops: how many iterations, when they end, which values are indices, what their outputs' shapes are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import Loop
from onegru.dataflow.loops.read_loop import read_loop
from onegru.dataflow.operator import LoopIndex
from tests.support.models.fusing import Net, Step, check_fused, directions, flow, fused, kinds

pytest.importorskip("onnxruntime")

OPEN = 2**63 - 1
Part = Callable[["Looped"], str]


class Looped:
    """A Loop over x, [T, 2, 3], with a counter and the state.

    Args:
        trips, begin: what is given as the number of iterations and the first condition.
        go: the condition for another iteration; takes from the body.
        index: what x is indexed by.
        start: the counter's first value, of the graph around.
        step: what is added to the counter, or with a minus subtracted.
        T: the steps, a name for an open number.
    """

    def __init__(
        self,
        *,
        trips: Part | None = None,
        begin: Part | None = None,
        go: Part | None = None,
        index: Part | None = None,
        start: Part | None = None,
        step: tuple[str, int] = ("Add", 1),
        T: int | str = 4,
    ) -> None:
        self.net, self.body = Net(), Net()
        self.body.prefix = "b"
        self.net.input("x", T, 2, 3, fill=4)
        self.net.input("h", 2, 2)
        self.body.inputs = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_old", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("c", TensorProto.INT64, []),
        ]
        first = self.number(0) if start is None else start(self)
        self.body(step[0], "c", self.body.const(step[1], "int64"), output="c_new")
        xt = self.body("Gather", "x", "i" if index is None else index(self), axis=0)
        self.body("Identity", Step(after=True)(self.body, xt, "h_old"), output="h_new")
        self.body("Identity", "go" if go is None else go(self), output="go_on")
        self.body("Identity", "h_new", output="h_kept")
        for name, shape, dtype in (("go_on", (), "bool"), ("h_new", (2, 2), ""), ("c_new", (), "int64")):
            self.body.output(name, shape, dtype)
        self.body.output("h_kept", (2, 2))
        given = self.steps() if trips is None else trips(self)
        condition = self.net.const(True, "bool") if begin is None else begin(self)
        self.net.nodes.append(
            helper.make_node(
                "Loop", [given, condition, "h", first], ["y", "c_last", "Y"], body=self.body.graph("body")
            )
        )
        self.net.output("y", (2, 2))
        self.net.output("Y", (T, 2, 2))

    def number(self, value: int) -> str:
        return self.net.const(value, "int64")

    def steps(self) -> str:
        """T of the graph around."""
        return self.net("Gather", self.net("Shape", "x"), self.number(0), axis=0)

    def last(self) -> str:
        """T - 1."""
        return self.net("Sub", self.steps(), self.number(1))

    def read(self) -> tuple[Flow, Loop | None]:
        known = flow(self.net.model())
        (op,) = (op for op in known.ops if op.kind == "Loop")
        return known, read_loop(known, op)

    def count(self) -> int | str | None:
        loop = self.read()[1]
        return None if loop is None else loop.count


def below(kind: str, first: str) -> Part:
    """A condition of the body: a counter before T."""

    def make(at: Looped) -> str:
        names = (first, at.steps())
        return at.body(kind, *(names if kind.startswith("Less") else names[::-1]))

    return make


# Trip counts


@pytest.mark.parametrize("T", [4, "T"])
def test_trip_counts(T: int | str) -> None:
    wanted = T if isinstance(T, int) else "dim:T"
    assert Looped(T=T).count() == wanted
    first = Looped(T=T, trips=lambda at: "", begin=starts, go=below("Less", "c_new"))
    assert first.count() == wanted
    huge = Looped(T=T, trips=lambda at: at.number(OPEN), begin=starts, go=below("Greater", "c_new"))
    assert huge.count() == wanted


def starts(at: Looped) -> str:
    return at.net("Less", at.number(0), at.steps())


def and_go(at: Looped) -> str:
    return at.body("And", "go", below("Less", "c_new")(at))


@pytest.mark.parametrize("T", [4, "T"])
@pytest.mark.parametrize("go", [below("Less", "c_new"), below("Greater", "c_new"), and_go])
def test_while_loops_are_fused(T: int | str, go: Part) -> None:
    at = Looped(T=T, trips=lambda at: at.number(OPEN), begin=starts, go=go)
    model, search = check_fused(at.net.model(), at.net.feeds)
    assert [found.form for found in search.fused] == ["loop"] and not search.near_misses
    assert "Loop" not in kinds(model) and directions(model) == 1


def other_bound(at: Looped) -> str:
    return at.body("Less", "c_new", at.body.const(2, "int64"))


def of_state(at: Looped) -> str:
    total = at.body("ReduceSum", "h_new", keepdims=0)
    return at.body("Less", total, at.body.const(0.3))


NOT_KNOWN: dict[str, Looped] = {
    "ends early": Looped(go=other_bound),
    "of the state": Looped(go=of_state),
    "only of the state": Looped(trips=lambda at: "", go=of_state),
    "one too many": Looped(trips=lambda at: "", begin=starts, go=below("LessOrEqual", "c_new")),
    "begins later": Looped(
        trips=lambda at: "", begin=starts, go=below("Less", "c_new"), start=lambda at: at.number(1)
    ),
    "in twos": Looped(trips=lambda at: "", begin=starts, go=below("Less", "c_new"), step=("Add", 2)),
    "may not begin": Looped(T="T", trips=lambda at: "", go=below("Less", "c_new")),
    "never ends": Looped(trips=lambda at: at.number(OPEN)),
}


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_loops_that_end_otherwise_are_not_whole(name: str) -> None:
    at = NOT_KNOWN[name]
    assert at.count() is None
    model, search = fused(at.net.model())
    assert "loop" not in {found.form for found in search.fused}
    assert kinds(model).count("Loop") == 1


def test_a_condition_that_holds_to_the_end() -> None:
    assert Looped(go=below("Less", "c")).count() == 4
    assert Looped(go=below("Less", "c_new")).count() == 4
    assert Looped(begin=lambda at: at.net.const(False, "bool")).count() is None


# Indices


def test_indices() -> None:
    def counted(at: Looped) -> str:
        at.body("Sub", at.last(), "i", output="back")
        at.body("Add", "i", at.body.const(1, "int64"), output="after")
        at.body("Mul", "i", at.body.const(2, "int64"), output="twice")
        return "i"

    loop = Looped(T="T", index=counted).read()[1]
    assert loop is not None
    assert loop.indices["i"] == LoopIndex(1, 0)
    assert loop.indices["c"] == LoopIndex(1, 0)
    assert loop.indices["c_new"] == LoopIndex(1, 1)
    assert loop.indices["after"] == LoopIndex(1, 1)
    assert loop.indices["back"] == LoopIndex(-1, -1, "dim:T")
    assert "twice" not in loop.indices


@pytest.mark.parametrize("T", [4, "T"])
@pytest.mark.parametrize("step", [("Sub", 1), ("Add", -1)])
def test_counters_that_go_down(T: int | str, step: tuple[str, int]) -> None:
    at = Looped(T=T, start=Looped.last, step=step, index=lambda at: "c")
    loop = at.read()[1]
    assert loop is not None
    size = "dim:T" if T == "T" else 0
    assert loop.indices["c"] == LoopIndex(-1, -1 if size else 3, size)
    model, search = check_fused(at.net.model(), at.net.feeds)
    assert [found.direction for found in search.fused] == ["reverse"]
    assert "Loop" not in kinds(model)


@pytest.mark.parametrize("step", [("Add", 2), ("Sub", 2), ("Mul", 1)])
def test_other_counters_are_no_indices(step: tuple[str, int]) -> None:
    loop = Looped(step=step).read()[1]
    assert loop is not None and "c" not in loop.indices


@pytest.mark.parametrize("index", ["shifted", "fixed", "short"])
def test_x_read_in_another_order_leaves_a_loop(index: str) -> None:
    makers: dict[str, Part] = {
        "shifted": lambda at: at.body("Sub", "i", at.body.const(1, "int64")),
        "fixed": lambda at: at.body.const(0, "int64"),
        "short": lambda at: "i",
    }
    trips: Part | None = (lambda at: at.number(3)) if index == "short" else None
    at = Looped(index=makers[index], trips=trips)
    if index == "short":
        at.net.outputs.pop()
        at.net.output("Y", (3, 2, 2))
    model, search = check_fused(at.net.model(), at.net.feeds)
    assert {found.form for found in search.fused} <= {"cell"}
    assert kinds(model).count("Loop") == 1
    assert any("neither one slice for each iteration" in miss.reason for miss in search.near_misses)


# Shapes


@pytest.mark.parametrize("T", [4, "T"])
def test_what_loops_give_has_their_number_of_steps(T: int | str) -> None:
    at = Looped(T=T)
    at.net.outputs = [
        helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in ("y", "Y")
    ]
    known, loop = at.read()
    assert loop is not None
    assert known.shape("y") == (2, 2)
    assert known.shape("Y") == (T if isinstance(T, int) else "dim:T", 2, 2)


def test_a_state_of_the_loop_that_stays_is_that_around_it() -> None:
    at = Looped(step=("Add", 0))
    loop = at.read()[1]
    assert loop is not None
    np.testing.assert_equal([item.before for item in loop.carried], ["h_old", "c"])
