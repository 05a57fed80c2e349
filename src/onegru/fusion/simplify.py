"""Simplify a graph with new nodes: reversals, last states, directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.replace import replace_ops
from onegru.dataflow.table import Call
from onegru.dataflow.table.cutting import Slice, reversed_axis
from onegru.dataflow.table.moving import AXIS_MOVING_KINDS, axis_order_of
from onegru.dataflow.walk import moved_from, reachable
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.search import Search

_F_AND_G = ["Sigmoid", "Tanh"]  # the default activations


def simplify(flow: Flow, search: Search) -> None:
    """Simplify a graph with new nodes."""
    for change in (_remove_double_reversals, _use_last_states, partial(_merge_directions, {})):
        emitter = Emitter(flow, "onegru", search.names, "float32")
        for op in flow.ops:
            count = len(emitter.ops)
            with search.guarded(next(filter(None, op.outputs), op.kind)):
                change(flow, emitter, op)
                continue
            del emitter.ops[count:]
            emitter.known.clear()  # it may contain removed operators
        if emitter.ops:
            replace_ops(flow, emitter.ops, emitter.constants)
    _remove_copies(flow)


def _remove_copies(flow: Flow) -> None:
    """Replace Identity operators: rename the outputs of new operators."""
    for op in flow.ops:
        before = flow.producers.get(op.inputs[0]) if op.kind == "Identity" and op.origin is None else None
        if before is None or before.origin is not None or op.inputs[0] in flow.outputs:
            continue
        old, new = op.inputs[0], op.outputs[0]
        others = [other for other in flow.consumers.get(old, ()) if other is not op]
        if any(other.origin is not None for other in others):
            continue
        before.outputs = tuple(new if name == old else name for name in before.outputs)
        for other in others:
            other.inputs = tuple(new if name == old else name for name in other.inputs)
        op.inputs, op.outputs = ("",), ("",)
        flow.producers[new] = before
        flow.consumers.setdefault(new, []).extend(others)
    replace_ops(flow, (), {})


# Reversals


def _remove_double_reversals(flow: Flow, emitter: Emitter, op: Op) -> None:
    """Replace a double reversal by the value itself, transposed if necessary."""
    axis = reversed_axis(flow, op)
    if axis is None:
        return
    perm = list(range(len(flow.shape(op.inputs[0]) or ())))
    name = op.inputs[0]
    while (before := flow.producers.get(name)) is not None:
        if before.kind == "Transpose":
            inner = before.attributes.get("perm", perm[::-1])
            axis, perm = inner[axis], [inner[index] for index in perm]
        elif before.kind != "Identity":
            break
        name = before.inputs[0]
    if before is not None and reversed_axis(flow, before) == axis:
        shape, value = flow.shape(op.outputs[0]), before.inputs[0]
        if perm == sorted(perm):
            emitter.op("Identity", [value], "turned", shape, op.outputs[0])
        else:
            emitter.op("Transpose", [value], "turned", shape, op.outputs[0], perm=tuple(perm))


# Last states


def _use_last_states(flow: Flow, emitter: Emitter, node: Op) -> None:
    """Read the last state from Y_h instead of from the end of Y."""
    if not _is_new_gru(node) or not node.outputs[0] or node.input(4):
        return
    for name in _states_in_order(flow, node):
        for op in flow.consumers.get(name, ()):
            shape = flow.shape(name)
            if shape is None or not _reads_last(flow, op, name):
                continue
            last = node.output(1) or emitter.fresh("Y_h")
            if not node.output(1):
                node.outputs = (node.outputs[0], last)
                flow.set_shape(last, (1, *shape[1:]))
                flow.producers[last] = node
            if op.kind == "Slice":
                emitter.op("Identity", [last], "last", None, op.outputs[0])
            else:
                emitter.squeeze(last, [0], "last", op.outputs[0])


def _states_in_order(flow: Flow, node: Op) -> list[str]:
    """Return the values with a node's states in the order of its steps, [T, B, H]."""
    found: list[str] = []
    waiting = [
        name
        for op in flow.consumers.get(node.outputs[0], ())
        if axis_order_of(flow, op) == (0, 2, 3)  # without the directions
        for name in op.outputs
    ]
    reverse = node.attributes.get("direction") == "reverse"
    while waiting:
        name = waiting.pop()
        if not reverse:
            found.append(name)
        for op in flow.consumers.get(name, ()):
            if op.kind == "Identity":
                waiting += op.outputs
            elif reverse and reversed_axis(flow, op) == 0:
                found += op.outputs
                found += [
                    out
                    for other in flow.consumers.get(op.outputs[0], ())
                    if other.kind == "Identity"
                    for out in other.outputs
                ]
    return found


def _reads_last(flow: Flow, op: Op, name: str) -> bool:
    """Whether an operator reads the last slice of a value along the first axis."""
    shape = flow.shape(name)
    if shape is None or op.inputs[0] != name:
        return False
    last = shape[0] - 1 if isinstance(shape[0], int) else -1
    if op.kind == "Slice":
        call = Call(op, flow)
        selections = call.operator.selections(call) if isinstance(call.operator, Slice) else None
        return selections in ({0: (-1, 1, 1)}, {0: (last, 1, 1)})
    if op.kind == "Gather" and op.attributes.get("axis", 0) == 0:
        index = flow.constant(op.inputs[1])
        return index is not None and index.shape == () and int(index) in (-1, last)
    return False


