"""Models that ONNX Runtime runs as a whole: the types around GRU nodes, faults of other nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

import onegru
from onegru import FormatError
from onegru.core.dtypes import Array
from tests.support.files.onnx_checks import Outputs, check_results
from tests.support.files.onnx_models import (
    EXPECTED,
    PLAIN,
    WEIGHTS,
    X_INFO,
    B,
    H,
    I,
    X,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    numpy_type,
    value,
    weights,
)

# ---- types of values around GRU nodes ----


def test_bfloat16_crosses_both_ways(tmp_path: Path) -> None:
    """ONNX Runtime takes and gives no bfloat16 arrays, though it computes with the type."""
    constants = {**weights(dtype="bfloat16"), **weights(1, "2", I=H, dtype="bfloat16"), "one": np.array([1])}
    nodes = [
        node("Cast", ["X32"], ["X"], to=TensorProto.BFLOAT16),
        gru("X", ["Y", "Y_h"], bias="B"),
        node("Squeeze", ["Y", "one"], ["S"]),
        gru("S", ["Z", "Z_h"], W="W2", R="R2", bias="B2", initial_h="Y_h"),
        node("Cast", ["Z"], ["Z32"], to=TensorProto.FLOAT),
        node("Identity", ["Z_h"], ["same"]),
    ]
    outputs: Outputs = ["Z32", value("same", "bfloat16"), value("Z", "bfloat16"), value("S", "bfloat16")]
    proto = model(graph(nodes, [value("X32", "float32", [None, None, I])], outputs, constants), opset=22)
    got = loaded(tmp_path, proto).run({"X32": X})
    W, R, bias, W2, R2, B2, _ = constants.values()
    Y, Y_h = onegru.gru(X.astype(numpy_type("bfloat16")), W, R, bias)
    Z, Z_h = onegru.gru(Y[:, 0], W2, R2, B2, initial_h=Y_h)
    for name, want in {"Z32": Z.astype(np.float32), "same": Z_h, "Z": Z, "S": Y[:, 0]}.items():
        assert got[name].dtype == want.dtype
        np.testing.assert_array_equal(got[name], want)


def test_bfloat16_inputs_and_captured_values(tmp_path: Path) -> None:
    yes = graph([node("Cast", ["Y_h"], ["a"], to=TensorProto.FLOAT)], [], ["a"])
    no = graph([node("Cast", ["X"], ["b"], to=TensorProto.FLOAT)], [], ["b"])
    nodes = [gru("X", ["Y", "Y_h"], bias="B"), node("If", ["which"], ["Z"], then_branch=yes, else_branch=no)]
    inputs = [value("X", "bfloat16", [None, None, I]), value("which", "bool", [])]
    constants = weights(dtype="bfloat16")
    ours = loaded(tmp_path, model(graph(nodes, inputs, ["Z"], constants), opset=22))
    x = X.astype(numpy_type("bfloat16"))
    _, Y_h = onegru.gru(x, *constants.values())
    np.testing.assert_array_equal(ours.run({"X": x, "which": True})["Z"], Y_h.astype(np.float32))
    np.testing.assert_array_equal(ours.run({"X": x, "which": False})["Z"], x.astype(np.float32))


@pytest.mark.parametrize(
    "dtype", ["float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
)
def test_numbers_of_any_type_cross(tmp_path: Path, dtype: str) -> None:
    """Computed before the GRU node, used after it."""
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    body = graph([node("Identity", ["early"], ["a"])], [], [value("a", dtype)])
    nodes = [
        node("Cast", ["X"], ["early"], to=code),
        PLAIN,
        node("ReduceMax", ["Y_h"], ["top"], keepdims=0),
        node("Less", ["top", "high"], ["yes"]),
        node("If", ["yes"], ["Z"], then_branch=body, else_branch=body),
    ]
    x = np.rint(np.abs(X) * 100).astype(np.float32)
    check_results(tmp_path, nodes, [value("Z", dtype)], {**WEIGHTS, "high": np.array(9, np.float32)}, X=x)


def test_float16_crosses(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["X"], ["x16"], to=TensorProto.FLOAT16),
        gru("x16", ["Y"], bias="B"),
        node("Cast", ["Y"], ["Z"], to=TensorProto.FLOAT),
    ]
    constants = weights(dtype="float16")
    got = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Z"], constants))).run({"X": X})
    want, _ = onegru.gru(X.astype(np.float16), *constants.values())
    np.testing.assert_array_equal(got["Z"], want.astype(np.float32))


def test_strings_cross(tmp_path: Path) -> None:
    """Labels by the largest state: strings in, computed on both sides of the cut, out."""
    nodes = [
        node("Gather", ["labels", "order"], ["sorted"]),
        PLAIN,
        node("ArgMax", ["Y_h"], ["best"], axis=2, keepdims=0),
        node("Gather", ["sorted", "best"], ["answer"]),
    ]
    got = check_results(
        tmp_path,
        nodes,
        [value("answer", "str"), value("sorted", "str")],
        {**WEIGHTS, "order": np.array([2, 0, 1])},
        [X_INFO, value("labels", "str", [3])],
        X=X,
        labels=np.array(["b", "ç", "a"], object),
    )
    assert set(got["answer"].ravel()) <= {"a", "b", "ç"}


def test_sequences_cross(tmp_path: Path) -> None:
    kind = onnx.helper.make_tensor_sequence_value_info
    nodes = [
        node("SequenceConstruct", ["X", "X"], ["early"]),
        PLAIN,
        node("SequenceInsert", ["early", "Y"], ["late"]),
        node("SequenceInsert", ["given", "Y_h"], ["extended"]),
    ]
    inputs = [X_INFO, kind("given", TensorProto.FLOAT, None)]
    outputs = [kind("late", TensorProto.FLOAT, None), kind("extended", TensorProto.FLOAT, None)]
    got = check_results(tmp_path, nodes, outputs, WEIGHTS, inputs, X=X, given=[numbers(0, 2), numbers(1, 3)])
    assert [item.shape for item in got["extended"]] == [(2,), (3,), (1, B, H)]


def test_types_that_numpy_does_not_have(tmp_path: Path) -> None:
    """Numbers of eight bits, for one."""
    body = graph([node("Cast", ["small"], ["a"], to=TensorProto.FLOAT)], [], ["a"])
    nodes = [
        node("Cast", ["X"], ["small"], to=TensorProto.FLOAT8E4M3FN),
        PLAIN,
        node("ReduceMax", ["Y_h"], ["top"], keepdims=0),
        node("Greater", ["top", "low"], ["yes"]),
        node("If", ["yes"], ["Z"], then_branch=body, else_branch=body),
    ]
    constants = {**WEIGHTS, "low": np.array(-9, np.float32)}
    proto = model(graph(nodes, [X_INFO], ["Z"], constants), opset=19)
    got = loaded(tmp_path, proto).run({"X": X})["Z"]
    np.testing.assert_allclose(got, X, atol=0.05)


def test_optional_values_cross(tmp_path: Path) -> None:
    nodes = [
        node("Optional", ["X"], ["early"]),
        PLAIN,
        node("Identity", ["Y_h"], ["h"]),
        node("OptionalGetElement", ["early"], ["Z"]),
        node("Add", ["h", "h"], ["twice"]),
    ]
    body = graph([node("OptionalGetElement", ["early"], ["a"])], [], ["a"])
    nodes[3] = node("If", ["yes"], ["Z"], then_branch=body, else_branch=body)
    nodes.insert(3, node("Greater", ["top", "low"], ["yes"]))
    nodes.insert(3, node("ReduceMax", ["Y_h"], ["top"], keepdims=0))
    ours = loaded(
        tmp_path,
        model(graph(nodes, [X_INFO], ["Z", "twice"], {**WEIGHTS, "low": np.array(-9, np.float32)}), opset=18),
    )
    np.testing.assert_array_equal(ours.run({"X": X})["Z"], X)


def test_shapes_cross(tmp_path: Path) -> None:
    """A Scan needs the rank of what it scans, which here follows from the GRU's text."""
    body = graph(
        [node("Add", ["state", "step"], ["next"]), node("Identity", ["next"], ["out"])],
        [value("state"), value("step")],
        ["next", "out"],
    )
    nodes = [
        PLAIN,
        node("Squeeze", ["Y", "one"], ["S"]),
        node("Scan", ["start", "S"], ["last", "all"], body=body, num_scan_inputs=1),
    ]
    constants = {**WEIGHTS, "one": np.array([1]), "start": np.zeros((B, H), np.float32)}
    check_results(tmp_path, nodes, ["last", "all"], constants)


