"""Whole ONNX models: where they are cut, and what comes out.

Where ONNX Runtime runs the model right, it is the witness; elsewhere the operator functions and NumPy are.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto

import onegru
from onegru import SpecError
from tests.support.files.onnx_checks import assert_close, check
from tests.support.files.onnx_models import (
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
    numpy_type,
    save,
    tensor,
    value,
    weights,
)
from tests.support.machine.processes import run_python
from tests.support.models.runtimes import onnxruntime_results

SECOND = weights(1, "2", I=H)  # for a GRU on another one's output

# One GRU, and the axis of directions removed for the next one.
FIRST = [gru("X", ["Y", "Y_h"], bias="B", name="first"), node("Squeeze", ["Y", "one"], ["S"])]
ONE = {"one": np.array([1])}


# ---- the cut ----


def test_single_gru(tmp_path: Path) -> None:
    ours = check(tmp_path, [gru("X", ["Y", "Y_h"])], ["Y", "Y_h"])
    assert ours.other_node_count == 0


def test_nodes_before_between_and_after(tmp_path: Path) -> None:
    nodes = [
        node("Neg", ["X0"], ["X"]),
        *FIRST,
        node("Relu", ["S"], ["P"]),
        gru("P", ["Q", "Q_h"], W="W2", R="R2", bias="B2", initial_h="Y_h", name="second"),
        node("Add", ["Q_h", "Y_h"], ["Z"]),
        node("ReduceMean", ["Z"], ["mean"], keepdims=0),
    ]
    ours = check(
        tmp_path,
        nodes,
        ["Z", value("mean")],
        {**WEIGHTS, **SECOND, **ONE},
        inputs=[value("X0", "float32", ["time", "batch", I])],
        feeds={"X0": X},
    )
    assert [layer.name for layer in ours.gru_nodes] == ["first", "second"]
    assert ours.other_node_count == 5


def test_gru_right_after_a_gru(tmp_path: Path) -> None:
    """The state of one is the initial state of the next: no other node, no other runtime."""
    nodes = [gru("X", ["Y", "Y_h"]), gru("X", ["Z", "Z_h"], initial_h="Y_h")]
    ours = check(tmp_path, nodes, ["Z", "Z_h"])
    assert ours.other_node_count == 0


def test_parallel_grus_that_meet(tmp_path: Path) -> None:
    nodes = [
        gru("X", ["Y"], bias="B"),
        gru("X", ["Z"], bias="B", direction="reverse"),
        node("Concat", ["Y", "Z"], ["both"], axis=1),
        node("Mul", ["Y", "Z"], ["product"]),
    ]
    ours = check(tmp_path, nodes, ["product", "both"])
    assert len(ours.gru_nodes) == 2


def test_diamond_around_and_between_grus(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["X"], ["A"]),
        node("Neg", ["X"], ["C"]),
        gru("A", ["", "A_h"]),
        gru("C", ["", "C_h"]),
        node("Add", ["A_h", "C_h"], ["D_h"]),
        gru("X", ["D", ""], initial_h="D_h"),
        node("Add", ["D", "A_h"], ["E"]),
    ]
    check(tmp_path, nodes, ["E", "A", "C_h"])


def test_outputs_used_several_times_and_given_as_they_are(tmp_path: Path) -> None:
    nodes = [
        *FIRST,
        gru("S", ["U"], W="W2", R="R2"),
        gru("S", ["V", "V_h"], W="W2", R="R2", bias="B2"),
        node("Add", ["S", "S"], ["Z"]),
        node("Add", ["Y_h", "V_h"], ["Z_h"]),
    ]
    outputs = ["Y", "S", "Z", "U", "V", "Z_h", "Y_h", "V_h"]
    check(tmp_path, nodes, outputs, {**WEIGHTS, **SECOND, **ONE})


@pytest.mark.parametrize("outputs", [["Y"], ["Y", ""], ["", "Y_h"], ["Y", "Y_h"]])
def test_unused_outputs(tmp_path: Path, outputs: list[str]) -> None:
    named = [name for name in outputs if name]
    check(tmp_path, [gru("X", outputs)], named)


@pytest.mark.parametrize("outputs", [[], [""], ["", ""], ["Y", "Y_h"]])
def test_a_gru_that_nobody_asks(tmp_path: Path, outputs: list[str]) -> None:
    nodes = [gru("X", outputs), node("Relu", ["X"], ["Z"])]
    proto = model(graph(nodes, [X_INFO], [value("Z")], WEIGHTS))
    got = loaded(tmp_path, proto).run({"X": X})
    assert list(got) == ["Z"]
    np.testing.assert_array_equal(got["Z"], np.maximum(X, 0))


def test_outputs_that_are_inputs_or_constants(tmp_path: Path) -> None:
    nodes = [
        gru("X", ["", "Y_h"]),
        node("Constant", [], ["C"], value=tensor("", np.arange(3))),
        node("Constant", [], ["F"], value_float=2.5),
        node("Constant", [], ["L"], value_floats=[1.0, 2.0]),
        node("Constant", [], ["N"], value_int=-7),
        node("Constant", [], ["M"], value_ints=[3, 4]),
        node("Constant", [], ["S"], value_string="a"),
        node("Constant", [], ["U"], value_strings=["b", "ü"]),
    ]
    outputs: list[str | ValueInfoProto] = ["X", "Y_h", "W", value("C", "int64"), "F", "L"]
    proto = model(graph(nodes, [X_INFO], outputs, WEIGHTS))
    got = loaded(tmp_path, proto).run({"X": X})
    assert_close(got, onnxruntime_results(proto, {"X": X}))

    more = [value("N", "int64"), value("M", "int64"), value("S", "str"), value("U", "str")]
    got = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Y_h", *more], WEIGHTS))).run({"X": X})
    assert got["N"].tolist() == -7
    assert got["M"].tolist() == [3, 4]
    assert got["S"].tolist() == "a"
    assert got["U"].tolist() == ["b", "ü"]


def test_one_value_twice_among_the_outputs(tmp_path: Path) -> None:
    proto = model(graph([gru("X", ["Y"])], [X_INFO], ["Y", "X", "Y"], WEIGHTS))
    got = loaded(tmp_path, proto).run({"X": X})
    assert_close(got, onnxruntime_results(proto, {"X": X}))


def test_no_gru_at_all(tmp_path: Path) -> None:
    ours = check(tmp_path, [node("Relu", ["X"], ["Z"]), node("Neg", ["Z"], ["N"])], ["N", "X"], {})
    assert ours.gru_nodes == ()
    assert ours.other_node_count == 2


def test_nodes_in_any_order_in_the_file(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["S"], ["P"]),
        gru("P", ["Q"], W="W2", R="R2", initial_h="Y_h"),
        *FIRST,
        node("Add", ["Q", "Y"], ["Z"]),
    ]
    constants = {**WEIGHTS, **SECOND, **ONE}
    expected = onnxruntime_results(
        model(graph([*nodes[2:4], *nodes[:2], nodes[4]], [X_INFO], ["Z"], constants)), {"X": X}
    )
    got = loaded(tmp_path, model(graph(nodes[::-1], [X_INFO], ["Z"], constants))).run({"X": X})
    assert_close(got, expected)


def test_twenty_grus_in_a_chain(tmp_path: Path) -> None:
    nodes: list[NodeProto] = [node("Identity", ["X"], ["S0"])]
    constants: dict[str, Any] = {**ONE, **weights(0, "_0"), **weights(1, "_1", I=H)}
    for k in range(20):
        W, R, bias = (f"{name}_{min(k, 1)}" for name in "WRB")
        nodes.append(gru(f"S{k}", [f"Y{k}", f"Y_h{k}"], W=W, R=R, bias=bias))
        nodes.append(node("Squeeze", [f"Y{k}", "one"], [f"T{k}"]))
        nodes.append(node("Tanh", [f"T{k}"], [f"S{k + 1}"]))
    nodes.append(node("Sum", [f"Y_h{k}" for k in range(20)], ["sum"]))
    ours = check(tmp_path, nodes, ["S20", "sum"], constants)
    assert len(ours.gru_nodes) == 20
    assert len({id(layer.layer) for layer in ours.gru_nodes}) == 2, "equal weights and attributes: one layer"


@pytest.mark.parametrize("seed", range(40))
def test_any_arrangement(tmp_path: Path, seed: int) -> None:
    """Graphs of GRUs and other nodes, at random; everything has shape [T, B, 4] or [1, B, 4]."""
    rng = np.random.default_rng(seed)
    constants: dict[str, Any] = {**ONE, **weights(seed, I=4, H=4), **weights(seed + 1, "2", I=4, H=4)}
    nodes: list[NodeProto] = []
    sequences, states = ["X"], ["h0"]

    def one(names: list[str]) -> str:
        return names[int(rng.integers(len(names)))]

    for k in range(int(rng.integers(2, 14))):
        new, state, kind = f"s{k}", f"h{k + 1}", int(rng.integers(8))
        if kind <= 2:
            suffix = one(["", "2"])
            nodes.append(
                gru(
                    one(sequences),
                    [f"Y{k}", state],
                    W="W" + suffix,
                    R="R" + suffix,
                    initial_h=one(["", *states]),
                    direction=one(["forward", "reverse"]),
                    linear_before_reset=int(rng.integers(2)),
                    hidden_size=4,
                )
            )
            nodes.append(node("Squeeze", [f"Y{k}", "one"], [new]))
        elif kind == 3:
            nodes.append(node("Add", [one(sequences), one(states)], [new]))
            nodes.append(node("Neg", [one(states)], [state]))
        elif kind == 4:
            nodes.append(node("Tanh", [one(sequences)], [new]))
            nodes.append(node("Mul", [one(states), one(states)], [state]))
        elif kind == 5:
            yes = graph([node("Add", [one(sequences), one(sequences)], ["yes"])], [], ["yes"])
            no = graph([node("Identity", [one(sequences)], ["no"])], [], ["no"])
            nodes.append(node("If", ["condition"], [new], then_branch=yes, else_branch=no))
            nodes.append(node("ReduceMax", [new], [state], axes=[0]))
        elif kind == 6:
            nodes.append(node("Constant", [], [f"c{k}"], value=tensor("", numbers(k, 4))))
            nodes.append(node("Add", [f"c{k}", one(sequences)], [new]))
            nodes.append(node("Add", [one(states), f"c{k}"], [state]))
        else:
            nodes.append(node("Split", [one(sequences)], [f"a{k}", f"b{k}"], axis=2))
            nodes.append(node("Concat", [f"b{k}", f"a{k}"], [new], axis=2))
            nodes.append(node("ReduceSum", [new, "zero"], [state]))
        sequences.append(new)
        states.append(state)
    constants["zero"] = np.array([0])
    names = [*sequences, *states]
    outputs = [name for name in names if rng.random() < 0.3] or names[-1:]
    inputs = [
        value("X", "float32", ["t", "b", 4]),
        value("h0", "float32", [1, "b", 4]),
        value("condition", "bool", []),
    ]
    feeds = {"X": numbers(seed, T, B, 4), "h0": numbers(seed, 1, B, 4), "condition": np.array(seed % 2 == 0)}
    check(tmp_path, nodes, outputs, constants, inputs=inputs, feeds=feeds)


# ---- what ONNX Runtime does not run ----


@pytest.mark.parametrize(
    ("opset", "dtype", "attributes"),
    [
        (14, "float32", {"layout": 1}),
        (14, "float64", {}),
        (14, "float64", {"layout": 1, "direction": "bidirectional"}),
        (14, "float32", {"hidden_size": None}),
        (22, "bfloat16", {}),
        (14, "float16", {}),
        (7, "float16", {"linear_before_reset": 1}),
    ],
)
def test_a_node_that_onnxruntime_refuses_inside_of_a_model(
    tmp_path: Path, opset: int, dtype: str, attributes: dict[str, Any]
) -> None:
    """Other nodes lie before and after it, and a second such GRU follows."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rows_first = attributes.get("layout") == 1
    merge = {"perm": [0, 1, 3, 2] if rows_first else [0, 2, 3, 1]}
    nodes = [
        node("Transpose", ["N"], ["X"], perm=[2, 1, 0]),
        gru("X", ["Y", "Y_h"], bias="B", name="first", **attributes),
        node("Transpose", ["Y"], ["P"], **merge),
        node("Reshape", ["P", "shape"], ["Q"]),
        node("Concat", ["Y_h"], ["m"], axis=0),
        gru("Q", ["Z", "Z_h"], W="W2", R="R2", bias="B2", initial_h="m", name="second", **attributes),
        node("Identity", ["Z_h"], ["out"]),
    ]
    first = weights(0, D=D, dtype=dtype)
    second = weights(1, "2", I=D * H, D=D, dtype=dtype)
    shape = np.array([B, T, D * H] if rows_first else [T, B, D * H])
    proto = model(
        graph(
            nodes,
            [value("N", dtype, [I, None, None])],
            [value("out", dtype), value("Z", dtype)],
            {**first, **second, "shape": shape},
        ),
        opset=opset,
    )
    x = numbers(5, *((B, T) if rows_first else (T, B)), I, dtype=dtype)
    if dtype != "float16":  # which it runs, in float32
        with pytest.raises(Exception, match=r"GRU|gru|hidden_size"):
            onnxruntime_results(proto, {"N": x.transpose()})
    got = loaded(tmp_path, proto).run({"N": x.transpose()})

    options = {"opset": opset, **attributes}
    Y, Y_h = onegru.gru(x, first["W"], first["R"], first["B"], **options)
    Q = Y.transpose(merge["perm"]).reshape(shape)
    Z, Z_h = onegru.gru(Q, second["W2"], second["R2"], second["B2"], initial_h=Y_h, **options)
    np.testing.assert_array_equal(got["Z"], Z)
    np.testing.assert_array_equal(got["out"], Z_h)
    assert got["out"].dtype == numpy_type(dtype)


