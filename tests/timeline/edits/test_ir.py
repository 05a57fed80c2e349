"""IRs: the same of OpenVINO's layers, held against OpenVINO's results in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import SpecError

ov = pytest.importorskip("openvino")

I, H, T = 3, 4, 6
Make = Callable[[Any, Any], Any]


def save(path: Path, make: Make) -> Path:
    """A GRU with its state outside, after what `make` does to x, [1, T, I]."""
    op, rng = ov.opset8, np.random.default_rng(0)
    W, R, bias = (rng.standard_normal(s).astype(np.float32) for s in ((1, 12, I), (1, 12, H), (1, 12)))
    x = op.parameter([1, -1, I], np.float32, name="x")
    h = op.parameter([1, 1, H], np.float32, name="h")
    lengths = op.gather(op.shape_of(x, "i32"), op.constant([1]), op.constant(0))
    gru = op.gru_sequence(make(op, x), h, lengths, *map(op.constant, (W, R, bias)), H, "forward")
    results = [op.result(gru.output(0)), op.result(gru.output(1))]
    for result, name in zip(results, ("y", "h_out"), strict=True):
        result.set_friendly_name(name)
    ov.save_model(ov.Model(results, [x, h]), path, compress_to_fp16=False)
    return path


def turned(op: Any, x: Any) -> Any:
    return op.reverse_sequence(x, op.gather(op.shape_of(x), op.constant([1]), op.constant(0)), 0, 1)


def sliced(op: Any, x: Any) -> Any:
    return op.strided_slice(
        x, *(op.constant(value) for value in ([0, -1, 0], [0, 0, 0], [1, -1, 1])), [1, 1, 1], [1, 1, 1]
    )


def conv(kernel: int) -> Make:
    def make(op: Any, x: Any) -> Any:
        rows = op.transpose(x, op.constant([0, 2, 1]))
        weights = np.random.default_rng(1).standard_normal((I, I, kernel)).astype(np.float32)
        y = op.convolution(rows, op.constant(weights), [1], [kernel - 1], [0], [1])
        return op.transpose(y, op.constant([0, 2, 1]))

    return make


def dense(op: Any, x: Any) -> Any:
    return op.swish(op.matmul(x, op.constant(np.eye(I, dtype=np.float32) * 0.7), False, True))


def batch_norm(opset: Any, along: tuple[int, ...]) -> Make:
    """Of features, or of steps; opset 1 takes the data after gamma and beta."""

    def make(op: Any, x: Any) -> Any:
        rng, size = np.random.default_rng(3), (I, T)[along == (0, 1, 2)]
        facts = [op.constant((rng.random(size) + 0.5).astype(np.float32)) for _ in range(4)]
        y = opset.batch_norm_inference(op.transpose(x, op.constant(along)), *facts, 1e-5)
        return op.transpose(y, op.constant(along))

    return make


def mean(axis: int) -> Make:
    return lambda op, x: op.subtract(x, op.reduce_mean(x, op.constant([axis]), True))


def largest(op: Any, x: Any, count: int, axis: int, output: int = 0) -> Any:
    """The largest elements along an axis, or their places."""
    return op.topk(x, op.constant(np.int64(count)), axis, "max", "value", "i64").output(output)


def one_hot(op: Any, x: Any) -> Any:
    place = op.squeeze(largest(op, x, 1, 2, 1), op.constant([2]))
    numbers = (op.constant(np.float32(number)) for number in (1, 0))
    return op.one_hot(place, op.constant(np.int64(I)), *numbers, -1)


def bag(op: Any, x: Any) -> Any:
    """Sums of rows of a table, as the largest two features say."""
    places = op.reshape(largest(op, x, 2, 2, 1), op.constant([-1, 2]), False)
    table = np.random.default_rng(4).standard_normal((I, I)).astype(np.float32)
    return op.unsqueeze(op.embedding_bag_packed_sum(op.constant(table), places), op.constant([0]))


def by_rows(op: Any, x: Any) -> Any:
    """The features of each step in descending order, by a Gather with rows in common."""
    rows, places = (op.reshape(item, op.constant([-1, I]), False) for item in (x, largest(op, x, I, 2, 1)))
    return op.unsqueeze(op.gather(rows, places, op.constant(np.int64(1)), 1), op.constant([0]))


def scattered(axis: int) -> Make:
    def make(op: Any, x: Any) -> Any:
        first, last = ([0, 1, 0], [0, 2, 0]) if axis == 1 else ([0, 0, 1], [0, 0, 2])
        mask = [int(other != axis) for other in range(3)]
        part = op.strided_slice(x, *map(op.constant, (first, last, [1, 1, 1])), mask, mask)
        return op.scatter_update(x, op.constant(np.array([0], np.int64)), part, op.constant(np.int64(axis)))

    return make


def channel_slopes(op: Any, x: Any) -> Any:
    slopes, along = op.constant(np.array([0.1, 0.5, -0.3], np.float32)), op.constant([0, 2, 1])
    return op.transpose(op.prelu(op.transpose(x, along), slopes), along)


def attention(axes: list[int]) -> Make:
    """Over the features of each step, or over all steps."""

    def make(op: Any, x: Any) -> Any:
        y = op.unsqueeze(x, op.constant(axes)) if axes else x
        y = ov.opset13.scaled_dot_product_attention(y, y, y)
        return op.squeeze(y, op.constant(axes)) if axes else y

    return make


def pooled(op: Any, x: Any) -> Any:
    """The largest of three bands, as a pooling whose places nobody reads."""
    y = op.unsqueeze(x, op.constant([1]))
    y = op.max_pool(y, [1, 1], [1, 1], [0, 1], [0, 1], [1, 3]).output(0)
    return op.squeeze(y, op.constant([1]))


def quantized(op: Any, x: Any) -> Any:
    ends = (op.constant(np.float32(end)) for end in (-2, 2, -2, 2))
    return op.fake_quantize(x, *ends, 16)


def resized(op: Any, x: Any) -> Any:
    """Twice as many bands; the pooling leaves half, by scales of all axes."""
    y, scales = op.unsqueeze(x, op.constant([1])), op.constant(np.array([1, 1, 1, 2], np.float32))
    y = ov.opset11.interpolate(y, scales, "nearest", "scales")
    return op.squeeze(op.avg_pool(y, [1, 2], [0, 0], [0, 0], [1, 2], False), op.constant([1]))


SINGLE = np.array([0.1], np.float32)

CASES: dict[str, tuple[Make, str]] = {
    "features in descending order": (lambda op, x: largest(op, x, I, 2), ""),
    "less the largest step": (lambda op, x: op.subtract(x, largest(op, x, 1, 1)), "TopK node 'TopK_"),
    "the largest as one-hot": (one_hot, ""),
    "a bag of rows": (bag, ""),
    "features by rows": (by_rows, ""),
    "features by their places": (
        lambda op, x: op.gather_elements(x, largest(op, x, I, 2, 1), 2),
        "",
    ),
    "written by their places": (
        lambda op, x: op.scatter_elements_update(
            op.tanh(x), largest(op, x, I, 2, 1), x, op.constant(np.int64(2))
        ),
        "",
    ),
    "a written feature": (scattered(2), ""),
    "a written step": (scattered(1), "ScatterUpdate node 'ScatterUpdate_"),
    "rolled features": (lambda op, x: op.roll(x, op.constant([1]), op.constant([2])), ""),
    "rolled steps": (lambda op, x: op.roll(x, op.constant([1]), op.constant([-2])), "Roll node 'Roll_"),
    "shuffled features": (lambda op, x: op.shuffle_channels(x, 2, I), ""),
    "classes": (
        lambda op, x: op.convert(op.bucketize(x, op.constant(np.array([-0.5, 0.5], np.float32))), "f32"),
        "",
    ),
    "slopes of channels": (channel_slopes, ""),
    "attention over features": (attention([3]), ""),
    "attention over steps": (attention([]), "ScaledDotProductAttention node"),
    "a pooling of bands": (pooled, ""),
    "a quantizer's grid": (quantized, ""),
    "twice as many bands": (resized, ""),
    "selu": (lambda op, x: op.selu(x, op.constant(SINGLE), op.constant(SINGLE)), ""),
    "a local norm of features": (lambda op, x: op.lrn(x, op.constant([2]), 1e-2, 0.7, 1, 3), ""),
    "a local norm of steps": (lambda op, x: op.lrn(x, op.constant([1]), 1, 0.7, 1, 3), "LRN node 'LRN_"),
    "the type of another": (lambda op, x: op.convert_like(x, op.constant(SINGLE)), ""),
    "nothing": (lambda op, x: x, ""),
    "dense": (dense, ""),
    "a kernel of 1": (conv(1), ""),
    "the mean of features": (mean(2), ""),
    "normalised features": (batch_norm(ov.opset5, (0, 2, 1)), ""),
    "normalised features of opset 1": (batch_norm(ov.opset1, (0, 2, 1)), ""),
    "softmax of features": (lambda op, x: op.softmax(x, 2), ""),
    "a causal convolution": (conv(3), "Convolution node 'Convolution_"),
    "the mean of time": (mean(1), "ReduceMean node 'ReduceMean_"),
    "softmax of time": (lambda op, x: op.softmax(x, 1), "Softmax node 'Softmax_"),
    "ReverseSequence": (turned, "ReverseSequence node 'ReverseSequence_"),
    "StridedSlice": (sliced, "Slice node 'StridedSlice_"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_ir_in_chunks(name: str, tmp_path: Path) -> None:
    make, words = CASES[name]
    model = onegru.load(save(tmp_path / "m.xml", make))
    said = ""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            model.stream()
        except SpecError as error:
            said = str(error)
        stream = model.stream({"h_out": "h"})  # warns instead
    said = said or "".join(str(item.message) for item in seen)
    assert words in said if words else not said
    x = np.random.default_rng(2).standard_normal((1, T, I)).astype(np.float32)
    whole = model.run({"x": x, "h": np.zeros((1, 1, H), np.float32)})["y"]
    parts = [stream.step({"x": x[:, begin : begin + 2]})["y"] for begin in range(0, T, 2)]
    assert np.allclose(np.concatenate(parts, axis=2), whole, atol=1e-5) == (not words)


def test_an_ir_whose_names_have_colons(tmp_path: Path) -> None:
    """Which parsers of XML with namespaces refuse."""
    path = save(tmp_path / "m.xml", dense)
    path.write_text(path.read_text().replace("<rt_info>", '<rt_info><a:b value="1"/>', 1))
    assert onegru.load(path).stream().pairs == {"h_out": "h"}


def stacked(path: Path, order: tuple[int, int], direction: str = "forward") -> Path:
    """Two GRUs with their states in one input and one output, [2, 1, H], whose parts are in this order."""
    op, rng = ov.opset8, np.random.default_rng(0)
    x, h = op.parameter([1, -1, H], np.float32, name="x"), op.parameter([2, 1, H], np.float32, name="mem")
    lengths = op.gather(op.shape_of(x, "i32"), op.constant([1]), op.constant(0))
    y, last = x, []
    for layer in range(2):
        weights = [rng.standard_normal(s).astype(np.float32) for s in ((1, 12, H), (1, 12, H), (1, 12))]
        start = op.transpose(op.gather(h, op.constant([layer]), op.constant(0)), op.constant([1, 0, 2]))
        gru = op.gru_sequence(y, start, lengths, *map(op.constant, weights), H, direction)
        y = op.squeeze(gru.output(0), op.constant([1]))
        last.append(op.transpose(gru.output(1), op.constant([1, 0, 2])))
    results = [op.result(y), op.result(op.concat([last[place] for place in order], 0))]
    for result, name in zip(results, ("y", "after"), strict=True):
        result.set_friendly_name(name)
    ov.save_model(ov.Model(results, [x, h]), path, compress_to_fp16=False)
    return path


def test_states_in_one_input_are_proved(tmp_path: Path) -> None:
    model = onegru.load(stacked(tmp_path / "m.xml", (0, 1)))
    x = np.random.default_rng(1).standard_normal((1, T, H)).astype(np.float32)
    whole = model.run({"x": x, "mem": np.zeros((2, 1, H), np.float32)})
    stream = model.stream()
    parts = [stream.step({"x": x[:, [t]]}) for t in range(T)]
    np.testing.assert_array_equal(np.concatenate([part["y"] for part in parts], 1), whole["y"])


@pytest.mark.parametrize(("order", "direction"), [((1, 0), "forward"), ((0, 1), "reverse")])
def test_states_that_come_back_elsewhere_are_none(
    tmp_path: Path, order: tuple[int, int], direction: str
) -> None:
    model = onegru.load(stacked(tmp_path / "m.xml", order, direction))
    with pytest.raises(SpecError, match="state: no state inputs found"):
        model.stream()


def summed_after(path: Path, make: Make, axis: int, steps: int = -1) -> Path:
    """A GRU, then `make`, then a sum over the later steps, along this axis."""
    op, rng = ov.opset8, np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype(np.float32) for s in ((1, 12, I), (1, 12, H), (1, 12))]
    x = op.parameter([1, steps, I], np.float32, name="x")
    lengths = op.gather(op.shape_of(x, "i32"), op.constant([1]), op.constant(0))
    zeros = op.constant(np.zeros((1, 1, H), np.float32))
    gru = op.gru_sequence(x, zeros, lengths, *map(op.constant, weights), H, "forward")
    y = make(op, op.squeeze(gru.output(0), op.constant([1])))
    result = op.result(y if axis < 0 else op.cum_sum(y, op.constant(axis), reverse=True))
    result.set_friendly_name("y")
    x.output(0).get_tensor().set_names({"x"})
    ov.save_model(ov.Model([result], [x]), path, compress_to_fp16=False)
    return path


def normalized(op: Any, y: Any) -> Any:
    return ov.opset2.mvn(y, across_channels=True, normalize_variance=True, eps=1e-5)


ONE = np.ones(1, np.float32)

AFTER_GRU: dict[str, tuple[Make, int]] = {
    "MVN of opset 2": (normalized, -1),
    "a power that adds axes": (
        lambda op, y: op.power(y, op.constant(np.full((1, 1, 1, 1), 2.0, np.float32))),
        2,
    ),
    "a product with a vector": (
        lambda op, y: op.matmul(
            op.unsqueeze(y, op.constant([3])), op.constant(np.ones(1, np.float32)), False, False
        ),
        1,
    ),
    # As many slopes as channels lie along axis 1, which is time here, if a chunk has as many steps.
    "slopes of the last axis": (
        lambda op, y: op.prelu(y, op.constant(np.arange(H, dtype=np.float32))),
        -1,
    ),
    "LogSoftmax over steps": (lambda op, y: op.log_softmax(y, 1), -1),
}


@pytest.mark.parametrize("name", AFTER_GRU)
def test_what_hides_time_is_refused(name: str, tmp_path: Path) -> None:
    make, axis = AFTER_GRU[name]
    path = summed_after(tmp_path / "m.xml", make, axis)
    if name.startswith("LogSoftmax"):  # whose default is 1
        path.write_text(path.read_text().replace('<data axis="1" />', "").replace('<data axis="1"/>', ""))
    with pytest.raises(SpecError, match="cannot run in chunks"):
        onegru.make_streaming(path, tmp_path / "s.xml", check=False)


def test_a_fixed_number_of_steps_is_opened(tmp_path: Path) -> None:
    path = summed_after(tmp_path / "m.xml", dense_of_h, -1, steps=T)
    onegru.make_streaming(path, tmp_path / "s.xml")
    x = np.random.default_rng(2).standard_normal((1, T, I)).astype(np.float32)
    whole, stream = onegru.load(path).run({"x": x})["y"], onegru.load(tmp_path / "s.xml").stream()
    parts = [stream.step({"x": x[:, begin:end]})["y"] for begin, end in ((0, 1), (1, 4), (4, T))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)


RANGES: dict[str, tuple[Any, Any, str]] = {  # the first number, the step, the type of all as opset 4 says it
    "opset 1": (np.int64(1), np.int64(1), ""),
    "opset 4": (np.int64(1), np.int64(1), "i64"),
    "a step of another type": (np.int64(1), np.int32(1), "i64"),
    "a first number of another type": (np.int32(1), np.int32(1), "i64"),
    "numbers of fewer bits": (np.int64(1), np.int32(1), "i32"),
    "float32 with integers": (np.float32(1), np.int32(1), "f32"),
}


def running_mean(first: Any, step: Any, word: str) -> Make:
    def make(op: Any, y: Any) -> Any:
        count = op.squeeze(op.gather(op.shape_of(y), op.constant([1]), op.constant(0)), op.constant([0]))
        ends = op.constant(first), op.add(count, op.constant(np.int64(1))), op.constant(step)
        numbers = ov.opset13.range(*ends, word) if word else op.range(*ends)
        numbers = op.unsqueeze(op.convert(numbers, "f32"), op.constant([1]))
        return op.divide(op.cum_sum(y, op.constant(1)), numbers)

    return make


@pytest.mark.parametrize("name", RANGES)
def test_a_running_mean_counts_on(name: str, tmp_path: Path) -> None:
    path = summed_after(tmp_path / "m.xml", running_mean(*RANGES[name]), -1)
    onegru.make_streaming(path, tmp_path / "s.xml")
    x = np.random.default_rng(2).standard_normal((1, 17, I)).astype(np.float32)
    whole, stream = onegru.load(path).run({"x": x})["y"], onegru.load(tmp_path / "s.xml").stream()
    ends = ((0, 1), (1, 3), (3, 10), (10, 17))
    parts = [stream.step({"x": x[:, begin:end]})["y"] for begin, end in ends]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)
    assert [state.tolist() for state in stream.state.values() if state.dtype == np.int64] == [[17]]


@pytest.mark.parametrize(("first", "word"), [(1.0, "i64"), (np.int64(1), "f16")], ids=["cut off", "rounded"])
def test_numbers_of_steps_that_a_range_converts(first: Any, word: str, tmp_path: Path) -> None:
    """Fractions are cut off, and of 16 bits large numbers are rounded."""
    path = summed_after(tmp_path / "m.xml", running_mean(first, np.int64(1), word), -1)
    with pytest.raises(SpecError, match="cannot run in chunks"):
        onegru.make_streaming(path, tmp_path / "s.xml", check=False)


def test_a_state_of_rows_streams(tmp_path: Path) -> None:
    """Whose axis of directions is added after the input."""
    op, rng = ov.opset8, np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype(np.float32) for s in ((1, 12, I), (1, 12, H), (1, 12))]
    x, h = op.parameter([-1, -1, I], np.float32, name="x"), op.parameter([-1, H], np.float32, name="h")
    lengths = op.broadcast(*(op.gather(op.shape_of(x), op.constant([k]), op.constant(0)) for k in (1, 0)))
    gru = op.gru_sequence(
        x, op.unsqueeze(h, op.constant([1])), lengths, *map(op.constant, weights), H, "forward"
    )
    result = op.result(op.squeeze(gru.output(0), op.constant([1])))
    result.set_friendly_name("y")
    ov.save_model(ov.Model([result], [x, h]), tmp_path / "m.xml", compress_to_fp16=False)
    onegru.make_streaming(tmp_path / "m.xml", tmp_path / "s.xml")
    given = {"x": rng.standard_normal((2, T, I)), "h": rng.standard_normal((2, H))}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    whole = onegru.load(tmp_path / "m.xml").run(given)["y"]
    stream = onegru.load(tmp_path / "s.xml").stream()
    stream.state = {"h": given["h"]}
    parts = [stream.step({"x": given["x"][:, begin:end]})["y"] for begin, end in ((0, 1), (1, 4), (4, T))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)


def dense_of_h(op: Any, y: Any) -> Any:
    return op.tanh(op.matmul(y, op.constant(np.eye(H, dtype=np.float32)), False, True))


def test_the_norm_of_opset_1_streams(tmp_path: Path) -> None:
    path = save(tmp_path / "m.xml", batch_norm(ov.opset1, (0, 2, 1)))
    onegru.make_streaming(path, tmp_path / "s.xml")
    x = np.random.default_rng(2).standard_normal((1, T, I)).astype(np.float32)
    whole = onegru.load(path).run({"x": x, "h": np.zeros((1, 1, H), np.float32)})["y"]
    stream = onegru.load(tmp_path / "s.xml").stream()
    parts = [stream.step({"x": x[:, begin : begin + 2]})["y"] for begin in range(0, T, 2)]
    np.testing.assert_allclose(np.concatenate(parts, axis=2), whole, atol=1e-6)
