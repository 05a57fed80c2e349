"""What an operator's row says agrees with what it computes: one test for each fact, for every row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import OPERATORS, Call, Move, UnknownOpError, evaluate, operator_of
from onegru.dataflow.view import COLUMNS, View
from tests.dataflow.table.test_values import CASES, Case, by_onnx, case

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 6)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)
KERNEL = RNG.standard_normal((4, 3, 3)).astype(np.float32)
SQUARE = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)
VECTOR = RNG.random(3).astype(np.float32)
WHOLE = RNG.integers(0, 9, (2, 3, 6)).astype(np.uint8)
PLACES = np.stack([RNG.permutation(4)[:3] for _ in range(6)]).reshape(2, 3, 3)
UPDATES = PLACES, RNG.standard_normal((2, 3, 3)).astype(np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def recurrence(gates: int, states: int = 1) -> list[Any]:
    weights = [RNG.standard_normal((1, gates * 2, size)).astype(np.float32) for size in (6, 2)]
    first = [RNG.standard_normal((1, 3, 2)).astype(np.float32) for _ in range(states)]
    return [X, *weights, RNG.standard_normal((1, gates * 4)).astype(np.float32), None, *first]


#: Operators without a value of our own: onnx's evaluator computes them.
BY_ONNX: list[Case] = [
    *(case(kind, X) for kind in ("Erf", "Mish", "HardSwish", "Sign", "Floor", "Ceil", "Round", "Sin", "Cos")),
    *(
        case(kind, X)
        for kind in ("Tan", "Atan", "Sinh", "Cosh", "Asinh", "Selu", "Celu", "Gelu", "IsNaN", "IsInf")
    ),
    *(case(kind, X / 4) for kind in ("Asin", "Acos", "Atanh")),
    case("Acosh", abs(X) + 1),
    case("Mean", X, X[0]),
    case("Xor", X > 0, X[0] > 0),
    *(
        case(f"Reduce{kind}", abs(X), ints(1))
        for kind in ("Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    *(case(kind, IMAGE) for kind in ("GlobalAveragePool", "GlobalMaxPool")),
    *(case(kind, X, axis=axis) for kind in ("Softmax", "LogSoftmax", "Hardmax") for axis in (-1, 1)),
    *(case(kind, X, axis=2, keepdims=keep) for kind in ("ArgMax", "ArgMin") for keep in (0, 1)),
    case("InstanceNormalization", X, VECTOR, VECTOR),
    case("LayerNormalization", X, X[0, 0], X[0, 0]),
    case("LayerNormalization", X, X[0], axis=1),
    case("BatchNormalization", X, VECTOR, VECTOR, VECTOR, VECTOR),
    case("MeanVarianceNormalization", IMAGE),
    case("LpNormalization", X, axis=1),
    case("LRN", IMAGE, size=3),
    case("TopK", X, ints(2), outputs=2, axis=1),
    case("GatherElements", X, PLACES, axis=2),
    case("GatherND", X, PLACES[0, :, :2] % 2),
    case("GatherND", IMAGE, PLACES[:, 0, :2] % 3, batch_dims=1),
    *(case("OneHot", PLACES, np.array(4), X[0, 0, :2], axis=axis) for axis in (-1, 1)),
    case("ScatterElements", X, *UPDATES, axis=2),
    case("ScatterElements", X, *(array[:, :2] for array in UPDATES), axis=-1),
    case("ScatterND", X, ints(2, 0)[:, None] % 2, X + 1),
    case("ScatterND", IMAGE, np.array([[1, 2], [0, 1]]), IMAGE[0, :2] + 1),
    case("DequantizeLinear", WHOLE, VECTOR, axis=1),
    case("QuantizeLinear", X, np.float32(0.1)),
    case("DynamicQuantizeLinear", X, outputs=3),
    case("MatMulInteger", WHOLE, WHOLE[0].T, np.uint8(3)),
    case("MatMul", X, VECTOR.repeat(2)),
    case("MatMul", VECTOR, IMAGE.transpose(0, 1, 3, 2)[:, 0, :3]),
    case("MatMul", X[0, 0], X.transpose(0, 2, 1)),
    case("Conv", X, KERNEL),
    case("Conv", X, KERNEL, pads=[2, 0]),
    case("Conv", X, KERNEL, VECTOR[[0, 1, 2, 0]], pads=[1, 1], dilations=[2]),
    case("Conv", X, KERNEL, strides=[2]),
    case("Conv", X, KERNEL, auto_pad="SAME_UPPER"),
    case("Conv", X, KERNEL, auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, SQUARE, pads=[2, 0, 0, 1]),
    case("Conv", IMAGE, SQUARE, strides=[1, 2]),
    case("Conv", X, RNG.standard_normal((3, 1, 3)).astype(np.float32), group=3),
    case("ConvTranspose", X, KERNEL[:3, :2]),
    case("ConvTranspose", X, KERNEL[:3, :2], dilations=[2], pads=[1, 3]),
    case("ConvTranspose", IMAGE, SQUARE[:3], strides=[1, 2], pads=[1, 0, 0, 1]),
    case("ConvTranspose", X, KERNEL[:3, :2], strides=[2], pads=[1, 0], output_padding=[1]),
    case("ConvInteger", WHOLE, RNG.integers(0, 9, (4, 3, 3)).astype(np.uint8)),
    case("MaxPool", X, kernel_shape=[3]),
    case("MaxPool", IMAGE, kernel_shape=[3, 1], strides=[1, 1]),
    case("AveragePool", X, kernel_shape=[2]),
    case("AveragePool", X, kernel_shape=[3], pads=[2, 0], count_include_pad=1),
    case("LpPool", X, kernel_shape=[2]),
    *(case("Pad", X, ints(0, 1, 2, 0, 0, 0), mode=mode) for mode in ("constant", "edge", "reflect")),
    case("Pad", X, ints(2, 0), None, ints(2)),
    case("Resize", IMAGE, None, np.array([1, 1, 1, 2], np.float32), mode="nearest"),
    case("Resize", IMAGE, None, None, ints(2, 3, 6, 10), mode="nearest"),
    case("Resize", IMAGE, None, np.array([2, 1], np.float32), mode="nearest", axes=[3, 1]),
    case("GRU", *recurrence(3), outputs=2, hidden_size=2),
    case("RNN", *recurrence(1), outputs=2, hidden_size=2),
    case("LSTM", *recurrence(4, 2), outputs=3, hidden_size=2),
    case("Size", X),
]
#: Operators of ONNX Runtime's own; what it computes by them, tests/fusion/onnx/test_edges.py has.
BY_OPTIMIZERS: list[Case] = [
    case("com.microsoft::FusedMatMul", X, X[0], transB=1, alpha=0.5),
    case("com.microsoft::FusedMatMul", X, X[0], transA=1),
    case("com.microsoft::FusedMatMul", X[0], X, transA=1),
    case("com.microsoft::FusedMatMul", X[0, 0], X, transA=1, transB=1),
    case("com.microsoft::FusedGemm", X[0], X[1], transB=1, activation="Tanh"),
    case("com.microsoft::FusedGemm", X[0], X[1], X[0, 0], transA=1, beta=0.5, activation="Relu"),
]
EVERY = [*CASES, *BY_ONNX, *BY_OPTIMIZERS]


def plain(attributes: Any) -> dict[str, Any]:
    return {
        name: onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for name, value in attributes.items()
    }


def values_of(given: Case, inputs: Sequence[Any] | None = None) -> list[Array]:
    kind, arrays, attributes, outputs = given
    arguments = [None if item is None else np.asarray(item) for item in (inputs or arrays)]
    if operator_of(kind).computes:
        return [*evaluate(kind, plain(attributes), arguments, outputs)]
    return by_onnx(kind, tuple(arguments), attributes, outputs)


def call_of(given: Case) -> Call:
    """Only the operator; its small integers are constants."""
    kind, inputs, attributes, outputs = given
    arrays = {f"i{k}": np.asarray(array) for k, array in enumerate(inputs) if array is not None}
    names = tuple(f"i{k}" if f"i{k}" in arrays else "" for k in range(len(inputs)))
    op = Op(kind, names, tuple(f"o{k}" for k in range(outputs)), plain(attributes))
    fixed = {name: array for name, array in arrays.items() if array.dtype.kind in "iu" and name != "i0"}
    if kind in ("Range", "ConstantOfShape", "Resize"):
        fixed = {name: array for name, array in arrays.items() if name != "i0" or kind != "Resize"}
    flow = Flow(
        [op],
        [name for name in arrays if name not in fixed],
        op.outputs,
        {name: functools.partial(np.asarray, array) for name, array in fixed.items()},
        {name: array.shape for name, array in arrays.items()},
        {name: array.dtype.name for name, array in arrays.items()},
    )
    return Call(op, flow, opset=18)


def moves_of(given: Case) -> list[Move]:
    call = call_of(given)
    try:
        moves = list(call.operator.moves(call))
    except UnknownOpError:
        assert given[0] in ("Flatten", "Reshape"), "no row says what happens along time"
        return []
    assert moves or given[0] in ("ConstantOfShape", "Range", "Shape", "Size")
    return moves


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "given", cases, ids=[f"{item[0]}{number}" for number, item in enumerate(cases)]
    )


def test_every_row_has_a_case() -> None:
    left = {kind for kind in OPERATORS if "::" not in kind} - {kind for kind, *_ in EVERY}
    # onnx's evaluator lacks or mistakes them, or they draw numbers, or another test has them.
    assert left == {
        *("BitShift", "Cast", "GlobalLpPool", "GroupNormalization", "RMSNormalization"),
        *("SimplifiedLayerNormalization", "Upsample"),
    }


@named(EVERY)
def test_the_shape_and_the_type_are_those_of_the_value(given: Case) -> None:
    call = call_of(given)
    assert isinstance(call.facts, Flow)
    for name, value in zip(call.op.outputs, values_of(given), strict=True):
        if name == "o0" or not isinstance(call.operator.dtype, int | None):
            shape = call.facts.shape(name)
            assert shape is None or [
                s if isinstance(s, int) else n for s, n in zip(shape, value.shape, strict=True)
            ] == [*value.shape]
            assert call.facts.dtype(name) in (None, value.dtype.name)


@named(EVERY)
def test_steps_along_an_axis_that_is_said_to_stay_are_independent(given: Case) -> None:
    """A permutation of an axis without hazard comes out as the same one of the axis that it goes to."""
    whole, moves = values_of(given), moves_of(given)
    if given[0] in ("GRU", "LSTM", "RNN"):
        moves = [
            move for move in moves if move.axis == 1
        ]  # its steps stay in order; its rows are independent
    for move in moves:
        if move.hazard or move.to is None or move.pad_begin or move.pad_end or move.reach:
            continue
        if any(other.hazard and (other.to, other.output) == (move.to, move.output) for other in moves):
            continue
        if given[0] == "Concat" and move.axis == given[2]["axis"] % np.ndim(given[1][0]):
            continue  # joined along it
        arrays = [None if item is None else np.asarray(item) for item in given[1]]
        moved = arrays[move.input]
        assert moved is not None
        count = moved.shape[move.axis]
        order = RNG.permutation(count)
        for other in moves:
            array = arrays[other.input]
            moves_along = (other.to, other.output, other.hazard) == (move.to, move.output, "")
            if moves_along and array is not None and array.shape[other.axis] == count:
                arrays[other.input] = np.take(array, order, other.axis)
        found, wanted = values_of(given, arrays)[move.output], whole[move.output]
        assert wanted.shape[move.to] == count
        np.testing.assert_allclose(found, np.take(wanted, order, move.to), rtol=1e-4, atol=1e-5)


@named([item for item in EVERY if any(array is None for array in item[1])])
def test_an_input_that_is_left_out_has_no_axes(given: Case) -> None:
    """Whoever asks may say that it has no shape, or the shape of a number."""
    call = call_of(given)
    shapes = [shape if name else None for name, shape in zip(call.op.inputs, call.shapes, strict=True)]
    assert None in shapes
    unshaped = Call(call.op, call.facts, shapes, call.opset)
    assert list(call.operator.moves(unshaped)) == moves_of(given)


@named([item for item in EVERY if item[0] not in ("GRU", "LSTM", "RNN")])
def test_a_step_reaches_as_far_as_is_said(given: Case) -> None:
    """A change of one step shows only in those outputs that read it, and there are as many as is said."""
    whole = values_of(given)
    for move in moves_of(given):
        array = given[1][move.input]
        if move.hazard or move.to is None or np.asarray(array).dtype.kind != "f" or move.input:
            continue
        output, size = whole[move.output], array.shape[move.axis]
        if operator_of(given[0]).window or given[0] in ("Pad", "Slice"):
            assert output.shape[move.to] == size + move.pad_begin + move.pad_end - move.reach
        for step in range(size):
            changed = np.array(array)
            changed[(slice(None),) * move.axis + (step,)] += 0.5
            found = values_of(given, [changed, *given[1][1:]])[move.output]
            others = tuple(axis for axis in range(output.ndim) if axis != move.to)
            differs = np.flatnonzero((found != output).any(others))
            if output.shape[move.to] == size + move.pad_begin + move.pad_end - move.reach:
                read = {*range(step + move.pad_begin - move.reach, step + move.pad_begin + 1)}
                if given[2].get("mode", "constant") != "constant":  # padded steps repeat others
                    read |= {*range(move.pad_begin), *range(move.pad_begin + size, output.shape[move.to])}
                assert read.issuperset(differs.tolist())


@named([item for item in CASES if operator_of(item[0]).has_source])
def test_columns_come_from_where_a_view_says(given: Case) -> None:
    call = call_of(given)
    arrays = {name: np.asarray(i) for name, i in zip(call.op.inputs, given[1], strict=True) if name}
    for name, value in zip(call.op.outputs, values_of(given), strict=True):
        if value.ndim == 0:
            continue
        index = np.stack([item.ravel() for item in np.indices(value.shape)])
        try:
            parts = call.operator.source(call, View(name, (COLUMNS,) * value.ndim, index))
        except UnknownOpError:
            assert given[0] in ("Flatten", "Gather", "ReverseSequence")
            continue
        assert parts
        for columns, part in parts:
            roles = [role if isinstance(role, int) else slice(None) for role in part.roles]
            array = arrays[part.name][tuple(roles)]
            selected = (
                array[tuple(part.coordinates)] if len(part.coordinates) else np.full(len(columns), array)
            )
            np.testing.assert_array_equal(selected, value.ravel()[columns])


NOT_VECTORIZED = (
    "CumSum",
    "CumProd",
    "ConstantOfShape",
    "DequantizeLinear",
    "Einsum",
    "Expand",
    "Flatten",
    "Gemm",
    "Range",
    "ReverseSequence",
    "Shape",
    "Tile",
)


@named(CASES)
def test_many_at_once_are_as_each_separately(given: Case) -> None:
    call, attributes = call_of(given), plain(given[2])
    arrays = [None if item is None else np.asarray(item) for item in given[1]]
    try:
        change = call.operator.vectorization(call, [True, *[False] * (len(arrays) - 1)])
    except UnknownOpError:
        assert given[0] in NOT_VECTORIZED
        return
    first = arrays[0]
    assert first is not None
    batch = np.stack([first, first[::-1] if first.ndim else first])
    separate = [values_of(given, [item, *arrays[1:]]) for item in batch]
    arguments: list[Any] = [batch, *arrays[1:]]
    if change.repeat:
        arguments[1:] = [np.stack([item, item]) for item in arguments[1:]]
    if change.widen:
        rank = separate[0][0].ndim
        arguments[0] = batch.reshape(2, *[1] * (rank - first.ndim), *first.shape)
    for key, value in change.changed.items():
        parameter = call.operator.parameters.get(key)
        if parameter is None:
            attributes[key] = value
            continue
        arguments += [None] * (parameter.input + 1 - len(arguments))
        arguments[parameter.input] = np.array(value if key != "shape" else [2, *value])
        attributes.pop(key, None)
    for found, *both in zip(evaluate(given[0], attributes, arguments, given[3]), *separate, strict=True):
        np.testing.assert_allclose(found, np.stack(both), rtol=1e-12)


@pytest.mark.parametrize(
    "kind", [kind for kind, item in OPERATORS.items() if item.keeps_zeros and item.computes]
)
def test_zeros_stay(kind: str) -> None:
    inputs = {"Reshape": [np.zeros(4), np.array([2, 2])], "PRelu": [np.zeros(4), np.ones(4)]}
    attributes: dict[str, dict[str, Any]] = {"Cast": {"dtype": "float32"}, "Unsqueeze": {"axes": [0]}}
    (found,) = evaluate(kind, attributes.get(kind, {}), inputs.get(kind, [np.zeros(4)]))
    assert not found.any()


@named([item for item in CASES if operator_of(item[0]).factor_inputs])
def test_ones_leave_the_other_as_it_is(given: Case) -> None:
    other = np.asarray(given[1][0])
    for index in operator_of(given[0]).factor_inputs:
        inputs = [np.ones_like(other)] * 2
        inputs[1 - index] = other
        np.testing.assert_array_equal(evaluate(given[0], {}, inputs)[0], other)


@pytest.mark.parametrize(
    "kind", [kind for kind, item in OPERATORS.items() if item.pointwise and item.follows_sizes]
)
def test_sizes_are_computed_as_values_are(kind: str) -> None:
    arrays = [ints(2, 3, 5, 7), ints(4, 3, 1, 2)]
    if kind == "Where":
        arrays = [ints(1, 0, 0, 1), *arrays]
    elif kind in ("Floor", "Ceil"):
        arrays = arrays[:1]
    flow = Flow([], [], [], {}, {})
    flow.set_dtype("a", "int64")
    call = Call(Op(kind, ("a", "b", "c")[: len(arrays)], ("y",)), flow, ())
    found = call.operator.as_sizes(call, [tuple(array.tolist()) for array in arrays])
    (wanted,) = evaluate(kind, {}, arrays)
    assert found is not None and [*found] == wanted.astype(np.int64).tolist()


def test_a_fraction_is_no_size() -> None:
    flow = Flow([], [], [], {}, {})
    flow.set_dtype("a", "float32")
    call = Call(Op("Div", ("a", "b"), ("y",)), flow, ())
    assert call.operator.as_sizes(call, [(6,), (4,)]) is None
    assert call.operator.as_sizes(call, [(6,), (3,)]) == (2,)


def test_sizes_that_are_read() -> None:
    sizes = ("B", 3, "T", 7)
    for given, wanted in (
        (case("Slice", np.zeros(4), ints(1), ints(3), ints(0)), (3, "T")),
        (case("Slice", np.zeros(4), ints(-1), ints(-9), ints(0), ints(-2)), (7, 3)),
        (case("Gather", np.zeros(4), ints(2, 0)), ("T", "B")),
    ):
        call = call_of(given)
        assert call.operator.as_sizes(call, [sizes, tuple(given[1][1].tolist())]) == wanted


def test_what_is_not_known_is_refused() -> None:
    op = Op("org.example::Unheard", ("x",), ("y",))
    flow = Flow([op], ["x"], ["y"], {}, {"x": (2, 3)})
    assert flow.shape("y") is None and flow.dtype("y") is None and flow.constant("y") is None
    assert not operator_of("Relu").supports(Op("Relu", ("x",), ("y",), {"slope": 1}))
    with pytest.raises(UnknownOpError):
        list(operator_of(op.kind).moves(Call(op, flow)))
