"""Replace a recurrence by a node and its inputs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from onegru.core.dtypes import LARGEST, Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.view import View
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.gru import add_gru, add_lengths, add_mask, add_size, mask_steps
from onegru.fusion.nodes.sources import SlicedSource, Source, StackedSource


@dataclass(eq=False, slots=True)
class NewOps:
    """New operators of a graph."""

    added: list[Op] = field(default_factory=list)  # the new operators
    # the operator of each value, with its index
    producers: dict[str, tuple[int, Op]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)  # new constants
    # the outputs of new operators and constants, for reuse
    known: dict[Hashable, str] = field(default_factory=dict)
    # the states of a recurrence in the order of time, and the value that concatenates them
    stacks: dict[tuple[str, ...], str] = field(default_factory=dict)

    def add(self, emitter: Emitter) -> None:
        """Add the operators of an emitter."""
        for op in emitter.ops:
            self.producers.update((name, (len(self.added), op)) for name in op.outputs if name)
            self.added.append(op)
        self.constants.update(emitter.constants)
        self.known.update(emitter.known.maps[0])

    def leading_to(self, ops: Sequence[Op], flow: Flow) -> list[Op]:
        """Return operators, with the earlier new operators that they depend on."""
        waiting = [name for op in ops for name in op.inputs]
        needed: dict[int, Op] = {}
        while waiting:
            name = waiting.pop()
            if name in flow.producers or name not in self.producers:
                continue
            index, op = self.producers[name]
            if index not in needed:
                needed[index] = op
                waiting += op.inputs
        return [*(needed[index] for index in sorted(needed)), *ops]


@dataclass(frozen=True, eq=False, slots=True)
class Recurrence:
    """Cell over time."""

    cell: Cell  # the cell, with the state before the first step
    inputs: tuple[Source, ...]  # the sources of x
    masks: tuple[tuple[Source, bool], ...]  # the masks of steps, and whether True means masked
    attention: Source | None  # the attention scores; None without attention
    lengths: View | None  # the number of steps of each row, if the masks are equivalent to it; else None
    reverse: bool  # whether the first step is the last in time


def add_node(
    new_ops: NewOps, emitter: Emitter, recurrence: Recurrence, requested: Collection[str]
) -> tuple[str, str, str, int]:
    """Add a recurrence's node; return Y, Y_h, Y with zeros for masked steps, and the input size."""
    cell = recurrence.cell
    X, input_size = _input(new_ops, emitter, recurrence)
    unmasked_X, W, mask = X, cell.W, ""
    if any(item.view.has_columns and cell.hidden_size > 1 for item in cell.masks):
        raise MissError("its steps are masked unit by unit")
    uses_lengths = recurrence.lengths is not None and may_have_lengths(emitter, cell, requested)
    if cell.masks and not uses_lengths:
        if recurrence.lengths is not None:
            mask = add_mask(emitter, recurrence.lengths, unmasked_X)
        for source, is_off in () if mask else recurrence.masks:
            value = _sequence(new_ops, emitter, source, "mask", recurrence.reverse)
            shape = emitter.shape(value)
            value = emitter.op("Not", [value], "mask", shape) if is_off else value
            mask = emitter.op("And", [mask, value], "mask", shape) if mask else value
        mask = _with_rows_of(emitter, mask, X, "mask")
        X, W = mask_steps(emitter, X, mask, cell)
    scores = ""
    if recurrence.attention is not None:
        scores = _sequence(new_ops, emitter, recurrence.attention, "A", recurrence.reverse)
        shape = emitter.shape(scores)
        if cell.inverts_attention:
            scores = emitter.op("Sub", [emitter.number(1.0), scores], "A", shape)
        if mask:
            scores = emitter.op("Where", [mask, scores, emitter.number(0.0)], "A", shape)
        scores = _with_rows_of(emitter, scores, X, "A")
    lengths = ""
    if uses_lengths and recurrence.lengths is not None:
        lengths = add_lengths(emitter, recurrence.lengths, unmasked_X)
    state = "" if is_zero(emitter.flow, cell.state.name) else _first_state(emitter, cell.state, unmasked_X)
    direction = "reverse" if recurrence.reverse else "forward"
    outputs = bool({"Y", "zeroed"} & set(requested)), "Y_h" in requested
    Y, Y_h = add_gru(emitter, cell, X, W, lengths, state, scores, direction, outputs)
    steps = emitter.shape(X)[0]
    if Y_h and state and isinstance(steps, str):
        # A node returns zeros for an empty sequence; a loop returns its initial state.
        is_empty = emitter.op("Less", [add_size(emitter, X, 0, "steps"), emitter.ints(1)], "is_empty", (1,))
        first = emitter.squeeze(state, [0], "initial_h")
        Y_h = emitter.op("Where", [is_empty, first, Y_h], "Y_last", emitter.shape(Y_h))
    zeroed = ""
    if "zeroed" in requested:
        zeroed = Y
        if mask:
            zeroed = emitter.op("Where", [mask, Y, emitter.number(0.0)], "Y_on", emitter.shape(Y))
    return Y, Y_h, zeroed, input_size


