"""Remove guards that exporters add for empty sequences."""

from __future__ import annotations

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op

#: The comparisons with a number that are false for every size of at least 1.
_FALSE_COMPARISONS = {("Less", 1), ("LessOrEqual", 0), ("Equal", 0)}


def unguarded(flow: Flow, op: Op) -> Op:
    """Return an operator; an Identity for a Where that only guards against an empty axis."""
    compared = flow.producers.get(op.inputs[0]) if op.kind == "Where" else None
    if compared is None or len(compared.inputs) != 2:
        return op
    size, bound = (flow.as_sizes(name) for name in compared.inputs)
    if size is None or bound is None or len(size) != 1 or len(bound) != 1:
        return op
    if not isinstance(size[0], str) or (compared.kind, bound[0]) not in _FALSE_COMPARISONS:
        return op
    return Op("Identity", op.inputs[2:], op.outputs, {}, {}, op.origin, op.name)


def drop_guards(flow: Flow) -> list[Op]:
    """Replace each guard of a graph by an Identity, because a chunk has steps; return these."""
    before = set(map(id, flow.ops))
    flow.ops = [unguarded(flow, op) for op in flow.ops]
    flow.reconnect()
    return [op for op in flow.ops if id(op) not in before]
