# ruff: noqa: E501 - messages and changes stand whole, on one line
"""OpenVINO IR files: what real ones look like, and what broken and hostile ones get."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import onegru
from tests.support.ir_files import IrWriter, write_case

Array = NDArray[Any]

T, B, I, H = 4, 3, 2, 5


def draw(*shape: int, dtype: Any = np.float32, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def cell_inputs() -> dict[str, Any]:
    return {
        "X": draw(B, I),
        "initial_hidden_state": draw(B, H),
        "W": draw(3 * H, I),
        "R": draw(3 * H, H),
        "B": draw(3 * H),
    }


def write_cell(folder: Path, **attributes: Any) -> Path:
    return write_case(folder / "cell.xml", "gru_cell", cell_inputs(), {"hidden_size": H, **attributes})


def feeds() -> dict[str, Any]:
    return {name: array for name, array in cell_inputs().items() if name in ("X", "initial_hidden_state")}


def edit(path: Path, change: Callable[[str], str]) -> Path:
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)
    return path


def refuse(path: Path, message: str, error: type[Exception] = onegru.FormatError) -> None:
    with pytest.raises(error, match=message) as caught:
        onegru.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


# What real files have


def test_a_cell_by_its_port_and_layer_names(tmp_path: Path) -> None:
    model = onegru.load(write_cell(tmp_path))
    expected = onegru.gru_cell(**cell_inputs(), hidden_size=H)
    np.testing.assert_array_equal(model.run(feeds())["gru.Ho"], expected)
    assert [(info.name, info.dtype, info.shape) for info in model.inputs] == [
        ("X", "float32", (B, I)),
        ("initial_hidden_state", "float32", (B, H)),
    ]
    assert [layer.operator for layer in model.gru_nodes] == ["GRUCell-3"]
    assert model.other_node_count == 0


def test_names_of_several_kinds_lead_to_one_tensor(tmp_path: Path) -> None:
    path = edit(write_cell(tmp_path), lambda text: text.replace('names="X"', r'names="audio,in\,put"'))
    model = onegru.load(path)
    expected = onegru.gru_cell(**cell_inputs(), hidden_size=H)
    state = feeds()["initial_hidden_state"]
    for name in ("audio", "in,put", "X"):
        outputs = model.run({name: feeds()["X"], "initial_hidden_state": state})
        np.testing.assert_array_equal(outputs["gru.Ho"], expected)
    with pytest.raises(onegru.SpecError, match="given twice"):
        model.run({"audio": feeds()["X"], "X": feeds()["X"], "initial_hidden_state": state})


def test_lists_with_spaces_empty_lists_and_spellings_of_booleans(tmp_path: Path) -> None:
    for after, spelling in ((True, "true"), (True, "1"), (False, "false"), (False, "0"), (True, "True")):
        inputs = cell_inputs()
        inputs["B"] = draw((4 if after else 3) * H)
        attributes = {
            "hidden_size": H,
            "activations": "relu,  tanh",
            "activations_alpha": "",
            "activations_beta": "",
            "clip": "0.750000",
            "linear_before_reset": spelling,
        }
        path = write_case(tmp_path / "cell.xml", "gru_cell", inputs, attributes)
        expected = onegru.gru_cell(
            **inputs, hidden_size=H, activations=["relu", "tanh"], clip=0.75, linear_before_reset=after
        )
        np.testing.assert_array_equal(onegru.load(path).run(feeds())["gru.Ho"], expected)


@pytest.mark.parametrize("clip", ["0", "0.000000", "inf", "INFINITY"])
def test_spellings_of_no_clip(tmp_path: Path, clip: str) -> None:
    model = onegru.load(write_cell(tmp_path, clip=clip))
    assert model.gru_nodes[0].layer is not None
    assert model.gru_nodes[0].layer.spec.clip is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_weights_compressed_to_float16(tmp_path: Path, dtype: str) -> None:
    """What OpenVINO writes by default: every weight a float16 Const and a Convert."""
    from tests.support.cases import DTYPES

    ir = IrWriter()
    inputs = cell_inputs()
    values = [ir.parameter("X", dtype, "?,2"), ir.parameter("initial_hidden_state", dtype, "-1,5")]
    half = {name: inputs[name].astype(np.float16) for name in ("W", "R", "B")}
    values += [ir.convert(f"{name}/to", ir.const(name, array), dtype) for name, array in half.items()]
    ir.result("out", ir.gru("gru_cell", "gru", {"hidden_size": H}, values)[0])
    model = onegru.load(ir.write(tmp_path / "half.xml"))
    wide: dict[str, Any] = {name: array.astype(DTYPES[dtype]) for name, array in (inputs | half).items()}
    expected = onegru.gru_cell(**wide, hidden_size=H)
    found = model.run({name: wide[name] for name in ("X", "initial_hidden_state")})
    np.testing.assert_array_equal(found["gru.Ho"], expected)
    assert model.gru_nodes[0].layer is not None  # the weights are constants, so the layer is made once
    assert model.inputs[0].shape == (None, I)


def test_port_ids_need_not_be_consecutive(tmp_path: Path) -> None:
    """AUGRUCell's own example leaves out port 2 and has two outputs: order decides, both carry Ho."""
    ir = IrWriter()
    arrays: dict[str, Any] = {
        "X": draw(B, I),
        "H_t": draw(B, H),
        "W": draw(3 * H, I),
        "R": draw(3 * H, H),
        "B": draw(3 * H),
        "A": draw(B, 1),
    }
    values = [
        ir.const(name, array) if name in "WRB" else ir.parameter(name, "float32", "?,?")
        for name, array in arrays.items()
    ]
    outputs = ir.layer(
        "AUGRUCell",
        "augru",
        {"hidden_size": str(H)},
        values,
        2,
        version="extension",
        skip_ports=[2],
        names=["Y", "Ho"],
    )
    for value in outputs:
        ir.result(f"out{value[1]}", value)
    model = onegru.load(ir.write(tmp_path / "augru.xml"))
    results = model.run({name: arrays[name] for name in ("X", "H_t", "A")})
    expected = onegru.augru_cell(**arrays, hidden_size=H)
    assert len(results) == 2
    for found in results.values():
        np.testing.assert_array_equal(found, expected)


