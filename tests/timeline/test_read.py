"""The operators that a loaded model keeps for its streams."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import onegru
from onegru import SpecError, SpecWarning
from onegru.models.load import graph_of
from onegru.models.model import Model
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.losses import LossFinder
from onegru.timeline.read import read_model_flow
from tests.support.models.streams import I, StreamNet


def turned(net: StreamNet, x: str) -> str:
    return net.op("Slice", x, *map(net.const, ([-1], [-(2**31)], [0], [-1])))


def test_the_file_is_not_needed_again(tmp_path: Path) -> None:
    net = StreamNet()
    path = tmp_path / "m.onnx"
    path.write_bytes(net.end(net.gru(turned(net, "x"), "h", "h_out")).SerializeToString())
    model = onegru.load(path)
    path.unlink()
    for copy in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(SpecError, match="cannot be streamed, because Slice node 'Slice_0' reverses"):
            copy.stream()


def test_large_constants_are_not_kept() -> None:
    net = StreamNet()
    wide = net.op("MatMul", "x", net.random(I, 5000))
    tensor = numpy_helper.from_array(np.ones((5000, I), np.float32))
    net.nodes.append(helper.make_node("Constant", [], ["narrow"], value=tensor))
    graph = graph_of(net.end(net.gru(net.op("MatMul", wide, "narrow"), "h", "h_out")))
    assert graph.outline is not None and len(graph.outline.content.SerializeToString()) < 10_000
    model_flow = read_model_flow(graph)
    assert model_flow is not None
    assert LossFinder(TimeAnalysis(model_flow.flow, {"h": "h_out"}, model_flow.opset)).findings() == []


def test_operators_that_cannot_be_followed() -> None:
    net = StreamNet()
    graph = graph_of(net.end(net.gru("x", "h", "h_out")))
    assert graph.outline is not None
    for outline in (None, replace(graph.outline, content=b"", weights=np.zeros(0, np.uint8))):
        with pytest.warns(SpecWarning, match="onegru cannot follow its operators"):
            Model(replace(graph, outline=outline)).stream()


def test_only_some_nodes_are_named() -> None:
    net = StreamNet()
    y = "x"
    for _ in range(7):
        y = turned(net, y)
    with pytest.raises(SpecError, match="Slice_4' reverses time; and 2 more; run it as a whole"):
        onegru.load(net.end(net.gru(y, "h", "h_out"))).stream()


def test_what_leads_only_to_a_new_state_is_not_looked_at() -> None:
    net = StreamNet()
    net.inputs["mean_prev"] = net.outputs["mean_next"] = [1, 2, I]
    mean = net.op("ReduceMean", "x", axes=[0], keepdims=1)
    net.op("Max", mean, "mean_prev", output="mean_next")
    model = net.end(net.gru("x", "h", "h_out"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert onegru.load(model).stream().pairs == {"h_out": "h", "mean_next": "mean_prev"}
