"""Cases as files: legal ones, which say what the case says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import onegru
from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases
from onegru.conformance.comparison import compare
from onegru.conformance.files import case_files, fed_inputs, ir_files, kind_of_case, onnx_model

pytestmark = pytest.mark.filterwarnings("ignore::onegru.SpecWarning")  # values left over
onnx: Any = pytest.importorskip("onnx")

CASES = {case.name: case for case in all_cases()}
#: Every case that is about weights, shapes or what is there at all; and some of the others.
SOME = [
    *(
        case
        for case in CASES.values()
        if len(case.choices) == 1
        and case.choices.keys() & {"weights", "shapes", "outputs", "initial_h", "B", "layout", "type"}
    ),
    *(case for case in list(CASES.values())[::61] if case.level("seq_length") != "1000"),
]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_a_file_is_legal_and_right(case: Case, tmp_path: Path) -> None:
    files = case_files(case)
    assert case_files(Case(case.operator, case.choices)) == files  # the same bytes each time
    if kind_of_case(case) == "onnx":
        onnx.checker.check_model(files["model.onnx"], full_check=True)
        model = onegru.load(files["model.onnx"], engine="reference")
    else:
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        model = onegru.load(tmp_path / "model.xml", engine="reference")
    assert tuple(info.name for info in model.inputs) == tuple(fed_inputs(case))
    assert compare(case, model.run(fed_inputs(case))).status == "passes"


def dims(value: Any) -> list[Any]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_onnx_sizes_and_weights() -> None:
    fixed, open_ = (onnx_model(CASES[f"gru_14__{name}"]) for name in ("layout_1", "shapes_open"))
    assert dims(fixed.graph.input[0]) == [3, 5, 4] and dims(fixed.graph.output[0]) == [3, 5, 1, 5]
    assert dims(open_.graph.input[0]) == ["seq_length", "batch_size", 4]
    assert dims(open_.graph.output[1]) == [1, "batch_size", 5]
    assert [tensor.name for tensor in fixed.graph.initializer] == ["W", "R", "B"]
    given = onnx_model(CASES["gru_14__weights_given_at_run_time"])
    assert [info.name for info in given.graph.input] == ["X", "W", "R", "B"] and not given.graph.initializer
    assert dims(given.graph.input[1]) == [1, 15, 4]


def test_onnx_versions() -> None:
    for version, ir_version in ((1, 3), (3, 3), (7, None), (14, None), (22, None)):
        model = onnx_model(CASES[f"gru_{version}__sequence_lens_mixed"])
        assert [entry.version for entry in model.opset_import] == [version]
        inputs = [info.name for info in model.graph.input]
        # Before opset 7, constants are inputs as well; they come last, for runners that feed by number.
        assert inputs == ["X", "sequence_lens", *(["W", "R", "B"] if ir_version else [])]
        assert model.ir_version == ir_version or (ir_version is None and model.ir_version > 3)


def test_onnx_names() -> None:
    node = onnx_model(CASES["gru_14__initial_h_given"]).graph.node[0]
    assert list(node.input) == ["X", "W", "R", "B", "", "initial_h"] and list(node.output) == ["Y", "Y_h"]
    node = onnx_model(CASES["gru_14__B_none"]).graph.node[0]
    assert list(node.input) == ["X", "W", "R"]
    assert list(onnx_model(CASES["gru_14__outputs_Y"]).graph.node[0].output) == ["Y"]
    assert list(onnx_model(CASES["gru_14__outputs_Y_h"]).graph.node[0].output) == ["", "Y_h"]


def test_attention_has_its_function() -> None:
    model = onnx_model(CASES["augru_1__usual"])
    assert (model.graph.node[0].op_type, model.graph.node[0].domain) == ("AUGRU", "onegru")
    assert [function.name for function in model.functions] == ["AUGRU"]


def layer(name: str, kind: str) -> ET.Element:
    found = ET.fromstring(ir_files(CASES[name])[0]).find(f"layers/layer[@type='{kind}']")
    assert found is not None
    return found


def data(name: str, kind: str) -> dict[str, str]:
    found = layer(name, kind).find("data")
    assert found is not None
    return dict(found.attrib)


def test_ir_words() -> None:
    assert layer("grucell_3__usual", "GRUCell").attrib["version"] == "opset3"
    assert layer("grusequence_5__usual", "GRUSequence").attrib["version"] == "opset5"
    assert data("grucell_3__linear_before_reset_true", "GRUCell")["linear_before_reset"] == "true"
    assert data("grucell_3__activations_with_spaces", "GRUCell")["activations"] == "sigmoid, tanh"
    assert data("grucell_3__usual", "GRUCell")["activations"] == "sigmoid,tanh"
    assert data("grucell_3__parameters_empty", "GRUCell")["activations_alpha"] == ""
    assert data("grusequence_5__shapes_open", "Parameter")["shape"] == "?,?,4"
    assert data("grusequence_5__usual", "Parameter") == {"shape": "3,5,4", "element_type": "f32"}
    text = ir_files(CASES["grusequence_5__shapes_open"])[0].decode()
    assert re.findall(r"<dim>(.*?)</dim>", text)[:3] == ["-1", "-1", "4"]
    assert data("grucell_3__type_bfloat16", "Const")["element_type"] == "bf16"


def test_ir_weights() -> None:
    text, weights = ir_files(CASES["grucell_3__usual"])
    assert text.count(b'"Const"') == 3
    for item in ET.fromstring(text).iterfind("layers/layer[@type='Const']"):
        place = item.find("data")
        assert place is not None
        offset, size = int(place.attrib["offset"]), int(place.attrib["size"])
        array = CASES["grucell_3__usual"].inputs[item.attrib["name"]]
        assert weights[offset : offset + size] == array.tobytes()
    text, weights = ir_files(CASES["grucell_3__weights_given_at_run_time"])
    assert (text.count(b'"Const"'), text.count(b'"Parameter"'), weights) == (0, 5, b"")
