"""`onegru convert` over every pair of kinds of files, the frameworks' own among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch")
pytest.importorskip("keras")
pytest.importorskip("safetensors")

import onegru
from onegru.models.layer_files.convert import convert_layers
from onegru.models.layer_files.select import joined, read_source

I, H = 5, 6
KINDS = (".onnx", ".xml", ".safetensors", ".pt", ".keras")


def make(layers: int, direction: Any) -> onegru.GRU | onegru.Stack:
    rng = np.random.default_rng(layers)
    D = 2 if direction == "bidirectional" else 1
    made = []
    for index in range(layers):
        shapes = ((D, 3 * H, D * H if index else I), (D, 3 * H, H), (D, 6 * H))
        weights = [(rng.standard_normal(shape) * 0.4).astype(np.float32) for shape in shapes]
        made.append(onegru.GRU(*weights, direction=direction, linear_before_reset=True))
    return joined(made)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize(("layers", "direction"), [(1, "forward"), (2, "bidirectional")])
def test_every_pair(tmp_path: Path, first: str, second: str, layers: int, direction: Any) -> None:
    source = make(layers, direction)
    one, two = tmp_path / f"one{first}", tmp_path / f"two{second}"
    assert all(item.agrees for item in convert_layers(source, one, {})[0])
    assert all(item.agrees for item in convert_layers(read_source(one), two, {})[0])
    again = joined([*onegru.load_layers(two).values()])
    X = np.random.default_rng(9).standard_normal((4, 3, I)).astype(np.float32)
    assert np.abs(again(X)[0] - source(X)[0]).max() <= 1e-6
