"""Loops whose iterations do more than a GRU's step with what needs no state, which is done before the GRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from onnx import TensorProto, helper

from onegru.fusion.search import Search
from tests.support.models.fusing import (
    LOOPS,
    Net,
    Step,
    blend,
    check_fused,
    directions,
    kinds,
    one_step,
    reasons,
)

pytest.importorskip("onnxruntime")

T, B, I, H = 5, 3, 4, 2
Change = Callable[["Looped", str], str]


class Looped:
    """A Scan or a Loop over x, [T, B, I], whose body does something with x or h before its step.

    Args:
        kind: the operator.
        of_x, of_h: what the body does with each.
        open: whether the sizes of time and batch are.
        reverse: whether the first iteration takes the last slice.
        opset: the opset.
        width: how wide x is then.
        step: the step.
    """

    def __init__(
        self,
        kind: str = "Scan",
        of_x: Change | None = None,
        of_h: Change | None = None,
        *,
        open: bool = False,
        reverse: bool = False,
        opset: int = 17,
        width: int = I,
        step: Step | None = None,
    ) -> None:
        self.net, self.body = Net(opset), Net(opset, seed=1)
        self.body.prefix = "b"
        steps: int | str = "T" if open else T
        self.rows: int | str = "B" if open else B
        self.net.input("x", steps, self.rows, I, fill=T)
        self.net.input("h", self.rows, H, fill=B)
        self.net.feeds["x"] = self.net.feeds["x"][:, :B]
        self.net.input("c", self.rows, I, fill=B)
        inputs = ["h_old"]
        x = "x_t"
        if kind == "Loop":
            inputs = ["i", "go", "h_old"]
            place = "i"
            if reverse:
                place = self.body("Sub", self.last(), "i")
            self.body("Gather", "x", place, axis=0, output="x_t")
        x = of_x(self, x) if of_x else x
        h = of_h(self, "h_old") if of_h else "h_old"
        self.body("Identity", (step or Step(width, H, after=True))(self.body, x, h), output="h_new")
        self.body("Identity", "h_new", output="h_kept")
        types: dict[str, tuple[int, list[int | str]]] = {
            "i": (TensorProto.INT64, []),
            "go": (TensorProto.BOOL, []),
        }
        wide = {"h_old": H, "x_t": I}
        for name in [*inputs, *(["x_t"] if kind == "Scan" else [])]:
            form = types.get(name) or (TensorProto.FLOAT, [self.rows, wide[name]])
            self.body.inputs.append(helper.make_tensor_value_info(name, *form))
        if kind == "Loop":
            self.body("Identity", "go", output="go_on")
            self.body.output("go_on", (), "bool")
        self.body.output("h_new", (self.rows, H))
        self.body.output("h_kept", (self.rows, H))
        more = {"body": self.body.graph("body")}
        if kind == "Scan":
            backwards: dict[str, Any] = (
                {"scan_input_directions": [1], "scan_output_directions": [1]} if reverse else {}
            )
            node = helper.make_node("Scan", ["h", "x"], ["y", "Y"], num_scan_inputs=1, **more, **backwards)
        else:
            count = self.net("Gather", self.net("Shape", "x"), self.net.const(0, "int64"), axis=0)
            node = helper.make_node("Loop", [count, self.net.const(True, "bool"), "h"], ["y", "Y"], **more)
        self.net.nodes.append(node)
        self.net.output("y", (self.rows, H))
        self.net.output("Y", (steps, self.rows, H))

    def last(self) -> str:
        count = self.net("Gather", self.net("Shape", "x"), self.net.const(0, "int64"), axis=0)
        return self.net("Sub", count, self.net.const(1, "int64"))

    def check(self) -> tuple[list[str], Search]:
        """The operators that are left, and what was found."""
        model, search = check_fused(self.net.model(), self.net.feeds)
        return kinds(model), search

    def fused(self) -> list[str]:
        """The operators of the model with a GRU in the loop's place."""
        left, search = self.check()
        assert [item.form for item in search.fused] == ["loop"], search.near_misses
        assert not search.near_misses and not set(left) & set(LOOPS) and left.count("GRU") == 1
        return left

    def left(self) -> set[str]:
        """Why the loop stays."""
        left, search = self.check()
        assert set(left) & set(LOOPS) and {item.form for item in search.fused} <= {"cell"}
        return {miss.reason for miss in search.near_misses}


FORMS = [("Scan", False, False), ("Scan", True, True), ("Loop", True, False), ("Loop", False, True)]
forms = pytest.mark.parametrize(("kind", "open", "reverse"), FORMS)


# What is left of a dropout


def ones(net: Net, like: str, kind: str = "Expand") -> str:
    shape = net("Shape", like)
    if kind == "ConstantOfShape":
        value = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
        return net("ConstantOfShape", shape, value=value)
    if kind == "Tile":
        return net("Tile", net.const([[1.0]]), shape)
    if kind == "Cast":
        return net("Cast", net("Expand", net.const(True, "bool"), shape), to=TensorProto.FLOAT)
    return net("Expand", net.const(1.0), shape)


