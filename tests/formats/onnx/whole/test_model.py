"""Models that ONNX Runtime runs as a whole: the types around GRU nodes, bodies, faults of other nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

import onegru
from onegru import FormatError, SpecError, SpecWarning
from tests.support.onnx_models import (
    B,
    H,
    I,
    T,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    numpy_type,
    onnxruntime_results,
    save,
    value,
    weights,
)

X = numbers(99, T, B, I)
X_INFO = value("X", "float32", ["time", "batch", I])
WEIGHTS = weights()
Y, Y_H = onegru.gru(X, *WEIGHTS.values())
PLAIN = gru("X", ["Y", "Y_h"], bias="B", name="g")
Outputs = Sequence[str | ValueInfoProto]


def check(
    folder: Path,
    nodes: Sequence[NodeProto],
    outputs: Outputs,
    constants: Mapping[str, Any] = WEIGHTS,
    inputs: Sequence[ValueInfoProto] = (X_INFO,),
    **feeds: object,
) -> dict[str, Any]:
    """Run a model by onegru and by ONNX Runtime, and compare."""
    proto = model(graph(nodes, inputs, outputs, constants))
    feeds = feeds or {"X": X}
    got, expected = loaded(folder, proto).run(feeds), onnxruntime_results(proto, feeds)
    for name, want in expected.items():
        for ours, theirs in zip(
            *([x] if isinstance(x, np.ndarray) else x for x in (got[name], want)), strict=True
        ):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(ours, theirs, err_msg=name)
    return got


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
    """Computed before the GRU node, used behind it."""
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
    check(tmp_path, nodes, [value("Z", dtype)], {**WEIGHTS, "high": np.array(9, np.float32)}, X=x)


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
    got = check(
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
    got = check(tmp_path, nodes, outputs, WEIGHTS, inputs, X=X, given=[numbers(0, 2), numbers(1, 3)])
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
    check(tmp_path, nodes, ["last", "all"], constants)


def test_model_without_shapes(tmp_path: Path) -> None:
    nodes = [node("Relu", ["X"], ["P"]), gru("P", ["Y", "Y_h"], bias="B"), node("Neg", ["Y_h"], ["Z"])]
    proto = model(graph(nodes, [onnx.ValueInfoProto(name="X")], [onnx.ValueInfoProto(name="Z")], WEIGHTS))
    message = "graph input 'X': its type is unknown; must be given"
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
    np.testing.assert_array_equal(loaded(tmp_path, proto).run({"X": X})["Z"], -Y_H)


# ---- bodies ----


def branches(yes: Sequence[NodeProto], no: Sequence[NodeProto], name: str = "Z") -> NodeProto:
    both = {
        f"{kind}_branch": graph(nodes, [], [nodes[-1].output[-1]])
        for kind, nodes in {"then": yes, "else": no}.items()
    }
    return node("If", ["which"], [name], name="either", **both)


WHICH = value("which", "bool", [])
BOTH = (X_INFO, WHICH)


@pytest.mark.parametrize("which", [True, False])
def test_results_captured_in_a_body(tmp_path: Path, which: bool) -> None:
    """The If takes the GRU's results and a value from before it through its branches alone."""
    nodes = [
        node("Tanh", ["X"], ["P"]),
        gru("P", ["Y", "Y_h"], bias="B"),
        branches(
            [node("Neg", ["Y_h"], ["a"])], [node("ReduceSum", ["P"], ["s"]), node("Add", ["s", "Y"], ["b"])]
        ),
        gru("P", ["", "end"], initial_h="Y_h"),
        node("Add", ["Z", "end"], ["sum"]),
    ]
    check(tmp_path, nodes, ["Z", "sum"], WEIGHTS, BOTH, X=X, which=np.array(which))


def test_bodies_in_bodies_capture_too(tmp_path: Path) -> None:
    inner = branches([node("Neg", ["Y_h"], ["deep"])], [node("Abs", ["Y_h"], ["deeper"])], "mid")
    nodes = [PLAIN, branches([inner, node("Mul", ["mid", "Y_h"], ["a"])], [node("Abs", ["Y_h"], ["b"])])]
    check(tmp_path, nodes, ["Z"], WEIGHTS, BOTH, X=X, which=np.array(True))


def test_bodies_with_values_of_their_own_name(tmp_path: Path) -> None:
    """What a body defines itself is not taken from outside."""
    own = graph([node("Add", ["k", "Y_h"], ["a"])], [], ["a"], {"k": np.array([5], np.float32)})
    nodes = [PLAIN, node("If", ["which"], ["Z"], then_branch=own, else_branch=own)]
    check(tmp_path, nodes, ["Z"], WEIGHTS, BOTH, X=X, which=np.array(True))


