"""Recurrences that are written out, replaced by GRU nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from onegru.core.dtypes import Array
from onegru.fusion.cell import Cell, MissError, find_cell
from onegru.fusion.emit import Emitter
from onegru.fusion.expression import Expressions, View
from onegru.fusion.flow import Flow, Op, Shape
from onegru.fusion.loop import Collected, Loop, read_loop
from onegru.fusion.polynomial import Algebra
from onegru.fusion.proof import Sizes, UnknownError, Values, compare, evaluate
from onegru.fusion.sources import Sliced, Source, Stacked, in_loop, over_time, path

#: Called with the number of operators looked at and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Fused:
    """A recurrence that became a GRU node.

    Attributes:
        place: the value that its last step gave, or the name of the loop that it was.
        form: "cell", "chain" or "loop".
        steps: how many steps it has; None for as many as its input.
        nodes: how many nodes were replaced.
        operator: the node's operator.
        hidden_size: H.
        input_size: I.
        direction: forward or reverse.
        linear_before_reset: whether the reset gate acts after the recurrent product.
        activations: f and g, in words.
        masked: whether steps can be switched off.
    """

    place: str
    form: str
    steps: int | None
    nodes: int
    operator: str
    hidden_size: int
    input_size: int
    direction: str
    linear_before_reset: bool
    activations: tuple[str, str]
    masked: bool


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A recurrence that was left alone.

    Attributes:
        place: the value that it gives, or the loop.
        reason: which part does not fit.
    """

    place: str
    reason: str


@dataclass(eq=False, slots=True)
class Search:
    """The search through a model.

    Attributes:
        names: all names in use.
        dtype: the element type of what has none that is known.
        progress: called now and then.
        total: how many operators there are.
        algebra: the atoms.
        fused: the recurrences that were replaced.
        missed: those that were left alone.
    """

    names: set[str]
    dtype: str = "float32"
    progress: Progress | None = None
    total: int = 0
    seen: int = 0
    algebra: Algebra = field(default_factory=Algebra)
    fused: list[Fused] = field(default_factory=list)
    missed: list[NearMiss] = field(default_factory=list)

    def look(self) -> None:
        """Count an operator."""
        self.seen += 1
        if self.progress is not None and self.seen % 500 == 0:
            self.progress(min(self.seen, self.total), self.total)


def fuse_flow(flow: Flow, search: Search) -> None:
    """Replace the recurrences that a graph and its bodies hold, and note them in `search`."""
    search.total = sum(1 for _ in _all_ops(flow))
    _Graph(flow, search).fuse()
    if search.progress is not None:
        search.progress(search.total, search.total)


def _all_ops(flow: Flow) -> Iterable[Op]:
    waiting = [flow]
    while waiting:
        for op in waiting.pop().ops:
            yield op
            waiting += op.bodies.values()


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """A cell, and the operators between its state and its new state, which it replaces."""

    cell: Cell
    ops: list[Op]


