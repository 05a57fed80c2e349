"""What a plan of chunks lets through, and what it says of the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onegru
from onegru import SpecError
from onegru.dataflow.table import OPERATORS, Call, Move
from onegru.dataflow.table.pointwise import Pointwise
from onegru.formats.graph import Graph
from onegru.timeline import check
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.find_time import find_time
from onegru.timeline.planning.planner import Planner
from onegru.timeline.read import ModelFlow, read_model_flow
from tests.rewriting.test_streaming import steps_of
from tests.support.files.onnx_models import graph, gru, model, save, value, weights
from tests.support.models.streams import StreamNet
from tests.timeline.test_perturbed import B, C, PerturbedModel, T, is_wrong


def network(make: Callable[[PerturbedModel], str], fixed: bool) -> tuple[PerturbedModel, onnx.ModelProto]:
    net = PerturbedModel(np.random.default_rng(1), fixed)
    net.last = make(net)
    net.last = net.gru()
    return net, net.whole(B if fixed else "batch", 17)


def spread_table(net: PerturbedModel) -> str:
    """`table.expand(batch, steps, -1)`, as TorchScript writes it: each step has the same numbers."""
    rows = net.add("Gather", net.add("Shape", net.last), net.ints(0))
    sizes = net.add("Concat", rows, steps_of(net, net.last), net.ints(-1), axis=0)
    minus = net.ints(-1, -1, -1)
    ones = net.ints(1, 1, 1)
    sizes = net.add("Where", net.add("Equal", sizes, minus), ones, sizes)
    return net.back(net.add("Add", net.rows(), net.add("Expand", net.weights(1, 1, C), sizes)))


def as_many_zeros(net: PerturbedModel) -> str:
    return net.add("Add", net.last, net.add("ConstantOfShape", net.add("Shape", net.last)))


def same_pads(net: PerturbedModel) -> str:
    """Of five features, every second one with a window of 3: one zero in front, one at the end."""
    five = net.add("Slice", net.last, net.ints(0), net.ints(5), net.ints(1))
    x = net.add("Unsqueeze", five, net.ints(1))
    y = net.add("Conv", x, net.weights(2, 1, 3, 3), strides=[2, 1], auto_pad="SAME_LOWER")
    mean = net.add("ReduceMean", y, axes=[1, 2], keepdims=0)
    return net.add("Add", net.last, net.add("Unsqueeze", mean, net.ints(1)))


def own_lengths(net: PerturbedModel) -> str:
    lengths = net.add("Expand", steps_of(net, net.last), net.ints(B))
    lengths = net.add("Cast", lengths, to=TensorProto.INT32)
    W, R = net.weights(1, 3 * C, C), net.weights(1, 3 * C, C)
    Y = net.add("GRU", net.swapped(net.last), W, R, "", lengths, hidden_size=C)
    return net.swapped(net.add("Squeeze", Y, net.ints(1)), (1, 2, 0))


def halves_of_features(net: PerturbedModel) -> str:
    """Rows of [batch * steps, C // 2, 2], as PyTorch's exporter writes sizes that it has not folded."""
    rows, shape = net.rows(), net.add("Shape", net.rows())
    batch, steps, features = (net.add("Gather", shape, net.ints(axis)) for axis in range(3))
    half, two = net.add("Div", features, net.ints(2)), net.ints(2)
    parts = net.add("Reshape", rows, net.add("Concat", net.add("Mul", batch, steps), half, two, axis=0))
    turned = net.add("Softmax", parts, axis=1)
    return net.back(net.add("Reshape", turned, net.add("Concat", batch, steps, features, axis=0)))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("make", [spread_table, as_many_zeros, same_pads, own_lengths, halves_of_features])
def test_what_streams(make: Callable[[PerturbedModel], str], fixed: bool, tmp_path: Path) -> None:
    net, proto = network(make, fixed)
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, delay=True, check=False)
    assert not is_wrong(source, target, net, 1)