def test_model_without_shapes(tmp_path: Path) -> None:
    nodes = [node("Relu", ["X"], ["P"]), gru("P", ["Y", "Y_h"], bias="B"), node("Neg", ["Y_h"], ["Z"])]
    proto = model(graph(nodes, [onnx.ValueInfoProto(name="X")], [onnx.ValueInfoProto(name="Z")], WEIGHTS))
    message = "graph input 'X': must have a type"
    for kind in (None, onnx.helper.make_tensor_type_proto(TensorProto.UNDEFINED, [None])):
        if kind is not None:
            proto.graph.input[0].type.CopyFrom(kind)
        with pytest.raises(FormatError, match=message):
            loaded(tmp_path, proto)
    proto.graph.input[0].CopyFrom(value("X"))
    _, want = onegru.gru(np.maximum(X, 0), *WEIGHTS.values())
    np.testing.assert_array_equal(loaded(tmp_path, proto).run({"X": X})["Z"], -want)


def test_a_type_that_only_the_weights_tell(tmp_path: Path) -> None:
    nodes = [PLAIN, node("Neg", ["Y_h"], ["Z"])]
    proto = model(graph(nodes, [onnx.ValueInfoProto(name="X")], ["Z"], WEIGHTS))
    np.testing.assert_array_equal(loaded(tmp_path, proto).run({"X": X})["Z"], -EXPECTED["Y_h"])


