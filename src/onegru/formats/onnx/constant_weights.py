"""Weights of GRU nodes that other nodes compute from constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onegru.core.dtypes import Array
from onegru.dataflow.flow import LazyFlow
from onegru.dataflow.table import operator_of
from onegru.formats.onnx.flow import lazy_flow_of
from onegru.formats.onnx.node import is_plain_constant
from onegru.formats.onnx.order import needed_nodes
from onegru.formats.onnx.validate import (
    Source,
    drop_named,
    external_tensors,
    is_onnx,
    is_ours,
    replace_nodes,
)
from onegru.formats.onnx.values import Values, all_values
from onegru.formats.onnx.whole.bounds import check_bounds

_WEIGHTS = slice(1, 4)  # W, R and B among the inputs of either operator
_LEAST_IR = 4  # the first version in which initializers can be separate from inputs


def nodes_ahead(values: Values, nodes: Sequence[NodeProto], weights: Iterable[str]) -> list[NodeProto]:
    """The nodes that compute weights only from constants; the nodes are in topological order."""
    known: set[str] = set()
    chosen: list[NodeProto] = []
    for node in nodes:
        may = is_onnx(node) and operator_of(node.op_type).computes
        if may and all(name in known or values.held(name) is not None for name in filter(None, node.input)):
            known.update(node.output)
            chosen.append(node)
    return needed_nodes(chosen, known.intersection(weights))


def constants_flow(values: Values, most: int, outer: LazyFlow | None = None) -> LazyFlow:
    """A flow that computes at most so many bytes of 32-bit numbers, and only from constants."""
    flow = lazy_flow_of(values, outer, has_shapes=False)
    flow.most_folded = most // 4
    return flow


def fold_weights(source: Source, model: ModelProto, size: int) -> set[str]:
    """Replace the nodes that compute weights of GRU nodes only from constants by what they compute.

    Nodes whose results are no longer used are removed, too. Returns the inputs of the removed nodes.
    """
    levels = list(all_values(source, model))
    wanted: dict[Values, set[str]] = {values: set() for values in levels}
    for values in levels:
        for node in filter(is_ours, values.graph.node):
            for name in filter(None, node.input[_WEIGHTS]):
                at = values.owner(name)
                if name in at.producers and not at.is_constant(name):
                    wanted[at].add(name)
    if not any(wanted.values()):
        return set()
    most = check_bounds(source, model, size, external_tensors(model))
    flows: dict[Values | None, LazyFlow] = {}
    for values in levels:  # graphs come before their subgraphs
        flows[values] = constants_flow(values, most, flows.get(values.outer))
    retired: set[str] = set()
    for values in reversed(levels):
        retired |= _fold(values, flows[values], sorted(wanted[values]), retired)
    return retired


def _fold(values: Values, flow: LazyFlow, names: Sequence[str], retired: Iterable[str]) -> set[str]:
    """Put constants instead of nodes; `retired` are inputs of nodes that subgraphs no longer have."""
    graph, arrays = values.graph, dict[str, Array]()
    gone: dict[tuple[str, ...], NodeProto] = {}
    for name in names:
        node = values.producers[name]
        used = [item for item in node.output if item in values.consumers or item in values.outputs]
        found = {item: array for item in used if (array := flow.constant(item)) is not None}
        if len(found) == len(used):
            arrays |= found
            gone[tuple(node.output)] = node
    waiting = [*retired, *(name for node in gone.values() for name in node.input)]
    while waiting:
        producer = values.producers.get(waiting.pop())
        if producer is None or is_plain_constant(producer) or tuple(producer.output) in gone:
            continue
        users = [user for name in producer.output for user in values.consumers.get(name, ())]
        if values.outputs.isdisjoint(producer.output) and all(tuple(user.output) in gone for user in users):
            gone[tuple(producer.output)] = producer
            waiting += producer.input
    early: list[NodeProto] = []
    for name, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        if values.ir_version >= _LEAST_IR:
            graph.initializer.append(tensor)
        else:
            early.append(onnx.helper.make_node("Constant", [], [name], value=tensor))
    if gone:
        drop_named(graph.value_info, {name for key in gone for name in key})
        replace_nodes(graph, [*early, *(node for node in graph.node if tuple(node.output) not in gone)])
    return {name for node in gone.values() for name in node.input}
