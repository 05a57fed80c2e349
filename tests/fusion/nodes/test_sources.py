"""What steps take over time: slices of one value in order, or one value for each step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onegru.dataflow.view import View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.nodes.sources import SlicedSource, StackedSource, source_of_steps, step_before
from tests.support.models.fusing import Net, flow


def slices(
    order: Sequence[int], *, turned: bool = False, split: bool = False
) -> tuple[Expressions, list[View]]:
    """Views of slices of x, [5, 2, 3], at these places."""
    net = Net()
    value = net.input("x", 5, 2, 3)
    if turned:
        value = net("Slice", value, net.ints(-1), net.ints(-(2**63)), net.ints(0), net.ints(-1))
    if split:
        parts = net.several("Split", [value, net.ints(*[1] * 5)], 5, axis=0)
        names = [net("Squeeze", parts[t], net.ints(0)) for t in order]
    else:
        names = [net("Gather", value, net.const(t, "int64"), axis=0) for t in order]
    at = Expressions(flow(net.model()), Algebra())
    views = [at.whole(name) for name in names]
    return at, [view for view in views if view is not None]


@pytest.mark.parametrize("split", [False, True], ids=["Gather", "Split"])
@pytest.mark.parametrize(
    ("order", "start", "step"),
    [([0, 1, 2, 3, 4], 0, 1), ([4, 3, 2, 1, 0], 0, -1), ([1, 2, 3], 1, 1), ([3, 2], 2, -1)],
)
def test_slices_in_order(order: list[int], start: int, step: int, split: bool) -> None:
    found = source_of_steps(*slices(order, split=split))
    assert isinstance(found, SlicedSource)
    assert (found.view.name, found.axis, found.start, found.count, found.step) == (
        "x",
        0,
        start,
        len(order),
        step,
    )


@pytest.mark.parametrize("order", [[0, 2, 1], [0, 2, 4], [1, 1, 1], [0, 1, 3]])
def test_slices_in_another_order(order: list[int]) -> None:
    assert isinstance(source_of_steps(*slices(order)), StackedSource)


def test_what_is_turned_round_is_read_from_before() -> None:
    found = source_of_steps(*slices([0, 1, 2, 3, 4], turned=True))
    assert isinstance(found, SlicedSource)
    assert (found.view.name, found.start, found.step) == ("x", 0, -1)


def test_one_step_is_a_value() -> None:
    assert isinstance(source_of_steps(*slices([2])), StackedSource)


@pytest.mark.parametrize(
    ("order", "place"), [([1, 2], 0), ([3, 2], 4), ([0, 1], None), ([4, 3], None), ([0, 2], None)]
)
def test_what_comes_before(order: list[int], place: int | None) -> None:
    at, (first, second) = slices(order)
    found = step_before(at, (first, second))
    assert (None if found is None else found.roles[0]) == place