def loop(body_nodes: Sequence[NodeProto], state: str) -> list[NodeProto]:
    body = graph(
        [*body_nodes, node("Identity", ["go"], ["goes"])],
        [value("k", "int64", []), value("go", "bool", []), value("h", "float32", [1, "batch", H])],
        [value("goes", "bool"), state],
    )
    return [node("Loop", ["three", "", "Y_h"], ["Z"], body=body, name="loop")]


def scan(body_nodes: Sequence[NodeProto], state: str) -> list[NodeProto]:
    body = graph(body_nodes, [value("h", "float32", [None] * 3), value("step", "float32", [B, I])], [state])
    return [node("Scan", ["Y_h", "X"], ["Z"], body=body, num_scan_inputs=1, name="scan")]


def test_grus_in_bodies_that_onnxruntime_runs_right(tmp_path: Path) -> None:
    inner = gru("X", ["", "new"], bias="B", initial_h="h", linear_before_reset=1)
    constants = {**WEIGHTS, "three": np.array(3)}
    check(tmp_path, [PLAIN, *loop([inner], "new")], ["Z"], constants)

    steps = [node("Unsqueeze", ["step", "zero"], ["x"]), gru("x", ["", "new"], initial_h="h")]
    check(tmp_path, [PLAIN, *scan(steps, "new")], ["Z"], {**WEIGHTS, "zero": np.array([0])})

    either = branches([gru("X", ["", "a"])], [gru("X", ["", "b"], direction="reverse")])
    for which in (True, False):
        check(tmp_path, [either], ["Z"], WEIGHTS, BOTH, X=X, which=np.array(which))


def body_of(inner: NodeProto, kind: str) -> tuple[list[NodeProto], str]:
    """A GRU node in a body, and what the node with the body is called in messages."""
    alike = NodeProto()
    alike.CopyFrom(inner)
    alike.output[1] = "other"
    if kind == "If":
        return [branches([inner], [alike])], "If node 'either'"
    if kind == "Loop":
        return [PLAIN, *loop([inner], "new")], "Loop node 'loop'"
    if kind == "Scan":
        return [PLAIN, *scan([inner], "new")], "Scan node 'scan'"
    nested = branches([branches([inner], [alike], "mid")], [alike])
    return [nested], "If node 'either'"


@pytest.mark.parametrize("kind", ["If", "Loop", "Scan", "If in If"])
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (14, {"layout": 1}),
        (9, {}),
        (14, {"hidden_size": None}),
        (14, {"activations": ["Affine", "Tanh"]}),
        (14, {"activations": ["Sigmoid", "ThresholdedRelu"]}),
    ],
)
def test_grus_in_bodies_that_onnxruntime_does_not_run_right(
    tmp_path: Path, kind: str, opset: int, attributes: dict[str, Any]
) -> None:
    inner = gru("X", ["", "new"], name="inner", **attributes)
    nodes, owner = body_of(inner, kind)
    proto = model(graph(nodes, BOTH, ["Z"], {**WEIGHTS, "three": np.array(3)}), opset=opset)
    ours = loaded(tmp_path, proto)
    # What a Scan carries keeps its shape.
    x = numbers(5, 1, 1, I) if kind == "Scan" and attributes.get("layout") else numbers(5, T, B, I)
    got = ours.run({"X": x, "which": True})["Z"]
    attributes = {name: item for name, item in attributes.items() if item is not None}
    _, wanted = onegru.gru(x, WEIGHTS["W"], WEIGHTS["R"], opset=opset, **attributes)
    np.testing.assert_array_equal(got, wanted)
    assert ours.gru_nodes[-1].bodies[0].endswith(owner)
    assert f"GRU node 'inner' in {', in '.join(reversed(ours.gru_nodes[-1].bodies))}" in ours.nested_grus


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activations": ["Sigmoid", "ScaledTanh"]}, "no value left for ScaledTanh, which has no default"),
        ({"activations": ["Sigmoid", "Tanh", "Tanh"]}, "activations: 3 names; must be 2"),
        ({"activations": ["Sigmoid", "Tangens"]}, "Tangens"),
        ({"clip": -1.0}, "clip: -1; must be > 0"),
        ({"output_sequence": 1}, "output_sequence was removed in opset 7"),
        ({"direction": "sideways"}, "direction: 'sideways'; must be"),
    ],
)
def test_grus_in_bodies_must_be_legal(tmp_path: Path, attributes: dict[str, Any], message: str) -> None:
    nodes, _ = body_of(gru("X", ["", "new"], name="inner", **attributes), "If")
    with pytest.raises(SpecError, match=r"model\.onnx: GRU node 'inner': ") as caught:
        loaded(tmp_path, model(graph(nodes, BOTH, ["Z"], WEIGHTS)))
    assert message in str(caught.value)


