"""Build small models with external GRU states, and run them in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import onegru
from onegru import SpecError, SpecWarning
from onegru.core.dtypes import Array

I, H, B = 4, 4, 2
Sizes = Sequence[int | str]


class StreamNet:
    """Graph that is built node by node; `x` is [T, B, I], its state `h` goes to `h_out`.

    Args:
        steps: the size of the time axis; a name for a dynamic size.
        seed: the seed of its weights.
    """

    def __init__(self, steps: int | str = "T", seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.steps = steps
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[TensorProto] = []
        self.inputs: dict[str, Sizes] = {"x": [steps, B, I], "h": [1, B, H]}
        self.outputs: dict[str, Sizes | None] = {"h_out": [1, B, H]}

    def op(self, kind: str, *inputs: str, outputs: int = 1, output: str = "", **attributes: Any) -> str:
        """Add a node, and return its first output. Its name is its kind with a number."""
        name = f"{kind}_{len(self.nodes)}"
        names = [output or name + "_y", *(f"{name}_y{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name, **attributes))
        return names[0]

    def const(self, value: object, dtype: str = "int64") -> str:
        """Add a constant."""
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.tensors)}"))
        return self.tensors[-1].name

    def random(self, *shape: int) -> str:
        """Add random weights."""
        return self.const(self.rng.standard_normal(shape) * 0.5, "float32")

    def gru(self, x: str, h: str = "", last: str = "", D: int = 1, **attributes: Any) -> str:
        """Add a GRU, and return its output as [T, B, D·H]."""
        W, R = self.random(D, 3 * H, I), self.random(D, 3 * H, H)
        y = self.op("GRU", x, W, R, "", "", h, outputs=2, hidden_size=H, **attributes)
        if last:
            self.nodes[-1].output[1] = last
        return self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.const([0, 0, D * H]))

    def end(self, y: str, name: str = "y") -> onnx.ModelProto:
        """Return the model with this value as a further output."""
        self.op("Identity", y, output=name)
        self.outputs[name] = None
        return self.model()

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "stream",
            [info(name, TensorProto.FLOAT, list(shape)) for name, shape in self.inputs.items()],
            [
                onnx.ValueInfoProto(name=name)
                if shape is None
                else info(name, TensorProto.FLOAT, list(shape))
                for name, shape in self.outputs.items()
            ],
            self.tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        for value in model.graph.output:  # a type is required, and a shape if known
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        return model


def chunks_agree(model: onnx.ModelProto, states: Mapping[str, str], seed: int = 1) -> bool:
    """Whether ONNX Runtime returns the same results in chunks of several sizes as in one run."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes = {item.name: item.shape for item in session.get_inputs()}
    rng, T = np.random.default_rng(seed), 12
    zeros = {taker: np.zeros(shapes[taker], np.float32) for taker in states.values()}
    free = {
        name: rng.standard_normal([T if isinstance(size, str) else size for size in shape]).astype(np.float32)
        for name, shape in shapes.items()
        if name not in zeros
    }
    names = [item.name for item in session.get_outputs()]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(None, dict(inputs)), strict=True))

    whole = run(free | zeros)
    for sizes in ([6, 6], [1] * 12, [5, 1, 4, 2]):
        carried, parts, begin = dict(zeros), [], 0
        for size in sizes:
            try:
                part = run({k: v[begin : begin + size] for k, v in free.items()} | carried)
            except Exception:  # too few steps for the model
                return False
            carried = {taker: part[output] for output, taker in states.items()}
            parts.append(part)
            begin += size
        for name in names:
            if name in states:
                together = parts[-1][name]
            elif parts[0][name].shape[:1] != (sizes[0],):
                together = parts[-1][name]  # an output of the newest step
            else:
                together = np.concatenate([part[name] for part in parts])
            if together.shape != whole[name].shape or not np.allclose(together, whole[name], atol=2e-5):
                return False
    return True


def verdict(model: onnx.ModelProto, state: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the verdict of `stream` ("passes", "warned" or "refused") and its message."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            onegru.load(model).stream(state)
        except SpecError as error:
            return "refused", str(error)
    messages = [str(item.message) for item in seen if item.category is SpecWarning]
    return ("warned", messages[0]) if messages else ("passes", "")