class Masked(Step):
    """Keras' step of implementation 1: a mask for each gate, of x and of h."""

    masks: dict[str, str]

    def of_x(self, net: Net, gate: str, x: str) -> str:
        return super().of_x(net, gate, net("Mul", x, self.masks[f"x{gate}"]))

    def of_h(self, net: Net, gate: str, h: str) -> str:
        return super().of_h(net, gate, net("Mul", h, self.masks[f"h{gate}"]))


@pytest.mark.parametrize("made", ["Expand", "ConstantOfShape", "Tile", "Cast"])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
@forms
def test_products_with_ones(kind: str, open: bool, reverse: bool, outside: bool, made: str) -> None:
    step = Masked(I, H)

    def masked(at: Looped, x: str) -> str:
        net = at.net if outside else at.body
        step.masks = {}
        for gate in "zrn":
            step.masks[f"x{gate}"] = ones(
                net, net("Gather", "x", net.const(0, "int64"), axis=0) if outside else x, made
            )
            step.masks[f"h{gate}"] = ones(net, "h" if outside else "h_old", made)
        return x

    left = Looped(kind, masked, open=open, reverse=reverse, step=step).fused()
    assert "Mul" not in left and made not in left


def test_a_chain_with_products_with_ones() -> None:
    net = Net()
    net.input("x", 4, "B", I)
    net.input("h", "B", H)
    state, step = "h", Step(I, H)
    for t in range(4):
        x = net("Gather", "x", net.const(t, "int64"), axis=0)
        state = step(
            net, net("Div", net("Mul", ones(net, x), x), ones(net, x)), net("Mul", state, ones(net, state))
        )
    net("Identity", state, output="y")
    net.output("y", ("B", H))
    model, search = check_fused(net.model(), net.feeds)
    assert [(item.form, item.steps) for item in search.fused] == [("chain", 4)]
    assert not set(kinds(model)) & {"Mul", "Div", "Expand"}


# What is computed before


def masked(at: Looped, x: str) -> str:
    return at.body("Mul", x, at.net("Sigmoid", "c"))


def dense(at: Looped, x: str) -> str:
    return at.body("Relu", at.body("Add", at.body("MatMul", x, at.body.random(I, I)), at.body.random(I)))


def gemm(at: Looped, x: str) -> str:
    weights, bias = at.body.random(I, I), at.body.random(1, I)
    return at.body("Tanh", at.body("Gemm", x, weights, bias, transB=1, alpha=0.5, beta=2.0))


def layer_norm(at: Looped, x: str) -> str:
    apart = at.body("Sub", x, at.body("ReduceMean", x, axes=[-1]))
    square = at.body("ReduceMean", at.body("Mul", apart, apart), axes=[1])
    return at.body("Div", apart, at.body("Sqrt", at.body("Add", square, at.body.const(1e-3))))


def reduced(at: Looped, x: str) -> str:
    return at.body("Mul", x, at.body("ReduceSum", x, at.body.ints(1)))


def in_pieces(at: Looped, x: str) -> str:
    first, second = at.body.several("Split", [x, at.body.ints(1, 3)], 2, axis=-1)
    last = at.body("Slice", second, at.body.ints(2), at.body.ints(3), at.body.ints(1))
    middle = at.body("Gather", second, at.body.ints(1, 0), axis=1)
    whole = at.body("Concat", at.body("Exp", last), at.body("Tanh", first), middle, axis=-1)
    return at.body("Softsign", whole)


def reshaped(at: Looped, x: str) -> str:
    flat = at.body("Unsqueeze", x, at.body.ints(-1))
    turned = at.body("Transpose", flat, perm=[2, 0, 1])
    return at.body("Tanh", at.body("Squeeze", turned, at.body.ints(0)))


def halves(at: Looped, x: str) -> str:
    half = helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5])
    whole = at.body("ConstantOfShape", at.body("Shape", x), value=half)
    return at.body("Tanh", at.body("Add", at.body("Mul", x, whole), at.body("Sigmoid", "c")))


def zeros(at: Looped, x: str) -> str:
    return at.body("Add", at.body("ConstantOfShape", at.body("Shape", x)), x)


def of_rows(at: Looped, x: str) -> str:
    """Values without rows, combined with those that have them."""
    return at.body("Clip", at.body("Max", x, at.body.random(I)), at.body.const(-0.5), at.body.const(0.5))


@pytest.mark.parametrize(
    "ahead", [masked, dense, gemm, layer_norm, reduced, in_pieces, reshaped, of_rows, halves, zeros]
)
@forms
def test_what_needs_no_state_is_computed_before(ahead: Change, kind: str, open: bool, reverse: bool) -> None:
    Looped(kind, ahead, open=open, reverse=reverse).fused()


@forms
def test_values_that_stay_with_slices(kind: str, open: bool, reverse: bool) -> None:
    def joined(at: Looped, x: str) -> str:
        return at.body("Concat", at.body("Tanh", "c"), x, axis=1)

    Looped(kind, joined, open=open, reverse=reverse, width=2 * I).fused()


