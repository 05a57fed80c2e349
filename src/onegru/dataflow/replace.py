"""Replace operators of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.walk import reachable


def replace_ops(flow: Flow, added: Iterable[Op], constants: Mapping[str, Array]) -> None:
    """Add operators to a graph, remove unused ones, and sort the rest."""
    new = list(added)
    given = {name for op in new for name in op.outputs if name}
    kept = [op for op in flow.ops if not given.issuperset(filter(None, op.outputs))]
    producers = {name: op for op in (*kept, *new) for name in op.outputs if name}
    for old in kept:
        old.outputs = tuple("" if name in given else name for name in old.outputs)
    ops = _leading_to(flow.outputs, producers)
    waits = {
        number: list(dict.fromkeys(id(producers[name]) for name in op.reads() if name in producers))
        for number, op in ops.items()
    }
    positions = {id(op): position for position, op in enumerate((*kept, *new))}
    order = sorted(waits, key=positions.__getitem__)
    flow.ops = [ops[number] for number in _sorted(order, waits)]
    for name, array in constants.items():
        flow.add_constant(name, array)
    flow.reconnect()


def needed_values(flow: Flow, outputs: Iterable[str] | None = None) -> set[str]:
    """Return the outputs of operators that a graph's outputs, or other values, depend on."""
    ops = _leading_to(flow.outputs if outputs is None else outputs, flow.producers).values()
    return {name for op in ops for name in op.outputs if name}


def _leading_to(outputs: Iterable[str], producers: Mapping[str, Op]) -> dict[int, Op]:
    """Return the operators that values depend on."""
    names = reachable(outputs, lambda name: producers[name].reads() if name in producers else ())
    return {id(producers[name]): producers[name] for name in names if name in producers}


def _sorted(order: Iterable[int], waits: Mapping[int, list[int]]) -> Iterator[int]:
    """Yield numbers so that each follows those that it waits for, and else in their order."""
    done: set[int] = set()
    opened: set[int] = set()
    for first in order:
        waiting = [first]
        while waiting:
            last = waiting[-1]
            before = [] if last in done else [number for number in waits[last] if number not in done]
            if not before:
                waiting.pop()
                if last not in done:
                    done.add(last)
                    yield last
            elif last in opened:  # its dependencies were visited, and wait for it
                raise ValueError("operators depend on each other, so that none of them can run first")
            else:
                opened.add(last)
                waiting += before
