"""Replace cells, and chains of cells, by GRU nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onegru.dataflow.operator import Op
from onegru.dataflow.replace import needed_values
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.cells.masks import is_new_state, zeroed_state
from onegru.fusion.cells.match import find_cell
from onegru.fusion.cells.polynomial import same
from onegru.fusion.from_zero import is_step_from_zero
from onegru.fusion.graph import Graph
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.lengths import lengths_of
from onegru.fusion.nodes.node import Recurrence, add_node, is_zero, place_stack
from onegru.fusion.nodes.sources import Sliced, Source, before, over_time


def replace_cells(graph: Graph) -> dict[str, str]:
    """Replace cells that pass the numeric check; return why other candidates do not match, by output."""
    cells = _Cells(graph)
    found, misses = cells.find()
    for chain in cells.chains(found):
        with graph.search.guarded(chain[-1]):
            cells.replace([found[output] for output in chain])
    return misses


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """A cell in a graph."""

    cell: Cell  # the cell
    ops: list[Op]  # the operators between its state and its new state, which the node replaces
    zeroed: list[str]  # values that are its new state, or zero for masked steps
    twin: str = ""  # another value equal to its new state, as Keras also passes on its output; "" for none


class _Cells:
    """The cells of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def find(self) -> tuple[dict[str, _Found], dict[str, str]]:
        """Return the cells, by output, and why other candidates do not match."""
        found: dict[str, _Found] = {}
        misses: dict[str, str] = {}
        needed = needed_values(self.graph.flow)
        for op in self.graph.flow.ops:
            self.graph.search.count_visited()
            name = next(filter(None, op.outputs), "")
            if name not in needed or name in self.graph.at.twins:
                continue
            with self.graph.search.guarded(name):
                try:
                    if (item := self._find(op, name)) is not None:
                        found[name] = item
                except MissError as error:
                    misses[name] = str(error)
        # A cell with a mask contains a cell without a mask.
        for output, item in list(found.items()):
            for name in {name for op in item.ops for name in op.outputs} - {output}:
                found.pop(name, None)
        for output, item in list(found.items()):
            if reason := self._looked_into(item.ops, {output, *item.zeroed, item.twin}):
                misses[output] = reason
                del found[output]
        inside = {name for item in found.values() for op in item.ops for name in op.outputs}
        return found, {name: reason for name, reason in misses.items() if name not in inside}

    def _find(self, op: Op, name: str) -> _Found | None:
        """Return the cell with output `name`; None if no cell is recognizable there."""
        cell = find_cell(self.graph.at, name) if self._may_blend(op) else None
        if cell is None:
            return None
        if reason := self._why_not(cell):
            raise MissError(reason)
        ops = self._region(cell)
        twin = self._add_twin(cell, ops)
        return _Found(cell, ops, self._zeroed(cell, ops), twin)

    def _why_not(self, cell: Cell) -> str:
        """Return why a cell does not become a node; empty if it does."""
        if cell.lacks_products and not is_zero(self.graph.flow, cell.state.name):
            return "it does not multiply its state with constant weights"
        return self.graph.search.allows(cell)

    def _may_blend(self, op: Op) -> bool:
        """Whether an operator may be the last of a cell."""
        if op.kind not in ("Add", "Sub", "Sum", "Where") or len(op.outputs) != 1:
            return False
        flow, name, inputs = self.graph.flow, op.outputs[0], list(filter(None, op.inputs))
        if flow.resolve(name) != name:
            return False  # it only passes on a state
        if name not in flow.outputs and all(other.kind == "Shape" for other in flow.consumers[name]):
            return False  # only its shape counts
        if op.kind != "Where" and any(flow.constant(item) is not None for item in inputs):
            return False  # a blend has no constants
        producers = [flow.producer(flow.resolve(item)) for item in inputs]
        kinds = {"" if producer is None else producer.kind for producer in producers}
        return op.kind == "Where" or bool(kinds & {"Mul", "Div"})

    def _region(self, cell: Cell) -> list[Op]:
        """Return the operators from a cell's state to its new state, in order."""
        flow = self.graph.flow
        views = [cell.state, *cell.inputs, *(mask.view for mask in cell.masks)]
        views += [cell.attention] if cell.attention else []
        leaves = {self.graph.at.resolve(view.name) for view in views}
        state = self.graph.at.resolve(cell.state.name)
        depends: dict[str, bool] = {}
        ops: dict[int, Op] = {}
        waiting: list[tuple[str, bool]] = [(cell.output, False)]
        while waiting:
            name, is_done = waiting.pop()
            if name in depends and not is_done:
                continue
            base = self.graph.at.resolve(name)
            op = flow.producers.get(name)
            if (name != cell.output and base in leaves) or op is None or flow.constant(name) is not None:
                depends[name] = base == state and name != cell.output
            elif not is_done:
                depends[name] = False
                waiting.append((name, True))
                waiting += [(item, False) for item in op.inputs if item]
            elif any(depends.get(item, False) for item in op.inputs):
                depends.update(dict.fromkeys(op.outputs, True))
                ops[id(op)] = op
        return sorted(ops.values(), key=flow.position)

    def _zeroed(self, cell: Cell, ops: list[Op]) -> list[str]:
        """Return values that are the new state or zero for masked steps; add their operators to `ops`."""
        if not cell.masks:
            return []
        wanted = zeroed_state(self.graph.at, cell)
        found: list[str] = []
        known = set(map(id, ops))
        waiting = list(ops)
        while wanted is not None and waiting:
            for consumer in self._consumers(waiting.pop()):
                if id(consumer) in known or consumer.kind not in ("Where", "Mul", "Add"):
                    continue
                result = self.graph.at.of(consumer.outputs[0])
                if result is not None and same(result[1], wanted):
                    known.add(id(consumer))
                    waiting.append(consumer)
                    ops.append(consumer)
                    found.append(consumer.outputs[0])
        return found

    def _add_twin(self, cell: Cell, ops: list[Op]) -> str:
        """Find another value equal to the new state, for use in later steps; add its operators to `ops`."""
        at, known = self.graph.at, set(map(id, ops))
        near = [other for op in ops for other in self._consumers(op)] if cell.masks else []
        near += [other for op in near if op.kind == "Mul" for other in self._consumers(op)]
        for last in near:
            if id(last) in known or last.kind not in ("Where", "Add"):
                continue
            if is_new_state(at, cell, last.outputs[0]):
                equal_values = at.twins.keys() | {name for op in ops for name in op.outputs}
                made = [self.graph.flow.producers.get(name) for name in last.inputs]
                ops += [
                    op for op in made if op and id(op) not in known and not equal_values.isdisjoint(op.inputs)
                ]
                ops.append(last)
                at.twins[last.outputs[0]] = cell.output
                at.boundaries.add(cell.output)  # matmuls may use it by the other name
                return last.outputs[0]
        return ""

    def _consumers(self, op: Op) -> list[Op]:
        return [other for name in op.outputs for other in self.graph.flow.consumers.get(name, ())]

    def _looked_into(self, ops: list[Op], outputs: set[str]) -> str:
        """Return which inner value of a cell is used elsewhere; "" if none."""
        inner = set(map(id, ops))
        for op in ops:
            for name in op.outputs:
                if not name or name in outputs:
                    continue
                if name in self.graph.flow.outputs:
                    return f"its inner value {name!r} is also an output"
                for consumer in self.graph.flow.consumers.get(name, ()):
                    if id(consumer) not in inner and consumer.kind != "Shape":
                        words = f"{consumer.kind} node {consumer.name!r}" if consumer.name else consumer.kind
                        return f"its inner value {name!r} is also used by {words}"
        return ""

    # Chains

    def chains(self, found: dict[str, _Found]) -> list[list[str]]:
        """Return chains of cells, by output; each cell uses the state of the cell before."""
        followers: dict[str, list[str]] = {}
        for output, item in found.items():
            followers.setdefault(self.graph.flow.resolve(item.cell.state.name), []).append(output)

        def follows(before: str) -> str | None:
            after = followers.get(before, [])
            first = found[before].cell
            if len(after) != 1:
                return None
            second = found[after[0]].cell
            is_float64 = self.graph.dtype_of(first) == "float64"
            if second.computes_as(first, is_float64=is_float64):
                return after[0]
            starts = is_zero(self.graph.flow, first.state.name)  # exporters omit matmuls with h there
            is_next = starts and second.computes_as(first, is_float64=is_float64, from_zero=True)
            return after[0] if is_next else None

        chains: list[list[str]] = []
        continued = {after for output in found if (after := follows(output)) is not None}
        for output in found:
            if output in continued:
                continue
            chain = [output]
            while (after := follows(chain[-1])) is not None:
                chain.append(after)
            chains.append(chain)
        return self._independent(chains, found)

    def _independent(self, chains: list[list[str]], found: dict[str, _Found]) -> list[list[str]]:
        """Split the chains with inputs that depend on their own states into single cells."""
        bits = {name: 1 << number for number, chain in enumerate(chains) if len(chain) > 1 for name in chain}
        upstream: dict[str, int] = {}
        for op in self.graph.flow.ops if bits else ():
            held = 0
            for name in op.reads():
                held |= upstream.get(name, 0)
            for name in op.outputs:
                if own := held | bits.get(name, 0):
                    upstream[name] = own
        result: list[list[str]] = []
        for chain in chains:
            bit = bits.get(chain[0], 0)
            cells = [found[output].cell for output in chain]
            views = [view for cell in cells for view in (*cell.inputs, cell.attention) if view]
            views += [mask.view for cell in cells for mask in cell.masks]
            apart = any(upstream.get(view.name, 0) & bit for view in views)
            result += [[output] for output in chain] if apart else [chain]
        return result

    def replace(self, chain: list[_Found]) -> None:
        """Replace a chain of cells if the numeric check passes."""
        longer = self._with_step_from_zero(chain)
        if longer is None or not self._try(longer):
            self._try(chain)

    def _try(self, chain: list[_Found]) -> bool:
        """Replace a chain; return whether it was possible."""
        first, last = chain[0].cell, chain[-1].cell
        removed = [op for item in chain for op in item.ops]
        emitter = self.graph.emitter(last.output, self.graph.dtype_of(last))
        with self.graph.search.guarded(last.output):
            change = _Chain(self.graph, emitter, chain, removed)
            if not change.is_used:
                return True
            width = change.emit()
            check = self.graph.check_numerically(emitter, last.output)
            if check is None:
                return False
            if change.Y:
                self.graph.made.stacks[tuple(change.order)] = change.Y
            form = "chain" if len(chain) > 1 else "cell"
            steps, nodes = len(chain), len(removed)
            self.graph.note(first, last.output, form, steps, nodes, change.reverse, width, check)
            return True
        return False

    def _with_step_from_zero(self, chain: list[_Found]) -> list[_Found] | None:
        """Add an earlier step that an exporter computed from zeros; None if there is none."""
        first, second = chain[0].cell, chain[1].cell if len(chain) > 1 else None
        state = self.graph.flow.resolve(first.state.name)
        op = self.graph.flow.producers.get(state)
        if second is None or first.masks or op is None or op.kind not in ("Add", "Sub", "Mul"):
            return None
        views = [*first.inputs, *([first.attention] if first.attention else [])]
        others = [*second.inputs, *([second.attention] if second.attention else [])]
        earlier = [view for pair in zip(views, others, strict=True) if (view := before(self.graph.at, pair))]
        if len(earlier) < len(views) or not is_step_from_zero(self.graph.at, state, first, second):
            return None
        zero = f"{state}/zero"
        self.graph.flow.add_constant(zero, np.zeros((1, first.hidden_size)))
        self.graph.flow.set_dtype(zero, self.graph.dtype_of(first))
        start = replace(
            first,
            output=state,
            state=View(zero, (ROWS, COLUMNS), first.state.index),
            inputs=tuple(earlier[: len(first.inputs)]),
            attention=earlier[-1] if first.attention else None,
        )
        return [_Found(start, [], []), *chain]


