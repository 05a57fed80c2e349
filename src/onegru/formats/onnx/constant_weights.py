"""Fold the weights of GRU nodes that other nodes compute from constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onegru.core.dtypes import Array
from onegru.formats.onnx.dequantized import dequantized
from onegru.formats.onnx.node import is_plain_constant
from onegru.formats.onnx.order import needed_nodes, node_inputs
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    drop_named,
    external_tensors,
    is_onnx,
    is_ours,
    replace_nodes,
    to_array,
)
from onegru.formats.onnx.values import Values, all_values
from onegru.formats.onnx.whole.bounds import ConstantPart, check_bounds
from onegru.operators.onnx import RANDOM

_WEIGHTS = slice(1, 4)  # W, R and B among the inputs of either operator
_LEAST_IR = 4  # the first version in which initializers can be separate from inputs


def nodes_ahead(
    values: Values, weights: Iterable[str], fits: Callable[[NodeProto], bool]
) -> tuple[list[NodeProto], list[str]]:
    """Return the nodes of a graph that compute weights only from constants."""
    known: dict[str, bool] = {}  # whether a value depends only on constants
    started: set[str] = set()
    chosen: list[NodeProto] = []
    weights = list(weights)
    waiting = list(weights)
    while waiting:
        name = waiting[-1]
        node = values.producers.get(name)
        if name in known or node is None or is_plain_constant(node):
            known.setdefault(waiting.pop(), values.is_constant(name))
            continue
        may = is_onnx(node) and not is_ours(node) and node.op_type not in RANDOM
        may = may and fits(node) and not any(attribute_graphs(node))
        inputs = [value for value in node.input if value] if may else []
        missing = [value for value in inputs if value not in known]
        may = may and started.isdisjoint(missing)  # otherwise a cycle, which is possible in a subgraph
        if may and missing:
            started.add(name)
            waiting += missing
            continue
        may = may and all(known[value] for value in inputs)
        known.update(dict.fromkeys(node.output, may))
        if may:
            chosen.append(node)
    found = [name for name in weights if known[name] and not values.is_constant(name)]
    return needed_nodes(chosen, found), found


def compute_nodes(
    values: Values, opset: int, nodes: Sequence[NodeProto], names: Sequence[str]
) -> dict[str, Array] | None:
    """Compute nodes with only constant inputs; None if onnx's own evaluator does not run them."""
    # DequantizeLinear is computed here: bitwise identical to ONNX Runtime, and in bounded memory for any
    # block size.
    done: dict[str, Array] = {}
    left: list[NodeProto] = []
    for node in nodes:
        is_quantized = node.op_type == "DequantizeLinear" and is_onnx(node)
        array = dequantized(opset, values, node) if is_quantized else None
        if array is not None:
            done[node.output[0]] = array
        elif any(item.name == "block_size" and item.i for item in node.attribute):
            return None
        else:
            left.append(node)
    used = sorted({name for node in left for name in node_inputs(node)})
    held = {name: item for name in used if (item := values.holder(name)) is not None}
    constants = {id(item): item for item in held.values() if isinstance(item, NodeProto)}
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = onnx.helper.make_graph([*constants.values(), *left], "constants", [], outputs)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in done.items())
    graph.initializer.extend(
        onnx.numpy_helper.from_array(to_array(values.source, item), name)
        for name, item in held.items()
        if isinstance(item, TensorProto)
    )
    graph.sparse_initializer.extend(
        tensor
        for name in used
        if name in (at := values.owner(name)).sparse
        for tensor in at.graph.sparse_initializer
        if tensor.values.name == name
    )
    arrays = _evaluate(graph, opset)
    return None if arrays is None else dict(zip(names, arrays, strict=True))


def _evaluate(graph: GraphProto, opset: int) -> list[Array] | None:
    """Run a graph in onnx's own evaluator; None if it fails, or if an output is not an array."""
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            results = list(ReferenceEvaluator(model).run(None, {}))
    except Exception:  # an unsupported operator, or any defect of the nodes
        return None
    return results if all(isinstance(result, np.ndarray) for result in results) else None


def fold_weights(source: Source, model: ModelProto, opset: int, size: int) -> set[str]:
    """Replace the nodes that compute weights of GRU nodes only from constants by their results."""
    levels = list(all_values(source, model))
    wanted = _wanted(levels)
    if not any(wanted):
        return set()
    most = check_bounds(source, model, size, external_tensors(model))
    retired: set[str] = set()
    for index, names in enumerate(wanted):  # graphs come before their subgraphs
        nodes, _ = nodes_ahead(levels[index], sorted(names), lambda _: True)
        if nodes:
            fits = _bound(levels[index], model, nodes, most).fits
            gone = _fold(levels[index], opset, *nodes_ahead(levels[index], sorted(names), fits))
            levels = list(all_values(source, model)) if gone else levels
            retired |= gone
    return retired


def _wanted(levels: Sequence[Values]) -> list[set[str]]:
    """Return for each graph the computed values that weights depend on, here or in its subgraphs."""
    level_of = {id(values): index for index, values in enumerate(levels)}
    wanted: list[set[str]] = [set() for _ in levels]
    for index, values in reversed(list(enumerate(levels))):
        for node in filter(is_ours, values.graph.node):
            for name in filter(None, node.input[_WEIGHTS]):
                wanted[level_of[id(values.owner(name))]].add(name)
        wanted[index] = {
            name for name in wanted[index] if name in values.producers and not values.is_constant(name)
        }
        seen: set[str] = set()
        waiting = list(wanted[index])
        while waiting:
            name = waiting.pop()
            if name not in seen and name in values.producers:
                waiting += filter(None, values.producers[name].input)
            elif name not in seen:
                wanted[level_of[id(values.owner(name))]].add(name)
            seen.add(name)
    return wanted


def _bound(values: Values, model: ModelProto, nodes: Sequence[NodeProto], most: int) -> ConstantPart:
    """Return the bounds for computing nodes with only constant inputs."""
    used = {name for node in nodes for name in node.input if name and values.is_constant(name)}
    held = [values.holder(name) for name in sorted(used)]
    plain = [item for item in held if isinstance(item, NodeProto)]
    return ConstantPart(
        model, [*plain, *nodes], most, used, [item for item in held if isinstance(item, TensorProto)]
    )


def _fold(values: Values, opset: int, nodes: Sequence[NodeProto], names: Sequence[str]) -> set[str]:
    """Replace nodes by the constants that they compute; return the inputs of all removed nodes."""
    graph = values.graph
    gone = {_key(values.producers[name]) for name in names}
    used = values.consumers.keys() | values.outputs
    given = [name for node in nodes if _key(node) in gone for name in node.output if name in used]
    arrays = compute_nodes(values, opset, nodes, given) if given else None
    if arrays is None:
        return set()
    early: list[NodeProto] = []
    for name, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        if values.ir_version >= _LEAST_IR:
            graph.initializer.append(tensor)
        else:
            early.append(onnx.helper.make_node("Constant", [], [name], value=tensor))
    for node in reversed(nodes):
        users = [other for name in node.output for other in values.consumers.get(name, ())]
        if values.outputs.isdisjoint(node.output) and all(_key(other) in gone for other in users):
            gone.add(_key(node))
    left = [node for node in graph.node if _key(node) not in gone]
    drop_named(graph.value_info, {name for key in gone for name in key})
    replace_nodes(graph, [*early, *left])
    return {name for node in nodes if _key(node) in gone for name in node.input}


def _key(node: NodeProto) -> tuple[str, ...]:
    """Return a unique key of a node in its graph."""
    return tuple(node.output)
