# ruff: noqa: E501 - messages and changes stand whole, on one line
"""IRs that are broken or made to do harm: refused in one line that names the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.files.ir_cells import H, cell_inputs, draw, write_cell
from tests.support.files.ir_files import IrWriter, edit, refuse, write_case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[: len(t) // 2], "not well-formed XML"),
        (lambda t: "<", "not well-formed XML"),
        (lambda t: "", "an empty file; must be one of these"),
        (lambda t: t.replace("<net", "<set").replace("</net", "</set"), "no <net> at its root"),
        (lambda t: t.replace('version="11"', 'version="7"'), "IR version 7; must be 10 or 11"),
        (lambda t: t.replace('version="11"', ""), "IR version none; must be 10 or 11"),
        (lambda t: t.replace('type="GRUCell"', 'type="LSTMCell"'), "OpenVINO refuses it .*LSTMCell"),
        (lambda t: t.replace('version="opset3"', 'version="opset1"'), "GRUCell layer 'gru': version 'opset1'; must be opset3"),
        (lambda t: t.replace('version="opset3"', 'version="mine"'), "version 'mine'; must be opset3"),
        (lambda t: t.replace('layer id="1"', 'layer id="0"'), "two layers have the id '0'"),
        (lambda t: t.replace('from-layer="0"', 'from-layer="77"'), "an edge names layer '77', which does not exist"),
        (lambda t: t.replace('to-layer="5" to-port="1"', 'to-layer="5" to-port="9"'), "an edge names port '9' of GRUCell layer"),
        (lambda t: t.replace('to-layer="5" to-port="1"', 'to-layer="5" to-port="0"'), "two edges to port '0' of GRUCell"),
        (lambda t: re.sub(r'<edge from-layer="0"[^>]*>', "", t), "GRUCell layer 'gru': no edge to its input port '0'"),
        (lambda t: t.replace(' from-port="0"', "", 1), "a <edge> has no 'from-port'"),
        (lambda t: t.replace('type="GRUCell"', ""), "a <layer> has no 'type'"),
        (lambda t: t.replace('<port id="1"', '<port id="0"', 1), "two ports of layer '5' have the same id"),
        (lambda t: t.replace('element_type="f32"', 'element_type="u4"'), "element_type 'u4'; must be one of f16, bf16"),
        (lambda t: t.replace('element_type="f32"', ""), "its <data> has no 'element_type'"),
        (lambda t: t.replace('shape="15, 2"', 'shape="15, -2"'), "'-2'; must be an integer of at least 0"),
        (lambda t: t.replace('shape="15, 2"', 'shape="15, 3"'), r"size 120; must be 180 for float32 \[15, 3\]"),
        (lambda t: t.replace('shape="15, 2"', 'shape="999999999999, 999999999999"'), "Const layer 'W': size 120; must be 3999"),
        (lambda t: t.replace('size="120"', 'size="124"'), r"size 124; must be 120"),
        (lambda t: t.replace('offset="0"', 'offset="400"'), "Const layer 'W': ends at byte 520 of its .bin, which has 480"),
        (lambda t: t.replace('offset="0"', 'offset="-4"'), "'-4'; must be an integer of at least 0"),
        (lambda t: t.replace('offset="0"', f'offset="{10**17}"'), "ends at byte 100000000000000120 of its .bin"),
        (lambda t: t.replace('offset="0"', f'offset="{10**30}"'), "must be an integer of at least 0"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="five"'), "hidden_size: 'five'; must be an integer of at least 1"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" clip="x"'), "clip: 'x'; must be a number"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" linear_before_reset="yes"'), "'yes'; must be true, false"),
        (lambda t: t.replace('initial_hidden_state"', 'X"'), "two inputs have the same name, 'X'"),
        (lambda t: re.sub(r'<layer id="6".*?</layer>', "", t).replace('to-layer="6"', 'to-layer="0"'), "an edge names port"),
    ],
)  # fmt: skip
def test_broken_files(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    refuse(edit(write_cell(tmp_path), change), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="0"'), "hidden_size: 0; must be at least 1"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="4"'), "hidden_size: 4; must be 5, because R has shape"),
        (lambda t: t.replace('hidden_size="5"', ""), "hidden_size: missing; GRUCell-3 requires it"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" layout="1"'), "layout: not an attribute of GRUCell-3"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" activations=""'), "activations: 0 names; must be 2"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" activations="elu,tanh"'), "activations: unknown function 'elu'"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" clip="-1"'), "clip: -1; must be at least 0"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="5" linear_before_reset="1"'), r"B: shape \[15\]; must be"),
        (lambda t: t.replace('shape="15, 2"', 'shape="10, 3"'), r"W: shape \[10, 3\]; must be"),
        (lambda t: t.replace('shape="15, 2"', 'shape="30"'), r"W: rank 1, shape \[30\]; must be"),
    ],
)  # fmt: skip
def test_illegal_layers(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = edit(write_cell(tmp_path), change)
    refuse(path, "GRUCell node 'gru': " + message, onegru.SpecError)


def test_weights_that_no_function_takes_warn_by_name(tmp_path: Path) -> None:
    path = write_cell(tmp_path, activations_alpha="1.0")
    with pytest.warns(onegru.SpecWarning, match=r"GRUCell node 'gru': activations_alpha: 1 value too many"):
        onegru.load(path)


def test_a_truncated_or_missing_bin(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    binary = path.with_suffix(".bin")
    whole = binary.read_bytes()
    binary.write_bytes(whole[:-1])
    refuse(path, "Const layer 'B': ends at byte 480 of its .bin, which has 479")
    binary.unlink()
    refuse(path, "'cell.bin' cannot be read")


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    text = path.read_text()
    for end in range(0, len(text), 7):
        path.write_text(text[:end])
        with pytest.raises(onegru.FormatError):
            onegru.load(path)


def test_single_bytes_changed_are_read_or_refused(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    text = path.read_bytes()
    rng = np.random.default_rng(7)
    for _ in range(400):
        changed = bytearray(text)
        changed[rng.integers(len(text))] = rng.integers(256)
        path.write_bytes(changed)
        try:
            onegru.load(path)
        except onegru.OneGRUError as error:
            assert str(error)


def test_cycles(tmp_path: Path) -> None:
    def close(text: str) -> str:
        return text.replace(
            '<edge from-layer="1" from-port="0" to-layer="5"',
            '<edge from-layer="5" from-port="5" to-layer="5"',
        )

    refuse(edit(write_cell(tmp_path), close), "GRUCell layer 'gru': is part of a cycle")


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE net SYSTEM "file:///etc/passwd">',
        '<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        "<!DOCTYPE net>",
    ],
)
def test_entities_are_refused(tmp_path: Path, doctype: str) -> None:
    refuse(
        edit(write_cell(tmp_path), lambda t: t.replace("<net", doctype + "<net", 1)),
        "document type declaration",
    )


def test_depth_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep.xml"
    path.write_text("<net>" * 100_000)
    refuse(path, "elements are nested more than 200 deep")


def test_constants_that_overlap_do_not_multiply(tmp_path: Path) -> None:
    """Ten thousand constants of one megabyte each, all within the same one."""
    ir = IrWriter()
    value = ir.const("big", np.zeros(2**20, np.uint8).view(np.float32))
    for n in range(10_000):
        data = {"element_type": "f32", "shape": "250000", "offset": str(4 * n), "size": "1000000"}
        value = ir.layer("Const", f"c{n}", data)[0]
    ir.result("out", value)
    refuse(ir.write(tmp_path / "overlap.xml"), "constants overlap, and are far larger than the .bin")


def test_wrong_numbers_of_ports(tmp_path: Path) -> None:
    inputs: dict[str, Array | None] = dict(cell_inputs())
    extra = {**inputs, "more": draw(3)}
    path = write_case(tmp_path / "x.xml", "gru_cell", extra, {"hidden_size": H})
    refuse(path, "GRUCell layer 'gru': 6 inputs; must be X, initial_hidden_state, W, R, B", onegru.SpecError)
    few = {name: inputs[name] for name in ("X", "initial_hidden_state", "W")}
    path = write_case(tmp_path / "x.xml", "gru_cell", few, {"hidden_size": H})
    refuse(path, "3 inputs; must be X", onegru.SpecError)
    ir = IrWriter()
    value = ir.parameter("x", "float32", "1")
    ir.layer("Result", "out", {}, [value, value], 0)
    refuse(ir.write(tmp_path / "y.xml"), r"Result layer 'out': must have 1 input and 0 outputs")


def test_no_result(tmp_path: Path) -> None:
    ir = IrWriter()
    ir.parameter("x", "float32", "1")
    refuse(ir.write(tmp_path / "none.xml"), "no Result layer; must have at least one")


def test_time_grows_only_with_size(tmp_path: Path) -> None:
    """Text between elements, and many ports: neither may cost the square of its size."""
    path = tmp_path / "text.xml"
    path.write_text('<net version="11"><layers>' + "xxxxx<a/>" * 400_000 + "</layers></net>")
    refuse(path, "no Result layer")
    ir = IrWriter()
    value = ir.parameter("x", "float32", "1")
    ir.layer("Result", "out", {}, [value] * 30_000, 0)
    refuse(ir.write(tmp_path / "ports.xml"), "must have 1 input")


def test_a_chain_of_conversions_does_not_take_all_memory(tmp_path: Path) -> None:
    ir = IrWriter()
    value = ir.const("c", np.zeros(2**18, np.float32))
    for number in range(200):
        value = ir.convert(f"to{number}", value, ("float64", "float32")[number % 2])
    ir.result("out", value)
    refuse(ir.write(tmp_path / "chain.xml"), "conversions of constants are far larger than the .bin")


def test_integers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ir = IrWriter()
    ir.result("out", ir.convert("to", ir.parameter("x", "int64", "?"), "int32"))
    model = onegru.load(ir.write(tmp_path / "x.xml"))
    with pytest.raises(onegru.SpecError, match="not finite in int32; must be finite"):
        model.run({"x": np.array([2**32 + 2])})
