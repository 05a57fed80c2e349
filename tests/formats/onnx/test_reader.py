"""Whole ONNX models: where they are cut, where weights come from, and what comes out.

Where ONNX Runtime runs the model right, it is the witness; elsewhere the operator functions and NumPy are.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

import onegru
from onegru import FormatError, Model, SpecError, SpecWarning
from tests.support.onnx_models import (
    Arrays,
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
    tensor,
    value,
    weights,
)

X = numbers(99, T, B, I)
X_INFO = value("X", "float32", ["time", "batch", I])
WEIGHTS = weights()
SECOND = weights(1, "2", I=H)  # for a GRU on another one's output

# One GRU, and the axis of directions taken away for the next one.
FIRST = [gru("X", ["Y", "Y_h"], bias="B", name="first"), node("Squeeze", ["Y", "one"], ["S"])]
ONE = {"one": np.array([1])}


def check(
    folder: Path,
    nodes: Sequence[NodeProto],
    outputs: Sequence[str | ValueInfoProto],
    constants: Mapping[str, Any] = WEIGHTS,
    *,
    inputs: Sequence[ValueInfoProto] = (X_INFO,),
    feeds: Mapping[str, object] | None = None,
    opset: int = 14,
) -> Model:
    """Run a model by onegru and by ONNX Runtime, and compare."""
    proto = model(graph(nodes, inputs, outputs, constants), opset=opset)
    feeds = {"X": X} if feeds is None else feeds
    ours = loaded(folder, proto)
    got, expected = ours.run(feeds), onnxruntime_results(proto, feeds)
    assert_close(got, expected)
    count = sum(item.op_type == "GRU" for item in nodes)
    assert len(ours.gru_nodes) == count, "every GRU node outside of bodies is onegru's"
    return ours


def assert_close(got: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = 2e-6) -> None:
    assert list(got) == list(expected)
    for name, want in expected.items():
        assert got[name].dtype == want.dtype
        assert got[name].shape == want.shape
        if want.dtype.kind in "fV":
            have, want = got[name].astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(have, want, atol=tolerance, rtol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], want, err_msg=name)


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


def test_gru_right_behind_a_gru(tmp_path: Path) -> None:
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
    """Graphs of GRUs and other nodes, drawn at random; everything has shape [T, B, 4] or [1, B, 4]."""
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
    """Other nodes lie before and behind it, and a second such GRU follows."""
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
    inputs = [X_INFO, value("lens", "int64", ["batch"])]
    ours = loaded(tmp_path, model(graph([gru("X", ["Y"], lens="lens", name="g")], inputs, ["Y"], WEIGHTS)))
    with pytest.raises(SpecError, match=r"GRU node 'g': sequence_lens: type int64; must be int32"):
        ours.run({"X": X, "lens": np.array([1, 2])})


# ---- where weights come from ----


def results(
    folder: Path, proto: ModelProto, feeds: Mapping[str, object] | None = None
) -> tuple[Model, Arrays]:
    ours = loaded(folder, proto)
    return ours, ours.run({"X": X} if feeds is None else feeds)


EXPECTED = dict(zip(("Y", "Y_h"), onegru.gru(X, *WEIGHTS.values()), strict=True))
PLAIN = gru("X", ["Y", "Y_h"], bias="B", name="g")


@pytest.mark.parametrize(
    "constant",
    [
        lambda name, array: [node("Constant", [], [name], value=tensor("", array))],
        lambda name, array: [
            node("Constant", [], [name + "_flat"], value_floats=array.ravel().tolist()),
            node("Constant", [], [name + "_shape"], value_ints=list(array.shape)),
            node("Reshape", [name + "_flat", name + "_shape"], [name]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_double"], value=tensor("", array.astype(np.float64))),
            node("Cast", [name + "_double"], [name], to=TensorProto.FLOAT),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_swapped"], value=tensor("", array.swapaxes(0, 1))),
            node("Transpose", [name + "_swapped"], [name], perm=[1, 0, *range(2, array.ndim)]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_0"], value=tensor("", array.swapaxes(0, 1).astype(np.float64))),
            node("Cast", [name + "_0"], [name + "_1"], to=TensorProto.FLOAT),
            node("Transpose", [name + "_1"], [name + "_2"], perm=[1, 0, *range(2, array.ndim)]),
            node("Identity", [name + "_2"], [name]),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_upper"], value=tensor("", array[:, :3])),
            node("Constant", [], [name + "_lower"], value=tensor("", array[:, 3:])),
            node("Concat", [name + "_upper", name + "_lower"], [name], axis=1),
        ],
        lambda name, array: [
            node("Constant", [], [name + "_long"], value=tensor("", np.concatenate([array, array], 1))),
            node("Constant", [], [name + "_from"], value_ints=[0]),
            node("Constant", [], [name + "_to"], value_ints=[array.shape[1]]),
            node("Constant", [], [name + "_axis"], value_ints=[1]),
            node("Slice", [name + "_long", name + "_from", name + "_to", name + "_axis"], [name]),
        ],
    ],
    ids=["Constant", "value_floats", "Cast", "Transpose", "chain", "Concat", "Slice"],
)
def test_weights_computed_from_constants(tmp_path: Path, constant: Any) -> None:
    """Once, when the model is loaded: no step of a run computes them."""
    nodes = [part for name, array in WEIGHTS.items() for part in constant(name, array)]
    ours, got = results(tmp_path, model(graph([*nodes, PLAIN], [X_INFO], ["Y", "Y_h"])))
    assert_close(got, EXPECTED, 0)
    assert ours.other_node_count == 0
    layer = ours.gru_nodes[0].layer
    assert layer is not None
    np.testing.assert_array_equal(layer.weights.W, WEIGHTS["W"])


def test_computed_weights_that_other_nodes_and_outputs_use_too(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["Wt"], ["W"], perm=[1, 0, 2]),
        PLAIN,
        node("ReduceSum", ["W"], ["total"], keepdims=0),
        node("Mul", ["Y_h", "total"], ["scaled"]),
    ]
    constants = {"Wt": WEIGHTS["W"].swapaxes(0, 1), "R": WEIGHTS["R"], "B": WEIGHTS["B"]}
    ours = check(tmp_path, nodes, ["scaled", "W"], constants)
    gru_layer = ours.gru_nodes[0]
    made = gru_layer.layer
    ours.run({"X": X})
    assert gru_layer.layer is made


def test_computed_weights_that_nodes_behind_the_gru_use(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["Rt"], ["R"], perm=[1, 0, 2]),
        PLAIN,
        node("Einsum", ["Y_h", "R"], ["Z"], equation="dbh,dgh->dbg"),
    ]
    constants = {"W": WEIGHTS["W"], "Rt": WEIGHTS["R"].swapaxes(0, 1), "B": WEIGHTS["B"]}
    ours = check(tmp_path, nodes, ["Z"], constants)
    assert ours.other_node_count == 1, "the Transpose is not computed again in each run"


def test_weights_computed_from_inputs(tmp_path: Path) -> None:
    """Anew in each run."""
    nodes = [
        node("Mul", ["W", "scale"], ["W_scaled"]),
        gru("X", ["Y", "Y_h"], W="W_scaled", bias="B", name="g"),
    ]
    inputs = [X_INFO, value("scale", "float32", [])]
    ours = check(tmp_path, nodes, ["Y"], inputs=inputs, feeds={"X": X, "scale": np.float32(0.5)})
    assert ours.gru_nodes[0].layer is None
    assert ours.gru_nodes[0].weights == ()
    for scale in (np.float32(2), np.float32(-1)):
        Y, _ = onegru.gru(X, WEIGHTS["W"] * scale, WEIGHTS["R"], WEIGHTS["B"])
        np.testing.assert_array_equal(ours.run({"X": X, "scale": scale})["Y"], Y)


def test_weights_as_inputs(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"])))
    assert [info.name for info in ours.inputs] == ["X", "W", "R", "B"]
    assert_close(ours.run({"X": X, **WEIGHTS}), EXPECTED, 0)
    with pytest.raises(SpecError, match=r"'R': missing; .*model\.onnx requires it, float32 \[1, 9, 3\]"):
        ours.run({"X": X, "W": WEIGHTS["W"], "B": WEIGHTS["B"]})


def test_from_ir_4_on_an_input_with_a_value_has_a_default(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"], WEIGHTS), ir=4))
    assert {info.name: info.optional for info in ours.inputs} == {"X": False, "W": True, "R": True, "B": True}
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    other = weights(7)
    Y, Y_h = onegru.gru(X, other["W"], WEIGHTS["R"], WEIGHTS["B"])
    assert_close(ours.run({"X": X, "W": other["W"]}), {"Y": Y, "Y_h": Y_h}, 0)
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    assert ours.gru_nodes[0].layer is not None


def test_up_to_ir_3_an_input_with_a_value_is_a_constant(tmp_path: Path) -> None:
    inputs = [X_INFO, *(value(name, "float32", array.shape) for name, array in WEIGHTS.items())]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y", "Y_h"], WEIGHTS), ir=3))
    assert [info.name for info in ours.inputs] == ["X"]
    assert_close(ours.run({"X": X}), EXPECTED, 0)
    with pytest.raises(SpecError, match=r"'W': not an input of .*model\.onnx; its inputs: 'X'"):
        ours.run({"X": X, "W": WEIGHTS["W"]})


def test_what_is_computed_from_a_default_follows_it(tmp_path: Path) -> None:
    """W is computed from an input that has a default, so it is no constant."""
    nodes = [node("Neg", ["minus_W"], ["W"]), PLAIN, node("Add", ["Y_h", "extra"], ["Z"])]
    inputs = [X_INFO, value("minus_W", "float32", [1, 3 * H, I]), value("extra", "float32", ["n"])]
    constants = {**WEIGHTS, "minus_W": -WEIGHTS["W"], "extra": np.array([1], np.float32)}
    del constants["W"]
    ours = check(tmp_path, nodes, ["Z"], constants, inputs=inputs)
    other = numbers(8, 1, 3 * H, I)
    got = ours.run({"X": X, "minus_W": other, "extra": np.array([0, 1, 2], np.float32)})
    _, Y_h = onegru.gru(X, -other, WEIGHTS["R"], WEIGHTS["B"])
    np.testing.assert_allclose(got["Z"], Y_h + np.array([0, 1, 2], np.float32), atol=1e-6)


def test_random_weights_are_drawn_in_each_run(tmp_path: Path) -> None:
    nodes = [node("RandomNormal", [], ["W"], shape=[1, 3 * H, I]), PLAIN]
    ours = loaded(tmp_path, model(graph(nodes, [X_INFO], ["Y"], {"R": WEIGHTS["R"], "B": WEIGHTS["B"]})))
    first, second = (ours.run({"X": X})["Y"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_gru_whose_input_is_a_constant(tmp_path: Path) -> None:
    got = loaded(tmp_path, model(graph([PLAIN], [], ["Y", "Y_h"], {**WEIGHTS, "X": X}))).run({})
    assert_close(got, EXPECTED, 0)


def test_sparse_constants(tmp_path: Path) -> None:
    """ONNX Runtime reads them; a GRU or an output does not."""
    sparse = onnx.helper.make_sparse_tensor(
        tensor("K", np.array([2.0], np.float32)), tensor("", np.array([1])), [H]
    )
    nodes = [PLAIN, node("Add", ["Y_h", "K"], ["Z"])]
    proto = model(graph(nodes, [X_INFO], ["Z"], WEIGHTS, sparse=[sparse]))
    _, got = results(tmp_path, proto)
    np.testing.assert_allclose(got["Z"], EXPECTED["Y_h"] + np.array([0, 2, 0], np.float32), atol=1e-6)
    proto = model(graph(nodes, [X_INFO], ["Z", "K"], WEIGHTS, sparse=[sparse]))
    with pytest.raises(FormatError, match=r"sparse initializer 'K': is used by a GRU node or an output"):
        loaded(tmp_path, proto)


# ---- what a GRU node may be ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n.input.__setitem__(0, ""), "X: missing; GRU-14 requires it"),
        (lambda n: n.input.__setitem__(1, ""), "W: missing; GRU-14 requires it"),
        (lambda n: n.input.__delitem__(slice(2, None)), "R: missing; GRU-14 requires it"),
        (lambda n: n.input.extend(["", "", "X"]), "7 inputs; must be at most 6"),
        (lambda n: n.output.append("Z"), "3 outputs; must be at most 2"),
        (lambda n: n.attribute.append(n.attribute[0]), "attribute 'hidden_size' is there twice"),
        (lambda n: add(n, "clip", 2), "attribute 'clip' is of type INT; must be FLOAT"),
        (
            lambda n: add(n, "activation_alpha", [1]),
            "attribute 'activation_alpha' is of type INTS; must be FLOATS",
        ),
        (lambda n: add(n, "layout", 1.0), "attribute 'layout' is of type FLOAT; must be INT"),
        (
            lambda n: add(n, "activations", "Tanh"),
            "attribute 'activations' is of type STRING; must be STRINGS",
        ),
        (
            lambda n: add(n, "direction", ["forward"]),
            "attribute 'direction' is of type STRINGS; must be STRING",
        ),
        (lambda n: add(n, "direction", tensor("", X)), "attribute 'direction' has no plain value"),
        (lambda n: add(n, "direction", b"\xff"), "attribute 'direction' is not UTF-8"),
        (lambda n: add(n, "activations", [b"Tanh", b"\xff"]), "attribute 'activations' is not UTF-8"),
        (lambda n: n.attribute[0].ClearField("type"), "attribute 'hidden_size' has no plain value"),
        (
            lambda n: setattr(n.attribute[0], "ref_attr_name", "h"),
            "attribute 'hidden_size' has no plain value",
        ),
        (lambda n: setattr(n.attribute[0], "i", 4), "hidden_size: 4; must be 3, as R has shape [1, 9, 3]"),
        (lambda n: setattr(n.attribute[0], "i", 2**62), "hidden_size: 4611686018427387904; must be 3"),
        (lambda n: add(n, "output_sequence", 1), "output_sequence was removed in opset 7"),
        (lambda n: add(n, "colour", 1), "colour: not an attribute of GRU-14"),
        (lambda n: add(n, "activations", ["Tanh"]), "activations: 1 names; must be 2"),
    ],
)
def test_illegal_nodes(tmp_path: Path, change: Any, message: str) -> None:
    bad = gru("X", ["Y", "Y_h"], bias="B", name="g")
    change(bad)
    with pytest.raises((FormatError, SpecError)) as caught:
        loaded(tmp_path, model(graph([bad], [X_INFO], ["Y"], WEIGHTS)))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'model.onnx'}: GRU node 'g': ")
    assert "\n" not in str(caught.value)


def add(owner: NodeProto, name: str, value: Any) -> None:
    owner.attribute.append(onnx.helper.make_attribute(name, value))


def test_outputs_that_old_versions_require(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="output Y_h: missing; GRU-1 requires it"):
        loaded(tmp_path, model(graph([gru("X", ["Y"])], [X_INFO], ["Y"], WEIGHTS), opset=1))
    bad = gru("X", ["", "Y_h"], output_sequence=1)
    with pytest.raises(SpecError, match="output Y: missing; GRU-3 requires it with output_sequence = 1"):
        loaded(tmp_path, model(graph([bad], [X_INFO], ["Y_h"], WEIGHTS), opset=3))


@pytest.mark.parametrize(
    ("name", "shape"), [("W", (1, 9)), ("W", (2, 9, 5)), ("R", (1, 8, 3)), ("B", (1, 9))]
)
def test_weights_whose_sizes_disagree(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    constants = {**WEIGHTS, name: numbers(0, *shape)}
    with pytest.raises(SpecError, match=rf"model\.onnx: GRU node 'g': {name}: .*shape \[.*; must be \["):
        loaded(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], constants)))


def test_mixed_types(tmp_path: Path) -> None:
    constants = {**WEIGHTS, "R": WEIGHTS["R"].astype(np.float64)}
    with pytest.raises(SpecError, match=r"GRU node 'g': R: type float64; must be float32"):
        loaded(tmp_path, model(graph([PLAIN], [X_INFO], ["Y"], constants)))
    inputs = [value("X", "float64", [T, B, I])]
    ours = loaded(tmp_path, model(graph([PLAIN], inputs, ["Y"], WEIGHTS)))
    with pytest.raises(SpecError, match=r"GRU node 'g': X: type float64; must be float32, like W"):
        ours.run({"X": X.astype(np.float64)})


def test_bfloat16_before_its_opset(tmp_path: Path) -> None:
    constants = weights(dtype="bfloat16")
    with pytest.raises(SpecError, match=r"W: type bfloat16, which needs opset 22"):
        loaded(tmp_path, model(graph([PLAIN], [value("X", "bfloat16")], ["Y"], constants), opset=21))


def test_warnings_name_the_node(tmp_path: Path) -> None:
    odd = gru("X", ["Y"], name="odd", activation_alpha=[0.5])
    with pytest.warns(
        SpecWarning, match=r"model\.onnx: GRU node 'odd': activation_alpha: 1 value\(s\) left over"
    ):
        loaded(tmp_path, model(graph([odd], [X_INFO], ["Y"], WEIGHTS)))


def test_a_node_without_a_name_is_called_by_its_output(tmp_path: Path) -> None:
    ours = loaded(tmp_path, model(graph([gru("X", ["", "state"])], [X_INFO], ["state"], WEIGHTS)))
    assert ours.gru_nodes[0].name == "state"
    with pytest.raises(SpecError, match="GRU node that gives 'state': W: missing"):
        loaded(tmp_path, model(graph([gru("X", ["", "state"], W="")], [X_INFO], ["state"], WEIGHTS)))


def test_only_onnxs_gru_is_a_gru(tmp_path: Path) -> None:
    """Another domain's GRU is another operator."""
    other = gru("X", ["Y"], domain="elsewhere")
    proto = model(graph([other], [X_INFO], ["Y"], WEIGHTS), domains={"elsewhere": 1})
    with pytest.raises(FormatError, match=r"ONNX Runtime refuses it .*elsewhere:GRU"):
        loaded(tmp_path, proto)
    same = gru("X", ["Y"], domain="ai.onnx")
    assert len(loaded(tmp_path, model(graph([same], [X_INFO], ["Y"], WEIGHTS))).gru_nodes) == 1


