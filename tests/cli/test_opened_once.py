"""Each command opens and parses its source once, and parses its result at most once.

What onnx's own tools parse is not counted, and neither is what other runtimes do with bytes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onegru
from onegru.formats.checkpoints.checkpoint import read_pytorch, read_safetensors
from onegru.formats.onnx.validate import read_model
from onegru.formats.openvino.xml import parse_xml
from tests.support.decomposed import ir
from tests.support.decomposed.draw import decomposed
from tests.support.layers import make_gru
from tests.support.machine.cli import Cli

pytest.importorskip("typer")
pytest.importorskip("rich")

PARSERS = {
    **dict.fromkeys(
        (read_model.__code__, onnx.load_model.__code__, onnx.load_model_from_string.__code__), "ONNX"
    ),
    parse_xml.__code__: "IR",
    read_pytorch.__code__: "PyTorch",
    read_safetensors.__code__: "safetensors",
}
#: Methods of a ModelProto, which only `read_model` may call.
METHODS = ("ParseFromString", "MergeFromString", "FromString")

_opened: list[Counter[str]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _opened and event == "open" and isinstance(arguments[0], str):
        _opened[-1][Path(arguments[0]).name] += 1


sys.addaudithook(_note)


def is_ours(frame: FrameType | None) -> bool:
    """Whether onegru runs in a frame."""
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "onegru"


@contextmanager
def counted() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """How often files are opened, by name, and models and checkpoints parsed, by kind."""
    parsed: Counter[str] = Counter()

    def note(frame: FrameType, event: str, given: Any) -> None:
        if event == "call" and frame.f_code in PARSERS and is_ours(frame.f_back):
            parsed[PARSERS[frame.f_code]] += 1
        elif event == "c_call" and given.__name__ in METHODS and is_ours(frame):
            owner = getattr(given, "__self__", None)
            is_model = isinstance(owner, onnx.ModelProto) or owner is onnx.ModelProto
            parsed["ONNX"] += is_model and frame.f_code is not read_model.__code__

    _opened.append(Counter())
    sys.setprofile(note)
    try:
        yield _opened[-1], parsed
    finally:
        sys.setprofile(None)
        _opened.pop()


def followed(operator: str, dtype: int, **attributes: Any) -> onnx.ModelProto:
    """The model of a GRU, with another operator after it."""
    model = onnx.load("gru.onnx")
    model.graph.node.append(helper.make_node(operator, ["Y"], ["Z"], **attributes))
    model.graph.output.append(helper.make_tensor_value_info("Z", dtype, None))
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    layer = make_gru(linear_before_reset=True)
    onegru.save_layers(layer, "gru.onnx")
    onegru.save_layers(layer, "gru.xml")
    onegru.save_layers(layer, "gru.safetensors")
    if HAS_TORCH:
        onegru.save_layers(layer, "gru.pt")
    case = decomposed("chain", np.random.default_rng(1))
    Path("parts.onnx").write_bytes(case.model.SerializeToString())
    ir.write(tmp_path / "parts.xml", ir.Written())
    onnx.save(followed("Softmax", TensorProto.FLOAT), "more.onnx")  # a whole model, for ONNX Runtime
    onnx.save(followed("ArgMax", TensorProto.INT64, axis=-1), "index.onnx")  # compared by what is in front
    model = followed("Softmax", TensorProto.FLOAT)
    onnx.save(model, "large.onnx", save_as_external_data=True, location="large.bin", size_threshold=0)
    model = followed("Relu", TensorProto.FLOAT)
    model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, None))  # with a default
    onnx.save(model, "default.onnx")
    return tmp_path


HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs OpenVINO")
needs_runtime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="needs ONNX Runtime"
)

#: What each command parses: the source, and of most changes the result, which is then checked.
#: A changed IR is checked as it is in memory, without a parse. Two ways parse more, and are not in the table:
#: - A link to a model with links to external data: ONNX Runtime follows none, so what it gets as bytes is
#:   parsed, and changed, for each session.
#: - `rewrite` of a model without GRU nodes, which fails: the message says what `fuse` would find in the file.
READING: dict[str, dict[str, int]] = {
    "inspect gru.onnx": {"ONNX": 1},
    "inspect gru.xml": {"IR": 1},
    "inspect parts.onnx": {"ONNX": 1},
    "inspect parts.xml": {"IR": 1},
    "inspect more.onnx": {"ONNX": 1},
    "inspect gru.safetensors": {"safetensors": 1},
    "inspect gru.pt": {"PyTorch": 1},
    "run gru.onnx --random 0": {"ONNX": 1},
    "run gru.xml --random 0": {"IR": 1},
    "run more.onnx --random 0": {"ONNX": 1},
    "run default.onnx --random 0": {"ONNX": 1},
    "run large.onnx --random 0": {"ONNX": 1},
    "run parts.onnx --random 0": {"ONNX": 1},
    "run parts.xml --random 0": {"IR": 1},
    "trace more.onnx --random 0": {"ONNX": 1},
    "verify gru.onnx": {"ONNX": 1},
    "verify gru.xml": {"IR": 1},
    "verify large.onnx --runtime onnx": {"ONNX": 1},
}
CHANGING: dict[str, dict[str, int]] = {
    "convert gru.onnx a.safetensors": {"ONNX": 1, "safetensors": 1},
    "convert gru.xml a.safetensors": {"IR": 1, "safetensors": 1},
    "convert gru.safetensors a.onnx": {"safetensors": 1, "ONNX": 1},
    "convert gru.safetensors a.xml": {"safetensors": 1, "IR": 1},
    "convert gru.pt a.onnx": {"PyTorch": 1, "ONNX": 1},
    "convert gru.pt a.xml": {"PyTorch": 1, "IR": 1},
    "convert gru.pt a.safetensors": {"PyTorch": 1, "safetensors": 1},
    "convert gru.onnx a.xml": {"ONNX": 1, "IR": 1},
    "convert gru.xml a.onnx": {"IR": 1, "ONNX": 1},
    "convert more.onnx a.safetensors --node GRU": {"ONNX": 1, "safetensors": 1},
    "rewrite gru.onnx a.onnx --opset 14": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --opset 14 --dims 3": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --opset 14 --no-check": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --for onnxruntime": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --for openvino": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --decompose": {"ONNX": 2},
    "rewrite gru.onnx a.onnx --float16": {"ONNX": 2},
    "rewrite index.onnx a.onnx --for onnxruntime": {"ONNX": 2},
    "rewrite default.onnx a.onnx --opset 14": {"ONNX": 2},
    "fuse parts.onnx a.onnx": {"ONNX": 2},
    "fuse parts.xml a.xml": {"IR": 1},
    "stream gru.onnx a.onnx": {"ONNX": 2},
    "stream gru.onnx a.onnx --quantize": {"ONNX": 2},
    "stream large.onnx a.onnx": {"ONNX": 2},
    "stream gru.xml a.xml": {"IR": 1},
    "quantize gru.onnx a.onnx": {"ONNX": 2},
    "quantize index.onnx a.onnx": {"ONNX": 2},
    "quantize gru.xml a.xml": {"IR": 1},
    # two sources, each once
    "verify gru.onnx --runtime onnx --against gru.xml": {"ONNX": 1, "IR": 1},
    "verify gru.onnx --runtime onnx --against gru.safetensors": {"ONNX": 1, "safetensors": 1},
    "verify gru.onnx --runtime onnx --against gru.pt": {"ONNX": 1, "PyTorch": 1},
}


def cases() -> Iterator[Any]:
    """Each command, with what it parses, and the most that it may."""
    for most, table in enumerate((READING, CHANGING), 1):
        for command, parses in table.items():
            words = command.split()
            marks = [needs_torch] if "gru.pt" in words else []
            marks += [needs_openvino] if "openvino" in words or command.startswith("run parts.xml") else []
            whole = {"more.onnx", "index.onnx", "large.onnx", "default.onnx", "parts.onnx", "onnxruntime"}
            yield pytest.param(
                command, parses, most, marks=[*marks, *([needs_runtime] if whole & {*words} else [])]
            )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "parses", "most"), cases())
def test_a_command_opens_and_parses_a_model_once(
    cli: Cli, command: str, parses: dict[str, int], most: int
) -> None:
    with counted() as (opened, parsed):
        assert cli(*command.split()).code == 0
    source = command.split()[1]
    files = [source, source.replace("xml", "bin")] if source.endswith("xml") else [source]
    assert {name: opened[name] for name in files} == dict.fromkeys(files, 1)
    assert +parsed == parses
    assert parsed.total() <= most


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "kind"), [("parts.onnx", "ONNX"), ("parts.xml", "IR")])
def test_fusing_in_memory_parses_the_file_once(name: str, kind: str) -> None:
    with counted() as (opened, parsed):
        assert onegru.load(name, fuse=True).gru_nodes
    assert opened[name] == 1
    assert parsed[kind] == (1 if kind == "IR" else 2)  # of ONNX, the model that is handed to the reader, too