class _Graph:
    """A graph, or a body, being changed.

    Args:
        flow: the graph.
        search: what is found.
        at: the expressions of a loop's body.
    """

    def __init__(self, flow: Flow, search: Search, at: Expressions | None = None) -> None:
        self.flow = flow
        self.search = search
        self.at = at or Expressions(flow, search.algebra)
        self.removed: list[Op] = []
        self.added: list[Op] = []
        self.constants: dict[str, Array] = {}
        # The states of a recurrence in the order of time, and the value that has them side by side.
        self.stacks: dict[tuple[str, ...], str] = {}

    def fuse(self) -> None:
        """Replace what there is."""
        for op in self.flow.ops:
            for body in op.bodies.values():
                self._fuse_body(op, body)
        found = self._cells()
        for chain in self._chains(found):
            self._replace([found[output] for output in chain])
        if self.added:
            self.flow.replace(self.removed, self.added, self.constants)

    def miss(self, place: str, reason: str) -> None:
        """Note what was left alone."""
        self.search.missed.append(NearMiss(place, reason))

    # Loops

    def _fuse_body(self, op: Op, body: Flow) -> None:
        loop = read_loop(self.flow, op)
        if loop is None:
            _Graph(body, self.search).fuse()
            return
        slices = {name: (item.name, item.axis, item.step, item.is_kept) for name, item in loop.slices.items()}
        at = Expressions(body, self.search.algebra, loop.indices, slices)
        place = op.name or next(filter(None, op.outputs), op.kind)
        try:
            whole = _Whole(self, loop, at, place)
            whole.replace()
        except MissError as error:
            before = len(self.search.fused)
            _Graph(body, self.search, at).fuse()
            if str(error) and len(self.search.fused) > before:
                self.miss(place, f"its cell alone was replaced, as {error}")

    # Cells

    def _cells(self) -> dict[str, _Found]:
        """The cells, by the values that they give."""
        found: dict[str, _Found] = {}
        misses: dict[str, str] = {}
        for op in self.flow.ops:
            self.search.look()
            if not self._may_blend(op):
                continue
            name = op.outputs[0]
            try:
                cell = find_cell(self.at, name)
            except MissError as error:
                misses[name] = str(error)
                continue
            if cell is not None:
                found[name] = _Found(cell, self.region(cell))
        # What is a cell with a mask is one without, further inside.
        inner = {
            name
            for output, item in found.items()
            for op in item.ops
            for name in op.outputs
            if name != output and name in found
        }
        for name in inner:
            del found[name]
        for output, item in list(found.items()):
            if reason := self._looked_into(item.ops, output):
                misses[output] = reason
                del found[output]
        inside = {name for item in found.values() for op in item.ops for name in op.outputs}
        for name, reason in misses.items():
            if name not in inside and not any(name in item for item in ()):
                self.miss(name, reason)
        return found

    def _may_blend(self, op: Op) -> bool:
        """Whether an operator may be the last of a cell."""
        if op.kind not in ("Add", "Sub", "Sum", "Where") or len(op.outputs) != 1:
            return False
        producers = [self.flow.producer(self.flow.resolve(name)) for name in op.inputs if name]
        kinds = {"" if producer is None else producer.kind for producer in producers}
        return op.kind == "Where" or bool(kinds & {"Mul", "Div"})

    def region(self, cell: Cell) -> list[Op]:
        """The operators that depend on a cell's state and lead to its new one, in order."""
        flow = self.flow
        views = [cell.state, *cell.inputs, *cell.masks, *([cell.attention] if cell.attention else [])]
        leaves = {flow.resolve(view.name) for view in views}
        state = flow.resolve(cell.state.name)
        depends: dict[str, bool] = {}
        ops: dict[int, Op] = {}
        waiting: list[tuple[str, bool]] = [(cell.output, False)]
        while waiting:
            name, is_done = waiting.pop()
            if name in depends and not is_done:
                continue
            base = flow.resolve(name)
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

    def _looked_into(self, ops: list[Op], output: str) -> str:
        """Which value within a cell others take; "" if none."""
        inner = set(map(id, ops))
        for op in ops:
            for name in op.outputs:
                if not name or name == output:
                    continue
                if name in self.flow.outputs:
                    return f"{name!r}, which it computes on the way, is an output as well"
                for consumer in self.flow.consumers.get(name, ()):
                    if id(consumer) not in inner and consumer.kind != "Shape":
                        words = f"{consumer.kind} node {consumer.name!r}" if consumer.name else consumer.kind
                        return f"{name!r}, which it computes on the way, is taken by {words} as well"
        return ""

    # Chains

    def _chains(self, found: dict[str, _Found]) -> list[list[str]]:
        """The cells in chains, by what they give: each takes the state that the one before gives."""
        followers: dict[str, list[str]] = {}
        for output, item in found.items():
            followers.setdefault(self.flow.resolve(item.cell.state.name), []).append(output)

        def follows(before: str) -> str | None:
            after = followers.get(before, [])
            if len(after) != 1 or not found[after[0]].cell.computes_as(found[before].cell):
                return None
            return after[0]

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
        """The chains; one whose inputs depend on its own states is cells apart."""
        bits = {name: 1 << number for number, chain in enumerate(chains) if len(chain) > 1 for name in chain}
        below: dict[str, int] = {}
        for op in self.flow.ops:
            held = 0
            for name in op.taken():
                held |= below.get(name, 0)
            for name in op.outputs:
                if own := held | bits.get(name, 0):
                    below[name] = own
        result: list[list[str]] = []
        for chain in chains:
            bit = bits.get(chain[0], 0)
            cells = [found[output].cell for output in chain]
            views = [view for cell in cells for view in (*cell.inputs, *cell.masks, cell.attention) if view]
            apart = any(below.get(view.name, 0) & bit for view in views)
            result += [[output] for output in chain] if apart else [chain]
        return result

    def _replace(self, chain: list[_Found]) -> None:
        """Replace a chain of cells, once that is proved."""
        first, last = chain[0].cell, chain[-1].cell
        removed = [op for item in chain for op in item.ops]
        emitter = Emitter(self.flow, f"onegru/{last.output}", self.search.names, self.dtype_of(first))
        try:
            direction, width = self._emit(emitter, [item.cell for item in chain], removed)
        except MissError as error:
            self.miss(last.output, str(error))
            return
        if self.prove(emitter, last.output):
            self.removed += removed
            form = "chain" if len(chain) > 1 else "cell"
            self.note(first, last.output, form, len(chain), len(removed), direction, width)

    def prove(
        self, emitter: Emitter, place: str, run_loop: Callable[[Op, Values, Sizes], None] | None = None
    ) -> bool:
        """Compare the new operators with the old ones, and take them if they agree."""
        reason = compare(self.flow, emitter.ops, emitter.constants, run_loop)
        if reason:
            self.miss(place, f"it was taken for a GRU and is none, which is a defect of onegru: {reason}")
            return False
        self.added += emitter.ops
        self.constants.update(emitter.constants)
        return True

    def note(
        self, cell: Cell, place: str, form: str, steps: int | None, nodes: int, direction: str, width: int
    ) -> None:
        """Note what became a GRU."""
        operator = "GRU" if cell.attention is None else "AUGRU"
        f, g = map(str, cell.activations)
        self.search.fused.append(
            Fused(
                place,
                form,
                steps,
                nodes,
                operator,
                cell.hidden_size,
                width,
                direction,
                cell.linear_before_reset,
                (f, g),
                bool(cell.masks),
            )
        )

    def dtype_of(self, cell: Cell) -> str:
        """The element type of a cell."""
        return self.flow.dtype(cell.state.name) or self.flow.dtype(cell.output) or self.search.dtype

    def _emit(self, emitter: Emitter, cells: list[Cell], removed: list[Op]) -> tuple[str, int]:
        """Add the node of a chain; returns its direction and the width of x."""
        first = cells[0]

        def source(views: Sequence[View]) -> Source:
            return over_time(self.at, views)

        inputs = [source([cell.inputs[place] for cell in cells]) for place in range(len(first.inputs))]
        masks = [source([cell.masks[place] for cell in cells]) for place in range(len(first.masks))]
        attention = source([cell.attention for cell in cells if cell.attention]) if first.attention else None
        steps = next((item.step for item in inputs if isinstance(item, Sliced)), 1)
        ids = set(map(id, removed))
        outputs = [cell.output for cell in cells]
        taken = [
            place
            for place, name in enumerate(outputs)
            if name in self.flow.outputs or any(id(op) not in ids for op in self.flow.consumers.get(name, ()))
        ]
        reverse = steps < 0
        order = outputs[::-1] if reverse else outputs
        stacks = self._stacks_of(order)
        within = {id(op) for op, _ in stacks} | {id(op) for _, ops in stacks for op in ops}
        single = [
            place
            for place in taken
            if outputs[place] in self.flow.outputs
            or any(id(op) not in ids | within for op in self.flow.consumers.get(outputs[place], ()))
        ]
        last = len(cells) - 1
        asked = (bool(stacks) or any(place != last for place in single), last in single)
        Y, Y_h, width = add_node(
            self, emitter, first, inputs, masks, attention, reverse, asked if any(asked) else (False, True)
        )
        for place in single:
            shape = emitter.shape(outputs[place])
            value = Y_h if place == last else ""
            if not value:
                value = emitter.gather(Y, order.index(outputs[place]), 0, "h")
            emitter.shaped(value, outputs[place], shape)
        if Y:
            self.stacks[tuple(order)] = Y
        for op, _ in stacks:
            is_backwards = len(order) > 1 and self._piece(op.inputs[0]) == order[-1]
            value = emitter.reverse(Y, 0, "Y_backwards") if is_backwards else Y
            place_stack(emitter, value, op, self.flow.shape(order[0]), op.attributes["axis"])
        return ("reverse" if reverse else "forward"), width

    def _piece(self, name: str) -> str:
        """The state that a piece of a stack is, with one more axis or as it is."""
        op = self.flow.producer(name)
        if op is not None and op.kind in ("Unsqueeze", "Reshape"):
            return self.flow.resolve(op.inputs[0])
        return self.flow.resolve(name)

    def _stacks_of(self, order: list[str]) -> list[tuple[Op, list[Op]]]:
        """The operators that put all states side by side along a new axis, and what adds that axis to each."""
        found: list[tuple[Op, list[Op]]] = []
        if len(order) < 2:
            return found
        for consumer in self.flow.consumers.get(order[0], ()):
            ops = (
                [consumer] if consumer.kind == "Concat" else self.flow.consumers.get(consumer.outputs[0], [])
            )
            for op in ops:
                if (
                    op.kind != "Concat"
                    or len(op.inputs) != len(order)
                    or any(op is known for known, _ in found)
                ):
                    continue
                pieces = [self._piece(name) for name in op.inputs]
                shapes = {self.flow.shape(name) for name in op.inputs}
                shape = self.flow.shape(op.inputs[0])
                if pieces not in (order, order[::-1]) or shape is None or len(shapes) > 3:
                    continue
                if shape[op.attributes["axis"]] != 1:
                    continue
                inner = [self.flow.producer(name) for name in op.inputs]
                found.append((op, [item for item in inner if item is not None and item.kind != "Concat"]))
        return found


