"""The command `onegru verify`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import onegru
from onegru.cli.commands.verify import _format_pair
from tests.support.files.onnx_models import I, gru, model, node, save, tensor, value, weights
from tests.support.layers import make_gru
from tests.support.machine.cli import Cli
from tests.support.models import mutants
from tests.support.models.verify_cases import chain, feeds, ir


@pytest.fixture
def verify(cli: Cli) -> Cli:
    return partial(cli, "verify")


DIMS = ("--dim", "t=4", "--dim", "b=2")


def test_a_clean_model(verify: Cli) -> None:
    save(Path(), chain(True))
    code, out, err = verify("model.onnx", *DIMS)
    assert (code, err) == (0, "")
    assert "onegru" in out and "onnxruntime" in out and "differs" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.long
def test_a_model_that_a_runtime_gets_wrong(verify: Cli) -> None:
    save(Path(), chain(True, clip=0.25))
    code, out, err = verify("model.onnx", *DIMS, "--random", 3)
    assert (code, err) == (1, "")
    assert "onnx differs first in GRU node 'GRU_1' (GRU-14): Y at time step 0, row 0" in out
    assert "as if clip were ignored; known: it ignores clip" in out


@pytest.mark.long
def test_a_wrong_export(verify: Cli) -> None:
    save(Path(), chain(True), "right.onnx")
    save(Path(), mutants.mutated(chain(True), "z and r", "GRU_1"), "wrong.onnx")
    code, out, err = verify("wrong.onnx", *DIMS, "--against", "right.onnx")
    assert (code, err) == (1, "")
    assert "wrong.onnx differs from right.onnx first in GRU 'GRU_1'" in out
    assert re.search("against right.onnx +S2 .* differs", out)
    assert "as if the gates z and r were swapped" in out
    code, out, err = verify("right.onnx", *DIMS, "--against", "right.onnx")
    assert (code, err) == (0, "") and "against right.onnx: the 3 GRUs agree" in out


@pytest.mark.long
def test_given_inputs_and_json(verify: Cli) -> None:
    save(Path(), chain(clip=0.25))
    np.savez("in.npz", **feeds())  # type: ignore[arg-type]
    code, out, err = verify("model.onnx", "-i", "in.npz", "--json", "--against", "model.onnx")
    assert (code, err) == (1, "")
    document = json.loads(out, parse_constant=lambda word: pytest.fail(word))
    assert document["agrees"] is False and document["against"]["agrees"] is True
    evaluator = next(item for item in document["runtimes"] if item["runtime"] == "onnx")
    assert evaluator["status"] == "differs" and evaluator["fault"]["node"] == "GRU_1"
    assert evaluator["fault"]["where"] == [0, 0, 0, 0]
    assert document["runtimes"][0]["outputs"][0]["name"] == "S2"


def test_a_tolerance_below_rounding(verify: Cli) -> None:
    """No GRU and nothing outside them is at fault then, in a runtime and in a reference."""
    proto = chain(True)
    save(Path(), proto)
    for tensor_ in proto.graph.initializer:
        if tensor_.name.startswith("W"):
            array = onnx.numpy_helper.to_array(tensor_)
            tensor_.CopyFrom(tensor(tensor_.name, np.nextafter(array, np.float32(9))))
    save(Path(), proto, "near.onnx")
    arguments = ["model.onnx", *DIMS, "--runtime", "onnx", "--against", "near.onnx"]
    assert verify(*arguments)[0] == 0
    code, out, _ = verify(*arguments, "--tolerance", 1e-12)
    words = "differs only by rounding, which can be up to 1e-05 between runtimes"
    assert code == 1 and f"onnx: {words}" in out and f"against near.onnx: {words}" in out
    assert "outside" not in out and "fault" not in out


@pytest.mark.long
def test_chosen_runtimes_and_precision(verify: Cli) -> None:
    openvino = pytest.importorskip("openvino")
    save(Path(), chain(True))
    arguments = ["model.onnx", *DIMS, "--runtime", "onnx", "--runtime", "openvino", "--json"]
    default = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    for precision, is_exact in (("f32", True), ("default", default == "f32")):
        _, out, _ = verify(*arguments, "--precision", precision)
        found = {item["runtime"]: item for item in json.loads(out)["runtimes"]}
        said = {name: item["precision"] for name, item in found.items()}
        assert said == {"onegru": "", "onnx": "", "openvino": precision}
        assert found["openvino"]["status"] == ("agrees" if is_exact else "differs")
    assert re.search(r"openvino [0-9.]+, f32 ", verify(*arguments[:-1])[1])


def test_a_runtime_that_does_not_read_the_file_is_left_out(verify: Cli) -> None:
    pytest.importorskip("openvino")
    ir(Path(), (4, 4))
    _, out, _ = verify(next(Path().glob("*.xml")), "--dims", 2, "--json")
    assert [item["runtime"] for item in json.loads(out)["runtimes"]] == ["onegru", "openvino"]


def test_a_sequence_of_tensors(verify: Cli) -> None:
    nodes = [gru("X", ["Y"], bias="B"), node("SequenceConstruct", ["Y"], ["list"])]
    kinds = [value("Y"), onnx.helper.make_tensor_sequence_value_info("list", 1, None)]
    infos = [value("X", shape=["t", "b", I])]
    save(
        Path(),
        model(
            onnx.helper.make_graph(
                nodes, "g", infos, kinds, [tensor(name, array) for name, array in weights().items()]
            )
        ),
    )
    code, out, _ = verify("model.onnx", *DIMS)
    assert code == 0 and re.search(r" list +[\d.]+", out) and "not compared" not in out


@pytest.mark.long
def test_refusals_do_not_fail(verify: Cli) -> None:
    pytest.importorskip("onnxruntime")
    save(Path(), chain(True, "float64"))
    code, out, _ = verify("model.onnx", *DIMS, "--tolerance", 1e-5)
    assert (
        code == 0
        and "onnxruntime refuses: " in out
        and "the part around" not in out
        and "known: GRU_0: loads float64" in out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "nothing.onnx: No such file"),
        (["model.onnx", *DIMS, "-i", "Z=x.npy"], "'Z' is not an input"),
        (["model.onnx", *DIMS, "--tolerance", "-1"], "tolerance"),
        (["model.onnx", *DIMS, "--against", "nothing.onnx"], "nothing.onnx: No such file"),
        (["model.onnx", *DIMS, "--against", "broken.onnx"], "broken.onnx: "),
        (["broken.onnx"], "broken.onnx: "),
        (
            ["model.onnx", "--runtime", "tensorflow"],
            "--runtime: 'tensorflow'; must be one of 'onnxruntime', 'openvino', 'onnx'",
        ),
        (["model.onnx", *DIMS, "--precision", "f16"], "precision: 'f16'; must be one of f32, default"),
    ],
)
def test_bad_input(verify: Cli, arguments: list[str], message: str) -> None:
    save(Path(), chain(True))
    save(Path(), b"\x08no model", "broken.onnx")
    code, out, err = verify(*arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_help_says_what_the_exit_code_means(verify: Cli) -> None:
    code, out, _ = verify("--help")
    assert code == 0 and "The exit code is 1 if something differs" in out


@pytest.mark.long
def test_files_are_known_by_what_they_hold(verify: Cli) -> None:
    onegru.save_layers(make_gru(), "model.xml", cell=True)
    Path("model.xml").rename("an_ir.onnx")
    Path("model.bin").rename("an_ir.bin")
    code, out, err = verify("an_ir.onnx", "--dims", 2)
    assert (code, err) == (0, "")
    assert "openvino" in out and "onnxruntime" not in out and "refuses" not in out
    code, out, err = verify("an_ir.onnx", "--runtime", "onnxruntime")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--runtime: onnxruntime reads only ONNX models; an_ir.onnx is not one" in err
    save(Path(), chain(True), "a_model.xml")
    code, out, err = verify("a_model.xml", *DIMS, "--runtime", "onnxruntime", "--runtime", "onnx")
    assert (code, err) == (0, "")
    assert "onnxruntime" in out and "refuses" not in out


def test_a_reference_that_cannot_be_compared_is_no_fault_of_random_inputs(verify: Cli) -> None:
    save(Path(), chain(True))
    save(Path(), b"\x08no model", "broken.onnx")
    code, out, err = verify("model.onnx", *DIMS, "--against", "broken.onnx")
    assert (code, out) == (2, "") and err.startswith("onegru: broken.onnx: ") and "drawn" not in err
    onegru.save_layers(make_gru(), "other.onnx")
    code, out, err = verify("model.onnx", *DIMS, "--against", "other.onnx")
    assert (code, out) == (2, "") and err.startswith(
        "onegru: other.onnx: it has no part that can be compared"
    )


def test_numbers_that_differ_are_shown_to_differ() -> None:
    assert _format_pair(0.25, 0.0) == "0.25, not 0"
    assert _format_pair(0.110021, 0.109987) == "0.11002, not 0.10999"
    assert _format_pair(1.0, float(np.nextafter(1.0, 2.0))) == "1, not 1.0000000000000002"
    assert _format_pair(float("nan"), 1.0) == "nan, not 1"
    assert _format_pair(None, 1.0) == ", not 1"
