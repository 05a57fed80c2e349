"""Find inputs and outputs of a model that are the same state.

An exported streaming model has the initial state of its GRUs as an input and their last state as an output.
Only operators that move, cut or join arrays are between them and the GRUs. Evaluating these operators with
numbered elements proves that the last state of a GRU returns to the same GRU, with each element at its index.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.nonempty import unguarded
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Elements, UnknownOpError, evaluate, movers
from onegru.formats.graph import GruStep, TensorInfo

_MOVES = movers(Elements.KEPT | Elements.PERMUTED, casts=True)
_CUTS, _JOINS = movers(Elements.CUT), movers(Elements.JOINED)

# Limit of a state's elements; larger states are not proved.
_MOST_ELEMENTS = 1 << 20
_MOST_OPS = 1000


def find_states(
    flow: Callable[[], Flow],
    grus: Iterable[GruStep],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    name: Callable[[str], str] = lambda value: value,
) -> tuple[tuple[str, str], ...]:
    """Find pairs of an output and the input that receives it in the next run."""
    # An input and an output are a pair if they belong to the same forward GRUs, with equal type and shape. In
    # addition, the output must equal the input if the GRUs return their initial states. If several outputs
    # qualify, their values are equal: a GRU's own output is chosen, or else the first. A state that two GRUs
    # start from is skipped, and so are uncertain cases.
    each = list(grus)
    counts = Counter(gru.value("initial_h") for gru in each)
    starts = {
        name(start): name(end)
        for gru in each
        if gru.attributes.get("direction", "forward") in ("forward", "foward")
        and (start := gru.value("initial_h"))
        and (end := gru.value("Y_h"))
        and counts[start] == 1
    }
    if not starts:
        return ()
    graph, ends = flow(), {end: start for start, end in starts.items()}
    sources = {start: _source(graph, start) for start in starts}
    consumers = {
        info.name: {start for start, source in sources.items() if source == name(info.value)}
        for info in inputs
    }
    given = {info.name: {ends[end] for end in _joined(graph, name(info.value), ends)} for info in outputs}
    ordered = sorted(outputs, key=lambda output: name(output.value) not in ends)
    pairs = [
        (output, info)
        for info in inputs
        for output in ordered
        if consumers[info.name] and consumers[info.name] == given[output.name] and _alike(info, output)
    ]
    inputs_of = Counter(output.name for output, _ in pairs)
    found: dict[str, str] = {}
    for output, info in pairs:
        if info.name in found or inputs_of[output.name] > 1:
            continue
        own = {end: start for end, start in ends.items() if start in consumers[info.name]}
        if _comes_back(graph, own, (name(info.value), info), name(output.value)):
            found[info.name] = output.name
    return tuple((output, consumer) for consumer, output in found.items())


def _producer(flow: Flow, name: str) -> Op | None:
    """Return the operator that computes a value in a run with at least one step."""
    op = flow.producers.get(name)
    return None if op is None else unguarded(flow, op)


def _source(flow: Flow, name: str) -> str:
    """Return the value from which another value is moved or cut."""
    for _ in range(_MOST_OPS):
        op = _producer(flow, name)
        if op is None or op.kind not in _MOVES | _CUTS:
            break
        name = op.inputs[0]
    return name


def _joined(flow: Flow, name: str, ends: Mapping[str, str]) -> set[str]:
    """Return the last states of GRUs that a value consists of."""
    found: set[str] = set()
    waiting, seen = [name], {name}
    while waiting and len(seen) < _MOST_OPS:
        value = waiting.pop()
        op = _producer(flow, value)
        if value in ends:
            found.add(value)
        elif op is not None and op.kind in _MOVES | _JOINS:
            data = op.inputs if op.kind in _JOINS else op.inputs[:1]
            waiting += [item for item in data if item and item not in seen]
            seen.update(data)
    return found


def _comes_back(flow: Flow, ends: Mapping[str, str], given: tuple[str, TensorInfo], output: str) -> bool:
    """Whether an output returns each element of an input at its index, if GRUs keep their states."""
    value, info = given
    if info.shape is None:
        return False
    shape = [size if isinstance(size, int) else 2 + index for index, size in enumerate(info.shape)]
    if not 0 < math.prod(shape) <= _MOST_ELEMENTS:
        return False
    numbered = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) + 0.5
    try:
        result = _computed(flow, ends, {value: numbered}, output)
    except (UnknownOpError, *BROKEN):
        return False
    return result.shape == numbered.shape and np.array_equal(result, numbered)


def _computed(flow: Flow, ends: Mapping[str, str], arrays: dict[str, Array], output: str) -> Array:
    """Compute a value from others; `ends` names the values that stand for last states."""
    waiting, seen = [output], set[int]()
    while output not in arrays:
        name = waiting[-1]
        op = Op("Identity", (ends[name],), (name,)) if name in ends else _producer(flow, name)
        constant = None if name in ends else flow.constant(name)
        if constant is not None and constant.size <= _MOST_ELEMENTS:
            arrays[name] = constant
        if name in arrays:
            waiting.pop()
            continue
        if op is None or op.bodies or len(seen) > _MOST_OPS:
            raise UnknownOpError
        missing = [item for item in op.inputs if item and item not in arrays]
        if not missing:
            results = evaluate(
                op.kind,
                op.attributes,
                [arrays[item] if item else None for item in op.inputs],
                len(op.outputs),
            )
            arrays.update(zip(op.outputs, results, strict=False))
            if name not in arrays:
                raise UnknownOpError
        elif id(op) in seen and name not in ends:  # its inputs are already waiting: a cycle
            raise UnknownOpError
        seen.add(id(op))
        waiting += missing
    return arrays[output]


def _alike(info: TensorInfo, output: TensorInfo) -> bool:
    """Whether an input can receive an output: the types match, and sizes that are fixed in both are equal."""
    if info.dtype != output.dtype:
        return False
    if info.shape is None or output.shape is None:
        return True
    return len(info.shape) == len(output.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(info.shape, output.shape, strict=True)
    )
