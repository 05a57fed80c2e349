"""Weights that a file keeps in integers: what DequantizeLinear gives, packed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto

import onegru
from onegru.core.dtypes import Array
from onegru.formats.onnx.dequantized import fold_dequantized
from onegru.formats.onnx.validate import Source
from tests.support.comparison import assert_bits
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    B,
    H,
    I,
    T,
    X,
    graph,
    gru,
    model,
    node,
    numbers,
    save,
    value,
)

#: How a weight of this shape is quantized: its scale's shape and the node's attributes.
WAYS: dict[str, tuple[Callable[[tuple[int, ...]], tuple[int, ...]], dict[str, Any]]] = {
    "tensor": (lambda shape: (), {}),
    "tensor of one number": (lambda shape: (1,), {}),
    "axis 1": (lambda shape: (shape[1],), {}),
    "axis -2": (lambda shape: (shape[1],), {"axis": -2}),
    "last axis": (lambda shape: (shape[-1],), {"axis": 2}),
    "blocks of 2": (lambda shape: (*shape[:2], -(-shape[2] // 2)), {"axis": 2, "block_size": 2}),
    "blocks of all": (lambda shape: (*shape[:2], 1), {"axis": 2, "block_size": 64}),
}


def spread(scale: Array, shape: tuple[int, ...], attributes: Mapping[str, int]) -> Array:
    """The scale of each number, number by number, as the specification says it."""
    found = np.empty(shape, scale.dtype)
    axis, block = attributes.get("axis", 1) % len(shape), attributes.get("block_size", 0)
    for index in np.ndindex(shape):
        if scale.size == 1 and not block:
            found[index] = scale.reshape(())
        elif not block:
            found[index] = scale[index[axis]]
        else:
            found[index] = scale[(*index[:axis], index[axis] // block, *index[axis + 1 :])]
    return found


def quantized(
    way: str, dtype: Any = np.int8, *, has_zero: bool = True
) -> tuple[list[NodeProto], dict[str, Array], dict[str, Array]]:
    """The nodes of W and R, the constants that they take, and the weights that they give."""
    shape_of, attributes = WAYS[way]
    rng = np.random.default_rng(3)
    nodes, constants, given = [], {"B": WEIGHTS["B"]}, {"B": WEIGHTS["B"]}
    for name, shape in (("W", (1, 3 * H, I)), ("R", (1, 3 * H, H))):
        most = np.iinfo(dtype)
        q = rng.integers(most.min, most.max, shape, endpoint=True).astype(dtype)
        scale = rng.uniform(0.5, 1, shape_of(shape)).astype(np.float32) / most.max
        zero = rng.integers(most.min // 3, most.max // 3, scale.shape).astype(dtype)
        constants |= {f"{name}.q": q, f"{name}.s": scale}
        inputs = [f"{name}.q", f"{name}.s"]
        offset: Any = 0
        if has_zero:
            constants[f"{name}.z"] = zero
            inputs.append(f"{name}.z")
            offset = spread(zero, shape, attributes).astype(np.int64)
        nodes.append(node("DequantizeLinear", inputs, [name], **attributes))
        given[name] = (q.astype(np.int64) - offset).astype(np.float32) * spread(scale, shape, attributes)
    return nodes, constants, given


def theirs(proto: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, dict(feeds))]


@pytest.mark.parametrize("has_zero", [True, False])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("way", WAYS)
def test_weights_in_integers(way: str, dtype: Any, has_zero: bool, tmp_path: Path) -> None:
    nodes, constants, given = quantized(way, dtype, has_zero=has_zero)
    proto = model(graph([*nodes, PLAIN], [X_INFO], ["Y", "Y_h"], constants), opset=21)
    Y, Y_h = onegru.gru(X, given["W"], given["R"], given["B"])
    if not way.startswith("tensor of"):  # which the specification does not mention
        for array, wanted in zip(theirs(proto, {"X": X}), (Y, Y_h), strict=True):
            np.testing.assert_allclose(array, wanted, atol=3e-6)
    read = onegru.load(save(tmp_path, proto))
    (gru_node,) = read.gru_nodes
    assert gru_node.layer is not None
    assert_bits(gru_node.layer.weights.W, given["W"])
    assert_bits(gru_node.layer.weights.R, given["R"])
    for engine in ("native", "reference"):
        found = onegru.load(save(tmp_path, proto), engine=engine).run({"X": X})
        np.testing.assert_allclose(found["Y"], Y, atol=1e-6)
    for array, wanted in zip(provided(proto, 2), (Y, Y_h), strict=True):
        assert_bits(array, wanted)
    assert_bits(read.run({"X": X})["Y"], Y)
    (layer,) = onegru.load_layers(tmp_path / "model.onnx").values()
    assert_bits(layer(X)[0], Y)
    session = onegru.InferenceSession(tmp_path / "model.onnx")
    assert_bits(session.run(["Y_h"], {"X": X})[0], Y_h)


def provided(proto: ModelProto, runs: int = 1, is_whole: bool = True, **options: str) -> list[Array]:
    """The outputs in ONNX Runtime with onegru's provider, which must run the whole model."""
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 4
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", str(int(is_whole)))
    providers = [(onegru.execution_provider.register(), options), *["CPUExecutionProvider"] * (not is_whole)]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), chosen, providers=providers)
    found = [session.run(None, {"X": X}) for _ in range(runs)][-1]
    return [np.asarray(array) for array in found]


