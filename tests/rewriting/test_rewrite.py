"""Rewriting the GRU nodes of whole models: every change against the reference engine and other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import onegru
from onegru.operators.onnx import DECOMPOSED_OPSET
from onegru.rewriting.rewrite import rewrite
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    B,
    H,
    I,
    T,
    graph,
    gru,
    model,
    node,
    numbers,
    save,
    tensor,
    value,
    weights,
)
from tests.support.models.rewrite_cases import (
    CASES,
    OTHERS,
    TOLERANCE,
    Case,
    assert_close,
    attributes,
    cases,
    check,
    expected,
    exported_augru,
    grus,
    rewritten,
)
from tests.support.models.runtimes import onnxruntime_results, openvino_results

pytestmark = pytest.mark.filterwarnings("ignore:.*are not the same in each run:onegru.SpecWarning")

LOOPS = {"Scan", "Shape", "Loop", "Range"}


def with_steps(case: Case, steps: int) -> ModelProto:
    """The model of a case, with a fixed number of steps."""
    source = case.build()
    source.graph.input[0].type.tensor_type.shape.dim[1 if case.batch_first else 0].dim_value = steps
    return source


# ---- each change separately


@pytest.mark.parametrize("case", cases())
def test_decompose(case: Case, tmp_path: Path) -> None:
    runtimes = ("onnxruntime",) if case.dtype == "float64" else ("onnxruntime", "openvino")
    target = check(case, tmp_path, runtimes=runtimes, decompose=True)
    assert not grus(target)
    scans = [item for item in target.graph.node if item.op_type == "Scan"]
    assert len(scans) == case.D
    assert target.opset_import[0].version == max(case.opset, DECOMPOSED_OPSET)


@pytest.mark.parametrize("steps", [1, 4, 8])
@pytest.mark.parametrize("case", cases())
def test_decompose_few_steps(case: Case, steps: int, tmp_path: Path) -> None:
    """A fixed, small number of steps needs no loop, and asks for no shape, whatever the batch."""
    source = with_steps(case, steps)
    report, target = rewritten(tmp_path, source, decompose=True)
    assert report.nodes[0].done == ("decomposed into other operators, step by step",)
    assert not {item.op_type for item in target.graph.node} & LOOPS
    others = ("onnxruntime",) if case.dtype == "float64" else ("onnxruntime", "openvino")
    for rows in (B, 1):
        feeds = case.arrays(steps, rows)
        wanted = expected(tmp_path / "model.onnx", feeds)
        assert_close(onegru.load(tmp_path / "target.onnx").run(feeds), wanted, TOLERANCE[case.dtype])
        for runtime in others:
            tolerance = max(10 * TOLERANCE[case.dtype], 1e-12)
            assert_close(OTHERS[runtime](target, feeds), wanted, tolerance)


@pytest.mark.parametrize("steps", [0, 9])
def test_decompose_other_numbers_of_steps(steps: int, tmp_path: Path) -> None:
    source = with_steps(Case("plain", present=("Y",)), steps)
    report, target = rewritten(tmp_path, source, decompose=True, check=False)
    assert [item.op_type for item in target.graph.node if item.op_type == "Scan"]
    needed = ("decomposed nodes need at least one step in each run",)
    assert report.notes == (() if steps else needed)
    assert rewritten(tmp_path, CASES[0].build(), decompose=True)[0].notes == needed


def test_decompose_few_steps_in_float16(tmp_path: Path) -> None:
    source = with_steps(Case("both", {"direction": "bidirectional", "layout": 1}), 3)
    _, target = rewritten(tmp_path, source, decompose=True, dtype="float16")
    assert not {item.op_type for item in target.graph.node} & {"GRU", *LOOPS}


def test_a_wrong_number_of_steps_fails(tmp_path: Path) -> None:
    """What the file states of a value may be wrong: no steps are then left out."""
    source = Case("plain", present=("Y",)).build()
    source.graph.value_info.append(value("X", shape=[2, "rows", I]))
    report, target = rewritten(tmp_path, source, decompose=True, check=False)
    assert report.nodes[0].done == ("decomposed into other operators, step by step",)
    with pytest.raises(Exception, match=r"[Ss]plit"):
        onnxruntime_results(target, {"x": numbers(50, 5, B, 2)})


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("case", cases())
def test_layout(case: Case, layout: int, tmp_path: Path) -> None:
    opset = max(case.opset, 14)
    target = check(case, tmp_path, layout=layout, opset=opset)
    (item,) = grus(target)
    assert attributes(item).get("layout", 0) == layout
    transposes = [item for item in target.graph.node if item.op_type == "Transpose"]
    moved = {"X", "initial_h", "Y", "Y_h"} & {"X", *case.present}
    assert len(transposes) == (len(moved) if layout != case.batch_first else 0)


@pytest.mark.parametrize("case", cases())
def test_float16(case: Case, tmp_path: Path) -> None:
    target = check(case, tmp_path, dtype="float16")
    (item,) = grus(target)
    if case.dtype == "float16":
        assert not [item for item in target.graph.node if item.op_type == "Cast"]
        return
    if case.computed:
        return
    tensors = {entry.name: entry for entry in target.graph.initializer}
    assert all(tensors[name].data_type == TensorProto.FLOAT16 for name in item.input[1:3])
    assert "W" not in tensors and "R" not in tensors


@pytest.mark.parametrize("case", cases())
def test_split(case: Case, tmp_path: Path) -> None:
    target = check(case, tmp_path, split=True)
    directions = [attributes(item).get("direction", b"forward") for item in grus(target)]
    assert directions == ([b"forward", b"reverse"] if case.D == 2 else directions[:1])
    if case.D == 2 and not case.computed:
        tensors = {entry.name: entry for entry in target.graph.initializer}
        assert all(tensors[name].dims[0] == 1 for item in grus(target) for name in item.input[1:3])
        assert "W" not in tensors


@pytest.mark.parametrize("opset", [7, 13, 22])
@pytest.mark.parametrize("case", cases())
def test_opset(case: Case, opset: int, tmp_path: Path) -> None:
    target = check(case, tmp_path, opset=opset)
    assert [entry.version for entry in target.opset_import] == [opset]
    (item,) = grus(target)
    names = set(attributes(item))
    assert "layout" not in names or opset >= 14
    assert attributes(item)["hidden_size"] == H


def test_everything_at_once(tmp_path: Path) -> None:
    case = Case("all", {"direction": "bidirectional", "clip": 0.5}, opset=11)
    target = check(case, tmp_path, opset=22, layout=1, dtype="float16", split=True)
    assert len(grus(target)) == 2 and all(attributes(item)["layout"] == 1 for item in grus(target))


@pytest.mark.parametrize("name", ["batch-first-both", "reset-after", "computed", "clip"])
def test_decompose_in_float16(name: str, tmp_path: Path) -> None:
    """Numbers are rounded to float16 where the operator would round them; the rest is float32."""
    case = next(case for case in CASES if case.name == name)
    runtimes = ("onnxruntime", "openvino")
    target = check(case, tmp_path, runtimes=runtimes, dtype="float16", decompose=True)
    casts = [item for item in target.graph.node if item.op_type == "Cast"]
    assert casts and not grus(target)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("case", cases())
def test_for_a_runtime(case: Case, runtime: Any, tmp_path: Path) -> None:
    if case.dtype == "float64" and runtime == "openvino":
        with pytest.raises(onegru.FormatError, match="'gru': openvino computes float64 in float32"):
            rewrite(save(tmp_path, case.build()), tmp_path / "target.onnx", runtime=runtime)
        assert not (tmp_path / "target.onnx").exists()
        return
    source = case.build()
    target = check(case, tmp_path, runtimes=(runtime,), runtime=runtime)
    report = rewrite(tmp_path / "model.onnx", tmp_path / "again.onnx", runtime=runtime)
    (entry,) = report.nodes
    assert bool(entry.done) == bool(entry.reasons)
    if not entry.reasons:
        assert target.SerializeToString(deterministic=True) == source.SerializeToString(deterministic=True)


def test_the_source_may_be_the_target(tmp_path: Path) -> None:
    case = Case("plain", present=("Y",))
    path = save(tmp_path, case.build())
    feeds = case.arrays()
    wanted = expected(path, feeds)
    rewrite(path, path, decompose=True)
    assert_close(onegru.load(path).run(feeds), wanted, 1e-6)


def test_given_inputs_and_sizes(tmp_path: Path) -> None:
    """A model that runs on few shapes is checked on those that are given."""
    nodes = [
        node("Reshape", ["x", "shape"], ["X"], name="reshape"),
        gru("X", ["Y"], name="gru"),
    ]
    constants = {**weights(), "shape": np.array([10, 3, I])}
    source = model(graph(nodes, [value("x", shape=["K"])], [value("Y", shape=[None] * 4)], constants))
    path = save(tmp_path, source)
    with pytest.raises(onegru.FormatError, match=r"does not run on random inputs .* pass inputs or dims"):
        rewrite(path, tmp_path / "target.onnx", opset=22)
    assert rewrite(path, tmp_path / "target.onnx", opset=22, check=onegru.Check(dims={"K": 150})).outputs
    assert rewrite(
        path, tmp_path / "target.onnx", opset=22, check=onegru.Check(inputs={"x": numbers(1, 150)})
    ).outputs


@pytest.mark.parametrize("names", ["XX", "ab"], ids=["same", "passed on"])
def test_two_grus_on_one_input_for_openvino(names: str, tmp_path: Path) -> None:
    """OpenVINO miscomputes the first of them."""
    nodes = [node("Identity", ["X"], [name]) for name in names if name != "X"]
    for name, suffix in zip(names, "12", strict=True):
        nodes.append(gru(name, [f"Y{suffix}"], W="W", R="R", bias="B", name=f"gru{suffix}"))
    outputs = [value(f"Y{suffix}", shape=[None] * 4) for suffix in "12"]
    source = model(graph(nodes, [value("X", shape=["T", "N", I])], outputs, weights()))
    report, target = rewritten(tmp_path, source, runtime="openvino")
    assert all("shares its X with another GRU" in entry.reasons[0] for entry in report.nodes)
    feeds = {"X": numbers(1, T, B, I)}
    assert_close(openvino_results(target, feeds), expected(tmp_path / "model.onnx", feeds), 1e-6)


def test_a_clip_at_a_threshold_for_onnxruntime(tmp_path: Path) -> None:
    """ONNX Runtime gives 0 where x equals alpha of ThresholdedRelu, as it does wherever clip cuts x off."""
    options: dict[str, Any] = {
        "activations": ["Sigmoid", "ThresholdedRelu"],
        "activation_alpha": [0.75],
        "clip": 0.75,
    }
    source = model(
        graph(
            [gru("X", ["Y"], name="gru", **options)],
            [value("X", shape=["T", "N", I])],
            [value("Y", shape=[None] * 4)],
            weights(),
        )
    )
    report, target = rewritten(tmp_path, source, runtime="onnxruntime")
    assert "if x equals ThresholdedRelu's alpha" in report.nodes[0].reasons[0]
    feeds = {"X": 3 * numbers(1, T, B, I)}
    wanted = expected(tmp_path / "model.onnx", feeds)
    assert np.count_nonzero(wanted["Y"]) > wanted["Y"].size / 4
    assert_close(onnxruntime_results(target, feeds), wanted, 1e-6)


def test_bfloat16(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    nodes = [gru("X", ["Y"], name="gru", direction="bidirectional")]
    inputs = [value("X", "bfloat16", ["T", "N", I])]
    outputs = [value("Y", "bfloat16", [None] * 4)]
    source = model(graph(nodes, inputs, outputs, weights(D=2, dtype="bfloat16")), opset=22)
    report, _ = rewritten(tmp_path, source, runtime="onnxruntime")
    assert report.notes == (
        "decomposed nodes need at least one step in each run",
        "not checked in onnxruntime, which does not accept bfloat16 arrays",
    )
    assert report.nodes[0].done == ("decomposed into other operators, with 2 Scans",)
    feeds = {"X": numbers(1, T, B, I, dtype="bfloat16")}
    wanted = {"Y": expected(tmp_path / "model.onnx", feeds)["Y"].astype(np.float32)}
    found = {"Y": onegru.load(tmp_path / "target.onnx").run(feeds)["Y"].astype(np.float32)}
    assert_close(found, wanted, 1e-2)


def test_random_weights_of_real_size(tmp_path: Path) -> None:
    """A large layer stays within the tolerance."""
    rng = np.random.default_rng(0)
    W, R = (rng.uniform(-0.07, 0.07, (1, 600, 200)).astype(np.float32) for _ in range(2))
    proto = graph(
        [gru("X", ["Y"], hidden_size=200)],
        [value("X", shape=["T", "N", 200])],
        [value("Y", shape=[None] * 4)],
        [tensor("W", W), tensor("R", R)],
    )
    report, _ = rewritten(tmp_path, model(proto), decompose=True)
    assert 0 < max(item.max_abs for item in report.outputs) < 1e-6


# ---- AUGRU nodes


AUGRUS = [
    ({"attention": "dien", "linear_before_reset": 1}, ("sequence_lens", "initial_h")),
    ({"attention": "openvino", "direction": "bidirectional"}, ("initial_h",)),
    ({"layout": 1, "direction": "reverse", "clip": 0.5}, ("sequence_lens",)),
    ({"layout": 1, "direction": "bidirectional", "attention": "dien"}, ("sequence_lens", "initial_h")),
]


@pytest.mark.parametrize(("attributes", "more"), AUGRUS)
@pytest.mark.parametrize("steps", ["T", 1, 5])
def test_augru_is_decomposed(
    steps: int | str, attributes: dict[str, Any], more: tuple[str, ...], tmp_path: Path
) -> None:
    """Into operators that compute the same, in a loop or step by step; the function goes."""
    source = save(tmp_path, exported_augru(steps, attributes, *more))
    target = tmp_path / "target.onnx"
    onegru.rewrite(source, target, decompose=True, check=False)
    written = onnx.load(target)
    assert not grus(written) and not written.functions
    assert ("Scan" in {item.op_type for item in written.graph.node}) == (steps == "T")
    length = 9 if steps == "T" else int(steps)
    feeds = {
        item.name: numbers(3, *(dim.dim_value or length for dim in item.type.tensor_type.shape.dim))
        for item in written.graph.input
        if item.name != "sequence_lens"
    }
    if "sequence_lens" in more:
        feeds["sequence_lens"] = (np.arange(B) % (length + 1)).astype(np.int32)
    wanted = expected(source, feeds)
    assert_close(onnxruntime_results(written, feeds), wanted, TOLERANCE["float32"])


@pytest.mark.parametrize(("attributes", "more"), AUGRUS[:2])
@pytest.mark.parametrize("steps", ["T", 5])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_augru_for_a_runtime(
    runtime: Any, steps: int | str, attributes: dict[str, Any], more: tuple[str, ...], tmp_path: Path
) -> None:
    """The check runs the target there."""
    source = save(tmp_path, exported_augru(steps, attributes, *more))
    (found,) = onegru.inspect(source).grus
    assert {item.runtime for item in found.others} == {"onnxruntime", "openvino", "onnx"}
    report = onegru.rewrite(source, tmp_path / "target.onnx", runtime=runtime)
    assert {item.runtime for item in report.outputs} == {"onegru", runtime}
    left = onegru.inspect(tmp_path / "target.onnx").grus
    assert len(left) == (runtime == "onnxruntime")
    assert all(item.runtime != runtime for gru in left for item in gru.others)


@pytest.mark.parametrize("opset", [3, 5])
def test_float16_of_an_old_model(tmp_path: Path, opset: int) -> None:
    """Cast names its type by a number from opset 6 on."""
    proto = graph([PLAIN], [X_INFO], ["Y"], WEIGHTS)
    path = save(tmp_path, model(proto, opset=opset, ir=3))
    onegru.rewrite(path, tmp_path / "half.onnx", dtype="float16")
    assert onnx.load(tmp_path / "half.onnx").opset_import[0].version == 6
    with pytest.raises(onegru.SpecError, match=r"^opset: 5; must be at least 6 for float16"):
        onegru.rewrite(path, dtype="float16", opset=5)


def test_empty_inputs_are_not_run_in_onnxruntime(tmp_path: Path) -> None:
    """ONNX Runtime aborts the process for an input size of 0."""
    arrays = {"W": np.zeros((1, 3 * H, 0), np.float32), "R": np.ones((1, 3 * H, H), np.float32)}
    proto = model(graph([gru("X", ["Y"])], [value("X", shape=[4, 2, 0])], ["Y"], arrays))
    with pytest.raises(onegru.FormatError, match="no output depends on the random inputs"):
        onegru.rewrite(save(tmp_path, proto), tmp_path / "target.onnx", runtime="onnxruntime")
