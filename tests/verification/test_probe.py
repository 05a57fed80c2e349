"""Models for other runtimes to compare with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.verification.probe import one_node_model
from tests.support.files import onnx_models as m
from tests.support.files.onnx_models import augru_node


@pytest.mark.parametrize("attention", [False, True])
def test_one_node(attention: bool, tmp_path: Path) -> None:
    A = m.numbers(7, m.T, m.B, 1)
    feeds = {"X": m.X, "A": A} if attention else {"X": m.X}
    names = {"X": "X", "W": "W", "R": "R", "B": "B", "A": "A"}
    node = augru_node(names, {"Y": "Y"}, {}, "g") if attention else m.gru("X", ["Y"], bias="B", name="g")
    model = m.model(m.graph([node], [m.value(name) for name in feeds], ["Y"], m.WEIGHTS))
    model.opset_import[0].version = 17
    add_augru_functions(model)
    (gru,) = m.loaded(tmp_path, model).gru_nodes
    single = one_node_model("model.onnx", gru.step, gru.step.operator.version, m.WEIGHTS, feeds)
    onnx.load_from_string(single)
    session = onnxruntime.InferenceSession(single, providers=["CPUExecutionProvider"])
    layer = onegru.GRU(**m.WEIGHTS, attention=attention)
    wanted = layer(m.X, attention=A[..., 0] if attention else None)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], wanted, rtol=0, atol=1e-6)
