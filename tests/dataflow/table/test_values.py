"""The operators of the table that have a value compute what onnx's own evaluator does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onegru.core.elementary import NumpyElementary
from onegru.dataflow.table import OPERATORS, LargeResultError, UnknownOpError, evaluate
from tests.support.models.fusing import Array

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4))
Y = RNG.standard_normal((3, 4)) + 3.0
M = RNG.standard_normal((4, 5))
N = np.array([[7, -7, 5], [-5, 0, 9]])
BYTES, SCALES = RNG.integers(0, 255, (2, 3, 4)).astype(np.uint8), RNG.random(3).astype(np.float32)
P = np.array([True, False, True])
LENGTHS = np.array([2, 1, 2])
INDICES = np.array([[2, 0], [-1, 1]])


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


Case = tuple[str, tuple[Any, ...], Mapping[str, Any], int]


def case(kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Case:
    return kind, inputs, attributes, outputs


CASES: list[Case] = [
    *(
        case(kind, X)
        for kind in ("Identity", "Dropout", "Neg", "Exp", "Abs", "Sigmoid", "Tanh", "Relu", "Softsign")
    ),
    *(
        case(kind, X)
        for kind in ("Softplus", "HardSigmoid", "LeakyRelu", "Elu", "ThresholdedRelu", "Transpose")
    ),
    *(case(kind, 3 * X) for kind in ("Floor", "Ceil")),
    *(case(kind, np.abs(X) + 0.5) for kind in ("Reciprocal", "Log", "Sqrt")),
    *(case(kind, X, Y) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(case(kind, X, Y, Y[0]) for kind in ("Max", "Min", "Sum")),
    *(case(kind, X, Y - 3) for kind in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")),
    *(case(kind, P, ~P[:1]) for kind in ("And", "Or")),
    case("Pow", np.abs(X), ints(2).astype(np.float64)),
    case("Not", P),
    case("CastLike", X, LENGTHS),
    case("Div", N, ints(2)),
    case("DequantizeLinear", BYTES, SCALES, BYTES[0, :, 0], axis=-2),
    case("DequantizeLinear", BYTES, SCALES[0]),
    *(case("Mod", N, ints(sign * 3), fmod=fmod) for sign in (1, -1) for fmod in (0, 1)),
    case("Clip", X, np.array(-0.5), np.array(0.25)),
    case("Clip", X, None, np.array(0.25)),
    case("Clip", X, np.array(-0.5)),
    case("HardSigmoid", X, alpha=0.5, beta=0.25),
    case("LeakyRelu", X, alpha=0.25),
    case("PRelu", X, np.full(4, 0.3)),
    case("Elu", X, alpha=0.5),
    case("ThresholdedRelu", X, alpha=0.25),
    *(case(f"Reduce{kind}", X, ints(1, -1)) for kind in ("Mean", "Sum", "Max", "Min", "L2")),
    case("ReduceMean", X, ints(0), keepdims=0),
    case("Transpose", X, perm=[1, 0, 2]),
    case("Reshape", X, ints(0, -1)),
    case("Reshape", X, ints(4, 6)),
    case("Flatten", X, axis=2),
    case("Flatten", X, axis=0),
    case("Squeeze", X[:, :1], ints(1)),
    case("Squeeze", X[:1, :1]),
    case("Unsqueeze", X, ints(0, -1)),
    case("Slice", X, ints(1, -2), ints(2, 2**63 - 1), ints(0, 2)),
    case("Slice", X, ints(-1), ints(-(2**63)), ints(1), ints(-1)),
    case("Slice", X, ints(3), ints(0), ints(2), ints(-2)),
    case("Slice", X, ints(0), ints(100)),
    case("Gather", X, INDICES, axis=1),
    case("Gather", X, np.array(-1), axis=2),
    case("Split", X, ints(1, 3), outputs=2, axis=2),
    case("Split", X, outputs=2, axis=-1, num_outputs=2),
    case("Concat", X, X[:, :1], axis=1),
    case("Concat", X, X, axis=-1),
    case("Expand", Y, ints(2, 1, 4)),
    case("Tile", Y, ints(2, 3)),
    case("Shape", X),
    case("Shape", X, start=1, end=-1),
    case("ConstantOfShape", ints(2, 3)),
    case("ConstantOfShape", ints(2), value=onnx.numpy_helper.from_array(np.array([7], np.int64))),
    case("MatMul", X, M),
    case("MatMul", Y[0], M),
    case("Gemm", Y, M, np.ones(5)),
    case("Gemm", Y.T, M.T, np.ones(5), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", Y, M),
    case("Einsum", X, M, equation="bti,io->bto"),
    case("Where", P[:, None], X, Y),
    *(case(kind, X, np.array(1)) for kind in ("CumSum", "CumProd")),
    *(case(kind, X, np.array(-1), exclusive=1, reverse=1) for kind in ("CumSum", "CumProd")),
    case("Range", np.array(1), np.array(9), np.array(3)),
    case("Range", np.array(4), np.array(0), np.array(-2)),
    case("ReverseSequence", X.transpose(1, 0, 2)[:2], LENGTHS[:2], time_axis=0, batch_axis=1),
    case("ReverseSequence", X, LENGTHS[:2], time_axis=1, batch_axis=0),
]


def by_onnx(kind: str, inputs: tuple[Any, ...], attributes: Mapping[str, Any], outputs: int) -> list[Array]:
    names = ["" if array is None else f"i{place}" for place, array in enumerate(inputs)]
    given = {name: np.asarray(array) for name, array in zip(names, inputs, strict=True) if name}
    results = [f"o{place}" for place in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(kind, names, results, **attributes)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
        ],
        [helper.make_value_info(name, onnx.TypeProto()) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return [np.asarray(item) for item in ReferenceEvaluator(model).run(None, given)]


@pytest.mark.parametrize("given", CASES, ids=lambda given: given[0])
def test_operators(given: Case) -> None:
    kind, inputs, attributes, outputs = given
    own = {
        name: onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for name, value in attributes.items()
    }
    arrays = [None if array is None else np.asarray(array) for array in inputs]
    found = evaluate(kind, own, arrays, outputs)
    for mine, theirs in zip(found, by_onnx(*given), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_each_operator_has_a_case() -> None:
    others = {"Cast", "openvino::Divide", *(f"com.microsoft::Fused{kind}" for kind in ("Gemm", "MatMul"))}
    assert {kind for kind, *_ in CASES} | others == {
        kind for kind, item in OPERATORS.items() if item.computes
    }


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
def test_cast(dtype: str) -> None:
    (found,) = evaluate("Cast", {"dtype": dtype}, [X], 1)
    np.testing.assert_array_equal(found, X.astype(dtype))
    assert found.dtype == dtype


def test_cast_to_what_is_no_number() -> None:
    for dtype in (None, "str", "float8_e4m3fn"):
        with pytest.raises(UnknownOpError, match="Cast"):
            evaluate("Cast", {"dtype": dtype}, [X], 1)


def test_attributes_of_old_opsets() -> None:
    (found,) = evaluate("Clip", {"min": -0.5, "max": 0.5}, [X], 1)
    np.testing.assert_array_equal(found, np.clip(X, -0.5, 0.5))
    (found,) = evaluate("Squeeze", {"axes": [1]}, [X[:, :1]], 1)
    np.testing.assert_array_equal(found, X[:, 0])
    (found,) = evaluate("Slice", {"starts": [1], "ends": [3], "axes": [2]}, [X], 1)
    np.testing.assert_array_equal(found, X[:, :, 1:3])
    first, second = evaluate("Split", {"split": [1, 2], "axis": 1}, [X], 2)
    np.testing.assert_array_equal(first, X[:, :1])
    np.testing.assert_array_equal(second, X[:, 1:])


HUGE = 2**31


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("Expand", [np.ones(1), ints(HUGE)]),
        ("ConstantOfShape", [ints(HUGE, HUGE)]),
        ("Range", [np.array(0), np.array(HUGE), np.array(1)]),
        ("Add", [np.broadcast_to(np.ones(1), (1, HUGE)), np.broadcast_to(np.ones(1), (HUGE, 1))]),
        ("Max", [np.broadcast_to(np.ones(1), (1, HUGE)), np.broadcast_to(np.ones(1), (HUGE, 1))]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_large_results_are_not_computed(kind: str, inputs: list[Array | None]) -> None:
    with pytest.raises(LargeResultError):
        evaluate(kind, {}, inputs, 1)


def test_the_sigmoid_does_not_overflow() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(NumpyElementary.sigmoid(np.array([-700.0, 0.0, 700.0]))[1:], [0.5, 1.0])


BIG = 2**53 + 1

#: Where element types, order or limits make the difference; ONNX's text, and what ONNX Runtime computes.
EXACT: list[tuple[str, list[Any], dict[str, Any], Array]] = [
    (
        "CumSum",
        [np.array([1, 1e30], np.float32), np.array(0)],
        {"exclusive": 1},
        np.array([0, 1], np.float32),
    ),
    (
        "CumSum",
        [np.array([2, np.inf, 1], np.float32), np.array(0)],
        {"exclusive": 1, "reverse": 1},
        np.array([np.inf, 1, 0], np.float32),
    ),
    ("Pow", [np.array([2.0], np.float32), ints(3)], {}, np.array([8], np.float32)),
    ("Pow", [np.array([2, 3], np.int32), np.array(0.5, np.float32)], {}, np.array([1, 1], np.int32)),
    ("Range", [np.array(2**60), np.array(2**60 + 3), np.array(1)], {}, 2**60 + np.arange(3)),
    ("Range", [np.array(5), np.array(-1), np.array(-2)], {}, np.array([5, 3, 1])),
    ("Div", [np.array([BIG, -7, 7]), np.array([1, 2, -2])], {}, np.array([BIG, -3, -3])),
    ("Slice", [np.arange(4), ints(-9), ints(-99), ints(0), ints(-1)], {}, np.arange(1)),
    ("Gemm", [np.ones((1, 1)), np.ones((1, 1)), np.full(1, np.nan)], {"beta": 0.0}, np.ones((1, 1))),
]


@pytest.mark.parametrize(("kind", "inputs", "attributes", "wanted"), EXACT, ids=[item[0] for item in EXACT])
def test_values_at_the_limits(kind: str, inputs: Any, attributes: Any, wanted: Array) -> None:
    (found,) = evaluate(kind, attributes, inputs)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["Mod", "openvino::Divide"])
@pytest.mark.parametrize("numbers", [(X, Y), (ints(7), ints(0))], ids=["floats", "by zero"])
def test_what_jumps_has_values_of_only_integers(kind: str, numbers: tuple[Array, Array]) -> None:
    with pytest.raises(UnknownOpError):
        evaluate(kind, {"fmod": 1}, numbers)


def test_a_squeeze_of_no_axes_has_no_value() -> None:
    with pytest.raises(UnknownOpError):  # ONNX Runtime drops all axes of size 1, onnx's evaluator none
        evaluate("Squeeze", {}, [np.ones((1, 2)), ints()])
