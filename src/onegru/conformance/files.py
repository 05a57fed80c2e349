"""Write a case as a file: an ONNX model of one node, or an OpenVINO IR of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onegru.conformance.case import Case
from onegru.conformance.storage import GRIDS
from onegru.core.dtypes import Array
from onegru.core.errors import needs_extra
from onegru.dataflow.operator import Op
from onegru.formats.openvino.document import IrDocument
from onegru.formats.openvino.gru_layers import version_of
from onegru.formats.openvino.writing.edit import new_ir
from onegru.operators.onnx import AUGRU_DOMAINS, GRU_VERSIONS
from onegru.operators.schema import WEIGHTS, Port

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

#: Names of the two kinds of files, in errors and results.
ONNX, IR = "onnx", "openvino"

#: The opset of models with AUGRU nodes: the oldest whose operators support bfloat16, for its function.
_AUGRU_OPSET = max(GRU_VERSIONS)

# In the first version of the IR, initializers must also be inputs; from version 4 on, they need not.
_INITIALIZERS_ARE_INPUTS = 3
_OPEN = {"T": "seq_length", "B": "batch_size"}


def kind_of_case(case: Case) -> str:
    """Return the kind of a case's file: ONNX or IR."""
    return ONNX if case.operator.biases == "separate" else IR


def fed_inputs(case: Case) -> dict[str, Array]:
    """Return the inputs of a run: those that are not constants of the file."""
    constants = WEIGHTS if case.has_constant_weights else ()
    return {name: array for name, array in case.given.items() if name not in constants}


def onnx_model(case: Case) -> ModelProto:
    """Return a case as an ONNX model of one node, with the specification's names.

    A quantized case also has nodes that store its tensors as integers. A model with an opset below 7 also
    lists its constants as inputs, as is common in such files.

    Raises:
        MissingExtraError: onnx is not installed.
    """
    with needs_extra("onnx", "onnx", "an ONNX case of the suite"):
        from onnx import helper, numpy_helper

        from onegru.formats.onnx.functions.augru import add_augru_functions
        from onegru.formats.onnx.validate import trimmed
        from onegru.verification.probe import model_of
    operator, fed = case.operator, fed_inputs(case)
    given, wanted = (
        trimmed(_inner(case, port.name) if port.name in there else "" for port in ports)
        for ports, there in ((operator.inputs, case.inputs), (operator.outputs, case.outputs))
    )
    domain = AUGRU_DOMAINS[0] if operator.attention else None
    node = helper.make_node(operator.name, given, wanted, "node", domain=domain, **case.attributes)

    def info(port: Port) -> Any:
        array = case.inputs[port.name] if port.name in case.inputs else case.expected[port.name]
        dtype = array.dtype if port.name in case.inputs else case.output_dtype()
        sizes = [_OPEN.get(axis, size) for axis, size in zip(port.axes, array.shape, strict=True)]
        shape = array.shape if case.has_fixed_shapes or port.role in WEIGHTS else sizes
        return helper.make_tensor_value_info(port.name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    is_old = operator.version < 7 and not operator.attention
    ports = sorted(case.lowered.ports, key=lambda port: port.name not in fed)  # for feeds by index
    before, after, constants = _quantizing(case)
    graph = helper.make_graph(
        [*before, node, *after],
        case.name,
        [info(port) for port in ports if port.name in (case.inputs if is_old else fed)],
        [info(port) for port in ports if port.name in case.outputs],
        [
            numpy_helper.from_array(array, name)
            for name, array in case.inputs.items()
            if name not in fed and name not in case.stored
        ]
        + constants,
    )
    model = model_of(graph, _AUGRU_OPSET if operator.attention else case.opset)
    if is_old:
        model.ir_version = _INITIALIZERS_ARE_INPUTS
    add_augru_functions(model)
    return model


def _inner(case: Case, name: str) -> str:
    """Return the node's name of an input or output: its own, unless another node has it."""
    return f"node/{name}" if name in case.rounded else name


def _quantizing(case: Case) -> tuple[list[NodeProto], list[NodeProto], list[TensorProto]]:
    """Return the nodes around a quantized case's node, and their constants."""
    from onnx import TensorProto, helper, numpy_helper

    before: list[NodeProto] = []
    after: list[NodeProto] = []
    constants: list[TensorProto] = []

    def constant(name: str, array: Array, kind: str = "") -> str:
        if kind:  # an integer type that NumPy may lack
            array = array.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind.upper())))
        constants.append(numpy_helper.from_array(array, name))
        return name

    for name, item in case.stored.items():
        flat = name if item.q.shape == item.shape else f"{name}/rows"
        inputs = [constant(f"{name}/{item.kind}", item.q, item.kind), constant(f"{name}/scale", item.scale)]
        if item.zero_point is not None:
            inputs.append(constant(f"{name}/zero_point", item.zero_point, item.kind))
        before.append(helper.make_node("DequantizeLinear", inputs, [flat], **item.attributes))
        if flat != name:
            shape = constant(f"{name}/shape", np.array(item.shape, np.int64))
            before.append(helper.make_node("Reshape", [flat, shape], [name]))
    for name in case.rounded:
        (kind, scale, zero), is_output = GRIDS[name], name in case.outputs
        source, target = (_inner(case, name), name) if is_output else (name, _inner(case, name))
        grid = [
            constant(f"{name}/scale", np.array(scale, "f4")),
            constant(f"{name}/zero_point", np.array(zero), kind),
        ]
        nodes = after if is_output else before
        nodes.append(helper.make_node("QuantizeLinear", [source, *grid], [f"{name}/{kind}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}/{kind}", *grid], [target]))
    return before, after, constants


