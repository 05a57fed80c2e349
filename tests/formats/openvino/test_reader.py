"""OpenVINO IR files as real ones are."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array
from tests.support.files.ir_cells import B, H, I, T, cell_inputs, draw, feeds, write_cell
from tests.support.files.ir_files import IrWriter, edit, refuse, write_case


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


def test_the_name_of_an_input_is_that_of_its_layer(tmp_path: Path) -> None:
    """Tensors have their names sorted, those of operators that are gone, too."""
    path = edit(write_cell(tmp_path), lambda text: text.replace('names="X"', 'names="/cast,X"'))
    model = onegru.load(path)
    assert (model.inputs[0].name, model.inputs[0].aliases) == ("X", ("/cast",))
    state = feeds()["initial_hidden_state"]
    for name in ("X", "/cast"):
        assert list(model.run({name: feeds()["X"], "initial_hidden_state": state})) == ["gru.Ho"]


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
            onegru.SpecError, match="Convert layer 'to': contains a value that is not finite in int32"
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


def test_models_pickle(tmp_path: Path) -> None:
    model = onegru.load(write_cell(tmp_path))
    twin = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(twin.run(feeds())["gru.Ho"], model.run(feeds())["gru.Ho"])