# ---- the version ----


@pytest.mark.parametrize(
    ("opset", "version"),
    [(1, 1), (2, 1), (3, 3), (6, 3), (7, 7), (13, 7), (14, 14), (21, 14), (22, 22), (999, 22)],
)
def test_opset_selects_the_version(tmp_path: Path, opset: int, version: int) -> None:
    proto = model(graph([gru("X", ["Y", "Y_h"])], [X_INFO], ["Y_h"], WEIGHTS), opset=opset)
    ours = loaded(tmp_path, proto)
    assert ours.gru_nodes[0].operator == f"GRU-{version}"
    _, Y_h = onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"], opset=opset)
    np.testing.assert_array_equal(ours.run({"X": X})["Y_h"], Y_h)


@pytest.mark.parametrize(
    ("opsets", "ir", "message"),
    [
        ([("", 0)], 10, r"opset_import: version 0; must be at least 1"),
        ([("", -3)], 10, r"opset_import: version -3; must be at least 1"),
        ([], 10, r"opset_import: no version of the ONNX operators; must name one"),
        ([("other", 1)], 10, r"opset_import: no version of the ONNX operators; must name one"),
        (
            [("", 14), ("ai.onnx", 13)],
            10,
            r"opset_import: versions \[14, 13\] of the ONNX operators; must be one",
        ),
    ],
)
def test_no_usable_opset(tmp_path: Path, opsets: list[tuple[str, int]], ir: int, message: str) -> None:
    proto = model(graph([PLAIN], [X_INFO], ["Y"], WEIGHTS), ir=ir)
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in opsets)
    with pytest.raises(FormatError, match=message):
        loaded(tmp_path, proto)


def test_before_ir_3_there_was_one_opset(tmp_path: Path) -> None:
    proto = model(graph([gru("X", ["Y", "Y_h"])], [X_INFO], ["Y"], WEIGHTS), ir=2)
    del proto.opset_import[:]
    assert loaded(tmp_path, proto).gru_nodes[0].operator == "GRU-1"


# ---- what is needed for what ----


def test_a_graph_of_grus_alone_needs_no_onnxruntime(tmp_path: Path) -> None:
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
sys.modules["onnxruntime"] = None
import numpy, onegru
outputs = onegru.load({str(path)!r}).run({{"X": numpy.load({str(tmp_path / "X.npy")!r})}})
numpy.savez({str(tmp_path / "out.npz")!r}, **outputs)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
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
