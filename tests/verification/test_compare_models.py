"""Verification against a reference: another model, or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru.verification.compare_models import compare_with
from tests.support.files.int8_files import store_in_int8
from tests.support.files.onnx_models import I, graph, gru, model, node, save, value, weights
from tests.support.models import mutants
from tests.support.models.verify_cases import H, T, chain, feeds, ir, planted, planted_in


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


def test_a_model_that_was_quantized(tmp_path: Path) -> None:
    """Distinguished from weights of 16 bits, whose errors are as large."""
    pytest.importorskip("onnxruntime")
    path, target = save(tmp_path, chain()), tmp_path / "q.onnx"
    store_in_int8(path, target, quantize=["GRU_1"])
    found = compare_with(onegru.load(target), path, feeds())
    assert [item.agrees for item in found.layers] == [True, False, True]
    assert found.layers[1].diagnosis == "W and R were rounded to int8, with a scale for each row"


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
    assert any("GRU_1 has other inputs" in note for note in found.notes)


def test_another_number_of_grus(tmp_path: Path) -> None:
    lone = graph(
        [gru("X", ["S2", "H2"], bias="B")], [value("X", shape=["t", "b", I])], ["S2", "H2"], weights()
    )
    path = save(tmp_path, model(lone), "lone.onnx")
    found = compare_with(onegru.load(save(tmp_path, chain(True))), path, feeds(True))
    assert not found.agrees and not found.layers
    assert "3 GRUs, and 1 in the reference: they are not compared one by one" in found.notes
    with pytest.raises(onegru.SpecError, match="it has no part that can be compared"):
        compare_with(onegru.load(save(tmp_path, chain(True))), path)


def test_another_number_of_outputs(tmp_path: Path) -> None:
    """Equal names are compared, and a note lists the others."""
    paths = []
    for factor, outputs in ((2.0, ["Z"]), (9.0, ["Z", "H"])):
        nodes = [gru("X", ["Y", "H"], bias="B"), node("Mul", ["Y", "s"], ["Z"])]
        constants = weights() | {"s": np.array(factor, np.float32)}
        proto = model(graph(nodes, [value("X", shape=["t", "b", I])], outputs, constants))
        paths.append(save(tmp_path, proto, f"{factor}.onnx"))
    found = compare_with(onegru.load(paths[0]), paths[1], feeds(True))
    assert not found.agrees and [item.name for item in found.outputs] == ["Z"]
    found = compare_with(onegru.load(paths[1]), paths[1], feeds(True))
    assert found.agrees
    for one, other in (paths, paths[::-1]):
        found = compare_with(onegru.load(one), other, feeds(True))
        assert "outputs that only one of the models has are not compared: ['H']" in found.notes


def test_another_number_of_inputs(tmp_path: Path) -> None:
    path = save(tmp_path, chain(True), "a.onnx")
    proto = chain(True)
    proto.graph.input.append(value("more", shape=[1]))
    found = compare_with(onegru.load(path), save(tmp_path, proto, "b.onnx"), feeds(True))
    assert found.agrees and not found.outputs
    assert "only the GRUs are compared, because the models have different numbers of inputs" in found.notes


def test_grus_that_are_named(tmp_path: Path) -> None:
    """A model of one GRU, against one of three."""
    path = save(tmp_path, chain(True))
    onegru.save_layers(next(iter(onegru.load_layers(path).values())), tmp_path / "lone.onnx")
    lone = onegru.load(tmp_path / "lone.onnx")
    with pytest.raises(
        onegru.SpecError, match=r"one by one; select GRUs with nodes \(--node NAME\): 'GRU_0',"
    ):
        compare_with(lone, path)
    for number in range(3):
        found = compare_with(lone, path, nodes=[f"GRU_{number}"])
        assert [item.reference for item in found.layers] == [f"GRU_{number}"]
        assert found.agrees == (number == 0)
    onegru.save_layers(onegru.load_layers(path)["GRU_1"], tmp_path / "other.safetensors")
    assert not compare_with(lone, tmp_path / "other.safetensors", nodes=[""]).agrees
    with pytest.raises(
        onegru.SpecError, match=r"^nodes: 'GRU_9'; no such GRU in .*; must be one of 'GRU_0', "
    ):
        compare_with(lone, path, nodes=["GRU_9"])
    with pytest.raises(onegru.SpecError, match=r"^nodes: has no effect without against"):
        onegru.verify(lone, nodes=["GRU_1"])


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
    assert found.layers[1].diagnosis == "the gates z and r were swapped in R only"


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Path]:
    """A checkpoint that holds these layers, whatever the file."""

    def make(layers: object) -> Path:
        monkeypatch.setattr("onegru.verification.compare_models.load_layers", lambda path: layers)
        return path

    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"x")
    return make


def test_a_checkpoint(tmp_path: Path, checkpoint: Callable[[object], Path]) -> None:
    path = save(tmp_path, chain(True))
    layers = [item.layer for item in onegru.load(path).gru_nodes if item.layer is not None]
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
    again = {"a": layers[0], "b": layers[0], "c": onegru.Stack(layers[1:])}
    found = compare_with(onegru.load(path), checkpoint(again))  # a and b are one, of two names
    assert found.agrees and [item.reference for item in found.layers] == ["a", "c, layer 0", "c, layer 1"]
    wrong = onegru.load(save(tmp_path, mutants.mutated(chain(True), "z and r", "GRU_1"), "wrong.onnx"))
    found = compare_with(wrong, checkpoint({"": onegru.Stack(layers)}))
    assert found.first == 1 and found.layers[1].diagnosis == "the gates z and r were swapped"
