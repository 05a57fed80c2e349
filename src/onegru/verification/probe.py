"""ONNX models for a comparison with other runtimes: whole models, or single GRU nodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, MissingExtraError
from onegru.formats.graph import GruStep
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.functions.inline import all_nodes, inline_functions
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    external_location,
    external_tensors,
    parse_file,
    serialized,
    to_array,
    trimmed,
)
from onegru.formats.onnx.whole.session import Session
from onegru.formats.opened import Opened
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS, AUGRU_OPSET, OLDEST_OPSET

#: Larger external data, in bytes, are not embedded, because protobuf messages are below 2 GiB.
_LARGE = 2**31 - 2**24
_TOO_LARGE = "too large for other runtimes"


@functools.cache
def newest_opset() -> int:
    """Return the newest opset that onnx and, if it is installed, ONNX Runtime support."""
    newest = onnx.defs.onnx_opset_version()
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "probe", infos[:1], infos[1:])
    for opset in range(newest, OLDEST_OPSET, -1):
        try:
            Session(model_of(graph, opset).SerializeToString(), Source("probe"))
        except FormatError:
            continue
        except MissingExtraError:
            return newest
        return opset
    return OLDEST_OPSET


def node_opset(node: NodeProto) -> int:
    """Return the oldest opset in which a node and its bodies mean the same as in `newest_opset`."""
    newest = newest_opset()
    versions = [1]
    for inner in (node, *(inner for body in attribute_graphs(node) for inner in all_nodes(body.node))):
        try:
            versions.append(onnx.defs.get_schema(inner.op_type, newest, inner.domain).since_version)
        except onnx.defs.SchemaError:
            return newest
    return max(versions)


def whole_model(file: Opened, probes: Sequence[str] = ()) -> bytes:
    """Return a serialized model, with external data unless it would be too large."""
    if not probes and b"location" not in file.data:  # else it may have external data
        return file.data
    source, model = Source.of(file), deepcopy(file.once(parse_file))
    if probes:
        model = inline_functions(source, model)
    external = external_tensors(model)
    if sum(external_location(source, tensor)[2] for tensor in external) < _LARGE:
        for tensor in external:
            tensor.CopyFrom(onnx.numpy_helper.from_array(to_array(source, tensor), tensor.name))
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=name) for name in probes if name not in outputs)
    return serialized(source, model, _TOO_LARGE)


def one_node_model(
    path: str, node: GruStep, opset: int, constants: Mapping[str, Array], inputs: Mapping[str, Array]
) -> bytes:
    """Return a model of one GRU node, with dynamic input sizes."""
    given = trimmed(port.name if port.name in node.inputs else "" for port in node.operator.inputs)
    wanted = trimmed(port.name if port.name in node.outputs else "" for port in node.operator.outputs)
    domain = AUGRU_DOMAINS[0] if node.operator is AUGRU else None
    proto = onnx.helper.make_node(node.operator.name, given, wanted, node.name, domain=domain)
    proto.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in node.attributes.items() if value != []
    )
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [_open_info(name, array) for name, array in inputs.items()],
        [ValueInfoProto(name=name) for name in wanted if name],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = model_of(graph, max(opset, AUGRU_OPSET) if node.operator is AUGRU else opset)
    add_augru_functions(model)
    return serialized(Source(path), model, _TOO_LARGE)


def model_of(graph: GraphProto, opset: int) -> ModelProto:
    """Return a model of a graph in the oldest sufficient IR version, for an older ONNX Runtime."""
    # At least 4, because initializers need not be inputs from there on.
    opsets = [onnx.helper.make_opsetid("", opset)]
    version = max(4, onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version)


def _open_info(name: str, array: Array) -> ValueInfoProto:
    code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, code, [f"{name}.{axis}" for axis in range(array.ndim)])
