"""Long chains of operators of every kind: nothing goes through a graph by recursion.

They are somewhat longer than Python lets calls be nested; 5,000 operators of each kind were run once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnxruntime import InferenceSession

import onegru
from onegru.core.errors import FormatError, SpecError
from tests.support.files import chains, onnx_models, openvino_models
from tests.support.files.onnx_models import B, H, save
from tests.support.models.fusing import Net, Step, check_fused, directions
from tests.support.models.runtimes import openvino_results

DEEP = 1_100
FEEDS = {"X": onnx_models.X, "h": np.zeros((1, B, H), np.float32)}


@pytest.mark.parametrize("kind", chains.KINDS)
def test_a_chain_is_run_inspected_searched_and_streamed(kind: str, tmp_path: Path) -> None:
    path = save(tmp_path, chains.chain(kind, DEEP))
    loaded = onegru.load(path, fuse=True)
    whole = loaded.run(FEEDS)
    assert "GRU" in str(onegru.inspect(path))
    if kind == "arithmetic":  # differences of sizes are not followed
        with pytest.raises(SpecError, match="time"):
            loaded.stream(rewrite=True)
        return
    stream = loaded.stream(rewrite=True)
    parts = [stream.step({"X": FEEDS["X"][part]})["Y"] for part in (slice(0, 1), slice(1, None))]
    np.testing.assert_allclose(np.concatenate(parts), whole["Y"], rtol=0, atol=1e-5)


def test_long_chains_are_rewritten(tmp_path: Path) -> None:
    path = save(tmp_path, chains.chain("flat", DEEP))
    whole = onegru.load(path).run(FEEDS)
    onegru.make_streaming(path, tmp_path / "streaming.onnx", time={"X": 0})
    stream = onegru.load(tmp_path / "streaming.onnx").stream()
    parts = [stream.step({"X": FEEDS["X"][part]})["Y"] for part in (slice(0, 1), slice(1, None))]
    np.testing.assert_allclose(np.concatenate(parts), whole["Y"], rtol=0, atol=1e-5)
    onegru.rewrite(path, tmp_path / "decomposed.onnx", decompose=True, opset=18)
    rewritten = onegru.load(tmp_path / "decomposed.onnx").run(FEEDS)
    for name, array in whole.items():
        np.testing.assert_allclose(rewritten[name], array, rtol=0, atol=1e-5)


def test_hundreds_of_grus(tmp_path: Path) -> None:
    path = save(tmp_path, chains.grus(250))
    model = onegru.load(path)
    assert len(model.gru_nodes) == 250
    found = model.run({"X": FEEDS["X"]})["x250"]
    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found, session.run(None, {"X": FEEDS["X"]})[0], rtol=0, atol=1e-5)
    assert "250" in str(onegru.inspect(path))
    model.stream(rewrite=True)


@pytest.mark.parametrize("kind", chains.IR_KINDS)
def test_a_chain_in_an_ir(kind: str, tmp_path: Path) -> None:
    path = chains.ir_chain(
        tmp_path / "model.xml", kind, 60 if kind == "grus" else 600
    )  # OpenVINO takes its time
    feeds = {"x": openvino_models.draw(3, 6, openvino_models.I)}
    model = onegru.load(path, fuse=True)
    for name, array in openvino_results(path, feeds).items():
        np.testing.assert_allclose(model.run(feeds)[name], array, rtol=0, atol=1e-5)
    assert "GRU" in str(onegru.inspect(path))
    with pytest.raises(FormatError, match="it has no decomposed GRU"):
        onegru.fuse(path, tmp_path / "new.xml")


def test_cells_between_long_chains_are_fused() -> None:
    net, step = Net(), Step()
    x, h = net.input("x", "B", step.I), net.input("h", "B", step.H)
    for _ in range(DEEP):
        x, h = net("Identity", x), net("Neg", net("Neg", h))
    state = step(net, x, h)
    for place in range(DEEP):
        state = net(("Relu", "Identity")[place % 2], state)
    net.output(state, ("B", step.H))
    assert directions(check_fused(net.model(), net.feeds)[0]) == 1


def test_what_a_loop_computes_by_a_long_chain_is_hoisted() -> None:
    net, step, body = Net(), Step(), Net()
    body.prefix = "b"
    h, x = body.input("h", 2, step.H), body.input("x", 2, step.I)
    for place in range(DEEP):
        x = body(("Tanh", "Neg")[place % 2], x)
    new = step(body, x, h)
    body("Identity", new, output="out")
    body.output(new, (2, step.H))
    body.output("out", (2, step.H))
    net.input("X", "T", 2, step.I, fill=3)
    net.input("h0", 2, step.H)
    net("Scan", "h0", "X", output="last", body=body.graph(), num_scan_inputs=1)
    net.nodes[-1].output.append("all")
    net.output("all", ("T", 2, step.H))
    assert directions(check_fused(net.model(), net.feeds)[0]) == 1


@pytest.mark.parametrize("depth", (20, 60))
def test_bodies_lie_as_deep_as_protobuf_reads(depth: int, tmp_path: Path) -> None:
    if depth == 20:
        path = save(tmp_path, chains.nested(depth))
        model = onegru.load(path)
        assert "GRU" in str(onegru.inspect(path))
        assert model.run(FEEDS)["Y"].shape == (4, 1, B, H)
        return
    with pytest.raises(FormatError, match=r"model\.onnx: subgraphs are nested too deeply"):
        onegru.load(save(tmp_path, chains.nested(depth)))