def test_grus_in_bodies_warn_too(tmp_path: Path) -> None:
    nodes, _ = body_of(gru("X", ["", "new"], name="inner", activation_beta=[1.0]), "If")
    with pytest.warns(SpecWarning, match="GRU node 'inner': activation_beta: 1 value"):
        loaded(tmp_path, model(graph(nodes, BOTH, ["Z"], WEIGHTS)))


def test_float64_in_a_body(tmp_path: Path) -> None:
    """ONNX Runtime's own kernels have no float64."""
    body = graph([gru("X", ["", "a"], bias="B")], [], [value("a", "float64")])
    other = graph([node("ReduceSum", ["X"], ["b"])], [], [value("b", "float64")])
    nodes = [node("If", ["which"], ["Z"], name="either", then_branch=body, else_branch=other)]
    inputs = [value("X", "float64", [T, B, I]), WHICH]
    constants = weights(dtype="float64")
    ours = loaded(tmp_path, model(graph(nodes, inputs, [value("Z", "float64")], constants)))
    x = X.astype(np.float64)
    wanted = onegru.gru(x, *constants.values())[1]
    np.testing.assert_array_equal(ours.run({"X": x, "which": True})["Z"], wanted)


EMPTY = """
import sys, numpy, onegru
model = onegru.load(sys.argv[1])
for T, B in [(0, 2), (4, 0), (0, 0), (4, 2)]:
    try:
        got = model.run({"X": numpy.ones((T, B, 5), "float32"), "which": True})
        print("ran", *got["Z"].shape)
    except onegru.FormatError as error:
        print("refused", str(error).split(": ", 1)[1])
"""


def run_on_nothing(path: Path) -> list[str]:
    """Run a model without steps, without rows, without both, and with both: in a process that may end."""
    done = subprocess.run(
        [sys.executable, "-c", EMPTY, str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("opset", [7, 14])
def test_nothing_to_run_in_a_body_does_not_end_the_process(tmp_path: Path, opset: int) -> None:
    """ONNX Runtime's own GRU does end it."""
    inner = gru("X", ["", "a"], name="inner")
    proto = model(graph([branches([inner], [gru("X", ["", "b"])])], BOTH, ["Z"], WEIGHTS), opset=opset)
    assert run_on_nothing(save(tmp_path, proto)) == [f"ran 1 {rows} {H}" for rows in (2, 0, 0, B)]


def test_nothing_to_run_in_an_lstm_does_not_end_the_process(tmp_path: Path) -> None:
    """Without steps ONNX Runtime's LSTM is right, without rows it ends the process."""
    nodes = [
        node("LSTM", ["X", "lw", "lr"], ["", "L"], hidden_size=H, name="lstm"),
        gru("X", ["", "Z"], initial_h="L"),
    ]
    constants = {**WEIGHTS, "lw": numbers(1, 1, 4 * H, I), "lr": numbers(2, 1, 4 * H, H)}
    proto = model(graph(nodes, BOTH, ["Z"], constants))
    no_steps, no_rows, neither, full = run_on_nothing(save(tmp_path, proto))
    assert no_steps == full == f"ran 1 {B} {H}"
    assert "LSTM node 'lstm', which takes no empty X" in no_rows
    assert "LSTM node 'lstm', which takes no empty X" in neither


def test_the_shape_of_what_an_lstm_gives_stays_known(tmp_path: Path) -> None:
    """A Scan over its results needs their rank."""
    nodes = [
        PLAIN,
        node("LSTM", ["X", "lw", "lr"], ["", "L"], hidden_size=H),
        node("Add", ["L", "Y_h"], ["start"]),
        *scan([node("Add", ["h", "h"], ["new"])], "new"),
        node("Scan", ["zero", "L"], ["sum"], body=total(), num_scan_inputs=1),
    ]
    nodes[3].input[0] = "start"
    constants = {**WEIGHTS, "lw": numbers(1, 1, 4 * H, I), "lr": numbers(2, 1, 4 * H, H)}
    check(tmp_path, nodes, ["Z", "sum"], {**constants, "zero": np.zeros((B, H), np.float32)})


def total() -> GraphProto:
    return graph([node("Add", ["so_far", "part"], ["more"])], [value("so_far"), value("part")], ["more"])


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
    np.testing.assert_allclose(got["Z"], 2 * Y_H @ numbers(1, H, 2), atol=1e-6)


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


def test_a_trace_where_the_condition_is_a_constant(tmp_path: Path) -> None:
    """ONNX Runtime moves the nodes of such a body out of it, under other names."""
    nodes = [branches([gru("X", ["", "a"], bias="B")], [gru("X", ["", "b"])])]
    proto = model(graph(nodes, [X_INFO], ["Z"], {**WEIGHTS, "which": np.array(True)}))
    ours = loaded(tmp_path, proto)
    np.testing.assert_array_equal(ours.run({"X": X})["Z"], Y_H)
    seen = [arrays for arrays in ours.trace({"X": X}) if arrays]
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0]["Y_h"], Y_H)
