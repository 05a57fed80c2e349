"""The commands with which `inspect` ends run as they are printed."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

import onegru
from onegru.cli.next_steps import next_steps
from tests.support.files.onnx_models import WEIGHTS, X_INFO, graph, gru, model, node, save, value, weights
from tests.support.layers import make_gru, make_stack
from tests.support.machine.cli import Cli
from tests.support.models.rewrite_cases import exported_augru


def _plain(opset: int = 17, dtype: str = "float32") -> Any:
    info = X_INFO if dtype == "float32" else value("X", dtype, ["time", "batch", weights()["W"].shape[2]])
    nodes = [gru("X", ["Y"], name="g"), node("Identity", ["Y"], ["out"])]
    return model(graph(nodes, [info], [value("out", dtype)], weights(dtype=dtype)), opset=opset)


def _same_names() -> Any:
    nodes = [gru("X", ["Y"], name="g"), gru("X", ["Z"], name="g")]
    return model(graph(nodes, [X_INFO], ["Y", "Z"], WEIGHTS))


@pytest.mark.parametrize(
    "name",
    [
        *("m.onnx", "-m.onnx", "a b'c.onnx", "old.onnx", "f64.onnx", "same.onnx", "stack", "gru.xml"),
        *("augru.onnx", "augru_open.onnx", "augru_decomposed.onnx", "decomposed.onnx", "int8.onnx"),
    ],
)
def test_each_command_runs(name: str, cli: Cli) -> None:
    pytest.importorskip("onnxruntime")
    file = Path(name)
    if name == "stack":
        file = Path("stack.safetensors")
        onegru.save_layers(make_stack(2), file)
    elif name == "gru.xml":
        onegru.save_layers(make_gru(), file)
    else:
        made = {
            "old.onnx": _plain(7),
            "f64.onnx": _plain(dtype="float64"),
            "same.onnx": _same_names(),
            "augru.onnx": exported_augru(5, {"attention": "dien"}),
            "augru_open.onnx": exported_augru("T", {"layout": 1, "direction": "bidirectional"}),
            "augru_decomposed.onnx": exported_augru(3, {}),
        }
        save(Path(), made.get(name, _plain()), name)
        if "decomposed" in name:
            onegru.rewrite(file, file, decompose=True, check=False)
        if name == "int8.onnx":
            onegru.quantize(file, None, file)
    steps = [command for _, command in next_steps(onegru.inspect(str(file)))]
    assert steps or name == "same.onnx"
    for number, command in enumerate(steps):
        target = f"{number}{'.xml' if name.endswith('.xml') and 'convert' not in command else '.onnx'}"
        words = shlex.split(command.replace("TARGET.onnx", "TARGET").replace("TARGET", target))
        result = cli(*words[1:])
        assert words[0] == "onegru" and result.code == 0, f"{command}: {result.err}"
        assert Path(target).exists()


def test_no_command_for_names_that_cannot_be_printed(tmp_path: Path) -> None:
    found = onegru.inspect(save(tmp_path, _plain()))
    assert [*next_steps(found)] and not [*next_steps(dataclasses.replace(found, path="a\nb.onnx"))]