def numbers(net: PerturbedModel, first: int, step: int, dtype: int) -> str:
    """Numbers of steps, as `torch.arange(first, step * steps + first, step)` is written."""
    count = net.add("Squeeze", steps_of(net, net.last), net.ints(0))
    end = net.add("Mul", count, net.constant(step, np.int64))
    end = net.add("Add", end, net.constant(first, np.int64))
    ends = net.constant(first, np.int64), end, net.constant(step, np.int64)
    return net.add("Range", *(net.add("Cast", number, to=dtype) for number in ends))


def running_mean(net: PerturbedModel) -> str:
    count = net.add("Cast", numbers(net, 1, 1, TensorProto.INT64), to=TensorProto.FLOAT)
    return net.add("Div", net.add("CumSum", net.last, net.constant(-1, np.int64)), count)


def mean_of_a_range_from_one(net: PerturbedModel) -> str:
    """`torch.arange(1, steps + 1, dtype=torch.float)`, whose bounds are floats."""
    last = net.add("Add", net.add("Squeeze", net.steps(), net.ints(0)), net.constant(1.0))
    count = net.add("Range", net.constant(1.0), last, net.constant(1.0))
    return net.add("Div", net.add("CumSum", net.last, net.constant(-1, np.int64)), count)


def mean_before(net: PerturbedModel) -> str:
    """Of all earlier steps."""
    sums = net.add("CumSum", net.last, net.constant(2, np.int64), exclusive=1)
    return net.add("Div", sums, net.add("Add", numbers(net, 0, 1, TensorProto.FLOAT), net.constant(1.0)))


def cumulative_norm(net: PerturbedModel) -> str:
    """Of all features of all steps so far."""
    count = net.add("Reshape", numbers(net, C, C, TensorProto.FLOAT), net.ints(1, 1, -1))
    sums = net.add("ReduceSum", net.last, net.ints(1), keepdims=1)
    means = net.add("Div", net.add("CumSum", sums, net.constant(-1, np.int64)), count)
    return net.add("Sub", net.last, net.add("Expand", means, net.add("Shape", net.last)))


def mean_by_ones(net: PerturbedModel) -> str:
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ones = net.add("ConstantOfShape", net.add("Shape", net.last), value=one)
    sums = [net.add("CumSum", x, net.constant(2, np.int64)) for x in (net.last, ones)]
    return net.add("Div", *sums)


def sines(net: PerturbedModel) -> str:
    """Of the places of steps."""
    places = net.add("Unsqueeze", numbers(net, 0, 1, TensorProto.FLOAT), net.ints(1))
    sines = net.add("Sin", net.add("MatMul", places, net.weights(1, C)))
    return net.back(net.add("Add", net.rows(), sines))


def sum_of_a_shift(net: PerturbedModel) -> str:
    """Whose steps wait, as do their numbers."""
    x = net.add("Conv", net.last, net.weights(C, C, 3), pads=[1, 1])
    net.last = x
    return net.add("Add", running_mean(net), sines(net))


def mean_after_a_shift(net: PerturbedModel) -> str:
    """Whose steps are counted after zeros in front."""
    net.last = net.add("Pad", net.last, net.ints(0, 0, 2, 0, 0, -2))
    return net.add("Add", net.add("Add", running_mean(net), mean_by_ones(net)), cumulative_norm(net))


def expanded(net: PerturbedModel) -> str:
    """`means.expand(-1, C, steps)`, as TorchScript writes it: ones in the places of -1 and less."""
    means = net.add("ReduceMean", net.last, axes=[1], keepdims=1)
    sizes = net.add("Concat", net.ints(-1), net.ints(C), steps_of(net, net.last), axis=0)
    sizes = net.add("Reshape", sizes, net.ints(-1))
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    ones = net.add("ConstantOfShape", net.add("Shape", sizes), value=one)
    is_left = net.add("Equal", sizes, net.add("Mul", ones, net.constant(-1, np.int64)))
    sizes = net.add("Where", is_left, ones, sizes)
    return net.add("Mul", net.last, net.add("Expand", means, sizes))


