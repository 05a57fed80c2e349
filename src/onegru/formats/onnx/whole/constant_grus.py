"""Whether a model has GRU nodes that take nothing but constants.

ONNX Runtime computes such nodes when a session is made, by its own kernel, before it asks any provider.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, MutableMapping

from onnx import GraphProto, ModelProto, NodeProto

from onegru.formats.onnx.read import attribute_graphs, is_gru

# What gives a value: a node; True for a constant, False for an input.
_Givers = MutableMapping[str, NodeProto | bool]


def has_constant_grus(model: ModelProto) -> bool:
    """Whether it has; in bodies and functions, too."""
    bodies = [model.graph, *(_as_graph(function.node) for function in model.functions)]
    return any(_has(body, {}, model.ir_version >= 4) for body in bodies)


def _as_graph(nodes: Iterable[NodeProto]) -> GraphProto:
    graph = GraphProto()
    graph.node.extend(nodes)
    return graph


def _has(graph: GraphProto, around: _Givers, inputs_first: bool) -> bool:
    own: dict[str, NodeProto | bool] = {tensor.name: True for tensor in graph.initializer}
    own |= {tensor.values.name: True for tensor in graph.sparse_initializer}
    inputs = {value.name: False for value in graph.input}
    own = {**own, **inputs} if inputs_first else {**inputs, **own}
    grus: list[NodeProto] = []
    owners: list[NodeProto] = []
    for node in graph.node:
        own |= dict.fromkeys(node.output, node)
        if is_gru(node):
            grus.append(node)
        elif any(attribute_graphs(node)):
            owners.append(node)
    givers = ChainMap(own, around)
    known: dict[str, bool] = {}
    if any(all(_is_constant(name, givers, known) for name in node.input if name) for node in grus):
        return True
    return any(_has(body, givers, inputs_first) for node in owners for body in attribute_graphs(node))


def _is_constant(name: str, givers: _Givers, known: dict[str, bool]) -> bool:
    """Whether there is no way from an input, or from a node with bodies, to a value."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        value = waiting.pop()
        if value in seen or known.get(value):
            continue
        seen.add(value)
        giver = givers.get(value, False)
        if giver is False or known.get(value) is False:
            known[name] = False
            return False
        if giver is not True:
            assert isinstance(giver, NodeProto)
            if any(attribute_graphs(giver)):
                known[name] = False
                return False
            waiting += [taken for taken in giver.input if taken]
    known.update(dict.fromkeys(seen, True))
    return True