def test_lengths_computed_by_other_nodes(tmp_path: Path) -> None:
    """From a mask: counted, then cast to int32, as the text wants it."""
    nodes = [
        node("ReduceSum", ["mask", "zero"], ["count"], keepdims=0),
        node("Cast", ["count"], ["lens"], to=TensorProto.INT32),
        gru("X", ["Y", "Y_h"], bias="B", lens="lens"),
    ]
    mask = np.array([[1, 1], [1, 0], [1, 0], [0, 0]], np.int64)
    check(
        tmp_path,
        nodes,
        ["Y", "Y_h", value("lens", "int32")],
        {**WEIGHTS, "zero": np.array([0])},
        inputs=[X_INFO, value("mask", "int64", ["time", "batch"])],
        feeds={"X": X, "mask": mask},
    )


def test_lengths_of_another_type_are_refused(tmp_path: Path) -> None:
    """On loading, as on inspecting and streaming: no inputs could help."""
    inputs = [X_INFO, value("lens", "int64", ["batch"])]
    path = save(tmp_path, model(graph([gru("X", ["Y"], lens="lens", name="g")], inputs, ["Y"], WEIGHTS)))
    for function in (onegru.load, onegru.inspect, partial(onegru.make_streaming, target=None)):
        with pytest.raises(SpecError, match=r"GRU node 'g': sequence_lens: type int64; must be int32"):
            function(path)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((B, H), r"rank 2, shape \[\d, \d\]; must be \[num_directions, batch_size, hidden_size\]"),
        ((1, B + 1, H), r"shape \[1, \d, \d\]; must be \[num_directions, batch_size, hidden_size\] = "),
    ],
)
def test_states_that_never_fit(tmp_path: Path, shape: tuple[int, ...], words: str) -> None:
    node_ = gru("X", ["Y"], initial_h="h", name="g")
    constants = {**WEIGHTS, "h": np.ones(shape, np.float32)}
    proto = graph([node_], [value("X", shape=["T", B, I])], ["Y"], constants)
    path = save(tmp_path, model(proto))
    for function in (onegru.load, onegru.inspect, partial(onegru.make_streaming, target=None)):
        with pytest.raises(SpecError, match=f"GRU node 'g': initial_h: {words}"):
            function(path)