@pytest.mark.parametrize(
    "make",
    [
        running_mean,
        mean_of_a_range_from_one,
        mean_before,
        cumulative_norm,
        mean_by_ones,
        sines,
        sum_of_a_shift,
        mean_after_a_shift,
        expanded,
    ],
)
def test_what_counts_on_from_chunk_to_chunk(make: Callable[[PerturbedModel], str], tmp_path: Path) -> None:
    net, proto = network(make, fixed=False)
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, delay=True, time={"X": 2})
    for seed in range(3):
        assert not is_wrong(source, target, net, seed)


@pytest.mark.parametrize("make", [running_mean, mean_before, mean_by_ones])
def test_sums_keep_their_bits_in_chunks_of_any_length(
    make: Callable[[PerturbedModel], str], tmp_path: Path
) -> None:
    """As each chunk adds to the last sum, step by step; a stream may start over, and be saved."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    net.last = make(net)
    model = onegru.load(save(tmp_path, net.whole("batch", 17)))
    X, stream = (
        net.rng.standard_normal((B, C, 23)).astype(np.float32),
        model.stream(rewrite=True, time={"X": 2}),
    )
    for sizes in ([1] * 23, [2, 7, 0, 1, 13], [23]):
        stream.reset()
        ends = np.cumsum([0, *sizes])
        parts = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise(ends)]
        np.testing.assert_array_equal(np.concatenate(parts, 2), model.run({"X": X})["Z"])
        np.savez(tmp_path / "one.npz", **stream.state)  # type: ignore[arg-type]  # its stub takes it for another


def test_the_guide_feeds_states_of_any_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the guide that begin a stream without onegru, on a model whose state is an integer."""
    pytest.importorskip("onnxruntime")
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    net.nodes.append(onnx.helper.make_node("Identity", [numbers(net, 3, 2, TensorProto.INT64)], ["n"]))
    net.output("n", TensorProto.INT64)
    source = save(tmp_path, net.whole("batch", 17))
    onegru.make_streaming(source, tmp_path / "streaming.onnx", time={"X": 2})
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[3] / "docs/guides/streaming.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(import json\n.*?)for i in range", guide, re.DOTALL)
    names: dict[str, Any] = {"np": np}
    exec(compile(lines, "streaming.md", "exec"), names)
    assert [array.dtype for array in names["feeds"].values()] == [np.int64]
    names["session"].run(None, names["feeds"] | {"X": np.zeros((1, C, 1), np.float32)})


