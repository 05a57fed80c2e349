"""Nodes that only move axes are done by NumPy: with the results of ONNX Runtime, and without it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import onegru
from onegru.formats.onnx.views import view_of

RNG = np.random.default_rng(0)
I, H = 3, 4
WEIGHTS = [
    numpy_helper.from_array((RNG.standard_normal(shape) * 0.5).astype(np.float32), name)
    for name, shape in {
        "W": (1, 3 * H, I),
        "R": (1, 3 * H, H),
        "W2": (1, 3 * H, H),
        "R2": (1, 3 * H, H),
    }.items()
]


def build(between: list[NodeProto], constants: dict[str, list[int]], opset: int, path: Path) -> Path:
    nodes = [
        helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H),
        *between,
        helper.make_node("GRU", ["Z", "W2", "R2"], ["Y2", "h2"], hidden_size=H),
    ]
    tensors = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items()]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "views",
        [info("X", TensorProto.FLOAT, ["T", "B", I])],
        [helper.make_empty_tensor_value_info(name) for name in ("Y2", "h2", "Z")],
        [*WEIGHTS, *tensors],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


CASES = {
    "squeeze-13": ([helper.make_node("Squeeze", ["Y", "a"], ["Z"])], {"a": [1]}, 17),
    "squeeze-11": ([helper.make_node("Squeeze", ["Y"], ["Z"], axes=[1])], {}, 11),
    "reshape": ([helper.make_node("Reshape", ["Y", "a"], ["Z"])], {"a": [0, -1, H]}, 17),
    "transpose": (
        [
            helper.make_node("Transpose", ["Y"], ["t"], perm=[1, 2, 0, 3]),
            helper.make_node("Squeeze", ["t", "zero"], ["s"]),
            helper.make_node("Identity", ["s"], ["i"]),
            helper.make_node("Transpose", ["i"], ["Z"], perm=[1, 0, 2]),
        ],
        {"zero": [0]},
        14,
    ),
    "unsqueeze": (
        [
            helper.make_node("Unsqueeze", ["Y", "a"], ["u"]),
            helper.make_node("Squeeze", ["u", "b"], ["Z"]),
        ],
        {"a": [-1, 0], "b": [0, 2, -1]},
        13,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str, tmp_path: Path) -> None:
    import onnxruntime

    path = build(*CASES[name], tmp_path / "m.onnx")
    X = RNG.standard_normal((5, 2, I)).astype(np.float32)
    model = onegru.load(path)
    theirs = onnxruntime.InferenceSession(str(path)).run(["Y2", "h2", "Z"], {"X": X})
    for _ in range(2):
        ours = model.run({"X": X})
        for got, want in zip(ours.values(), theirs, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)
        ours["Z"][...] = 9  # the caller's own: neither another output nor the next run sees it
        assert not np.any(ours["Y2"] == 9)
    again = pickle.loads(pickle.dumps(model)).run({"X": X})
    assert np.array_equal(again["Y2"], model.run({"X": X})["Y2"])


def test_needs_no_other_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    model = onegru.load(build(*CASES["squeeze-13"], tmp_path / "m.onnx"))
    assert model.run({"X": np.zeros((5, 2, I), np.float32)})["Y2"].shape == (5, 1, 2, H)
    assert model.other_node_count == 1


def test_a_view_of_an_input_is_not_the_input(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["X"], ["Z"])],
        "copy",
        [info("X", TensorProto.FLOAT, [2])],
        [info("Z", TensorProto.FLOAT, [2])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    X = np.ones(2, np.float32)
    onegru.load(path).run({"X": X})["Z"][...] = 5
    assert np.array_equal(X, [1, 1])


def test_a_node_that_does_not_fit(tmp_path: Path) -> None:
    path = build([helper.make_node("Squeeze", ["Y", "a"], ["Z"])], {"a": [2]}, 17, tmp_path / "m.onnx")
    with pytest.raises(onegru.FormatError, match="Squeeze node with output 'Z'"):
        onegru.load(path).run({"X": np.zeros((5, 2, I), np.float32)})


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        (helper.make_node("Squeeze", ["x"], ["y"], axes=[1]), 13),
        (helper.make_node("Squeeze", ["x", "a"], ["y"]), 12),
        (helper.make_node("Squeeze", ["x", "unknown"], ["y"]), 13),
        (helper.make_node("Squeeze", ["x"], ["y"]), 13),
        (helper.make_node("Squeeze", ["x"], ["y"], axes=[1, 1]), 11),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0]), 13),
        (helper.make_node("Transpose", ["x"], ["y"], order=[0, 1]), 13),
        (helper.make_node("Transpose", ["x"], ["y"], perm=1.5), 13),
        (helper.make_node("Reshape", ["x", "two"], ["y"]), 13),
        (helper.make_node("Reshape", ["x", "a"], ["y"], allowzero=1), 13),
        (helper.make_node("Identity", ["x"], ["y"], domain="elsewhere"), 13),
        (helper.make_node("Relu", ["x"], ["y"]), 13),
    ],
)
def test_what_is_left_to_others(node: NodeProto, opset: int) -> None:
    constants = {"a": (1,), "two": (-1, -1)}
    assert view_of(copy.deepcopy(node), opset, constants.get) is None
