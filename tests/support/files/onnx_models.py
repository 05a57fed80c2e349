"""Build small ONNX models for tests: values, GRU nodes with weights, whole models, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

import onegru
from onegru import Model, load
from onegru.core.dtypes import Array
from onegru.formats.onnx.validate import trimmed
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS

Arrays = dict[str, Array]
Shape = Sequence[int | str | None]

# Default sizes of the GRUs: all different, and none is 1.
T, B, I, H = 4, 2, 5, 3


def code_of(dtype: str) -> int:
    """Return the number of an element type in ONNX files."""
    if dtype == "str":
        return TensorProto.STRING
    if dtype == "bfloat16":
        return TensorProto.BFLOAT16
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def numpy_type(dtype: str) -> Any:
    """Return NumPy's type of that name, including ml_dtypes's bfloat16."""
    return onnx.helper.tensor_dtype_to_np_dtype(code_of(dtype))


def value(name: str, dtype: str = "float32", shape: Shape | None = None) -> ValueInfoProto:
    """Return an input or output; its rank is unknown without a shape."""
    return onnx.helper.make_tensor_value_info(name, code_of(dtype), shape)


def tensor(name: str, array: object) -> TensorProto:
    """Return an initializer with these values."""
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    """Return a node; `name` and `domain` may be among the attributes."""
    return onnx.helper.make_node(operator, list(inputs), list(outputs), **attributes)


def augru_node(
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    attributes: Mapping[str, object] | None = None,
    name: str = "",
) -> NodeProto:
    """Return a node of the operator AUGRU. `add_augru_functions` adds its function to a model."""
    attributes = attributes or {}
    input_names = trimmed(inputs.get(port.name, "") for port in AUGRU.inputs)
    output_names = trimmed(outputs.get(port.name, "") for port in AUGRU.outputs)
    node = onnx.helper.make_node(AUGRU.name, input_names, output_names, name, domain=AUGRU_DOMAINS[0])
    node.attribute.extend(
        onnx.helper.make_attribute(key, value)
        for key, value in attributes.items()
        if not isinstance(value, list | tuple) or value  # an empty list has no type
    )
    return node


def gru(
    X: str,
    outputs: Sequence[str],
    *,
    W: str = "W",
    R: str = "R",
    bias: str = "",
    lens: str = "",
    initial_h: str = "",
    hidden_size: int | None = H,
    **attributes: Any,
) -> NodeProto:
    """Return a GRU node on the values of these names."""
    names = [X, W, R, bias, lens, initial_h]
    while not names[-1]:
        names.pop()
    if hidden_size is not None:
        attributes["hidden_size"] = hidden_size
    return node("GRU", names, outputs, **attributes)


def numbers(seed: int, *shape: int, dtype: str = "float32") -> Array:
    """Return values between -1 and 1, the same on every run."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(numpy_type(dtype))


def weights(
    seed: int = 0, suffix: str = "", *, I: int = I, H: int = H, D: int = 1, dtype: str = "float32"
) -> Arrays:
    """Return W, R and B of a GRU, their names followed by the suffix."""
    shapes = {"W": (D, 3 * H, I), "R": (D, 3 * H, H), "B": (D, 6 * H)}
    return {
        name + suffix: numbers(10 * seed + number, *shape, dtype=dtype)
        for number, (name, shape) in enumerate(shapes.items())
    }


# Common part of many models: one GRU node on X.
X = numbers(99, T, B, I)
X_INFO = value("X", "float32", ["time", "batch", I])
WEIGHTS: dict[str, Any] = weights()
PLAIN = gru("X", ["Y", "Y_h"], bias="B", name="g")
EXPECTED: Arrays = dict(zip(("Y", "Y_h"), onegru.gru(X, *WEIGHTS.values()), strict=True))
"""What the node PLAIN gives."""


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto] = (),
    outputs: Sequence[str | ValueInfoProto] = (),
    constants: Mapping[str, Array] | Sequence[TensorProto] = (),
    *,
    sparse: Sequence[SparseTensorProto] = (),
) -> GraphProto:
    """Return a graph; an output without a type is a float32 tensor."""
    if isinstance(constants, Mapping):
        constants = [tensor(name, array) for name, array in constants.items()]
    results = [value(output) if isinstance(output, str) else output for output in outputs]
    return onnx.helper.make_graph(nodes, "g", inputs, results, constants, sparse_initializer=sparse)


def model(
    graph: GraphProto,
    *,
    opset: int = 14,
    ir: int = 10,
    functions: Sequence[FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    """Return a model of the graph."""
    opsets = [
        onnx.helper.make_opsetid(name, number) for name, number in {"": opset, **(domains or {})}.items()
    ]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions)


def save(folder: Path, proto: ModelProto | bytes, name: str = "model.onnx") -> Path:
    """Write a model into a folder."""
    path = folder / name
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


def loaded(folder: Path, proto: ModelProto | bytes) -> Model:
    """Write a model and load it."""
    return load(save(folder, proto))
