"""Verification: planted faults are found, the node is named and the mistake reported."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru.formats.graph import Graph
from onegru.peers.base import ModelUnderTest
from onegru.peers.onnx_reference import OnnxEvaluator
from onegru.peers.onnxruntime import OnnxRuntime
from onegru.peers.openvino import OpenVino
from onegru.verification import probe
from onegru.verification.compare_runtimes import compare_runtimes
from onegru.verification.diagnose import diagnose
from onegru.verification.gru_call import call_of, in_type
from onegru.verification.locate import find_fault, subject_of
from onegru.verification.trace import traced_run
from tests.support.decomposed.draw import decomposed
from tests.support.files.onnx_models import I, graph, gru, model, node, save, value, weights
from tests.support.layers import make_gru, make_stack
from tests.support.models import mutants
from tests.support.models.verify_cases import (
    REAL,
    T,
    chain,
    fault_of,
    feeds,
    only,
    planted,
    planted_in,
    verified,
)


@planted
@pytest.mark.usefixtures("in_this_process")
def test_faults_of_a_runtime(tmp_path: Path, fault: str, attributes: dict[str, Any], words: str) -> None:
    proto, inputs = planted_in(fault, attributes)
    found = fault_of(verified(save(tmp_path, proto), inputs, mutants.Mutant(fault=fault)))
    assert (found.node, found.operator, found.diagnosis) == ("GRU_1", "GRU-14", words)
    if fault != "no layout":
        assert found.output == "Y" and found.where is not None and found.expected != found.got
        assert found.where == (found.step, found.direction, found.row, found.unit)
        # Lengths matter only in the padding, which only the second row has.
        assert (found.step, found.row) == ((2, 1) if fault == "no lengths" else (found.step, found.row))


@pytest.mark.usefixtures("in_this_process")
def test_two_faults_at_once(tmp_path: Path) -> None:
    """ONNX's evaluator ignores the clip, the lengths and the activations; here two of them matter."""
    found = fault_of(verified(save(tmp_path, chain(clip=0.25)), feeds(), OnnxEvaluator()))
    assert (found.node, found.diagnosis) == ("GRU_1", "clip were ignored and sequence_lens were ignored")
    assert len(found.known) == 2


@pytest.mark.usefixtures("in_this_process")
def test_faults_that_look_the_same(tmp_path: Path) -> None:
    """With default activations forward, it is the same to ignore those of reverse and to ignore all."""
    constants = weights(D=2)
    names = ["Sigmoid", "Tanh", "Relu", "Softsign"]
    nodes = [gru("X", ["Y"], bias="B", direction="bidirectional", activations=names, name="GRU_1")]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=["t", "b", I])], ["Y"], constants)))
    found = fault_of(verified(path, feeds(True), OnnxEvaluator()))
    assert found.diagnosis == (
        "activations were ignored: Sigmoid and Tanh, or "
        "the forward direction's activations served both directions"
    )


@pytest.mark.usefixtures("in_this_process")
def test_where_a_bidirectional_gru_differs_first(tmp_path: Path) -> None:
    """The reverse direction computes its last time step first."""
    constants = weights(D=2)
    nodes = [gru("X", ["Y"], bias="B", direction="bidirectional", name="GRU_1", clip=0.3)]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=["t", "b", I])], ["Y"], constants)))
    found = fault_of(verified(path, feeds(True), mutants.Mutant(fault="no clip")))
    right = onegru.load(path).run(feeds(True))["Y"]
    constants.pop("B")
    wrong = onegru.gru(feeds(True)["X"], *weights(D=2).values(), direction="bidirectional")[0]
    steps = np.argwhere(np.abs(right - wrong) > 1e-4)
    computed = [(T - 1 - t if d else t, b, d, h) for t, d, b, h in steps]
    first = min(computed)
    assert (found.row, found.direction, found.unit) == first[1:]
    assert found.step == (T - 1 - first[0] if first[2] else first[0])
    assert found.where is not None
    assert found.expected == pytest.approx(right[found.where], abs=1e-6)  # it is the float64 reference's


@pytest.mark.long
def test_a_node_that_runs_separately(tmp_path: Path) -> None:
    """A runtime that does not expose inner values is given each node by itself."""
    found = verified(save(tmp_path, chain(clip=0.25)), feeds(), mutants.Shy())
    fault = fault_of(found)
    assert (fault.node, fault.diagnosis) == ("GRU_1", "clip were ignored")
    assert only(found).reason == "found by running the node separately"


@pytest.mark.usefixtures("in_this_process")
def test_a_difference_that_goes_when_it_is_looked_for(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain(clip=0.25)), feeds(), mutants.Shifty())
    fault = fault_of(found)
    assert (fault.node, fault.diagnosis) == ("GRU_1", "clip were ignored")
    assert only(found).reason == "found by running the node separately"


