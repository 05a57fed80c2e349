# ruff: noqa: E501 - messages and changes stand whole, on one line
"""IRs with other layers than GRUs that are broken, or would take more memory than there is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import onegru
from onegru.formats.openvino import network
from tests.support.files.ir_files import IrWriter, refuse
from tests.support.files.openvino_models import I, draw, save, small


def write_chain(folder: Path) -> Path:
    """x → Relu → MatMul with a constant → result, written by hand."""
    ir = IrWriter()
    x = ir.parameter("x", "float32", "?,4")
    relu = ir.layer("Relu", "relu", {}, [x])[0]
    transposes = {"transpose_a": "false", "transpose_b": "false"}
    product = ir.layer("MatMul", "product", transposes, [relu, ir.const("W", draw(4, 2))], names=["out"])[0]
    ir.result("result", product)
    return ir.write(folder / "chain.xml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace('type="Relu"', 'type="Mystery"'), "OpenVINO refuses it .*Mystery"),
        (lambda t: t.replace('type="Relu" version="opset1"', 'type="Relu" version="opset99"'), "OpenVINO refuses it .*Relu layer relu"),
        (lambda t: t.replace('type="Relu"', 'type="Assign"'), "Assign layer 'relu': version 'opset1'; must be opset3 or opset6"),
        (lambda t: t.replace('type="Relu" version="opset1"', 'type="Assign" version="opset6"'), "Assign layer 'relu': its <data> has no 'variable_id'"),
        (lambda t: t.replace('type="Relu"', 'type="Broadcast"'), "Broadcast layer 'relu': 1 input; must have at least 2"),
        (lambda t: t.replace('type="Relu" version="opset1"', 'type="Slice" version="opset8"'), "Slice layer 'relu': 1 input; must have at least 4"),
        (lambda t: t.replace('type="Relu"', 'type="ReadValue"'), "ReadValue layer 'relu': version 'opset1'; must be"),
        (lambda t: t.replace('shape="4, 2"', 'shape="2, 4"'), "OpenVINO refuses it .*Incompatible MatMul"),
        (lambda t: t.replace('offset="0"', 'offset="8"'), "Const layer 'W': ends at byte 40 of its .bin, which has 32"),
        (lambda t: t.replace('size="32"', 'size="31"'), r"Const layer 'W': size 31; must be 32 for float32 \[4, 2\]"),
        (lambda t: t.replace('element_type="f32" shape="4, 2"', 'element_type="string" shape="4, 2"'), "element_type 'string'; must be"),
        (lambda t: t.replace('from-layer="0" from-port="0"', 'from-layer="3" from-port="2"'), "is part of a cycle"),
        (lambda t: t.replace('transpose_a="false"', 'batch_dims="-2147483648"'), "batch_dims of layer '3': '-2147483648'; must be within ±64"),
        (lambda t: t.replace('transpose_a="false"', 'axis="65"'), "axis of layer '3': '65'; must be within ±64"),
        (lambda t: re.sub(r'<edge from-layer="0"[^>]*>', "", t), "Relu layer 'relu': no edge to its input port '0'"),
        (lambda t: t.replace('element_type="f32"', 'element_type="u4"', 1), "element_type 'u4'; must be one of"),
        (lambda t: t.replace('precision="FP32"', ""), "OpenVINO refuses it .*precision"),
    ],
)  # fmt: skip
def test_broken_files(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = write_chain(tmp_path)
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    refuse(path, message)


def test_sizes_beyond_memory_are_refused_before_they_are_tried(tmp_path: Path) -> None:
    ir = IrWriter()
    size = ir.const("size", np.array([2**20, 2**20, 2**20]))
    one = ir.const("one", np.ones((), np.float32))
    wide = ir.layer("Broadcast", "wide", {"mode": "numpy"}, [one, size], version="opset3")[0]
    total = ir.layer("ReduceSum", "sum", {"keep_dims": "false"}, [wide, ir.const("axes", np.arange(3))])[0]
    ir.result("out", total)
    refuse(
        ir.write(tmp_path / "x.xml"),
        r"Broadcast layer 'wide': output shape \[1048576, .* exceeds this machine's memory",
    )


def test_sizes_beyond_memory_are_refused_where_others_are_open(tmp_path: Path) -> None:
    """As many bytes, not numbers, as this machine has; the number of rows is known only in runs."""
    ir = IrWriter()
    x = ir.parameter("x", "float32", "?")
    rows = ir.layer("ShapeOf", "rows", {"output_type": "i64"}, [x], version="opset3", dtype="int64")[0]
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    size = ir.const("size", np.array([2**20, half // 2**20]))
    shape = ir.layer("Concat", "shape", {"axis": "0"}, [rows, size], dtype="int64")[0]
    one = ir.const("one", np.ones((), np.float32))
    wide = ir.layer("Broadcast", "wide", {"mode": "numpy"}, [one, shape], version="opset3")[0]
    total = ir.layer("ReduceSum", "sum", {"keep_dims": "false"}, [wide, ir.const("axes", np.arange(3))])[0]
    ir.result("out", total)
    refuse(
        ir.write(tmp_path / "x.xml"), r"Broadcast layer 'wide': output shape \[\?, 1048576, .* exceeds this"
    )


def test_an_index_beyond_a_shape_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    """OpenVINO's CPU would read memory that is not its own, and end the process."""
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    for index, message in (
        (3, "index 3; must be within the size 3"),
        (-4, "index -4; must be"),
        (2**54, "index 1801"),
    ):
        at = ops.constant(np.array([index], np.int64))
        size = ops.gather(ops.shape_of(x), at, ops.constant(np.int64(0)))
        path = save(tmp_path / "x.xml", {"out": size.output(0)}, [x])
        refuse(path, rf"Gather layer '\w+': {message}")


