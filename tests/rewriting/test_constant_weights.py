"""Rewriting GRU nodes whose weights other nodes compute from constants, as PyTorch's exporter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto

import onegru
from onegru.core.dtypes import Array
from tests.support.comparison import assert_bits
from tests.support.files.int8_files import store_in_int8
from tests.support.files.onnx_models import WEIGHTS, X_INFO, H, X, graph, gru, model, node, save, value

Part = tuple[list[NodeProto], dict[str, Array]]
LAST = gru("X", ["Y", "Y_h"], W="W", R="R", bias="B", name="g")
ZERO = np.array([0], np.int64)


def parameter(array: Array) -> Array:
    """The same with gates in PyTorch's order and without the axis of directions."""
    gates = np.split(array[0], len(array[0]) // H)
    return np.concatenate([gates[place] for start in range(0, len(gates), 3) for place in _swapped(start)])


def _swapped(start: int) -> tuple[int, int, int]:
    return start + 1, start, start + 2


def sliced(name: str, array: Array) -> Part:
    """As of nn.GRU: a Slice for each gate, a Concat, an Unsqueeze."""
    rows = parameter(array)
    nodes, parts = [], []
    constants = {f"{name}_raw": rows, "zero": ZERO}
    for place in [place for start in range(0, len(rows) // H, 3) for place in _swapped(start)]:
        constants |= {f"c{at}": np.array([at * H], np.int64) for at in (place, place + 1)}
        parts.append(f"{name}_{place}")
        nodes.append(node("Slice", [f"{name}_raw", f"c{place}", f"c{place + 1}", "zero"], parts[-1:]))
    nodes.append(node("Concat", parts, [f"{name}_all"], axis=0))
    return [*nodes, node("Unsqueeze", [f"{name}_all", "zero"], [name])], constants


def split(name: str, array: Array) -> Part:
    """As of onegru.torch.GRU: a Split whose outputs change places."""
    rows = parameter(array)
    parts = [f"{name}_{place}" for place in range(len(rows) // H)]
    order = [parts[place] for start in range(0, len(parts), 3) for place in _swapped(start)]
    nodes = [
        node("Split", [f"{name}_raw"], parts, num_outputs=len(parts)),
        node("Concat", order, [f"{name}_all"], axis=0),
        node("Unsqueeze", [f"{name}_all", "zero"], [name]),
    ]
    return nodes, {f"{name}_raw": rows, "zero": ZERO}


def halves(name: str, array: Array) -> Part:
    """A Split that gives the weight itself, and what nobody takes."""
    both = np.concatenate([array, array])
    return [node("Split", [f"{name}_raw"], [name, f"{name}_other"], num_outputs=2)], {f"{name}_raw": both}


def computed(make: Callable[[str, Array], Part]) -> Part:
    nodes: list[NodeProto] = []
    constants: dict[str, Array] = {}
    for name, array in WEIGHTS.items():
        more, held = make(name, array)
        nodes, constants = nodes + more, constants | held
    return nodes, constants


REWRITINGS: Mapping[str, Callable[[Path, Path], onegru.reports.Rewriting]] = {
    "quantize": store_in_int8,
    "by name": partial(store_in_int8, quantize=["g"]),
    "float16": partial(onegru.rewrite, dtype="float16"),
    "decompose": partial(onegru.rewrite, decompose=True),
}


@pytest.mark.parametrize("rewriting", REWRITINGS)
@pytest.mark.parametrize("make", [sliced, split, halves])
def test_they_become_constants(make: Callable[[str, Array], Part], rewriting: str, tmp_path: Path) -> None:
    """The same numbers as of a model that has constants, and nothing is left of what computed them."""
    nodes, constants = computed(make)
    outputs = ["Y", "Y_h"]
    source = save(tmp_path, model(graph([*nodes, LAST], [X_INFO], outputs, constants), opset=18))
    plain = save(tmp_path, model(graph([LAST], [X_INFO], outputs, WEIGHTS), opset=18), "plain.onnx")
    targets = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    reports = [
        REWRITINGS[rewriting](path, target) for path, target in zip((source, plain), targets, strict=True)
    ]
    assert "weights that nodes compute from constants are now constants" in reports[0].notes
    assert reports[0].nodes == reports[1].nodes
    first, second = (onegru.load(target).run({"X": X}) for target in targets)
    for name, array in second.items():
        assert_bits(first[name], array)
    made, wanted = (onnx.load(target).graph for target in targets)
    assert [item.op_type for item in made.node] == [item.op_type for item in wanted.node]
    assert {tensor.name for tensor in made.initializer} == {tensor.name for tensor in wanted.initializer}


def test_what_others_take_stays(tmp_path: Path) -> None:
    """A gate that an output is made of, a weight that is an output, and a GRU that stays in float32."""
    nodes, constants = computed(sliced)
    more = [
        node("Neg", ["R_0"], ["gate"]),
        node("Relu", ["W_raw"], ["raw"]),
        gru("X", ["Y2"], W="W", name="h"),
    ]
    outputs = ["Y", "Y2", "gate", "raw", "R"]
    source = save(tmp_path, model(graph([*nodes, LAST, *more], [X_INFO], outputs, constants)))
    target = tmp_path / "target.onnx"
    store_in_int8(source, target, quantize=["g"])
    made, wanted = (onegru.load(path).run({"X": X}) for path in (target, source))
    for name in ("Y2", "gate", "raw", "R"):
        assert_bits(made[name], wanted[name])
    kinds = [item.op_type for item in onnx.load(target).graph.node]
    assert kinds.count("Slice") == 1 and "Unsqueeze" not in kinds


@pytest.mark.parametrize("ir", [3, 8])
def test_in_bodies_and_in_old_files(ir: int, tmp_path: Path) -> None:
    """What a body computes from what is computed around it; `onegru.quantize` sees the same layers."""
    nodes, constants = computed(sliced)
    around = [item for item in nodes if item.op_type == "Slice"]
    within = [item for item in nodes if item.op_type != "Slice"]
    inner = gru("X", ["Y1"], bias="B", name="inner")
    branches = {
        "then_branch": graph([*within, inner], [], [value("Y1", shape=[None] * 4)]),
        "else_branch": graph([node("Identity", ["zeros"], ["Y0"])], [], [value("Y0", shape=[None] * 4)]),
    }
    choice = node("If", ["is_on"], ["Y"], **branches)
    constants["zeros"] = np.zeros((4, 1, 2, H), np.float32)
    held = [
        node("Constant", [], [name], value=onnx.numpy_helper.from_array(a)) for name, a in constants.items()
    ]
    proto = graph(
        [*held, *around, choice], [X_INFO, value("is_on", "bool", [])], [value("Y", shape=[None] * 4)]
    )
    source = save(tmp_path, model(proto, ir=ir))
    feeds = {"X": X, "is_on": np.array(True)}
    (inner_gru,) = onegru.quantize(source, feeds).grus
    assert inner_gru.name == "inner" and not inner_gru.reason
    target = tmp_path / "target.onnx"
    store_in_int8(source, target, check=onegru.Check(inputs=feeds))
    plain = save(tmp_path, model(graph([LAST], [X_INFO], ["Y"], WEIGHTS)), "plain.onnx")
    store_in_int8(plain, tmp_path / "b.onnx")
    wanted = onegru.load(tmp_path / "b.onnx").run({"X": X})["Y"]
    assert_bits(onegru.load(target).run(feeds)["Y"], wanted)


def test_what_is_not_computed_ahead(tmp_path: Path) -> None:
    """Random numbers, what would be far larger than its file, and a body whose nodes wait for each other."""
    target = tmp_path / "target.onnx"
    lists: list[list[NodeProto]] = [
        [node("RandomUniform", [], ["W"], shape=[1, 3 * H, 5])],
        [
            node("ConstantOfShape", ["huge"], ["much"]),
            node("Slice", ["much", "none", "few"], ["some"]),
            node("Expand", ["some", "shape"], ["W"]),
        ],
    ]
    constants = {name: array for name, array in WEIGHTS.items() if name != "W"}
    constants |= {"huge": np.array([2**20, 2**14], np.int64), "shape": np.array([1, 3 * H, 5], np.int64)}
    constants |= {"none": np.array([0, 0], np.int64), "few": np.array([1, 1], np.int64)}
    for nodes in lists:
        source = save(tmp_path, model(graph([*nodes, LAST], [X_INFO], ["Y"], constants)))
        with pytest.raises(onegru.SpecError, match=r"W is computed in each run"):
            store_in_int8(source, target, check=False)
    cycle = [node("Neg", ["V"], ["W"]), node("Neg", ["W"], ["V"]), gru("X", ["Y1"], name="inner")]
    body = graph(cycle, [], [value("Y1", shape=[None] * 4)])
    choice = node("If", ["is_on"], ["Y"], then_branch=body, else_branch=body)
    proto = graph([choice], [X_INFO, value("is_on", "bool", [])], [value("Y", shape=[None] * 4)], constants)
    with pytest.raises(onegru.OneGRUError):
        store_in_int8(save(tmp_path, model(proto)), target, check=False)
    assert not target.exists()
