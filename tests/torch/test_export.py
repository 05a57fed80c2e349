"""`torch.onnx.export` of onegru's modules, by both exporters, gives the nodes that compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru

torch = pytest.importorskip("torch")
ours = pytest.importorskip("onegru.torch")

EXPORTERS = ["older", "newer"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "reset before": {"linear_before_reset": False},
    "clip": {"clip": 0.75, "bias": False},
    "activations": {
        "bidirectional": True,
        "activations": ["HardSigmoid", "Relu", "Sigmoid", "LeakyRelu"],
        "activation_alpha": [0.25, 0.125],
        "activation_beta": [0.5],
    },
    "batch first": {"batch_first": True, "num_layers": 2, "clip": 1.5},
}


def export(module: Any, inputs: tuple[Any, ...], names: list[str], path: Path, exporter: str) -> None:
    if exporter == "newer":
        pytest.importorskip("onnxscript")
        if not hasattr(torch.onnx, "ops"):
            pytest.skip("PyTorch before 2.8: its newer exporter takes no nodes")
    torch.onnx.export(
        module.eval(), inputs, path, input_names=names, dynamo=exporter == "newer", external_data=False
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_gru_is_exported_as_gru_nodes(name: str, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = ours.GRU(3, 5, **OPTIONS[name])
    layers = module.num_layers * (2 if module.bidirectional else 1)
    x, h = torch.randn(4, 2, 3), torch.randn(layers, 4 if module.batch_first else 2, 5)
    path = tmp_path / "m.onnx"
    export(module, (x, h), ["x", "h"], path, exporter)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("GRU") == module.num_layers
    wanted = [tensor.detach().numpy() for tensor in module(x, h)]
    found = onegru.load(path).run({"x": x.numpy(), "h": h.numpy()})
    for array, by in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(array, by, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"clip": 0.5, "bidirectional": True, "num_layers": 2}])
def test_open_sizes_stay_open(options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    if not hasattr(torch.onnx, "ops"):
        pytest.skip("PyTorch before 2.8: its newer exporter takes no nodes")
    module, path = ours.GRU(3, 5, **options).eval(), tmp_path / "m.onnx"
    steps, rows = torch.export.Dim("steps", min=2, max=99), torch.export.Dim("rows", min=2, max=99)
    shapes = {"input": {0: steps, 1: rows}}
    torch.onnx.export(
        module, (torch.randn(7, 4, 3),), path, dynamic_shapes=shapes, dynamo=True, external_data=False
    )
    model, x = onegru.load(path), torch.randn(11, 2, 3)
    found = model.run({model.inputs[0].name: x.numpy()})
    for array, by in zip(found.values(), module(x), strict=True):
        np.testing.assert_allclose(array, by.detach().numpy(), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_lengths_are_an_input_of_the_node(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = ours.GRU(3, 5, bidirectional=True)
    x, lengths, path = torch.randn(4, 2, 3), torch.tensor([4, 2]), tmp_path / "m.onnx"
    export(module, (x, None, lengths), ["x", "lengths"], path, exporter)
    model = onegru.load(path)
    (name,) = {info.name for info in model.inputs} - {"x"}
    for given in ([4, 2], [1, 3]):
        found = model.run({"x": x.numpy(), name: np.array(given)})
        wanted = module(x, lengths=torch.tensor(given))
        for array, by in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(array, by.detach().numpy(), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("kind", ["openvino", "dien"])
def test_an_augru_is_exported_as_the_node_of_onegrus_domain(exporter: str, kind: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    module = ours.AUGRU(3, 5, attention=kind)
    x, a = torch.randn(4, 2, 3), torch.rand(4, 2)
    path, whole = tmp_path / "m.onnx", tmp_path / "whole.onnx"
    export(module, (x, a), ["x", "a"], path, exporter)
    assert [n.domain for n in onnx.load(path).graph.node if n.op_type == "AUGRU"] == ["onegru"]
    inputs = {"x": x.numpy(), "a": a.numpy()}
    wanted = [tensor.detach().numpy() for tensor in module(x, a)]
    onegru.rewrite(path, whole)  # gives it the function that other runtimes run
    own = onegru.execution_provider.register()
    sessions = [onegru.InferenceSession(path)]
    for providers in (["CPUExecutionProvider"], [own, "CPUExecutionProvider"]):
        sessions.append(onnxruntime.InferenceSession(whole, providers=providers))
    for is_by_name in (True, False):  # of the file as it was exported
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if is_by_name:
            options.register_custom_ops_library(onegru.execution_provider.get_library_path())
            sessions.append(onnxruntime.InferenceSession(path, options, providers=providers))
        else:
            devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == own]
            options.add_provider_for_devices(devices, {})
            sessions.append(onnxruntime.InferenceSession(path, options))
    runs = [onegru.load(path).run(inputs).values(), *(session.run(None, inputs) for session in sessions)]
    for found in runs:
        for array, by in zip(found, wanted, strict=True):
            np.testing.assert_allclose(array, by, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_cell_is_exported_as_a_gru_node(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    cell, x, h = ours.GRUCell(3, 5), torch.randn(2, 3), torch.randn(2, 5)
    path = tmp_path / "m.onnx"
    export(cell, (x, h), ["x", "h"], path, exporter)
    assert "GRU" in [node.op_type for node in onnx.load(path).graph.node]
    (found,) = onegru.load(path).run({"x": x.numpy(), "h": h.numpy()}).values()
    np.testing.assert_allclose(found, cell(x, h).detach().numpy(), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_resets_are_refused(exporter: str, tmp_path: Path) -> None:
    x, resets = torch.randn(4, 2, 3), torch.ones(4, 2, dtype=torch.bool)
    with pytest.raises(Exception, match=r"resets: given|onegru\.gru"):
        export(ours.GRU(3, 5), (x, None, None, resets), ["x", "resets"], tmp_path / "m.onnx", exporter)
