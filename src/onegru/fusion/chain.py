"""Replace cells, and chains of cells, by GRU nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onegru.dataflow.operator import Op
from onegru.dataflow.replace import needed_values
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells import blend
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.cells.masks import is_new_state, zeroed_state
from onegru.fusion.cells.match import find_cell
from onegru.fusion.cells.polynomial import same
from onegru.fusion.from_zero import is_step_from_zero
from onegru.fusion.graph import GraphSearch
from onegru.fusion.nodes.emit import Emitter
from onegru.fusion.nodes.lengths import lengths_of
from onegru.fusion.nodes.node import Recurrence, add_node, is_zero, place_stack
from onegru.fusion.nodes.sources import SlicedSource, Source, source_of_steps, step_before


def replace_cells(graph: GraphSearch) -> dict[str, str]:
    """Replace cells that pass the numeric check; return why other candidates do not match, by output."""
    cells = _Cells(graph)
    found, misses = cells.find()
    for chain in cells.chains(found):
        with graph.search.guarded(chain[-1]):
            cells.replace([found[output] for output in chain])
    return misses


@dataclass(frozen=True, eq=False, slots=True)
class _FoundCell:
    """A cell in a graph."""

    cell: Cell  # the cell
    ops: list[Op]  # the operators that the node replaces, from its state to its new state
    zeroed: list[str]  # values that are its new state, or zero for masked steps
    duplicate: str = ""  # a second value equal to its new state, as Keras passes on its output; "" for none


class _Cells:
    """The cells of a graph."""

    def __init__(self, graph: GraphSearch) -> None:
        self.graph = graph

    def find(self) -> tuple[dict[str, _FoundCell], dict[str, str]]:
        """Return the cells, by output, and why other candidates do not match."""
        found: dict[str, _FoundCell] = {}
        misses: dict[str, str] = {}
        needed = needed_values(self.graph.flow)
        for op in self.graph.flow.ops:
            self.graph.search.count_visited()
            name = next(filter(None, op.outputs), "")
            if name not in needed or name in self.graph.exprs.duplicates:
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
            if reason := self._inner_use(item.ops, {output, *item.zeroed, item.duplicate}):
                misses[output] = reason
                del found[output]
        inside = {name for item in found.values() for op in item.ops for name in op.outputs}
        return found, {name: reason for name, reason in misses.items() if name not in inside}

    def _find(self, op: Op, name: str) -> _FoundCell | None:
        """Return the cell with output `name`; None if no cell is recognizable there."""
        cell = find_cell(self.graph.exprs, name) if self._may_be_last(op) else None
        if cell is None:
            return None
        if reason := self._why_no_node(cell):
            raise MissError(reason)
        ops = self._ops_of(cell)
        duplicate = self._add_duplicate(cell, ops)
        return _FoundCell(cell, ops, self._add_zeroed(cell, ops), duplicate)

    def _why_no_node(self, cell: Cell) -> str:
        """Return why a cell does not become a node; empty if it does."""
        if cell.has_zero_R and not is_zero(self.graph.flow, cell.state.name):
            return "it does not multiply its state with constant weights"
        return self.graph.search.why_not(cell)

    def _may_be_last(self, op: Op) -> bool:
        """Whether an operator may be the last of a cell."""
        if op.kind not in blend.SUMS or len(op.outputs) != 1:
            return False
        flow, name, inputs = self.graph.flow, op.outputs[0], list(filter(None, op.inputs))
        if flow.resolve(name) != name:
            return False  # it only passes on a state
        if name not in flow.outputs and all(other.kind == "Shape" for other in flow.consumers[name]):
            return False  # only its shape counts
        if op.kind != "Where" and any(flow.constant(item) is not None for item in inputs):
            return False  # the sum of a cell has no constants
        producers = [flow.find_producer(flow.resolve(item)) for item in inputs]
        kinds = {"" if producer is None else producer.kind for producer in producers}
        return op.kind == "Where" or not kinds.isdisjoint(blend.SUMMANDS)

    def _ops_of(self, cell: Cell) -> list[Op]:
        """Return the operators from a cell's state to its new state, in order."""
        flow = self.graph.flow
        views = [cell.state, *cell.step_inputs, *(mask.view for mask in cell.masks)]
        given = {self.graph.exprs.resolve(view.name) for view in views}
        state = self.graph.exprs.resolve(cell.state.name)
        depends: dict[str, bool] = {}  # whether each visited value depends on the state
        ops: dict[int, Op] = {}
        waiting: list[tuple[str, bool]] = [(cell.output, False)]  # with whether its inputs were visited
        while waiting:
            name, has_inputs = waiting.pop()
            if name in depends and not has_inputs:
                continue
            base = self.graph.exprs.resolve(name)
            op = flow.producers.get(name)
            if (name != cell.output and base in given) or op is None or flow.constant(name) is not None:
                depends[name] = base == state and name != cell.output
            elif not has_inputs:
                depends[name] = False
                waiting.append((name, True))
                waiting += [(item, False) for item in op.inputs if item]
            elif any(depends.get(item, False) for item in op.inputs):
                depends.update(dict.fromkeys(op.outputs, True))
                ops[id(op)] = op
        return sorted(ops.values(), key=flow.position)

    def _add_zeroed(self, cell: Cell, ops: list[Op]) -> list[str]:
        """Return values that are the new state or zero for masked steps; add their operators to `ops`."""
        if not cell.masks:
            return []
        wanted = zeroed_state(self.graph.exprs, cell)
        found: list[str] = []
        known = set(map(id, ops))
        waiting = list(ops)
        while wanted is not None and waiting:
            for consumer in self._consumers(waiting.pop()):
                if id(consumer) in known or consumer.kind not in (*blend.MASKING, blend.PRODUCT):
                    continue
                result = self.graph.exprs.definition(consumer.outputs[0])
                if result is not None and same(result, wanted):
                    known.add(id(consumer))
                    waiting.append(consumer)
                    ops.append(consumer)
                    found.append(consumer.outputs[0])
        return found

    def _add_duplicate(self, cell: Cell, ops: list[Op]) -> str:
        """Find another value equal to the new state, for use in later steps; add its operators to `ops`."""
        exprs, known = self.graph.exprs, set(map(id, ops))
        nearby = [other for op in ops for other in self._consumers(op)] if cell.masks else []
        nearby += [other for op in nearby if op.kind == blend.PRODUCT for other in self._consumers(op)]
        for last in nearby:
            if id(last) in known or last.kind not in blend.MASKING:
                continue
            if is_new_state(exprs, cell, last.outputs[0]):
                copies = exprs.duplicates.keys() | {name for op in ops for name in op.outputs}
                producers = [self.graph.flow.producers.get(name) for name in last.inputs]
                new = [op for op in producers if op and id(op) not in known]
                ops += [*(op for op in new if not copies.isdisjoint(op.inputs)), last]
                exprs.duplicates[last.outputs[0]] = cell.output
                exprs.boundaries.add(cell.output)  # matmuls may use it by the other name
                return last.outputs[0]
        return ""

    def _consumers(self, op: Op) -> list[Op]:
        return [other for name in op.outputs for other in self.graph.flow.consumers.get(name, ())]

    def _inner_use(self, ops: list[Op], outputs: set[str]) -> str:
        """Return the use of an inner value of a cell outside the cell, for messages; "" for no use."""
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

    def chains(self, found: dict[str, _FoundCell]) -> list[list[str]]:
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

    def _independent(self, chains: list[list[str]], found: dict[str, _FoundCell]) -> list[list[str]]:
        """Split the chains with inputs that depend on their own states into single cells."""
        # A set of chains is an integer with a bit for each chain, because each value has such a set.
        long_chains = enumerate(chain for chain in chains if len(chain) > 1)
        chain_bits = {name: 1 << number for number, chain in long_chains for name in chain}
        chains_before: dict[str, int] = {}  # the chains that a value depends on
        for op in self.graph.flow.ops if chain_bits else ():
            read = 0
            for name in op.reads():
                read |= chains_before.get(name, 0)
            for name in op.outputs:
                if before := read | chain_bits.get(name, 0):
                    chains_before[name] = before
        result: list[list[str]] = []
        for chain in chains:
            cells = [found[output].cell for output in chain]
            views = [view for cell in cells for view in cell.step_inputs]
            views += [mask.view for cell in cells for mask in cell.masks]
            is_circular = any(chains_before.get(view.name, 0) & chain_bits.get(chain[0], 0) for view in views)
            result += [[output] for output in chain] if is_circular else [chain]
        return result

    def replace(self, chain: list[_FoundCell]) -> None:
        """Replace a chain of cells if the numeric check passes."""
        longer = self._with_step_from_zero(chain)
        if longer is None or not self._try_to_replace(longer):
            self._try_to_replace(chain)

    def _try_to_replace(self, chain: list[_FoundCell]) -> bool:
        """Replace a chain; return whether it was possible."""
        first, last = chain[0].cell, chain[-1].cell
        removed = [op for item in chain for op in item.ops]
        emitter = self.graph.emitter(last.output, self.graph.dtype_of(last))
        with self.graph.search.guarded(last.output):
            node = _NodeOfChain(self.graph, emitter, chain, removed)
            if not node.is_used:
                return True
            input_size = node.emit()
            check = self.graph.check_numerically(emitter, last.output)
            if check is None:
                return False
            if node.Y:
                self.graph.new_ops.stacks[tuple(node.states)] = node.Y
            form = "chain" if len(chain) > 1 else "cell"
            steps, nodes = len(chain), len(removed)
            self.graph.add_fused(first, last.output, form, steps, nodes, node.reverse, input_size, check)
            return True
        return False

    def _with_step_from_zero(self, chain: list[_FoundCell]) -> list[_FoundCell] | None:
        """Add an earlier step that an exporter computed from zeros; None if there is none."""
        first, second = chain[0].cell, chain[1].cell if len(chain) > 1 else None
        state = self.graph.flow.resolve(first.state.name)
        op = self.graph.flow.producers.get(state)
        if second is None or first.masks or op is None or op.kind not in blend.SUMS_FROM_ZERO:
            return None
        pairs = list(zip(first.step_inputs, second.step_inputs, strict=True))
        earlier = [view for pair in pairs if (view := step_before(self.graph.exprs, pair))]
        if len(earlier) < len(pairs) or not is_step_from_zero(self.graph.exprs, state, first, second):
            return None
        zero = f"{state}/zero"
        self.graph.flow.add_constant(zero, np.zeros((1, first.hidden_size)))
        self.graph.flow.set_dtype(zero, self.graph.dtype_of(first))
        start = replace(
            first,
            output=state,
            state=View(zero, (ROWS, COLUMNS), first.state.coordinates),
            inputs=tuple(earlier[: len(first.inputs)]),
            attention=earlier[-1] if first.attention else None,
        )
        return [_FoundCell(start, [], []), *chain]


