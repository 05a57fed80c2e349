"""A fused model streams as its source, although last states are guarded against runs without steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onegru

pytest.importorskip("onnxruntime")

I, H = 4, 6


def fused(folder: Path, *, states: int, layers: int) -> tuple[Path, Path]:
    """A model of GRUs with the states of the first ones outside; and the same, decomposed and fused again."""
    rng, nodes, given, value = np.random.default_rng(0), [], [], "x"
    infos: list[tuple[str, Any]] = [
        ("x", ["T", 1, I]),
        *((f"first_{layer}", [1, 1, H]) for layer in range(states)),
    ]
    ends: list[tuple[str, Any]] = [(f"final_{layer}", [1, 1, H]) for layer in range(states)]
    for layer in range(layers):
        for name, width in (("W", H if layer else I), ("R", H)):
            array = (rng.standard_normal((1, 3 * H, width)) / 2).astype(np.float32)
            given.append(numpy_helper.from_array(array, f"{name}{layer}"))
        inputs = [value, f"W{layer}", f"R{layer}"]
        outputs = [f"Y{layer}"]
        if layer < states:
            inputs, outputs = [*inputs, "", "", f"first_{layer}"], [*outputs, f"final_{layer}"]
        nodes.append(helper.make_node("GRU", inputs, outputs, f"gru_{layer}", hidden_size=H))
        value = f"y{layer}"
        nodes.append(helper.make_node("Squeeze", [f"Y{layer}", "one"], [value]))
    nodes[-1].output[0] = "y"
    given.append(numpy_helper.from_array(np.array([1]), "one"))
    takes, gives = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in each]
        for each in (infos, [("y", ["T", 1, H]), *ends])
    )
    graph = helper.make_graph(nodes, "net", takes, gives, given)
    source, loose, target = (folder / f"{name}.onnx" for name in ("source", "loose", "fused"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    onegru.rewrite(source, loose, decompose=True)
    assert len(onegru.fuse(loose, target).fused) == layers
    assert "Where" in {node.op_type for node in onnx.load(target).graph.node}
    return source, target


def as_ir(path: Path) -> Path:
    import openvino as ov

    ov.save_model(ov.convert_model(path), path.with_suffix(".xml"), compress_to_fp16=False)
    return path.with_suffix(".xml")


@pytest.mark.parametrize("form", ["onnx", "ir"])
@pytest.mark.parametrize(("states", "layers"), [(1, 1), (2, 2), (1, 2)])
def test_a_fused_model_streams(form: str, states: int, layers: int, tmp_path: Path) -> None:
    if form == "ir":
        pytest.importorskip("openvino")
    source, target = fused(tmp_path, states=states, layers=layers)
    x = np.random.default_rng(1).standard_normal((9, 1, I)).astype(np.float32)
    zeros = {f"first_{layer}": np.zeros((1, 1, H), np.float32) for layer in range(states)}
    expected = onegru.load(source).run({"x": x, **zeros})["y"]
    target = as_ir(target) if form == "ir" else target
    suffix = target.suffix
    onegru.make_streaming(target, tmp_path / f"streaming{suffix}")
    paths = [tmp_path / f"streaming{suffix}", *([target] if states == layers else [])]
    for path in paths:
        stream = onegru.load(path).stream()
        assert len(stream.pairs) == layers
        chunks = [stream.step({"x": x[start : start + 3]})["y"] for start in (0, 3, 6)]
        np.testing.assert_allclose(np.concatenate(chunks), expected, atol=1e-6)


def test_a_run_without_steps_keeps_its_state(tmp_path: Path) -> None:
    _, target = fused(tmp_path, states=1, layers=1)
    state = np.full((1, 1, H), 0.25, np.float32)
    given = {"x": np.zeros((0, 1, I), np.float32), "first_0": state}
    np.testing.assert_array_equal(onegru.load(target).run(given)["final_0"], state)
