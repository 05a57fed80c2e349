"""Walk through a graph without recursion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import TypeVar

from onegru.dataflow.flow import Flow

_Item = TypeVar("_Item", bound=Hashable)


def reachable(starts: Iterable[_Item], following: Callable[[_Item], Iterable[_Item]]) -> Iterator[_Item]:
    """Yield items and all that follow from them, each once, depth first."""
    waiting, seen = list(starts), set[_Item]()
    while waiting:
        item = waiting.pop()
        if item not in seen:
            seen.add(item)
            yield item
            waiting += following(item)


def all_flows(flow: Flow) -> Iterator[Flow]:
    """Yield a flow and those of all bodies."""
    return reachable([flow], lambda graph: [body for op in graph.ops for body in op.bodies.values()])


def moved_to(flow: Flow, name: str, kinds: Collection[str]) -> Iterator[str]:
    """Yield a value, and the values to which operators of these kinds move it."""

    def outputs(value: str) -> list[str]:
        return [out for op in flow.consumers.get(value, ()) if op.kind in kinds for out in op.outputs]

    return reachable([name], outputs)


def moved_from(flow: Flow, name: str, kinds: Collection[str]) -> Iterator[str]:
    """Yield a value, then its sources through the first inputs of operators of these kinds."""

    def source(value: str) -> Iterable[str]:
        op = flow.producers.get(value)
        return () if op is None or op.kind not in kinds else op.inputs[:1]

    return reachable([name], source)
