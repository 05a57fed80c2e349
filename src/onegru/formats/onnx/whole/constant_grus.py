"""Whether a model has GRU nodes that take nothing but constants.

ONNX Runtime computes such nodes with its own kernel when a session is made, before any provider sees them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping

from onnx import GraphProto, ModelProto, NodeProto

from onegru.formats.onnx.validate import attribute_graphs, is_ours

# What produces a value: a node; True stands for a constant, False for an input.
_Producers = MutableMapping[str, NodeProto | bool]


def has_constant_grus(model: ModelProto) -> bool:
    """Whether it has; in bodies and functions, too."""
    bodies = [model.graph, *(GraphProto(node=function.node) for function in model.functions)]
    return any(_has(body, {}, model.ir_version >= 4) for body in bodies)


def _has(graph: GraphProto, around: _Producers, inputs_first: bool) -> bool:
    own: dict[str, NodeProto | bool] = {tensor.name: True for tensor in graph.initializer}
    own |= {tensor.values.name: True for tensor in graph.sparse_initializer}
    inputs = {value.name: False for value in graph.input}
    own = {**own, **inputs} if inputs_first else {**inputs, **own}
    own |= {name: node for node in graph.node for name in node.output}
    producers = ChainMap(own, around)
    known: dict[str, bool] = {}
    return any(
        all(_is_constant(name, producers, known) for name in node.input if name)
        if is_ours(node)
        else any(_has(body, producers, inputs_first) for body in attribute_graphs(node))
        for node in graph.node
    )


def _is_constant(name: str, producers: _Producers, known: dict[str, bool]) -> bool:
    """Whether a value depends on no input, and on no node with bodies."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        value = waiting.pop()
        if value in seen or known.get(value):
            continue
        seen.add(value)
        producer = producers.get(value, False)
        if producer is True:
            continue
        if (
            not isinstance(producer, NodeProto)
            or known.get(value) is False
            or any(attribute_graphs(producer))
        ):
            known[name] = False
            return False
        waiting += filter(None, producer.input)
    known.update(dict.fromkeys(seen, True))
    return True
