"""What `onegru.save` writes: other runtimes run it, onegru reads it back with the same bits."""

from __future__ import annotations

import errno
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import GRU, SpecError, Stack
from tests.contracts.test_imports import python
from tests.support.cases import DTYPES, TAKERS
from tests.support.kill_points import kill_points
from tests.support.layers import Array, H, I, call, draw, make_gru, make_stack, reference
from tests.support.onnx_models import onnxruntime_results

DIRECTIONS = ("forward", "reverse", "bidirectional")
LENGTHS = np.array([6, 1, 4], np.int32)
TOLERANCE = 1e-6
GROWN_TOLERANCE = 3e-6  # of states beyond 1: sums in OpenVINO's order, then growth; 1.1e-6 seen


def onnx_feeds(X: Array, states: list[Array], lengths: Array | None = None) -> dict[str, Array]:
    """The inputs of a written ONNX model."""
    names = [f"initial_h_{index}" for index in range(len(states))] if len(states) > 1 else ["initial_h"]
    feeds = {"X": X, **dict(zip(names, states, strict=True))}
    return feeds if lengths is None else {**feeds, "sequence_lens": lengths}


def assert_close(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))  # Affine and Relu are not bounded
    relative = TOLERANCE if scale == 1.0 else GROWN_TOLERANCE
    np.testing.assert_allclose(found, wanted, rtol=0, atol=relative * scale)


# ---- ONNX


@pytest.mark.parametrize("opset", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 21, 22])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_onnx_of_every_opset(tmp_path: Path, opset: int, count: int) -> None:
    stack = make_stack(count, ("bidirectional", "forward", "reverse"), linear_before_reset=opset >= 3)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.onnx"
    onegru.save(layers, path, opset=opset, sequence_lens=True)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    known = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset if opset > 4 else 1)])
    assert (proto.ir_version, proto.opset_import[0].version) == (known, opset)
    X, states = draw(layers)
    Y, Y_h = call(layers, X, states, LENGTHS)
    feeds = onnx_feeds(X, states, LENGTHS)
    model = onegru.load(path)
    results = model.run(feeds)
    names = ["Y_h"] if count == 1 else [f"Y_h_{index}" for index in range(count)]
    assert list(results) == ["Y", *names]
    assert all(np.array_equal(results[name], array) for name, array in zip(results, (Y, *Y_h), strict=True))
    assert [gru.layer.weights.B.tobytes() for gru in model.gru_nodes if gru.layer] == [
        layer.weights.B.tobytes() for layer in stack.layers
    ]
    if opset >= 7:
        for name, array in onnxruntime_results(proto, feeds).items():
            assert_close(array, results[name])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("clip", [None, 0.375])
def test_onnx_in_onnxruntime(tmp_path: Path, direction: str, after: bool, clip: float | None) -> None:
    layer = make_gru(direction=direction, linear_before_reset=after, clip=clip)
    path = tmp_path / "m.onnx"
    onegru.save(layer, path, opset=14, sequence_lens=True)
    X, states = draw(layer)
    results = onnxruntime_results(onnx.load(path), onnx_feeds(X, states, LENGTHS))
    Y, Y_h = call(reference(layer), X, states, LENGTHS)
    assert_close(results["Y"], Y)
    assert_close(results["Y_h"], Y_h[0])


@pytest.mark.parametrize("f", sorted(TAKERS))
@pytest.mark.parametrize("opset", [1, 7, 22])
def test_onnx_hands_out_alpha_and_beta(tmp_path: Path, f: str, opset: int) -> None:
    # Every function as f of the forward direction; those around it take both, one or none of the values.
    names = [f, "Affine", "LeakyRelu", "HardSigmoid"]
    numbers = {1: [0.25, 0.75, 0.125, 0.3], 2: [0.5, 0.0625, 0.4]}
    alpha, beta = (numbers[least][: sum(TAKERS[name] >= least for name in names)] for least in (1, 2))
    layer = make_gru(
        direction="bidirectional", activations=names, activation_alpha=alpha, activation_beta=beta
    )
    path = tmp_path / "m.onnx"
    onegru.save(layer, path, opset=opset)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and gru.layer.spec == layer.spec
    if opset >= 7:
        X, states = draw(layer)
        results = onnxruntime_results(onnx.load(path), onnx_feeds(X, states))
        Y, Y_h = layer(X, states[0])
        assert_close(results["Y"], Y)
        assert_close(results["Y_h"], Y_h)


