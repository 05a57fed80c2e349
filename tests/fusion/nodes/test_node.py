"""What steps take besides x: a number of each step for all rows, and infinity in one gate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

import onegru
from tests.support.models.fusing import (
    LOOPS,
    TANH,
    Net,
    Step,
    blend,
    by_onnxruntime,
    check_fused,
    fused,
    kinds,
    plain,
)

pytest.importorskip("onnxruntime")

I, H, T, B = 3, 2, 6, 3


class Adding(Step):
    """A step that adds a value to one gate, or does something after its blend."""

    def __init__(
        self,
        gate: str = "",
        value: Callable[[Net], str] = lambda net: "n_t",
        after: Callable[[Net, str], str] = lambda net, new: new,
        candidate: Callable[[Net, str], str] = TANH,
    ) -> None:
        super().__init__(I, H, after=True, g=candidate)
        self.adds_to, self.value, self.end = gate, value, after

    def bias(self, net: Net, gate: str) -> str:
        bias = super().bias(net, gate)
        return net("Add", bias, self.value(net)) if gate == self.adds_to else bias

    def blend(self, net: Net, z: str, h: str, n: str) -> str:
        return self.end(net, blend(net, z, h, n))


def scanned(step: Step, sizes: tuple[int | str, ...], rows: int | str = "B") -> Net:
    """A Scan over x, and over n of these sizes for each step."""
    net, body = Net(), Net(seed=1)
    body.prefix = "b"
    net.input("x", "T", rows, I)
    net.input("n", "T", *sizes)
    net.input("h", rows, H, fill=B)
    rng = np.random.default_rng(0)
    count = [B if isinstance(size, str) else size for size in sizes]
    net.feeds["x"] = rng.standard_normal((T, B, I)).astype(np.float32)
    net.feeds["n"] = np.broadcast_to(np.arange(T).reshape(T, *[1] * len(sizes)), (T, *count)).astype(
        np.float32
    )
    for name, shape in (("h_old", [rows, H]), ("x_t", [rows, I]), ("n_t", sizes)):
        body.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    body("Identity", step(body, "x_t", "h_old"), output="h_new")
    body("Identity", "h_new", output="h_kept")
    for name in ("h_new", "h_kept"):
        body.output(name, (rows, H))
    net.nodes.append(
        helper.make_node("Scan", ["h", "x", "n"], ["y", "Y"], num_scan_inputs=2, body=body.graph("body"))
    )
    net.output("y", (rows, H))
    net.output("Y", ("T", rows, H))
    return net


def late(net: Net) -> str:
    return net("Greater", "n_t", net.const(2.0))


STEPS = {
    "a number": lambda: Adding("z"),
    "a choice": lambda: Adding("z", lambda net: net("Where", late(net), net.const(2.0), net.const(0.0))),
    "a mask": lambda: Adding(after=lambda net, new: net("Where", late(net), "h_old", new)),
}


@pytest.mark.parametrize("rows", [B, "B"])
@pytest.mark.parametrize("sizes", [(), (1,), (1, 1)])
@pytest.mark.parametrize("kind", STEPS)
def test_one_number_of_each_step_is_for_all_rows(kind: str, sizes: tuple[int, ...], rows: int | str) -> None:
    net = scanned(STEPS[kind](), sizes, rows)
    model, search = check_fused(net.model(), net.feeds)
    assert [item.form for item in search.fused] == ["loop"] and not search.near_misses
    assert not set(kinds(model)) & set(LOOPS)


@pytest.mark.parametrize("sizes", [(), ("B", 1), ("B", H)])
@pytest.mark.parametrize("gate", "zrn")
@pytest.mark.parametrize("number", [np.inf, -np.inf])
def test_infinity_in_one_gate_leaves_the_others(
    number: float, gate: str, sizes: tuple[int | str, ...]
) -> None:
    """A gate is forced by a mask of infinity, for which the other gates have weights of 0."""
    net = scanned(Adding(gate), sizes)
    model, search = fused(net.model())
    assert [item.form for item in search.fused] == ["loop"] and not search.near_misses
    for steps in ([1], [0, 2, 3], list(range(T))):
        n = np.zeros_like(net.feeds["n"])
        n[steps] = number
        if sizes == ("B", H):
            n[:, 0] = 0
            n[:, :, 0] = 0
        feeds = {**net.feeds, "n": n}
        expected = by_onnxruntime(net.model(), feeds)
        assert np.isfinite(expected["Y"]).all()
        found = onegru.load(model.SerializeToString()).run(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(np.asarray(found[name]), array, atol=1e-6)


def test_a_value_that_all_gates_take_is_given_as_it_is() -> None:
    class Wide(Step):
        def of_x(self, net: Net, gate: str, x: str) -> str:
            return net("Add", super().of_x(net, gate, x), net("MatMul", "n_t", net.random(2, H)))

    net = scanned(Wide(I, H), ("B", 2))
    model, search = check_fused(net.model(), net.feeds)
    assert [item.input_size for item in search.fused] == [I + 2]
    assert not {"Min", "Max"} & set(kinds(model))


def test_a_candidate_without_bounds_takes_what_others_do_not() -> None:
    net = scanned(Adding("n", candidate=plain("Relu")), ("B", 1))
    _, search = check_fused(net.model(), net.feeds)
    assert [item.form for item in search.fused] == ["loop"]
