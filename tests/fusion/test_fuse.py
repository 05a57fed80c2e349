"""A place whose search fails stays as it is: the rest of the model is searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from onnx import TensorProto, helper

from onegru.dataflow.operator import Op
from onegru.fusion import chain, fuse, graph, simplify
from onegru.fusion.cells.cell import MissError
from onegru.fusion.cells.match import find_cell
from tests.support.models.fusing import Net, Step, check_fused, fused, kinds

pytest.importorskip("onnxruntime")

T, I, H = 3, 3, 2


def model() -> Net:
    """A Scan, and two chains whose states are stacked."""
    net, body = Net(), Net(seed=1)
    body.prefix = "b"
    net.input("x", T, "B", I)
    net.input("h", "B", H)
    for name, width in (("h_old", H), ("x_t", I)):
        body.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", width]))
    body("Identity", Step()(body, "x_t", "h_old"), output="h_new")
    body.output("h_new", ("B", H))
    scan = helper.make_node(
        "Scan", ["h", "x"], ["scanned"], "scan", num_scan_inputs=1, body=body.graph("body")
    )
    net.nodes.append(scan)
    net.output("scanned", ("B", H))
    for name in ("first", "second"):
        state, step, found = "h", Step(), []
        for t in range(T):
            state = step(net, net("Gather", "x", net.const(t, "int64"), axis=0), state)
            found.append(net("Unsqueeze", state, net.ints(0)))
        net("Concat", *found, axis=0, output=f"{name}_all")
        net("Gather", f"{name}_all", net.const(-1, "int64"), axis=0, output=name)
        net.output(name, ("B", H))
        net.output(f"{name}_all", (T, "B", H))
    return net


def breaking(
    function: Callable[..., Any], error: Exception, where: Callable[..., bool]
) -> Callable[..., Any]:
    """A function that fails at one place."""

    def broken(*arguments: Any, **options: Any) -> Any:
        if where(*arguments):
            raise error
        return function(*arguments, **options)

    return broken


def is_scan(flow: Any, op: Op) -> bool:
    return op.name == "scan"


def is_of_first(flow: Any, *arguments: Any) -> bool:
    """The numeric check of the first chain; what the second gives is not among the new operators."""
    return any("first_all" in op.outputs for op in arguments[0])


PLACES: dict[str, tuple[Any, str, Callable[..., bool], int]] = {
    "loop": (fuse, "read_loop", is_scan, 2),
    "numeric check": (graph, "compare", is_of_first, 2),
    "last state": (simplify, "_reads_last", lambda flow, op, name: "first" in op.outputs, 3),
}


@pytest.mark.parametrize(
    "error", [IndexError("tuple index out of range"), MissError("no shape"), RecursionError()]
)
@pytest.mark.parametrize("place", PLACES)
def test_the_search_goes_on(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, name, where, count = PLACES[place]
    net = model()
    _, whole = check_fused(net.model(), net.feeds)
    assert len(whole.fused) == 3 and not whole.near_misses
    monkeypatch.setattr(module, name, breaking(getattr(module, name), error, where))
    found, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == count and kinds(found).count("GRU") == count
    is_miss = isinstance(error, MissError)
    assert [miss.reason for miss in search.near_misses] == ["no shape"] * is_miss
    records = [record for record in caplog.records if "this is a bug in onegru" in record.getMessage()]
    assert len(records) == (not is_miss)
    assert all("model.onnx" in record.getMessage() and record.exc_info for record in records)


@pytest.mark.parametrize("place", PLACES)
def test_a_lack_of_memory_ends_the_search(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, where, _ = PLACES[place]
    net = model()
    monkeypatch.setattr(module, name, breaking(getattr(module, name), MemoryError(), where))
    with pytest.raises(MemoryError):
        fused(net.model())


def test_a_cell_that_cannot_be_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[str] = []

    def where(at: Any, name: str) -> bool:
        if not broken:
            broken.append(name)
        return name == broken[0]

    monkeypatch.setattr(chain, "find_cell", breaking(find_cell, KeyError("axis"), where))
    net = model()
    _, search = check_fused(net.model(), net.feeds)
    assert broken and len(search.fused) >= 2
    assert not search.near_misses
    assert "KeyError: 'axis'" in caplog.text and repr(broken[0]) in caplog.text


@pytest.mark.parametrize(("outputs", "count"), [(["scanned"], 1), (["first", "first_all"], 1), ([], 0)])
def test_only_what_an_output_depends_on_is_fused(outputs: list[str], count: int) -> None:
    net = model()
    kept = [output for output in net.outputs if output.name in outputs]
    net("Identity", "x", output="x_again")
    net.output("x_again", (T, "B", I))
    net.outputs = [*kept, net.outputs[-1]]
    found, search = fused(net.model())
    assert len(search.fused) == kinds(found).count("GRU") == count
    assert not search.near_misses
