"""Each command opens and parses each file of a model once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import onegru
from onegru.formats.onnx.validate import read_model
from onegru.formats.openvino.xml import parse_xml
from tests.support.decomposed import ir
from tests.support.decomposed.draw import decomposed
from tests.support.layers import make_gru
from tests.support.machine.cli import Cli

pytest.importorskip("typer")
pytest.importorskip("rich")

PARSERS = {read_model.__code__: "ONNX", parse_xml.__code__: "IR"}

_opened: list[Counter[str]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _opened and event == "open" and isinstance(arguments[0], str):
        _opened[-1][Path(arguments[0]).name] += 1


sys.addaudithook(_note)


@contextmanager
def counted() -> Iterator[tuple[Counter[str], Counter[str]]]:
    """How often files are opened, by name, and models parsed, by kind."""
    parsed: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in PARSERS:
            parsed[PARSERS[frame.f_code]] += 1

    _opened.append(Counter())
    sys.setprofile(note)
    try:
        yield _opened[-1], parsed
    finally:
        sys.setprofile(None)
        _opened.pop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    layer = make_gru()
    onegru.save_layers(layer, "gru.onnx")
    onegru.save_layers(layer, "gru.xml")
    onegru.save_layers(layer, "gru.safetensors")
    case = decomposed("chain", np.random.default_rng(1))
    Path("parts.onnx").write_bytes(case.model.SerializeToString())
    ir.write(tmp_path / "parts.xml", ir.Written())
    return tmp_path


# What is parsed beside the source: the result, which is checked before it is written; an IR's .xml again, for
# what its layers do along time.
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "parses"),
    [
        ("inspect gru.onnx", {"ONNX": 1}),
        ("inspect gru.xml", {"IR": 2}),
        ("inspect parts.onnx", {"ONNX": 1}),
        ("inspect parts.xml", {"IR": 1}),
        ("inspect gru.safetensors", {}),
        ("convert gru.onnx a.safetensors", {"ONNX": 1}),
        ("convert gru.xml a.safetensors", {"IR": 1}),
        ("rewrite gru.onnx a.onnx --opset 14", {"ONNX": 2}),
        ("fuse parts.onnx a.onnx", {"ONNX": 2}),
        ("fuse parts.xml a.xml", {"IR": 1}),
        ("stream gru.onnx a.onnx", {"ONNX": 2}),
        ("stream gru.xml a.xml", {"IR": 2}),
        ("quantize gru.onnx a.onnx", {"ONNX": 3}),
        ("run gru.onnx --random 0", {"ONNX": 1}),
        ("run gru.xml --random 0", {"IR": 1}),
    ],
)
def test_a_command_opens_and_parses_a_model_once(cli: Cli, command: str, parses: dict[str, int]) -> None:
    with counted() as (opened, parsed):
        assert cli(*command.split()).code == 0
    source = command.split()[1]
    files = [source, source.replace("xml", "bin")] if source.endswith("xml") else [source]
    assert {name: opened[name] for name in files} == dict.fromkeys(files, 1)
    assert parsed == parses


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "kind"), [("parts.onnx", "ONNX"), ("parts.xml", "IR")])
def test_fusing_in_memory_parses_the_file_once(name: str, kind: str) -> None:
    with counted() as (opened, parsed):
        assert onegru.load(name, fuse=True).gru_nodes
    assert opened[name] == 1
    assert parsed[kind] == (1 if kind == "IR" else 2)  # of ONNX, the model that is handed to the reader, too
