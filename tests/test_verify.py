"""Verification: planted faults are found, the node named and the mistake told; runtimes cannot harm us."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
import onegru.cli.app
from onegru.compare import difference
from onegru.conformance.against import compare_with
from onegru.conformance.agreement import TOLERANCE, agreement
from onegru.conformance.results import Fault, RuntimeResult, Verification
from onegru.conformance.verify import verify
from onegru.files.graph import Graph
from onegru.runtimes.apart import Outcome
from onegru.runtimes.onnx_evaluator import OnnxEvaluator
from onegru.runtimes.onnxruntime import OnnxRuntime
from onegru.runtimes.openvino import OpenVino
from onegru.runtimes.subject import Runtime, Subject
from tests import mutants
from tests.ir_files import IrWriter
from tests.onnx_models import Arrays, I, graph, gru, model, node, numbers, save, value, weights

T, B, H = 4, 2, 3


def chain(bare: bool = False, dtype: str = "float32", **second: Any) -> onnx.ModelProto:
    """Three GRUs: X and a state, for the second also lengths, to S2 and H2. The second has these attributes.

    Under layout 1 it stands between transpositions.
    """
    constants: Arrays = {"ax": np.array([1]), "flat": np.array([B, T, H])}
    nodes = []
    x, size = "X", I
    for k in range(3):
        constants |= weights(k, str(k), I=size, dtype=dtype)
        attributes = {"linear_before_reset": 1, **second} if k == 1 else {}
        batch_first = attributes.get("layout") == 1
        if batch_first:
            nodes.append(node("Transpose", [x], ["X_b"], perm=[1, 0, 2]))
            x = "X_b"
        names: dict[str, Any] = {} if bare else {"initial_h": "h_b" if batch_first else "h"}
        if k == 1 and not bare:
            names["lens"] = "lens"
        if batch_first and not bare:
            nodes.append(node("Transpose", ["h"], ["h_b"], perm=[1, 0, 2]))
        own: dict[str, Any] = {"W": f"W{k}", "R": f"R{k}", "bias": f"B{k}", "name": f"GRU_{k}"}
        nodes.append(gru(x, [f"Y{k}", f"H{k}"], **own, **names, **attributes))
        if batch_first:
            nodes.append(node("Reshape", [f"Y{k}", "flat"], ["Y_b"]))
            nodes.append(node("Transpose", ["Y_b"], [f"S{k}"], perm=[1, 0, 2]))
        else:
            nodes.append(node("Squeeze", [f"Y{k}", "ax"], [f"S{k}"]))
        x, size = f"S{k}", H
    inputs = [value("X", dtype, ["t", "b", I])]
    if not bare:
        inputs += [value("lens", "int32", ["b"]), value("h", dtype, [1, "b", H])]
    return model(graph(nodes, inputs, [value("S2", dtype), value("H2", dtype)], constants))


def feeds(bare: bool = False, dtype: str = "float32") -> Arrays:
    arrays = {"X": numbers(7, T, B, I, dtype=dtype)}
    if not bare:
        arrays |= {"lens": np.array([T, 2], np.int32), "h": numbers(8, 1, B, H, dtype=dtype)}
    return arrays


def verified(path: Path, inputs: Arrays, *runtimes: Runtime, **options: Any) -> Verification:
    return verify(onegru.load(path), inputs, runtimes=runtimes, **options)


def only(found: Verification) -> RuntimeResult:
    """The result of the one runtime beside onegru, which agrees with itself."""
    own, other = found.runtimes
    assert (own.runtime, own.status) == ("onegru", "agrees")
    return other


def fault_of(found: Verification) -> Fault:
    result = only(found)
    assert result.status == "differs" and not found.agrees
    assert result.fault is not None, result.reason
    return result.fault


REAL: list[Runtime] = [OnnxRuntime(), OpenVino(), OnnxEvaluator()]


# ---- planted faults

# What is planted, in a second GRU with which attributes, and what it is called.
PLANTED: list[tuple[str, dict[str, Any], str]] = [
    ("reset before", {}, "linear_before_reset were 0"),
    ("reset after", {"linear_before_reset": 0}, "linear_before_reset were 1"),
    ("no clip", {"clip": 0.25}, "clip were ignored"),
    ("no layout", {"layout": 1}, "layout were ignored: 0 in place of 1"),
    ("no activations", {"activations": ["Relu", "Softsign"]}, "activations were ignored: Sigmoid and Tanh"),
    (
        "no alpha",
        {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.5]},
        "activation_alpha and activation_beta were ignored",
    ),
    ("reverse", {}, "the direction were reversed"),
    ("no lengths", {}, "sequence_lens were ignored"),
    ("no state", {}, "initial_h were ignored"),
    ("no bias", {}, "B were ignored"),
    ("z and r", {}, "the gates z and r were swapped"),
    ("r, h, z", {}, "the weights for z, r, h were those of r, h, z"),
    ("z and r of R", {}, "the gates z and r were swapped in R alone"),
    ("R transposed", {}, "R were transposed"),
    ("Wb and Rb", {}, "Wb and Rb were exchanged"),
]
planted = pytest.mark.parametrize(("fault", "attributes", "words"), PLANTED, ids=[p[0] for p in PLANTED])


def planted_in(fault: str, attributes: dict[str, Any]) -> tuple[onnx.ModelProto, Arrays]:
    """A model in which the fault matters. Under another layout there are no lengths or state to refuse it."""
    bare = fault == "no layout"
    return chain(bare, **attributes), feeds(bare)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes run here, as they do no harm, and a process for each would take a second."""

    def run(runtime: Runtime, subject: Subject, inputs: Arrays, timeout: float) -> Outcome:
        try:
            return Outcome("ran", runtime.run(subject, inputs))
        except Exception as error:
            return Outcome("refuses", reason=repr(error))

    monkeypatch.setattr("onegru.conformance.verify.run_apart", run)


