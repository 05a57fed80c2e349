"""Lengths: what a file says about them, and what OpenVINO then does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.models.inspect import report
from onegru.runtimes.known_issues import MEASURED
from tests.support.comparison import Arrays, is_right


@dataclass(frozen=True)
class Chain:
    """ONNX GRU nodes on top of each other, I = 2, H = 3, which OpenVINO itself converts to an IR."""

    name: str
    shape: tuple[int | str, ...]
    lengths: str = ""
    """"" for none, "given" for an input, "shape" for X's steps, "short" or "long" for constants 2 and 4."""
    before: str = ""
    count: int = 1
    direction: str = "forward"
    harmed: bool = False
    """Whether OpenVINO is known to miscompute it."""


CHAINS = [
    Chain("open", ("t", "b", 2)),
    Chain("fixed", (4, 3, 2)),
    Chain("open-batch", (4, "b", 2)),
    Chain("open-time", ("t", 3, 2)),
    Chain("open-stack", ("t", "b", 2), count=3),
    Chain("open-stack-bidirectional", ("t", "b", 2), count=2, direction="bidirectional"),
    Chain("open-transposed", ("b", "t", 2), before="Transpose"),
    Chain("open-after-others", ("t", "b", 2), before="Relu"),
    Chain("open-shape", ("t", "b", 2), lengths="shape"),
    Chain("open-shape-transposed", ("b", "t", 2), lengths="shape", before="Transpose", count=2),
    Chain("fixed-given-after-others", (4, 3, 2), lengths="given", before="Relu"),
    Chain("fixed-given-stack", (4, 3, 2), lengths="given", count=2),
    Chain("fixed-given-transposed", (3, 4, 2), lengths="given", before="Transpose"),
    Chain("open-batch-long", (4, "b", 2), lengths="long"),
    Chain("open-batch-short", (4, "b", 2), lengths="short", harmed=True),
    Chain("open-time-long", ("t", 3, 2), lengths="long", harmed=True),
    Chain("open-given", ("t", "b", 2), lengths="given", harmed=True),
    Chain("open-batch-given", (4, "b", 2), lengths="given", harmed=True),
    Chain("open-input-given", (4, 3, "i"), lengths="given", harmed=True),
    Chain("open-given-after-others", ("t", "b", 2), lengths="given", before="Relu", count=2, harmed=True),
]


def chain_file(chain: Chain) -> bytes:
    onnx: Any = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes: list[Any] = []
    constants: list[Any] = []
    I, D = 2, 2 if chain.direction == "bidirectional" else 1
    inputs = [helper.make_tensor_value_info("X", kinds.FLOAT, chain.shape)]

    def constant(name: str, array: Any) -> str:
        constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    x = "X"
    if chain.before:
        order = {"perm": [1, 0, 2]} if chain.before == "Transpose" else {}
        nodes.append(helper.make_node(chain.before, ["X"], ["x"], **order))
        x = "x"
    lengths = chain.lengths and "lengths"
    if chain.lengths == "given":
        inputs.append(helper.make_tensor_value_info("lengths", kinds.INT32, ["n"]))
    elif chain.lengths == "shape":
        axes = (1, 0) if chain.before == "Transpose" else (0, 1)
        nodes += [
            helper.make_node("Shape", ["X"], ["sizes"]),
            helper.make_node("Gather", ["sizes", constant("0", [axes[0]])], ["steps"]),
            helper.make_node("Gather", ["sizes", constant("1", [axes[1]])], ["rows"]),
            helper.make_node("Expand", ["steps", "rows"], ["wide"]),
            helper.make_node("Cast", ["wide"], ["lengths"], to=kinds.INT32),
        ]
    elif chain.lengths:
        constant("lengths", np.full(3, {"short": 2, "long": 4}[chain.lengths], np.int32))
    random = np.random.default_rng(5)
    for k in range(chain.count):
        shapes = {"W": (D, 9, I), "R": (D, 9, 3), "B": (D, 18)}
        for name, shape in shapes.items():
            constant(f"{name}{k}", random.uniform(-1, 1, shape).astype(np.float32))
        nodes.append(
            helper.make_node(
                "GRU",
                [x, f"W{k}", f"R{k}", f"B{k}", lengths],
                [f"Y{k}", f"Y_h{k}"],
                hidden_size=3,
                direction=chain.direction,
            )
        )
        nodes.append(helper.make_node("Transpose", [f"Y{k}"], [f"turned{k}"], perm=[0, 2, 1, 3]))
        nodes.append(
            helper.make_node("Reshape", [f"turned{k}", constant(f"to{k}", [0, 0, -1])], [f"flat{k}"])
        )
        x, I = f"flat{k}", 3 * D
    outputs = [helper.make_tensor_value_info(x, kinds.FLOAT, None)]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("chain", CHAINS, ids=[chain.name for chain in CHAINS])
@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_lengths_are_inferred_from_the_shapes_in_the_file(chain: Chain, suffix: str, tmp_path: Path) -> None:
    openvino: Any = pytest.importorskip("openvino")
    source = tmp_path / "model.onnx"
    source.write_bytes(chain_file(chain))
    path = source.with_suffix(suffix)
    if suffix == ".xml":
        openvino.save_model(openvino.convert_model(source), path, compress_to_fp16=False)
    model = onegru.load(path)
    said = {
        verdict.reason for item in report(model) for verdict in item.others if verdict.runtime == "openvino"
    }
    assert said == (
        {"ignores lengths shorter than X if the weights are constants and X's shape is dynamic"}
        if chain.harmed
        else set()
    )

    sizes = {"t": 5, "b": 3, "i": 2}
    shape = [size if isinstance(size, int) else sizes[size] for size in chain.shape]
    feeds: Arrays = {"X": np.random.default_rng(6).uniform(-1, 1, shape).astype(np.float32)}
    if chain.lengths == "given":
        feeds["lengths"] = np.array([2, 4, 3], np.int32)
    if openvino.__version__.split("-")[0] != MEASURED["openvino"]:
        return
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = onegru.load(path, engine="reference").run(feeds)
    got = dict(zip(expected, compiled(feeds).values(), strict=True))
    assert is_right(got, expected, "float32") == (not chain.harmed)