def test_cells_in_a_row_share_their_weights(tmp_path: Path) -> None:
    """An unrolled loop: each cell takes the state of the one before; the layer is made once."""
    ir = IrWriter()
    inputs = cell_inputs()
    steps = [ir.parameter(f"x{t}", "float32", "?,2") for t in range(T)]
    state = ir.parameter("h", "float32", "?,5")
    weights = [ir.const(name, inputs[name]) for name in "WRB"]
    for t, x in enumerate(steps):
        state = ir.gru("gru_cell", f"cell{t}", {"hidden_size": H}, [x, state, *weights])[0]
    ir.result("out", state)
    model = onegru.load(ir.write(tmp_path / "loop.xml"))
    assert len({id(layer.layer) for layer in model.gru_nodes}) == 1
    X, h = draw(T, B, I, seed=3), draw(B, H, seed=4)
    out = model.run({**{f"x{t}": X[t] for t in range(T)}, "h": h})
    expected = h
    for x in X:
        expected = onegru.gru_cell(x, expected, inputs["W"], inputs["R"], inputs["B"], hidden_size=H)
    np.testing.assert_array_equal(next(iter(out.values())), expected)


def test_operators_in_any_arrangement(tmp_path: Path) -> None:
    """A sequence, whose last state starts an AUGRU over its own outputs; lengths converted on the way."""
    ir = IrWriter()
    x = ir.parameter("x", "float32", "?,?,2")
    lens = ir.convert("lens32", ir.parameter("lens", "int64", "?"), "int32")
    scores = ir.parameter("a", "float32", "?,?,1")
    first: dict[str, Any] = {"W": draw(1, 3 * H, I), "R": draw(1, 3 * H, H), "B": draw(1, 4 * H)}
    second: dict[str, Any] = {"W": draw(1, 3 * I, I), "R": draw(1, 3 * I, I), "B": draw(1, 3 * I)}
    h0 = ir.const("h0", np.zeros((B, 1, H), np.float32))
    _, ho = ir.gru(
        "gru_sequence",
        "first",
        {"hidden_size": H, "linear_before_reset": True},
        [x, h0, lens, *(ir.const(f"1{name}", array) for name, array in first.items())],
    )
    small = ir.const("small", np.zeros((B, 1, I), np.float32))
    y, _ = ir.gru(
        "augru_sequence",
        "second",
        {"hidden_size": I},
        [x, small, lens, *(ir.const(f"2{name}", array) for name, array in second.items()), scores],
    )
    ir.result("state", ho)
    ir.result("attended", y)
    model = onegru.load(ir.write(tmp_path / "two.xml"))
    X, lengths, A = draw(B, T, I), np.array([4, 0, 2]), draw(B, T, 1, seed=9)
    out = model.run({"x": X, "lens": lengths, "a": A})
    _, Ho = onegru.gru_sequence(
        X, np.zeros((B, 1, H), np.float32), lengths, **first, hidden_size=H, linear_before_reset=True
    )
    Y, _ = onegru.augru_sequence(X, np.zeros((B, 1, I), np.float32), lengths, **second, A=A, hidden_size=I)
    np.testing.assert_array_equal(out["first.Ho"], Ho)
    np.testing.assert_array_equal(out["second.Y"], Y)


