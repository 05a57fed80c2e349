"""Models with states: found, carried from step to step, saved and restored; the bits of one long run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import onegru
from onegru import FormatError, SpecError, SpecWarning
from tests.support.layers import make_gru, make_stack

RNG = np.random.default_rng(0)
I, H, T, B = 3, 4, 6, 2
node = helper.make_node


def weights(D: int = 1, count: int = 1, inputs: int = I) -> list[TensorProto]:
    shapes = {
        f"{name}{index}": (D, 3 * H, size)
        for index in range(count)
        for name, size in (("W", D * H if index else inputs), ("R", H))
    }
    return [
        numpy_helper.from_array((RNG.standard_normal(shape) * 0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]


def save(
    path: Path,
    nodes: list[NodeProto],
    tensors: list[TensorProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
) -> Path:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "stream",
        [info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def one_gru(path: Path) -> Path:
    return save(
        path,
        [node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", "h_out"], hidden_size=H)],
        weights(),
        {"x": ["T", "batch", I], "h": [1, "batch", H]},
        {"Y": ["T", 1, "batch", H], "h_out": [1, "batch", H]},
    )


def stacked(path: Path) -> Path:
    """Two GRUs whose states are one input and one output, as PyTorch exports them."""
    nodes, tensors = _stacked_parts()
    return save(
        path,
        nodes,
        tensors,
        {"x": ["T", B, I], "h": [2, B, H]},
        {"Y1": ["T", 1, B, H], "h_out": [2, B, H]},
    )


def _stacked_parts() -> tuple[list[NodeProto], list[TensorProto]]:
    constants = {"s0": [0], "s1": [1], "s2": [2], "zero": [0], "one": [1]}
    integers = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items()]
    nodes = [
        node("Slice", ["h", "s0", "s1", "zero"], ["h0"]),
        node("Slice", ["h", "s1", "s2", "zero"], ["h1"]),
        node("GRU", ["x", "W0", "R0", "", "", "h0"], ["Y0", "last0"], hidden_size=H),
        node("Squeeze", ["Y0", "one"], ["y0"]),
        node("GRU", ["y0", "W1", "R1", "", "", "h1"], ["Y1", "last1"], hidden_size=H),
        node("Concat", ["last0", "last1"], ["h_out"], axis=0),
    ]
    return nodes, [*weights(count=2), *integers]


@pytest.mark.parametrize("make", [one_gru, stacked])
def test_states_are_found_and_carried(make: object, tmp_path: Path) -> None:
    model = onegru.load(make(tmp_path / "m.onnx"))  # type: ignore[operator]
    layers = len(model.gru_nodes)
    x = RNG.standard_normal((T, B, I)).astype(np.float32)
    whole = model.run({"x": x, "h": np.zeros((layers, B, H), np.float32)})
    Y = model.outputs[0].name
    stream = model.stream()
    assert stream.pairs == {"h_out": "h"}
    steps = [stream.step({"x": x[t : t + 1]}) for t in range(T)]
    assert list(steps[0]) == [Y]
    assert np.array_equal(np.concatenate([step[Y] for step in steps]), whole[Y])
    assert np.array_equal(stream.state["h"], whole["h_out"])
    stream.reset()
    assert stream.state == {}
    assert np.array_equal(stream.step({"x": x})[Y], whole[Y])


def test_a_state_is_saved_and_restored(tmp_path: Path) -> None:
    model = onegru.load(one_gru(tmp_path / "m.onnx"))
    x = RNG.standard_normal((T, B, I)).astype(np.float32)
    stream = model.stream()
    stream.step({"x": x[:3]})
    stream.save(tmp_path / "state.npz")
    after = stream.step({"x": x[3:]})["Y"]
    other = model.stream()
    other.load(tmp_path / "state.npz")
    assert np.array_equal(other.step({"x": x[3:]})["Y"], after)
    third = model.stream()
    third.state = {"h": np.zeros((1, B, H), np.float32)}
    assert np.array_equal(third.step({"x": x})["Y"], model.stream().step({"x": x})["Y"])
    state = other.state["h"]
    state[...] = 9
    assert not np.any(other.state["h"] == 9)


def test_given_pairs_and_given_states(tmp_path: Path) -> None:
    model = onegru.load(one_gru(tmp_path / "m.onnx"))
    x = RNG.standard_normal((T, B, I)).astype(np.float32)
    h = RNG.standard_normal((1, B, H)).astype(np.float32)
    stream = model.stream({"h_out": "h"})
    assert np.array_equal(stream.step({"x": x, "h": h})["Y"], model.run({"x": x, "h": h})["Y"])


def test_a_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    stream = onegru.load(one_gru(tmp_path / "m.onnx")).stream()
    stream.step({"x": np.ones((2, B, I), np.float32)})
    before = stream.state["h"]
    with pytest.raises(SpecError):
        stream.step({"x": np.ones((2, B, I + 1), np.float32)})
    with pytest.raises(SpecError):
        stream.step({"x": np.ones((2, B + 1, I), np.float32)})
    with pytest.raises(SpecError):
        stream.state = {"h": np.ones((1, B, H + 1), np.float32)}
    assert np.array_equal(stream.state["h"], before)


def test_sizes_that_are_asked_for(tmp_path: Path) -> None:
    nodes = [
        node("Slice", ["big", "s0", "s1"], ["h"]),
        node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", "last"], hidden_size=H),
        node("Concat", ["last", "last"], ["h_out"], axis=0),
    ]
    integers = [numpy_helper.from_array(np.array([v], np.int64), f"s{v}") for v in (0, 1)]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [*weights(), *integers],
        {"x": ["T", B, I], "big": ["copies", B, H]},
        {"Y": ["T", 1, B, H], "h_out": ["copies", B, H]},
    )
    model = onegru.load(path)
    x = np.ones((T, B, I), np.float32)
    with pytest.raises(
        SpecError, match=r"'big' is \[copies, 2, 4\], and the inputs do not determine its sizes"
    ):
        model.stream({"h_out": "big"}).step({"x": x})
    stream = model.stream({"h_out": "big"}, dims={"copies": 2})
    stream.step({"x": x})
    assert stream.state["big"].shape == (2, B, H)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"Q": 3}, "dims: 'Q'; must be a dynamic dimension of a state: 'batch'"),
        ({"T": 3}, "dims: 'T'; must be a dynamic dimension of a state: 'batch'"),
        ({0: 3}, "dims: 0; must be a dynamic dimension of a state: 'batch'"),
        ({"batch": 0}, "dims['batch']: 0; must be an integer, at least 1"),
        ({"batch": "2"}, "dims['batch']: '2'; must be an integer, at least 1"),
        ([], "dims: []; must be a mapping"),
        ((), "dims: (); must be a mapping"),
        (0, "dims: 0; must be a mapping"),
    ],
)
def test_sizes_that_are_refused(tmp_path: Path, dims: Any, message: str) -> None:
    model = onegru.load(one_gru(tmp_path / "m.onnx"))
    with pytest.raises(SpecError) as info:
        model.stream(dims=dims)
    assert message in str(info.value)


def test_sizes_that_inputs_contradict(tmp_path: Path) -> None:
    stream = onegru.load(one_gru(tmp_path / "m.onnx")).stream(dims={"batch": 3})
    with pytest.raises(SpecError, match="'x': batch is 2; must be 3, as in dims="):
        stream.step({"x": np.ones((T, 2, I), np.float32)})
    stream.step({"x": np.ones((T, 3, I), np.float32)})


@pytest.mark.parametrize("size", [2**40, 2**62, 2**70])
def test_sizes_beyond_memory(tmp_path: Path, size: int) -> None:
    nodes = [node("Relu", ["big"], ["h_out"])]
    shapes: dict[str, list[int | str]] = {"big": ["copies"]}
    stream = onegru.load(save(tmp_path / "m.onnx", nodes, [], shapes, {"h_out": ["copies"]})).stream(
        {"h_out": "big"}, dims={"copies": size}
    )
    with pytest.raises(SpecError, match=r"state: 'big' has shape \[\d+\]; must fit into memory"):
        stream.step({})


def test_what_is_refused(tmp_path: Path) -> None:
    model = onegru.load(one_gru(tmp_path / "m.onnx"))
    with pytest.raises(SpecError, match="'nothing' is not an output"):
        model.stream({"nothing": "h"})
    with pytest.raises(SpecError, match="'nothing' is not an input"):
        model.stream({"h_out": "nothing"})
    with pytest.raises(
        SpecError, match=r"'Y' is \[T, 1, batch, 4\], 'h' is \[1, batch, 4\]; must have equal"
    ):
        model.stream({"Y": "h"})
    for wrong in (3, None, b"state.npz"):
        with pytest.raises(SpecError, match=r"path: .*; must be the name of a file"):
            model.stream().save(wrong)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"path: .*; must be the name of a file"):
            model.stream().load(wrong)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="an input is fed by two outputs"):
        model.stream({"h_out": "h", "Y": "h"})
    with pytest.raises(SpecError, match="state"):
        model.stream({})
    path = save(
        tmp_path / "none.onnx",
        [node("GRU", ["x", "W0", "R0"], ["Y", "h_out"], hidden_size=H)],
        weights(),
        {"x": ["T", B, I]},
        {"Y": ["T", 1, B, H], "h_out": [1, B, H]},
    )
    with pytest.raises(SpecError, match="no state inputs found"):
        onegru.load(path).stream()


def save_states(path: Path, name: str, array: np.ndarray) -> None:
    np.savez(path, **{name: array})  # type: ignore[arg-type]  # its stub takes it for another argument


def test_files_of_states_are_hostile(tmp_path: Path) -> None:
    stream = onegru.load(one_gru(tmp_path / "m.onnx")).stream()
    path = tmp_path / "state.npz"
    path.write_bytes(b"not a zip")
    with pytest.raises(FormatError, match="not a file of states"):
        stream.load(path)
    np.savez(path, h=np.zeros(3))
    with pytest.raises(FormatError, match="not a file of states"):
        stream.load(path)
    save_states(path, "state/h", np.array([object()]))
    with pytest.raises(FormatError, match="not a file of states"):
        stream.load(path)
    save_states(path, "state/h", np.zeros((1, B, H + 1), np.float32))
    with pytest.raises(SpecError, match=r"must be float32 \[1, batch, 4\]"):
        stream.load(path)
    save_states(path, "state/other", np.zeros((1, B, H), np.float32))
    with pytest.raises(SpecError, match="'other' is not a state"):
        stream.load(path)
    with pytest.raises(FileNotFoundError):
        stream.load(tmp_path / "missing.npz")


def test_states_that_do_not_come_back_are_left_out(tmp_path: Path) -> None:
    """In another order, of another direction, through another number: then no pair is found."""
    constants = {"s0": [0], "s1": [1], "s2": [2], "zero": [0], "one": [1]}
    integers = [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items()]
    grus = [
        node("GRU", ["x", "W0", "R0", "", "", "h0"], ["Y0", "last0"], hidden_size=H),
        node("GRU", ["x", "W0", "R0", "", "", "h1"], ["Y1", "last1"], hidden_size=H),
    ]
    slices = [
        node("Slice", ["h", "s0", "s1", "zero"], ["h0"]),
        node("Slice", ["h", "s1", "s2", "zero"], ["h1"]),
    ]
    in_order = node("Concat", ["last0", "last1"], ["h_out"], axis=0)
    cases = {
        "right": [*slices, *grus, in_order],
        "joined the other way round": [*slices, *grus, node("Concat", ["last1", "last0"], ["h_out"], axis=0)],
        "one slice twice": [
            slices[0],
            node("Slice", ["h", "s0", "s1", "zero"], ["h1"]),
            *grus,
            in_order,
        ],
        "a rounding": [
            node("Cast", ["h"], ["i"], to=TensorProto.INT32),
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Split", ["f"], ["h0", "h1"], axis=0),
            *grus,
            in_order,
        ],
        "right, split": [node("Split", ["h"], ["h0", "h1"], axis=0), *grus, in_order],
        "split, swapped": [node("Split", ["h"], ["h1", "h0"], axis=0), *grus, in_order],
    }
    for name, nodes in cases.items():
        path = save(
            tmp_path / "m.onnx",
            nodes,
            [*weights(), *integers],
            {"x": ["T", B, I], "h": [2, B, H]},
            {"Y0": ["T", 1, B, H], "Y1": ["T", 1, B, H], "h_out": [2, B, H]},
        )
        model = onegru.load(path)
        if name.startswith("right"):
            assert model.stream().pairs == {"h_out": "h"}, name
            continue
        with pytest.raises(SpecError, match="no state inputs found"):
            model.stream()


def test_a_direction_that_cannot_be_streamed_is_not_found(tmp_path: Path) -> None:
    nodes = [
        node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", "last"], hidden_size=H, direction="bidirectional"),
        node("Identity", ["last"], ["h_out"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        weights(2),
        {"x": ["T", B, I], "h": [2, B, H]},
        {"Y": ["T", 2, B, H], "h_out": [2, B, H]},
    )
    with pytest.raises(SpecError, match="no state inputs found"):
        onegru.load(path).stream()
    with pytest.warns(SpecWarning, match="GRU node 'Y' is bidirectional: its second direction runs"):
        assert onegru.load(path).stream({"h_out": "h"}).pairs == {"h_out": "h"}


def test_two_outputs_that_are_the_state(tmp_path: Path) -> None:
    """They hold the same numbers: the node's own is used, or else the first; neither shares memory."""
    for last, pairs in (("h_out", {"h_out": "h"}), ("last", {"copy": "h"})):
        nodes = [
            node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", last], hidden_size=H),
            node("Identity", [last], ["copy"]),
            *([node("Identity", [last], ["h_out"])] if last == "last" else []),
        ]
        path = save(
            tmp_path / "m.onnx",
            nodes,
            weights(),
            {"x": ["T", B, I], "h": [1, B, H]},
            {"Y": ["T", 1, B, H], "copy": [1, B, H], "h_out": [1, B, H]},
        )
        stream = onegru.load(path).stream()
        assert stream.pairs == pairs
        x = np.ones((1, B, I), np.float32)
        (other,) = {"copy", "h_out"} - pairs.keys()
        results = stream.step({"x": x})
        kept = stream.state["h"]
        results[other][...] = np.nan
        np.testing.assert_array_equal(stream.state["h"], kept)


