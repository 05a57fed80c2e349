"""Test that errors keep their cause, so that a traceback shows another package's message."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import onegru
from tests.support.files.onnx_models import graph, model, save, value

SOURCE = Path(onegru.__file__).parent

# An interrupt is not a failure. Its traceback only shows where it arrived.
WITHOUT = {("cli/commands/score.py", "KeyboardInterrupt")}


def test_only_interrupts_are_raised_without_their_cause() -> None:
    """Code that prepends a location to an error of onegru keeps its cause: `from error.__cause__`."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        caught = {
            id(inner): ast.unparse(node.type)
            for node in ast.walk(tree)
            if isinstance(node, ast.ExceptHandler) and node.type is not None
            for inner in ast.walk(node)
        }
        found |= {
            (path.relative_to(SOURCE).as_posix(), caught.get(id(node), "nothing"))
            for node in ast.walk(tree)
            if isinstance(node, ast.Raise) and isinstance(node.cause, ast.Constant)
        }
    assert found == WITHOUT


def test_what_other_packages_say_is_the_cause(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (tmp_path / "x.onnx").write_bytes(b"\x08\x07\x3a\xff\xff")
    with pytest.raises(onegru.FormatError) as caught:
        onegru.load(tmp_path / "x.onnx")
    assert type(caught.value.__cause__).__module__.startswith("google")
    nonsense = onnx.helper.make_node("Nonsense", ["X"], ["Y"])
    proto = model(graph([nonsense], [value("X", shape=[1])], ["Y"]))
    with pytest.raises(onegru.FormatError) as caught:
        onegru.load(save(tmp_path, proto)).run({"X": [1.0]})
    assert type(caught.value.__cause__).__module__.startswith("onnxruntime")
