"""`onegru quantize` of an IR; tests/cli/test_rewrite.py has ONNX models."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import onegru
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
    assert result.code == 2 and "must be an ONNX model, as TARGET is" in result.err