@pytest.mark.usefixtures("in_this_process")
def test_a_difference_outside_the_grus(tmp_path: Path) -> None:
    result = only(verified(save(tmp_path, chain()), feeds(), mutants.Outside()))
    assert result.status == "differs" and result.fault is None
    assert "outside them" in result.reason
    assert [item.agrees for item in result.outputs] == [False, True]
    assert result.outputs[0].where and result.outputs[0].max_abs == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_an_ir_in_float64_is_known_to_be_computed_in_float32(count: int, tmp_path: Path) -> None:
    """Its lengths are all steps, which the node is not given."""
    pytest.importorskip("openvino")
    made = make_stack(count, dtype="float64") if count > 1 else make_gru(dtype="float64")
    onegru.save_layers(made, tmp_path / "m.xml")
    found = onegru.verify(tmp_path / "m.xml", runtimes=["openvino"])
    fault = found.runtimes[-1].fault
    assert fault is not None and fault.known == ("computes float64 in float32",)
    assert fault.diagnosis == "it were computed in float32" and not found.runtimes[-1].reason


def test_a_gru_within_a_function(tmp_path: Path) -> None:
    names = ["X", "W", "R", "B"]
    inner = gru("X", ["Y"], bias="B", name="inner", clip=0.25)
    opsets = [onnx.helper.make_opsetid("", 14)]
    function = onnx.helper.make_function("own", "Encoder", names, ["Y"], [inner], opsets)
    call = node("Encoder", names, ["Y"], domain="own", name="call")
    proto = model(
        graph([call], [value("X", shape=["t", "b", I])], ["Y"], weights()),
        functions=[function],
        domains={"own": 1},
    )
    path = save(tmp_path, proto)
    found = fault_of(verified(path, feeds(True), OnnxEvaluator()))
    assert found.diagnosis == "clip were ignored" and found.node == onegru.load(path).gru_nodes[0].name


@pytest.mark.usefixtures("in_this_process")
def test_weights_computed_in_each_run(tmp_path: Path) -> None:
    nodes = [node("Neg", ["minus"], ["W"]), gru("X", ["Y"], bias="B", name="GRU_1", clip=0.25)]
    constants = weights()
    minus = -constants.pop("W")
    inputs = [value("X", shape=["t", "b", I]), value("minus", shape=minus.shape)]
    path = save(tmp_path, model(graph(nodes, inputs, ["Y"], constants)))
    found = fault_of(verified(path, {**feeds(True), "minus": minus}, mutants.Mutant()))
    assert (found.node, found.diagnosis) == ("GRU_1", "clip were ignored")


def test_external_data(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    proto = chain(True, clip=0.25)
    options: dict[str, Any] = {
        "save_as_external_data": True,
        "location": "weights.bin",
        "size_threshold": 100,
    }
    onnx.save_model(proto, tmp_path / "model.onnx", **options)
    assert (tmp_path / "weights.bin").stat().st_size > 500
    found = verified(tmp_path / "model.onnx", feeds(True), *REAL)
    statuses = {item.runtime: item.status for item in found.runtimes}
    assert statuses == {"onegru": "agrees", "onnxruntime": "agrees", "openvino": "agrees", "onnx": "differs"}
    fault = found.runtimes[3].fault
    assert fault is not None and (fault.node, fault.diagnosis) == ("GRU_1", "clip were ignored")


def test_large_external_data_are_read_by_the_runtimes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the file's folder, as no message of protobuf holds 2 GiB."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    monkeypatch.setattr(probe, "_LARGE", 500)
    path = tmp_path / "model.onnx"
    onnx.save_model(chain(), path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    subject = subject_of(onegru.load(path))
    assert subject.model is not None and b"weights.bin" in subject.model
    statuses = {item.runtime: item.status for item in verified(path, feeds(), *REAL).runtimes}
    # The others ignore lengths.
    assert statuses == {"onegru": "agrees", "onnxruntime": "agrees", "openvino": "differs", "onnx": "differs"}


def test_sequences_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    paths = []
    for factor in (1.0, 5.0):
        nodes = [gru("X", ["Y"], bias="B"), node("Mul", ["Y", "s"], ["Z"])]
        nodes.append(node("SplitToSequence", ["Z"], ["parts"], axis=0))
        constants = weights() | {"s": np.array(factor, np.float32)}
        proto = model(graph(nodes, [value("X", shape=[4, 2, I])], [], constants))
        proto.graph.output.append(
            onnx.helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None)
        )
        paths.append(save(tmp_path, proto, f"{factor}.onnx"))
    found = onegru.verify(paths[0], runtimes=["onnxruntime"])
    assert found.agrees and [item.status for item in found.runtimes] == ["agrees"] * 2
    assert [item.compared for result in found.runtimes for item in result.outputs] == [24, 24]
    found = onegru.verify(paths[0], against=paths[1], runtimes=["onnxruntime"])
    assert found.against is not None and not found.against.agrees


def test_inputs_without_a_step_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, chain(True))
    with pytest.raises(onegru.FormatError, match="no GRU runs a step, so the comparison is inconclusive"):
        onegru.verify(path, {"X": np.zeros((0, 2, I), np.float32)}, runtimes=["onnx"])


