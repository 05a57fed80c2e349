"""Graphs as flows: constants, sizes, shapes, and operators replaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onegru.dataflow.flow import Flow
from onegru.dataflow.linear import as_linear
from onegru.dataflow.operator import Op
from onegru.dataflow.replace import replace_ops
from onegru.dataflow.table.pointwise import broadcast
from tests.support.models.fusing import Array, Net, flow


def plain_flow(ops: list[Op], inputs: list[str], outputs: list[str], **constants: Array) -> Flow:
    def reader(array: Array) -> Callable[[], Array]:
        return lambda: array

    return Flow(ops, inputs, outputs, {name: reader(array) for name, array in constants.items()})


# Constants


def test_constants_are_computed_ahead() -> None:
    net = Net()
    net.input("x", "B", 3)
    total = net("Add", net.const([1.0, 2.0]), net("Neg", net.const([0.5, 0.5])))
    known = flow(net.model())
    found = known.constant(total)
    assert found is not None
    np.testing.assert_array_equal(found, [0.5, 1.5])
    assert known.constant("x") is None
    assert known.constant("nothing") is None


def test_sizes_that_are_fixed_are_constants() -> None:
    net = Net()
    net.input("x", 4, 3)
    last = net("Gather", net("Shape", "x"), net.const(0, "int64"), axis=0)
    less = net("Sub", last, net.const(1, "int64"))
    found = flow(net.model()).constant(less)
    assert found is not None and found.shape == () and int(found) == 3


def test_a_long_chain_of_constants_needs_no_stack() -> None:
    net = Net()
    net.input("x", 1)
    value = net.const([0.0])
    for _ in range(3000):
        value = net("Add", value, net.const([1.0]))
    found = flow(net.model()).constant(value)
    assert found is not None and found[0] == 3000


@pytest.mark.parametrize("shape", [(2**40,), (2**31, 2**31), (-3, 2)])
def test_constants_beyond_reason_are_none(shape: tuple[int, ...]) -> None:
    net = Net()
    net.input("x", 1)
    assert flow(net.model()) is not None
    huge = net("ConstantOfShape", net.ints(*shape))
    broken = net("Add", net.const([1.0, 2.0]), net.const([1.0, 2.0, 3.0]))
    known = flow(net.model())
    assert known.constant(huge) is None
    assert known.constant(broken) is None


def test_circles_end() -> None:
    a, b = Op("Add", ("b", "one"), ("a",)), Op("Identity", ("a",), ("b",))
    known = plain_flow([a, b], [], ["a"], one=np.ones(1))
    known.resolve("a")
    known.shape("a")
    known.dtype("a")
    known.as_sizes("a")


# Sizes


def test_sizes_with_names() -> None:
    net = Net()
    net.input("x", "T", "B", 3)
    shape = net("Shape", "x")
    first = net("Gather", shape, net.ints(0), axis=0)
    rest = net("Slice", shape, net.ints(1), net.ints(3))
    put = net("Concat", rest, first, net.ints(7), axis=0)
    same = net("Add", first, net.ints(0))
    more = net("Sub", first, net.ints(1))
    twice = net("Add", net("Mul", net.ints(2), more), net.ints(1))
    known = flow(net.model())
    T, B = known.as_sizes(first), known.as_sizes(rest)
    assert T == ("dim:T",) and B == ("dim:B", 3)
    assert known.as_sizes(put) == ("dim:B", 3, "dim:T", 7)
    assert known.as_sizes(same) == T
    assert known.as_sizes(more) is None
    assert as_linear(known, more) == ("dim:T", -1)
    assert as_linear(known, first) == ("dim:T", 0)
    assert as_linear(known, twice) == ("dim:T·2", -1)
    assert known.as_sizes("x") is None


def test_a_name_with_a_product_is_no_product() -> None:
    """Sizes that a file calls n and n*2, or n·2, have nothing to do with each other."""
    for name in ("n*2", "n·2"):
        net = Net()
        net.input("x", "n", 3)
        net.input("y", name, 3)
        first = net("Gather", net("Shape", "x"), net.ints(0), axis=0)
        twice = net("Mul", first, net.ints(2))
        known = flow(net.model())
        assert known.as_sizes(twice) != (known.shape("y") or ())[:1]


def test_squeeze_without_axes_states_no_rank_of_open_sizes() -> None:
    ops = [Op("Squeeze", (name,), (f"{name}s",)) for name in ("x", "y")]
    known = Flow(ops, ["x", "y"], ["xs", "ys"], {}, {"x": ("T", 1, 3), "y": (2, 1, 3)})
    assert known.shape("xs") is None and known.shape("ys") == (2, 3)


def test_a_range_that_ends_before_it_begins_is_empty() -> None:
    ops = [Op("Range", ("first", "last", "step"), ("y",))]
    ends = {name: np.array(number) for name, number in (("first", 0), ("last", -3), ("step", 1))}
    known = plain_flow(ops, [], ["y"], **ends)
    found = known.constant("y")
    assert known.shape("y") == (0,) and found is not None and found.shape == (0,)


def test_what_is_stated_later_counts() -> None:
    """Answers that were given before are forgotten, of values that depend on it as well."""
    ops = [Op("Relu", ("x",), ("y",)), Op("Shape", ("y",), ("shape",)), Op("Identity", ("y",), ("z",))]
    known = Flow(ops, ["x"], ["z"], {}, {"x": ("T", 3)})
    assert (known.shape("z"), known.as_sizes("shape"), known.dtype("z")) == (("T", 3), ("T", 3), None)
    known.set_shape("x", (4, 3))
    known.set_dtype("x", "float16")
    assert (known.shape("z"), known.as_sizes("shape"), known.dtype("z")) == ((4, 3), (4, 3), "float16")
    assert known.constant("z") is None
    known.add_constant("x", np.ones((4, 3), np.float16))
    assert known.constant("shape") is not None


def test_arithmetic_of_sizes() -> None:
    net = Net()
    net.input("x", 6, 3)
    shape = net("Shape", "x")
    six, three = (net("Gather", shape, net.ints(axis), axis=0) for axis in (0, 1))
    found = {
        net("Add", six, three): 9,
        net("Sub", six, three): 3,
        net("Mul", six, three): 18,
        net("Div", six, net.ints(4)): 1,
        net("Div", net.ints(-7), net.ints(2)): -3,
        net("Max", six, three): 6,
        net("Min", six, three): 3,
    }
    known = flow(net.model())
    for name, wanted in found.items():
        assert known.as_sizes(name) == (wanted,)


# Shapes


def test_shapes_follow_the_operators() -> None:
    net = Net()
    net.input("x", "T", "B", 3)
    wanted = {
        net("Transpose", "x", perm=[1, 0, 2]): ("dim:B", "dim:T", 3),
        net("MatMul", "x", net.random(3, 5)): ("dim:T", "dim:B", 5),
        net("Squeeze", net("Slice", "x", net.ints(-1), net.ints(2**63 - 1), net.ints(0)), net.ints(0)): (
            "dim:B",
            3,
        ),
        net("Gather", "x", net.const(0, "int64"), axis=0): ("dim:B", 3),
        net("Concat", "x", "x", axis=2): ("dim:T", "dim:B", 6),
        net("Unsqueeze", "x", net.ints(0)): (1, "dim:T", "dim:B", 3),
        net("Reshape", "x", net.ints(0, 0, 3, 1)): ("dim:T", "dim:B", 3, 1),
        net("Add", "x", net.random(3)): ("dim:T", "dim:B", 3),
        net("Softmax", "x", axis=2): ("dim:T", "dim:B", 3),
        net("Einsum", "x", net.random(5, 3), equation="tbi,oi->bto"): ("dim:B", "dim:T", 5),
        net("Einsum", "x", net.random(5, 3), equation="...i,oi->...o"): ("dim:T", "dim:B", 5),
        net("Einsum", "x", net.random(1, 5, 3), equation="...bi, ...oi"): ("dim:T", "dim:B", 5),
        net("Expand", net.const([[1.0]]), net.ints(4, 2)): (4, 2),
    }
    for part, size in zip(net.several("Split", ["x", net.ints(1, 2)], 2, axis=2), (1, 2), strict=True):
        wanted[part] = ("dim:T", "dim:B", size)
    cut = net("Slice", "x", net.ints(0), net("Shape", "x", start=0, end=1), net.ints(2))
    given = flow(net.model())
    shape = given.shape(cut)  # onnx's inference knows no axis of it
    assert shape is not None and shape[:2] == ("dim:T", "dim:B") and isinstance(shape[2], str)
    bare = Flow(given.ops, given.inputs, given.outputs, given.constants, {"x": ("dim:T", "dim:B", 3)})
    for name, shape in wanted.items():  # those of onnx's inference, and those that only flows find
        assert bare.shape(name) == shape
        found = given.shape(name)
        assert found is not None and len(found) == len(shape)


def test_broadcast() -> None:
    assert broadcast([(3, 1), (4,)]) == (3, 4)
    assert broadcast([("B", 1), (1, 5)]) == ("B", 5)
    assert broadcast([(), (2,)]) == (2,)
    assert broadcast([("B", 2), (4, 1)]) == (4, 2)


def test_types() -> None:
    net = Net()
    net.input("x", 2)
    mask = net("Less", "x", net.const([0.5, 0.5]))
    cast = net("Cast", mask, to=11)
    known = flow(net.model())
    assert [known.dtype(name) for name in ("x", mask, cast)] == ["float32", "bool", "float64"]


# Names that values go by


def test_resolve() -> None:
    net = Net()
    net.input("x", 2)
    once = net("Identity", "x")
    twice = net("Identity", once)
    idle = net("Cast", twice, to=1)
    other = net("Cast", idle, to=11)
    yes = net("Where", net.const([True, True], "bool"), idle, net.const([0.0, 0.0]))
    no = net("Where", net.const(False, "bool"), net.const([0.0, 0.0]), idle)
    some = net("Where", net.const([True, False], "bool"), idle, net.const([0.0, 0.0]))
    wider = net("Where", net.const([[True], [True]], "bool"), idle, net.const([0.0, 0.0]))
    known = flow(net.model())
    assert {known.resolve(name) for name in (once, twice, idle, yes, no)} == {"x"}
    assert [known.resolve(name) for name in (other, some, wider)] == [other, some, wider]


# Operators replaced


def names(known: Flow) -> list[str]:
    return [name for op in known.ops for name in op.outputs]


def test_replace_keeps_the_order_and_drops_what_is_dead() -> None:
    ops = [
        Op("Neg", ("x",), ("a",)),
        Op("Exp", ("x",), ("b",)),
        Op("Tanh", ("a",), ("c",)),
        Op("Add", ("b", "c"), ("d",)),
    ]
    known = plain_flow(ops, ["x"], ["d"])
    replace_ops(known, [Op("Abs", ("k",), ("c",))], {"k": np.ones(2)})
    assert names(known) == ["b", "c", "d"]  # Neg led only to the old c
    assert [op.kind for op in known.ops] == ["Exp", "Abs", "Add"]
    found = known.constant("k")
    assert found is not None and known.producers["c"].kind == "Abs"


def test_replace_puts_new_operators_where_they_are_needed() -> None:
    ops = [Op("Neg", ("x",), ("a",)), Op("Exp", ("a",), ("b",)), Op("Tanh", ("b",), ("c",))]
    known = plain_flow(ops, ["x"], ["c"])
    replace_ops(known, [Op("Sqrt", ("new",), ("b",)), Op("Abs", ("a",), ("new",))], {})
    assert names(known) == ["a", "new", "b", "c"]
    assert known.position(known.producers["new"]) < known.position(known.producers["b"])


def test_replace_of_one_of_two_outputs() -> None:
    ops = [Op("Split", ("x",), ("a", "b")), Op("Add", ("a", "b"), ("c",))]
    known = plain_flow(ops, ["x"], ["c"])
    replace_ops(known, [Op("Neg", ("x",), ("b",))], {})
    assert known.producers["a"].outputs == ("a", "")
    assert known.producers["b"].kind == "Neg"


def test_bodies_take_from_around() -> None:
    ops = [Op("Mul", ("h", "k"), ("s",)), Op("Add", ("s", "w"), ("y",))]
    inner = plain_flow(ops, ["h"], ["y"], k=np.ones(1))
    op = Op("Loop", ("n", "", "x"), ("z",), {}, {"body": inner})
    assert set(op.reads()) == {"n", "x", "w"}
    assert inner.free() == {"w"}