def _input(new_ops: NewOps, emitter: Emitter, recurrence: Recurrence) -> tuple[str, int]:
    """Return X [T, B, I], and I."""
    parts = [_sequence(new_ops, emitter, source, "X", recurrence.reverse) for source in recurrence.inputs]
    shared = recurrence.cell.shared or [True] * len(parts)
    for index, source in enumerate(recurrence.inputs):
        view = source.view if isinstance(source, SlicedSource) else source.views[0]
        if emitter.flow.dtype(view.name) == "bool":
            shape = emitter.shape(parts[index])
            parts[index] = emitter.op("Cast", [parts[index]], "X", shape, dtype=emitter.dtype)
        elif not shared[index]:
            parts[index] = _finite(emitter, parts[index])
    rows = next((part for part in parts if emitter.shape(part)[1] != 1), parts[0])
    parts = [_with_rows_of(emitter, part, rows, "x") for part in parts]
    input_size = sum(int(emitter.shape(part)[2]) for part in parts)
    if len(parts) == 1:
        return parts[0], input_size
    return emitter.op("Concat", parts, "X", (*emitter.shape(parts[0])[:2], input_size), axis=2), input_size


def _finite(emitter: Emitter, value: str) -> str:
    """Replace infinity by the largest value of the type, which also saturates gates."""
    # Gates that do not use the value have weights of 0 for it, and 0 times infinity would be NaN.
    largest = LARGEST[emitter.dtype]
    for kind, bound in (("Min", largest), ("Max", -largest)):
        value = emitter.op(kind, [value, emitter.number(bound)], "X_finite", emitter.shape(value))
    return value


def _sequence(new_ops: NewOps, emitter: Emitter, source: Source, hint: str, reverse: bool) -> str:
    """Return the inputs of all steps as [T, B, columns], in time order."""
    if isinstance(source, StackedSource):
        names = tuple(view.name for view in source.views)
        stack = new_ops.stacks.get(names[::-1] if reverse else names)
        first = source.views[0]
        whole = np.array_equal(first.coordinates, [first.columns])
        same = all(view.has_columns_of(first) for view in source.views)
        if stack is not None and whole and same and emitter.shape(stack)[2] == first.width:
            return stack
    return emitter.sequence(source, hint, reverse)


def is_zero(flow: Flow, name: str) -> bool:
    """Whether a value is known to be zero."""
    return flow.fill_value(name) == 0


def _first_state(emitter: Emitter, view: View, X: str) -> str:
    """Return the initial state as [1, B, H]."""
    value = emitter.unsqueeze(emitter.rows(view, "initial_h"), [0], "initial_h")
    return _with_rows_of(emitter, value, X, "initial_h")


def _with_rows_of(emitter: Emitter, value: str, X: str, role: str) -> str:
    """Expand a value to the batch size of X. Two unknown batch sizes count as equal."""
    rows, (steps, have, width) = emitter.shape(X)[1], emitter.shape(value)
    if isinstance(have, int) and have not in (1, rows):
        raise MissError(f"its {role} has {have} rows, and x may have another number of rows")
    if have == rows or rows == 1 or (isinstance(rows, str) and isinstance(have, str)):
        return value
    one = emitter.ints(1)
    target = emitter.op("Concat", [one, add_size(emitter, X, 1, "rows"), one], "shape", (3,), axis=0)
    return emitter.op("Expand", [value, target], role, (steps, rows, width))


def may_have_lengths(emitter: Emitter, cell: Cell, requested: Collection[str]) -> bool:
    """Whether sequence_lens gives the outputs: zeros in the padding, and for empty rows."""
    if "Y" in requested or not emitter.allows_lengths:
        return False
    return "Y_h" not in requested or is_zero(emitter.flow, cell.state.name)


def place_stack(emitter: Emitter, Y: str, name: str, axis: int) -> None:
    """Move the states of all steps, [T, B, H], to a value with the steps along `axis`."""
    wanted = emitter.shape(name)
    rank = len(wanted)
    axis %= rank
    inner = [index for index in range(rank) if index not in (axis, rank - 1)]
    wide = [index for index in inner if wanted[index] != 1]
    if len(wide) > 1 or rank < 2 or axis == rank - 1:
        raise MissError("its states are joined in an unsupported way")
    if rank == 2:
        emitter.squeeze(Y, [1], "Y", name)
        return
    rows = wide[0] if wide else inner[-1]
    value = Y if axis < rows else emitter.transpose(Y, (1, 0, 2), "Y")
    missing = [index for index in inner if index != rows]
    if missing:
        emitter.unsqueeze(value, missing, "Y", name)
    else:
        emitter.op("Identity", [value], "Y", wanted, name)
