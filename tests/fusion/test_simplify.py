"""Chains, stacks of their states, reversals, lengths, and the two directions of one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from tests.support.models.fusing import Net, Step, check_fused, directions, kinds

pytest.importorskip("onnxruntime")

T, B, I, H = 4, 2, 3, 2


def steps(
    net: Net, step: Step, order: Sequence[int], *, h: str = "", lengths: str = "", zero: bool = False
) -> tuple[dict[int, str], str]:
    """A chain over x, [T, B, I]; its outputs by their places in time, and its last state."""
    state = h or net.const(np.zeros((B, H)))
    found: dict[int, str] = {}
    for t in order:
        new = step(net, net("Gather", "x", net.const(t, "int64"), axis=0), state)
        found[t] = new
        if lengths:
            on = net("Less", net.const([[t]], "int64"), lengths)
            state = net("Where", on, new, state)
            found[t] = net("Where", on, new, net.const(np.zeros((B, H)))) if zero else state
        else:
            state = new
    return found, state


def stack(net: Net, states: Sequence[str], axis: int = 0) -> str:
    return net("Concat", *(net("Unsqueeze", state, net.ints(axis)) for state in states), axis=axis)


def nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "GRU"]


def attribute(node: onnx.NodeProto, name: str) -> object:
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}.get(name)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["forward", "reverse", "reverse, in the order computed"])
def test_stacks(order: str, axis: int) -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    places = list(range(T)) if order == "forward" else list(range(T))[::-1]
    found, last = steps(net, Step(after=True), places, h="h")
    computed = places if "computed" in order else sorted(places)
    net("Identity", stack(net, [found[t] for t in computed], axis), output="Y")
    net("Identity", last, output="y")
    net.output("Y", (T, B, H) if axis == 0 else (B, T, H))
    net.output("y", (B, H))
    model, search = check_fused(net.model(), net.feeds)
    assert [(item.form, item.steps, item.direction) for item in search.fused] == [
        ("chain", T, order.partition(",")[0])
    ]
    assert directions(model) == 1 and not search.near_misses


def test_some_states() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    found, _ = steps(net, Step(), range(T), h="h")
    for t in (1, 3):
        net("Identity", found[t], output=f"y{t}")
        net.output(f"y{t}", (B, H))
    model, _ = check_fused(net.model(), net.feeds)
    assert directions(model) == 1


@pytest.mark.parametrize("after", [False, True])
def test_two_directions_are_one_node(after: bool) -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    parts, ends = [], []
    for order in (range(T), range(T)[::-1]):
        found, last = steps(net, Step(after=after), order, h="h")
        parts.append(stack(net, [found[t] for t in range(T)]))
        ends.append(last)
    net("Concat", *parts, axis=2, output="Y")
    net("Concat", *ends, axis=1, output="y")
    net.output("Y", (T, B, 2 * H))
    net.output("y", (B, 2 * H))
    model, search = check_fused(net.model(), net.feeds)
    (node,) = nodes(model)
    assert attribute(node, "direction") == b"bidirectional"
    assert len(search.fused) == 2 and directions(model) == 2


def test_directions_of_different_kinds_stay_two_nodes() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    parts = []
    for order in (range(T), range(T)[::-1]):
        found, _ = steps(net, Step(after=order[0] == 0), order, h="h")
        parts.append(stack(net, [found[t] for t in range(T)]))
    net("Concat", *parts, axis=2, output="Y")
    net.output("Y", (T, B, 2 * H))
    model, _ = check_fused(net.model(), net.feeds)
    assert len(nodes(model)) == 2


def both_ways(net: Net, x: str, h: tuple[str, str]) -> tuple[list[str], list[str]]:
    """A chain in each direction; all states of each, and the last state of each."""
    wholes: list[str] = []
    ends: list[str] = []
    for order, state in zip((range(T), range(T)[::-1]), h, strict=True):
        net.prefix = f"{x}{order[0]}_"
        found, last = steps(net, Step(), order, h=state or ends[0])
        wholes.append(stack(net, [found[t] for t in range(T)]))
        ends.append(last)
    return wholes, ends


def test_a_direction_that_starts_from_the_other_stays_a_node_of_its_own() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    wholes, _ = both_ways(net, "x", ("h", ""))
    net("Concat", *wholes, axis=2, output="Y")
    net.output("Y", (T, B, 2 * H))
    model, search = check_fused(net.model(), net.feeds)
    assert len(nodes(model)) == 2 and not search.near_misses


def test_pairs_of_directions_that_start_from_each_other_are_not_all_merged() -> None:
    """The first pair may be merged, or the second, but not both: each would depend on the other."""
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    (one, other), (first, second) = both_ways(net, "x", ("h", "h"))
    (late, early), _ = both_ways(net, "x", (first, "h"))
    net.prefix = "again"
    found, last = steps(net, Step(), range(T)[::-1], h=net("Neg", second))
    later = stack(net, [found[t] for t in range(T)])
    net("Concat", one, later, axis=2, output="Y")
    net("Concat", late, other, axis=2, output="Z")
    net("Identity", early, output="E")
    net("Identity", last, output="y")
    for name, width in (("Y", 2 * H), ("Z", 2 * H), ("E", H)):
        net.output(name, (T, B, width))
    net.output("y", (B, H))
    model, search = check_fused(net.model(), net.feeds)
    assert len(nodes(model)) == 4 and directions(model) == 5 and not search.near_misses


def test_reversals_cancel() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    back = (net.ints(-1), net.ints(-(2**63)), net.ints(0), net.ints(-1))
    turned = net("Slice", "x", *back)
    state, found = "h", []
    step = Step(after=True)
    for t in range(T):
        state = step(net, net("Gather", turned, net.const(t, "int64"), axis=0), state)
        found.append(state)
    net("Slice", stack(net, found), *back, output="Y")
    net.output("Y", (T, B, H))
    model, search = check_fused(net.model(), net.feeds)
    (node,) = nodes(model)
    assert attribute(node, "direction") == b"reverse"
    assert "Slice" not in kinds(model) and "Gather" not in kinds(model)
    assert search.fused[0].direction == "reverse"


def test_the_last_of_all_states_is_y_h() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    found, _ = steps(net, Step(), range(T), h="h")
    whole = stack(net, [found[t] for t in range(T)])
    net("Identity", whole, output="Y")
    net("Gather", whole, net.const(-1, "int64"), axis=0, output="y")
    net.output("Y", (T, B, H))
    net.output("y", (B, H))
    model, _ = check_fused(net.model(), net.feeds)
    (node,) = nodes(model)
    assert len(node.output) == 2 and all(node.output)
    assert "Gather" not in kinds(model)


def test_a_number_with_all_states() -> None:
    """What takes them as its second input takes no last slice of its first."""
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    found, last = steps(net, Step(), range(T), h="h")
    net("Mul", net.const(2.0), stack(net, [found[t] for t in range(T)]), output="Y")
    net("Identity", last, output="y")
    net.output("Y", (T, B, H))
    net.output("y", (B, H))
    model, search = check_fused(net.model(), net.feeds)
    assert directions(model) == 1 and not search.near_misses


# Lengths


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_chains_with_lengths(order: str) -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("n", B, dtype="int64")
    net.feeds["n"] = np.array([4, 2])
    places = range(T) if order == "forward" else range(T)[::-1]
    lengths = net("Unsqueeze", "n", net.ints(1))
    _, last = steps(net, Step(after=True), places, lengths=lengths)
    net("Identity", last, output="y")
    net.output("y", (B, H))
    found = [
        check_fused(net.model(), {**net.feeds, "n": np.array(given)})
        for given in ([4, 2], [1, 3], [0, 4], [7, -1])
    ]
    _, search = found[0]
    # The first step is computed with zeros, and stays apart from the others; tests/fusion/test_lengths.py
    # has whole recurrences.
    assert search.fused[0].masked


@pytest.mark.parametrize("zero", [False, True], ids=["held", "zero"])
def test_masked_outputs(zero: bool) -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    net.input("n", B, dtype="int64")
    lengths = net("Unsqueeze", "n", net.ints(1))
    found, last = steps(net, Step(after=True), range(T), h="h", lengths=lengths, zero=zero)
    net("Identity", stack(net, [found[t] for t in range(T)]), output="Y")
    net("Identity", last, output="y")
    net.output("Y", (T, B, H))
    net.output("y", (B, H))
    checked = [check_fused(net.model(), {**net.feeds, "n": np.array(given)}) for given in ([4, 2], [1, 0])]
    model, search = checked[0]
    assert directions(model) == 1 and not search.near_misses
    (node,) = nodes(model)
    assert len(node.input) < 5 or not node.input[4]  # the update gate holds the state


def test_a_chain_with_another_order_is_none() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    _, last = steps(net, Step(), [0, 2, 1, 3], h="h")
    net("Identity", last, output="y")
    net.output("y", (B, H))
    model, search = check_fused(net.model(), net.feeds)
    assert directions(model) >= 1 and not search.near_misses


def test_two_layers() -> None:
    net = Net()
    net.input("x", T, B, I)
    net.input("h", B, H)
    first, second = Step(I, H, after=True), Step(H, H)
    low, high = "h", "h"
    for t in range(T):
        low = first(net, net("Gather", "x", net.const(t, "int64"), axis=0), low)
        high = second(net, low, high)
    net("Identity", high, output="y")
    net.output("y", (B, H))
    model, search = check_fused(net.model(), net.feeds)
    assert [item.form for item in search.fused] == ["chain", "chain"] and directions(model) == 2
    assert not set(kinds(model)) & {"Gather", "Concat"}
