"""Replace whole loops by GRU nodes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.loops.loop import Carried, Collected, Loop
from onegru.dataflow.operator import Op
from onegru.dataflow.replace import needed_values
from onegru.dataflow.table import UnknownOpError
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.cell import Cell, MissError, NoCellError
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.cells.layer import layer_cell
from onegru.fusion.cells.masks import zeroed_state
from onegru.fusion.cells.match import find_cell
from onegru.fusion.cells.polynomial import Polynomial, add, same
from onegru.fusion.drawn_inputs import DrawnSizes
from onegru.fusion.float64 import Float64Values
from onegru.fusion.graph import GraphSearch
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.hoist import Hoist, computed_ahead
from onegru.fusion.nodes.lengths import lengths_of
from onegru.fusion.nodes.node import Recurrence, add_node, is_zero, place_stack
from onegru.fusion.nodes.sources import SlicedSource, Source, loop_source, source_views


def replace_loop(graph: GraphSearch, loop: Loop, exprs: Expressions, location: str) -> None:
    """Replace a loop if the numeric check passes."""
    try:
        _LoopReplacement(graph, loop, exprs, location).replace()
    except MissError:
        ahead = {name for name in computed_ahead(loop) if not _is_needed(exprs, name)}
        if ahead <= exprs.boundaries or graph.search.only_layers:
            raise
        # Values that need no state can be computed before the loop. They are not analyzed, except for W and
        # masks.
        less = Expressions(loop.body, graph.search.algebra, loop.indices, exprs.sliced)
        less.boundaries |= ahead
        with suppress(MissError):
            _LoopReplacement(graph, loop, less, location).replace()
            return
        raise


def _is_needed(exprs: Expressions, name: str) -> bool:
    """Whether a value is a sum of matmuls of values, or consists of numbers and Booleans."""
    found = exprs.definition(name)
    if found is None:
        return False
    atoms = [exprs.algebra.atoms[atom_id] for atom_id in found.atoms()]
    is_sum = all(len(monomial) <= 1 for monomial in found.terms)
    kinds = {atom.kind for atom in atoms}
    return (is_sum and "matmul" in kinds <= {"matmul", "value"}) or all(atom.is_bool for atom in atoms)


class _LoopReplacement:
    """The replacement of a loop; the caller's loop object stays unchanged."""

    def __init__(self, graph: GraphSearch, loop: Loop, exprs: Expressions, location: str) -> None:
        self.graph = graph
        self.loop = loop = replace(loop, carried=list(loop.carried))
        self.exprs = exprs
        self.location = location
        self.emitter: Emitter = graph.emitter(location, graph.search.dtype)
        self.hoist = Hoist(loop, self.emitter, graph.search.writes)
        # Outputs of the loop that new operators compute.
        self.provided: set[str] = set()
        # Cells that became nodes, whether the node is reversed, and its input size.
        self.replaced: list[tuple[Cell, bool, int]] = []
        # Values that the body computes a second time, and the value that they equal.
        self.duplicates: dict[str, str] = {}
        # Carried values used only after the last iteration, by the value that they equal.
        self.last_values: dict[str, Carried] = {}
        # Y of each node, and whether it is reversed, by the body's name for the new state.
        self.states: dict[str, tuple[str, bool]] = {}

    def replace(self) -> None:
        """Replace the loop."""
        loop, graph = self.loop, self.graph
        self._drop_unread()
        self._merge_duplicates()
        cells: list[tuple[Carried, Cell]] = []
        for item in loop.carried:
            cell = self._find(item)
            if cell is not None and loop.body.resolve(cell.state.name) == item.before:
                if cell.has_zero_R:
                    raise MissError("it does not multiply its state with constant weights")
                if reason := graph.search.why_not(cell):
                    raise MissError(reason)
                cells.append((item, cell))
        if not cells:
            raise NoCellError
        used = {name for name in loop.op.outputs if graph.flow.is_used(name)}
        for item, cell in cells:
            self._add(item, cell, used)
        for name, initial in loop.unchanged.items():
            if name in used:
                self.emitter.op("Identity", [initial], "passed", graph.flow.shape(initial), name)
                self.provided.add(name)
        if rest := used - self.provided:
            raise MissError(f"its output {min(rest)!r} is not a state of a GRU")
        check = graph.check_numerically(self.emitter, self.location, self._run)
        if check is None:
            return
        steps = loop.count if isinstance(loop.count, int) else None
        for cell, reverse, input_size in self.replaced:
            graph.add_fused(
                cell, self.location, "loop", steps, len(loop.body.ops), reverse, input_size, check
            )

    def _find(self, item: Carried) -> Cell | None:
        """Return the cell with this carried value as its new state; None if there is none."""
        find = layer_cell if self.graph.search.only_layers else find_cell
        return find(self.exprs, self.loop.body.resolve(item.after))

    def _drop_unread(self) -> None:
        """Remove unused carried values; Keras passes on its last output."""
        loop, body = self.loop, self.loop.body
        used = {name for op in body.ops for name in op.reads()}.union(body.outputs)
        loop.carried = [
            item for item in loop.carried if item.before in used or self.graph.flow.is_used(item.last)
        ]

    def _merge_duplicates(self) -> None:
        """Merge equal carried values; Keras passes on its last output and its state."""
        # They stay equal even if the loop is not replaced.
        loop, body = self.loop, self.loop.body
        for item in list(loop.carried):
            for other in loop.carried:
                if item is not other and other.before and self._is_duplicate(item, other):
                    loop.carried.remove(item)
                    if item.before:
                        body.set_alias(item.before, other.before)
                    self.duplicates[body.resolve(item.after)] = body.resolve(other.after)
                    if self.graph.flow.is_used(item.last):
                        self.last_values[other.before] = item
                    break

    def _is_duplicate(self, item: Carried, other: Carried) -> bool:
        """Whether one value equals another in each iteration, and can be replaced by it."""
        if not item.before:
            return self._is_last(item, other)
        outer, body = self.graph.flow, self.loop.body
        equal = outer.resolve(item.initial) == outer.resolve(other.initial)
        if not equal and not (is_zero(outer, item.initial) and is_zero(outer, other.initial)):
            return False
        first, second = (self.exprs.definition(body.resolve(one.after)) for one in (item, other))
        old, new = self.exprs.whole(item.before), self.exprs.whole(other.before)
        if first is None or second is None or old is None or new is None:
            return False
        before, after = (self.exprs.polynomial(view).single() for view in (old, new))
        if before is None or after is None or item.before in self.exprs.algebra.values([second]):
            return False
        renamed: Polynomial = Polynomial({})
        for monomial, coefficient in first.terms.items():
            atom_ids = tuple(sorted(after[0] if n == before[0] else n for n in monomial))
            renamed = add(renamed, Polynomial({atom_ids: coefficient}))
        return before[0] in first.atoms() and same(renamed, second)

    def _is_last(self, item: Carried, other: Carried) -> bool:
        """Whether a value that no iteration reads is the last value of another."""
        outer, body, count = self.graph.flow, self.loop.body, self.loop.count
        has_steps = isinstance(count, int) and count > 0
        if not has_steps and not (is_zero(outer, item.initial) and is_zero(outer, other.initial)):
            return False
        view, after = self.exprs.whole(item.after), self.exprs.whole(other.after)
        if view is None or after is None or view.width != after.width or other.before in self.last_values:
            return False
        views = source_views(self.exprs, view)
        name = body.resolve(other.after)
        return any(view.name == name and view.has_columns_of(after) for view in views)

    def _add(self, item: Carried, cell: Cell, used: set[str]) -> None:
        """Add the node for one state."""
        loop, emitter = self.loop, self.emitter
        entries = [entry for entry in loop.collected if entry.name in used]
        states = [entry for entry in entries if self._is_state(entry, cell)]
        zeroed = [entry for entry in entries if entry not in states and self._is_zeroed(entry, cell)]
        requested = {name for name, is_requested in (("Y", states), ("zeroed", zeroed)) if is_requested}
        lasts = [one for one in (item, self.last_values.get(item.before)) if one and one.last in used]
        if lasts:
            requested.add("Y_h")
        if self._feeds_others(cell):
            requested.add("Y")
        if not requested:
            return
        emitter.dtype = self.exprs.flow.dtype(cell.output) or self.graph.search.dtype
        inputs, reverse, lengths = self._inputs(cell, through_reversals=True)
        if cell.masks and lengths is None:  # lengths count in time, in any order of an earlier layer's states
            other = self._inputs(cell, through_reversals=False)
            inputs, reverse, lengths = other if other[2] is not None else (inputs, reverse, lengths)
        masks = () if lengths is not None else cell.masks
        recurrence = Recurrence(
            replace(cell, state=cell.state.renamed(item.initial)),
            inputs,
            tuple((self._source(mask.view), mask.is_off) for mask in masks),
            None if cell.attention is None else self._source(cell.attention),
            lengths,
            reverse,
        )
        Y, Y_h, zeroed_Y, input_size = add_node(self.graph.new_ops, emitter, recurrence, requested)
        for one in lasts:
            shape = emitter.shape(one.initial) if one.before else self.exprs.flow.shape(one.after) or ()
            emitter.shaped(Y_h, one.last, shape)
            self.provided.add(one.last)
        for chosen, value in ((states, Y), (zeroed, zeroed_Y)):
            for entry in chosen:
                self._collect(value, entry, reverse)
                self.provided.add(entry.name)
        if Y:
            self.states[cell.output] = Y, reverse
        self.replaced.append((cell, reverse, input_size))

    def _inputs(self, cell: Cell, *, through_reversals: bool) -> tuple[tuple[Source, ...], bool, View | None]:
        """Return the sources of x, whether the steps are reversed, and the lengths in their mask."""
        inputs = tuple(self._source(view, through_reversals) for view in cell.inputs)
        reverse = next((source.step for source in inputs if isinstance(source, SlicedSource)), 1) < 0
        if len(cell.masks) != 1:
            return inputs, reverse, None
        lengths = lengths_of(self.exprs, cell.masks, reverse, self.loop.count)
        if lengths is not None and self.exprs.flow.owner(lengths.name) is self.exprs.flow:
            lengths = None
        return inputs, reverse, lengths

    def _feeds_others(self, cell: Cell) -> bool:
        """Whether another cell of the loop uses this cell's new state as its x."""
        body = self.loop.body
        others = [item for item in self.loop.carried if body.resolve(item.after) != cell.output]
        for item in others:
            found = self._find(item)
            paths = [source_views(self.exprs, view) for view in (found.inputs if found is not None else ())]
            if any(view.name == cell.output for path in paths for view in path):
                return True
        return False

    def _source(self, view: View, through_reversals: bool = True) -> Source:
        for earlier in source_views(self.exprs, view):
            if earlier.name in self.states:
                Y, reverse = self.states[earlier.name]
                states = View(Y, (0, ROWS, COLUMNS), earlier.coordinates)
                return SlicedSource(states, axis=0, step=-1 if reverse else 1)
        found = loop_source(self.exprs, view, self.loop.count, through_reversals)
        if found is not None:
            return found
        try:
            if self.graph.search.only_layers:
                raise MissError("it is computed")
            return self.hoist.source(view)
        except MissError as error:
            words = "is neither one slice for each iteration nor computed from slices"
            raise MissError(f"its input {view.name!r} {words} ({error})") from error.__cause__

    def _is_state(self, entry: Collected, cell: Cell) -> bool:
        """Whether the loop collects the new state here."""
        whole = self.exprs.whole(entry.inner)
        if whole is None or whole.width != cell.hidden_size:
            return False
        return any(
            self.duplicates.get(view.name, view.name) == cell.output and view.has_columns_of(whole)
            for view in source_views(self.exprs, whole)
        )

    def _is_zeroed(self, entry: Collected, cell: Cell) -> bool:
        """Whether the loop collects the new state here, or zero for masked steps."""
        whole = self.exprs.whole(entry.inner)
        wanted = zeroed_state(self.exprs, cell) if cell.masks else None
        if whole is None or wanted is None:
            return False
        for view in source_views(self.exprs, whole):
            found = self.exprs.definition(view.name)
            if found is not None and view.has_columns_of(whole) and same(found, wanted):
                return True
        return False

    def _collect(self, Y: str, entry: Collected, reverse: bool) -> None:
        emitter = self.emitter
        if (entry.step < 0) != reverse:
            Y = emitter.reverse(Y, 0, "Y_backwards")
        shape = self.exprs.flow.shape(entry.inner)
        if shape is None:
            raise MissError("the shape of its collected values is unknown")
        steps = emitter.shape(Y)[0]
        whole = list(shape) if entry.keeps_axis else [*shape[: entry.axis], steps, *shape[entry.axis :]]
        whole[entry.axis] = steps
        emitter.flow.set_shape(entry.name, tuple(whole))
        place_stack(emitter, Y, entry.name, entry.axis)

    # Run of the loop, for the numeric check

    def _run(self, op: Op, values: Float64Values, sizes: DrawnSizes) -> None:
        """Compute the loop, iteration by iteration."""
        loop = self.loop
        if op is not loop.op or loop.count is None:
            raise UnknownOpError("it contains a loop")
        count = sizes.of(loop.count)
        carried = [*loop.carried, *self.last_values.values()]
        state = {item.before: values[item.initial] for item in carried}
        kept: dict[str, list[Array]] = {entry.name: [] for entry in loop.collected if entry.name}
        ops = self._needed_ops()
        constants: dict[str, Array | None] = {}
        for iteration in range(count):
            inner = Float64Values(loop.body, state, constants, values)
            for name, source in loop.sliced.items():
                position = iteration if source.step > 0 else count - 1 - iteration
                selected = np.take(values[source.name], [position], source.axis)
                inner[name] = selected if source.keeps_axis else selected.squeeze(source.axis)
            for name, index in loop.indices.items():
                if name in loop.body.inputs and name not in state:
                    inner[name] = np.array(index.base + index.sign * iteration, np.int64)
            for inner_op in ops:
                with suppress(UnknownOpError):  # if a state depends on it, it will be missing later
                    inner.run(inner_op)
            for entry in loop.collected:
                if entry.name:
                    kept[entry.name].append(inner[entry.inner])
            state = {item.before: inner[item.after] for item in carried}
        values.update((item.last, state[item.before]) for item in carried if item.last)
        values.update((name, values[initial]) for name, initial in loop.unchanged.items())
        for entry in loop.collected:
            if arrays := kept.get(entry.name):
                put = np.concatenate if entry.keeps_axis else np.stack
                values[entry.name] = put(arrays[:: entry.step], entry.axis)

    def _needed_ops(self) -> list[Op]:
        """Return the operators that an iteration's outputs need, without conditions."""
        loop, body = self.loop, self.loop.body
        kept = [entry.inner for entry in loop.collected if entry.name]
        carried = [*loop.carried, *self.last_values.values()]
        needed = needed_values(body, [item.after for item in carried] + kept)
        return [
            op
            for op in body.ops
            if not needed.isdisjoint(op.outputs)
            and any(body.constant(name) is None for name in op.outputs if name)
        ]
