"""Whether a model has GRU nodes that take nothing but constants.

ONNX Runtime computes such nodes with its own kernel when a session is made, before any provider sees them.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto

from onegru.formats.onnx.validate import Source, attribute_graphs, is_ours
from onegru.formats.onnx.values import Values


def has_constant_grus(model: ModelProto) -> bool:
    """Whether it has; in bodies and functions, too."""
    graphs = [model.graph, *(GraphProto(node=function.node) for function in model.functions)]
    return any(_has(Values(Source("the model"), graph, model.ir_version, {})) for graph in graphs)


def _has(values: Values) -> bool:
    known: dict[str, bool] = {}
    return any(
        all(_is_computed(name, values, known) for name in node.input if name)
        if is_ours(node)
        else any(_has(values.of_body(body)) for body in attribute_graphs(node))
        for node in values.graph.node
    )


def _is_computed(name: str, values: Values, known: dict[str, bool]) -> bool:
    """Whether a value depends on no input, and on no node with bodies."""
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