class _NodeOfChain:
    """A chain of cells that becomes one node."""

    def __init__(
        self, graph: GraphSearch, emitter: Emitter, chain: list[_FoundCell], removed: list[Op]
    ) -> None:
        self.graph = graph
        self.emitter = emitter
        self.chain = chain
        self.cells = [item.cell for item in chain]
        self.removed = set(map(id, removed))
        self.inputs = [
            self._source([cell.inputs[n] for cell in self.cells]) for n in range(len(self.cells[0].inputs))
        ]
        self.reverse = next((item.step for item in self.inputs if isinstance(item, SlicedSource)), 1) < 0
        in_time = slice(None, None, -1 if self.reverse else 1)
        self.states = [cell.output for cell in self.cells][in_time]
        self.duplicates = [item.duplicate for item in chain][in_time]
        self.zeroed = [item.zeroed[-1] if item.zeroed else "" for item in chain][in_time]
        self.state_users = self._users(self.states)
        self.duplicate_users = self._users(list(filter(None, self.duplicates)))
        self.zeroed_users = self._users(self.zeroed) if all(self.zeroed) else _Users([], [])
        for item in chain:
            if any(self._is_used_outside(name, set()) for name in item.zeroed[:-1]):
                raise MissError("its states are zeroed in several ways")
        self.is_used = bool(self.state_users or self.zeroed_users or self.duplicate_users)
        self.Y = ""

    def _source(self, views: Sequence[View]) -> Source:
        return source_of_steps(self.graph.exprs, views)

    def _users(self, order: list[str]) -> _Users:
        """Return the operators that stack all states, and the states that other operators use."""
        stacks = self._stacks_of(order)
        stacking = {id(op) for op, ops in stacks for op in (op, *ops)}
        single = [name for name in order if self._is_used_outside(name, stacking)]
        return _Users([op for op, _ in stacks], single)

    def _is_used_outside(self, name: str, stacking: set[int]) -> bool:
        flow = self.graph.flow
        inner = self.removed | stacking
        return name in flow.outputs or any(id(op) not in inner for op in flow.consumers.get(name, ()))

    def emit(self) -> int:
        """Add the node, and operators for the values that others use; return the input size."""
        emitter, graph = self.emitter, self.graph
        # The last cell's parameters, because the first may lack those that a zero state does not need.
        first = replace(self.cells[-1], state=self.cells[0].state)
        last = self.cells[-1].output
        requested = set()
        if self.duplicate_users or self.state_users.stacks or set(self.state_users.single) - {last}:
            requested.add("Y")
        if last in self.state_users.single:
            requested.add("Y_h")
        if self.zeroed_users:
            requested.add("zeroed")
        count = len(first.masks)
        masks = [[cell.masks[index] for cell in self.cells] for index in range(count)]
        lengths = lengths_of(graph.exprs, masks[0], self.reverse) if count == 1 else None
        attention = [cell.attention for cell in self.cells if cell.attention is not None]
        recurrence = Recurrence(
            first,
            tuple(self.inputs),
            tuple((self._source([mask.view for mask in row]), row[0].is_off) for row in masks),
            self._source(attention) if attention else None,
            lengths,
            self.reverse,
        )
        Y, Y_h, zeroed, input_size = add_node(graph.new_ops, emitter, recurrence, requested)
        if "Y" in requested:
            self.Y = Y
        self._connect(self.states, self.state_users, Y, {last: Y_h})
        self._connect(self.duplicates, self.duplicate_users, Y, {})
        self._connect(self.zeroed, self.zeroed_users, zeroed, {})
        return input_size

    def _connect(self, order: list[str], users: _Users, Y: str, known: dict[str, str]) -> None:
        """Add operators that compute the used values from Y, except `known` values."""
        emitter = self.emitter
        for name in users.single:
            shape = emitter.shape(name)
            value = known.get(name) or emitter.gather(Y, order.index(name), 0, "h")
            emitter.shaped(value, name, shape)
        for op in users.stacks:
            is_backwards = len(order) > 1 and self._stacked_state(op.inputs[0]) == order[-1]
            value = emitter.reverse(Y, 0, "Y_backwards") if is_backwards else Y
            place_stack(emitter, value, op.outputs[0], op.attributes["axis"])

    def _stacked_state(self, name: str) -> str:
        """Return the state that a piece of a stack contains, with or without a new axis."""
        op = self.graph.flow.find_producer(name)
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
                pieces = [self._stacked_state(name) for name in op.inputs]
                shape = flow.shape(op.inputs[0])
                if pieces not in (order, order[::-1]) or shape is None or shape[op.attributes["axis"]] != 1:
                    continue
                inner = [flow.producers.get(name) for name in op.inputs]
                axes = [item for item in inner if item is not None and item.kind in ("Unsqueeze", "Reshape")]
                found.append((op, axes))
        return found


@dataclass(frozen=True, eq=False, slots=True)
class _Users:
    """Users of the states of a chain."""

    stacks: list[Op]  # operators that concatenate all states
    single: list[str]  # states that are used individually

    def __bool__(self) -> bool:
        return bool(self.stacks or self.single)
