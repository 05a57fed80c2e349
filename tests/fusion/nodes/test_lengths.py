"""Masks that say lengths become sequence_lens, and others switch steps off by the update gate."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.models.fusing import Net, Step, check_fused, directions, fused, kinds, reasons

pytest.importorskip("onnxruntime")

T, B, I, H = 4, 3, 3, 2
COMPARISONS = ["Less", "Greater", "Not GreaterOrEqual", "LessOrEqual"]


def masked_loop(
    kind: str,
    *,
    f: str = "Sigmoid",
    start: str = "zero",
    shift: int = 0,
    by_mask: bool = False,
    opset: int = 17,
) -> Net:
    """The last state of a Loop whose steps are off past the lengths n."""
    net, body = Net(opset), Net(opset)
    body.prefix = "b"
    net.input("x", T, B, I)
    body.inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("h_old", TensorProto.FLOAT, [B, H]),
    ]
    if by_mask:
        net.input("m", T, B, dtype="bool")
        on = body("Unsqueeze", body("Gather", "m", "i", axis=0), body.ints(1))
    else:
        net.input("n", B, dtype="int64")
        column = net("Reshape", "n", net.ints(B, 1))
        t = body("Add", "i", body.const(shift, "int64")) if shift else "i"
        names = [column, t] if kind == "Greater" else [t, column]
        on = body(kind.split()[-1], *names)
        on = body("Not", on) if kind.startswith("Not") else on
    step = Step(after=True, f=lambda net, x: net(f, x))
    new = step(body, body("Gather", "x", "i", axis=0), "h_old")
    body("Where", on, new, "h_old", output="h_new")
    body("Identity", "go", output="on")
    body.output("on", (), "bool")
    body.output("h_new", (B, H))
    state = net.input("h", B, H) if start == "h" else net("Expand", net.const([[0.0]]), net.ints(B, H))
    trips, go = net.const(T, "int64"), net.const(True, "bool")
    net("Loop", trips, go, state, output="y", body=body.graph("body"))
    net.output("y", (B, H))
    return net


def has_lengths(net: Net, given: list[int]) -> bool:
    model, search = check_fused(net.model(), {**net.feeds, "n": np.array(given)})
    assert not search.near_misses and "Loop" not in kinds(model) and search.fused[0].masked
    (node,) = (node for node in model.graph.node if node.op_type == "GRU")
    return len(node.input) > 4 and bool(node.input[4])


@pytest.mark.parametrize("given", [[4, 2, 1], [0, 3, 4], [9, -2, 0]])
@pytest.mark.parametrize("kind", COMPARISONS)
def test_lengths(kind: str, given: list[int]) -> None:
    # t <= n - 1 is written as t + 1 <= n.
    net = masked_loop(kind, shift=1 if kind == "LessOrEqual" else 0)
    assert has_lengths(net, given)


@pytest.mark.parametrize("opset", [9, 11])
def test_opsets_without_a_maximum_of_integers(opset: int) -> None:
    assert has_lengths(masked_loop("Less", opset=opset), [9, -2, 3])


def test_opsets_without_what_a_mask_takes() -> None:
    model, search = fused(masked_loop("Less", start="h", opset=8).model())
    assert not search.fused and "Loop" in kinds(model)
    assert "opset 8 has no" in " ".join(item.reason for item in search.near_misses)


@pytest.mark.parametrize("shift", [1, -1])
def test_lengths_that_are_shifted_are_masks(shift: int) -> None:
    """They say something else, whichever way it is expressed."""
    net = masked_loop("Less", shift=shift)
    found = [
        check_fused(net.model(), {**net.feeds, "n": np.array(given)}) for given in ([4, 2, 1], [0, 3, 4])
    ]
    model, _ = found[0]
    assert not any(
        node.op_type == "GRU" and len(node.input) > 4 and node.input[4] for node in model.graph.node
    )


def test_an_initial_state_needs_the_update_gate() -> None:
    """sequence_lens makes the last state of a row without steps zero, whatever it began with."""
    assert not has_lengths(masked_loop("Less", start="h"), [4, 0, 1])


def test_masks() -> None:
    net = masked_loop("", by_mask=True, start="h")
    model, search = check_fused(net.model(), net.feeds)
    assert directions(model) == 1 and search.fused[0].masked
    assert "Loop" not in kinds(model)


def test_an_update_gate_that_does_not_saturate() -> None:
    net = masked_loop("", by_mask=True, f="Softplus")
    assert reasons(net.model()) == {"masks steps, but its update gate cannot become 1"}
    assert has_lengths(masked_loop("Less", f="Softplus"), [4, 2, 0])  # which sequence_lens can