# ---- faults of other nodes ----


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (node("Nonsense", ["Y"], ["Z"], name="bad"), "Nonsense"),
        (node("Relu", ["Y", "Y"], ["Z"]), "Relu"),
        (node("Reshape", ["Y", "W"], ["Z"]), "Reshape"),
        (node("Transpose", ["Y"], ["Z"], perm=[0, 0, 0, 0]), "Transpose"),
        (node("Relu", ["Y"], ["Z"], colour=1), "Relu"),
        (node("If", ["Y"], ["Z"]), "else_branch"),
        (node("Relu", ["Y"], ["Z"], domain="elsewhere"), "elsewhere"),
    ],
)
def test_what_onnxruntime_refuses(
    tmp_path: Path, bad: NodeProto, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FormatError) as caught:
        loaded(tmp_path, model(graph([PLAIN, bad], [X_INFO], ["Z"], WEIGHTS)))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'model.onnx'}: ONNX Runtime refuses it (")
    assert word in message
    assert "\n" not in message
    assert "[ONNXRuntimeError]" not in message
    assert capfd.readouterr() == ("", ""), "it is said once, by the error"


def test_what_onnxruntime_fails_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [PLAIN, node("Gather", ["Y_h", "at"], ["Z"], name="pick")]
    ours = loaded(tmp_path, model(graph(nodes, [X_INFO, value("at", "int64", [])], ["Z"], WEIGHTS)))
    with pytest.raises(FormatError) as caught:
        ours.run({"X": X, "at": np.array(2)})
    assert "ONNX Runtime fails (Non-zero status code returned while running Gather node. Name:'pick'" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert ours.run({"X": X, "at": np.array(0)})["Z"].shape == (B, H), "the model is as good as before"


def other_domain() -> ModelProto:
    body: GraphProto = graph(
        [PLAIN, node("FusedMatMul", ["Y_h", "M"], ["Z"], domain="com.microsoft", alpha=2.0)],
        [X_INFO],
        ["Z"],
        {**WEIGHTS, "M": numbers(1, H, 2)},
    )
    return model(body, domains={"com.microsoft": 1})


def test_operators_of_onnxruntime_itself(tmp_path: Path) -> None:
    got = loaded(tmp_path, other_domain()).run({"X": X})
    np.testing.assert_allclose(got["Z"], 2 * EXPECTED["Y_h"] @ numbers(1, H, 2), atol=1e-6)


def test_an_output_that_changes_its_shape_from_run_to_run(tmp_path: Path) -> None:
    """How many numbers are positive is known once they are there."""
    nodes = [
        PLAIN,
        node("Greater", ["Y", "zero"], ["mask"]),
        node("NonZero", ["mask"], ["where"]),
        node("Cast", ["where"], ["Z"], to=TensorProto.FLOAT),
    ]
    constants = {**WEIGHTS, "zero": np.zeros((), np.float32)}
    ours = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Z"], constants)))
    counts = set()
    for index in (0, 0, 0, 1, 1, 2, 2, 0):
        x = numbers(index, 4, B, I)
        got = ours.run({"X": x})["Z"]
        np.testing.assert_array_equal(got, np.nonzero(onegru.gru(x, *WEIGHTS.values())[0] > 0))
        counts.add(got.shape[1])
    assert len(counts) > 1


def test_threads_that_run_one_model_do_not_meet(tmp_path: Path) -> None:
    nodes = [PLAIN, node("Exp", ["Y"], ["Z"])]
    ours = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Z"], WEIGHTS)))

    def is_right(seed: int) -> bool:
        x = numbers(seed, 3, B, I)
        expected = np.exp(onegru.gru(x, *WEIGHTS.values())[0])
        return all(np.allclose(ours.run({"X": x})["Z"], expected, rtol=1e-6) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(4)))


