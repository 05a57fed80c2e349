"""Each command warns of open input axes along which a model reads only fixed positions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onegru
from onegru import SpecWarning
from onegru.cli import app
from onegru.engines.interface import DEFAULT_OPTIONS
from onegru.models.load import graph_of
from onegru.scoring.programs.source import open_program
from onegru.timeline.unread import find_unread
from tests.support.files.onnx_models import I, graph, gru, model, node, save, value, weights

ONLY = "along the dynamic axis 1 of 'x', only"
CONSTANTS = {
    "first": np.array(0),
    "two": np.array([0, 1]),
    "last": np.array(-1),
    "zero": np.array([0]),
    "one": np.array([1]),
    "three": np.array([3]),
    "end": np.array([2**63 - 1]),
    "minus": np.array([-1]),
}
UNSQUEEZED = node("Unsqueeze", ["x0", "zero"], ["x1"])
FIRST = [node("Gather", ["x", "first"], ["x0"], axis=1), UNSQUEEZED]
LAST = [node("Gather", ["x", "last"], ["x0"], axis=1), UNSQUEEZED]
TURNED = node("Transpose", ["x"], ["t"], perm=[1, 0, 2])
CUT = [TURNED, node("Slice", ["t", "one", "three", "zero"], ["x1"])]
CUT_AT_END = [TURNED, node("Slice", ["t", "minus", "end", "zero"], ["x1"])]


def written(nodes: list[onnx.NodeProto], path: Path, steps: str | int = "time") -> Path:
    layer = gru("x1", ["", "Y_h"], name="gru")
    info = value("x", shape=["batch", steps, I])
    return save(path, model(graph([*nodes, layer], [info], ["Y_h"], {**weights(), **CONSTANTS})))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            FIRST,
            f"{ONLY} position 0 is read: the model ignores the rest; was it exported for 1 step?",
        ),
        (LAST, f"{ONLY} position -1 is read: the model ignores the rest; was it exported for the last"),
        (CUT, "only positions 1, 2 are read: the model ignores the rest; was it exported for 3 steps?"),
        (CUT_AT_END, "only position -1 is read"),
    ],
    ids=["first", "last", "two", "cut at the end"],
)
def test_fixed_positions(nodes: list[onnx.NodeProto], words: str, tmp_path: Path) -> None:
    (found,) = find_unread(graph_of(written(nodes, tmp_path)))
    assert words in found


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Transpose", ["x"], ["x1"], perm=[1, 0, 2])],
        [TURNED, node("Slice", ["t", "one", "end", "zero"], ["x1"])],
        [TURNED, node("Slice", ["t", "zero", "minus", "zero"], ["x1"])],
        [*FIRST[:1], node("Unsqueeze", ["x0", "zero"], ["x2"]), TURNED, node("Add", ["t", "x2"], ["x1"])],
    ],
    ids=["all", "all but the first", "all but the last", "the first and all"],
)
def test_all_positions(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert not [*find_unread(graph_of(written(nodes, tmp_path)))]


def test_an_axis_of_a_fixed_size_is_read_as_it_likes(tmp_path: Path) -> None:
    assert not [*find_unread(graph_of(written(FIRST, tmp_path, 60)))]


def fused(path: Path) -> object:
    loose = path.with_name("loose.onnx")
    onegru.rewrite(path, loose, decompose=True, check=False)
    return onegru.fuse(loose, check=False)


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_commands_say_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(FIRST, tmp_path)
    if kind == "xml":
        openvino = pytest.importorskip("openvino")
        openvino.save_model(openvino.convert_model(path), path.with_suffix(".xml"))
        path = path.with_suffix(".xml")
    words = "along the dynamic axis 1 of 'x', only position 0 is read: the model ignores the rest"
    (found,) = onegru.inspect(path).unread
    assert found.startswith(words)
    for command in (["inspect", str(path)], ["run", str(path), "--random", "0"]):
        monkeypatch.setattr(sys, "argv", ["onegru", *command])
        assert app.run() == 0
        captured = capfd.readouterr()
        shown = captured.out if command[0] == "inspect" else captured.err
        assert words in " ".join(shown.split())
    with pytest.warns(SpecWarning, match=words):
        onegru.verify(path, runtimes=["openvino" if kind == "xml" else "onnxruntime"])
    with pytest.warns(SpecWarning, match=words):
        open_program(
            str(path), {}, None, (), {"x": ("batch", "time", "feature")}, False, 8192, DEFAULT_OPTIONS
        )


def test_fusing_says_so(tmp_path: Path) -> None:
    path = written(FIRST, tmp_path)
    onegru.rewrite(path, path, decompose=True, check=False)
    with pytest.warns(SpecWarning, match="along the dynamic axis 1 of 'x', only position 0 is read"):
        onegru.fuse(path, check=False)