@planted
@pytest.mark.usefixtures("in_this_process")
def test_faults_of_a_runtime(tmp_path: Path, fault: str, attributes: dict[str, Any], words: str) -> None:
    proto, inputs = planted_in(fault, attributes)
    found = fault_of(verified(save(tmp_path, proto), inputs, mutants.Mutant(fault=fault)))
    assert (found.node, found.operator, found.diagnosis) == ("GRU_1", "GRU-14", words)
    if fault != "no layout":
        assert found.output == "Y" and found.where is not None and found.expected != found.got
        assert found.where == (found.step, found.direction, found.row, found.unit)
        # Lengths matter past a row's end alone, which only the second row has.
        assert (found.step, found.row) == ((2, 1) if fault == "no lengths" else (found.step, found.row))


@planted
def test_faults_of_an_export(tmp_path: Path, fault: str, attributes: dict[str, Any], words: str) -> None:
    proto, inputs = planted_in(fault, attributes)
    right = save(tmp_path, proto, "right.onnx")
    wrong = save(tmp_path, mutants.mutated(proto, fault, "GRU_1"), "wrong.onnx")
    found = compare_with(onegru.load(wrong), right, inputs)
    assert not found.agrees and found.first == 1
    assert [item.agrees for item in found.layers] == [True, False, True]
    assert (found.layers[1].node, found.layers[1].diagnosis) == ("GRU_1", words)
    assert not all(item.agrees for item in found.outputs)


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
    assert found.where is not None and found.expected == right[found.where]


def test_a_node_that_is_asked_alone(tmp_path: Path) -> None:
    """A runtime that will not tell what goes on inside is given each node by itself."""
    found = verified(save(tmp_path, chain(clip=0.25)), feeds(), mutants.Shy())
    fault = fault_of(found)
    assert (fault.node, fault.diagnosis) == ("GRU_1", "clip were ignored")
    assert only(found).reason == "found by running the node alone"


@pytest.mark.usefixtures("in_this_process")
def test_a_difference_that_goes_when_it_is_looked_for(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain(clip=0.25)), feeds(), mutants.Shifty())
    fault = fault_of(found)
    assert (fault.node, fault.diagnosis) == ("GRU_1", "clip were ignored")
    assert only(found).reason == "found by running the node alone"


