"""Models of opsets 1 to 6: GRU-1 and GRU-3 among other nodes, which are lifted to opset 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, ValueInfoProto

import onegru
from onegru import FormatError
from onegru.core.dtypes import Array
from tests.support.files.onnx_models import (
    Shape,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    tensor,
    value,
    weights,
)

# All different but I and T, so that an axis used for another one shows; I = H lets GRUs be chained.
T, B, H = 4, 2, 3
X = numbers(99, T, B, H)
WEIGHTS = weights(I=H)
GRU = gru("X", ["Y", "Y_h"], bias="B", name="g")
FIXED: Shape = [T, B, H]
OPEN: Shape = ["time", "batch", H]
OPSETS = (1, 3, 6)


def old(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str | ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int,
    shape: Shape | None = FIXED,
    grus: Sequence[NodeProto] = (GRU,),
    ir: int = 3,
) -> ModelProto:
    """A model as old ones are: every constant is listed as an input too."""
    values = {**WEIGHTS, **(constants or {})}
    inputs = [value("P", "float32", shape)]
    inputs += [value(name, str(array.dtype), array.shape) for name, array in values.items()]
    before = node("Transpose", ["P"], ["X"], perm=[0, 1, 2])
    return model(graph([before, *grus, *nodes], inputs, outputs, values), opset=opset, ir=ir)


def expected(opset: int) -> tuple[Array, Array]:
    return onegru.gru(X, *WEIGHTS.values(), opset=opset)


def consumed(opset: int, count: int = 1) -> dict[str, list[int]]:
    """An attribute that some operators had until opset 6 took it away."""
    return {"consumed_inputs": [0] * count} if opset < 6 else {}


def selu(x: Array, alpha: float, gamma: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x)).astype(np.float32) * np.float32(gamma)


K = numbers(1, H)
ROWS = numbers(2, B)
M = numbers(3, H, 5)
PLANE = numbers(4, B, H)
STATE = numbers(5, 1, B, H)

# Each: the nodes after the GRU for an opset, constants, and the value of Z by NumPy.
CASES: dict[str, Any] = {
    "Relu": lambda o: ([node("Relu", ["Y_h"], ["Z"], **consumed(o))], {}, lambda y, h: np.maximum(h, 0)),
    "Sigmoid": lambda o: (
        [node("Sigmoid", ["Y_h"], ["Z"], **consumed(o))],
        {},
        lambda y, h: 1 / (1 + np.exp(-h)),
    ),
    "MatMul": lambda o: ([node("MatMul", ["Y_h", "M"], ["Z"])], {"M": M}, lambda y, h: h @ M),
    "Transpose": lambda o: (
        [node("Transpose", ["Y"], ["Z"], perm=[1, 3, 0, 2])],
        {},
        lambda y, h: y.transpose(1, 3, 0, 2),
    ),
    "Reshape": lambda o: (
        (
            ([node("Reshape", ["Y_h"], ["Z"], shape=[B, -1])], {})
            if o < 5
            else ([node("Reshape", ["Y_h", "shape"], ["Z"])], {"shape": np.array([B, -1])})
        )
        + (lambda y, h: h.reshape(B, -1),)
    ),
    "Concat": lambda o: (
        [node("Concat", ["Y_h", "Y_h"], ["Z"], axis=2)],
        {},
        lambda y, h: np.concatenate([h, h], 2),
    ),
    "Softmax": lambda o: (
        [node("Softmax", ["Y_h"], ["Z"], axis=2)],
        {},
        lambda y, h: np.exp(h) / np.exp(h).sum(2, keepdims=True),
    ),
    "Squeeze": lambda o: ([node("Squeeze", ["Y"], ["Z"], axes=[1])], {}, lambda y, h: y[:, 0]),
    "Slice": lambda o: (
        [node("Slice", ["Y"], ["Z"], axes=[0], starts=[1], ends=[9])],
        {},
        lambda y, h: y[1:],
    ),
    "ReduceMean": lambda o: (
        [node("ReduceMean", ["Y"], ["Z"], axes=[0], keepdims=0)],
        {},
        lambda y, h: y.mean(0),
    ),
    "Clip": lambda o: (
        [node("Clip", ["Y_h"], ["Z"], min=-0.1, max=0.1, **consumed(o))],
        {},
        lambda y, h: h.clip(-0.1, 0.1),
    ),
    "Sum": lambda o: (
        [node("Sum", ["Y_h", "Y_h", "S"], ["Z"], **consumed(o, 3))],
        {"S": STATE},
        lambda y, h: h + h + STATE,
    ),
    "Gather": lambda o: (
        [node("Gather", ["Y", "at"], ["Z"])],
        {"at": np.array([2, 0])},
        lambda y, h: y[[2, 0]],
    ),
    "Dropout": lambda o: ([node("Dropout", ["Y_h"], ["Z"], is_test=1, **consumed(o))], {}, lambda y, h: h),
    "Selu": lambda o: (  # its defaults changed in opset 6
        [node("Selu", ["Y_h"], ["Z"], **consumed(o))],
        {},
        lambda y, h: selu(h, 1.6732, 1.0507) if o < 6 else selu(h, 1.67326319217681884, 1.05070102214813232),
    ),
    "PRelu with one slope": lambda o: (
        [node("PRelu", ["Y_h", "slope"], ["Z"], **consumed(o))],
        {"slope": np.array([0.3], np.float32)},
        lambda y, h: np.where(h < 0, h * np.float32(0.3), h),
    ),
    "Constant": lambda o: (
        [
            node("Constant", [], ["C"], value=tensor("", K)),
            node("Mul", ["Y_h", "C"], ["Z"], broadcast=1, **consumed(o, 2)),
        ],
        {},
        lambda y, h: h * K,
    ),
    "Gemm": lambda o: (
        [
            node("Squeeze", ["Y_h"], ["F"], axes=[0]),
            node("Gemm", ["F", "M", "c"], ["Z"], broadcast=1, alpha=0.5),
        ],
        {"M": M, "c": M[0]},
        lambda y, h: h[0] @ M * np.float32(0.5) + M[0],
    ),
    # broadcasting, by the last axes
    "Add": lambda o: (
        [node("Add", ["Y_h", "K"], ["Z"], broadcast=1, **consumed(o, 2))],
        {"K": K},
        lambda y, h: h + K,
    ),
    "Sub plane": lambda o: (
        [node("Sub", ["Y", "plane"], ["Z"], broadcast=1)],
        {"plane": PLANE},
        lambda y, h: y - PLANE,
    ),
    "Mul scalar": lambda o: (
        [node("Mul", ["Y", "two"], ["Z"], broadcast=1)],
        {"two": np.array(2, np.float32)},
        lambda y, h: y * 2,
    ),
    "Div one": lambda o: (
        [node("Div", ["Y", "two"], ["Z"], broadcast=1)],
        {"two": np.array([2], np.float32)},
        lambda y, h: y / 2,
    ),
    "Add axis -1": lambda o: (
        [node("Add", ["Y", "plane"], ["Z"], broadcast=1, axis=-1)],
        {"plane": PLANE},
        lambda y, h: y + PLANE,
    ),
    "Add without broadcast": lambda o: (
        [node("Add", ["Y_h", "S"], ["Z"])],
        {"S": STATE},
        lambda y, h: h + STATE,
    ),
    "Add axis without broadcast": lambda o: (
        [node("Add", ["Y_h", "S"], ["Z"], axis=7)],
        {"S": STATE},
        lambda y, h: h + STATE,
    ),
    "Greater": lambda o: (
        [node("Greater", ["Y", "K"], ["bigger"], broadcast=1), node("Not", ["bigger"], ["Z"])],
        {"K": K},
        lambda y, h: ~(y > K),
    ),
    "And": lambda o: (
        [
            node("Less", ["Y", "K"], ["less"], broadcast=1),
            node("Equal", ["flags", "flags"], ["same"]),
            node("And", ["less", "same"], ["Z"], broadcast=1),
        ],
        {"flags": np.array([0, 1, 2], np.int32), "K": K},
        lambda y, h: y < K,
    ),
}


@pytest.mark.parametrize(("opset", "ir", "shape"), [(1, 3, OPEN), (3, 4, FIXED), (5, 3, OPEN), (6, 4, OPEN)])
@pytest.mark.parametrize("name", list(CASES))
def test_nodes_that_are_lifted(tmp_path: Path, name: str, opset: int, ir: int, shape: Shape) -> None:
    nodes, constants, result = CASES[name](opset)
    want = result(*expected(opset))
    output = value("Z", str(want.dtype))
    ours = loaded(tmp_path, old(nodes, [output], constants, opset=opset, shape=shape, ir=ir))
    assert len(ours.gru_nodes) == 1
    got = ours.run({"P": X})["Z"]
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("opset", OPSETS)
def test_grus_in_a_chain_with_nodes_between(tmp_path: Path, opset: int) -> None:
    """The rank of each GRU's results is known from the text, however far down the chain."""
    grus = [
        GRU,
        node("Squeeze", ["Y"], ["S"], axes=[1]),
        node("Add", ["S", "K"], ["S2"], broadcast=1),
        gru("S2", ["V", "V_h"], bias="B", initial_h="Y_h"),
        node("Squeeze", ["V"], ["Q"], axes=[1]),
        node("Mul", ["Q", "K"], ["Q2"], broadcast=1),
        gru("Q2", ["U", "U_h"], bias="B"),
    ]
    nodes = [node("Add", ["U_h", "K"], ["Z"], broadcast=1)]
    ours = loaded(tmp_path, old(nodes, ["Z"], {"K": K}, opset=opset, grus=grus, shape=OPEN))
    assert [layer.operator for layer in ours.gru_nodes] == ["GRU-1" if opset < 3 else "GRU-3"] * 3
    Y, Y_h = expected(opset)
    W, R, bias = WEIGHTS.values()
    V, _ = onegru.gru(Y[:, 0] + K, W, R, bias, None, Y_h, opset=opset)
    _, U_h = onegru.gru(V[:, 0] * K, W, R, bias, opset=opset)
    np.testing.assert_allclose(ours.run({"P": X})["Z"], U_h + K, atol=1e-6)