def test_inputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = onegru.load(write_chain(tmp_path))
    for wrong in (draw(2, 3), draw(2, 4, dtype=np.float64), draw(4)):
        with pytest.raises(onegru.SpecError, match="'x': "):
            model.run({"x": wrong})


@pytest.mark.parametrize("threads", [1, 2])
def test_faults_that_only_the_run_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(network, "get_num_threads", lambda: threads)
    x, y = (ops.parameter([-1, -1], np.float32, name=name) for name in "xy")
    path = save(tmp_path / "x.xml", {"out": ops.matmul(x, y, False, False).output(0)}, [x, y])
    model = onegru.load(path)
    with pytest.raises(onegru.FormatError, match=r"OpenVINO fails \(.*MatMul") as caught:
        model.run({"x": draw(2, 3), "y": draw(4, 5)})
    assert "\n" not in str(caught.value)
    np.testing.assert_allclose(  # and the next run is unaffected
        model.run({"x": draw(2, 3), "y": draw(3, 5)})["out"], draw(2, 3) @ draw(3, 5), rtol=0, atol=1e-6
    )


def test_single_bytes_changed_are_read_or_refused(tmp_path: Path) -> None:
    path = small(tmp_path)
    text = path.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(60):
        changed = bytearray(text)
        changed[rng.integers(len(text))] = rng.integers(256)
        path.write_bytes(changed)
        try:
            onegru.load(path)
        except onegru.OneGRUError as error:
            assert "\n" not in str(error)


def test_large_constants_of_small_files(tmp_path: Path) -> None:
    """OpenVINO would compute them when the model is loaded."""
    X = ops.parameter([1], np.float32, name="X")
    size = ops.constant(np.array([2**28], np.int64))
    many = ops.broadcast(ops.constant(np.float32(1)), size)
    total = ops.reduce_sum(many, ops.constant(np.array([0], np.int64)), False)
    model = openvino.Model([ops.add(X, total).output(0)], [X], "m")
    openvino.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    message = r"Broadcast layer .*: output shape \[268435456\]; constants are far larger"
    with pytest.raises(onegru.FormatError, match=message):
        onegru.load(tmp_path / "m.xml")
