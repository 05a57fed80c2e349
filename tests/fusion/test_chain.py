"""Unrolled layers of Keras with a mask: each step passes on its state, and its output as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.test_whole import BOUND, chosen
from tests.support.models.fusing import Net, Step, check_fused, directions

pytest.importorskip("onnxruntime")

T, I, H = 4, 3, 2


def unrolled(start: float, *, state_first: bool, after: bool) -> Net:
    """A layer of T steps whose outputs are all used; the outputs begin with this number."""
    net, step = Net(), Step(I, H, after=after)
    net.input("x", "rows", T, I)
    net.input("on", "rows", T, 1, dtype="bool")
    shape = net("Concat", net("Shape", "x", start=0, end=1), net.ints(H), axis=0)
    state = net("Expand", net.const([[0.0]]), shape)
    output = net("Expand", net.const([[start]]), shape)
    outputs = []
    for t in range(T):
        x, on = (net("Gather", name, net.const(t, "int64"), axis=1) for name in ("x", "on"))
        on = net("Tile", on, net.ints(1, H))
        new = step(net, x, state)
        if state_first:
            state, output = chosen(net, on, new, state), chosen(net, on, new, output)
        else:
            output, state = chosen(net, on, new, output), chosen(net, on, new, state)
        outputs.append(net.unsqueeze(output, 1))
    net("Concat", *outputs, axis=1, output="y")
    net.output("y", ("rows", T, H))
    return net


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    on = rng.random((5, T, 1)) < 0.6
    on[0] = False
    return {"x": rng.standard_normal((5, T, I)).astype(np.float32), "on": on}


@pytest.mark.parametrize("state_first", [False, True])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_outputs_that_are_held_are_the_states(state_first: bool, after: bool) -> None:
    net = unrolled(0.0, state_first=state_first, after=after)
    model, search = check_fused(net.model(), feeds(), BOUND)
    assert [(item.form, item.steps, item.masked) for item in search.fused] == [("chain", T, True)]
    assert directions(model) == 1 and not search.near_misses and len(model.graph.node) < 20


def test_outputs_that_begin_with_another_number_are_no_states() -> None:
    net = unrolled(1.0, state_first=True, after=True)
    _, search = check_fused(net.model(), feeds(), BOUND)
    assert [(item.form, item.steps) for item in search.fused] == [("chain", T - 1), ("cell", 1)]
    assert [item.reason for item in search.near_misses] == [
        "the term added to the old state is not (1 - z) times one candidate"
    ] * T
