"""Optimizers of ONNX Runtime that a model must not meet: some end the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto

import onegru
from onegru.core.dtypes import Array
from onegru.formats.onnx.whole.optimizers import harmful_optimizers
from tests.support.files.onnx_models import I, graph, gru, model, node, numbers, save, tensor, value, weights
from tests.support.machine.processes import run_python

onnxruntime = pytest.importorskip("onnxruntime")

FUSION = "MatmulTransposeFusion"

# In a separate process, as it would end this one.
RUN = """
    import sys, numpy as np, onegru
    path = sys.argv[1]
    feeds = {"X": np.ones((4, 2, 5), np.float16)}
    (name,) = (output.name for output in onegru.load(path).outputs)
    expected = onegru.load(path, engine="reference").run(feeds)[name]
    for found in (onegru.load(path).run(feeds)[name], onegru.InferenceSession(path).run(None, feeds)[0]):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=2e-2)
    if len(sys.argv) > 2:
        onegru.rewrite(path, sys.argv[2], opset=17, runtime="onnxruntime")
"""


def halves(*, with_gru: bool) -> ModelProto:
    """A product of a transposed value, as PyTorch's older exporter and a converter to float16 leave it."""
    nodes = [gru("X", ["Y"]), node("Squeeze", ["Y", "one"], ["x"])] if with_gru else []
    size = 3 if with_gru else I
    nodes.append(node("Transpose", ["x" if with_gru else "X"], ["t"], perm=[1, 0, 2]))
    nodes.append(node("MatMul", ["t", "M"], ["out"]))
    constants = {**weights(dtype="float16"), "M": numbers(7, size, 4, dtype="float16"), "one": np.array([1])}
    inputs = [value("X", "float16", ["time", "batch", I])]
    return model(graph(nodes, inputs, [value("out", "float16")], constants))


@pytest.mark.parametrize("with_gru", (False, True))
def test_models_of_float16_run(with_gru: bool, tmp_path: Path) -> None:
    path = save(tmp_path, halves(with_gru=with_gru))
    run_python(RUN, path, *([tmp_path / "new.onnx"] if with_gru else []))


def cast(body: bool) -> GraphProto:
    """A graph whose only halves are what a Cast makes of its input, perhaps in a body."""
    nodes = [node("Cast", ["X"], ["half"], to=TensorProto.FLOAT16), node("Cast", ["half"], ["out"], to=1)]
    inputs = [value("X", "float32", [2, 3]), value("on", "bool", [])]
    if not body:
        return graph(nodes, inputs, ["out"])
    other = graph([node("Neg", ["X"], ["out2"])], (), ["out2"])
    choice = node("If", ["on"], ["Y"], then_branch=graph(nodes, (), ["out"]), else_branch=other)
    return graph([choice], inputs, ["Y"])


def test_halves_are_seen_wherever_they_come_from() -> None:
    made = [cast(False), cast(True)]
    made.append(graph([node("Relu", ["X"], ["Y"])], [value("X", "float16", [2])], [value("Y", "float16")]))
    held = node("Constant", [], ["c"], value=tensor("", np.ones(2, np.float16)))
    made.append(graph([held, node("CastLike", ["X", "c"], ["Y"])], [value("X")], [value("Y", "float16")]))
    for item in made:
        assert harmful_optimizers(model(item, opset=17)) == (FUSION,)
    inner = onnx.helper.make_function(
        "d", "f", ["x"], ["y"], list(cast(False).node)[:1], [onnx.helper.make_opsetid("", 17)]
    )
    called = graph([node("f", ["X"], ["Y"], domain="d")], [value("X")], ["Y"])
    assert harmful_optimizers(model(called, opset=17, functions=[inner], domains={"d": 1})) == (FUSION,)


def test_other_models_keep_them() -> None:
    plain = graph(
        [node("Cast", ["X"], ["Y"], to=1), node("Softmax", ["Y"], ["Z"], axis=10)], [value("X")], ["Z"]
    )
    assert harmful_optimizers(model(plain)) == ()


def test_grus_of_constants_are_not_folded() -> None:
    constants = {**weights(), "x": numbers(1, 4, 2, I)}
    assert harmful_optimizers(model(graph([gru("x", ["Y"])], (), ["Y"], constants))) == ("ConstantFolding",)


MOVES = {
    "Transpose": ([], {"perm": [1, 0, 2]}, (2, 4, I)),
    "Reshape": (["shape"], {}, (8, I)),
    "Slice": (["start", "end", "axes"], {}, (5, 2, I)),
    "Unsqueeze": (["axes"], {}, (4, I)),
}


@pytest.mark.parametrize("states_dtype", (False, True))
@pytest.mark.parametrize("kind", MOVES)
def test_int8_activations_of_opset_21_run(kind: str, states_dtype: bool, tmp_path: Path) -> None:
    """ONNX Runtime makes their zero points uint8, and then refuses the output_dtype that they had."""
    more_inputs, attributes, shape = MOVES[kind]
    dtype = {"output_dtype": TensorProto.INT8} if states_dtype else {}
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **dtype),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node(kind, ["d", *more_inputs], ["X"], **attributes),
        gru("X", ["Y"]),
    ]
    constants: dict[str, Array] = {
        **weights(),
        **{"scale": np.array(0.05, np.float32), "zero": np.array(3, np.int8), "shape": np.array([4, 2, I])},
        **{"start": np.array([0]), "end": np.array([4]), "axes": np.array([0])},
    }
    made = graph(nodes, [value("x", shape=shape)], [value("Y", shape=[None] * 4)], constants)
    path, feeds = save(tmp_path, model(made, opset=21)), {"x": numbers(1, *shape)}
    plain = onnxruntime.SessionOptions()
    plain.log_severity_level = 4
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    wanted = onnxruntime.InferenceSession(path, plain).run(None, feeds)[0]
    np.testing.assert_allclose(onegru.load(path).run(feeds)["Y"], wanted, atol=1e-6)
    np.testing.assert_allclose(onegru.InferenceSession(path).run(None, feeds)[0], wanted, atol=1e-6)
    assert harmful_optimizers(onnx.load(path)) == ("QDQS8ToU8Transformer",)


@pytest.mark.parametrize(("kind", "number"), [("Mul", 1 + 3e-8), ("Div", 1 + 3e-8), ("Add", 1e-46)])
def test_numbers_that_only_float32_rounds_away(kind: str, number: float, tmp_path: Path) -> None:
    nodes = [node("Neg", ["X"], ["a"]), node(kind, ["a", "number"], ["b"]), node("Neg", ["b"], ["c"])]
    nodes.append(gru("X", ["Y"]))
    constants = {"number": np.array(number), **weights(dtype="float64")}
    inputs = [value("X", "float64", [2, 1, I])]
    path = save(
        tmp_path, model(graph(nodes, inputs, [value("c", "float64"), value("Y", "float64")], constants))
    )
    x = np.zeros((2, 1, I)) if kind == "Add" else np.ones((2, 1, I))
    wanted = {"Mul": x * number, "Div": x / number, "Add": x - number}[kind]
    session = onegru.InferenceSession(path)
    for found in (onegru.load(path).run({"X": x})["c"], session.run(["c"], {"X": x})[0]):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