@pytest.mark.parametrize("opset", OPSETS)
def test_weights_computed_by_old_nodes(tmp_path: Path, opset: int) -> None:
    half = WEIGHTS["W"] / 2
    proto = old([node("Add", ["half", "half"], ["W2"])], ["V_h"], {"half": half}, opset=opset)
    proto.graph.node.append(gru("X", ["V", "V_h"], W="W2", bias="B"))
    ours = loaded(tmp_path, proto)
    assert all(layer.layer is not None for layer in ours.gru_nodes)
    np.testing.assert_array_equal(ours.run({"P": X})["V_h"], expected(opset)[1])


@pytest.mark.parametrize("opset", OPSETS)
def test_bodies_are_lifted_too(tmp_path: Path, opset: int) -> None:
    yes = graph([node("Add", ["Y_h", "K"], ["a"], broadcast=1)], [], ["a"])
    no = graph(
        [node("Relu", ["Y_h"], ["r"], **consumed(opset)), node("Add", ["r", "K"], ["b"], broadcast=1)],
        [],
        ["b"],
    )
    nodes = [node("If", ["flag"], ["Z"], then_branch=yes, else_branch=no)]
    _, Y_h = expected(opset)
    for flag, want in ((True, Y_h + K), (False, np.maximum(Y_h, 0) + K)):
        constants = {"K": K, "flag": np.array(flag)}
        got = loaded(tmp_path, old(nodes, ["Z"], constants, opset=opset)).run({"P": X})
        np.testing.assert_allclose(got["Z"], want, atol=1e-6)