@pytest.mark.parametrize("done", [2**24 + 1, 2**40 + 3])
def test_steps_are_counted_as_integers(done: int, tmp_path: Path) -> None:
    """Beyond what float32 can count, where `Cast` rounds each number by itself."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    for name, dtype in (("n", TensorProto.INT64), ("f", TensorProto.FLOAT)):
        net.nodes.append(onnx.helper.make_node("Identity", [numbers(net, 3, 2, dtype)], [name]))
        net.output(name, dtype)
    stream = onegru.load(save(tmp_path, net.whole("batch", 17))).stream(rewrite=True, time={"X": 2})
    stream.step({"X": np.zeros((B, C, 1), np.float32)})
    assert all(state == [1] and state.dtype == np.int64 for state in stream.state.values())
    stream.state = dict.fromkeys(stream.state, np.array([done]))
    found = stream.step({"X": np.zeros((B, C, 4), np.float32)})
    expected = 3 + 2 * (done + np.arange(4))
    np.testing.assert_array_equal(found["n"], expected)
    np.testing.assert_array_equal(found["f"], expected.astype(np.float32))
    assert all(state == [done + 4] for state in stream.state.values())


@pytest.mark.parametrize("place", [-1, T - 1])
def test_the_last_step_by_its_place(place: int, tmp_path: Path) -> None:
    """Which is known where the number of steps is fixed, and is the newest one of any chunk."""
    net = PerturbedModel(np.random.default_rng(1), fixed=True)
    net.output(net.add("Gather", net.gru(), net.constant(place, np.int64), axis=2))
    source, target = save(tmp_path, net.whole(B, 17)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, check=False)
    assert not is_wrong(source, target, net, 1)


def squeezed(net: PerturbedModel) -> str:
    return net.add("Squeeze", net.add("Unsqueeze", net.last, net.ints(3)))


def divided(net: PerturbedModel) -> str:
    """Steps that were cut to what they were, and then set next to each other in twos."""
    x = net.add("Conv", net.last, net.weights(C, C, 3), pads=[2, 2])
    x = net.add("Slice", x, net.ints(0), net.ints(-2), net.ints(2))
    y = net.add("Softmax", net.add("Reshape", x, net.ints(0, 12, 6)), axis=1)
    return net.add("Reshape", y, net.add("Shape", x))


def at_the_last_place(net: PerturbedModel) -> str:
    ends = (net.ints(T - 1), net.ints(T), net.ints(2))
    net.output(net.add("Slice", net.last, *ends))
    return net.last


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (squeezed, r"Squeeze node 'squeeze\d' removes the time axis if a run has a single step"),
        (divided, r"Reshape node 'reshape\d' splits the time axis into several axes"),
        (at_the_last_place, r"Slice node 'slice\d' selects the last step by a fixed index"),
    ],
)
def test_what_depends_on_a_fixed_number(
    make: Callable[[PerturbedModel], str], message: str, tmp_path: Path
) -> None:
    _, proto = network(make, fixed=True)
    with pytest.raises(SpecError, match=message):
        onegru.load(save(tmp_path, proto)).stream(rewrite=True, delay=True, time={"X": 2})


@pytest.mark.parametrize("way", ["attribute", "input", "domain", "body"])
def test_more_than_a_rule_has_understood(way: str, tmp_path: Path) -> None:
    net, proto = network(lambda net: net.add("Softmax", net.last, axis=1), fixed=False)
    node = next(item for item in proto.graph.node if item.op_type == "Softmax")
    if way == "attribute":
        node.attribute.append(helper.make_attribute("way", 1))
    elif way == "input":
        node.op_type, node.name = "Gather", "softmax0"
        node.input.extend([net.ints(0), "X"])
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.int64), node.input[1]))
    elif way == "domain":
        node.domain = "com.example"
        proto.opset_import.append(helper.make_opsetid("com.example", 1))
    else:
        body = helper.make_graph([helper.make_node("Neg", ["X"], ["b"])], "b", [], [])
        node.attribute.append(helper.make_attribute("body", body))
    file = tmp_path / "model.onnx"
    file.write_bytes(proto.SerializeToString())
    with pytest.raises(SpecError, match="node 'softmax0' has an unknown effect along time"):
        onegru.make_streaming(file, tmp_path / "t.onnx", check=False, time={"X": 2})


def test_an_axis_is_not_guessed(tmp_path: Path) -> None:
    """Where a rank is not known, by whatever name an operator goes."""
    for kind, attributes in (("CumSum", {}), ("LogSoftmax", {"axis": 2}), ("Relu", {})):
        net = PerturbedModel(np.random.default_rng(1), fixed=False)
        x = net.of_unknown_rank()
        more = [net.constant(2, np.int64)] if kind == "CumSum" else []
        net.last = net.add(kind, x, *more, **attributes)
        net.last = net.gru()
        file = save(tmp_path, net.whole("batch", 17))
        with pytest.raises(SpecError, match=r"Reshape node 'reshape\d' has an unknown effect along time"):
            onegru.make_streaming(file, tmp_path / "t.onnx", check=False, time={"X": 2})


def test_states_of_a_size_that_no_input_has(tmp_path: Path) -> None:
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    net.last = net.add("Concat", net.last, net.last, axis=0)
    net.last = net.gru()
    with pytest.raises(SpecError, match="its state has a size that no input has"):
        onegru.load(save(tmp_path, net.whole("batch", 17))).stream(rewrite=True, time={"X": 2})


def test_sizes_after_strides(tmp_path: Path) -> None:
    """Five features of ten and back to ten; the state after them holds three steps."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    x = net.add("Unsqueeze", net.add("Concat", net.last, net.last, axis=1), net.ints(1))
    y = net.add("Conv", x, net.weights(2, 1, 3, 1), strides=[2, 1], pads=[1, 0, 1, 0])
    up: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 0], "output_padding": [1, 0]}
    y = net.add("Squeeze", net.add("ConvTranspose", y, net.weights(2, 1, 3, 1), **up), net.ints(1))
    net.last = net.add("Conv", y, net.weights(C, 2 * C, 4), pads=[3, 0])
    net.last = net.gru()
    source, target = save(tmp_path, net.whole("batch", 17)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, check=False)
    assert ["batch", 2 * C, 3] in [list(info.shape or ()) for info in onegru.load(target).inputs]
    assert not is_wrong(source, target, net, 1)


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
@pytest.mark.parametrize("number", [0.0, 0.5])
def test_starts_of_rows_of_batch_and_time(order: tuple[int, int], number: float, tmp_path: Path) -> None:
    """A GRU over features, from as many rows as batch times time, in whatever order they are multiplied."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    x = net.add("Reshape", net.rows(), net.ints(-1, C, 1))
    first, second = (net.add("Gather", net.add("Shape", net.last), net.ints(axis)) for axis in order)
    sizes = net.add("Concat", net.ints(1), net.add("Mul", first, second), net.ints(1), axis=0)
    h = net.add("Expand", net.constant(np.full((1, 1, 1), number)), sizes)
    weights = [net.weights(1, 3, 1), net.weights(1, 3, 1)]
    Y = net.add("GRU", net.swapped(x, (1, 0, 2)), *weights, "", "", h, hidden_size=1)
    Y = net.swapped(net.add("Squeeze", Y, net.ints(1)), (1, 0, 2))
    net.last = net.add("Add", net.last, net.back(net.add("Reshape", Y, net.add("Shape", net.rows()))))
    net.last = net.gru()
    source, target = save(tmp_path, net.whole("batch", 17)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, check=False, time={"X": 2})
    assert not is_wrong(source, target, net, 1)


class NeverWhole(set[str]):
    """A set that is asked for its members, and from which no other is made."""

    def __rsub__(self, other: object) -> set[str]:
        raise AssertionError("a set of all values is made for one operator")


def test_a_model_is_followed_once_and_each_operator_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what a model of thousands of operators takes grows by its square."""
    net = StreamNet()
    value = net.gru("x", "h", "h_out")
    for _ in range(5):
        value = net.op("Relu", value)
    path, reads = save(tmp_path, net.end(value)), list[Graph]()

    def read(graph: Graph) -> ModelFlow | None:
        reads.append(graph)
        return read_model_flow(graph)

    monkeypatch.setattr(check, "read_model_flow", read)
    assert onegru.inspect(path).streaming.startswith("yes")
    assert len(reads) == 1
    model_flow = read_model_flow(onegru.load(path).graph)
    assert model_flow is not None
    analysis = TimeAnalysis(model_flow.flow, {"h": "h_out"}, model_flow.opset)
    planner = Planner(analysis, find_time(analysis, {}), may_delay=False)
    planner.context.newest = NeverWhole()
    assert not planner.plan().refusals