# ---- what is needed for what ----


def test_a_graph_of_only_grus_needs_no_onnxruntime(tmp_path: Path) -> None:
    constants: dict[str, Any] = {**WEIGHTS, "lens": np.array([4, 2], np.int32)}
    nodes = [
        node("Constant", [], ["h"], value=tensor("", numbers(3, 1, B, H))),
        gru("X", ["Y", "Y_h"], bias="B", initial_h="h", lens="lens"),
        gru("X", ["Z"], initial_h="Y_h"),
    ]
    path = save(tmp_path, model(graph(nodes, [X_INFO], ["Y", "Z", "W"], constants)))
    np.save(tmp_path / "X.npy", X)
    code = f"""
import sys
from functools import partial
sys.modules["onnxruntime"] = None
import numpy, onegru
outputs = onegru.load({str(path)!r}).run({{"X": numpy.load({str(tmp_path / "X.npy")!r})}})
numpy.savez({str(tmp_path / "out.npz")!r}, **outputs)
"""
    run_python(code)
    with np.load(tmp_path / "out.npz") as got:
        expected = loaded(tmp_path, path.read_bytes()).run({"X": X})
        assert_close(dict(got), expected, 0)


def test_other_nodes_say_that_they_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    nodes = [gru("X", ["Y"]), node("Relu", ["Y"], ["Z"], name="act")]
    with pytest.raises(onegru.MissingExtraError) as caught:
        loaded(tmp_path, model(graph(nodes, [X_INFO], ["Z"], WEIGHTS)))
    assert str(caught.value) == (
        f"{tmp_path / 'model.onnx'}: Relu node 'act' needs onnxruntime: pip install 'onegru[onnxruntime]'"
    )
