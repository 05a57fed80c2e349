"""Models that ONNX Runtime runs as a whole: GRU nodes in bodies, and what bodies take from outside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto

import onegru
from onegru import SpecError, SpecWarning
from tests.support.files.onnx_checks import check_results
from tests.support.files.onnx_models import (
    EXPECTED,
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
    loaded,
    model,
    node,
    numbers,
    save,
    value,
    weights,
)
from tests.support.machine.processes import run_python


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
    """The If takes the GRU's results and a value from before it only through its branches."""
    nodes = [
        node("Tanh", ["X"], ["P"]),
        gru("P", ["Y", "Y_h"], bias="B"),
        branches(
            [node("Neg", ["Y_h"], ["a"])], [node("ReduceSum", ["P"], ["s"]), node("Add", ["s", "Y"], ["b"])]
        ),
        gru("P", ["", "end"], initial_h="Y_h"),
        node("Add", ["Z", "end"], ["sum"]),
    ]
    check_results(tmp_path, nodes, ["Z", "sum"], WEIGHTS, BOTH, X=X, which=np.array(which))


def test_bodies_in_bodies_capture_too(tmp_path: Path) -> None:
    inner = branches([node("Neg", ["Y_h"], ["deep"])], [node("Abs", ["Y_h"], ["deeper"])], "mid")
    nodes = [PLAIN, branches([inner, node("Mul", ["mid", "Y_h"], ["a"])], [node("Abs", ["Y_h"], ["b"])])]
    check_results(tmp_path, nodes, ["Z"], WEIGHTS, BOTH, X=X, which=np.array(True))


def test_bodies_with_values_of_their_own_name(tmp_path: Path) -> None:
    """What a body defines itself is not read from outside."""
    own = graph([node("Add", ["k", "Y_h"], ["a"])], [], ["a"], {"k": np.array([5], np.float32)})
    nodes = [PLAIN, node("If", ["which"], ["Z"], then_branch=own, else_branch=own)]
    check_results(tmp_path, nodes, ["Z"], WEIGHTS, BOTH, X=X, which=np.array(True))


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
    check_results(tmp_path, [PLAIN, *loop([inner], "new")], ["Z"], constants)

    steps = [node("Unsqueeze", ["step", "zero"], ["x"]), gru("x", ["", "new"], initial_h="h")]
    check_results(tmp_path, [PLAIN, *scan(steps, "new")], ["Z"], {**WEIGHTS, "zero": np.array([0])})

    either = branches([gru("X", ["", "a"])], [gru("X", ["", "b"], direction="reverse")])
    for which in (True, False):
        check_results(tmp_path, [either], ["Z"], WEIGHTS, BOTH, X=X, which=np.array(which))


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
        ({"activations": ["Sigmoid", "ScaledTanh"]}, "no value for ScaledTanh, which has no default"),
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
    except onegru.SpecError as error:
        print("refused", str(error).split(": ", 1)[1])
"""


def run_on_nothing(path: Path) -> list[str]:
    """Run a model without steps, without rows, without both, and with both: in a process that may end."""
    return run_python(EMPTY, path).stdout.splitlines()


@pytest.mark.parametrize("opset", [7, 14])
def test_nothing_to_run_in_a_body_does_not_end_the_process(tmp_path: Path, opset: int) -> None:
    """ONNX Runtime's own GRU does end it."""
    inner = gru("X", ["", "a"], name="inner")
    proto = model(graph([branches([inner], [gru("X", ["", "b"])])], BOTH, ["Z"], WEIGHTS), opset=opset)
    assert run_on_nothing(save(tmp_path, proto)) == [f"ran 1 {rows} {H}" for rows in (2, 0, 0, B)]


def test_nothing_to_run_in_an_lstm_does_not_end_the_process(tmp_path: Path) -> None:
    """ONNX Runtime's LSTM ends the process if it has no rows."""
    nodes = [
        node("LSTM", ["X", "lw", "lr"], ["", "L"], hidden_size=H, name="lstm"),
        gru("X", ["", "Z"], initial_h="L"),
    ]
    constants = {**WEIGHTS, "lw": numbers(1, 1, 4 * H, I), "lr": numbers(2, 1, 4 * H, H)}
    proto = model(graph(nodes, BOTH, ["Z"], constants))
    no_steps, no_rows, neither, full = run_on_nothing(save(tmp_path, proto))
    assert full == f"ran 1 {B} {H}"
    assert no_steps == f"ran 1 2 {H}"
    for words in (no_rows, neither):
        assert (
            "must not be empty, because ONNX Runtime cannot run LSTM node 'lstm' on an empty batch" in words
        )


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
    check_results(tmp_path, nodes, ["Z", "sum"], {**constants, "zero": np.zeros((B, H), np.float32)})


def total() -> GraphProto:
    return graph([node("Add", ["so_far", "part"], ["more"])], [value("so_far"), value("part")], ["more"])


def test_a_trace_where_the_condition_is_a_constant(tmp_path: Path) -> None:
    """ONNX Runtime moves the nodes of such a body out of it, under other names."""
    nodes = [branches([gru("X", ["", "a"], bias="B")], [gru("X", ["", "b"])])]
    proto = model(graph(nodes, [X_INFO], ["Z"], {**WEIGHTS, "which": np.array(True)}))
    ours = loaded(tmp_path, proto)
    np.testing.assert_array_equal(ours.run({"X": X})["Z"], EXPECTED["Y_h"])
    seen = [arrays for arrays in ours.trace({"X": X}) if arrays]
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0]["Y_h"], EXPECTED["Y_h"])
