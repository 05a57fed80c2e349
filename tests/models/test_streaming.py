"""Models of whole sequences that stream in memory, and what an inspection says of them."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from onegru import SpecError, SpecWarning
from onegru.models.inputs.random import pick_inputs
from tests.rewriting.test_streaming import AHEAD, CAUSAL, NEVER, B, C, T, built
from tests.support.comparison import assert_bits
from tests.support.files.onnx_models import I, graph, gru, model, save, value, weights
from tests.support.machine.repository import DENOISER, ROOT
from tests.support.models import streams
from tests.support.models.streams import StreamNet

X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)


REWRITTEN = "supported after onegru stream, or stream(rewrite=True"


def test_with_a_delay(tmp_path: Path) -> None:
    path = save(tmp_path, built([AHEAD["symmetric residual"], CAUSAL["GRU"]], 4))
    stream = onegru.load(path, weight_storage="int8").stream(rewrite=True, delay=True)
    later = T - onegru.load(path).stream(rewrite=True, delay=True).step({"X": X})["Z"].shape[2]
    for steps in range(1, later + 1):
        words = (
            rf"'X': {steps} steps? in the first run; must be at least {later + 1}, because outputs are "
            rf"delayed by {later} "
        )
        with pytest.raises(SpecError, match=words):
            stream.step({"X": X[:, :, :steps]})
    parts = [stream.step({"X": X[:, :, start : start + 6]})["Z"] for start in range(0, 18, 6)]
    found = np.concatenate(parts, 2)
    whole = onegru.load(path, weight_storage="int8").run({"X": X})["Z"]
    np.testing.assert_allclose(found, whole[:, :, : found.shape[2]], atol=1e-5)
    assert found.shape[2] in (16, 17)


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_a_file_with_a_delay_is_drawn_for(kind: str, tmp_path: Path) -> None:
    """Its states have the sizes of a first run, and its steps are more than the delay."""
    source = save(
        tmp_path, built([AHEAD["symmetric convolution"], CAUSAL["GRU"], AHEAD["symmetric residual"]], 4)
    )
    if kind == "xml":
        openvino = pytest.importorskip("openvino")
        openvino.save_model(openvino.convert_model(source), source.with_suffix(".xml"))
        source = source.with_suffix(".xml")
    target = tmp_path / f"streaming.{kind}"
    onegru.make_streaming(source, target, delay=True)
    model = onegru.load(target)
    ((_, (axis, least)),) = model.graph.least_steps.items()
    inputs, sizes = pick_inputs(model, {}, 0, {})
    steps = sizes[str(next(info.shape for info in model.inputs if info.name == "X")[axis])]  # type: ignore[index]
    assert least > 3 and steps >= least
    whole = onegru.load(target).stream()
    whole.state = {name: inputs[name] for name in whole.pairs.values() if inputs[name].size}
    np.testing.assert_array_equal(whole.step({"X": inputs["X"]})["Z"], model.run(inputs)["Z"])
    with pytest.raises(
        SpecError, match=f"^dims: 'X' has 1 step; must have at least {least}, because outputs"
    ):
        pick_inputs(model, {}, 0, {"X": (2, C, 1)})
    other = "openvino" if kind == "xml" else "onnxruntime"
    assert [item.status for item in onegru.verify(target, runtimes=[other]).runtimes] == ["agrees"] * 2
    onegru.quantize(target, target=tmp_path / f"small.{kind}")


def test_refusals(tmp_path: Path) -> None:
    path = save(tmp_path, built([NEVER["reverse GRU"], CAUSAL["GRU"]], 4))
    with pytest.raises(
        SpecError, match=r"cannot run in chunks, because GRU node 'gru1' runs from the last step"
    ):
        onegru.load(path).stream(rewrite=True)
    model = onegru.load(save(tmp_path, built([CAUSAL["GRU"]], 4)))
    with pytest.raises(SpecError, match=r"^state: has no effect with rewrite=True"):
        model.stream({"a": "b"}, rewrite=True)
    with pytest.raises(SpecError, match=r"^time: has no effect without rewrite=True"):
        model.stream(time={"X": 2})
    with pytest.raises(SpecError, match=r"^delay: has no effect without rewrite=True"):
        model.stream(delay=True)


def hidden(path: Path, direction: str = "forward") -> Path:
    """A GRU whose state is neither an input nor an output."""
    D = 2 if direction == "bidirectional" else 1
    net = gru("X", ["Y"], name="gru", direction=direction)
    return save(path, model(graph([net], [value("X", shape=["time", 1, I])], ["Y"], weights(D=D))))


@pytest.mark.parametrize("opened", [onegru.load, onegru.InferenceSession])
def test_a_stream_without_states_says_what_to_do(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=re.escape(f"streaming: {REWRITTEN}), which adds 1 state; or name")):
        opened(hidden(tmp_path)).stream()
    words = "streaming: no: GRU node 'gru' is bidirectional: its second direction runs from the last step"
    with pytest.raises(SpecError, match=words):
        opened(hidden(tmp_path, "bidirectional")).stream()
    late = save(tmp_path, built([AHEAD["symmetric convolution"], CAUSAL["GRU"]], 4))
    with pytest.raises(SpecError, match=re.escape(f"streaming: {REWRITTEN}, delay=True)")):
        opened(late).stream()


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("given", ["bytes", "ModelProto"])
def test_a_model_in_memory(given: str, fuse: bool, tmp_path: Path) -> None:
    path = save(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 4))
    if fuse:
        onegru.rewrite(path, path, decompose=True)
    model = onegru.load(path.read_bytes() if given == "bytes" else onnx.load(path), fuse=fuse)
    stream = model.stream(rewrite=True)
    parts = [stream.step({"X": X[:, :, start : start + 4]})["Z"] for start in range(0, T, 4)]
    np.testing.assert_allclose(np.concatenate(parts, 2), model.run({"X": X})["Z"], atol=1e-5)
    assert len(stream.pairs) == 2


def test_a_file_that_is_fused_first(tmp_path: Path) -> None:
    path = save(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 4))
    onegru.rewrite(path, path, decompose=True)
    model = onegru.load(path, fuse=True)
    assert len(model.stream(rewrite=True).pairs) == 2


def test_nothing_to_carry(tmp_path: Path) -> None:
    """Each step depends on its own input only, so a stream has nothing to remember."""
    path = save(tmp_path, built([CAUSAL["kernel of 1"]], 4))
    model = onegru.load(path)
    stream = model.stream(rewrite=True, time={"X": 2})
    assert stream.pairs == {} and "ModelStream" in repr(stream)
    parts = [stream.step({"X": X[:, :, start : start + 4]})["Z"] for start in range(0, T, 4)]
    np.testing.assert_allclose(np.concatenate(parts, 2), model.run({"X": X})["Z"], atol=1e-6)
    with pytest.raises(SpecError, match=r"^rows: must be None, because the model has no state"):
        stream.step({"X": X}, rows=[0])


def test_inspection(tmp_path: Path) -> None:
    def words(*names: str) -> str:
        parts = [{**CAUSAL, **AHEAD, **NEVER}[name] for name in names]
        return onegru.inspect(save(tmp_path, built(parts, 4))).streaming

    assert words("padded convolution", "GRU", "GRU") == (f"{REWRITTEN}), which adds 1 cache and 2 states")
    assert re.search(
        r", and delays outputs by \d+ steps? \(--delay\)$", words("symmetric convolution", "GRU")
    )
    assert words("GRU", "softmax over time") == (
        "no: Softmax node 'softmax4' computes over all steps of a run at once"
    )
    assert onegru.inspect(DENOISER).streaming == "yes"
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(save(tmp_path, built([CAUSAL["GRU"]], 4)), target)
    assert onegru.inspect(target).streaming == "yes; the file specifies which output feeds which input"


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_inspection_of_a_model_with_a_cache_of_its_own(tmp_path: Path, direction: str) -> None:
    """As published ones have, whose steps a plan of states that are hidden cannot follow."""
    net = StreamNet()
    net.inputs["cache"] = net.outputs["cache_out"] = [2, streams.B, streams.I]
    both = net.op("Concat", "cache", "x", axis=0)
    net.op("Slice", both, net.const([-2]), net.const([99]), net.const([0]), output="cache_out")
    late = net.op("Slice", both, net.const([0]), net.const([-2]), net.const([0]))
    path = save(tmp_path, net.end(net.gru(late, "h", "h_out", direction=direction)))
    found = onegru.inspect(path).streaming
    own = "h_out → h, cache_out → cache" if direction == "forward" else "cache_out → cache"
    assert found.startswith(f"unchanged, with its own states ({own}); it may need other states"), found
    hint = rf"carries its own states \({own}\)$"
    with pytest.raises(SpecError, match=hint):
        onegru.make_streaming(path, tmp_path / "target.onnx")
    if direction == "reverse":  # whose state nobody carries, and which may run along time
        with pytest.warns(SpecWarning, match="GRU node 'GRU_3' starts over in each run if it runs along"):
            onegru.load(path).stream()


def test_the_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    folder = ROOT / "examples" / "streaming"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "argv", ["stream.py"])
    runpy.run_path(str(folder / "stream.py"), run_name="__main__")
    shown = capsys.readouterr().out
    differences = [float(line.rpartition(" ")[2]) for line in shown.split("\n") if "frame by frame" in line]
    assert len(differences) == 2 and max(differences) < 1e-5
    source = onegru.load(folder / "enhancer.onnx")
    x = np.random.default_rng(0).standard_normal((1, 12, 129)).astype(np.float32)
    stream = source.stream(rewrite=True)
    parts = [stream.step({"x": x[:, start : start + 4]})["gain"] for start in range(0, 12, 4)]
    np.testing.assert_allclose(np.concatenate(parts, 1), source.run({"x": x})["gain"], atol=1e-5)
    stream.reset()
    assert_bits(stream.step({"x": x[:, :4]})["gain"], parts[0])
