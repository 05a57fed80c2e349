"""`onegru fuse`, and what `onegru inspect` reports about decomposed GRUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onegru
from tests.support.decomposed.draw import decomposed, near_miss
from tests.support.machine.cli import Cli
from tests.support.machine.repository import DENOISER

pytest.importorskip("typer")
pytest.importorskip("rich")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(decomposed("chain of two layers", np.random.default_rng(1)).model.SerializeToString())
    return path


@pytest.fixture
def missed(tmp_path: Path) -> Path:
    path = tmp_path / "missed.onnx"
    path.write_bytes(near_miss("cell: mixed gates", np.random.default_rng(1)).model.SerializeToString())
    return path


def test_inspect(source: Path, cli: Cli) -> None:
    result = cli("inspect", source)
    assert (result.code, result.err) == (0, "")
    found = onegru.inspect(source)
    assert found.fused_nodes is not None
    old, new = found.fused_nodes
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{source}: 0 GRU nodes and ")
    assert f"2 GRUs decomposed into other operators; after fusion, {old} nodes become {new}" in lines
    for item in found.decomposed:
        place = lines.index(f"{item.place}  6 steps in a row, {item.nodes} nodes")
        assert lines[place + 1].startswith(
            f"  GRU {item.input_size} → {item.hidden_size}; forward; reset gate"
        )
    assert lines[-1] == f"decomposed  onegru fuse {source} TARGET"


def test_inspect_tells_of_loops(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "loop.onnx"
    path.write_bytes(decomposed("Scan of two layers", np.random.default_rng(1)).model.SerializeToString())
    result = cli("inspect", path)
    assert "with 2 loops fewer" in result.out
    assert "a loop, " in result.out


def test_inspect_tells_which_part_does_not_fit(missed: Path, cli: Cli) -> None:
    result = cli("inspect", missed)
    (item,) = onegru.inspect(missed).near_misses
    assert result.out.splitlines()[-1] == f"{item.place}  not fused: {item.reason}"
    assert "decomposed into other operators" not in result.out


def test_inspect_as_json(source: Path, missed: Path, cli: Cli) -> None:
    found = json.loads(cli("inspect", source, "--json").out)
    assert [item["form"] for item in found["decomposed"]] == ["chain", "chain"]
    assert found["near_misses"] == [] and found["fused_nodes"][0] > found["fused_nodes"][1]
    (miss,) = json.loads(cli("inspect", missed, "--json").out)["near_misses"]
    assert miss["place"] and miss["reason"]


def test_ordinary_models_say_nothing(cli: Cli) -> None:
    result = cli("inspect", DENOISER)
    assert "decomposed" not in result.out and "not fused" not in result.out
    assert json.loads(cli("inspect", DENOISER, "--json").out)["decomposed"] == []


def test_fuse(source: Path, cli: Cli) -> None:
    result = cli("fuse", source, "target.onnx", "--dim", "batch=3")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("wrote target.onnx, ")
    assert sum("6 steps in a row" in line for line in lines) == 2
    assert any("max ULP" in line for line in lines)
    assert len(onegru.load("target.onnx").gru_nodes) == 2


def test_fuse_as_json(source: Path, cli: Cli) -> None:
    result = cli("fuse", source, "target.onnx", "--json", "--no-check")
    report = json.loads(result.out)
    assert [item["form"] for item in report["fused"]] == ["chain", "chain"]
    assert report["outputs"] == [] and report["near_misses"] == []
    assert report["nodes"][0] > report["nodes"][1]


def test_fuse_then_rewrite(source: Path, cli: Cli) -> None:
    assert cli("fuse", source, "target.onnx").code == 0
    result = cli("rewrite", "target.onnx", "other.onnx", "--layout", 1, "--opset", 22)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("wrote other.onnx, opset ") and lines[0].endswith(" became 22")
    assert lines.count("  layout 0 became 1") == 2


def test_nothing_to_fuse(missed: Path, cli: Cli) -> None:
    result = cli("fuse", missed, "target.onnx")
    assert result.code == 2 and result.out == ""
    assert result.err.count("\n") == 1
    assert "it has no decomposed GRU that could be fused; nothing was written. 1 near miss" in result.err
    assert not Path("target.onnx").exists()
    result = cli("fuse", DENOISER, "target.onnx")
    assert result.code == 2 and "it has no decomposed GRU" in result.err


def test_what_does_not_go_together(source: Path, cli: Cli) -> None:
    cli("fuse", source, "a.xml").refused("is an ONNX model; must be an OpenVINO IR, like TARGET")
    cli("fuse", source, "a.safetensors").refused("TARGET a.safetensors: must end in .onnx or .xml")
    Path("there.onnx").write_bytes(b"something")
    assert "exists" in cli("fuse", source, "there.onnx").err
    assert Path("there.onnx").read_bytes() == b"something"
    result = cli("fuse", source, source, "--overwrite")
    assert result.code == 2 and "is the source" in result.err
    assert "folder 'no' does not exist" in cli("fuse", source, "no/target.onnx").err


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_model_without_gru_nodes_may_have_grus_all_the_same(
    source: Path, missed: Path, cli: Cli, command: str
) -> None:
    hint = "2 decomposed GRUs: `onegru fuse` replaces them with GRU nodes"
    rounds = ["--rounds", "1"] if command == "bench" else []
    assert cli(command, source, "--random", 0, *rounds).out.splitlines()[-1] == hint
    assert "onegru fuse" not in cli(command, missed, "--random", 0, *rounds).out
    assert "onegru fuse" not in cli(command, source, "--random", 0, *rounds, "--json").out