def test_a_state_that_two_grus_start_from_is_not_found(tmp_path: Path) -> None:
    nodes = [
        node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", "h_out"], hidden_size=H),
        node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y1", "h_out1"], hidden_size=H),
    ]
    for order in (nodes, nodes[::-1]):
        path = save(
            tmp_path / "m.onnx",
            order,
            weights(),
            {"x": ["T", B, I], "h": [1, B, H]},
            {"Y": ["T", 1, B, H], "h_out": [1, B, H], "Y1": ["T", 1, B, H]},
        )
        with pytest.raises(SpecError, match="no state inputs found"):
            onegru.load(path).stream()


def batched(path: Path) -> Path:
    """Two GRUs whose states are one input [2, batch, H], and the mean of what comes out."""
    nodes, tensors = _stacked_parts()
    return save(
        path,
        nodes,
        tensors,
        {"x": ["T", "batch", I], "h": [2, "batch", H]},
        {"Y1": ["T", 1, "batch", H], "h_out": [2, "batch", H]},
    )


@pytest.mark.parametrize("make", [one_gru, batched])
def test_some_rows_take_a_step(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """As each row would by itself; the others stay."""
    model = onegru.load(make(tmp_path / "m.onnx"))
    (taker,) = model.stream().pairs.values()
    together = model.stream(dims={"batch": 4})
    separate = [model.stream() for _ in range(4)]
    rng = np.random.default_rng(5)
    for rows in ([1], [3, 0], (), np.array([2, 1, 0], np.uint8), None, [0, 1, 2, 3], [2]):
        count = range(4) if rows is None else rows
        x = rng.standard_normal((3, len(count), I)).astype(np.float32)
        results = together.step({"x": x}, rows=rows)
        for place, row in enumerate(count):
            wanted = separate[int(row)].step({"x": x[:, [place]]})
            for name, array in wanted.items():
                assert np.array_equal(results[name][:, :, [place]], array)
        for row, stream in enumerate(separate):
            state = stream.state.get(taker, 0)
            assert np.array_equal(
                together.state[taker][:, [row]], np.broadcast_to(state, (len(together.state[taker]), 1, H))
            )


def test_rows_that_are_refused(tmp_path: Path) -> None:
    model = onegru.load(one_gru(tmp_path / "m.onnx"))
    x = np.ones((T, 1, I), np.float32)
    stream = model.stream()
    with pytest.raises(SpecError, match="the inputs do not determine its sizes"):
        stream.step({"x": x}, rows=[0])
    stream.step({"x": np.ones((T, 3, I), np.float32)})
    before = stream.state
    wrong: tuple[tuple[Any, str], ...] = (
        ([3], "rows: 3; must be in 0…2"),
        ([-1], "rows: -1; must be in 0…2"),
        ([1, 1], "rows: an index is repeated; each must appear at most once"),
        (1, "rows: rank 0"),
        ([0.5], "rows: type float64"),
        ("ab", "rows: "),
        ([0, 1], "batch_size"),  # x has one row
    )
    for rows, message in wrong:
        with pytest.raises(SpecError, match=message):
            stream.step({"x": x}, rows=rows)
    assert np.array_equal(stream.state["h"], before["h"])
    fixed = onegru.load(stacked(tmp_path / "fixed.onnx")).stream()
    with pytest.raises(
        SpecError, match=r"rows: must be None: the batch axis of state 'h', .2, 2, 4., is unknown"
    ):
        fixed.step({"x": x}, rows=[0])
    path = save(
        tmp_path / "m.onnx",
        [node("GRU", ["x", "W0", "R0", "", "", "h"], ["Y", "h_out"], hidden_size=H)],
        weights(),
        {"x": ["T", B, I], "h": [1, B, H]},
        {"Y": ["T", 1, B, H], "h_out": [1, B, H]},
    )
    with pytest.raises(SpecError, match="rows: must be None: the batch size of state 'h' is fixed at 2"):
        onegru.load(path).stream().step({"x": x}, rows=[0])


def test_rows_of_an_ir_and_of_batch_first(tmp_path: Path) -> None:
    W, R = (RNG.standard_normal((1, 3 * H, size)).astype(np.float32) for size in (I, H))
    for name, options in (("m.onnx", {"layout": 1}), ("m.xml", {"sequence_lens": False})):
        onegru.save_layers(onegru.GRU(W, R), tmp_path / name, **options)
        stream = onegru.load(tmp_path / name).stream()
        x = RNG.standard_normal((3, 2, I)).astype(np.float32)
        whole = stream.step({"X": x})["Y"]
        (taker,) = stream.pairs.values()
        stream.state = {taker: np.zeros((3, 1, H), np.float32)}
        assert np.array_equal(stream.step({"X": x[1:2]}, rows=[1])["Y"], whole[1:2])
        assert [bool(row.any()) for row in stream.state[taker]] == [False, True, False]


def test_an_ir_streams(tmp_path: Path) -> None:
    """Of an IR, states are found where they touch the layer."""
    rng = np.random.default_rng(0)
    W, R, bias = (rng.standard_normal(n).astype(np.float32) for n in ((1, 12, I), (1, 12, H), (1, 24)))
    layer = onegru.GRU(W, R, bias)
    onegru.save_layers(layer, tmp_path / "m.xml", sequence_lens=False)
    model = onegru.load(tmp_path / "m.xml")
    stream = model.stream()
    assert stream.pairs == {"Ho": "initial_hidden_state"}
    x = rng.standard_normal((T, 1, I)).astype(np.float32)
    stream.state = {"initial_hidden_state": np.zeros((1, 1, H), np.float32)}
    parts = [stream.step({"X": x[t : t + 1].swapaxes(0, 1)})["Y"] for t in range(T)]
    np.testing.assert_allclose(np.concatenate(parts, axis=2)[0, 0], layer(x)[0][:, 0, 0], atol=1e-6)


def test_two_results_of_an_ir_that_are_one_value(tmp_path: Path) -> None:
    """The first is the state; what is done to the other does not reach it."""
    ov = pytest.importorskip("openvino")
    op = ov.opset8
    rng = np.random.default_rng(0)
    W, R, bias = (rng.standard_normal(s).astype(np.float32) for s in ((1, 12, I), (1, 12, H), (1, 12)))
    x, h = (
        op.parameter(shape, np.float32, name=name) for name, shape in (("x", [1, T, I]), ("h", [1, 1, H]))
    )
    lengths = op.constant(np.array([T], np.int32))
    gru = op.gru_sequence(x, h, lengths, op.constant(W), op.constant(R), op.constant(bias), H, "forward")
    results = [op.result(gru.output(1)), op.result(gru.output(1))]
    for result, name in zip(results, ("h_out", "embedding"), strict=True):
        result.set_friendly_name(name)
    ov.save_model(ov.Model(results, [x, h]), tmp_path / "m.xml", compress_to_fp16=False)
    stream = onegru.load(tmp_path / "m.xml").stream()
    assert stream.pairs == {"h_out": "h"}
    embedding = stream.step({"x": np.ones((1, T, I), np.float32)})["embedding"]
    np.testing.assert_array_equal(stream.state["h"], embedding)
    embedding[...] = np.nan
    assert np.isfinite(stream.state["h"]).all()


@pytest.mark.parametrize("count", [1, 2])
def test_cells_give_their_states_as_outputs(count: int, tmp_path: Path) -> None:
    """Each is found, given, and carried; what a caller does to an output does not reach the state."""
    layers = make_stack(count) if count > 1 else make_gru()
    onegru.save_layers(layers, tmp_path / "cell.xml", cell=True)
    X = RNG.standard_normal((T, B, 5)).astype(np.float32)
    wanted = np.asarray(layers(X)[0]).reshape(T, B, -1)
    stream = onegru.load(tmp_path / "cell.xml").stream()
    assert len(stream.pairs) == count
    for t in range(T):
        rows = None if t % 2 == 0 else [1, 0]
        outputs = stream.step({"X": X[t] if rows is None else X[t, rows]}, rows=rows)
        assert outputs.keys() == stream.pairs.keys() and stream.state.keys() == {*stream.pairs.values()}
        last = list(outputs.values())[-1]
        np.testing.assert_array_equal(last, wanted[t] if rows is None else wanted[t, rows])
        for array in outputs.values():
            array[...] = 7