@pytest.mark.parametrize("reverse", [False, True])
def test_the_products_of_a_loop_say_how_wide_its_input_is(reverse: bool) -> None:
    looped = Looped("Loop", open=True, reverse=reverse)
    looped.net.inputs[0].type.tensor_type.shape.dim[2].dim_param = "N"
    _, search = looped.check()
    assert [(item.form, item.input_size) for item in search.fused] == [("loop", I)]


def test_a_reshape() -> None:
    def twice(at: Looped, x: str) -> str:
        pairs = at.body("Tanh", at.body("Reshape", x, at.body.ints(B, 2, -1)))
        return at.body("Softsign", at.body("Reshape", pairs, at.body.ints(-1, I)))

    Looped("Scan", twice).fused()


@forms
def test_scores_of_the_input(kind: str, open: bool, reverse: bool) -> None:
    """A score that is computed from x is computed before, and the products with x stay those of the node."""

    class Scored(Step):
        def __call__(self, net: Net, x: str, h: str) -> str:
            self.score = net("Softplus", net("MatMul", x, net.random(I, 1)))
            return super().__call__(net, x, h)

        def blend(self, net: Net, z: str, h: str, n: str) -> str:
            return blend(net, net("Mul", self.score, z), h, n)

    left, search = Looped(kind, open=open, reverse=reverse, step=Scored(I, H)).check()
    assert [(item.form, item.operator, item.input_size) for item in search.fused] == [("loop", "AUGRU", I)]
    assert not set(left) & set(LOOPS)


# Near misses


def test_a_mask_of_the_state_stays() -> None:
    Looped("Loop", of_h=lambda at, h: at.body("Mul", h, at.body.const(0.5))).left()
    Looped("Loop", of_h=lambda at, h: at.body("Mul", h, at.body.const([[1.0, 0.75]]))).left()


@forms
def test_sums_of_other_products(kind: str, open: bool, reverse: bool) -> None:
    """A node would multiply them by an identity, which the loop does without."""

    class Scaled(Step):
        def of_x(self, net: Net, gate: str, x: str) -> str:
            return net("Mul", net("Sigmoid", super().of_x(net, gate, x)), super().of_x(net, gate, x))

    (reason,) = Looped(kind, open=open, reverse=reverse, step=Scaled(I, H)).left()
    assert reason == "a term of a gate is not a product of one value with a constant"


def test_gates_that_are_given() -> None:
    class Given(Step):
        def of_x(self, net: Net, gate: str, x: str) -> str:
            first = "zrn".index(gate) * H
            return net("Slice", x, *(net.ints(place) for place in (first, first + H, 1)))

    (reason,) = reasons(one_step(Given(3 * H, H, after=True)).model())
    assert reason == "its gates use values without a matmul, so W would be an identity matrix"


@pytest.mark.parametrize("kind", LOOPS)
def test_what_needs_the_state_stays_in_the_loop(kind: str) -> None:
    def attended(at: Looped, x: str) -> str:
        return at.body("Mul", x, at.body("Sigmoid", at.body("MatMul", "h_old", at.body.random(H, I))))

    (reason,) = Looped(kind, attended).left()
    assert "the update gate is not a function of a sum of products with x and h" in reason


def test_the_number_of_an_iteration_stays_in_a_loop_of_open_length() -> None:
    def counted(at: Looped, x: str) -> str:
        return at.body("Mul", x, at.body("Cast", "i", to=TensorProto.FLOAT))

    (reason,) = Looped("Loop", counted, open=True).left()
    assert "'i' counts iterations, and their number is not fixed" in reason


def test_slices_in_another_order_stay() -> None:
    def fixed(at: Looped, x: str) -> str:
        before = at.body("Gather", "x", at.body("Sub", "i", at.body.const(1, "int64")), axis=0)
        return at.body("Mul", x, at.body("Sigmoid", before))

    (reason,) = Looped("Loop", fixed).left()
    assert "another order" in reason


@pytest.mark.parametrize("rank", [2, 3])
def test_ones_that_make_a_value_larger_are_not_nothing(rank: int) -> None:
    """One row times ones for several is several rows."""
    net = Net()
    net.input("x", "A", I, fill=1)
    net.input("h", "B", H, fill=3)
    net.input("m", *(1,) * (rank - 2), "B", I, fill=3)
    wide = net("Mul", "x", ones(net, "m"))
    wide = net("Squeeze", wide, net.ints(0)) if rank == 3 else wide
    net("Identity", Step(I, H)(net, wide, "h"), output="y")
    net.output("y", ("B", H))
    model, _ = check_fused(net.model(), net.feeds)
    assert directions(model) <= 1


@pytest.mark.parametrize("made", ["Expand", "Mul"])
def test_numbers_that_are_nearly_one_count(made: str) -> None:
    def scaled(at: Looped, x: str) -> str:
        number = at.body.const(1.001)
        return at.body(
            "Mul", x, at.body("Expand", number, at.body("Shape", x)) if made == "Expand" else number
        )

    Looped("Scan", scaled, open=True).fused()
    Looped("Scan", lambda at, x: scaled(at, at.body("Add", x, at.body.const(0.5)))).fused()