def test_the_provider_reads_what_others_read_too() -> None:
    """Weights that other nodes take, or that the model returns, are written in every run."""
    nodes, constants, given = quantized("axis 1")
    more = [gru("X", ["Y2", ""], hidden_size=H), node("Neg", ["R"], ["-R"])]
    infos = [X_INFO], ["Y", "Y2", "W", "-R"]
    proto = model(graph([*nodes, PLAIN, *more], *infos, constants), opset=21)
    Y, _ = onegru.gru(X, given["W"], given["R"], given["B"])
    Y2, _ = onegru.gru(X, given["W"], given["R"])
    for array, wanted in zip(
        provided(proto, 2, is_whole=False), (Y, Y2, given["W"], -given["R"]), strict=True
    ):
        assert_bits(array, wanted)


def test_the_provider_takes_weights_of_several_nodes_once() -> None:
    nodes, constants, given = quantized("blocks of 2")
    proto = model(
        graph([*nodes, PLAIN, gru("X", ["Y2", ""], hidden_size=H)], [X_INFO], ["Y", "Y2"], constants),
        opset=21,
    )
    for array, wanted in zip(
        provided(proto, 2),
        (
            onegru.gru(X, given["W"], given["R"], given["B"])[0],
            onegru.gru(X, given["W"], given["R"])[0],
        ),
        strict=True,
    ):
        assert_bits(array, wanted)


def test_the_provider_keeps_them_in_int8() -> None:
    nodes, constants, given = quantized("axis 1", has_zero=False)
    proto = model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants), opset=21)
    for activations in ("int16", "int8"):
        layer = onegru.GRU(given["W"], given["R"], given["B"]).with_storage("int8", activations)
        assert_bits(provided(proto, weight_storage="int8", activation_storage=activations)[0], layer(X)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"W.s": np.full(3 * H + 1, 0.1, np.float32)},
        {"W.q": np.zeros((1, 3 * H), np.int8)},
        {"W.z": np.zeros(3 * H + 1, np.int8)},
        {"W.z": np.zeros(3 * H, np.uint8)},
    ],
    ids=["scale", "rank", "zero point", "type"],
)
def test_the_provider_leaves_illegal_nodes_to_onnx_runtime(change: dict[str, Array]) -> None:
    nodes, constants, _ = quantized("axis 1")
    proto = model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants | change), opset=21)
    with pytest.raises(Exception, match=r"(?i)dequantize|W|shape|type"):
        provided(proto, is_whole=False)


def test_with_nodes_that_stay(tmp_path: Path) -> None:
    """X is quantized at run time; another matrix stays; B is in int32, and goes through a Reshape."""
    nodes, constants, _ = quantized("axis 1")
    bias = np.arange(-9, 9, dtype=np.int32)
    constants |= {
        "B.q": bias,
        "B.s": np.array(0.05, np.float32),
        "B.shape": np.array([1, 6 * H]),
        "s": np.array(1 / 64, np.float32),
        "z": np.array(3, np.int8),
        "M.q": np.ones((H, 2), np.int8),
    }
    constants.pop("B")
    more = [
        node("DequantizeLinear", ["B.q", "B.s"], ["B.flat"]),
        node("Reshape", ["B.flat", "B.shape"], ["B"]),
        node("QuantizeLinear", ["X", "s", "z"], ["X.q"]),
        node("DequantizeLinear", ["X.q", "s", "z"], ["X.d"]),
        node("DequantizeLinear", ["M.q", "s"], ["M"]),
        gru("X.d", ["Y", "Y_h"], bias="B"),
        node("MatMul", ["Y", "M"], ["P"]),
    ]
    proto = model(graph([*nodes, *more], [X_INFO], ["P", "Y_h"], constants), opset=21)
    read = onegru.load(save(tmp_path, proto))
    for array, wanted in zip(read.run({"X": X}).values(), theirs(proto, {"X": X}), strict=True):
        np.testing.assert_allclose(array, wanted, atol=3e-6)
    (gru_node,) = read.gru_nodes
    assert gru_node.layer is not None
    assert_bits(gru_node.layer.weights.B.ravel(), bias.astype(np.float32) * np.float32(0.05))
    assert read.other_node_count == 4  # but the GRU: QuantizeLinear, DequantizeLinear twice, MatMul