# Directions


def _merge_directions(merged: dict[int, Op], flow: Flow, emitter: Emitter, op: Op) -> None:
    """Merge a forward and a reverse node with concatenated outputs into a bidirectional node."""
    # `merged` contains the other direction of each merged node, by the node's identity.
    if op.kind != "Concat" or len(op.inputs) != 2:
        return
    first, second = (_source_node(flow, name) for name in op.inputs)
    if first is None or second is None or {id(first), id(second)} & merged.keys() or first is second:
        return
    if _are_directions(flow, first, second) and not _is_dependent(merged, flow, first, second):
        merged |= {id(first): second, id(second): first}
        _merge(flow, emitter, first, second)


def _is_dependent(merged: Mapping[int, Op], flow: Flow, first: Op, second: Op) -> bool:
    """Whether one of two operators depends on the other; merged nodes count as one."""

    def inputs_of(name: str) -> Iterable[str]:
        op = flow.producers.get(name)
        return () if op is None else [*op.reads(), *(merged[id(op)].reads() if id(op) in merged else ())]

    names = reachable([*first.reads(), *second.reads()], inputs_of)
    return any(flow.producers.get(name) in (first, second) for name in names)


def _source_node(flow: Flow, name: str) -> Op | None:
    """Return the new node that a value comes from through axis moves; None if there is none."""
    *_, source = moved_from(flow, name, AXIS_MOVING_KINDS)
    op = flow.producers.get(source)
    return op if op is not None and _is_new_gru(op) else None


def _is_new_gru(op: Op) -> bool:
    return op.kind == "GRU" and op.origin is None and op.attributes.get("direction") != "bidirectional"


def _are_directions(flow: Flow, forward: Op, reverse: Op) -> bool:
    """Whether two nodes can be the two directions of one node."""
    directions = [op.attributes.get("direction", "forward") for op in (forward, reverse)]
    same = ("hidden_size", "linear_before_reset", "clip")
    return (
        directions == ["forward", "reverse"]
        and all(forward.attributes.get(name) == reverse.attributes.get(name) for name in same)
        and flow.resolve(forward.input(0)) == flow.resolve(reverse.input(0))
        and flow.resolve(forward.input(4)) == flow.resolve(reverse.input(4))
        and bool(forward.input(5)) == bool(reverse.input(5))
        and flow.shape(forward.input(1)) == flow.shape(reverse.input(1))
    )


def _merge(flow: Flow, emitter: Emitter, forward: Op, reverse: Op) -> None:
    emitter.dtype = flow.dtype(forward.input(1)) or "float32"
    weights = []
    for index, name in ((1, "W"), (2, "R"), (3, "B")):
        arrays = [flow.constant(op.input(index)) if op.input(index) else None for op in (forward, reverse)]
        weights.append(_stacked(emitter, name, arrays))
    state = ""
    if forward.input(5):
        states = [op.input(5) for op in (forward, reverse)]
        shape = flow.shape(states[0]) or (1,)
        state = emitter.op("Concat", states, "initial_h", (2, *shape[1:]), axis=0)
    attributes: dict[str, Any] = {**forward.attributes, "direction": "bidirectional"}
    if "activations" in forward.attributes or "activations" in reverse.attributes:
        for name, default in (("activations", _F_AND_G), ("activation_alpha", []), ("activation_beta", [])):
            both = [list(op.attributes.get(name, default)) for op in (forward, reverse)]
            attributes.pop(name, None)
            if both[0] or both[1]:
                attributes[name] = both[0] + both[1]
    Y, Y_h = emitter.fresh("Y"), emitter.fresh("Y_h")
    inputs = [forward.input(0), *weights, forward.input(4), state]
    while not inputs[-1]:
        inputs.pop()
    needs = [any(op.output(index) for op in (forward, reverse)) for index in (0, 1)]
    outputs = [Y if needs[0] else "", *([Y_h] if needs[1] else [])]
    emitter.ops.append(Op("GRU", tuple(inputs), tuple(outputs), attributes, name=emitter.fresh("GRU")))
    for index, whole, axis in ((0, Y, 1), (1, Y_h, 0)):
        for number, op in enumerate((forward, reverse)):
            name = op.output(index)
            sizes = flow.shape(name) if name else None
            if sizes is not None:
                flow.set_shape(whole, (*sizes[:axis], 2, *sizes[axis + 1 :]))
                bounds = [emitter.ints(number), emitter.ints(number + 1), emitter.ints(axis)]
                emitter.op("Slice", [whole, *bounds], "direction", sizes, name)


def _stacked(emitter: Emitter, name: str, arrays: list[Array | None]) -> str:
    """Join the parameters of both directions in one constant; "" if neither has any."""
    given = [array for array in arrays if array is not None]
    if not given:
        return ""
    both = np.concatenate([np.zeros_like(given[0]) if array is None else array for array in arrays])
    return emitter.constant(name, both.astype(np.float64))