def test_weights_that_are_inputs(tmp_path: Path) -> None:
    ir = IrWriter()
    inputs = cell_inputs()
    values = [ir.parameter(name, "float32", ",".join("?" * array.ndim)) for name, array in inputs.items()]
    ir.result("out", ir.gru("gru_cell", "gru", {"hidden_size": H}, values)[0])
    model = onegru.load(ir.write(tmp_path / "free.xml"))
    assert model.gru_nodes[0].layer is None
    np.testing.assert_array_equal(model.run(inputs)["gru.Ho"], onegru.gru_cell(**inputs, hidden_size=H))
    with pytest.raises(onegru.SpecError, match=r"GRUCell node 'gru': W: shape \[14, 2\]; must be"):
        model.run({**inputs, "W": inputs["W"][1:]})


@pytest.mark.parametrize("function", ["gru_cell", "gru_sequence"])
def test_openvino_reads_what_these_tests_write(tmp_path: Path, function: str) -> None:
    """The files of these tests are real IRs. OpenVINO cannot read its own AUGRU operators from a file."""
    openvino = pytest.importorskip("openvino")
    d = (1,) if function == "gru_sequence" else ()
    inputs: dict[str, Array | None] = {
        "X": draw(B, *(T,) * len(d), I),
        "initial_hidden_state": draw(B, *d, H),
    }
    if d:
        inputs["sequence_lengths"] = np.array([T] * B, np.int32)
    inputs |= {"W": draw(*d, 3 * H, I), "R": draw(*d, 3 * H, H), "B": draw(*d, 3 * H)}
    path = write_case(
        tmp_path / "x.xml", function, inputs, {"hidden_size": H, "activations": "sigmoid, tanh"}
    )
    assert openvino.Core().read_model(path) is not None