def place_stack(emitter: Emitter, Y: str, op: Op, shape: Shape | None, axis: int) -> None:
    """Give the states of all steps, [time, rows, H], as what an operator gave."""
    name = op.outputs[0]
    wanted = emitter.shape(name)
    rank = len(wanted)
    axis %= rank
    inner = [place for place in range(rank) if place not in (axis, rank - 1)]
    wide = [place for place in inner if wanted[place] != 1]
    if len(wide) > 1 or rank < 2 or axis == rank - 1:
        raise MissError("its states are put together in a way that is not known")
    if rank == 2:
        emitter.squeeze(Y, [1], "Y", name)
        return
    rows = wide[0] if wide else inner[-1]
    value = Y if axis < rows else emitter.transpose(Y, (1, 0, 2), "Y")
    missing = [place for place in inner if place != rows]
    if missing:
        emitter.unsqueeze(value, missing, "Y", name)
    else:
        emitter.op("Identity", [value], "Y", wanted, name)


def add_node(
    graph: _Graph,
    emitter: Emitter,
    cell: Cell,
    inputs: Sequence[Source],
    masks: Sequence[Source],
    attention: Source | None,
    reverse: bool,
    asked: tuple[bool, bool],
) -> tuple[str, str, int]:
    """Add a recurrence's node and what it takes; returns Y, Y_h, and the width of x."""

    def sequence(source: Source, what: str) -> str:
        if isinstance(source, Stacked):
            names = tuple(view.name for view in source.views)
            stack = graph.stacks.get(names[::-1] if reverse else names)
            roles = {(view.roles, view.index.tobytes()) for view in source.views}
            whole = np.arange(source.views[0].width)[None].tobytes()
            if stack is not None and len(roles) == 1 and next(iter(roles))[1] == whole:
                return stack
        return emitter.sequence(source, what, reverse)

    parts = [sequence(source, "X") for source in inputs]
    widths = [emitter.shape(part)[2] for part in parts]
    width = sum(int(size) for size in widths)
    X = parts[0]
    if len(parts) > 1:
        X = emitter.op("Concat", parts, "X", (*emitter.shape(X)[:2], width), axis=2)
    W = cell.W
    if any(len(view.index) for view in cell.masks):
        raise MissError("its steps are switched off unit by unit")
    if masks:
        X, _, W = emitter.masked(X, [sequence(source, "mask") for source in masks], cell)
    scores = ""
    if attention is not None:
        scores = sequence(attention, "A")
        if cell.keeps:
            one = emitter.constant("one", np.ones(()))
            scores = emitter.op("Sub", [one, scores], "A", emitter.shape(scores))
    state = "" if is_zero(graph.flow, cell.state.name) else first_state(emitter, cell.state, X)
    direction = "reverse" if reverse else "forward"
    Y, Y_h = emitter.node(cell, X, W, state, scores, direction, asked)
    return Y, Y_h, width


