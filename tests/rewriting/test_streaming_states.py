"""Where the states of a streaming model begin, and which of its inputs they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.core.dtypes import Array
from onegru.formats.graph import STREAM_KEY
from tests.rewriting.test_streaming import B, C, Network, T, ahead_conv, run_in_chunks
from tests.support.files.onnx_models import graph, model, node, save, tensor, value

Start = Callable[[Network, Array], str]


def rows_of(net: Network) -> str:
    """The batch size as a tensor of one integer."""
    return net.add("Gather", net.add("Shape", "X"), net.constant([0], np.int64))


def spread(net: Network, h: Array) -> str:
    """`h0.expand(-1, batch, -1)` as TorchScript's exporter writes it."""
    minus = net.constant([-1], np.int64)
    sizes = net.add("Concat", minus, rows_of(net), minus, axis=0)
    ones = net.add(
        "ConstantOfShape",
        net.constant([3], np.int64),
        value=onnx.numpy_helper.from_array(np.ones(1, np.int64)),
    )
    is_same = net.add("Equal", sizes, net.add("Mul", ones, net.constant(-1, np.int64)))
    return net.add("Expand", net.constant(h), net.add("Where", is_same, ones, sizes))


def repeated_rows(net: Network, row: str) -> str:
    one = net.constant([1], np.int64)
    return net.add("Tile", row, net.add("Concat", one, rows_of(net), one, axis=0))


def repeated(net: Network, h: Array) -> str:
    return repeated_rows(net, net.constant(h))


def as_many_zeros(net: Network, h: Array) -> str:
    """Zeros of a computed size, and what is added to them, in another order of axes."""
    two = net.constant([1, C], np.int64)
    zeros = net.add("ConstantOfShape", net.add("Concat", rows_of(net), two, axis=0))
    return net.add("Add", net.swapped(zeros, (1, 0, 2)), net.constant(h))


def of_two_layers(net: Network, h: Array) -> str:
    """The second layer's part of a tensor for both."""
    both = spread(net, np.concatenate([h * 0.5, h]))
    return net.add("Slice", both, *(net.constant(item, np.int64) for item in ([1], [2], [0])))


def activated(net: Network, h: Array) -> str:
    return net.add("Expand", net.add("Neg", net.constant(-h)), net.constant([1, B, C], np.int64))


def one_for_each_row(net: Network, h: Array) -> str:
    return net.constant(np.concatenate([h, h * 2], 1))


STARTS: dict[str, Start] = {
    "expanded": spread,
    "tiled": repeated,
    "added to zeros": as_many_zeros,
    "a part of two layers'": of_two_layers,
    "computed from constants": activated,
    "one for each row": one_for_each_row,
}


def with_start(start: Start, kind: str = "GRU", layout: int = 0) -> onnx.ModelProto:
    net = Network(np.random.default_rng(1))
    net.last = ahead_conv(net)
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
    W, R = net.weights(1, gates * C, C), net.weights(1, gates * C, C)
    states = [start(net, net.rng.standard_normal((1, 1, C)).astype(np.float32)) for _ in range(2)]
    if layout:
        states = [net.swapped(state, (1, 0, 2)) for state in states]
    x = net.swapped(net.last, (0, 2, 1) if layout else (2, 0, 1))
    names = states if kind == "LSTM" else states[:1]
    Y = net.add(
        kind,
        x,
        W,
        R,
        "",
        "",
        *names,
        outputs=1 + len(names),
        hidden_size=C,
        **({"layout": 1} if layout else {}),
    )
    axis = net.constant([2 if layout else 1], np.int64)
    net.last = net.swapped(net.add("Squeeze", Y, axis), (0, 2, 1) if layout else (1, 2, 0))
    return net.proto()


