"""Find dynamic input axes that a model reads only at fixed positions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from onegru.core.errors import BROKEN, SpecWarning, callers_level
from onegru.core.wording import count
from onegru.dataflow.flow import Flow
from onegru.dataflow.table import ENDLESS, Call, UnknownOpError, operator_of
from onegru.dataflow.table.cutting import Slice
from onegru.dataflow.walk import reachable
from onegru.formats.graph import Graph
from onegru.timeline.analysis import MOVE_KINDS
from onegru.timeline.read import read_model_flow

# Layers of an IR that read fixed positions, and layers that may precede them.
_CUTTING = {b"Gather", b"Slice", b"StridedSlice"}
_PASSING = {b"Transpose", b"Convert", b"Squeeze", b"Unsqueeze"}
_LAYER = re.compile(rb'<layer\s+id="(\d+)"[^>]*?\stype="(\w+)"')
_EDGE = re.compile(rb'<edge\s+from-layer="(\d+)"[^>]*?\sto-layer="(\d+)"')


def warn_of_unread(graph: Graph) -> None:
    """Warn of each dynamic input axis along which a model reads only fixed positions."""
    # Exporters that trace a model with one step write such files.
    for words in find_unread(graph):
        warnings.warn(f"{graph.path}: {words}", SpecWarning, stacklevel=callers_level())


def find_unread(graph: Graph) -> Iterator[str]:
    """Yield a sentence for each of these axes."""
    is_open = any(not isinstance(size, int) for info in graph.inputs for size in info.shape or ())
    model_flow = read_model_flow(graph) if is_open and _may_cut(graph) else None
    for info in graph.inputs if model_flow is not None else ():
        for axis, size in enumerate(info.shape or ()):
            if model_flow is None or isinstance(size, int):
                continue
            found: set[int] = set()
            try:
                is_fixed = _reads_fixed_positions(model_flow.flow, model_flow.inputs[info.name], axis, found)
            except (UnknownOpError, *BROKEN):
                continue
            if is_fixed and found:
                listed = ", ".join(map(str, sorted(found)[:5])) + ", …" * (len(found) > 5)
                what = f"only position {listed} is" if len(found) == 1 else f"only positions {listed} are"
                steps = count(max(found) + 1, "step") if min(found) >= 0 else "the last step"
                yield (
                    f"along the dynamic axis {axis} of {info.name!r}, {what} read: the model ignores the "
                    f"rest; was it exported for {steps}?"
                )


def _may_cut(graph: Graph) -> bool:
    """Whether the text of a file, without parsing, allows reads of fixed positions of an input."""
    outline = graph.outline
    if outline is None or outline.weights is None:
        text = b"" if outline is None else outline.content.SerializeToString()
        return b"Gather" in text or b"Slice" in text
    kinds, takers = dict(_LAYER.findall(outline.content)), dict[bytes, list[bytes]]()
    for source, target in _EDGE.findall(outline.content):
        takers.setdefault(source, []).append(target)
    inputs = [layer for layer, kind in kinds.items() if kind == b"Parameter"]
    layers = reachable(
        inputs, lambda layer: [taker for taker in takers.get(layer, ()) if kinds.get(taker) in _PASSING]
    )
    return any(kinds.get(taker) in _CUTTING for layer in layers for taker in takers.get(layer, ()))


def _reads_fixed_positions(flow: Flow, name: str, axis: int, found: set[int]) -> bool:
    """Whether all operators read fixed positions of an axis; add these to `found`."""
    waiting, seen = [(name, axis)], set[tuple[str, int]]()
    while waiting:
        name, axis = item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        if name in flow.outputs:
            return False
        for op in flow.consumers.get(name, ()):
            if op.kind == "Shape":
                continue
            if op.bodies or op.inputs[0] != name or name in op.inputs[1:]:
                return False
            call = Call(op, flow)
            if (positions := _positions(call, axis)) is not None:
                found.update(positions)
                continue
            to = {(move.to, move.output) for move in operator_of(op.kind).moves(call) if move.axis == axis}
            if op.kind not in MOVE_KINDS or len(to) != 1 or None in next(iter(to)):
                return False
            waiting.append((op.outputs[0], int(next(iter(to))[0] or 0)))
    return True


def _positions(call: Call, axis: int) -> list[int] | None:
    """Return the positions of an axis that a Gather or Slice reads; None for others, or for any position."""
    if call.op.kind == "Gather" and call.axis(0) == axis:
        indices = call.constant(1)
        return None if indices is None else [int(index) for index in indices.ravel()]
    if call.op.kind == "Slice" and isinstance(call.operator, Slice):
        bounds = call.operator.bounds(call, axis)
        if bounds is None or bounds[2] != 1:
            return None
        start, end = bounds[0], bounds[1]
        if end is None and start < 0:
            return list(range(start, 0))
        is_fixed = end is not None and end < ENDLESS and (start >= 0) == (end >= 0)
        return list(range(start, end)) if is_fixed and end is not None and end - start < 1024 else None
    return None