class _Chain:
    """A chain of cells that becomes one node."""

    def __init__(self, graph: Graph, emitter: Emitter, chain: list[_Found], removed: list[Op]) -> None:
        self.graph = graph
        self.emitter = emitter
        self.chain = chain
        self.cells = [item.cell for item in chain]
        self.inner = set(map(id, removed))
        self.inputs = [
            self._source([cell.inputs[n] for cell in self.cells]) for n in range(len(self.cells[0].inputs))
        ]
        self.reverse = next((item.step for item in self.inputs if isinstance(item, Sliced)), 1) < 0
        self.outputs = [cell.output for cell in self.cells]
        self.order = self.outputs[::-1] if self.reverse else self.outputs
        zeroed = [item.zeroed[-1] if item.zeroed else "" for item in chain]
        self.zeroed = zeroed[::-1] if self.reverse else zeroed
        self.states = self._used(self.order)
        twins = [item.twin for item in chain]
        self.twins = twins[::-1] if self.reverse else twins
        self.doubles = self._used(list(filter(None, self.twins)))
        self.zeros = self._used(self.zeroed) if all(self.zeroed) else _Used([], [])
        for item in chain:
            if any(self._is_used_outside(name, set()) for name in item.zeroed[:-1]):
                raise MissError("its states are zeroed in several ways")
        self.is_used = bool(self.states or self.zeros or self.doubles)
        self.Y = ""

    def _source(self, views: Sequence[View]) -> Source:
        return over_time(self.graph.at, views)

    def _used(self, order: list[str]) -> _Used:
        """Return the users of the states: stacks of all states, and users of single states."""
        stacks = self._stacks_of(order)
        within = {id(op) for op, ops in stacks for op in (op, *ops)}
        return _Used(
            [op for op, _ in stacks], [name for name in order if self._is_used_outside(name, within)]
        )

    def _is_used_outside(self, name: str, within: set[int]) -> bool:
        flow = self.graph.flow
        known = self.inner | within
        return name in flow.outputs or any(id(op) not in known for op in flow.consumers.get(name, ()))

    def emit(self) -> int:
        """Add the node, and operators for the values that others use; return the width of x."""
        emitter, graph = self.emitter, self.graph
        # The last cell's parameters, because the first may lack those that a zero state does not need.
        first = replace(self.cells[-1], state=self.cells[0].state)
        last = self.outputs[-1]
        asked = set()
        if self.doubles or self.states.stacks or set(self.states.single) - {last}:
            asked.add("Y")
        if last in self.states.single:
            asked.add("Y_h")
        if self.zeros:
            asked.add("zeroed")
        count = len(first.masks)
        masks = [[cell.masks[index] for cell in self.cells] for index in range(count)]
        lengths = lengths_of(graph.at, masks[0], self.reverse) if count == 1 else None
        attention = [cell.attention for cell in self.cells if cell.attention is not None]
        recurrence = Recurrence(
            first,
            tuple(self.inputs),
            tuple((self._source([mask.view for mask in row]), row[0].is_off) for row in masks),
            self._source(attention) if attention else None,
            lengths,
            self.reverse,
        )
        Y, Y_h, zeroed, width = add_node(graph.made, emitter, recurrence, asked)
        if "Y" in asked:
            self.Y = Y
        self._give(self.order, self.states, Y, {last: Y_h})
        self._give(self.twins, self.doubles, Y, {})
        self._give(self.zeroed, self.zeros, zeroed, {})
        return width

    def _give(self, order: list[str], used: _Used, Y: str, known: dict[str, str]) -> None:
        """Add operators for the values that others use."""
        emitter = self.emitter
        for name in used.single:
            shape = emitter.shape(name)
            value = known.get(name) or emitter.gather(Y, order.index(name), 0, "h")
            emitter.shaped(value, name, shape)
        for op in used.stacks:
            is_backwards = len(order) > 1 and self._piece(op.inputs[0]) == order[-1]
            value = emitter.reverse(Y, 0, "Y_backwards") if is_backwards else Y
            place_stack(emitter, value, op.outputs[0], op.attributes["axis"])

    def _piece(self, name: str) -> str:
        """Return the state that a piece of a stack contains, with or without a new axis."""
        op = self.graph.flow.producer(name)
        if op is not None and op.kind in ("Unsqueeze", "Reshape"):
            return self.graph.flow.resolve(op.inputs[0])
        return self.graph.flow.resolve(name)

    def _stacks_of(self, order: list[str]) -> list[tuple[Op, list[Op]]]:
        """Return the operators that stack all states, and the operators that add the new axis to each."""
        flow = self.graph.flow
        found: list[tuple[Op, list[Op]]] = []
        if len(order) < 2 or not all(order):
            return found
        for consumer in flow.consumers.get(order[0], ()):
            ops = [consumer] if consumer.kind == "Concat" else flow.consumers.get(consumer.outputs[0], [])
            for op in ops:
                is_new = op.kind == "Concat" and all(op is not known for known, _ in found)
                if not is_new or len(op.inputs) != len(order):
                    continue
                pieces = [self._piece(name) for name in op.inputs]
                shape = flow.shape(op.inputs[0])
                if pieces not in (order, order[::-1]) or shape is None or shape[op.attributes["axis"]] != 1:
                    continue
                inner = [flow.producers.get(name) for name in op.inputs]
                axes = [item for item in inner if item is not None and item.kind in ("Unsqueeze", "Reshape")]
                found.append((op, axes))
        return found


@dataclass(frozen=True, eq=False, slots=True)
class _Used:
    """Users of the states of a chain."""

    stacks: list[Op]  # operators that concatenate all states
    single: list[str]  # states that are used individually

    def __bool__(self) -> bool:
        return bool(self.stacks or self.single)