@pytest.mark.usefixtures("in_this_process")
def test_a_difference_outside_the_grus(tmp_path: Path) -> None:
    result = only(verified(save(tmp_path, chain()), feeds(), mutants.Outside()))
    assert result.status == "differs" and result.fault is None
    assert "outside them" in result.reason
    assert [item.agrees for item in result.outputs] == [False, True]
    assert result.outputs[0].where == (0, 0, 0) and result.outputs[0].max_abs == pytest.approx(0.25, abs=1e-6)


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
    assert found.diagnosis == "clip were ignored" and found.node == onegru.load(path).gru_layers[0].name


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


# ---- what runtimes may do to themselves


def test_a_crash(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    for number in (signal.SIGSEGV, signal.SIGABRT):
        found = verified(path, feeds(), mutants.Crashing(signal=number))
        result = only(found)
        assert (result.status, result.reason) == ("crashed", f"crashed (signal {number:d}, {number.name})")
        assert found.agrees
    assert only(verified(path, feeds(), mutants.Quitting())).reason == "crashed (exit code 3)"


def test_a_hang(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Hanging(), timeout=3)
    assert (only(found).status, only(found).reason) == ("timed out", "took longer than 3 s")
    assert found.agrees


def test_a_refusal(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Refusing())
    assert (only(found).status, only(found).reason) == ("refuses", "no such operator")
    assert found.agrees


def test_an_output_left_out(tmp_path: Path) -> None:
    result = only(verified(save(tmp_path, chain()), feeds(), mutants.Forgetful()))
    assert result.status == "differs"
    assert [(item.agrees, item.reason) for item in result.outputs] == [(True, ""), (False, "is not given")]


def test_what_is_not_installed(tmp_path: Path) -> None:
    found = verified(save(tmp_path, chain()), feeds(), mutants.Absent(name="elsewhere"))
    assert found.absent == ("elsewhere",) and len(found.runtimes) == 1 and found.agrees


def test_a_shape_that_ends_onnxruntime(tmp_path: Path) -> None:
    """With no time steps it ends its process, and OpenVINO's Y_h is whatever lay in memory."""
    pytest.importorskip("onnxruntime")
    inputs = {"X": np.zeros((0, B, I), np.float32)}
    result = only(verified(save(tmp_path, chain(True)), inputs, OnnxRuntime()))
    assert result.status == "crashed" and "signal" in result.reason


# ---- real runtimes


@pytest.mark.parametrize("runtime", REAL, ids=lambda runtime: runtime.name)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_agreement(tmp_path: Path, runtime: Runtime, dtype: str) -> None:
    pytest.importorskip(runtime.name)
    result = only(verified(save(tmp_path, chain(True, dtype)), feeds(True, dtype), runtime))
    assert result.status == "agrees", result
    assert all(item.max_abs is not None and item.max_abs <= TOLERANCE[dtype] for item in result.outputs)


# A runtime, the second GRU's attributes, and what it is known to do.
KNOWN: list[tuple[Runtime, dict[str, Any], str]] = [
    (OnnxRuntime(), {"activations": ["Sigmoid", "Affine"]}, "alpha were 0"),
    (OnnxRuntime(), {"activations": ["Sigmoid", "ThresholdedRelu"]}, "alpha were 0"),
    (OnnxEvaluator(), {"clip": 0.25}, "clip were ignored"),
    (
        OnnxEvaluator(),
        {"activations": ["Relu", "Softsign"]},
        "activations were ignored: Sigmoid and Tanh",
    ),
]


@pytest.mark.parametrize(("runtime", "attributes", "words"), KNOWN)
def test_known_faults(tmp_path: Path, runtime: Runtime, attributes: dict[str, Any], words: str) -> None:
    pytest.importorskip(runtime.name)
    scaled = {**feeds(True), "X": feeds(True)["X"] * 4}
    found = fault_of(verified(save(tmp_path, chain(True, **attributes)), scaled, runtime))
    assert (found.node, found.diagnosis) == ("GRU_1", words)
    assert len(found.known) == 1


def test_lengths_that_the_evaluator_ignores(tmp_path: Path) -> None:
    found = fault_of(verified(save(tmp_path, chain()), feeds(), OnnxEvaluator()))
    assert (found.node, found.diagnosis) == ("GRU_1", "sequence_lens were ignored")
    assert (found.step, found.row) == (2, 1)


def test_lengths_that_openvino_ignores(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = fault_of(verified(save(tmp_path, chain()), feeds(), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_1", "sequence_lens were ignored")


def test_layout_that_openvino_ignores(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = fault_of(verified(save(tmp_path, chain(True, layout=1)), feeds(True), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_1", "layout were ignored: 0 in place of 1")
    assert found.reason.startswith("shape ")


def test_float64_that_openvino_rounds(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = save(tmp_path, chain(True, "float64"))
    found = fault_of(verified(path, feeds(True, "float64"), OpenVino()))
    assert (found.node, found.diagnosis) == ("GRU_0", "it were computed in float32")


def test_a_refusal_that_is_known(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = only(verified(save(tmp_path, chain(True, layout=1)), feeds(True), OnnxRuntime()))
    assert result.status == "refuses" and result.known == ("GRU_1: does not support layout = 1",)


# ---- OpenVINO IRs


def ir(tmp_path: Path, lengths: tuple[int, ...], *, clip: bool = False) -> tuple[Path, Arrays]:
    """Two GRUSequence layers side by side, of an open batch; the second with a clip if wanted."""
    writer = IrWriter()
    x = writer.parameter("X", "float32", "?,?,5")
    state = writer.parameter("state", "float32", "?,1,3")
    lens = writer.parameter("lens", "int32", "?")
    for k in range(2):
        arrays = weights(k)
        arrays["B"] = arrays["B"][:, : 3 * H].copy()
        taken = [writer.const(f"{name}{k}", array) for name, array in arrays.items()]
        attributes = {"hidden_size": H, "activations": ["sigmoid", "tanh"]}
        if clip or k:
            attributes["clip"] = 0.25
        Y, Ho = writer.gru("gru_sequence", f"gru {k}", attributes, [x, state, lens, *taken])
        writer.result(f"Y{k}", Y)
        writer.result(f"Ho{k}", Ho)
    inputs = {
        "X": numbers(1, B, T, I),
        "state": numbers(2, B, 1, H),
        "lens": np.array(lengths, np.int32),
    }
    return writer.write(tmp_path / "model.xml"), inputs


def test_an_ir_that_openvino_runs_right(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = verified(*ir(tmp_path, (T, T)), *REAL)
    statuses = {item.runtime: item.status for item in found.runtimes}
    assert statuses == {"onegru": "agrees", "onnxruntime": "refuses", "openvino": "agrees", "onnx": "refuses"}
    openvino = found.runtimes[2]
    assert len(openvino.outputs) == 4 and all(item.max_abs is not None for item in openvino.outputs)
    assert found.runtimes[1].reason == "reads ONNX models alone"


def test_an_ir_that_openvino_runs_wrong(tmp_path: Path) -> None:
    """It ignores lengths where its fused kernel runs, which it does only for the layer without a clip."""
    pytest.importorskip("openvino")
    found = fault_of(verified(*ir(tmp_path, (T, 2)), OpenVino()))
    assert (found.node, found.operator) == ("gru 0", "GRUSequence-5")
    assert found.diagnosis == "sequence_lens were ignored"
    assert found.output == "Y" and (found.step, found.row) == (2, 1)


# ---- references


def test_the_same_model_agrees(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    found = compare_with(onegru.load(path), path, feeds())
    assert found.agrees and found.first is None and not found.notes
    assert [item.max_abs for item in found.outputs] == [0.0, 0.0]
    assert [item.max_abs for item in found.layers] == [0.0, 0.0, 0.0]


def test_names_that_differ_are_matched_by_order(tmp_path: Path) -> None:
    proto = chain(True)
    other = onnx.ModelProto.FromString(proto.SerializeToString().replace(b"\x01X", b"\x01Z"))
    assert [item.name for item in other.graph.input] == ["Z"]
    found = compare_with(
        onegru.load(save(tmp_path, proto, "a.onnx")), save(tmp_path, other, "b.onnx"), feeds(True)
    )
    assert found.agrees and found.outputs and "inputs are matched by their order: 'X' is 'Z'" in found.notes


def test_a_layout_that_both_mean(tmp_path: Path) -> None:
    """The same function with another layout of its second GRU: nothing differs."""
    one = save(tmp_path, chain(True), "one.onnx")
    other = save(tmp_path, chain(True, layout=1), "other.onnx")
    found = compare_with(onegru.load(other), one, feeds(True))
    assert found.agrees and [item.agrees for item in found.layers] == [True, True, True]


def test_what_differs_outside_the_grus(tmp_path: Path) -> None:
    right = chain(True)
    wrong = onnx.ModelProto.FromString(right.SerializeToString())
    squeeze = next(item for item in wrong.graph.node if item.output[0] == "S0")
    squeeze.output[0] = "S0_before"
    index = list(wrong.graph.node).index(squeeze)
    wrong.graph.node.insert(index + 1, node("Neg", ["S0_before"], ["S0"]))
    paths = save(tmp_path, wrong, "wrong.onnx"), save(tmp_path, right, "right.onnx")
    found = compare_with(onegru.load(paths[0]), paths[1], feeds(True))
    assert not found.agrees and found.first is None
    assert any("GRU_1 takes other inputs" in note for note in found.notes)


def test_another_number_of_grus(tmp_path: Path) -> None:
    lone = graph(
        [gru("X", ["S2", "H2"], bias="B")], [value("X", shape=["t", "b", I])], ["S2", "H2"], weights()
    )
    path = save(tmp_path, model(lone), "lone.onnx")
    found = compare_with(onegru.load(save(tmp_path, chain(True))), path, feeds(True))
    assert not found.agrees and not found.layers
    assert "3 GRUs, and 1 in the reference: they are not compared one by one" in found.notes
    with pytest.raises(onegru.SpecError, match="nothing in it can be compared"):
        compare_with(onegru.load(save(tmp_path, chain(True))), path)


def test_another_size(tmp_path: Path) -> None:
    def lone(size: int, name: str) -> Path:
        node_ = gru("X", ["Y"], bias="B", hidden_size=size)
        infos = [value("X", shape=["t", "b", I])]
        return save(tmp_path, model(graph([node_], infos, ["Y"], weights(H=size))), name)

    found = compare_with(onegru.load(lone(3, "a.onnx")), lone(4, "b.onnx"))
    assert not found.agrees and found.first == 0
    assert found.layers[0].differences == ("hidden_size: 3; 4 in the reference",)


def test_an_ir_against_an_onnx_model(tmp_path: Path) -> None:
    path, _ = ir(tmp_path, (T, T))
    constants = {f"{name}{k}": array for k in range(2) for name, array in weights(k).items()}
    for k in range(2):
        constants[f"B{k}"][:, 3 * H :] = 0
    clips: list[dict[str, Any]] = [{}, {"clip": 0.25}]
    nodes = [gru("X", [f"Y{k}"], W=f"W{k}", R=f"R{k}", bias=f"B{k}", **clips[k]) for k in range(2)]
    proto = model(graph(nodes, [value("X", shape=["t", "b", I])], ["Y0", "Y1"], constants))
    assert compare_with(onegru.load(save(tmp_path, proto, "right.onnx")), path).agrees
    constants["R1"] = constants["R1"][:, [*range(3, 6), *range(3), *range(6, 9)]]
    proto = model(graph(nodes, [value("X", shape=["t", "b", I])], ["Y0", "Y1"], constants))
    found = compare_with(onegru.load(save(tmp_path, proto, "wrong.onnx")), path)
    assert found.first == 1
    assert found.layers[1].diagnosis == "the gates z and r were swapped in R alone"


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Path]:
    """A checkpoint that holds these layers, whatever the file."""

    def make(layers: object) -> Path:
        monkeypatch.setattr("onegru.conformance.checkpoint.load_layers", lambda path: layers)
        return Path("checkpoint.safetensors")

    return make


def test_a_checkpoint(tmp_path: Path, checkpoint: Callable[[object], Path]) -> None:
    path = save(tmp_path, chain(True))
    layers = [item.layer for item in onegru.load(path).gru_layers if item.layer is not None]
    right: object
    found = None
    for right in (
        {"": onegru.Stack(layers)},
        {"encoder": onegru.Stack(layers[:2]), "decoder": layers[2]},
    ):
        found = compare_with(onegru.load(path), checkpoint(right))
        assert found.agrees and len(found.layers) == 3
    assert found is not None
    assert [item.reference for item in found.layers] == ["encoder, layer 0", "encoder, layer 1", "decoder"]
    wrong = onegru.load(save(tmp_path, mutants.mutated(chain(True), "z and r", "GRU_1"), "wrong.onnx"))
    found = compare_with(wrong, checkpoint({"": onegru.Stack(layers)}))
    assert found.first == 1 and found.layers[1].diagnosis == "the gates z and r were swapped"


# ---- what counts as agreement


def test_a_model_that_enlarges_rounding(tmp_path: Path) -> None:
    """Large weights make a GRU chaotic: no two runtimes agree on it, and none is at fault."""
    constants = {name: array * 2 for name, array in weights(I=16, H=16).items()}
    nodes = [gru("X", ["Y"], bias="B", hidden_size=16, linear_before_reset=1)]
    path = save(tmp_path, model(graph(nodes, [value("X", shape=["t", "b", 16])], ["Y"], constants)))
    inputs = {"X": np.random.default_rng(0).standard_normal((100, 2, 16)).astype(np.float32)}
    found = verified(path, inputs, OnnxEvaluator())
    outputs = found.runtimes[1].outputs
    assert found.agrees
    assert outputs[0].tolerance > TOLERANCE["float32"] and outputs[0].max_abs is not None
    assert outputs[0].max_abs > TOLERANCE["float32"]
    assert not verified(path, inputs, OnnxEvaluator(), tolerance=1e-5).agrees


@pytest.mark.usefixtures("in_this_process")
def test_the_tolerance_that_is_given(tmp_path: Path) -> None:
    path = save(tmp_path, chain())
    assert not verified(path, feeds(), mutants.Outside(), tolerance=0.1).agrees
    found = verified(path, feeds(), mutants.Outside(), tolerance=0.3)
    assert found.agrees and found.runtimes[1].outputs[0].tolerance == 0.3
    for name, options in (("tolerance", {"tolerance": -1.0}), ("timeout", {"timeout": 0.0})):
        with pytest.raises(onegru.SpecError, match=name):
            verified(path, feeds(), **options)


def test_agreement_of_what_is_not_finite() -> None:
    a = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert agreement(a, a.copy(), 0.0).agrees
    for index, other in ((0, np.nan), (1, 0.0), (2, -np.inf), (2, 1e38), (3, 0.0)):
        b = a.copy()
        b[index] = other
        found = agreement(a, b, 0.5)
        assert not found.agrees and found.where == (index,)
    assert agreement(a, a.astype(np.float64), 1.0).reason == "type float64; must be float32"
    assert agreement(a, a[:2], 1.0).reason == "shape [2]; must be [4]"


def test_agreement_of_what_is_no_number() -> None:
    words = np.array(["a", "b"], object)
    assert agreement(words, words.copy(), 0.0).agrees
    found = agreement(words, np.array(["a", "c"], object), 0.0)
    assert (found.agrees, found.where, found.expected, found.got) == (False, (1,), "b", "c")
    assert not agreement(np.array([1, 2]), np.array([1, 3]), 10.0).agrees
    assert agreement([words], [words], 0.0).reason == "not a tensor; not compared"


def test_difference() -> None:
    a = np.array([[1.0, 2.0], [3.0, np.nan]], np.float32)
    b = a.copy()
    assert (difference(a, b).max_abs, difference(a, b).max_ulp, difference(a, b).where) == (0.0, 0, None)
    b[1, 0] = np.nextafter(np.float32(3), np.float32(4))
    found = difference(a, b)
    assert (found.max_ulp, found.where) == (1, (1, 0)) and found.max_abs == b[1, 0] - np.float32(3)
    b[0, 1] = -2.0
    assert difference(a, b).where == (0, 1) and difference(a, b).max_abs == 4.0
    tiny = np.float64(5e-324)
    assert difference(np.array([tiny]), np.array([-tiny])).max_ulp == 2
    assert difference(np.array([1.0]), np.array([np.nan])).max_abs == np.inf
    with pytest.raises(onegru.SpecError):
        difference(a, b[0])


# ---- the command

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command, in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onegru", "verify", *map(str, arguments)])
        capfd.readouterr()
        code = onegru.cli.app.run()
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


DIMS = ("--dim", "t=4", "--dim", "b=2")


def test_a_clean_model(cli: Cli) -> None:
    save(Path(), chain(True))
    code, out, err = cli("model.onnx", *DIMS)
    assert (code, err) == (0, "")
    assert "onegru" in out and "onnxruntime" in out and "differs" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_model_that_a_runtime_gets_wrong(cli: Cli) -> None:
    save(Path(), chain(True, clip=0.25))
    code, out, err = cli("model.onnx", *DIMS, "--random", 3)
    assert (code, err) == (1, "")
    assert "onnx differs first in GRU node 'GRU_1' (GRU-14): Y at time step 0, row 0" in out
    assert "as if clip were ignored; known: it ignores clip" in out


def test_a_wrong_export(cli: Cli) -> None:
    save(Path(), chain(True), "right.onnx")
    save(Path(), mutants.mutated(chain(True), "z and r", "GRU_1"), "wrong.onnx")
    code, out, err = cli("wrong.onnx", *DIMS, "--against", "right.onnx")
    assert (code, err) == (1, "")
    assert "right.onnx differs first in GRU 'GRU_1'" in out
    assert "as if the gates z and r were swapped" in out
    code, out, err = cli("right.onnx", *DIMS, "--against", "right.onnx")
    assert (code, err) == (0, "") and "right.onnx: all 3 GRUs compute the same" in out


def test_given_inputs_and_json(cli: Cli) -> None:
    save(Path(), chain(clip=0.25))
    np.savez("in.npz", **feeds())  # type: ignore[arg-type]
    code, out, err = cli("model.onnx", "-i", "in.npz", "--json", "--against", "model.onnx")
    assert (code, err) == (1, "")
    document = json.loads(out, parse_constant=lambda word: pytest.fail(word))
    assert document["agrees"] is False and document["against"]["agrees"] is True
    evaluator = next(item for item in document["runtimes"] if item["runtime"] == "onnx")
    assert evaluator["status"] == "differs" and evaluator["fault"]["node"] == "GRU_1"
    assert evaluator["fault"]["where"] == [0, 0, 0, 0]
    assert document["runtimes"][0]["outputs"][0]["output"] == "S2"


def test_refusals_alone_do_not_fail(cli: Cli) -> None:
    pytest.importorskip("onnxruntime")
    save(Path(), chain(True, "float64"))
    code, out, _ = cli("model.onnx", *DIMS, "--tolerance", 1e-5)
    assert code == 0 and "onnxruntime refuses: " in out and "known: GRU_0: loads float64" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.onnx"], "give --dim t=SIZE"),
        (["nothing.onnx"], "nothing.onnx: No such file"),
        (["model.onnx", *DIMS, "-i", "Z=x.npy"], "'Z' is not an input"),
        (["model.onnx", *DIMS, "--tolerance", "-1"], "tolerance"),
        (["model.onnx", *DIMS, "--against", "nothing.onnx"], "nothing.onnx: No such file"),
        (["model.onnx", *DIMS, "--against", "broken.onnx"], "broken.onnx: "),
        (["broken.onnx"], "broken.onnx: "),
    ],
)
def test_bad_input(cli: Cli, arguments: list[str], message: str) -> None:
    save(Path(), chain(True))
    save(Path(), b"\x08no model", "broken.onnx")
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_help_says_what_the_exit_code_means(cli: Cli) -> None:
    code, out, _ = cli("--help")
    assert code == 0 and "The exit code is 1 if something differs" in out


# ---- what runtimes are given


def test_subjects_leave_the_graph_as_it_is(tmp_path: Path) -> None:
    """A verification must not change the model that it is given."""
    loaded = onegru.load(save(tmp_path, chain()))
    before: Graph = loaded.graph
    outputs = loaded.run(feeds())
    verify(loaded, feeds(), runtimes=[mutants.Fake()])
    assert loaded.graph is before
    for name, array in loaded.run(feeds()).items():
        assert np.array_equal(array, outputs[name])


def test_versions_are_known_without_an_import() -> None:
    assert OnnxEvaluator().version() == onnx.__version__
    assert OnnxRuntime().refuses(Subject("a.xml", None, {})) == "reads ONNX models alone"