def is_zero(flow: Flow, name: str) -> bool:
    """Whether a value is known to be zero."""
    for _ in range(100):
        name = flow.resolve(name)
        array = flow.constant(name)
        if array is not None:
            return not array.any()
        op = flow.producer(name)
        if op is None:
            return False
        if op.kind == "ConstantOfShape":
            value = op.attributes.get("value")
            return value is None or not np.any(value)
        if op.kind not in _MOVING:
            return False
        name = op.inputs[0]
    return False


_MOVING = (
    "Expand",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Cast",
    "Slice",
    "Gather",
    "Tile",
    "Split",
)


def first_state(emitter: Emitter, view: View, X: str) -> str:
    """The state before the first step as [1, rows, H]."""
    value = emitter.unsqueeze(emitter.rows(view, "initial_h"), [0], "initial_h")
    rows, (_, have, H) = emitter.shape(X)[1], emitter.shape(value)
    if have != 1 or rows == 1:
        return value
    shape = emitter.op("Shape", [X], "X_shape", (3,))
    count = emitter.op("Slice", [shape, emitter.ints(1), emitter.ints(2), emitter.ints(0)], "rows", (1,))
    target = emitter.op("Concat", [emitter.ints(1), count, emitter.ints(int(H))], "shape", (3,), axis=0)
    return emitter.op("Expand", [value, target], "initial_h", (1, rows, H))


