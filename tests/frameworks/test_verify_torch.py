"""Verification of an export against the PyTorch checkpoint that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.verification.compare_models import compare_with
from tests.support.files.onnx_models import Arrays, graph, gru, model, node, save, value
from tests.support.models.mutants import mutated

torch = pytest.importorskip("torch")

I, H = 5, 3


def reordered(array: Any) -> Any:
    """Gates r, z, n as z, r, h."""
    blocks = array.reshape(3, H, *array.shape[1:])
    return blocks[[1, 0, 2]].reshape(array.shape)


def layer_arrays(module: Any, index: int) -> Arrays:
    """W, R and B of one layer of an nn.GRU, as ONNX has them."""
    found: dict[str, list[Any]] = {"W": [], "R": [], "B": []}
    for suffix in ["", "_reverse"][: 2 if module.bidirectional else 1]:
        tensors = [
            reordered(getattr(module, f"{name}_l{index}{suffix}").detach().numpy())
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        found["W"].append(tensors[0])
        found["R"].append(tensors[1])
        found["B"].append(np.concatenate(tensors[2:]))
    return {name: np.stack(arrays) for name, arrays in found.items()}


def exported(module: Any) -> Any:
    """The ONNX model of a bidirectional nn.GRU of several layers: X to Y."""
    constants: Arrays = {"shape": np.array([0, 0, -1])}
    nodes, x = [], "X"
    for index in range(module.num_layers):
        constants |= {f"{name}{index}": array for name, array in layer_arrays(module, index).items()}
        names: dict[str, Any] = {
            "W": f"W{index}",
            "R": f"R{index}",
            "bias": f"B{index}",
            "name": f"GRU_{index}",
        }
        attributes: dict[str, Any] = {"direction": "bidirectional", "linear_before_reset": 1}
        nodes.append(gru(x, [f"Y{index}"], **names, **attributes))
        nodes.append(node("Transpose", [f"Y{index}"], [f"T{index}"], perm=[0, 2, 1, 3]))
        x = "Y" if index + 1 == module.num_layers else f"S{index}"
        nodes.append(node("Reshape", [f"T{index}", "shape"], [x]))
    return model(graph(nodes, [value("X", shape=["t", "b", I])], ["Y"], constants))


@pytest.fixture
def module() -> Any:
    torch.manual_seed(0)
    return torch.nn.GRU(I, H, num_layers=2, bidirectional=True)


@pytest.fixture
def checkpoint(tmp_path: Path, module: Any) -> Path:
    """The module's state dict among other tensors."""
    path = tmp_path / "checkpoint.pt"
    state = {f"encoder.{name}": tensor for name, tensor in module.state_dict().items()}
    torch.save({**state, "head.weight": torch.ones(2, 3)}, path)
    return path


def test_an_export_against_its_checkpoint(tmp_path: Path, module: Any, checkpoint: Path) -> None:
    proto = exported(module)
    found = compare_with(onegru.load(save(tmp_path, proto)), checkpoint)
    assert found.agrees and [item.agrees for item in found.layers] == [True, True]
    for fault, words in (("z and r", "the gates z and r were swapped"), ("reset before", None)):
        wrong = onegru.load(save(tmp_path, mutated(proto, fault, "GRU_1"), "wrong.onnx"))
        found = compare_with(wrong, checkpoint)
        assert not found.agrees and found.first == 1
        assert found.layers[1].diagnosis == (words or "linear_before_reset were 0")
        assert found.layers[1].reference == "encoder, layer 1"
