"""GRU layers in the bodies of IRs: TensorIterator and If."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

import onegru
from onegru.runtimes import openvino_replace as _openvino_replace
from tests.support.files.ir_files import refuse
from tests.support.files.openvino_models import B, H, I, T, check, draw, save, sequence


def test_bodies_without_grus_go_along(tmp_path: Path) -> None:
    """An If, whose bodies have constants of their own, before a GRU."""
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    flag = ops.parameter([], bool, name="flag")
    bodies = []
    for factor in (0.25, -0.5):
        inner = ops.parameter([-1, -1, I], np.float32)
        scaled = ops.result(ops.multiply(inner, ops.constant(np.full((1, 1, I), factor, np.float32))))
        bodies.append((inner, scaled, openvino.Model([scaled], [inner], "body")))
    branch = ops.if_op(flag)
    branch.set_then_body(bodies[0][2])
    branch.set_else_body(bodies[1][2])
    branch.set_input(x.output(0), bodies[0][0], bodies[1][0])
    chosen = branch.set_output(bodies[0][1], bodies[1][1])
    gru = sequence(chosen, I)
    path = save(tmp_path / "if.xml", {"out": gru.output(0)}, [x, flag])
    for value in (True, False):
        check(path, {"x": draw(B, T, I), "flag": np.array(value)}, grus=1)


def test_grus_in_bodies(tmp_path: Path) -> None:
    x = ops.parameter([-1, 4, I], np.float32, name="x")
    h = ops.parameter([-1, H], np.float32, name="h")
    inner_x, inner_h = (ops.parameter(shape, np.float32) for shape in ([-1, 1, I], [-1, H]))
    step = ops.squeeze(inner_x, ops.constant(np.array([1])))
    arrays: dict[str, Any] = {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H)}
    cell = ops.gru_cell(step, inner_h, *map(ops.constant, arrays.values()), H)
    loop = ops.tensor_iterator()
    other = ops.negative(cell)  # or the loop would be a sequence
    body = openvino.Model([ops.result(cell), ops.result(other)], [inner_x, inner_h], "body")
    loop.set_body(body)
    loop.set_sliced_input(inner_x, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(inner_h, h.output(0), cell.output(0))
    last, more = (loop.get_iter_value(value.output(0), -1) for value in (cell, other))
    path = save(tmp_path / "loop.xml", {"out": last, "more": more}, [x, h])
    model = onegru.load(path)
    (gru,) = model.gru_nodes
    assert gru.bodies[0].startswith("a body of TensorIterator layer")
    assert gru.layer is not None and gru.layer.hidden_size == H
    X, state = draw(B, 4, I), draw(B, H)
    wanted = state
    for t in range(4):
        wanted = onegru.gru_cell(X[:, t], wanted, **arrays, hidden_size=H)
    for _ in range(3):  # as it is, and made for these sizes
        np.testing.assert_array_equal(model.run({"x": X, "h": state})["out"], wanted)
    (seen,) = model.trace({"x": X, "h": state})
    np.testing.assert_array_equal(seen["Ho"], wanted)
    np.testing.assert_array_equal(seen["X"], X[:, 3])
    trace = model.trace(
        {"x": X, "h": state}, node=0
    )  # of all iterations, as each goes on from the one before
    layer = gru.layer.trace(X.swapaxes(0, 1), state[None])
    for name in ("z", "r", "n", "h", "initial_h", "lengths"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(layer, name))
    reference = onegru.load(path, engine="reference").run({"x": X, "h": state})["out"]
    np.testing.assert_allclose(reference, wanted, atol=1e-6)


def test_an_augru_cell_in_a_tensor_iterator(tmp_path: Path) -> None:
    """Which no runtime reads from a file, in a loop that is no sequence."""
    x, a = ops.parameter([-1, 4, I], np.float32, name="x"), ops.parameter([-1, 4, 1], np.float32, name="a")
    h = ops.parameter([-1, H], np.float32, name="h")
    inner_x, inner_a = (ops.parameter([-1, 1, size], np.float32) for size in (I, 1))
    inner_h = ops.parameter([-1, H], np.float32)
    axis = ops.constant(np.array([1]))
    arrays: dict[str, Any] = {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H)}
    (augru,) = (c for c in onegru.openvino.extensions() if c.operator.name == "AUGRUCell")
    weights = [ops.constant(array) for array in arrays.values()]
    inputs = [ops.squeeze(inner_x, axis), inner_h, *weights, ops.squeeze(inner_a, axis)]
    cell = augru(inputs, hidden_size=H)
    loop = ops.tensor_iterator()
    other = ops.negative(cell)
    results = [ops.result(cell), ops.result(other)]
    loop.set_body(openvino.Model(results, [inner_x, inner_h, inner_a], "body"))
    loop.set_sliced_input(inner_x, x.output(0), 0, 1, 1, -1, 1)
    loop.set_sliced_input(inner_a, a.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(inner_h, h.output(0), cell.output(0))
    last, more = (loop.get_iter_value(value.output(0), -1) for value in (cell, other))
    path = save(tmp_path / "loop.xml", {"out": last, "more": more}, [x, h, a])
    assert 'type="AUGRUCell"' in path.read_text()
    model = onegru.load(path)
    X, state, A = draw(B, 4, I), draw(B, H), np.abs(draw(B, 4, 1))
    wanted = state
    for t in range(4):
        wanted = onegru.augru_cell(X[:, t], wanted, **arrays, A=A[:, t], hidden_size=H)
    for _ in range(3):
        np.testing.assert_array_equal(model.run({"x": X, "h": state, "a": A})["out"], wanted)
    assert [gru.operator for gru in model.gru_nodes] == ["AUGRUCell"]


def test_what_traces_and_references_take_goes_with_them(tmp_path: Path) -> None:
    test_grus_in_bodies(tmp_path)
    model = onegru.load(tmp_path / "loop.xml")
    feeds = {"x": draw(B, 4, I), "h": draw(B, H)}
    gc.collect()
    before = len(_openvino_replace._states)
    for _ in range(4):
        model.trace(feeds)
        onegru.load(tmp_path / "loop.xml", engine="reference")
    gc.collect()
    assert len(_openvino_replace._states) == before


def test_constants_in_bodies_are_checked(tmp_path: Path) -> None:
    test_bodies_without_grus_go_along(tmp_path)
    path = tmp_path / "if.xml"
    text = path.read_text()
    inner = text.index("<then_body>")
    at = re.compile(r'offset="\d+"').search(text, inner)
    assert at is not None
    path.write_text(text[: at.start()] + 'offset="99999999"' + text[at.end() :])
    refuse(path, "Const layer '.*': ends at byte 100000015 of its .bin")