def ir_files(case: Case) -> tuple[bytes, bytes]:
    """Return a case as an OpenVINO IR: the contents of .xml and .bin."""
    ir, fed = new_ir(Path("model.xml")), fed_inputs(case)
    flow = ir.graph.flow

    def shape_of(port: Port, array: Array) -> tuple[int | str, ...]:
        if case.has_fixed_shapes or port.role in WEIGHTS:
            return array.shape
        sizes = zip(port.axes, array.shape, strict=True)
        return tuple(f"dim:{axis}" if axis in _OPEN else size for axis, size in sizes)

    ports = [port for port in case.operator.inputs if port.name in case.inputs]
    for port in ports:
        array = case.inputs[port.name]
        if port.name in fed:
            ir.add_input(port.name, array.dtype.name, shape_of(port, array))
        else:
            flow.add_constant(port.name, array)
    shapes = {port.name: shape_of(port, case.expected[port.name]) for port in case.operator.outputs}
    attributes = {
        "data": {name: _word(case, value) for name, value in case.attributes.items()},
        "version": version_of(case.operator),
        "dtype": case.dtype,
    }
    kind, inputs = f"openvino::{case.operator.name}", tuple(port.name for port in ports)
    flow.ops = [Op(kind, inputs, tuple(shapes), attributes, name="node")]
    flow.reconnect()
    for name, shape in shapes.items():
        flow.set_shape(name, shape)
        ir.add_output(name, case.dtype, shape)
    document = IrDocument(ir.root, ir.write())
    return document.xml(), document.weights.tobytes()


def _word(case: Case, value: object) -> str:
    """Return an attribute as text for an IR."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return (", " if case.level("activations") == "with spaces" else ",").join(map(str, value))
    return str(value)


def case_files(case: Case) -> Mapping[str, bytes]:
    """Return the files of a case, by name: model.onnx, or model.xml and model.bin."""
    if kind_of_case(case) == ONNX:
        return {"model.onnx": bytes(onnx_model(case).SerializeToString(deterministic=True))}
    text, weights = ir_files(case)
    return {"model.xml": text, "model.bin": weights}
