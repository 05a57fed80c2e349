"""Replace decomposed recurrences by GRU nodes: cells, chains and loops."""

from __future__ import annotations

from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.port_loops import takes_parts
from onegru.dataflow.loops.read_loop import read_loop
from onegru.dataflow.operator import Op
from onegru.dataflow.replace import needed_values, replace_ops
from onegru.dataflow.walk import all_flows
from onegru.fusion.cells.cell import MissError, NoCellError
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.chain import replace_cells
from onegru.fusion.graph import GraphSearch
from onegru.fusion.search import Search
from onegru.fusion.simplify import simplify
from onegru.fusion.whole import replace_loop


def fuse_flow(flow: Flow, search: Search) -> None:
    """Replace the recurrences in a graph and its subgraphs, and record them in `search`."""
    search.total = sum(len(graph.ops) for graph in all_flows(flow))
    _fuse(GraphSearch(flow, search))
    if search.progress is not None:
        search.progress(search.total, search.total)


def _fuse(graph: GraphSearch) -> None:
    """Replace the recurrences in a graph."""
    alive = needed_values(graph.flow)
    for op in graph.flow.ops:
        for body in () if alive.isdisjoint(op.outputs) else op.bodies.values():
            location = op.name or next(filter(None, op.outputs), op.kind)
            with graph.search.guarded(location):
                _fuse_body(graph, op, body, location)
    misses = {} if graph.search.only_layers else replace_cells(graph)
    if graph.new_ops.added:
        replace_ops(graph.flow, graph.new_ops.added, graph.new_ops.constants)
        simplify(graph.flow, graph.search)
    for name, reason in misses.items():
        now = graph.flow.producers.get(name)
        if now is not None and now.origin is not None:  # not a first step that was replaced with the others
            graph.add_near_miss(name, reason)


def _fuse_body(graph: GraphSearch, op: Op, body: Flow, location: str) -> None:
    loop = read_loop(graph.flow, op)
    if loop is None:
        if takes_parts(graph.flow, op):  # OpenVINO computes this incorrectly with a GRUCell in the body
            return
        _fuse(GraphSearch(body, graph.search))
        return
    exprs = Expressions(body, graph.search.algebra, loop.indices, loop.sliced)
    try:
        replace_loop(graph, loop, exprs, location)
    except MissError as error:
        before, missed = len(graph.search.fused), len(graph.search.near_misses)
        _fuse(GraphSearch(body, graph.search, Expressions(body, graph.search.algebra, loop.indices)))
        reasons = {item.reason for item in graph.search.near_misses[missed:]}
        if isinstance(error, NoCellError):
            return
        if len(graph.search.fused) > before:
            graph.add_near_miss(location, f"only its cell was replaced, because {error}")
        elif reasons and str(error) not in reasons:
            graph.add_near_miss(location, str(error))
