"""Check that operations enter the functions of docs/development/architecture.md in the documented order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import helper

import onegru
from onegru.models.layer_files.convert import convert_layers
from tests.support.decomposed.draw import draw_decomposed
from tests.support.files.onnx_models import save
from tests.support.files.torch_files import write_checkpoint
from tests.support.layers import H, I, make_gru
from tests.support.machine.repository import ROOT

PAGE = (ROOT / "docs/development/architecture.md").read_text()
SOURCES = ROOT / "src/onegru"


def listed(heading: str) -> list[tuple[str, str]]:
    """Return the modules and functions of a table."""
    table = PAGE.split(f"\n`{heading}`:\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|", table, re.MULTILINE)
    return [
        (module, name) for module, names in rows for name in re.findall(r"`([a-z]\w+|[A-Z][a-z]\w+)`", names)
    ]


def entered(run: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the modules and functions, or classes, in the order in which they are first entered."""
    found: dict[tuple[str, str], None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCES):
            found[path.relative_to(SOURCES).as_posix(), frame.f_code.co_qualname.split(".")[0]] = None

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(found)


def run_model() -> None:
    onegru.save_layers(make_gru(), "gru.onnx")
    model = onnx.load("gru.onnx")
    model.graph.node.append(helper.make_node("Exp", ["Y"], ["E"]))
    model.graph.output.append(helper.make_tensor_value_info("E", 1, None))
    onnx.save(model, "whole.onnx")
    found = onegru.load("whole.onnx")
    found.run(
        {
            info.name: np.ones((4, 2, I) if info.name == "X" else (1, 2, H), np.float32)
            for info in found.inputs
        }
    )


def convert() -> None:
    (layers,) = onegru.load_layers("gru.pt").values()
    convert_layers(layers, Path("gru.onnx"), {})


RUNS: dict[str, Callable[[], object]] = {
    'onegru.load("model.onnx").run(inputs)': run_model,
    "onegru.fuse(source, target)": lambda: onegru.fuse("parts.onnx", "fused.onnx"),
    "onegru.make_streaming(source, target)": lambda: onegru.make_streaming("gru.onnx", "streaming.onnx"),
    "onegru.rewrite(source, target)": lambda: onegru.rewrite("gru.onnx", "rewritten.onnx", layout=1),
    "onegru.verify(model)": lambda: onegru.verify("clip.onnx", runtimes=["onnx"]),
    "onegru convert checkpoint.pt model.onnx": convert,
}


@pytest.mark.parametrize("heading", RUNS)
def test_order_of_functions(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onegru.save_layers(make_gru(), "gru.onnx")
    onegru.save_layers(make_gru(clip=0.1), "clip.onnx")  # ONNX's evaluator ignores the clip
    write_checkpoint(tmp_path / "gru.pt", onegru.to_torch_state_dict(make_gru(linear_before_reset=True)))
    save(tmp_path, draw_decomposed(np.random.default_rng(0)).model, "parts.onnx")
    RUNS[heading]()  # imports modules, which enters the bodies of classes
    first = entered(RUNS[heading])
    wanted = listed(heading)
    assert wanted and [item for item in first if item in wanted] == wanted
