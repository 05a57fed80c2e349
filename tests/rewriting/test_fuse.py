"""`onegru.fuse`: what it writes computes what the source computes; what it refuses, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru.core.dtypes import Array
from onegru.core.wording import count
from onegru.fusion.search import Fused, NearMiss
from onegru.models import fusing
from onegru.models.layer_files.select import read_source
from onegru.rewriting import fuse as fuse_module
from tests.support.decomposed.draw import Decomposed, decomposed, near_miss
from tests.support.files.onnx_models import I, graph, gru, model, node, save, value, weights

SEED = 1
# Of float32 outputs against float64 by the equations, as in tests/fusion/test_decomposed.py.
BOUND = 2e-5


def case_of(kind: str, seed: int = SEED) -> Decomposed:
    return decomposed(kind, np.random.default_rng(seed))


def saved(tmp_path: Path, case: Decomposed) -> Path:
    return save(tmp_path, case.model)


def assert_computes(model: onegru.Model, case: Decomposed) -> None:
    found: Mapping[str, Array] = model.run(dict(case.feeds))
    assert set(found) == set(case.expected)
    for name, wanted in case.expected.items():
        scale = max(1.0, np.max(np.abs(wanted), initial=0.0))
        assert np.max(np.abs(found[name] - wanted), initial=0.0) <= BOUND * scale, f"{name}: {case.recipe}"


def test_two_bidirectional_layers_come_back(tmp_path: Path) -> None:
    """Decomposed, with open time and batch, and the states of both directions flattened between them."""
    nodes, constants = [], {"flat": np.array([0, 0, -1])}
    for i, width in enumerate((3, 4)):
        constants |= weights(i, str(i), I=width, H=2, D=2)
        given = [f"x{i}", f"W{i}", f"R{i}", f"B{i}"]
        nodes.append(node("GRU", given, [f"Y{i}"], hidden_size=2, direction="bidirectional"))
        nodes.append(node("Transpose", [f"Y{i}"], [f"t{i}"], perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", [f"t{i}", "flat"], [f"x{i + 1}"]))
    inputs, outputs = [value("x0", shape=["T", "N", 3])], [value("x2", shape=["T", "N", 4])]
    source = save(tmp_path, model(graph(nodes, inputs, outputs, constants)))
    apart, back = tmp_path / "apart.onnx", tmp_path / "back.onnx"
    onegru.rewrite(source, apart, decompose=True)
    onegru.fuse(apart, back)
    layers = onegru.load_layers(back).values()
    found = {layer.input_size: layer.spec.direction for layer in layers if isinstance(layer, onegru.GRU)}
    assert found == {3: "bidirectional", 4: "bidirectional"}
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    first, second = (onegru.load(path).run({"x0": x})["x2"] for path in (source, back))
    np.testing.assert_allclose(first, second, atol=2e-6)


@pytest.mark.parametrize(
    "kind", ["cell", "chain", "chain of two layers", "Scan of two layers", "cell with attention"]
)
def test_the_target_computes_what_the_source_does(kind: str, tmp_path: Path) -> None:
    case = case_of(kind)
    target = tmp_path / "target.onnx"
    report = onegru.fuse(saved(tmp_path, case), target)
    onnx.checker.check_model(str(target), full_check=True)
    assert len(report.fused) == case.count and not report.near_misses
    assert (report.source, report.target) == (str(tmp_path / "model.onnx"), str(target))
    loaded = onegru.load(target)
    assert len(loaded.gru_nodes) == case.count
    assert_computes(loaded, case)
    assert report.nodes[1] < report.nodes[0]
    for item, wanted in zip(report.fused, case.grus, strict=True):
        assert (item.hidden_size, item.input_size) == (wanted.R.shape[1], wanted.W.shape[1])
        assert item.linear_before_reset == bool(wanted.linear_before_reset)
    assert {item.name for item in report.outputs} == set(case.expected)
    assert all(item.max_abs <= item.tolerance and item.runtime == "onegru" for item in report.outputs)


def test_the_rest_stays_as_it_is(tmp_path: Path) -> None:
    case = case_of("cell")
    extra = onnx.helper.make_node("Softsign", [case.model.graph.input[0].name], ["untouched"], name="other")
    case.model.graph.node.append(extra)
    case.model.graph.output.append(onnx.helper.make_tensor_value_info("untouched", 1, None))
    case.model.producer_name = "somebody"
    onegru.fuse(saved(tmp_path, case), tmp_path / "target.onnx")
    target = onnx.load(tmp_path / "target.onnx")
    assert extra in target.graph.node and target.producer_name == "somebody"
    assert list(target.graph.input) == list(case.model.graph.input)
    assert [item.name for item in target.graph.output] == [item.name for item in case.model.graph.output]


def test_the_source_may_be_the_target(tmp_path: Path) -> None:
    case = case_of("chain")
    path = saved(tmp_path, case)
    onegru.fuse(path, path)
    assert len(onegru.load(path).gru_nodes) == case.count
    assert_computes(onegru.load(path), case)
    with pytest.raises(onegru.FormatError, match="no decomposed GRU"):
        onegru.fuse(path, path)  # again
    assert_computes(onegru.load(path), case)


def test_external_data_come_into_the_file(tmp_path: Path) -> None:
    case = case_of("chain")
    (tmp_path / "source").mkdir()
    source, target = tmp_path / "source" / "model.onnx", tmp_path / "target.onnx"
    onnx.save_model(case.model, str(source), save_as_external_data=True, size_threshold=100, location="w.bin")
    report = onegru.fuse(source, target)
    assert "are now in the file" in report.notes[0]
    (tmp_path / "source" / "w.bin").unlink()
    assert_computes(onegru.load(target), case)


def test_given_inputs_sizes_and_tolerance(tmp_path: Path) -> None:
    case = case_of("chain")
    source, target = saved(tmp_path, case), tmp_path / "target.onnx"
    assert (
        onegru.fuse(source, target, check=onegru.Check(inputs=case.feeds, tolerance=1e-4))
        .outputs[0]
        .tolerance
        >= 1e-4
    )
    assert onegru.fuse(source, target, check=onegru.Check(dims={"batch": 5}, seed=3)).outputs
    assert onegru.fuse(source, target, check=False).outputs == ()
    assert_computes(onegru.load(target), case)


def test_the_states_of_a_streaming_file_need_not_be_given(tmp_path: Path) -> None:
    layer, x = gru("x", ["y"], name="gru"), value("x", shape=["T", 1, I])
    source = save(tmp_path, model(graph([layer], [x], ["y"], weights())))
    streaming, loose, target = (tmp_path / f"{name}.onnx" for name in ("streaming", "loose", "fused"))
    onegru.make_streaming(source, streaming)
    check = onegru.Check(inputs={"x": np.ones((7, 1, I), np.float32)})
    onegru.rewrite(streaming, loose, decompose=True, check=check)
    assert onegru.fuse(loose, target, check=check).outputs[0].steps == 7


def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = saved(tmp_path, case_of("chain"))
    onegru.fuse(source, tmp_path / "target.onnx", progress=lambda *call: calls.append(call))
    assert calls and calls[-1][0] == calls[-1][1] > 0
    assert calls == sorted(calls)


def test_what_progress_raises_reaches_the_caller(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise ValueError("enough")

    source = saved(tmp_path, case_of("chain"))
    with pytest.raises(ValueError, match=r"^enough$"):
        onegru.fuse(source, tmp_path / "target.onnx", progress=stop)
    assert not (tmp_path / "target.onnx").exists()


def test_near_misses_are_reported_and_not_fused(tmp_path: Path) -> None:
    case = near_miss("chain: mixed gates", np.random.default_rng(SEED))
    report = onegru.fuse(saved(tmp_path, case), tmp_path / "target.onnx")
    assert report.near_misses and all(item.place and item.reason for item in report.near_misses)
    assert_computes(onegru.load(tmp_path / "target.onnx"), case)


# ---- together with rewriting


def test_fused_and_rewritten(tmp_path: Path) -> None:
    case = case_of("chain")
    target = tmp_path / "target.onnx"
    fused = onegru.fuse(saved(tmp_path, case), target)
    report = onegru.rewrite(target, target, layout=1, opset=22)
    assert len(fused.fused) == len(report.nodes) == case.count
    assert report.opsets[1] == 22
    assert report.nodes[0].done[0] == "layout 0 became 1"
    assert_computes(onegru.load(target), case)


def test_rewriting_fuses_nothing(tmp_path: Path) -> None:
    """But a refusal says what to do first."""
    source, target = saved(tmp_path, case_of("chain")), tmp_path / "target.onnx"
    hint = r"; \d decomposed GRUs?: `onegru fuse` replaces (it|them) with"
    with pytest.raises(onegru.FormatError, match=f"has no GRU node{hint}"):
        onegru.rewrite(source, target)
    with pytest.raises(onegru.SpecError, match=f"has no GRU node{hint}"):
        read_source(source)
    with pytest.raises(onegru.SpecError, match=hint):
        onegru.make_streaming(source, target)
    assert not target.exists()


# ---- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": 3}, "source: 3; must be the name of a file"),
        ({"target": "target.xml"}, "target: 'target.xml'; must end in .onnx"),
        ({"target": "no/where.onnx"}, "target: folder 'no' does not exist; must exist"),
        ({"check": onegru.Check(inputs={})}, "missing"),
        ({"check": onegru.Check(inputs={"Q": 3})}, "'Q': not an input"),
        ({"check": onegru.Check(dims={"K": 3})}, "dims: 'K'; must be a dynamic dimension"),
        ({"check": 1}, "check: 1; must be True, False or an onegru.Check"),
        ({"progress": 3}, "progress: 3; must be a function"),
    ],
)
def test_illegal_arguments(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, Any] = {
        "source": saved(tmp_path, case_of("chain")),
        "target": "target.onnx",
    } | options
    with pytest.raises(onegru.SpecError) as caught:
        onegru.fuse(**arguments)
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(onegru.SpecError, match="is a folder"):
        onegru.fuse(saved(tmp_path, case_of("cell")), tmp_path / "folder.onnx")


def test_models_with_nothing_to_fuse(tmp_path: Path) -> None:
    proto = graph([gru("X", ["Y"])], [value("X", shape=[2, 1, 5])], ["Y"], weights())
    with pytest.raises(onegru.FormatError) as caught:
        onegru.fuse(save(tmp_path, model(proto)), tmp_path / "target.onnx")
    assert str(caught.value) == (
        f"{tmp_path / 'model.onnx'}: it has no decomposed GRU that could be fused; nothing was written"
    )
    assert not (tmp_path / "target.onnx").exists()


def test_only_near_misses_are_refused_with_their_reasons(tmp_path: Path) -> None:
    case = near_miss("cell: mixed gates", np.random.default_rng(SEED))
    with pytest.raises(onegru.FormatError) as caught:
        onegru.fuse(saved(tmp_path, case), tmp_path / "target.onnx")
    (item,) = onegru.inspect(tmp_path / "model.onnx").near_misses
    assert str(caught.value).endswith(f"nothing was written. 1 near miss: {item.place!r}: {item.reason}")
    assert not (tmp_path / "target.onnx").exists()


def test_many_near_misses_are_counted() -> None:
    missed = tuple(NearMiss(f"h{number}", "no state") for number in range(8))
    message = str(fusing.nothing_found("m.onnx", missed, 17))
    assert f"{count(8, 'near miss')}: 'h0': no state; " in message
    assert message.endswith("'h4': no state; 3 more; list them with `onegru inspect`")


def test_old_opsets_are_named(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "x"], ["p"]),
        node("Mul", ["p", "p"], ["q"]),
        node("Add", ["q", "p"], ["y"]),
    ]
    old = model(graph(nodes, [value("x", shape=[2, 2])], ["y"]), opset=6, ir=3)
    with pytest.raises(onegru.FormatError, match=r"it has opset 6; must have at least opset 7"):
        onegru.fuse(save(tmp_path, old), tmp_path / "target.onnx", check=False)


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x89HDF\r\n\x1a\n"])
@pytest.mark.parametrize("check", [False, True])
def test_files_of_other_kinds(data: bytes, check: bool, tmp_path: Path) -> None:
    with pytest.raises(onegru.FormatError, match=r"model\.onnx"):
        onegru.fuse(save(tmp_path, data), tmp_path / "target.onnx", check=check)
    assert not (tmp_path / "target.onnx").exists()


def test_broken_irs(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    path.write_text("<net></net>")
    with pytest.raises(onegru.FormatError, match=r"model\.xml"):
        onegru.fuse(path, tmp_path / "target.xml")
    with pytest.raises(onegru.FormatError, match=r"model\.xml"):
        onegru.load(path, fuse=True)
    with pytest.raises(onegru.SpecError, match=r"target: .*; must end in \.xml"):
        onegru.fuse(path, tmp_path / "target.onnx")
    assert [item.name for item in tmp_path.iterdir()] == ["model.xml"]


@pytest.mark.parametrize("form", ["TensorIterator", "Loop", "unrolled"])
def test_irs(form: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    from tests.support.decomposed.ir import Written, feeds, write

    how = Written(form=form)
    source, target = write(tmp_path / "source.xml", how), tmp_path / "target.xml"
    given = feeds(how)
    wanted = onegru.load(source).run(given)
    report = onegru.fuse(source, target)
    assert [item.operator for item in report.fused] == ["GRU"]
    assert report.nodes[1] < report.nodes[0] and len(report.outputs) == 2
    onegru.fuse(source, target)  # over a pair that is there
    fused = onegru.load(source, fuse=True)
    assert fused.path == str(source)
    for loaded in (fused, onegru.load(target)):
        assert [node.operator for node in loaded.gru_nodes] == ["GRUSequence-5"]
        for name, array in loaded.run(given).items():
            np.testing.assert_allclose(array, wanted[name], rtol=0, atol=2e-6)
    assert len(onegru.inspect(source).decomposed) == 1
    assert not onegru.inspect(target).decomposed


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere\.onnx"):
        onegru.fuse(tmp_path / "nowhere.onnx", tmp_path / "target.onnx")


@pytest.mark.parametrize("kind", ["cell", "chain", "Scan", "Loop"])
def test_damaged_files(tmp_path: Path, kind: str) -> None:
    """A file with a few bytes changed is fused or refused, never anything else."""
    rng = np.random.default_rng(5)
    outcomes = set()
    data = case_of(kind).model.SerializeToString()
    for _ in range(60):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        path = save(tmp_path, bytes(damaged))
        try:
            onegru.fuse(path, tmp_path / "target.onnx", check=False)
            outcomes.add("fused")
        except onegru.OneGRUError as error:
            assert str(error).isprintable()
            outcomes.add("refused")
    assert outcomes == {"fused", "refused"}


def test_a_result_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the search had made a mistake."""

    def worse(*arguments: Any) -> Any:
        found = fusing.replace_decomposed(*arguments)
        for tensor in found.model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.01), tensor.name))
        return found

    monkeypatch.setattr(fuse_module, "replace_decomposed", worse)
    with pytest.raises(onegru.FormatError, match=r"not written: output .* differs from the source by"):
        onegru.fuse(saved(tmp_path, case_of("chain")), tmp_path / "target.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]


def test_a_search_that_stumbles_refuses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru.fusion.onnx import model as onnx_model

    def stumbles(*arguments: object) -> list[Fused]:
        raise KeyError("axis")

    monkeypatch.setattr(onnx_model, "fuse_model", stumbles)
    source = saved(tmp_path, case_of("chain"))
    with pytest.raises(onegru.FormatError, match="cannot be searched for decomposed GRUs"):
        onegru.fuse(source, tmp_path / "target.onnx")
    (miss,) = onegru.inspect(source).near_misses
    assert miss.reason == "cannot be searched for decomposed GRUs (KeyError: 'axis')"
