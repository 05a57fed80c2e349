"""Sort the nodes of an ONNX graph by their dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from onnx import GraphProto, NodeProto

from onegru.formats.onnx.validate import Source, attribute_graphs, describe


def free_names(graph: GraphProto) -> set[str]:
    """Return the names that a subgraph uses from outside."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    known |= {name for node in graph.node for name in node.output}
    used = {value.name for value in graph.output}
    for node in graph.node:
        used |= node_inputs(node)
    return used - known - {""}


def node_inputs(node: NodeProto) -> set[str]:
    """Return the names that a node and its subgraphs use from outside."""
    names = set(node.input) - {""}
    for body in attribute_graphs(node):
        names |= free_names(body)
    return names


def needed_nodes(nodes: Sequence[NodeProto], values: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that these values depend on; the nodes are in topological order."""
    wanted = set(values)
    needed: list[NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            needed.append(node)
            wanted |= node_inputs(node)
    return needed[::-1]


def nodes_in_order(source: Source, graph: GraphProto) -> list[NodeProto]:
    """Return the nodes in an executable order."""
    defined: dict[str, int | None] = {}

    def define(name: str, index: int | None, location: str) -> None:
        if name in defined:
            raise source.error(f"{location}: {name!r} is defined twice")
        defined[name] = index

    for value in graph.input:
        define(value.name, None, "graph input")
    inputs = set(defined)  # each can also have an initializer
    for tensor in graph.initializer:
        if tensor.name in inputs:
            inputs.remove(tensor.name)
        else:
            define(tensor.name, None, "initializer")
    for sparse in graph.sparse_initializer:
        define(sparse.values.name, None, "initializer")
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name:
                define(name, index, describe(node))

    waits: list[set[int]] = []
    for node in graph.node:
        names = node_inputs(node)
        if unknown := sorted(name for name in names if name not in defined):
            raise source.error(f"{describe(node)}: input {unknown[0]!r} is not defined")
        waits.append({producer for name in names if (producer := defined[name]) is not None})
    for value in graph.output:
        if value.name not in defined:
            raise source.error(f"graph output {value.name!r} is not defined")
    nodes = list(graph.node)
    if all(not needed or max(needed) < index for index, needed in enumerate(waits)):
        return nodes  # as in nearly every file
    try:
        return [nodes[index] for index in TopologicalSorter(dict(enumerate(waits))).static_order()]
    except CycleError as error:
        stuck = nodes[error.args[1][0]]
        raise source.error(f"{describe(stuck)}: is part of a cycle") from error
