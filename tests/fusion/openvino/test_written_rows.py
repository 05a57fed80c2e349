"""Loops that write each state into an array, as OpenVINO reads those of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru

ov = pytest.importorskip("openvino")

T, B, I, H = 6, 2, 3, 4


def loop_model(*, last: bool = False, index: str = "i", steps: int = T, reads: bool = False) -> Any:
    """A GRU's loop that its condition ends, over x of [steps, B, I].

    Args:
        last: whether the array has one row, in which only the last state remains.
        index: the row that is written: "i", or the one after it.
        steps: how many steps x has.
        reads: whether an iteration reads the array.
    """
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return ops.constant(rng.standard_normal(shape).astype(np.float32))

    def number(value: int) -> Any:
        return ops.constant(np.array(value, np.int32))

    x, start = ops.parameter([steps, -1, I], np.float32), ops.parameter([-1, H], np.float32)
    x.output(0).set_names({"x"})
    start.output(0).set_names({"h"})
    i, h = ops.parameter([], np.int32), ops.parameter([-1, H], np.float32)
    array, whole = ops.parameter([-1, -1, -1], np.float32), ops.parameter([steps, -1, I], np.float32)
    row = ops.gather(whole, i, number(0))

    def gate(state: Any) -> Any:
        return ops.add(
            ops.matmul(row, weights(I, H), False, False), ops.matmul(state, weights(H, H), False, False)
        )

    z, r = ops.sigmoid(gate(h)), ops.sigmoid(gate(h))
    n = ops.tanh(gate(ops.multiply(r, h)))
    new = ops.add(ops.multiply(z, h), ops.multiply(ops.subtract(ops.constant(np.float32(1)), z), n))
    if reads:
        new = ops.add(new, ops.reduce_max(array, np.array([0, 1, 2], np.int64), False))
    rows = ops.slice(ops.shape_of(array), *(np.array([k], np.int64) for k in (0, 1, 1)))
    wide = ops.broadcast(array, ops.concat([rows, ops.shape_of(new)], 0))
    later = ops.add(i, number(1))
    place = number(0) if last else {"i": i, "later": ops.floor_mod(later, number(steps))}[index]
    place = ops.reshape(place, np.array([1], np.int64), False)
    written = ops.scatter_update(wide, place, ops.unsqueeze(new, number(0)), number(0))
    outputs = [later, new, written, ops.less(later, number(steps))]
    body = ov.Model(outputs, [i, h, array, whole])
    node = ops.loop(number(-1), ops.constant(np.array(True)))
    node.set_function(body)
    node.set_special_body_ports([-1, 3])
    zeros = ops.constant(np.zeros((1 if last else steps, 1, 1), np.float32))
    for inner, first, result in ((i, number(0), 0), (h, start, 1), (array, zeros, 2)):
        node.set_merged_input(inner, first.output(0), outputs[result].output(0))
    node.set_invariant_input(whole, x.output(0))
    found = node.get_iter_value(written.output(0), -1)
    result = ops.result(ops.transpose(found, np.array([1, 0, 2])))
    result.output(0).set_names({"y"})
    return ov.Model([result], [x, start])


def save(folder: Path, **how: Any) -> Path:
    ov.save_model(loop_model(**how), folder / "loop.xml", compress_to_fp16=False)
    return folder / "loop.xml"


@pytest.mark.parametrize("steps", [2, T])
@pytest.mark.parametrize("last", [False, True], ids=["all", "last"])
def test_rows_that_are_written_in_order_are_all_states(last: bool, steps: int, tmp_path: Path) -> None:
    source = save(tmp_path, last=last, steps=steps)
    rng = np.random.default_rng(1)
    given = {
        "x": rng.standard_normal((steps, B, I)).astype(np.float32),
        "h": rng.standard_normal((B, H)).astype(np.float32),
    }
    expected = ov.Core().compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)["y"]
    report = onegru.fuse(source, tmp_path / "fused.xml")
    assert [item.form for item in report.fused] == ["loop"] and not report.near_misses
    model = onegru.load(tmp_path / "fused.xml")
    assert ["Sequence" in node.operator for node in model.gru_nodes] == [True]
    found = model.run(given)["y"]
    np.testing.assert_allclose(found, expected, atol=2e-6)  # 4e-7 was measured


@pytest.mark.parametrize("how", [{"index": "later"}, {"reads": True}], ids=str)
def test_rows_in_another_order_or_that_are_read_stay(how: dict[str, Any], tmp_path: Path) -> None:
    model = onegru.load(save(tmp_path, **how), fuse=True)
    assert not any("Sequence" in node.operator for node in model.gru_nodes)