# ---- what runtimes are given


def test_subjects_leave_the_graph_as_it_is(tmp_path: Path) -> None:
    """A verification must not change the model that it is given."""
    loaded = onegru.load(save(tmp_path, chain()))
    before: Graph = loaded.graph
    outputs = loaded.run(feeds())
    compare_runtimes(loaded, feeds(), runtimes=[mutants.Fake()])
    assert loaded.graph is before
    for name, array in loaded.run(feeds()).items():
        assert np.array_equal(array, outputs[name])


def test_versions_are_known_without_an_import() -> None:
    assert OnnxEvaluator().version() == onnx.__version__
    assert OnnxRuntime().refuses(ModelUnderTest("a.xml", None, {})) == "reads only ONNX models"


@pytest.mark.usefixtures("in_this_process")
def test_warnings_are_given_once(tmp_path: Path) -> None:
    """When the model is loaded, and not again for each run of it."""
    path = save(tmp_path, chain(True, activation_alpha=[0.5]))
    with pytest.warns(onegru.SpecWarning, match="too many for"):
        loaded = onegru.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare_runtimes(loaded, feeds(True), runtimes=[OnnxEvaluator()]).agrees


@pytest.mark.parametrize(("dtype", "share"), [("float16", 1.0), ("float16", 0.5), ("bfloat16", 0.5)])
def test_the_smaller_type_that_was_computed_in(tmp_path: Path, dtype: str, share: float) -> None:
    """The type whose rounding is nearest, though another one's may be near as well."""
    loaded = onegru.load(save(tmp_path, chain(True)))
    call = call_of(loaded.gru_nodes[0], traced_run(loaded, feeds(True), "reference").values)
    exact, rounded = call.run(), in_type(call, dtype).run()
    got = {
        name: (array + share * (rounded[name].astype(np.float64) - array)).astype(np.float32)
        for name, array in exact.items()
    }
    assert diagnose(call, got) == f"it were computed in {dtype}"


def test_the_public_function(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    for given in (path, str(path), onegru.load(path)):
        found = onegru.verify(given, runtimes=["onnxruntime"], seed=3)
        assert found.agrees and [item.runtime for item in found.runtimes] == ["onegru", "onnxruntime"]
    assert onegru.verify(path, feeds(), against=path, runtimes=["onnxruntime"]).against is not None
    wrong = [
        ({"runtimes": ["tvm"]}, "runtimes: 'tvm'; must be one of"),
        ({"inputs": feeds(), "dims": {"T": 3}}, "dims: has no effect together with inputs"),
        ({"dims": {"nothing": 3}}, "dims: 'nothing'; must be a dynamic dimension"),
        ({"against": 3}, "against: 3; must be"),
        ({"runtimes": "onnx"}, "runtimes: 'onnx'; must be a list of names"),
        ({"precision": "f8"}, "precision: 'f8'; must be"),
        ({"seed": -1}, "seed: -1; must be"),
        ({"seed": np.zeros(0)}, "seed: an array"),
        ({"inputs": 3}, "inputs: 3; must be a mapping"),
        ({"tolerance": -1.0}, "tolerance: -1.0; must be at least 0"),
        ({"timeout": 0}, "timeout: 0.0; must be above 0 and finite"),
        ({"timeout": float("inf")}, "timeout: inf; must be above 0 and finite"),
        ({"progress": 3}, "progress: 3; must be a function"),
    ]
    for arguments, message in wrong:
        with pytest.raises(onegru.SpecError, match=re.escape(message)):
            onegru.verify(path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(onegru.SpecError, match=r"model: 3; must be"):
        onegru.verify(3)  # type: ignore[arg-type]


def test_a_model_in_memory_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    with pytest.raises(onegru.SpecError, match="must come from a file"):
        onegru.verify(onegru.load(path.read_bytes()))


@pytest.mark.parametrize("is_decomposed", [True, False])
def test_a_model_without_gru_nodes(tmp_path: Path, is_decomposed: bool) -> None:
    proto = decomposed("chain", np.random.default_rng(1)).model
    if not is_decomposed:
        proto = model(graph([node("Relu", ["X"], ["Y"])], [value("X", shape=[1, 1, I])], ["Y"], {}))
    loaded = onegru.load(save(tmp_path, proto))
    fault, words = find_fault(loaded, {}, {}, OnnxEvaluator(), lambda *_: pytest.fail(), lambda _: True)
    assert fault is None and words.startswith("it has no GRU node, ")
    assert ("1 decomposed GRU: `onegru fuse`" in words) == is_decomposed


def test_openvino_is_given_the_file(tmp_path: Path) -> None:
    """From memory it takes files that it refuses by their names, as programs read them."""
    loaded = onegru.load(save(tmp_path, chain()))
    subject = replace(subject_of(loaded), model=b"not the model")
    assert OpenVino().run(subject, feeds()).keys() == {info.name for info in loaded.outputs}
    with pytest.raises(RuntimeError):
        OpenVino().run(replace(subject_of(loaded, probed=True), model=b"not the model"), feeds())