# Faults


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[: len(t) // 2], "not well-formed XML"),
        (lambda t: "", "not well-formed XML"),
        (lambda t: t.replace("<net", "<set").replace("</net", "</set"), "no <net> at its root"),
        (lambda t: t.replace('version="11"', 'version="7"'), "IR version 7; must be 10 or 11"),
        (lambda t: t.replace('version="11"', ""), "IR version none; must be 10 or 11"),
        (lambda t: t.replace('type="GRUCell"', 'type="LSTMCell"'), "OpenVINO refuses it .*LSTMCell"),
        (lambda t: t.replace('version="opset3"', 'version="opset1"'), "GRUCell layer 'gru': version 'opset1'; must be opset3"),
        (lambda t: t.replace('version="opset3"', 'version="mine"'), "version 'mine'; must be opset3"),
        (lambda t: t.replace('layer id="1"', 'layer id="0"'), "two layers have the id '0'"),
        (lambda t: t.replace('from-layer="0"', 'from-layer="77"'), "an edge names layer '77', which there is not"),
        (lambda t: t.replace('to-layer="5" to-port="1"', 'to-layer="5" to-port="9"'), "an edge names port '9' of GRUCell layer"),
        (lambda t: t.replace('to-layer="5" to-port="1"', 'to-layer="5" to-port="0"'), "two edges lead to port '0' of GRUCell"),
        (lambda t: re.sub(r'<edge from-layer="0"[^>]*>', "", t), "GRUCell layer 'gru': no edge leads to its input port '0'"),
        (lambda t: t.replace(' from-port="0"', "", 1), "a <edge> has no 'from-port'"),
        (lambda t: t.replace('type="GRUCell"', ""), "a <layer> has no 'type'"),
        (lambda t: t.replace('<port id="1"', '<port id="0"', 1), "two ports of layer '5' have the same id"),
        (lambda t: t.replace('element_type="f32"', 'element_type="u4"'), "element_type 'u4'; must be one of f16, bf16"),
        (lambda t: t.replace('element_type="f32"', ""), "its <data> has no 'element_type'"),
        (lambda t: t.replace('shape="15, 2"', 'shape="15, -2"'), "'-2'; must be a number, at least 0"),
        (lambda t: t.replace('shape="15, 2"', 'shape="15, 3"'), r"size 120; must be 180 for float32 \[15, 3\]"),
        (lambda t: t.replace('shape="15, 2"', 'shape="999999999999, 999999999999"'), "Const layer 'W': size 120; must be 3999"),
        (lambda t: t.replace('size="120"', 'size="124"'), r"size 124; must be 120"),
        (lambda t: t.replace('offset="0"', 'offset="400"'), "Const layer 'W': ends at byte 520 of its .bin, which has 480"),
        (lambda t: t.replace('offset="0"', 'offset="-4"'), "'-4'; must be a number, at least 0"),
        (lambda t: t.replace('offset="0"', f'offset="{10**17}"'), "ends at byte 100000000000000120 of its .bin"),
        (lambda t: t.replace('offset="0"', f'offset="{10**30}"'), "must be a number, at least 0"),
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="five"'), "hidden_size: 'five'; must be a number"),
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
        (lambda t: t.replace('hidden_size="5"', 'hidden_size="4"'), "hidden_size: 4; must be 5, as R has shape"),
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
    with pytest.warns(
        onegru.SpecWarning, match=r"GRUCell node 'gru': activations_alpha: 1 value\(s\) left over"
    ):
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

    refuse(edit(write_cell(tmp_path), close), "GRUCell layer 'gru': waits for itself; the graph has a cycle")


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
    refuse(path, "elements lie more than 200 deep")


def test_constants_that_overlap_do_not_multiply(tmp_path: Path) -> None:
    """Ten thousand constants of one megabyte each, all within the same one."""
    ir = IrWriter()
    value = ir.const("big", np.zeros(2**20, np.uint8).view(np.float32))
    for n in range(10_000):
        data = {"element_type": "f32", "shape": "250000", "offset": str(4 * n), "size": "1000000"}
        value = ir.layer("Const", f"c{n}", data)[0]
    ir.result("out", value)
    refuse(ir.write(tmp_path / "overlap.xml"), "constants overlap, and come to far more than its .bin holds")


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
    refuse(ir.write(tmp_path / "y.xml"), r"Result layer 'out': must have 1 input\(s\) and 0 output\(s\)")


def test_no_result(tmp_path: Path) -> None:
    ir = IrWriter()
    ir.parameter("x", "float32", "1")
    refuse(ir.write(tmp_path / "none.xml"), "no Result layer; must have at least one")


def test_file_types_of_lengths(tmp_path: Path) -> None:
    inputs: dict[str, Array | None] = {
        "X": draw(B, T, I),
        "initial_hidden_state": draw(B, 1, H),
        "sequence_lengths": np.array([1, 2, 3], np.int32),
        "W": draw(1, 3 * H, I),
        "R": draw(1, 3 * H, H),
        "B": draw(1, 3 * H),
    }
    path = write_case(tmp_path / "x.xml", "gru_sequence", inputs, {"hidden_size": H})
    edit(path, lambda t: t.replace('element_type="i32"', 'element_type="u8"'))
    given = {name: array for name, array in inputs.items() if name not in "WRB"}
    with pytest.raises(onegru.SpecError, match="sequence_lengths: type uint8; must be int32 or int64"):
        onegru.load(path).run({**given, "sequence_lengths": np.array([1, 2, 3], np.uint8)})


def test_conversions_that_cannot_hold_a_number(tmp_path: Path) -> None:
    ir = IrWriter()
    ir.result("out", ir.convert("to", ir.parameter("x", "float32", "?"), "int32"))
    model = onegru.load(ir.write(tmp_path / "x.xml"))
    name = model.outputs[0].name
    found = model.run({"x": np.array([-2.7, 2.7, 0], np.float32)})[name]
    np.testing.assert_array_equal(found, np.array([-2, 2, 0], np.int32))
    for value in (np.nan, np.inf, 2.0**31):
        with pytest.raises(
            onegru.SpecError, match="Convert layer 'to': a number is not finite, or beyond int32"
        ):
            model.run({"x": np.array([value], np.float32)})


def test_a_name_of_its_own_goes_before_an_alias(tmp_path: Path) -> None:
    """Parameter "a" has the tensor name "b", and parameter "b" the tensor name "a"."""
    ir = IrWriter()
    first = ir.layer("Parameter", "a", {"shape": "?", "element_type": "f32"}, names=["b"])[0]
    second = ir.layer("Parameter", "b", {"shape": "?,?", "element_type": "f32"}, names=["a"])[0]
    ir.result("r1", first)
    ir.result("r2", second)
    model = onegru.load(ir.write(tmp_path / "names.xml"))
    one, two = np.zeros(3, np.float32), np.ones((2, 2), np.float32)
    out = model.run({"b": one, "a": two})
    np.testing.assert_array_equal(out["b"], one)
    np.testing.assert_array_equal(out["a"], two)


def test_two_results_of_one_tensor(tmp_path: Path) -> None:
    ir = IrWriter()
    value = ir.layer("Parameter", "x", {"shape": "?", "element_type": "f32"}, names=["x"])[0]
    ir.result("first", value)
    ir.result("second", value)
    model = onegru.load(ir.write(tmp_path / "twice.xml"))
    assert [info.name for info in model.outputs] == ["x", "second"]


@pytest.mark.parametrize("clip", ["1_0", "٣", "1e999", "--1", "1e"])
def test_numbers_are_spelt_as_in_c(tmp_path: Path, clip: str) -> None:
    refuse(write_cell(tmp_path, clip=clip), "GRUCell layer 'gru': clip: ")


def test_time_grows_with_size_alone(tmp_path: Path) -> None:
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
    refuse(ir.write(tmp_path / "chain.xml"), "conversions of constants come to far more than the .bin holds")


def test_integers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ir = IrWriter()
    ir.result("out", ir.convert("to", ir.parameter("x", "int64", "?"), "int32"))
    model = onegru.load(ir.write(tmp_path / "x.xml"))
    with pytest.raises(onegru.SpecError, match="beyond int32; must fit it"):
        model.run({"x": np.array([2**32 + 2])})


def test_models_pickle(tmp_path: Path) -> None:
    model = onegru.load(write_cell(tmp_path))
    twin = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(twin.run(feeds())["gru.Ho"], model.run(feeds())["gru.Ho"])