def test_in_a_body(tmp_path: Path) -> None:
    nodes, constants, given = quantized("axis 1")
    inner = graph([*nodes, gru("X", ["Y_in", "H_in"], bias="B")], [], ["H_in"], {"B": constants.pop("B")})
    other = graph([gru("X", ["Y_2", "H_2"])], [], ["H_2"])
    inner.initializer.extend(onnx.numpy_helper.from_array(constants.pop(n), n) for n in ("W.q", "W.s", "W.z"))
    outer = node("If", ["c"], ["Y_h"], then_branch=inner, else_branch=other)
    constants |= {"W": WEIGHTS["W"] * 0, "R": WEIGHTS["R"]}
    inner.node[-1].input[1], inner.node[0].output[0] = "W.in", "W.in"
    inner.node[-1].input[2], inner.node[1].output[0] = "R.in", "R.in"
    proto = model(graph([outer], [X_INFO, value("c", "bool", [])], ["Y_h"], constants), opset=21)
    read = onegru.load(save(tmp_path, proto))
    found = read.run({"X": X, "c": np.array(True)})["Y_h"]
    assert_bits(found, onegru.gru(X, given["W"], given["R"], given["B"])[1])


def test_what_is_left_to_the_runtime(tmp_path: Path) -> None:
    """A default that a caller replaces, a matrix that a product takes as well, types of other scales."""
    feeds = {"X": X}
    nodes, constants, _ = quantized("axis 1")
    info = value("W.q", "int8", [1, 3 * H, I])
    protos = {
        "default": model(graph([*nodes, PLAIN], [X_INFO, info], ["Y"], constants), opset=21),
        "shared": model(
            graph(
                [
                    *nodes,
                    PLAIN,
                    node("MatMul", ["X", "W.t"], ["P"]),
                    node("Transpose", ["W"], ["W.u"]),
                    node("Squeeze", ["W.u", "two"], ["W.t"]),
                ],
                [X_INFO],
                ["Y", "P"],
                {**constants, "two": np.array([2])},
            ),
            opset=21,
        ),
        "output": model(graph([*nodes, PLAIN], [X_INFO], ["Y", "W"], constants), opset=21),
    }
    for name, proto in protos.items():
        read = onegru.load(save(tmp_path, proto))
        for array, wanted in zip(read.run(feeds).values(), theirs(proto, feeds), strict=True):
            np.testing.assert_allclose(array, wanted, atol=3e-6, err_msg=name)
        fold_dequantized(Source(name), proto, 21)
        assert [item.output[0] for item in proto.graph.node if item.op_type == "DequantizeLinear"] == ["W"]
    proto = model(graph([*nodes, PLAIN], [X_INFO, info], ["Y"], constants), opset=21)
    read = onegru.load(save(tmp_path, proto))
    zeros = np.zeros((1, 3 * H, I), np.int8)
    wanted = theirs(proto, {**feeds, "W.q": zeros})[0]
    np.testing.assert_allclose(read.run({**feeds, "W.q": zeros})["Y"], wanted, atol=3e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"W.s": np.ones(3 * H - 1, np.float32)},
        {"W.z": np.zeros(3 * H, np.uint8)},
        {"W.q": np.zeros((1, 3 * H, I), np.float32)},
    ],
    ids=["scales", "zero points", "numbers"],
)
def test_illegal_nodes_are_refused_as_before(change: dict[str, Array], tmp_path: Path) -> None:
    nodes, constants, _ = quantized("axis 1")
    proto = model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants | change), opset=21)
    with pytest.raises(onegru.OneGRUError, match=r"."):
        onegru.load(save(tmp_path, proto)).run({"X": X})


def test_blocks_larger_than_their_axis_are_not_multiplied_out(tmp_path: Path) -> None:
    """ONNX Runtime refuses them; onnx's evaluator would make arrays of a size that the file chooses."""
    nodes, constants, _ = quantized("blocks of 2")
    block = next(item for item in nodes[0].attribute if item.name == "block_size")
    block.i = 1000
    proto = model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants), opset=21)
    with pytest.raises(onegru.FormatError, match="DequantizeLinear"):
        onegru.load(save(tmp_path, proto)).run({"X": X})


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (11, {"axis": 1}),
        (19, {"axis": 1, "block_size": 5}),
        (21, {"axis": 1.0}),
        (21, {"axis": 1, "more": 1}),
    ],
    ids=str,
)
def test_attributes_that_are_not_there_yet(opset: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Nodes that the specification forbids are not computed here."""
    nodes, constants, _ = quantized("axis 1", has_zero=False)
    nodes[0] = node("DequantizeLinear", ["W.q", "W.s"], ["W"], **attributes)
    read = onnx.load(save(tmp_path, model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants), opset=opset)))
    fold_dequantized(Source("m.onnx"), read, opset)
    assert [item.op_type for item in read.graph.node if "W" in item.output] == ["DequantizeLinear"]


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    nodes, constants, _ = quantized("blocks of 2")
    path = save(tmp_path, model(graph([*nodes, PLAIN], [X_INFO], ["Y"], constants), opset=21))
    before = path.read_bytes()
    onegru.load(path).run({"X": numbers(1, T, B, I)})
    onegru.inspect(path)
    assert path.read_bytes() == before