@pytest.mark.parametrize(("moved", "pads"), [((2, 0, 0), True), ((0, 0, 2), False), ((2, 0, 2), True)])
def test_rows_that_nobody_plans_are_refused_in_their_words(
    moved: tuple[int, int, int], pads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that pads or reaches without being a Pad, a Slice or a window."""

    class Shifted(Pointwise):
        def moves(self, call: Call) -> Iterator[Move]:
            yield from (Move(0, axis, axis) for axis in range(2))
            yield Move(0, 2, 2, 0, "", "shifts time", *moved)

        def pads_with_zeros(self, call: Call) -> bool:
            return pads

    monkeypatch.setitem(OPERATORS, "com.example::Shift", Shifted("com.example::Shift"))
    rng, V = np.random.default_rng(0), helper.make_tensor_value_info
    shapes = {"K": (3, 3, 3), "W": (1, 12, 3), "R": (1, 12, 4)}
    nodes = [
        helper.make_node("Shift", ["X"], ["P"], domain="com.example", name="mine"),
        helper.make_node("Conv", ["P", "K"], ["C"]),
        helper.make_node("Transpose", ["C"], ["Z"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["Z", "W", "R"], ["Y"], hidden_size=4),
    ]
    tensors = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    inputs, outputs = [V("X", 1, [1, 3, "T"])], [V("Y", 1, None)]
    graph = helper.make_graph(nodes, "shifted", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(SpecError, match="Shift node 'mine' shifts time, but a stream does not know where"):
        onegru.make_streaming(save(tmp_path, model), tmp_path / "s.onnx", check=False)


def test_inputs_of_other_numbers_of_steps_are_refused(tmp_path: Path) -> None:
    """One number of steps holds for all inputs, whichever comes last."""
    infos = [value("x", shape=[6, 1, 4]), value("y", shape=[3, 1, 4])]
    layers = [gru(name, [f"{name}_out"], name=f"gru_{name}") for name in "xy"]
    path = save(tmp_path, model(graph(layers, infos, ["x_out", "y_out"], weights(I=4))))
    with pytest.raises(SpecError, match=r"^time: 'y' has 3 steps, and another input has 6; must be equal"):
        onegru.load(path).stream(rewrite=True, time={"x": 0, "y": 0})


def half_of_the_steps(net: PerturbedModel) -> str:
    """A number that a run of another length computes in another way."""
    half = net.add("Div", steps_of(net, net.last), net.ints(2))
    return net.add("Mul", net.last, net.add("Cast", half, to=TensorProto.FLOAT))


def ones_for_half_of_the_steps(net: PerturbedModel) -> str:
    half = net.add("Div", steps_of(net, net.last), net.ints(2))
    count = net.add("ReduceSum", net.add("ConstantOfShape", half), net.ints(0))
    return net.add("Add", net.last, net.add("Cos", count))


def half_a_range(net: PerturbedModel) -> str:
    """Numbers up to half of the steps are not those of the steps."""
    last = net.add("Squeeze", net.add("Div", net.steps(), net.constant([0.5])), net.ints(0))
    count = net.add("Range", net.constant(0.0), last, net.constant(2.0))
    return net.add("Add", net.last, count)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("make", [half_of_the_steps, ones_for_half_of_the_steps, half_a_range])
def test_a_share_of_the_steps_is_no_number(
    make: Callable[[PerturbedModel], str], fixed: bool, tmp_path: Path
) -> None:
    _, proto = network(make, fixed)
    with pytest.raises(SpecError, match="cannot run in chunks, because"):
        onegru.load(save(tmp_path, proto)).stream(rewrite=True, delay=True)


def test_ones_for_steps_and_a_share_of_features_are_not_followed(tmp_path: Path) -> None:
    """A product of a size and a number that is computed from another size is no axis."""

    def make(net: PerturbedModel) -> str:
        share = net.add("Div", net.add("Gather", net.add("Shape", net.last), net.ints(1)), net.ints(2))
        ones = net.add("ConstantOfShape", net.add("Mul", steps_of(net, net.last), share))
        ones = net.add("Reshape", ones, net.ints(1, C // 2, -1))
        return net.add("Add", net.last, net.add("ReduceMean", ones, axes=[1]))

    _, proto = network(make, False)
    with pytest.raises(SpecError, match=r"cannot run in chunks, because Add node 'add\d+' uses the number"):
        onegru.load(save(tmp_path, proto)).stream(rewrite=True)