def sequence(steps: int = T, rows: int = B) -> Array:
    return np.random.default_rng(3).standard_normal((rows, C, steps)).astype(np.float32)


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("name", STARTS)
def test_a_learned_start(name: str, kind: str, tmp_path: Path) -> None:
    source, target = save(tmp_path, with_start(STARTS[name], kind)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X = sequence()
    whole = onegru.load(source).run({"X": X})["Z"]
    for sizes in ([1] * T, [7, 7, 7, 2], [T]):
        np.testing.assert_allclose(run_in_chunks(target, X, sizes), whole, atol=1e-5)
    stream = onegru.load(target).stream()
    first = stream.step({"X": X[:, :, :5]})["Z"]
    stream.reset()
    np.testing.assert_array_equal(stream.step({"X": X[:, :, :5]})["Z"], first)
    in_memory = onegru.load(source).stream(rewrite=True)
    np.testing.assert_array_equal(in_memory.step({"X": X[:, :, :5]})["Z"], first)
    np.testing.assert_allclose(in_onnx_runtime(target, X), whole, atol=1e-5)


def in_onnx_runtime(path: Path, X: Array) -> Array:
    """One frame at a time, by only the file's metadata, as the guide has it."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    document = json.loads(session.get_modelmeta().custom_metadata_map[STREAM_KEY])
    states = {}
    for state in document["states"]:
        shape = [X.shape[0] if size == "batch" else size for size in state["shape"]]
        states[state["input"]] = np.full(shape, state.get("initial", 0), np.float32)
    names = [output.name for output in session.get_outputs()]
    parts = []
    for step in range(X.shape[2]):
        found = dict(zip(names, session.run(None, {"X": X[:, :, step : step + 1], **states}), strict=True))
        states = {state["input"]: found[state["output"]] for state in document["states"]}
        parts.append(found["Z"])
    return np.concatenate(parts, 2)


def test_rows_begin_at_a_learned_start(tmp_path: Path) -> None:
    source, target = save(tmp_path, with_start(spread)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X = sequence(rows=4)
    stream = onegru.load(target).stream(dims={"batch": 4})
    found = stream.step({"X": X[:2]}, rows=[3, 1])["Z"]
    np.testing.assert_allclose(found, onegru.load(source).run({"X": X[:2]})["Z"], atol=1e-5)


def test_batch_first(tmp_path: Path) -> None:
    proto = with_start(spread, layout=1)
    streaming = onegru.load(save(tmp_path, proto)).stream(rewrite=True)  # ONNX Runtime lacks layout=1
    X = sequence()
    whole = streaming.step({"X": X})["Z"]
    streaming.reset()
    parts = [streaming.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise([0, 4, 5, T])]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)
    with_rows_first = onegru.load(save(tmp_path, with_start(spread))).run({"X": X})["Z"]
    np.testing.assert_allclose(whole, with_rows_first, atol=1e-5)


def of_the_sequence(net: Network, h: Array) -> str:
    mean = net.add("ReduceMean", net.swapped("X", (2, 0, 1)), axes=[0], keepdims=1)
    return net.add("Add", mean, net.constant(h))


def of_the_length(net: Network, h: Array) -> str:
    steps = net.add("Gather", net.add("Shape", "X"), net.constant([2], np.int64))
    return net.add("Mul", spread(net, h), net.add("Cast", steps, to=1))


def of_many_rows(net: Network, h: Array) -> str:
    """Other numbers from four rows on."""
    is_large = net.add("Greater", rows_of(net), net.constant([3], np.int64))
    return net.add("Where", is_large, spread(net, h), spread(net, h * 2))


def by_the_rows(net: Network, h: Array) -> str:
    """A row of a table, which the number of rows chooses: the first six are the same."""
    table = net.constant(np.concatenate([np.repeat(h[0], 6, 0), 2 * h[0]]))
    place = net.add("Min", rows_of(net), net.constant([6], np.int64))
    row = net.add("Unsqueeze", net.add("Gather", table, place), net.constant([0], np.int64))
    return repeated_rows(net, row)


def cut_by_the_rows(net: Network, h: Array) -> str:
    """As many rows of a table as there are in the batch: the first four are the same."""
    table = net.constant(np.concatenate([np.repeat(h, 4, 1), 2 * h, 3 * h, 4 * h], 1))
    return net.add("Slice", table, net.constant([0], np.int64), rows_of(net), net.constant([1], np.int64))


def regrouped(net: Network, h: Array) -> str:
    """Numbers that are contiguous in the order of another shape."""
    line = net.add("Reshape", spread(net, h), net.constant([-1], np.int64))
    sizes = net.add("Concat", net.constant([1, C], np.int64), rows_of(net), axis=0)
    return net.add("Transpose", net.add("Reshape", line, sizes), perm=[0, 2, 1])


@pytest.mark.parametrize(
    "start", [of_the_sequence, of_the_length, of_many_rows, by_the_rows, cut_by_the_rows, regrouped]
)
def test_a_start_that_is_computed_in_each_run(start: Start, tmp_path: Path) -> None:
    source = save(tmp_path, with_start(start))
    with pytest.raises(
        SpecError, match=r"GRU node 'gru\d+' starts from a state that is computed|over all steps"
    ):
        onegru.load(source).stream(rewrite=True)


@pytest.mark.parametrize(
    "initial",
    [
        3,
        "x",
        None,
        [1.0],
        [[[1.0, "x"]]],
        [[[1.0], [2.0, 3.0]]],
        [[[1.0]] * 3],
        [[[1.0] * 5]],
        [[[[1.0]]]],
        1e39,
        np.nan,
    ],
)
def test_broken_numbers_are_refused(initial: Any, tmp_path: Path) -> None:
    source, target = save(tmp_path, with_start(spread)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    proto = onnx.load(target)
    document = json.loads(proto.metadata_props[0].value)
    document["states"][-1]["initial"] = initial
    proto.metadata_props[0].value = json.dumps(document)
    with pytest.raises(FormatError, match=rf"its metadata '{STREAM_KEY}' do not fit"):
        onegru.load(save(tmp_path, proto))


# ---- states that are inputs already


Ends = Callable[[Network, str, int], list[str]]


def sliced(net: Network, state: str, layers: int) -> list[str]:
    bounds = [[net.constant([item], np.int64) for item in (i, i + 1, 0)] for i in range(layers)]
    return [net.add("Slice", state, *items) for items in bounds]


def gathered(net: Network, state: str, layers: int) -> list[str]:
    rows = [net.add("Gather", state, net.constant(i, np.int64), axis=0) for i in range(layers)]
    return [net.add("Unsqueeze", row, net.constant([0], np.int64)) for row in rows]


def split(net: Network, state: str, layers: int) -> list[str]:
    net.add("Split", state, outputs=layers, axis=0)
    return list(net.nodes[-1].output)


def in_other_order(net: Network, state: str, layers: int) -> list[str]:
    return sliced(net, state, layers)[::-1]


def shared(net: Network, state: str, layers: int) -> list[str]:
    return [state] * layers


def overlapping(net: Network, state: str, layers: int) -> list[str]:
    return [sliced(net, state, layers)[0]] * layers


def empty(net: Network, state: str, layers: int) -> list[str]:
    return [net.add("Slice", state, *(net.constant([item], np.int64) for item in (9, 10, 0)))] * layers


def stacked(parts: Ends, kind: str = "GRU", layers: int = 2, gives: bool = False) -> onnx.ModelProto:
    """Recurrences of several layers, which start from parts of inputs, and perhaps give their last states."""
    net = Network(np.random.default_rng(1))
    x, gates = net.swapped(ahead_conv(net)), {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
    names = ["h", "c"][: 2 if kind == "LSTM" else 1]
    starts = list(zip(*(parts(net, name, layers) for name in names), strict=True))
    nodes = []
    for start in starts:
        weights = [net.weights(1, gates * C, C) for _ in range(2)]
        Y = net.add(kind, x, *weights, "", "", *start, hidden_size=C, outputs=1 + len(names))
        nodes.append(net.nodes[-1])
        x = net.add("Squeeze", Y, net.constant([1], np.int64))
    net.last = net.swapped(x, (1, 2, 0))
    proto = net.proto()
    size = 1 if parts is shared else layers
    for place, name in enumerate(names):
        proto.graph.input.append(value(name, shape=[size, "batch", C]))
        if gives:
            proto.graph.node.append(
                node("Concat", [item.output[1 + place] for item in nodes], [f"{name}_n"], axis=0)
            )
            proto.graph.output.append(value(f"{name}_n", shape=[layers, "batch", C]))
    return proto


@pytest.mark.parametrize("gives", [False, True])
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("parts", [sliced, gathered, split, in_other_order])
def test_parts_of_an_input_are_one_state(parts: Ends, kind: str, gives: bool, tmp_path: Path) -> None:
    source, target = save(tmp_path, stacked(parts, kind, 2, gives)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    rng, X = np.random.default_rng(3), sequence()
    model = onegru.load(source)
    states = {
        info.name: rng.standard_normal((2, B, C)).astype(np.float32)
        for info in model.inputs
        if info.name != "X"
    }
    whole = model.run({"X": X} | states)
    stream = onegru.load(target).stream()
    assert {*stream.pairs.values()} == {*states, "conv0_cache_in"}
    stream.state = states
    steps = [stream.step({"X": X[:, :, a:b]}) for a, b in pairwise([0, 1, 2, 9, T])]
    np.testing.assert_allclose(np.concatenate([step["Z"] for step in steps], 2), whole["Z"], atol=1e-5)
    for output, taker in stream.pairs.items():
        last = whole.get(f"{taker}_n")
        assert output == f"{taker}_n" or output not in whole
        if last is not None:
            last = last[::-1] if parts is in_other_order else last
            np.testing.assert_allclose(stream.state[taker], last, atol=1e-5)


def of_rows(net: Network, layers: int) -> list[str]:
    return [net.add("Unsqueeze", "h", net.constant([0], np.int64))] * layers


def of_rows_first(net: Network, layers: int) -> list[str]:
    return [net.add("Transpose", "h", perm=[1, 0, 2])] * layers


def of_numbers(net: Network, layers: int) -> list[str]:
    return [net.add("Reshape", "h", net.constant([1, -1, C], np.int64))] * layers


def of_adjacent_layers(net: Network, layers: int) -> list[str]:
    net.add("Split", "h", outputs=layers, axis=1)
    return [net.add("Unsqueeze", part, net.constant([0], np.int64)) for part in net.nodes[-1].output]


def of_first_rows(net: Network, layers: int) -> list[str]:
    """All of them, if there are no more than two."""
    return [net.add("Slice", "h", *(net.constant([item], np.int64) for item in (0, 2, 1)))] * layers


def of_layers_after_rows(net: Network, layers: int) -> list[str]:
    return sliced(net, net.add("Transpose", "h", perm=[1, 0, 2]), layers)


def of_rows_last(net: Network, layers: int) -> list[str]:
    turned = net.add("Transpose", "h", perm=[1, 0])
    return [net.add("Unsqueeze", turned, net.constant([0], np.int64))] * layers


SHAPED: dict[str, tuple[Callable[[Network, int], list[str]], list[int | str]]] = {
    "rows": (of_rows, ["batch", C]),
    "rows first": (of_rows_first, ["batch", 1, C]),
    "numbers": (of_numbers, ["batch", 2, C // 2]),
    "adjacent layers": (of_adjacent_layers, ["batch", 2 * C]),
    "layers after rows": (of_layers_after_rows, ["batch", 2, C]),
}


def of_shape(start: Callable[[Network, int], list[str]], shape: list[int | str], path: Path) -> Path:
    """GRUs that start from an input of this shape: two, where it has numbers for so many."""
    layers = 2 if start in (of_adjacent_layers, of_layers_after_rows) else 1
    proto = stacked(lambda net, state, layers: start(net, layers), layers=layers)
    proto.graph.input[-1].CopyFrom(value("h", shape=shape))
    return save(path, proto)


@pytest.mark.parametrize("name", SHAPED)
def test_a_state_keeps_the_shape_that_it_has_outside(name: str, tmp_path: Path) -> None:
    start, shape = SHAPED[name]
    source, target = of_shape(start, shape, tmp_path), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X, known = sequence(), [B if size == "batch" else int(size) for size in shape]
    h = np.random.default_rng(3).standard_normal(known).astype(np.float32)
    whole = onegru.load(source).run({"X": X, "h": h})["Z"]
    stream = onegru.load(target).stream()
    stream.state = {"h": h}
    steps = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise([0, 1, 2, 9, T])]
    np.testing.assert_allclose(np.concatenate(steps, 2), whole, atol=1e-5)
    (given,) = (output for output, taker in stream.pairs.items() if taker == "h")
    assert next(info.shape for info in onegru.load(target).outputs if info.name == given) == tuple(shape)


def of_first_three_rows(net: Network, layers: int) -> list[str]:
    """All of them, if there are no more than three."""
    return [net.add("Slice", "h", *(net.constant([item], np.int64) for item in (0, 3, 1)))] * layers


@pytest.mark.parametrize(
    ("start", "shape"),
    [
        (of_first_rows, [1, "batch", C]),
        (of_first_three_rows, [1, "batch", C]),
        (of_rows_last, [C, "batch"]),
    ],
    ids=["two rows", "three rows", "in another order"],
)
def test_a_state_of_other_numbers_is_refused(
    start: Callable[[Network, int], list[str]], shape: list[int | str], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"input 'h' is the initial state of .*all parts must be used"):
        onegru.load(of_shape(start, shape, tmp_path)).stream(rewrite=True)


@pytest.mark.parametrize("parts", [shared, overlapping, empty])
def test_an_input_that_is_several_states_is_refused(parts: Ends, tmp_path: Path) -> None:
    source = save(tmp_path, stacked(parts))
    message = (
        "GRU node 'gru[0-9]+': cannot run in chunks, because input 'h' is the initial state of "
        "'gru[0-9]+', 'gru"
    )
    with pytest.raises(SpecError, match=message):
        onegru.load(source).stream(rewrite=True)


def test_an_input_that_is_also_used_otherwise_is_refused(tmp_path: Path) -> None:
    proto = stacked(sliced)
    proto.graph.node[-1].input[0] = "more"
    parts = [
        node("ReduceMean", ["h"], ["mean"], axes=[0, 1, 2]),
        node("Add", [proto.graph.node[-2].output[0], "mean"], ["more"]),
    ]
    end = proto.graph.node.pop()
    proto.graph.node.extend([*parts, end])
    with pytest.raises(SpecError, match=r"input 'h' is the initial state of .*; no other operator may"):
        onegru.load(save(tmp_path, proto)).stream(rewrite=True)


def test_the_default_of_a_state_is_its_start(tmp_path: Path) -> None:
    proto = stacked(sliced)
    default = np.random.default_rng(4).standard_normal((2, B, C)).astype(np.float32)
    for info in proto.graph.input:
        dims = info.type.tensor_type.shape.dim
        dims[0 if info.name == "X" else 1].dim_value = B
    proto.graph.initializer.append(tensor("h", default))
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X = sequence()
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [3, T - 3]), whole, atol=1e-5)
    np.testing.assert_allclose(in_onnx_runtime(target, X), whole, atol=1e-5)


@pytest.mark.parametrize("kind", ["onnx", "xml"])
@pytest.mark.parametrize(
    ("frame", "states"), [([C], [C]), ([C], [1, 1, C]), ([], [C])], ids=["flat", "states of three", "scalar"]
)
def test_one_frame_without_an_axis_of_time(
    frame: list[int], states: list[int], kind: str, tmp_path: Path
) -> None:
    """As whole denoisers are exported: a run takes one frame, and the states are one tensor."""
    net = Network(np.random.default_rng(1))
    sizes = net.constant([1, 1, C], np.int64)
    x = net.add("Expand" if not frame else "Reshape", "frame", sizes)
    layer = [
        x,
        net.weights(1, 3 * C, C),
        net.weights(1, 3 * C, C),
        "",
        "",
        net.add("Reshape", "states", sizes),
    ]
    net.add("GRU", *layer, outputs=2, hidden_size=C)
    last = net.nodes[-1].output[1]
    new = net.add("Reshape", last, net.constant(states, np.int64))
    net.nodes.append(node("Identity", [new], ["new_states"]))
    net.nodes.append(node("Tanh", [net.add("Reshape", last, net.constant([C], np.int64))], ["y"]))
    infos = [value("frame", shape=frame), value("states", shape=states)]
    outputs = [value("y", shape=[C]), value("new_states", shape=states)]
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants)))
    if kind == "xml":
        openvino = pytest.importorskip("openvino")
        openvino.save_model(openvino.convert_model(source), source.with_suffix(".xml"))
        source = source.with_suffix(".xml")
    target = tmp_path / f"streaming.{kind}"
    made = onegru.make_streaming(source, target)
    assert any("runs one step at a time" in note for note in made.notes)
    whole, stream = onegru.load(source), onegru.load(target).stream()
    assert stream.pairs == {"new_states": "states"}
    carried = np.zeros(states, np.float32)
    for x_of_step in np.random.default_rng(3).standard_normal((5, *frame)).astype(np.float32):
        expected = whole.run({"frame": x_of_step, "states": carried})
        carried = expected["new_states"]
        np.testing.assert_array_equal(stream.step({"frame": x_of_step})["y"], expected["y"])


@pytest.mark.parametrize("kind", ["onnx", "xml"])
@pytest.mark.parametrize("part", ["GRU", "convolution"])
def test_inputs_that_are_broadcast_have_one_size(part: str, kind: str, tmp_path: Path) -> None:
    """Two batch sizes of one axis: a state has one of them, so a step of 1 and 3 rows is refused by name."""
    net = Network(np.random.default_rng(1))
    net.last = net.add("Add", "X", "other")
    net.last = net.gru() if part == "GRU" else ahead_conv(net)
    proto = net.proto()
    proto.graph.input.append(value("other", shape=["rows", C, "time"]))
    source = save(tmp_path, proto)
    if kind == "xml":
        openvino = pytest.importorskip("openvino")
        openvino.save_model(openvino.convert_model(source), source.with_suffix(".xml"))
        source = source.with_suffix(".xml")
    time = None if part == "GRU" else {"X": 2, "other": 2}
    target = tmp_path / f"streaming.{kind}"
    onegru.make_streaming(source, target, time=time)
    stream, X, other = onegru.load(target).stream(), sequence(rows=3), sequence(rows=3) * 2
    parts = [stream.step({"X": X[:, :, a:b], "other": other[:, :, a:b]})["Z"] for a, b in pairwise([0, 9, T])]
    whole = onegru.load(source).run({"X": X, "other": other})["Z"]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)
    for few, many in ((X[:1], other), (X, other[:1])):
        stream.reset()
        with pytest.raises(
            SpecError, match=r"^'other': \S+ is [13], and [13] in 'X'; must be equal, because"
        ):
            stream.step({"X": few[:, :, :4], "other": many[:, :, :4]})


@pytest.mark.parametrize("rows", [(1, 3), (3, 1), (3, 3)])
def test_what_is_added_after_a_gru_may_have_other_rows(rows: tuple[int, int], tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("Add", net.gru(), "other")
    proto = net.proto()
    proto.graph.input.append(value("other", shape=["rows", C, "time"]))
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    stream, X, other = onegru.load(target).stream(), sequence(rows=rows[0]), sequence(rows=rows[1])
    parts = [stream.step({"X": X[:, :, a:b], "other": other[:, :, a:b]})["Z"] for a, b in pairwise([0, 9, T])]
    whole = onegru.load(source).run({"X": X, "other": other})["Z"]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)


def test_an_infinite_start_in_onnx_runtime_by_the_metadata(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("MaxPool", "X", kernel_shape=[3], pads=[2, 0])
    net.last = net.gru()
    source, target = save(tmp_path, net.proto()), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    text = onnx.load(target).metadata_props[0].value
    assert '"initial": [[["-inf"]]]' in text and "Infinity" not in text
    X = sequence() - 9
    np.testing.assert_allclose(in_onnx_runtime(target, X), onegru.load(source).run({"X": X})["Z"], atol=1e-5)