class _Whole:
    """A loop that becomes GRU nodes as a whole.

    Args:
        graph: the graph around it.
        loop: the loop.
        at: the expressions of its body.
        place: what to call it.
    """

    def __init__(self, graph: _Graph, loop: Loop, at: Expressions, place: str) -> None:
        self.graph = graph
        self.loop = loop
        self.at = at
        self.place = place

    def replace(self) -> None:
        """Replace it.

        Raises:
            MissError: it holds more than cells, or none; then the message is empty.
        """
        loop, graph = self.loop, self.graph
        cells: dict[str, Cell] = {}
        for item in loop.carried:
            cell = find_cell(self.at, self.at.flow.resolve(item.after))
            if cell is not None and self.at.flow.resolve(cell.state.name) == item.before:
                cells[item.before] = cell
        if not cells:
            raise MissError("")
        used = {name for name in loop.op.outputs if name and self._is_used(name)}
        emitter = Emitter(graph.flow, f"onegru/{self.place}", graph.search.names, "")
        done: list[tuple[Cell, str, int]] = []
        given: set[str] = set()
        for item in loop.carried:
            if item.before in cells:
                self._add(emitter, item.before, cells, used, given, done)
        for name, initial in loop.constants.items():
            if name in used:
                emitter.op("Identity", [initial], "passed", graph.flow.shape(initial), name)
                given.add(name)
        if rest := used - given:
            raise MissError(f"its output {min(rest)!r} is no state of a GRU")
        nodes, count = len(loop.body.ops), loop.count
        if not graph.prove(emitter, self.place, self._run):
            return
        graph.removed.append(loop.op)
        for cell, direction, width in done:
            graph.note(cell, self.place, "loop", count if isinstance(count, int) else None, nodes, direction, width)

    def _is_used(self, name: str) -> bool:
        flow = self.graph.flow
        return name in flow.outputs or bool(flow.consumers.get(name))

    def _add(
        self,
        emitter: Emitter,
        before: str,
        cells: dict[str, Cell],
        used: set[str],
        given: set[str],
        done: list[tuple[Cell, str, int]],
    ) -> None:
        loop, cell = self.loop, cells[before]
        item = next(carried for carried in loop.carried if carried.before == before)
        inputs, masks = ([self._source(view) for view in views] for views in (cell.inputs, cell.masks))
        attention = None if cell.attention is None else self._source(cell.attention)
        first = inputs[0]
        reverse = isinstance(first, Sliced) and first.step < 0
        outputs = [entry for entry in loop.collected if entry.name in used and self._is_state(entry, cell)]
        if {carried.initial for carried in loop.carried} & set(loop.op.outputs):
            raise MissError("")
        asked = (bool(outputs), item.last in used)
        if not any(asked):
            return
        emitter.dtype = self.at.flow.dtype(cell.output) or self.graph.dtype_of(cell)
        outer = View(item.initial, cell.state.roles, cell.state.index)
        moved = Cell(
            **{name: getattr(cell, name) for name in cell.__dataclass_fields__ if name != "state"},
            state=outer,
        )
        Y, Y_h, width = add_node(self.graph, emitter, moved, inputs, masks, attention, reverse, asked)
        if item.last in used:
            emitter.shaped(Y_h, item.last, emitter.shape(item.initial))
            given.add(item.last)
        for entry in outputs:
            self._collect(emitter, Y, entry, cell, reverse)
            given.add(entry.name)
        done.append((cell, "reverse" if reverse else "forward", width))

    def _source(self, view: View) -> Source:
        found = in_loop(self.at, view, self.loop.count)
        if found is None:
            raise MissError(f"its input {view.name!r} is no slice of one value for each iteration")
        return found

    def _is_state(self, entry: Collected, cell: Cell) -> bool:
        """Whether what a loop collects is the new state."""
        whole = self.at.whole(entry.inner)
        if whole is None or whole.width != cell.hidden_size:
            return False
        return any(
            view.name == cell.output and np.array_equal(view.index, whole.index)
            for view in path(self.at, whole)
        )

    def _collect(self, emitter: Emitter, Y: str, entry: Collected, cell: Cell, reverse: bool) -> None:
        if (entry.step < 0) != reverse:
            Y = emitter.reverse(Y, 0, "Y_backwards")
        shape = self.at.flow.shape(entry.inner)
        if shape is None:
            raise MissError("the shape of what it collects is not known")
        T, B, H = emitter.shape(Y)
        whole = list(shape) if entry.is_kept else [*shape[: entry.axis], T, *shape[entry.axis :]]
        whole[entry.axis] = T
        emitter.flow.set_shape(entry.name, tuple(whole))
        place_stack(emitter, Y, Op("Concat", (), (entry.name,)), None, entry.axis)

    # Its own run, for the proof

    def _run(self, op: Op, values: Values, sizes: Sizes) -> None:
        """Compute the loop, iteration by iteration."""
        loop, flow, body = self.loop, self.graph.flow, self.loop.body
        if op is not loop.op or loop.count is None:
            raise UnknownError("a loop within")
        count = sizes.of(loop.count)

        def outer(name: str) -> Array:
            name = name if name in values else flow.resolve(name)
            if name not in values:
                array = flow.constant(name)
                if array is None:
                    raise UnknownError(f"{name!r} is not known")
                values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
            return values[name]

        state = {item.before: outer(item.initial) for item in loop.carried}
        kept: dict[str, list[Array]] = {entry.name: [] for entry in loop.collected if entry.name}
        for iteration in range(count):
            inner: Values = dict(state)
            for name, source in loop.slices.items():
                array = outer(source.name)
                place = iteration if source.step > 0 else count - 1 - iteration
                taken = np.take(array, [place], source.axis)
                inner[name] = taken if source.is_kept else taken.squeeze(source.axis)
            for name, index in loop.indices.items():
                if name in body.inputs and name not in state:
                    inner[name] = np.array(index.base + index.sign * iteration, np.int64)

            def value(name: str, inner: Values = inner) -> Array:
                if name not in inner:
                    resolved = body.resolve(name)
                    array = inner.get(resolved)
                    if array is None:
                        array = body.constant(name)
                    if array is None:
                        array = outer(resolved)
                    inner[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
                return inner[name]

            for step in body.ops:
                if all(body.constant(name) is not None for name in step.outputs if name):
                    continue
                try:
                    evaluate(step, [value(name) if name else None for name in step.inputs], inner)
                except UnknownError:
                    continue  # nothing that a state depends on, or it will be missed
            for entry in loop.collected:
                if entry.name:
                    kept[entry.name].append(value(entry.inner))
            state = {item.before: value(item.after) for item in loop.carried}
        for item in loop.carried:
            if item.last:
                values[item.last] = state[item.before]
        for name, initial in loop.constants.items():
            values[name] = outer(initial)
        for entry in loop.collected:
            if entry.name and kept[entry.name]:
                arrays = kept[entry.name][:: entry.step]
                join = np.concatenate if entry.is_kept else np.stack
                values[entry.name] = join(arrays, entry.axis)