@pytest.mark.parametrize(
    ("opset", "bad", "constants", "reason"),
    [
        (1, node("Cast", ["Y_h"], ["Z"], to="DOUBLE", name="bad"), {}, "No Adapter"),
        (5, node("Cast", ["Y_h"], ["Z"], to="DOUBLE", name="bad"), {}, "No Adapter"),
        (3, node("RNN", ["Y_h", "w", "r"], ["", "Z"], hidden_size=3, name="bad"), {}, "No Adapter"),
        (6, node("LSTM", ["Y_h", "w", "r"], ["", "Z"], hidden_size=3, name="bad"), {}, "No Adapter"),
        (1, node("Split", ["Y_h"], ["Z", "z"], axis=2, split=[1, 2], name="bad"), {}, "No Adapter"),
        (3, node("Affine", ["Y_h"], ["Z"], alpha=2.0, name="bad"), {}, "no registered schema"),
        (
            6,
            node("BatchNormalization", ["Y_h", "c", "c", "c", "c"], ["Z"], is_test=0, name="bad"),
            {},
            "is_test",
        ),
        (6, node("BatchNormalization", ["Y_h", "c", "c", "c", "c"], ["Z"], name="bad"), {}, "is_test"),
        (3, node("Dropout", ["Y_h"], ["Z"], name="bad"), {}, "is_test"),
        (
            3,
            node("Add", ["Y_h", "K"], ["Z"], broadcast=1, axis=-2, name="bad"),
            {},
            "Add node 'bad': broadcasts along axis -2, as opsets below 7 do",
        ),
        (
            3,
            node("PRelu", ["Y_h", "K"], ["Z"], name="bad"),
            {},
            "PRelu node 'bad': broadcasts along axis 1",
        ),
    ],
)
def test_nodes_that_cannot_be_lifted(
    tmp_path: Path, opset: int, bad: NodeProto, constants: dict[str, Any], reason: str
) -> None:
    constants = {"K": K, "w": numbers(1, 1, 12, H), "r": numbers(2, 1, 12, H), "c": ROWS, **constants}
    good = [node("Relu", ["Y_h"], ["fine"]), node("Relu", ["Y"], ["fine too"])]
    with pytest.raises(FormatError) as caught:
        loaded(tmp_path, old([good[0], bad, good[1]], ["Z", "fine", "fine too"], constants, opset=opset))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'model.onnx'}: ")
    assert reason in message and "must have opset 7 or later" in message
    assert "\n" not in message
    assert ".cc" not in message
    assert ".h:" not in message


