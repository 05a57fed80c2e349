"""ONNX Runtime optimizers that must not run on a model."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onegru.formats.onnx.functions.inline import all_nodes
from onegru.formats.onnx.validate import Source, all_tensors, attribute_graphs, is_onnx, is_ours
from onegru.formats.onnx.values import Values, all_graphs

# Computes GRU nodes with only constant inputs in ONNX Runtime's own kernel when a session is created, before
# a provider gets them.
_FOLDING = "ConstantFolding"
# Turns float16 matmuls with a transposed operand into a node without a kernel, which makes another optimizer,
# NchwcTransformer, crash the process (seen in 1.32).
_FUSING_TRANSPOSES = "MatmulTransposeFusion"
# Changes int8 zero points to uint8, but not the output_dtype of their QuantizeLinear (since opset 21). The
# node is then inconsistent, and ONNX Runtime rejects the model (seen in 1.32).
_TO_UINT8 = "QDQS8ToU8Transformer"
_OUTPUT_DTYPE = 21
# Removes multiplications by values that float32 rounds to 1, and additions of values that it rounds to 0,
# even in float64 (seen in 1.32).
_REMOVING_NOOPS = "NoopElimination"

_SCALED = ("QuantizeLinear", "DequantizeLinear")
# Operators with integer products, or that become such operators.
_INTEGERS = frozenset(
    {
        *("MatMulInteger", "QLinearMatMul", "QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
        *("ConvInteger", "QLinearConv", "QAttention", "DynamicQuantizeLSTM", "DequantizeLinear"),
    }
)


def harmful_optimizers(model: ModelProto) -> tuple[str, ...]:
    """Return the optimizers with which ONNX Runtime computes wrong results or rejects the model."""
    opsets = (item for owner in (model, *model.functions) for item in owner.opset_import)
    is_new = any(is_onnx(item) and item.version >= _OUTPUT_DTYPE for item in opsets)
    nodes = all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node)
    is_quantized = is_new and any(node.op_type == "QuantizeLinear" for node in nodes)
    types = set(_stated_types(model))
    wide = (_REMOVING_NOOPS,) if TensorProto.DOUBLE in types else ()
    return crashing_optimizers(model, types) + wide + ((_TO_UINT8,) if is_quantized else ())


def crashing_optimizers(model: ModelProto, types: Container[int] | None = None) -> tuple[str, ...]:
    """Return the optimizers that would compute GRU nodes themselves, or crash the process.

    `types` are the element types in the model, if the caller knows them.
    """
    has_halves = TensorProto.FLOAT16 in (_stated_types(model) if types is None else types)
    found = (_FOLDING if has_constant_grus(model) else "", _FUSING_TRANSPOSES if has_halves else "")
    return tuple(filter(None, found))


def takes_exact_int8(model: ModelProto) -> bool:
    """Whether ONNX Runtime's option for exact 8-bit products without VNNI can be set."""
    nodes = list(all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node))
    if _INTEGERS.isdisjoint(node.op_type for node in nodes):
        return False
    # It breaks DequantizeLinear nodes with a scale per channel and no zero points; they fail in a run (1.32).
    # The elements of the largest constant with a name, because subgraphs and functions reuse names.
    most: dict[str, int] = {}
    named = [(tensor.name, math.prod(tensor.dims)) for tensor in all_tensors(model)]
    named += [(node.output[0], _numbers(node)) for node in nodes if node.op_type == "Constant"]
    for name, size in named:
        most[name] = max(size, most.get(name, 0))
    bare = (node for node in nodes if node.op_type in _SCALED and not any(node.input[2:3]))
    scales = (most.get(node.input[1]) for node in bare if len(node.input) > 1)
    return all(size == 1 for size in scales)


def _numbers(node: NodeProto) -> int:
    """Return the number of elements of a Constant node, for the attributes that scales use."""
    return sum(
        math.prod(item.t.dims) if item.name == "value" else len(item.floats) or item.name == "value_float"
        for item in node.attribute
    )


def _stated_types(model: ModelProto) -> Iterator[int]:
    for graph in all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.type.tensor_type.elem_type
    for tensor in all_tensors(model):
        yield tensor.data_type
    for node in all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node):
        yield from (item.i for item in node.attribute if item.name == "to" or "type" in item.name)


def has_constant_grus(model: ModelProto) -> bool:
    """Whether there are GRU nodes with only constant inputs, also in subgraphs and functions."""
    graphs = [model.graph, *(GraphProto(node=function.node) for function in model.functions)]
    return any(_has_known_gru(Values(Source("the model"), graph, model.ir_version, {})) for graph in graphs)


def _has_known_gru(values: Values) -> bool:
    known: dict[str, bool] = {}
    return any(
        all(_is_computed(name, values, known) for name in node.input if name)
        if is_ours(node)
        else any(_has_known_gru(values.of_body(body)) for body in attribute_graphs(node))
        for node in values.graph.node
    )


def _is_computed(name: str, values: Values, known: dict[str, bool]) -> bool:
    """Whether a value depends on no input and on no node with subgraphs."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        value = waiting.pop()
        if value in seen or known.get(value) or values.is_constant(value):
            continue
        seen.add(value)
        producer = values.owner(value).producers.get(value)
        if producer is None or known.get(value) is False or any(attribute_graphs(producer)):
            known[name] = False
            return False
        waiting += filter(None, producer.input)
    known.update(dict.fromkeys(seen, True))
    return True
