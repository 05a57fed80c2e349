"""`onegru quantize` of an IR; tests/cli/commands/test_rewrite.py has ONNX models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru.quantization.report import int8_usage
from tests.support.machine.cli import Cli


def test_an_ir(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layer = onegru.GRU(*(rng.standard_normal((1, 12, 4)).astype("f") for _ in "WR"))
    source, target = tmp_path / "gru.xml", tmp_path / "int8.xml"
    onegru.save_layers(layer, source)
    result = cli("quantize", str(source), str(target))
    assert result.code == 0 and "int8.xml" in result.out
    assert 'type="Multiply"' in target.read_text()
    result = cli("quantize", str(source), str(tmp_path / "int8.onnx"))
    assert result.code == 2 and "must be an ONNX model, like TARGET" in result.err


def layer_of(hidden_size: int = 16) -> onegru.GRU:
    rng = np.random.default_rng(0)
    return onegru.GRU(*(rng.standard_normal((1, 3 * hidden_size, hidden_size), np.float32) / 8 for _ in "WR"))


@pytest.mark.parametrize("command", [["quantize"], ["stream", "--quantize"]])
def test_the_last_line_runs_the_file_in_int8(command: list[str], cli: Cli, tmp_path: Path) -> None:
    """A file that is only loaded computes in float32, no faster than before."""
    source, target = tmp_path / "gru.onnx", tmp_path / "int8.onnx"
    onegru.save_layers(layer_of(), source)
    result = cli(*command, str(source), str(target))
    assert result.code == 0, result.err
    *_, notice, last = result.out.splitlines()
    assert 'session.disable_quant_qdq = "1"' in notice
    code, _, option = last.removeprefix("to run it in int8: ").partition(", or add ")
    loaded = eval(code, {"onegru": onegru})
    assert [node.layer.weight_storage for node in loaded.gru_nodes] == ["int8"]
    assert option == "--weight-storage int8 on the command line"


def test_the_last_line_names_only_the_nodes_in_int8() -> None:
    said = int8_usage("m.onnx", ["one", "two"], {"one": "int8_g32"}, {})
    assert said[-1] == "to run it in int8: onegru.load('m.onnx', weight_storage={'one': 'int8_g32'})"
    said = int8_usage("m.xml", ["one"], {"one": "int8"}, {"one": "int8"})
    assert "ONNX Runtime" not in " ".join(said)
    assert said[-1].endswith("--weight-storage int8 --activation-storage int8 on the command line")


def test_the_printed_report_runs_the_file_in_int8(tmp_path: Path) -> None:
    source, target = tmp_path / "gru.onnx", tmp_path / "int8.onnx"
    onegru.save_layers(layer_of(), source)
    said = str(onegru.quantize(source, None, target))
    assert said.splitlines()[-1].startswith("to run it in int8: onegru.load(")
    assert " exact " in said and "inf dB" not in said
    assert "run it in int8" not in str(onegru.quantize(source))


def test_bench_times_onnxruntime_on_float32_weights_too(cli: Cli, tmp_path: Path) -> None:
    """ONNX Runtime dequantizes in each run by default, which no one compares with."""
    source, target = tmp_path / "gru.onnx", tmp_path / "int8.onnx"
    onegru.save_layers(layer_of(), source)
    onegru.quantize(source, None, target)
    options = ["--random", "0", "--rounds", "1"]
    said = cli("bench", str(target), *options)
    assert said.code == 0 and "onnxruntime's time with float32 weights is " in said.out
    assert "add --weight-storage int8 to compute with them" in said.out
    said = cli("bench", str(target), "--weight-storage", "int8", *options)
    assert said.code == 0 and "to compute with them" not in said.out
    said = cli("bench", str(source), *options)
    assert said.code == 0 and "float32 weights" not in said.out and "int8" not in said.out
