"""Operators that replace others come in an order in which they can run."""

from __future__ import annotations

import pytest

from onegru.dataflow.operator import Op
from onegru.dataflow.replace import replace_ops
from tests.support.models.fusing import Net, flow


def chain(count: int) -> Net:
    net = Net()
    name = net.input("x", "B")
    for _ in range(count):
        name = net("Neg", name)
    net("Identity", name, output="y")
    net.output("y", ("B",))
    return net


def test_new_operators_follow_those_that_they_need() -> None:
    given = flow(chain(3).model())
    replace_ops(given, [Op("Abs", ("new",), ("y",)), Op("Exp", ("v2",), ("new",))], {})
    assert [op.kind for op in given.ops] == ["Neg", "Neg", "Exp", "Abs"]


@pytest.mark.parametrize("input_name", ["y", "v3"])
def test_operators_that_depend_on_each_other_are_refused(input_name: str) -> None:
    given = flow(chain(3).model())
    with pytest.raises(ValueError, match="operators depend on each other"):
        replace_ops(given, [Op("Abs", (input_name,), ("v2",))], {})
