"""Cells are recognised however they are written; near misses get a reason: a model for each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import numpy_helper

from tests.support.models.fusing import (
    BOUND,
    SIGMOID,
    TANH,
    Function,
    Net,
    Step,
    blend,
    by_onegru,
    by_onnxruntime,
    check_fused,
    directions,
    error,
    fused,
    one_step,
    plain,
    reasons,
)

pytest.importorskip("onnxruntime")

Blend = Callable[[Net, str, str, str], str]

# Cells


BLENDS: dict[str, Blend] = {
    "(1 - z)n + zh": blend,
    "n + z(h - n)": lambda net, z, h, n: net("Add", n, net("Mul", z, net("Sub", h, n))),
    "h - (1 - z)(h - n)": lambda net, z, h, n: net(
        "Sub", h, net("Mul", net("Sub", net.const(1.0), z), net("Sub", h, n))
    ),
    "h + (1 - z)(n - h)": lambda net, z, h, n: net(
        "Sum", h, net("Mul", net("Sub", net.const(1.0), z), net("Sub", n, h))
    ),
    "(1 - z)h + zn": lambda net, z, h, n: blend(net, z, n, h),
    "n - zn + zh": lambda net, z, h, n: net("Add", net("Sub", n, net("Mul", z, n)), net("Mul", z, h)),
    "-(z - 1)n - (-z)h": lambda net, z, h, n: net(
        "Sub",
        net("Neg", net("Mul", net("Sub", z, net.const(1.0)), n)),
        net("Mul", net("Neg", z), h),
    ),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", BLENDS)
def test_blends(name: str, after: bool) -> None:
    step = Step(after=after)
    step.blend = BLENDS[name]  # type: ignore[assignment,method-assign]
    net = one_step(step)
    model, search = check_fused(net.model(), net.feeds)
    (found,) = search.fused
    assert found.linear_before_reset == after
    assert (found.hidden_size, found.input_size, found.form, found.steps) == (2, 3, "cell", 1)
    assert directions(model) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_each_unit_may_have_its_own_sense_of_the_update_gate(after: bool) -> None:
    def sense(net: Net, z: str, h: str, n: str) -> str:
        kept = net("Add", net.const([0.0, 1.0]), net("Mul", net.const([1.0, -1.0]), z))
        return blend(net, kept, h, n)

    step = Step(after=after)
    step.blend = sense  # type: ignore[method-assign]
    net = one_step(step)
    _, search = check_fused(net.model(), net.feeds)
    assert [item.form for item in search.fused] == ["cell"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", [[0.0, 1.0], [0.0, 0.5], [1.0, 1.0]])
def test_a_unit_that_shares_its_state_by_other_numbers_is_no_gru(kept: list[float]) -> None:
    def blended(net: Net, z: str, h: str, n: str) -> str:
        return blend(net, net("Add", net.const(kept), net("Mul", net.const([1.0, 0.25]), z)), h, n)

    step = Step()
    step.blend = blended  # type: ignore[method-assign]
    assert len(reasons(one_step(step).model())) == 1


ACTIVATIONS = {
    "Sigmoid": plain("Sigmoid"),
    "Tanh": plain("Tanh"),
    "Relu": plain("Relu"),
    "Softsign": plain("Softsign"),
    "Softplus": plain("Softplus"),
    "Elu": plain("Elu", alpha=0.5),
    "LeakyRelu": plain("LeakyRelu", alpha=0.1),
    "ThresholdedRelu": plain("ThresholdedRelu", alpha=0.3),
    "HardSigmoid": plain("HardSigmoid", alpha=0.25, beta=0.5),
    "ScaledTanh": lambda net, x: net("Mul", net.const(1.5), net("Tanh", net("Mul", net.const(0.5), x))),
    "Affine": lambda net, x: net("Add", net.const(0.25), net("Mul", net.const(0.5), x)),
}


@pytest.mark.parametrize("f", ACTIVATIONS)
@pytest.mark.parametrize("g", ["Tanh", "Relu", "Softsign", "Affine", "ScaledTanh"])
def test_activations(f: str, g: str) -> None:
    net = one_step(Step(after=True, f=ACTIVATIONS[f], g=ACTIVATIONS[g]))
    _, search = check_fused(net.model(), net.feeds)
    (found,) = search.fused
    assert [name.partition("(")[0] for name in found.activations] == [f, g]


def test_clip() -> None:
    def clipped(kind: str) -> Callable[[Net, str], str]:
        return lambda net, x: net(kind, net.clip(x, -0.5, 0.5))

    net = one_step(Step(f=clipped("Sigmoid"), g=clipped("Tanh")))
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1
    (node,) = (node for node in model.graph.node if node.op_type == "GRU")
    assert [item.f for item in node.attribute if item.name == "clip"] == [0.5]


@pytest.mark.parametrize("kind", ["openvino", "dien"])
@pytest.mark.parametrize("keeps", [False, True], ids=["1-a", "a"])
def test_attention(keeps: bool, kind: str) -> None:
    step = Step()
    net = Net()
    x, h, a = net.input("x", "B", 3), net.input("h", "B", 2), net.input("a", "B", 1)

    def scaled(net: Net, z: str, h: str, n: str) -> str:
        if kind == "dien":  # z' = 1 - a·(1 - z)
            factor = net("Sub", net.const(1.0), a) if keeps else a
            share = net("Mul", factor, net("Sub", net.const(1.0), z))
            return net("Add", net("Mul", net("Sub", net.const(1.0), share), h), net("Mul", share, n))
        factor = a if keeps else net("Sub", net.const(1.0), a)
        return blend(net, net("Mul", factor, z), h, n)

    step.blend = scaled  # type: ignore[method-assign]
    net("Identity", step(net, x, h), output="y")
    net.output("y", ("B", 2))
    model, search = check_fused(net.model(), net.feeds)
    assert [found.operator for found in search.fused] == ["AUGRU"]
    (node,) = (node for node in model.graph.node if node.op_type == "AUGRU")
    words = [item.s.decode() for item in node.attribute if item.name == "attention"]
    assert words == ([] if kind == "openvino" else [kind])


@pytest.mark.parametrize("form", ["MatMul", "Gemm", "Gemm, transposed", "of columns"])
def test_an_input_of_open_width(form: str) -> None:
    """W says how wide it is."""

    class Formed(Step):
        def of_x(self, net: Net, gate: str, x: str) -> str:
            if form == "MatMul":
                return super().of_x(net, gate, x)
            if form == "of columns":
                product = net("MatMul", net.random(self.H, self.I), "turned")
                return net("Transpose", product, perm=[1, 0])
            is_turned = form == "Gemm, transposed"
            shape = (self.H, self.I) if is_turned else (self.I, self.H)
            return net("Gemm", x, net.random(*shape), transB=int(is_turned))

    net = Net()
    net.input("x", "B", "N", fill=3)
    net.feeds["x"] = net.feeds["x"][:2]
    net("Transpose", "x", output="turned", perm=[1, 0])
    net("Identity", Formed()(net, "x", net.input("h", "B", 2)), output="y")
    net.output("y", ("B", 2))
    _, search = check_fused(net.model(), net.feeds)
    assert [(found.input_size, found.hidden_size) for found in search.fused] == [(3, 2)]


@pytest.mark.parametrize(("size", "others"), [("B", False), (2, False), ("B", True)])
def test_products_with_all_steps_as_rows(size: str | int, others: bool) -> None:
    """They are those of one step, unless they come back as other rows than they went."""

    class Flat(Step):
        def of_x(self, net: Net, gate: str, x: str) -> str:
            rows = net("MatMul", net("Reshape", x, net.ints(-1, self.I)), net.random(self.I, self.H))
            apart = net("Reshape", rows, net.ints(*((2, -1) if others else (-1, 4)), self.H))
            return net("Gather", apart, net.const(3 if not others else 1, "int64"), axis=int(not others))

    net = Net()
    step = Flat()(net, net.input("x", size, 4, 3), net.input("h", 4 if others else size, 2))
    net("Identity", step, output="y")
    net.output("y", (4 if others else size, 2))
    _, search = check_fused(net.model(), net.feeds)
    assert [(found.input_size, found.hidden_size) for found in search.fused] == ([] if others else [(3, 2)])
    assert bool(search.near_misses) == others


# Reasons


class Odd(Step):
    """A step in which a product or the blend is another."""

    def __init__(self, after: bool = False, **parts: Callable[..., str]) -> None:
        super().__init__(after=after)
        for name, part in parts.items():
            setattr(self, name, part)


def other_gate(function: Callable[[Net, str], str]) -> Step:
    step = Step()
    step.r = function
    return step


def clips(low: float, high: float, kind: str) -> Callable[[Net, str], str]:
    return lambda net, x: net(kind, net.clip(x, low, high))


def with_square(net: Net, gate: str, h: str) -> str:
    """h∘h added to the product."""
    return net("Add", net("MatMul", h, net.random(2, 2)), net("Mul", h, h))


class TwoResets(Step):
    """Two products, each with its own reset gate."""

    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        other = self.gate(net, "q", x, h, SIGMOID)
        first = net("Mul", r, self.of_h(net, "n", h))
        second = net("Mul", other, self.of_h(net, "m", h))
        return self.g(net, net("Add", self.of_x(net, "n", x), net("Add", first, second)))


class TwoResetsBefore(Step):
    """The same, with each reset gate before its product."""

    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        other = self.gate(net, "q", x, h, SIGMOID)
        first = self.of_h(net, "n", net("Mul", r, h))
        second = self.of_h(net, "m", net("Mul", other, h))
        return self.g(net, net("Add", self.of_x(net, "n", x), net("Add", first, second)))


class NoReset(Step):
    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        return self.g(net, net("Add", self.of_x(net, "n", x), self.of_h(net, "n", h)))


class NoState(Step):
    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        return self.g(net, self.of_x(net, "n", x))


class AlsoWithoutReset(Step):
    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        total = net("Add", self.of_x(net, "n", x), self.of_h(net, "n", net("Mul", r, h)))
        return self.g(net, net("Add", total, self.of_h(net, "m", h)))


class AlsoOutside(Step):
    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        total = net("Add", self.of_x(net, "n", x), net("Mul", r, self.of_h(net, "n", h)))
        return self.g(net, net("Add", total, net("Mul", h, h)))


class SquareInCandidate(Step):
    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        total = net("Add", self.of_x(net, "n", x), self.of_h(net, "n", net("Mul", r, h)))
        return self.g(net, net("Add", total, net("Mul", h, net("Mul", h, h))))


class ResetOfSum(Step):
    """The product is with r∘h + 1/2·h∘h."""

    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        inner = net("Mul", net("Mul", r, h), h)
        return self.g(net, net("Add", self.of_x(net, "n", x), self.of_h(net, "n", inner)))


class NoInput(Step):
    def of_x(self, net: Net, gate: str, x: str) -> str:
        return net.random(1, self.H)


class ConstantReset(Step):
    """The reset gate depends only on x."""

    def __call__(self, net: Net, x: str, h: str) -> str:
        z = self.gate(net, "z", x, h, self.f)
        r = net("Sigmoid", self.of_x(net, "r", x))
        return self.blend(net, z, h, self.candidate(net, x, h, r))


class ProductOfInputs(Step):
    """x∘x in a gate."""

    def of_x(self, net: Net, gate: str, x: str) -> str:
        first = net("MatMul", x, self.weight(net, f"W{gate}", self.I, self.H))
        return net("Mul", first, first)


MISSES = {
    "its gates are Sigmoid and Tanh; must be the same function": other_gate(TANH),
    "its ThresholdedRelu is clipped at its threshold": Step(
        after=True, f=clips(-0.5, 0.5, "Sigmoid"), g=lambda net, x: net(
            "ThresholdedRelu", net.clip(x, -0.5, 0.5), alpha=0.5
        )
    ),
    "its activations have different clip values": Step(f=clips(-1, 1, "Sigmoid"), g=clips(-2, 2, "Tanh")),
    "the term added to the old state is not (1 - z) times one candidate": Odd(
        blend=lambda net, z, h, n: net("Add", net("Mul", z, h), n)
    ),
    "it squares its old state": Odd(
        blend=lambda net, z, h, n: blend(net, z, net("Mul", h, h), n)
    ),
    "it squares its old state ": Odd(
        blend=lambda net, z, h, n: net("Add", blend(net, z, h, n), net("Mul", z, net("Mul", h, h)))
    ),
    "its update gate is not one of the activations of a GRU": Step(f=plain("Exp")),
    "the candidate is not one of the activations of a GRU": Step(g=plain("Exp")),
    "the update gate is not a function of a sum of products with x and h": Odd(of_h=with_square),
    "the candidate's matmul is not with r∘h": TwoResetsBefore(),
    "the candidate is not a function of a sum of products with x and r∘h": SquareInCandidate(),
    "its candidate uses the state without a reset gate": AlsoWithoutReset(),
    "its candidate uses the state without a reset gate ": NoReset(),
    "its candidate does not use the state": NoState(),
    "the reset gate is not one of the activations of a GRU": other_gate(plain("Exp")),
    "matmuls with h have different reset gates": TwoResets(),
    "its reset gate does not depend on the state": ConstantReset(after=True),
    "its candidate uses the state outside the reset gate's matmul": AlsoOutside(),
    "a term of a gate is not a product of one value with a constant": ProductOfInputs(),
    "it has no input x": NoInput(),
}  # fmt: skip


@pytest.mark.parametrize("reason", MISSES)
def test_reasons(reason: str) -> None:
    net = one_step(MISSES[reason])
    assert reason.strip() in reasons(net.model())


def test_the_product_is_only_with_r_h() -> None:
    assert reasons(one_step(ResetOfSum()).model()) == {"the candidate's matmul is not with r∘h"}


@pytest.mark.parametrize("gate", ["z", "r", "n"])
def test_what_others_take_is_not_fused(gate: str) -> None:
    class Shown(Step):
        def gate(self, net: Net, name: str, x: str, h: str, function: Callable[[Net, str], str]) -> str:
            value = super().gate(net, name, x, h, function)
            return net("Identity", value, output="shown") if name == gate else value

        def candidate(self, net: Net, x: str, h: str, r: str) -> str:
            value = super().candidate(net, x, h, r)
            return net("Identity", value, output="shown") if gate == "n" else value

    net = one_step(Shown())
    net.output("shown", ("B", 2))
    (reason,) = reasons(net.model())
    assert "its inner value" in reason and "is also" in reason


def test_models_without_recurrences_have_no_near_misses() -> None:
    net = Net()
    x = net.input("x", "B", 3)
    net("Add", net("MatMul", x, net.random(3, 3)), net("Mul", x, x), output="y")
    net.output("y", ("B", 3))
    model, search = fused(net.model())
    assert not search.fused and not search.near_misses and model == net.model()


def test_parameters() -> None:
    step = Step(after=True)
    net = one_step(step)
    arrays = {item.name: np.frombuffer(item.raw_data, np.float32) for item in net.initializers}
    model, _ = fused(net.model())
    found = {item.name: np.frombuffer(item.raw_data, np.float32) for item in model.graph.initializer}
    (node,) = (node for node in model.graph.node if node.op_type == "GRU")
    W, R, B = (found[name] for name in node.input[1:4])
    weights = {key: arrays[name] for key, name in step.weights.items()}
    for number, gate in enumerate("zrn"):
        rows = slice(number * 2, number * 2 + 2)
        np.testing.assert_array_equal(W.reshape(6, 3)[rows], weights[f"W{gate}"].reshape(3, 2).T)
        np.testing.assert_array_equal(R.reshape(6, 2)[rows], weights[f"R{gate}"].reshape(2, 2).T)
        np.testing.assert_array_equal(B[rows], weights[f"b{gate}"])
    np.testing.assert_array_equal(B[10:], weights["Rbn"])


def clipped(bound: float, kind: str) -> Callable[[Net, str], str]:
    return lambda net, x: net(kind, net.clip(x, -bound, bound))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", [0.37, 0.375])
@pytest.mark.parametrize("what", ["clip", "ScaledTanh", "HardSigmoid", "LeakyRelu"])
def test_numbers_that_float32_does_not_hold(what: str, number: float, dtype: str) -> None:
    """Those of a node are float32: a model in float64 is fused only where they are not rounded."""
    step = {
        "clip": lambda: Step(f=clipped(number, "Sigmoid"), g=clipped(number, "Tanh")),
        "ScaledTanh": lambda: Step(
            g=lambda net, x: net("Mul", net.const(number), net("Tanh", net("Mul", net.const(2 / 3), x)))
        ),
        "HardSigmoid": lambda: Step(
            f=lambda net, x: net.clip(net("Add", net("Mul", x, net.const(number)), net.const(0.5)), 0, 1)
        ),
        "LeakyRelu": lambda: Step(
            g=lambda net, x: net("Where", net("Less", x, net.const(0.0)), net("Mul", x, net.const(number)), x)
        ),
    }[what]()
    net = one_step(step, dtype=dtype)
    model, search = fused(net.model())
    expected = by_onnxruntime(net.model(), net.feeds)
    assert error(by_onegru(model, net.feeds), expected) <= (1e-14 if dtype == "float64" else BOUND)
    is_rounded = dtype == "float64" and number == 0.37 and what != "HardSigmoid"  # which weights take up
    assert len(search.fused) == (not is_rounded)
    assert [f"{number!r} of its activations" in miss.reason for miss in search.near_misses] == [
        True
    ] * is_rounded


def times(number: float, function: Function) -> Function:
    return lambda net, x: net("Mul", net.const(number), function(net, x))


NEARLY: dict[str, tuple[Callable[[float], Step], str]] = {
    "update gate": (lambda k: Step(f=times(k, SIGMOID)), "its update gate is {} times Sigmoid"),
    "candidate": (lambda k: Step(g=times(k, TANH)), "{} of its activations is not a float32 number"),
    "1 - z": (
        lambda k: Odd(
            blend=lambda net, z, h, n: net(
                "Add", net("Mul", net("Sub", net.const(k), z), n), net("Mul", z, h)
            )
        ),
        "the term added to the old state is not (1 - z) times one candidate",
    ),
    "1 + e^-x": (
        lambda k: Step(
            f=lambda net, x: net("Reciprocal", net("Add", net.const(k), net("Exp", net("Neg", x))))
        ),
        "its update gate is {} times Sigmoid",
    ),
    "x / (1 + |x|)": (
        lambda k: Step(g=lambda net, x: net("Div", x, net("Add", net.const(k), net("Abs", x)))),
        "the candidate is not a function of a sum of products with x and r∘h",
    ),
    "2σ - 1": (
        lambda k: Step(g=lambda net, x: net("Sub", times(2 * k, SIGMOID)(net, x), net.const(1.0))),
        "the candidate is not one of the activations of a GRU",
    ),
    "one bound": (
        lambda k: Step(f=clips(-0.5, 0.5 * k, "Sigmoid"), g=clips(-0.5, 0.5 * k, "Tanh")),
        "the update gate is not a function of a sum of products with x and h",
    ),
    "bounds of the reset gate": (
        lambda k: other_gate(clips(-k, k, "Sigmoid")),
        "its activations have different clip values",
    ),
}


@pytest.mark.parametrize("by", [1e-7, 1e-12])
@pytest.mark.parametrize("what", NEARLY)
def test_numbers_that_are_nearly_those_of_a_gru(what: str, by: float) -> None:
    """In float64 they are no roundings."""
    make, reason = NEARLY[what]
    _, search = fused(one_step(make(1 + by), dtype="float64").model())
    assert not search.fused and not search.refuted
    number = 1 / (1 + by) if "e^-x" in what else 1 + by
    assert [reason.format(f"{number:.15g}") in miss.reason for miss in search.near_misses] == [True]


def test_a_factor_that_float32_rounds_to_one() -> None:
    _, search = fused(one_step(Step(f=times(1 + 1e-7, SIGMOID))).model())
    assert len(search.fused) == 1


def two_steps(key: str, by: float, dtype: str, *, of: float | None = None) -> Net:
    """Two steps in a row, the second with one weight, `of` for one drawn, that is larger by a part of it."""
    net = Net(dtype=dtype)
    X, h = net.input("X", 2, "B", 3), net.input("h", "B", 2)
    first = Step(after=True)
    h = first(net, net("Gather", X, net.const(0, "int64"), axis=0), h)
    second = Step(after=True)
    second.weights = dict(first.weights)
    (tensor,) = (item for item in net.initializers if item.name == first.weights[key])
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = of or array.flat[0]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    array.flat[0] *= 1 + by
    second.weights[key] = net.const(array)
    h = second(net, net("Gather", X, net.const(1, "int64"), axis=0), h)
    net("Identity", h, output="y")
    net.output("y", ("B", 2))
    return net


@pytest.mark.parametrize("key", ["Wz", "Rr", "Rn", "bz", "Rbn"])
def test_steps_of_nearly_the_same_weights(key: str) -> None:
    """Rounding explains a difference of 1e-15 in float64, and one of 1e-8 in float32."""
    for dtype, by, is_chain in (
        ("float64", 1e-7, False),
        ("float64", 1e-12, False),
        ("float64", 1e-15, True),
        ("float32", 1e-8, True),
        ("float32", 1e-5, False),
    ):
        net = two_steps(key, by, dtype)
        model, search = fused(net.model())
        assert [item.steps for item in search.fused] == ([2] if is_chain else [1, 1]), (dtype, by)
        expected = by_onnxruntime(net.model(), net.feeds)
        assert error(by_onegru(model, net.feeds), expected) <= (1e-14 if dtype == "float64" else BOUND)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_are_compared_by_their_own_size(dtype: str) -> None:
    """Inputs may be as large as weights are small."""
    for by, steps in ((0.5, [1, 1]), (0.0, [2])):
        _, search = fused(two_steps("Wz", by, dtype, of=1e-16).model())
        assert [item.steps for item in search.fused] == steps


@pytest.mark.parametrize("kind", ["HardSigmoid", "LeakyRelu"])
def test_defaults_of_operators_are_float32(kind: str) -> None:
    step = Step(f=plain(kind)) if kind == "HardSigmoid" else Step(g=plain(kind))
    _, search = fused(one_step(step, dtype="float64").model())
    assert len(search.fused) == 1 and not search.near_misses


@pytest.mark.parametrize("alpha", [0.2, 0.2 + 1e-9])
def test_a_slope_of_0_2_in_float64_goes_to_the_weights(alpha: float) -> None:
    """It is not the default of HardSigmoid, which is a float32 number."""

    def hard_sigmoid(net: Net, x: str) -> str:
        return net.clip(net("Add", net("Mul", x, net.const(alpha)), net.const(0.5)), 0, 1)

    step = Step(after=True, f=hard_sigmoid)
    step.r = plain("HardSigmoid")
    net = one_step(step, dtype="float64")
    _, search = fused(net.model())
    assert len(search.fused) == 1 and not search.near_misses
    # Where a bound comes before the slope, no weight takes it up.
    step = Step(
        after=True, f=lambda net, x: hard_sigmoid(net, net.clip(x, -0.5, 0.5)), g=clipped(0.5, "Tanh")
    )
    _, search = fused(one_step(step, dtype="float64").model())
    assert not search.fused
    assert [f"{alpha!r} of its activations" in miss.reason for miss in search.near_misses] == [True]