@pytest.mark.parametrize("opset", [14, 22])
def test_onnx_batch_first(tmp_path: Path, opset: int) -> None:
    stack = make_stack(3, ("bidirectional", "forward"))
    path = tmp_path / "m.onnx"
    onegru.save(stack, path, opset=opset, layout=1)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    X, states = draw(stack)
    Y, Y_h = stack(X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states], layout=1)
    feeds = onnx_feeds(X.swapaxes(0, 1), [state.swapaxes(0, 1) for state in states])
    results = onegru.load(path).run(feeds)
    assert all(np.array_equal(a, b) for a, b in zip(results.values(), (Y, *Y_h), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", [3, 22])
def test_onnx_types(tmp_path: Path, dtype: str, opset: int) -> None:
    stack = make_stack(2, ("bidirectional",), dtype=dtype)
    path = tmp_path / "m.onnx"
    if dtype == "bfloat16" and opset < 22:
        with pytest.raises(SpecError, match="opset: 3; must be at least 22, as the weights are bfloat16"):
            onegru.save(stack, path, opset=opset)
        return
    onegru.save(stack, path, opset=opset)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    layers = [gru.layer for gru in onegru.load(path).gru_nodes]
    for layer, wanted in zip(layers, stack.layers, strict=True):
        assert layer is not None and layer.spec == wanted.spec
        assert all(getattr(layer.weights, n).tobytes() == getattr(wanted.weights, n).tobytes() for n in "WRB")


def test_onnx_inputs_and_sizes(tmp_path: Path) -> None:
    layer = make_gru()
    path = tmp_path / "m.onnx"
    onegru.save(layer, path)
    model = onegru.load(path)
    assert {info.name: info.shape for info in (*model.inputs, *model.outputs)} == {
        "X": ("seq_length", "batch_size", I),
        "initial_h": (1, "batch_size", H),
        "Y": ("seq_length", 1, "batch_size", H),
        "Y_h": (1, "batch_size", H),
    }
    onegru.save(layer, path, initial_h=False, sequence_lens=True, batch_size=2, seq_length=7)
    model = onegru.load(path)
    assert {info.name: (info.dtype, info.shape) for info in model.inputs} == {
        "X": ("float32", (7, 2, I)),
        "sequence_lens": ("int32", (2,)),
    }
    onegru.save(layer, path, initial_h=False, opset=7)
    X, _ = draw(layer)
    assert np.array_equal(onegru.load(path).run({"X": X})["Y"], layer(X)[0])
    assert_close(onnxruntime_results(onnx.load(path), {"X": X})["Y"], layer(X)[0])


# ---- OpenVINO


def openvino_results(path: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    """What OpenVINO makes of an IR."""
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = model([feeds[port.any_name] for port in model.inputs])
    return {port.any_name: np.array(results[port]) for port in model.outputs}


def ir_feeds(X: Array, states: list[Array], lengths: Array | None = None) -> dict[str, Array]:
    """The inputs of a written IR of sequences."""
    ends = [f"_{index}" for index in range(len(states))] if len(states) > 1 else [""]
    feeds = {"X": X.swapaxes(0, 1).copy()}
    for end, state in zip(ends, states, strict=True):
        feeds[f"initial_hidden_state{end}"] = state.swapaxes(0, 1).copy()
    return feeds if lengths is None else {**feeds, "sequence_lengths": lengths}


def assert_same_as(layers: GRU | Stack, results: dict[str, Array], Y: Array, Y_h: tuple[Array, ...]) -> None:
    """That an IR's results are these."""
    assert_close(results["Y"], Y.transpose(2, 1, 0, 3))
    ends = [f"_{index}" for index in range(len(Y_h))] if len(Y_h) > 1 else [""]
    for end, last in zip(ends, Y_h, strict=True):
        assert_close(results[f"Ho{end}"], last.swapaxes(0, 1))


@pytest.mark.parametrize("directions", [("forward",), ("reverse",), ("bidirectional",), DIRECTIONS], ids=len)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ir_in_openvino(tmp_path: Path, directions: tuple[str, ...], after: bool, count: int) -> None:
    stack = make_stack(count, directions, linear_before_reset=after)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.xml"
    X, states = draw(layers)
    all_steps = np.full(3, 6, np.int32)
    onegru.save(layers, path)
    Y, Y_h = call(reference(layers), X, states)
    assert_same_as(layers, openvino_results(path, ir_feeds(X, states, all_steps)), Y, Y_h)
    # Short lengths, which OpenVINO heeds where the sizes are fixed.
    onegru.save(layers, path, batch_size=3, seq_length=6)
    Y, Y_h = call(reference(layers), X, states, LENGTHS)
    assert_same_as(layers, openvino_results(path, ir_feeds(X, states, LENGTHS)), Y, Y_h)


@pytest.mark.parametrize("activations", [("Relu", "Tanh"), ("Tanh", "Sigmoid"), ("Sigmoid", "Relu")])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_ir_attributes(tmp_path: Path, activations: tuple[str, str], clip: float | None) -> None:
    layer = make_gru(direction="bidirectional", activations=activations * 2, clip=clip)
    path = tmp_path / "m.xml"
    onegru.save(layer, path)
    X, states = draw(layer)
    feeds = ir_feeds(X, states, np.full(3, 6, np.int32))
    Y, Y_h = call(reference(layer), X, states)
    assert_same_as(layer, openvino_results(path, feeds), Y, Y_h)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and gru.layer.spec == layer.spec
    results = onegru.load(path).run(feeds)
    assert_same_as(layer, results, Y, Y_h)


@pytest.mark.parametrize("initial_h", [True, False])
@pytest.mark.parametrize("sequence_lens", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"batch_size": 3}, {"batch_size": 3, "seq_length": 6}], ids=len)
def test_ir_inputs(tmp_path: Path, initial_h: bool, sequence_lens: bool, sizes: dict[str, Any]) -> None:
    stack = make_stack(2, ("bidirectional", "reverse"), linear_before_reset=True)
    path = tmp_path / "m.xml"
    onegru.save(stack, path, initial_h=initial_h, sequence_lens=sequence_lens, **sizes)
    X, states = draw(stack)
    feeds = ir_feeds(X, states, np.full(3, 6, np.int32))
    results = openvino_results(path, feeds)
    wanted = call(stack, X, states if initial_h else None)
    assert_same_as(stack, results, *wanted)
    layers = ET.parse(path).getroot().findall("layers/layer")
    names = {layer.get("name") for layer in layers if layer.get("type") == "Parameter"}
    states_are = {"initial_hidden_state_0", "initial_hidden_state_1"} if initial_h else set()
    assert names == {"X"} | states_are | ({"sequence_lengths"} if sequence_lens else set())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("initial_h", [True, False])
def test_ir_of_cells(tmp_path: Path, after: bool, count: int, initial_h: bool) -> None:
    stack = make_stack(count, linear_before_reset=after)
    layers = stack if count > 1 else stack.layers[0]
    path = tmp_path / "m.xml"
    onegru.save(layers, path, cell=True, initial_h=initial_h)
    X, states = draw(layers, T=1)
    ends = [f"_{index}" for index in range(count)] if count > 1 else [""]
    feeds = {"X": X[0]}
    feeds |= {f"initial_hidden_state{end}": state[0] for end, state in zip(ends, states, strict=True)}
    wanted = call(layers, X, states if initial_h else None)[1]
    found = openvino_results(path, feeds)
    found_here = onegru.load(path).run(feeds) if initial_h else found
    for end, state in zip(ends, wanted, strict=True):
        assert_close(found[f"Ho{end}"], state[0])
        assert_close(found_here[f"Ho{end}"], state[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", [True, False])
@pytest.mark.parametrize("attention", [True, False])
def test_ir_read_by_onegru(tmp_path: Path, dtype: str, cell: bool, attention: bool) -> None:
    layer = make_gru(dtype=dtype, attention=attention)
    path = tmp_path / "m.xml"
    onegru.save(layer, path, cell=cell)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.operator == ("AUGRU" if attention else "GRU") + ("Cell" if cell else "Sequence") + (
        "" if attention else "-3" if cell else "-5"
    )
    assert gru.layer is not None and gru.layer.spec == layer.spec
    weights, wanted = gru.layer.weights, layer.weights
    assert np.array_equal(weights.W, wanted.W) and np.array_equal(weights.R, wanted.R)
    assert np.array_equal(weights.B[:, : 3 * H], wanted.B[:, : 3 * H] + wanted.B[:, 3 * H :])
    layers = ET.parse(path).getroot().findall("layers/layer")
    kinds = {layer.get("type"): layer.get("version") for layer in layers}
    kind, version = ("AUGRU", "extension") if attention else ("GRU", "opset3" if cell else "opset5")
    assert kinds[kind + ("Cell" if cell else "Sequence")] == version


def test_attention_keeps_its_function(tmp_path: Path) -> None:
    layer = make_gru(attention=True)
    path = tmp_path / "m.xml"
    onegru.save(layer, path)
    X, (state,) = draw(layer)
    A = np.random.default_rng(3).uniform(0, 1, (3, 6, 1)).astype("f")
    feeds = {"X": X.swapaxes(0, 1), "H_t": state.swapaxes(0, 1), "sequence_lengths": LENGTHS, "A": A}
    results = onegru.load(path).run(feeds)
    Y, Y_h = layer(X, state, sequence_lens=LENGTHS, attention=A.swapaxes(0, 1))
    assert_same_as(layer, results, Y, (Y_h,))


# ---- what cannot be written


REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "suffix": ({}, "m.pb", {}, r"path: .*m.pb'; must end in .onnx, .xml, .safetensors"),
    "no suffix": ({}, "model", {}, "must end in .onnx, .xml, .safetensors"),
    "reset after": (
        {"linear_before_reset": True},
        "m.onnx",
        {"opset": 1},
        "opset: 1; must be at least 3 for linear_before_reset = 1",
    ),
    "layout": ({}, "m.onnx", {"opset": 13, "layout": 1}, "opset: 13; must be at least 14 for layout = 1"),
    "layout 2": ({}, "m.onnx", {"layout": 2}, "layout: 2; must be 0 or 1"),
    "opset 0": ({}, "m.onnx", {"opset": 0}, "opset: 0; must be at least 1"),
    "opset 23": ({}, "m.onnx", {"opset": 23}, "opset: 23; must be in 1…22"),
    "opset True": ({}, "m.onnx", {"opset": True}, "opset: True; must be an integer"),
    "initial_h": ({}, "m.onnx", {"initial_h": 1}, "initial_h: 1; must be True or False"),
    "batch_size": ({}, "m.onnx", {"batch_size": 0}, "batch_size: 0; must be at least 1"),
    "attention": ({"attention": True}, "m.onnx", {}, "attention: True; ONNX's GRU has none in any version"),
    "opset of IR": ({}, "m.xml", {"opset": 22}, "opset: 22; must be None for .xml, as only .onnx has it"),
    "cell of ONNX": ({}, "m.onnx", {"cell": False}, "cell: False; must be None for .onnx"),
    "inputs of weights": ({}, "m.safetensors", {"initial_h": True}, "as only .onnx, .xml has it"),
    "lengths of a cell": ({}, "m.xml", {"cell": True, "sequence_lens": True}, "must be None for a cell"),
    "steps of a cell": ({}, "m.xml", {"cell": True, "seq_length": 1}, "must be None for a cell"),
    "no batch": ({}, "m.onnx", {"batch_size": 0}, "batch_size: 0; must be at least 1"),
    "a batch beyond ONNX": ({}, "m.onnx", {"batch_size": 2**70}, r"batch_size: \d+; .* below 2\*\*63"),
    "a batch beyond an IR": ({}, "m.xml", {"batch_size": 2**63}, r"batch_size: \d+; .* below 2\*\*63"),
    "steps beyond ONNX": ({}, "m.onnx", {"seq_length": 2**63}, r"seq_length: \d+; .* below 2\*\*63"),
    "steps beyond an IR": ({}, "m.xml", {"seq_length": 2**70}, r"seq_length: \d+; .* below 2\*\*63"),
    "reverse cell": ({"direction": "reverse"}, "m.xml", {"cell": True}, "GRUCell-3 runs forward alone"),
    "activation": (
        {"activations": ["Sigmoid", "Elu"]},
        "m.xml",
        {},
        r"activations: Elu\(1\); GRUSequence-5 has Relu, Sigmoid, Tanh alone",
    ),
    "two pairs": (
        {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "Sigmoid", "Relu"]},
        "m.xml",
        {},
        "activations: two pairs that differ",
    ),
    "attention, clip": ({"attention": True, "clip": 1.0}, "m.xml", {}, "clip: 1.0; AUGRUSequence has none"),
    "attention, relu": (
        {"attention": True, "activations": ["Relu", "Tanh"]},
        "m.xml",
        {},
        "AUGRUSequence has Sigmoid, Tanh alone",
    ),
    "attention, reset after": (
        {"attention": True, "linear_before_reset": True},
        "m.xml",
        {"cell": True},
        "linear_before_reset: True; AUGRUCell has none",
    ),
    "attention, reverse": (
        {"attention": True, "direction": "reverse"},
        "m.xml",
        {},
        "direction: 'reverse'; AUGRUSequence runs forward alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, case: tuple[Any, str, dict[str, Any], str]) -> None:
    arguments, name, options, message = case
    with pytest.raises(SpecError, match=message):
        onegru.save(make_gru(**arguments), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_refuses_what_is_no_layer(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="layers: list; must be a GRU or a Stack"):
        onegru.save([make_gru()], tmp_path / "m.onnx")  # type: ignore[arg-type]


def test_refuses_what_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru.formats.onnx import writer

    monkeypatch.setattr(writer, "_MAX_BYTES", 100)
    with pytest.raises(SpecError, match="must be below 2 GiB"):
        onegru.save(make_gru(), tmp_path / "m.onnx")


# ---- initial states may be left out

WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "ONNX": ("m.onnx", {}),
    "ONNX 7": ("m.onnx", {"opset": 7}),
    "batch first": ("m.onnx", {"layout": 1}),
    "lengths": ("m.onnx", {"sequence_lens": True}),
    "sequences": ("m.xml", {}),
    "fixed sequences": ("m.xml", {"batch_size": 3, "seq_length": 6}),
    "cells": ("m.xml", {"cell": True}),
}


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("count", [1, 3])
def test_states_that_are_left_out(tmp_path: Path, kind: str, count: int) -> None:
    """Of a model that `save` wrote onegru takes them for zeros, all or some of them."""
    name, options = WRITTEN[kind]
    stack = make_stack(count, ("forward",) if kind == "cells" else ("bidirectional", "forward"))
    layers = stack if count > 1 else stack.layers[0]
    onegru.save(layers, tmp_path / name, **options)
    model = onegru.load(tmp_path / name)
    X = draw(layers, T=1 if kind == "cells" else 6)[0]
    feeds: dict[str, Array] = {"X": X[0] if kind == "cells" else X}
    if name == "m.xml" and kind != "cells":
        feeds = {"X": X.swapaxes(0, 1).copy(), "sequence_lengths": np.full(3, 6, np.int32)}
    elif kind == "batch first":
        feeds["X"] = X.swapaxes(0, 1).copy()
    elif kind == "lengths":
        feeds["sequence_lens"] = np.full(3, 6, np.int32)
    infos = [info for info in model.inputs if "init" in info.name]
    assert len(infos) == count
    shapes = [[3 if not isinstance(size, int) else size for size in info.shape or ()] for info in infos]
    batch = {"batch first": 0, "cells": 0, "sequences": 0, "fixed sequences": 0}.get(kind, 1)
    for shape in shapes:
        shape[batch] = 3
    zeros = {info.name: np.zeros(shape, np.float32) for info, shape in zip(infos, shapes, strict=True)}
    wanted = model.run(feeds | zeros)
    for names in ([], list(zeros)[1:]):
        found = model.run(feeds | {name: zeros[name] for name in names})
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert all("Y" in values or "Ho" in values for values in model.trace(feeds))
    with pytest.raises(SpecError, match="'X': missing"):
        model.run(zeros)
    with pytest.raises(SpecError, match="'X': shape"):
        model.run({**feeds, "X": feeds["X"][..., :2]})


def test_states_of_other_models_may_not(tmp_path: Path) -> None:
    """Nor may those of ours that something else takes as well: what is not given is not guessed."""
    path = tmp_path / "m.onnx"
    onegru.save(make_gru(), path)
    proto = onnx.load(path)
    X, _ = draw(make_gru())
    assert onegru.load(proto).graph.zero_inputs == {"initial_h"}
    proto.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, None))
    proto.graph.node.append(onnx.helper.make_node("Neg", ["initial_h"], ["h"]))
    with pytest.raises(SpecError, match="'initial_h': missing"):
        onegru.load(proto).run({"X": X})
    proto = onnx.load(path)
    del proto.metadata_props[:]
    with pytest.raises(SpecError, match="'initial_h': missing"):
        onegru.load(proto).run({"X": X})


# ---- files are whole or as they were


@pytest.mark.parametrize("name", ["m.onnx", "m.xml"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / name
    onegru.save(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == name and self.name.startswith("."):
            raise OSError(errno.EIO, "the disk is on fire")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="on fire") as caught:
        onegru.save(make_gru(1), path)
    assert caught.value.filename == str(path)
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("name", ["m.xml", "m.bin"])
def test_no_half_of_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, name: str) -> None:
    path = tmp_path / "m.xml"
    if existed:
        onegru.save(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    replace = Path.replace
    failed: list[Path] = []

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == name and not failed:
            failed.append(target)
            raise OSError(errno.ENOSPC, "no room")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        onegru.save(make_gru(1), path)
    assert failed and {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


@pytest.mark.parametrize("hidden", [H, H + 90, 1])
@pytest.mark.parametrize("earlier", [(".xml", ".bin"), (".xml",), (".bin",), ()], ids=len)
def test_killed_while_an_ir_is_replaced(tmp_path: Path, hidden: int, earlier: tuple[str, ...]) -> None:
    """At each moment the old model or the new one is there, and never weights of the one in the other."""
    path = tmp_path / "m.xml"
    old, new = make_gru(0), make_gru(1, hidden=hidden)
    onegru.save(old, path)
    files = {item: item.read_bytes() for item in tmp_path.iterdir() if item.suffix in earlier}

    def start() -> None:
        for item in tmp_path.iterdir():
            item.unlink()
        for item, content in files.items():
            item.write_bytes(content)

    def found() -> str:
        try:
            (gru,) = onegru.load(path).gru_nodes
        except (FileNotFoundError, onegru.FormatError):
            return "nothing"
        assert gru.layer is not None
        return {bits(old): "old", bits(new): "new"}[bits(gru.layer)]

    start()
    was = found()
    assert was == ("old" if len(earlier) == 2 else "nothing")
    seen = []
    for _ in kill_points(lambda: onegru.save(new, path)):
        seen.append(found())
        assert seen[-1] in (was, "new")
        if seen[-1] != "nothing" and hidden == H:
            steps = {"X": np.ones((1, 2, I), "f"), "sequence_lengths": np.full(1, 2, np.int32)}
            feeds = steps | {"initial_hidden_state": np.ones((1, 1, H), "f")}
            layer = old if seen[-1] == "old" else new
            wanted = call(layer, np.ones((2, 1, I), "f"), [np.ones((1, 1, H), "f")])
            assert_same_as(layer, openvino_results(path, feeds), *wanted)
        start()
    assert set(seen) == {was, "new"} and seen == sorted(seen, key=("nothing", "old", "new").index)
    onegru.save(new, path)
    assert {item.name for item in tmp_path.iterdir()} == {"m.xml", "m.bin"}
    alone = tmp_path / "alone.xml"
    onegru.save(new, alone)
    assert path.read_bytes() == alone.read_bytes()
    assert path.with_suffix(".bin").read_bytes() == alone.with_suffix(".bin").read_bytes()


def bits(layer: GRU) -> tuple[bytes, ...]:
    """Its weights, and the two biases of each gate as an IR has them, added where they can be."""
    H = layer.spec.hidden_size
    B = layer.weights.B[0].copy()
    B[: 3 * H] += B[3 * H :]
    return tuple(array.tobytes() for array in (layer.weights.W, layer.weights.R, B[: 3 * H]))


def test_an_ir_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The .bin of another .xml is not taken for its own."""
    path = tmp_path / "m.xml"
    onegru.save(make_gru(0), path)
    fromfile, times = np.fromfile, 0

    def replaced(*arguments: Any) -> Array:
        nonlocal times
        times += 1
        if times < 3:
            onegru.save(make_gru(abs(times)), path)
        return fromfile(*arguments)

    monkeypatch.setattr(np, "fromfile", replaced)
    (gru,) = onegru.load(path).gru_nodes
    assert gru.layer is not None and bits(gru.layer) == bits(make_gru(2))
    assert times == 3
    times = -99
    with pytest.raises(onegru.FormatError, match="is replaced again and again while it is read"):
        onegru.load(path)


@pytest.mark.parametrize("n", range(1, 6))
def test_no_room_for_an_ir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Whichever of the steps fails: the old pair is there, byte for byte."""
    path = tmp_path / "m.xml"
    onegru.save(make_gru(0), path)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    replace, count = os.replace, 0

    def fail(*arguments: Any, **keywords: Any) -> None:
        nonlocal count
        count += 1
        if count == n:
            raise OSError(errno.ENOSPC, "no room")
        replace(*arguments, **keywords)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        onegru.save(make_gru(1), path)
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "m.xml").mkdir()
    with pytest.raises(OSError, match=r"m\.xml"):
        onegru.save(make_gru(), tmp_path / "m.xml")
    assert [item.name for item in tmp_path.iterdir()] == ["m.xml"]
    with pytest.raises(OSError, match="nowhere"):
        onegru.save(make_gru(), tmp_path / "nowhere" / "m.onnx")


def test_links_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "m.onnx"
    link.symlink_to(folder / "real.onnx")
    onegru.save(make_gru(), link)
    assert link.is_symlink() and (folder / "real.onnx").is_file()
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert (folder / "real.onnx").stat().st_mode == plain.stat().st_mode
    longest = tmp_path / f"{'n' * 250}.onnx"
    onegru.save(make_gru(), longest)
    assert longest.is_file()


# ---- without optional packages


SAVE = """
    import numpy as np
    import onegru

    layer = onegru.GRU(np.ones((1, 6, 3), "f"), np.ones((1, 6, 2), "f"))
    try:
        onegru.save(layer, sys.argv[1])
    except onegru.MissingExtraError as error:
        print(error)
    else:
        print("saved")
"""


def test_irs_need_no_package(tmp_path: Path) -> None:
    result = python("name not in sys.stdlib_module_names | {'numpy', 'onegru'}", SAVE, tmp_path / "m.xml")
    assert result.stdout == "saved\n", result.stderr


@pytest.mark.parametrize("package", ["onnx", "safetensors"])
def test_a_missing_package_is_named(tmp_path: Path, package: str) -> None:
    path = tmp_path / f"m.{package}"
    result = python(f"name == {package!r}", SAVE, path)
    assert f"needs {package}: pip install 'onegru[{package}]'\n" in result.stdout, result.stderr
    assert not list(tmp_path.iterdir())
