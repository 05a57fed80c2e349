"""Find the inputs of a model that are lengths, masks or indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Elements, movers
from onegru.dataflow.table.recurrences import find_recurrence
from onegru.dataflow.walk import all_flows
from onegru.models.model import Model, runs_of_nodes
from onegru.timeline.read import ModelFlow, read_model_flow

# Operators that keep the meaning of lengths, although type, shape and order may change, and the indices of
# the inputs to follow.
_KEPT: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        movers(Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.REPEATED, casts=True), (0,)
    ),
    **dict.fromkeys(("CastLike", "GatherElements", "GatherND", "TopK", "Clip", "Relu", "Abs"), (0,)),
    **dict.fromkeys(("Min", "Max", *movers(Elements.JOINED)), tuple(range(8))),
    "Where": (1, 2),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), (0,)),
}
# Operators that change the unit of lengths, as for strides. The recurrence's steps are then not the input's.
_SCALED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum", "Mod"), tuple(range(8))),
    **dict.fromkeys(("Floor", "Ceil", "Round"), (0,)),
}
# Operators that use a value as a step count to mask or select steps of a non-constant input.
_COUNTED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), (0, 1)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Range"), (1,)),
    "Slice": (2,),
}


@dataclass
class LengthsInput:
    """An input that holds lengths."""

    # the values whose steps the lengths count, by their names in the model's operators
    sequences: list[str] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)  # the axis of the steps in each value
    is_scaled: bool = False  # whether they count other steps, which the model computes from the lengths
    is_sure: bool = False  # whether a recurrence reads them; else they may mask or select steps


@dataclass(frozen=True)
class _Analysis:
    model_flow: ModelFlow | None
    found: Mapping[str, LengthsInput]


_analyses: WeakKeyDictionary[Model, _Analysis] = WeakKeyDictionary()


def find_lengths(model: Model) -> Mapping[str, LengthsInput]:
    """Return the inputs that contain lengths, by name; empty if onegru cannot follow the operators."""
    return _analysis_of(model).found


def steps_of(model: Model, lengths: LengthsInput, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the step count that lengths must fit, if the file gives it; else None."""
    model_flow = _analysis_of(model).model_flow
    if model_flow is None or lengths.is_scaled:
        return None
    sizes: dict[object, int] = {}
    for name, value in model_flow.inputs.items():
        sizes.update(zip(model_flow.flow.shape(value) or (), shapes.get(name, ()), strict=False))
    found: list[int] = []
    for value, axis in zip(lengths.sequences, lengths.axes, strict=True):
        shape = model_flow.flow.shape(value) or ()
        size = shape[axis] if axis < len(shape) else ""
        steps = size if isinstance(size, int) else sizes.get(size)
        if steps is None:
            return None
        found.append(steps)
    return min(found, default=None)


def count_steps(model: Model, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the step count of the longest row of each GRU node in a run, by the node's name."""
    return steps_in(model, runs_of_nodes(model, inputs))


def steps_in(model: Model, seen: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return the same counts from the result of `runs_of_nodes`."""
    found: dict[str, int] = {}
    for gru, runs in zip(model.gru_nodes, seen, strict=True):
        lengths, axis = gru.step.port("sequence_lens"), gru.step.axis("X", "T")
        for arrays in runs:
            steps = arrays["X"].shape[axis] if axis >= 0 else 1
            if lengths is not None and lengths.name in arrays:
                steps = min(steps, int(np.max(arrays[lengths.name], initial=0)))
            found[gru.name] = found.get(gru.name, 0) + (steps if arrays["X"].size else 0)
        found.setdefault(gru.name, 0)
    return found


def _analysis_of(model: Model) -> _Analysis:
    if model not in _analyses:
        model_flow = read_model_flow(model.graph)
        found: Mapping[str, LengthsInput] = {}
        if model_flow is not None:
            try:
                found = _find_lengths(model_flow)
            except BROKEN:
                model_flow = None
        _analyses[model] = _Analysis(model_flow, found)
    return _analyses[model]


def _find_lengths(model_flow: ModelFlow) -> dict[str, LengthsInput]:
    names = {value: name for name, value in model_flow.inputs.items()}
    found: dict[str, LengthsInput] = {}
    for flow, op, index, axis in _uses(model_flow.flow):
        for value, is_scaled in _roots(flow, op.inputs[index]):
            if value in names:
                item = found.setdefault(names[value], LengthsInput())
                item.is_scaled |= is_scaled
                if axis is not None:
                    item.is_sure = True
                    item.sequences.append(op.inputs[0])
                    item.axes.append(axis)
    return found


def _uses(flow: Flow) -> Iterator[tuple[Flow, Op, int, int | None]]:
    """Yield the flow, operator and input index of each user of lengths, and a recurrence's time axis."""
    for here in all_flows(flow):
        for op in here.ops:
            kind = op.kind
            if kind == "ReverseSequence":
                index, axis = 1, int(op.attributes.get("time_axis", 0))
            elif (recurrence := find_recurrence(op)) is not None:
                index, axis = recurrence.lengths, recurrence.time_axis(op)
            else:
                is_table = kind.startswith("Gather") and here.constant(op.inputs[0]) is not None
                for index in () if is_table else _COUNTED.get(kind, ()):
                    if index < len(op.inputs) and op.inputs[index]:
                        yield here, op, index, None
                continue
            if len(op.inputs) > index and op.inputs[index]:
                yield here, op, index, axis


def _roots(flow: Flow, name: str) -> Iterator[tuple[str, bool]]:
    """Yield the values that lengths are computed from, and whether their unit differs."""
    waiting, seen = [(flow, name, False)], set[tuple[int, str, bool]]()
    while waiting:
        here, name, is_scaled = waiting.pop()
        value = here.resolve(name)
        if (id(here), value, is_scaled) in seen or here.constant(value) is not None:
            continue
        seen.add((id(here), value, is_scaled))
        op = here.find_producer(value)
        if op is None:
            yield value, is_scaled
            continue
        kind = op.kind
        if kind == "If":
            index = op.outputs.index(value)
            waiting += [(body, body.outputs[index], is_scaled) for body in op.bodies.values()]
        indices = _KEPT.get(kind, _SCALED.get(kind, ()))
        sources = [op.inputs[index] for index in indices if index < len(op.inputs) and op.inputs[index]]
        waiting += [(here, item, is_scaled or kind in _SCALED) for item in sources]
