"""A GRU with one value perturbed, at any step and in any gate, is fused only where that changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fusion.near_misses import check, of_seed
from tests.support.decomposed.perturbed import draw_perturbed
from tests.support.models.fusing import SIGMOID, TANH, Function, Net, Step, check_fused, fused, one_step

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("seed", range(6))
def test_drawn_near_misses(seed: int) -> None:
    rng = np.random.default_rng(8000 + seed)
    found = [check(draw_perturbed(rng)) for _ in range(15)]
    assert not [fault for fault, _ in found if fault]
    assert any(is_fused for _, is_fused in found)


@pytest.mark.parametrize("seed", [853, 965, 6383, 12059, 13922])
def test_rounding_and_overflow_are_no_difference(seed: int) -> None:
    """In these draws, terms cancel, large values come before small ones, or an exponential overflows."""
    assert of_seed(seed)[1:] in {("fused, the same outputs", ""), ("refused by ONNX Runtime", "")}


def perturbed(function: Function, kind: str, *bounds: float) -> Function:
    """A function of what is perturbed before."""
    return lambda net, value: function(net, net(kind, value, *map(net.const, bounds)))


PERTURBATIONS = [
    ("Min", 1.5),
    ("Min", 3.0),
    ("Max", -0.45),
    ("Max", -2.0),
    ("Abs",),
    ("Relu",),
    ("Clip", -1.0, 2.0),
]


def from_zeros(after: bool, gate: str, at: int, kind: str, *bounds: float) -> Net:
    """Three steps from zeros; one is perturbed in one gate."""
    net = Net()
    X, h = net.input("X", 3, 40, 3), net.const(np.zeros((1, 2)))
    step, other = Step(after=after), Step(after=after)
    other.weights = step.weights
    match gate:
        case "z":
            other.f = perturbed(SIGMOID, kind, *bounds)
        case "r":
            other.r = perturbed(SIGMOID, kind, *bounds)
        case "n":
            other.g = perturbed(TANH, kind, *bounds)
    for t in range(3):
        h = (other if t == at else step)(net, net("Gather", X, net.const(t, "int64"), axis=0), h)
    net("Identity", h, output="y")
    net.output("y", (40, 2))
    return net


@pytest.mark.parametrize("perturbation", PERTURBATIONS, ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_step_from_zeros_counts(after: bool, perturbation: tuple[str, *tuple[float, ...]]) -> None:
    for gate in "zrn":
        for at in range(3):
            net = from_zeros(after, gate, at, *perturbation)
            X = (
                np.random.default_rng(at).standard_normal((3, 40, 3))
                * 10.0 ** np.linspace(-1, 1, 40)[:, None]
            )
            _, search = check_fused(net.model(), {"X": X.astype("float32")})
            assert not search.refuted
            is_felt = (gate, after, at) != ("r", False, 0)  # r∘0 is 0, however r is perturbed
            assert (3 in [item.steps for item in search.fused]) != is_felt


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_first_step_from_zeros_is_part_of_its_chain(after: bool) -> None:
    net = from_zeros(after, "", 0, "")
    _, search = check_fused(net.model(), net.feeds)
    assert [(item.form, item.steps) for item in search.fused] == [("chain", 3)]


@pytest.mark.parametrize("gate", ["z", "r", "n"])
def test_multiples_of_an_activation(gate: str) -> None:
    """A multiple of the reset gate goes into R; there is no GRU whose other gates are multiples."""

    def multiple(net: Net, value: str) -> str:
        total = net("Add", net("Exp", net("Neg", value)), net.const(1.05))
        return net("Div", net.const(1.0), total)

    step = Step(after=True, g=SIGMOID)
    for name in {"z": ("f", "r"), "r": ("r",), "n": ("g",)}[gate]:
        setattr(step, name, multiple)
    step.r = multiple if gate == "r" else SIGMOID
    net = one_step(step)
    _, search = fused(net.model())
    assert not search.refuted
    assert bool(search.fused) == (gate == "r")
    if gate != "r":
        (miss,) = search.near_misses
        assert "is 0.95238099563149 times Sigmoid" in miss.reason
    else:
        check_fused(net.model(), net.feeds)
        assert search.fused[0].input_dependent == search.fused[0].outputs


@pytest.mark.parametrize("kind", ["Min", "Max"])
def test_a_bound_on_one_side_is_no_clip(kind: str) -> None:
    """One gate bounded above or below only, the others on both sides."""

    def clipped(function: Function) -> Function:
        return lambda net, value: function(net, net.clip(value, -0.75, 0.75))

    step = Step(f=clipped(SIGMOID), g=clipped(TANH))
    step.f = perturbed(SIGMOID, kind, 0.75 if kind == "Min" else -0.75)
    step.r = clipped(SIGMOID)
    _, search = fused(one_step(step).model())
    assert not search.fused and not search.refuted
