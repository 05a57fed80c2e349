"""A whole model of real size: a convolution front end, three GRUs of 256, a linear head.

It is made as exported streaming speech enhancers are: its states are inputs and outputs, and the convolutions
look along frequency alone, so that it may be fed frame by frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]

BINS = 257
HIDDEN = 256
LAYERS = 3

__all__ = ["BINS", "HIDDEN", "LAYERS", "draw_inputs", "speech_model"]


def speech_model(seed: int = 0) -> onnx.ModelProto:
    """x [1, T, 257] and h0…h2 [1, 1, 256] to mask [1, T, 257] and h0_out…h2_out."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) or 1
        array = (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        tensors.append(numpy_helper.from_array(array, name))
        return name

    def matrix(name: str, rows: int, columns: int) -> str:
        array = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        tensors.append(numpy_helper.from_array(array, name))
        return name

    def integers(name: str, values: Sequence[int]) -> str:
        tensors.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def node(operator: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    y = node("Unsqueeze", ["x", integers("channel", [1])], "image")
    for index, (channels, taken) in enumerate(((16, 1), (32, 16))):
        kernel = weight(f"kernel{index}", channels, taken, 1, 5)
        y = node("Conv", [y, kernel], f"conv{index}", kernel_shape=[1, 5], strides=[1, 2], pads=[0, 2, 0, 2])
        y = node("Relu", [y], f"relu{index}")
    width = 32 * 65
    y = node("Transpose", [y], "frames", perm=[2, 0, 1, 3])
    y = node("Reshape", [y, integers("flat", [0, 0, width])], "features")
    y = node("MatMul", [y, matrix("embedding", width, HIDDEN)], "embedded")
    one = integers("one", [1])
    for index in range(LAYERS):
        W, R, B = (
            weight(f"{name}{index}", 1, *shape)
            for name, shape in (
                ("W", (3 * HIDDEN, HIDDEN)),
                ("R", (3 * HIDDEN, HIDDEN)),
                ("B", (6 * HIDDEN,)),
            )
        )
        y = node(
            "GRU",
            [y, W, R, B, "", f"h{index}"],
            f"gru{index}",
            f"h{index}_out",
            hidden_size=HIDDEN,
            linear_before_reset=1,
        )
        y = node("Squeeze", [y, one], f"y{index}")
    y = node("MatMul", [y, matrix("head", HIDDEN, BINS)], "logits")
    y = node("Sigmoid", [y], "gains")
    node("Transpose", [y], "mask", perm=[1, 0, 2])

    info = helper.make_tensor_value_info
    states = [info(f"h{i}", onnx.TensorProto.FLOAT, [1, 1, HIDDEN]) for i in range(LAYERS)]
    last = [info(f"h{i}_out", onnx.TensorProto.FLOAT, [1, 1, HIDDEN]) for i in range(LAYERS)]
    graph = helper.make_graph(
        nodes,
        "speech",
        [info("x", onnx.TensorProto.FLOAT, [1, "T", BINS]), *states],
        [info("mask", onnx.TensorProto.FLOAT, [1, "T", BINS]), *last],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def draw_inputs(T: int, seed: int = 0) -> dict[str, Array]:
    """Inputs of T frames, states of zeros."""
    rng = np.random.default_rng(seed)
    states = {f"h{i}": np.zeros((1, 1, HIDDEN), np.float32) for i in range(LAYERS)}
    return {"x": rng.standard_normal((1, T, BINS)).astype(np.float32), **states}