def test_only_what_an_output_needs_is_lifted(tmp_path: Path) -> None:
    nodes = [node("Affine", ["Y_h"], ["unused"], alpha=2.0), node("Relu", ["Y_h"], ["Z"])]
    got = loaded(tmp_path, old(nodes, ["Z"], opset=3)).run({"P": X})
    np.testing.assert_array_equal(got["Z"], np.maximum(expected(3)[1], 0))


def test_opset_7_is_not_touched(tmp_path: Path) -> None:
    """There, `broadcast` is an attribute that Add does not have."""
    with pytest.raises(FormatError, match=r"ONNX Runtime refuses it \(.*broadcast"):
        loaded(tmp_path, old([node("Add", ["Y_h", "K"], ["Z"], broadcast=1)], ["Z"], {"K": K}, opset=7))


@pytest.mark.parametrize("opset", [1, 3])
def test_old_grus_with_everything(tmp_path: Path, opset: int) -> None:
    """What only these versions have, and nodes around it."""
    both = weights(5, I=H, D=2)
    attributes: dict[str, Any] = {"output_sequence": 1, "direction": "bidirectional", "clip": 0.9}
    if opset == 3:
        attributes["linear_before_reset"] = 1
    odd = gru("X", ["V", "V_h"], W="W2", R="R2", bias="B2", lens="lens", **attributes)
    lens = np.array([4, 2], np.int32)
    constants = {**{name + "2": array for name, array in both.items()}, "lens": lens}
    nodes = [node("Relu", ["V"], ["Z"]), node("Relu", ["V_h"], ["Z_h"])]
    got = loaded(tmp_path, old(nodes, ["Z", "Z_h"], constants, opset=opset, grus=[odd])).run({"P": X})
    Y, Y_h = onegru.gru(X, both["W"], both["R"], both["B"], lens, opset=opset, **attributes)
    np.testing.assert_array_equal(got["Z"], np.maximum(Y, 0))
    np.testing.assert_array_equal(got["Z_h"], np.maximum(Y_h, 0))


def test_the_misspelt_direction(tmp_path: Path) -> None:
    odd = gru("X", ["Y", "Y_h"], bias="B", direction="foward")
    got = loaded(tmp_path, old([node("Neg", ["Y_h"], ["Z"])], ["Z"], opset=1, grus=[odd])).run({"P": X})
    np.testing.assert_array_equal(got["Z"], -expected(1)[1])
    with pytest.raises(onegru.SpecError, match="direction: 'foward'; must be"):
        loaded(tmp_path, old([], ["Y_h"], opset=3, grus=[odd]))
