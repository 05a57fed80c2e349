"""Stacks of GRUs with other operators between them are decomposed, and fused into the same GRUs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onegru

pytest.importorskip("onnxruntime")

I, H = 5, 4
BETWEEN: dict[str, list[tuple[str, ...]]] = {
    "Tanh": [("Tanh", "r")],
    "Sigmoid": [("Sigmoid", "r")],
    "HardSigmoid": [("HardSigmoid", "r")],
    "Mul, Add": [("Mul", "r", "scale"), ("Add", "a0", "shift")],
    "Tanh, Add": [("Tanh", "r"), ("Add", "a0", "r")],
    "Tanh, Sigmoid, Mul": [("Tanh", "r"), ("Sigmoid", "r"), ("Mul", "a0", "a1")],
}


def stack(path: Path, layers: int, between: str, sizes: list[int]) -> None:
    """Bidirectional GRUs, whose outputs are reshaped to these sizes."""
    rng, nodes, value = np.random.default_rng(0), [], "x"
    given: dict[str, Any] = {
        "sizes": np.array(sizes),
        "scale": np.float32(0.7),
        "shift": np.full(2 * H, 0.3, np.float32),
    }
    for layer in range(layers):
        for name, shape in (
            ("W", (2, 3 * H, 2 * H if layer else I)),
            ("R", (2, 3 * H, H)),
            ("B", (2, 6 * H)),
        ):
            given[f"{name}{layer}"] = rng.standard_normal(shape).astype(np.float32) / 4
        weights = [f"{name}{layer}" for name in "WRB"]
        attributes: dict[str, Any] = {"hidden_size": H, "direction": "bidirectional"}
        nodes.append(helper.make_node("GRU", [value, *weights], [f"Y{layer}"], **attributes))
        nodes.append(helper.make_node("Transpose", [f"Y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "sizes"], [f"{layer}r"]))
        for place, (kind, *inputs) in enumerate(BETWEEN[between]):
            inputs_of_op = [name if name in given else f"{layer}{name}" for name in inputs]
            value = f"{layer}a{place}"
            nodes.append(helper.make_node(kind, inputs_of_op, [value]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["T", "N", size])
        for name, size in (("x", I), (value, 2 * H))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in given.items()]
    graph = helper.make_graph(nodes, "net", infos[:1], infos[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("sizes", [[0, 0, 2 * H], [0, -1, 2 * H], [0, 0, -1]], ids=str)
@pytest.mark.parametrize(("layers", "between"), [(2, "Tanh"), *((3, between) for between in BETWEEN)])
def test_every_layer_is_found_again(layers: int, between: str, sizes: list[int], tmp_path: Path) -> None:
    source, loose, target = (tmp_path / f"{name}.onnx" for name in ("source", "loose", "fused"))
    stack(source, layers, between, sizes)
    onegru.rewrite(source, loose, decompose=True)
    report = onegru.fuse(loose, target)
    assert not report.near_misses
    model = onnx.load(target)
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    found = [shapes[node.input[1]] for node in model.graph.node if node.op_type == "GRU"]
    assert found == [[2, 3 * H, I], *[[2, 3 * H, 2 * H]] * (layers - 1)]