def test_products_of_integers_are_not_saturated(tmp_path: Path) -> None:
    """Without VNNI, ONNX Runtime's default kernels add two products of eight bits in sixteen."""
    constants = weights(I=8) | {
        "w": np.full((64, 8), 127, np.int8),
        "one": np.full((), 1 / 255 / 127 / 64, np.float32),
    }
    nodes = [
        node("MatMulInteger", ["x", "w"], ["integers"]),
        node("Cast", ["integers"], ["floats"], to=TensorProto.FLOAT),
        node("Mul", ["floats", "one"], ["X"]),
        gru("X", ["Y"]),
    ]
    proto = model(graph(nodes, [value("x", "uint8", [1, 1, 64])], ["X", "Y"], constants))
    found = loaded(tmp_path, proto).run({"x": np.full((1, 1, 64), 255, np.uint8)})["X"]
    np.testing.assert_allclose(found, 1.0, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_for_each_channel_with_integers(tmp_path: Path, axis: int) -> None:
    """With them ONNX Runtime's exact products would fail: its default ones run."""
    scales = np.linspace(0.01, 0.03, I).astype(np.float32)
    q = np.random.default_rng(0).integers(-128, 128, (I, I)).astype(np.int8)
    constants = weights() | {"q": q, "s": scales}
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"], axis=axis),
        node("MatMul", ["x", "w"], ["X"]),
        gru("X", ["Y"]),
    ]
    proto = model(graph(nodes, [value("x", shape=[2, 1, I])], ["X", "Y"], constants), opset=17)
    x = np.random.default_rng(1).standard_normal((2, 1, I)).astype(np.float32)
    w = q * (scales[:, None] if axis == 0 else scales)
    found = loaded(tmp_path, proto).run({"x": x})["X"]
    np.testing.assert_allclose(found, x @ w, atol=0.03)  # ONNX Runtime may round x to eight bits


def test_weights_that_several_nodes_share(tmp_path: Path) -> None:
    """ONNX Runtime refuses the model where it must be exact: its usual kernels run."""
    constants: dict[str, Array] = weights() | {
        **{
            "q": np.random.default_rng(0).integers(-9, 9, (I, I)).astype(np.int8),
            "s": np.array(0.01, np.float32),
        },
        **{"xs": np.array(1 / 255, np.float32), "xz": np.array(0, np.uint8)},
    }
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("MatMul", ["xd", "w"], ["X"]),
        node("Cast", ["q"], ["kept"], to=TensorProto.FLOAT),
        gru("X", ["Y"]),
    ]
    proto = model(graph(nodes, [value("x", shape=[2, 1, I])], ["X", "w", "kept", "Y"], constants), opset=21)
    x = np.random.default_rng(1).random((2, 1, I)).astype(np.float32)
    found = loaded(tmp_path, proto).run({"x": x})
    np.testing.assert_allclose(found["X"], x @ (constants["q"] * np.float32(0.01)), atol=5e-3)


def test_products_of_int8_by_int8(tmp_path: Path) -> None:
    """As ONNX Runtime's quantizer writes them in operators: an exact mode lacks a kernel for them."""
    scales: dict[str, Array] = {
        "xs": np.array(1, np.float32),
        "z": np.array(0, np.int8),
        "ws": np.array(1, np.float32),
        "ys": np.array(64, np.float32),
    }
    constants = weights(I=8) | scales | {"w": np.full((64, 8), 100, np.int8)}
    nodes = [
        node("QLinearMatMul", ["x", "xs", "z", "w", "ws", "z", "ys", "z"], ["q"]),
        node("DequantizeLinear", ["q", "ys", "z"], ["X"]),
        gru("X", ["Y"]),
    ]
    proto = model(graph(nodes, [value("x", "int8", [1, 1, 64])], ["X", "Y"], constants), opset=17)
    found = loaded(tmp_path, proto).run({"x": np.full((1, 1, 64), 1, np.int8)})["X"]
    np.testing.assert_array_equal(found, 6400)


@pytest.mark.parametrize("scale", ["value_float", "channels"])
def test_scales_with_which_integers_are_exact(tmp_path: Path, scale: str) -> None:
    """One that is a plain number, and one for each channel with zero points."""
    s = np.full(8 if scale == "channels" else (), 0.01, np.float32)
    constants: dict[str, Array] = weights(I=8) | {
        **{"w": np.full((64, 8), 127, np.int8), "zeros": np.zeros(s.shape, np.int8)},
        **{"xs": np.array(1 / 255, np.float32), "xz": np.array(0, np.uint8), "ys": np.array(0.5, np.float32)},
    }
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "s", *(["zeros"] if scale == "channels" else [])], ["wd"], axis=1),
        node("MatMul", ["xd", "wd"], ["product"]),
        node("QuantizeLinear", ["product", "ys", "xz"], ["yq"]),
        node("DequantizeLinear", ["yq", "ys", "xz"], ["X"]),
        gru("X", ["Y"]),
    ]
    if scale == "channels":
        constants["s"] = s
    else:
        nodes.insert(0, node("Constant", [], ["s"], value_float=0.01))
    proto = model(graph(nodes, [value("x", shape=[1, 1, 64])], ["X", "Y"], constants), opset=21)
    found = loaded(tmp_path, proto).run({"x": np.ones((1, 1, 64), np.float32)})["X"]
    np.testing.assert_allclose(found, 81.5)  # 81.28, in halves
