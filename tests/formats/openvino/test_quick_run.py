"""Runs on inputs of one set of sizes, which the native module checks and copies."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import onegru
from onegru import _native
from onegru.core.dtypes import Array
from onegru.formats.openvino.faults import kind_that_can_fail
from tests.support.decomposed.ir import constant
from tests.support.files.openvino_models import I, draw, save, sequence, small
from tests.support.machine.processes import run_python


class Subclass(np.ndarray[Any, Any]):
    pass


def general(model: onegru.Model, inputs: Mapping[str, object]) -> dict[str, Array]:
    assert model._run_whole is not None
    return model._named_outputs(model._run_whole(model._fed(inputs)))


def prepared(folder: Path, *feeds: dict[str, Array]) -> onegru.Model:
    model = onegru.load(small(folder))
    for feed in feeds * 2:
        model.run(feed)
    return model


def test_it_returns_the_bits_of_the_general_run(tmp_path: Path) -> None:
    feed = {"x": draw(3, 2, I)}
    model = prepared(tmp_path, feed)
    assert model._quick_run is not None
    for seed in range(5):
        feed = {"x": draw(3, 2, I, seed=seed)}
        found, expected = model._quick_run(feed), general(model, feed)
        assert found is not None and found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
            assert found[name].flags.owndata


def test_sizes_can_alternate(tmp_path: Path) -> None:
    feeds = [{"x": draw(3, 2, I)}, {"x": draw(1, 4, I)}]
    model = prepared(tmp_path, *feeds)
    assert model._quick_run is not None
    assert [model._quick_run(feed) is None for feed in feeds] == [True, False]
    for feed in feeds * 2:
        np.testing.assert_array_equal(model.run(feed)["out"], general(model, feed)["out"])


X = draw(3, 2, I)
DECLINED: dict[str, Any] = {
    "no dictionary": MappingProxyType({"x": X}),
    "no input": {},
    "another name": {"y": X},
    "one more": {"x": X, "y": X},
    "a list": {"x": X.tolist()},
    "another type": {"x": X.astype(np.float64)},
    "another byte order": {"x": X.astype(">f4")},
    "other sizes": {"x": X[:, :1]},
    "another rank": {"x": X[0]},
    "other strides": {"x": np.asfortranarray(X)},
    "a subclass": {"x": X.view(Subclass)},
    "a name that is no text": {1: X},
}


@pytest.mark.parametrize("what", DECLINED)
def test_it_declines(tmp_path: Path, what: str) -> None:
    model = prepared(tmp_path, {"x": X})
    assert model._quick_run is not None and model._quick_run({"x": X}) is not None
    assert model._quick_run(DECLINED[what]) is None


class Recorded:
    """A call with a function for the other runtime, and what becomes of it."""

    def __init__(self, run: Any, settle: Any = print) -> None:
        self.x, self.y = np.zeros(2, np.float32), np.zeros((2, 3), np.int16)
        self.lost: list[object] = []
        self.call = _native.SizedCall()
        ports = [("x", self.x)], [("y", self.y)]
        assert self.call.prepare(*ports, lambda: run(self), lambda: settle(self), self.lost)

    def __call__(self) -> Any:
        return self.call({"x": np.ones(2, np.float32)})


def write(recorded: Recorded) -> None:
    recorded.y[...] = recorded.x.sum()


def raise_error(recorded: Recorded) -> None:
    write(recorded)
    raise RuntimeError


def fail_in_a_node(recorded: Recorded) -> None:
    write(recorded)
    assert not _native.graph_fail("a message", True, 1)


def call_again(recorded: Recorded) -> None:
    assert recorded() is None
    assert not recorded.call.prepare([], [], print, print, [])
    write(recorded)


def test_a_call() -> None:
    assert _native.SizedCall()({}) is None
    np.testing.assert_array_equal(Recorded(write)()["y"], np.full((2, 3), 2, np.int16))
    np.testing.assert_array_equal(Recorded(call_again)()["y"], np.full((2, 3), 2, np.int16))


def test_an_unpickled_array_fits() -> None:
    x = pickle.loads(pickle.dumps(np.ones(2, np.float32)))
    assert Recorded(write).call({"x": x}) is not None


@pytest.mark.parametrize("run", [raise_error, fail_in_a_node])
def test_a_run_that_fails_is_left_to_the_caller(run: Any) -> None:
    recorded = Recorded(run)
    assert recorded() is None and recorded.lost == []
    assert _native.graph_fail("not watched", True, 2)


def test_an_output_that_was_not_written_is_settled() -> None:
    assert Recorded(lambda recorded: None, write)()["y"][0, 0] == 2
    assert Recorded(lambda recorded: None, raise_error)() is None
    recorded = Recorded(write)
    recorded.lost.append("a request")
    assert recorded() is None and recorded.y[0, 0] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, TypeError, RecursionError])
def test_an_exception_of_a_signal_handler_is_raised(error: type[BaseException]) -> None:
    def interrupt(recorded: Recorded) -> None:
        raise error

    with pytest.raises(error):
        Recorded(interrupt)()
    with pytest.raises(error):
        _native.run_watched(lambda: interrupt(None))  # type: ignore[arg-type]


def test_watches_can_be_nested() -> None:
    def outer() -> None:
        assert not _native.graph_fail("the first", True, 1)
        assert _native.run_watched(lambda: _native.graph_fail("within", True, 1)) == "within"
        assert _native.run_watched(lambda: None) == ""
        assert not _native.graph_fail("the second", True, 1)

    assert _native.run_watched(outer) == "the first"


def test_wrong_ports_are_refused() -> None:
    for port in (("x", [1.0]), (1, X), ("x", X.T)):
        with pytest.raises(ValueError, match="ports: must be pairs"):
            _native.SizedCall().prepare([port], [], print, print, [])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="lost: must be a list"):
        _native.SizedCall().prepare([], [], print, print, ())  # type: ignore[arg-type]


# ---- layers that can fail


def failing(folder: Path) -> Path:
    """A model whose ScatterUpdate fails in place, after an earlier layer has written the output."""
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    index = ops.parameter([1], np.int32, name="index")
    flat = ops.reshape(ops.relu(sequence(x, I).output(0)), constant(-1), False)
    ones = ops.constant(np.ones(1, np.float32))
    return save(
        folder / "failing.xml",
        {"out": ops.scatter_update(flat, index, ones, ops.constant(np.int64(0))).output(0)},
        [x, index],
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = onegru.get_num_threads()
    onegru.set_num_threads(1)
    yield
    onegru.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_errors_of_other_layers_are_raised_each_time(tmp_path: Path) -> None:
    model = onegru.load(failing(tmp_path))
    good, bad = ({"x": draw(1, 1, I), "index": np.array([index], np.int32)} for index in (0, 10**6))
    expected = model.run(good)["out"]
    for _ in range(4):
        np.testing.assert_array_equal(model.run(good)["out"], expected)
    for _ in range(3):
        with pytest.raises(onegru.FormatError):
            model.run(bad)
    np.testing.assert_array_equal(model.run(good)["out"], expected)


def test_a_model_can_be_deleted_after_an_error(tmp_path: Path) -> None:
    code = """
        import gc, sys
        import numpy as np, onegru
        onegru.set_num_threads(1)
        x = np.ones((1, 1, int(sys.argv[2])), np.float32)
        for _ in range(5):
            model = onegru.load(sys.argv[1])
            for index in (0, 0, 0, 10**6):
                try:
                    model.run({"x": x, "index": np.array([index], np.int32)})
                except onegru.FormatError:
                    print("refused")
            del model
            gc.collect()
    """
    assert run_python(code, failing(tmp_path), str(I)).stdout == "refused\n" * 5


@pytest.mark.parametrize(("indices", "is_safe"), [([0, -3], True), ([3], False), ([-4], False)])
def test_only_a_gather_within_bounds_cannot_fail(indices: list[int], is_safe: bool) -> None:
    x = ops.parameter([2, 3], np.float32)
    for axis in (np.int64(1), np.array([-1])):
        node = ops.gather(x, constant(*indices), ops.constant(axis))
        model = openvino.Model([ops.result(node)], [x], "test")
        assert kind_that_can_fail(model) == (None if is_safe else "Gather")


@pytest.mark.parametrize(
    ("steps", "index", "kind"), [(4, 0, None), (-1, 0, "TensorIterator"), (4, 9, "Gather")]
)
def test_a_loop_of_known_sizes_cannot_fail(steps: int, index: int, kind: str | None) -> None:
    x, x_t, h = (ops.parameter([size, 2, 3], np.float32) for size in (steps, 1, 1))
    h_t = ops.add(h, ops.gather(x_t, constant(index), ops.constant(np.int64(0))))
    loop = ops.tensor_iterator()
    loop.set_body(openvino.Model([state := ops.result(h_t)], [x_t, h], "body"))
    loop.set_sliced_input(x_t, x.output(0), 0, 1, 1, -1, 0)
    loop.set_merged_input(h, ops.constant(np.zeros((1, 2, 3), np.float32)).output(0), state.output(0))
    states = loop.get_concatenated_slices(state.output(0), 0, 1, 1, -1, 0)
    assert kind_that_can_fail(openvino.Model([ops.result(states)], [x], "test")) == kind


def loop_over_steps(steps: int, count: int, *, reads_rows: bool = True) -> tuple[Any, Any]:
    """Return x, and the states of a Loop that reads one step of x at a time, or all of x."""
    x, x_t, h = (ops.parameter([size, 2, 3], np.float32) for size in (steps, 1 if reads_rows else steps, 1))
    rows = x_t if reads_rows else ops.reduce_sum(x_t, constant(0), keep_dims=True)
    state, is_true = ops.result(ops.add(rows, h)), ops.constant(np.array(True))
    loop = ops.loop(ops.constant(np.int64(count)), is_true)
    loop.set_function(openvino.Model([state, ops.result(ops.constant(np.array(True)))], [x_t, h], "body"))
    loop.set_special_body_ports([-1, 1])
    if reads_rows:
        loop.set_sliced_input(x_t, x.output(0), 0, 1, 1, -1, 0)
    else:
        loop.set_invariant_input(x_t, x.output(0))
    loop.set_merged_input(h, ops.constant(np.zeros((1, 2, 3), np.float32)).output(0), state.output(0))
    return x, loop.get_concatenated_slices(state.output(0), 0, 1, 1, -1, 0)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("count", "reads_rows"), [(3, True), (2, True), (4, True), (4, False)])
def test_a_loop_with_enough_steps_cannot_fail(tmp_path: Path, count: int, *, reads_rows: bool) -> None:
    node, states = loop_over_steps(3, count, reads_rows=reads_rows)
    is_safe = count <= 3 or not reads_rows
    network = openvino.Model([ops.result(states)], [node], "test")
    assert kind_that_can_fail(network) == (None if is_safe else "Loop")
    model = onegru.load(save(tmp_path / "m.xml", {"out": states}, [node]))
    x = draw(3, 2, 3)
    rows = x if reads_rows else np.repeat(x.sum(0, keepdims=True), count, 0)
    for _ in range(3):
        if is_safe:
            (found,) = model.run({model.inputs[0].name: x}).values()
            np.testing.assert_allclose(found, np.cumsum(rows[:count], 0), 1e-6, 1e-6)
        else:
            with pytest.raises(onegru.FormatError):
                model.run({model.inputs[0].name: x})


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("size", [2, -1])
def test_an_if_of_known_sizes_cannot_fail(tmp_path: Path, size: int) -> None:
    x, is_true = ops.parameter([size, 3], np.float32, name="x"), ops.parameter([], np.bool_, name="is_true")
    branches = [ops.parameter([size, 3], np.float32) for _ in range(2)]
    results = [ops.result(apply(branch)) for apply, branch in zip((ops.exp, ops.abs), branches, strict=True)]
    node = ops.if_op(is_true)
    node.set_then_body(openvino.Model([results[0]], [branches[0]], "then"))
    node.set_else_body(openvino.Model([results[1]], [branches[1]], "else"))
    node.set_input(x.output(0), *branches)
    y = node.set_output(*results)
    network = openvino.Model([ops.result(y)], [x, is_true], "test")
    assert kind_that_can_fail(network) == (None if size > 0 else "If")
    is_large = ops.greater(y, ops.constant(np.float32(1))).output(0)
    path = save(tmp_path / "m.xml", {"y": ops.relu(y).output(0), "is_large": is_large}, [x, is_true])
    model, array = onegru.load(path), draw(2, 3)
    feed = {"x": array}
    for is_first in (True, False, True, False):
        feed["is_true"] = np.array(is_first)
        expected = np.exp(array) if is_first else np.abs(array)
        for found in (model.run(feed), model.run(feed)):
            np.testing.assert_allclose(found["y"], expected, 1e-6)
            np.testing.assert_array_equal(found["is_large"], expected > 1)
    assert model._quick_run is not None and model._quick_run(feed) is not None


@pytest.mark.parametrize(("steps", "count"), [(3, 0), (0, 3)])
def test_a_loop_over_nothing_is_refused(tmp_path: Path, steps: int, count: int) -> None:
    """OpenVINO would divide by zero, which ends the process."""
    x, states = loop_over_steps(steps, count)
    path = save(tmp_path / "m.xml", {"out": states}, [x])
    with pytest.raises(onegru.FormatError, match=r"Loop layer '.*': an empty array, which OpenVINO"):
        onegru.load(path)


@pytest.mark.parametrize("kind", ["Gather", "Broadcast"])
def test_an_empty_array_that_is_not_computed_in_runs(tmp_path: Path, kind: str) -> None:
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    y = ops.relu(sequence(x, I).output(0))
    if kind == "Gather":  # as of the free axes of a tensor product over all axes
        free = ops.gather(ops.shape_of(x), ops.constant(np.zeros(0, np.int64)), ops.constant(np.int64(0)))
        y = ops.reshape(
            ops.reduce_sum(y, constant(0, 1, 2, 3), keep_dims=True),
            ops.concat([free, constant(-1)], 0),
            False,
        )
    else:
        y = ops.add(
            y, ops.reduce_sum(ops.broadcast(ops.constant(np.float32(1)), constant(0, 5)), constant(0, 1))
        )
    model = onegru.load(save(tmp_path / "m.xml", {"out": y.output(0)}, [x]))
    for _ in range(3):
        assert model.run({"x": draw(3, 2, I)})["out"].size > 0


@pytest.mark.parametrize("kind", ["Gather", "Broadcast"])
def test_repeated_sizes_can_make_an_array_empty(tmp_path: Path, kind: str) -> None:
    """OpenVINO would divide by zero when it compiles the model for these sizes."""
    x = ops.parameter([-1, 4, 6], np.float32, name="x")
    rest = ops.slice(x, constant(2), constant(100), constant(1), constant(0))
    if kind == "Gather":
        y = ops.gather(rest, constant(0, 1), ops.constant(np.int64(1)))
    else:
        y = ops.broadcast(ops.unsqueeze(rest, constant(0)), ops.concat([constant(3), ops.shape_of(rest)], 0))
    model = onegru.load(save(tmp_path / "m.xml", {"out": y.output(0)}, [x]))
    for _ in range(4):
        assert model.run({"x": draw(2, 4, 6)})["out"].size == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_refuses_layers_that_can_fail(tmp_path: Path) -> None:
    code = """
        import os, sys
        import numpy as np, onegru
        onegru.set_num_threads(1)
        model = onegru.load(sys.argv[1])
        inputs = {"x": np.ones((1, 1, int(sys.argv[2])), np.float32), "index": np.zeros(1, np.int32)}
        for _ in range(3):
            model.run(inputs)
        if os.fork() == 0:
            try:
                model.run(inputs)
            except onegru.FormatError as error:
                print(error, flush=True)
            os._exit(0)  # OpenVINO's destructors would wait for its threads
        else:
            os.wait()
    """
    said = run_python(code, failing(tmp_path), str(I)).stdout
    assert "ScatterUpdate layer in a process that was forked" in said
