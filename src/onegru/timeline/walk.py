"""The walk along the axis of time: what a stream of chunks would lose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onegru.core.errors import BROKEN
from onegru.dataflow.elements import Elements, movers
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Facts, Op, Shape, Size
from onegru.dataflow.shapes import SIZE_RULES
from onegru.timeline.axes import Axes, Axis
from onegru.timeline.rules import LENGTHS, RECURRENT, RULES, SIZES, is_understood, kind_of, least_rank
from onegru.timeline.step import Kind, Move, Step, UnknownOpError, slice_bounds

_NONE: frozenset[str] = frozenset()
MOVES = movers(Elements.KEPT, Elements.PERMUTED, Elements.JOINED, casts=True)
PARTS = (*MOVES, *movers(Elements.CUT), "openvino::Split", "openvino::VariadicSplit")
COPIES = (
    *movers(Elements.KEPT, Elements.REPEATED, casts=True, without=("Flatten",)),
    "openvino::Broadcast",
)


#: What may change the size of an axis that stays.
_RESIZES = (
    *("Conv", "ConvInteger", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "Pad", "Slice", "Gather"),
    *("Split", "Tile", "Resize", "Upsample", "TopK"),
)
#: Where operators that repeat one number, or what they take, are told how often.
FILLED = {"ConstantOfShape": 0, "Expand": 1}
_MOST_SIZES = 16  # of integers that are followed one by one


def _equal_sizes(flow: Facts, op: Op, parts: list[tuple[Size, ...]]) -> tuple[Size, ...] | None:
    """1 where two sizes are the same, 0 where they cannot be, as no size is less than 0."""
    first, second = (part * (max(map(len, parts)) // len(part)) for part in parts)
    found: list[Size] = []
    for pair in zip(first, second, strict=True):
        numbers = [item for item in pair if isinstance(item, int)]
        if (len(numbers) == 1 and numbers[0] >= 0) or (not numbers and pair[0] != pair[1]):
            return None  # sizes of other names may be the same
        found.append(int(pair[0] == pair[1]))
    return tuple(found)


def _chosen_sizes(flow: Facts, op: Op, parts: list[tuple[Size, ...]]) -> tuple[Size, ...] | None:
    length = max(map(len, parts))
    chosen, *ways = (part * (length // len(part)) for part in parts)
    if not all(isinstance(item, int) for item in chosen):
        return None
    return tuple(first if item else second for item, first, second in zip(chosen, *ways, strict=True))


_SIZE_RULES = {**SIZE_RULES, "Equal": _equal_sizes, "Where": _chosen_sizes}


@dataclass(frozen=True, slots=True)
class Finding:
    """An operator on the way of time that a stream of chunks does not repeat.

    Attributes:
        kind: "reverses" time; "remembers" steps that no state carries; "mixes" all steps of a run; "unknown".
        operator: its kind.
        name: its name.
        why: what it does, behind its name.
    """

    kind: Kind
    operator: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.operator} node {self.name!r} {self.why}"


def find_losses(flow: Flow, states: Mapping[str, str], opset: int = 17) -> list[Finding]:
    """What a model that is run in chunks of time computes in another way than in one run.

    Time is the axis along which those recurrences go whose initial state is a state of the stream and whose
    last one is that state's next value. A model without one has no findings.

    Args:
        flow: the model; a value that nothing gives is an input.
        states: for each input that is a state, the output that it is in the next run, as the flow calls them.
        opset: of ONNX's operators.
    """
    return TimeAnalysis(flow, states, opset).findings()


class TimeAnalysis:
    """The axes of a model's values, and which of them are time; the arguments are those of `find_losses`."""

    def __init__(self, flow: Flow, states: Mapping[str, str], opset: int) -> None:
        self.flow = flow
        self.states = states
        self.opset = opset
        self.axes = Axes()
        self.known: dict[str, tuple[Axis, ...] | None] = {}
        self.moves: dict[int, list[Move] | None] = {}  # None: an operator that no rule knows
        self.beside: dict[int, list[Move]] = {}  # of inputs that depend on no input of the model
        self.measured: dict[str, tuple[Axis, str]] = {}  # the sizes that Shape gives: of which axis and value
        self.sized: dict[str, tuple[Size, ...]] = {}  # integers, as far as they are numbers and such sizes
        self.lost: dict[int, set[int]] = {}  # factors that a Reshape cuts
        self.inputs = [name for name in flow.inputs if not flow.holds(name)]
        self.dynamic = set(self.inputs)
        self.from_states = {name: frozenset({name}) for name in states}
        self.leads_to: dict[str, frozenset[str]] = {name: frozenset({name}) for name in states.values()}
        for op in flow.ops:
            taken = [name for name in op.taken() if name in self.dynamic]
            if taken:
                made_of = _NONE.union(*(self.from_states.get(name, _NONE) for name in taken))
                self.dynamic.update(filter(None, op.outputs))
                if made_of and kind_of(op) not in ("Shape", "Size"):
                    self.from_states.update({name: made_of for name in op.outputs if name})
        for op in reversed(flow.ops):
            ends = _NONE.union(*(self.leads_to.get(name, _NONE) for name in op.outputs))
            for name in op.taken() if ends else ():
                self.leads_to[name] = self.leads_to.get(name, _NONE) | ends
        for name in self.inputs:
            shape = flow.shape(name)
            self.known[name] = None if shape is None else tuple(map(self.axes.new, shape))
        self.ops = [op for op in flow.ops if any(name in self.dynamic for name in op.taken())]
        for op in self.ops:
            self._place(op)

    # Which axes are the same

    def _shape(self, name: str) -> Shape | None:
        shape, axes = self.flow.shape(name), self.known.get(name)
        if shape is None and axes is not None:
            return tuple(f"{name}#{axis}" for axis in range(len(axes)))
        return shape

    def step(self, op: Op) -> Step:
        """An operator with the shapes of its inputs."""
        shapes = tuple(self._shape(name) if name else None for name in op.inputs)
        return Step(op, self.flow, shapes, self.opset)

    def _place(self, op: Op) -> None:
        """Find out the axes of what an operator gives."""
        step, kind = self.step(op), kind_of(op)
        moves: list[Move] | None = None
        self._measure(op)
        if op.bodies or not is_understood(op):
            pass
        elif kind in ("Reshape", "Flatten"):
            moves = self._regroup(op, step)
        elif kind in RULES:
            try:
                every = [move for move in RULES[kind](step) if move.output < len(op.outputs)]
                moves = [move for move in every if op.inputs[move.place] in self.dynamic]
                self.beside[id(op)] = [move for move in every if op.inputs[move.place] not in self.dynamic]
                if any(name in self.dynamic and self.known.get(name) is None for name in op.inputs):
                    moves = None
                elif any(move.axis >= len(self.known[op.inputs[move.place]] or ()) for move in moves):
                    moves = None  # ranks that contradict each other
            except (UnknownOpError, *BROKEN):
                moves = None
        self.moves[id(op)] = moves
        for output, name in enumerate(op.outputs):
            if name and name not in self.known:
                self.known[name] = self._given(op, output, moves)
        if kind in FILLED and moves is not None:
            self._fill(op, moves)

    def _measure(self, op: Op) -> None:
        """Follow integers that are made of the sizes of axes, whatever is known of these sizes."""
        if op.bodies or not op.outputs or not op.inputs:
            return
        if op.kind == "Shape":
            axes = self.known.get(op.inputs[0])
            if axes is None:
                return
            names = [f"@{len(self.measured) + place}" for place in range(len(axes))]
            self.measured.update(zip(names, ((axis, op.inputs[0]) for axis in axes), strict=True))
            found: tuple[Size, ...] | None = tuple(names)[
                op.attributes.get("start", 0) : op.attributes.get("end")
            ]
        elif op.kind not in _SIZE_RULES or any(
            name in self.dynamic for name in op.inputs[1:] if op.kind in ("Slice", "Gather", "Reshape")
        ):
            return
        else:
            parts = [self.sizes_in(name) for name in op.inputs if name]
            try:
                known = [part for part in parts if part is not None]
                found = (
                    _SIZE_RULES[op.kind](self.flow, op, known) if known and len(known) == len(parts) else None
                )
            except (ArithmeticError, LookupError, ValueError):
                return
        if found is not None and len(found) <= _MOST_SIZES:
            self.sized[op.outputs[0]] = found

    def sizes_in(self, name: str) -> tuple[Size, ...] | None:
        """Integers, as far as they are numbers and measured sizes; None if they are not known."""
        if name in self.dynamic:
            return self.sized.get(name)
        array = self.flow.constant(name)
        if array is None or array.dtype.kind not in "iub" or array.ndim > 1 or array.size > _MOST_SIZES:
            return None
        return tuple(int(item) for item in array.ravel())

    def _fill(self, op: Op, moves: list[Move]) -> None:
        """What is made as long as axes of other values has the same axes."""
        sizes, axes = self.sized.get(op.inputs[FILLED[op.kind]]), self.known.get(op.outputs[0])
        if sizes is None or (axes is not None and len(axes) < len(sizes)):
            return
        rank = len(sizes) if axes is None else len(axes)
        found = list(axes or map(self.axes.new, [""] * rank))
        for place, size in enumerate(sizes, rank - len(sizes)):
            parts = str(size).split("*")
            if sum(part in self.measured for part in parts) != 1:
                continue  # of a product, the order is not known: it is that of what it is joined with
            axis = tuple(
                factor
                for part in parts
                for factor in (self.measured[part][0] if part in self.measured else self.axes.new(int(part)))
            )
            if any(move.to == place for move in moves):
                self.axes.join(found[place], axis)
            else:
                found[place] = axis
        self.known[op.outputs[0]] = tuple(found)

    def _given(self, op: Op, output: int, moves: list[Move] | None) -> tuple[Axis, ...] | None:
        shape = self.flow.shape(op.outputs[output])
        if moves is None:  # perhaps it keeps the axes
            source = next((name for name in op.inputs if name in self.dynamic), "")
            axes = self.known.get(source)
            if axes is None or (shape is not None and len(shape) != len(axes)):
                return None if shape is None else tuple(map(self.axes.new, shape))
            return axes
        found: dict[int, Axis] = {}
        for move in moves:
            axes = self.known[op.inputs[move.place]]
            if move.to is None or move.output != output or axes is None:
                continue
            if move.to in found:
                self.axes.join(found[move.to], axes[move.axis])
            found.setdefault(move.to, axes[move.axis])
        if shape is None and not found:
            return None
        if shape is None:
            places = {
                move.to for move in self.beside[id(op)] if move.to is not None and move.output == output
            }
            rank = max(least_rank(self.step(op), output), *(place + 1 for place in {*found, *places}))
        else:
            rank = len(shape)
        sizes: list[Size | None] = [None] * rank if shape is None else list(shape)
        changed = {
            move.to
            for move in moves
            if kind_of(op) in _RESIZES and (move.kind or move.before + move.behind - move.reach)
        }
        if op.kind == "Concat":
            changed.add(op.attributes.get("axis", 0) % rank)
        name = op.outputs[output]
        return tuple(
            self.axes.resized(
                found[axis], size or (f"{name}#{axis}" if axis in changed else None), axis in changed
            )
            if axis in found
            else self.axes.new(size or "")
            for axis, size in enumerate(sizes)
        )

    def _regroup(self, op: Op, step: Step) -> list[Move] | None:
        axes, before = self.known.get(op.inputs[0]), step.shapes[0]
        after = self.flow.shape(op.outputs[0])
        if axes is None or before is None:
            return None
        if op.kind == "Flatten":
            cut = step.number("axis", 1)
            cut += len(axes) * (cut < 0)
            parts = [axes[:cut], axes[cut:]]
            self.known[op.outputs[0]] = tuple(
                tuple(item for axis in part for item in axis) or self.axes.new(1) for part in parts
            )
            return []
        if after is None:
            return None
        found, lost = self.axes.regroup(axes, before, after)
        self.lost[id(op)] = lost
        self.known[op.outputs[0]] = tuple(
            self.axes.new(size) if axis is None else axis for axis, size in zip(found, after, strict=True)
        )
        return []

    # What is lost

    def _carried(self, op: Op) -> bool:
        """Whether the states of a recurrence are states of the stream."""
        return all(
            len(op.outputs) > last
            and len(op.inputs) > first
            and any(
                self.states[state] in self.leads_to.get(op.outputs[last], _NONE)
                for state in self.from_states.get(op.inputs[first], _NONE)
            )
            for first, last in RECURRENT[kind_of(op)]
        )

    def findings(self) -> list[Finding]:
        """See `find_losses`."""
        recurrent = [op for op in self.ops if kind_of(op) in RECURRENT]
        self.carried = {id(op) for op in recurrent if self._carried(op)}
        roots: list[tuple[Axis, Size]] = []
        for op in recurrent:
            axes, shape = self.known.get(op.inputs[0]), self._shape(op.inputs[0])
            place = time_axis(op)
            if id(op) in self.carried and axes is not None and shape is not None and len(axes) == 3:
                roots.append((axes[place], shape[place]))
        self.time = {factor for axis, _ in roots for factor in self.axes.main(axis)}
        self.is_single = all(size == 1 for _, size in roots)  # one step for each run
        found = [] if self.is_single and roots else list(dict.fromkeys(self._of_states(recurrent)))
        if not self.time:
            if self.is_single and roots:
                return found
            why = "starts over in each run, if it runs along time, which is not known"
            return found + [finding_of(op, "unknown", why) for op in recurrent if id(op) not in self.carried]
        needed = self._needed(recurrent)
        self.streamed = {name for name in self.inputs if name not in self.states and self._timed(name)}
        self.lengths: set[str] = set()
        self.lead: dict[str, int] = {}  # steps in front of a run's own
        for op in self.ops:
            if any(name in self.streamed or name in self.lengths for name in op.taken()) or (
                self.moves[id(op)] is None or id(op) in self.lost
            ):
                finding = next(iter(list(self._judged(op))), None)
                if finding is not None and needed.intersection(op.outputs):
                    found.append(finding_of(op, *finding))
        for name in self.flow.outputs:
            if self.lead.get(name) and name not in self.states.values():
                why = f"gives {self.lead[name]} steps of the last run again"
                found.append(Finding("unknown", "output", name, why))
        return found

    def _of_states(self, recurrent: list[Op]) -> Iterator[Finding]:
        """What is wrong with recurrences that carry states, whatever is along time elsewhere."""
        for op in recurrent:
            if id(op) not in self.carried:
                continue
            if (unknown := self._where_time_begins(op)) is not None:
                yield finding_of(unknown, "unknown", "does what is not known along time")
            for first, last in RECURRENT[kind_of(op)]:
                given = self._moved_to(op.outputs[last], PARTS) | self._moved_to(op.outputs[0], PARTS)
                states = self.from_states.get(op.inputs[first], _NONE)
                if not any(op.inputs[first] in self._moved_to(state, PARTS) for state in states):
                    yield finding_of(op, "unknown", "starts from what is computed from a state in each run")
                elif not any(self.states[state] in given for state in states):
                    yield finding_of(op, "unknown", "ends in a state that is changed before the next run")

    def _where_time_begins(self, op: Op) -> Op | None:
        """The operator behind which the time of a recurrence begins; None if it is an input's."""
        axes, waiting, seen = self.known.get(op.inputs[0]), [op], {id(op)}
        time = set() if axes is None or len(axes) != 3 else self.axes.main(axes[time_axis(op)])
        begins = op
        while waiting:
            current, begins_here = waiting.pop(), True
            for name in current.taken():
                if name not in self.dynamic or name in self.states:
                    continue
                axes = self.known.get(name)
                is_along = any(self.axes.goes_along(axis, time) for axis in axes or ())
                if not time:
                    is_along = axes is None or current is op
                if not is_along:
                    continue
                before = self.flow.producer(name)
                if before is None:
                    return None
                begins_here = False
                if id(before) not in seen:
                    seen.add(id(before))
                    waiting.append(before)
            begins = current if begins_here else begins
        return begins

    def _needed(self, recurrent: list[Op]) -> set[str]:
        """The values that outputs and recurrences depend on, beside what only a new state is made of."""
        needed = {name for name in self.flow.outputs if name not in self.states.values()}
        needed.update(name for op in recurrent for name in (*op.inputs, *op.outputs))
        for op in reversed(self.ops):
            if needed.intersection(op.outputs):
                needed.update(op.taken())
        return needed - {""}

    def _timed(self, name: str) -> list[int]:
        """The axes of a value that are time."""
        axes = self.known.get(name) or ()
        return [place for place, axis in enumerate(axes) if self.axes.goes_along(axis, self.time)]

    def _data_of(self, op: Op) -> list[str]:
        """The inputs of an operator that are not sizes; notes which outputs count steps."""
        kind = kind_of(op)
        data = [name for place, name in enumerate(op.inputs) if place not in SIZES.get(kind, ())]
        counts = bool(self.lengths.intersection(data)) and not self.streamed.intersection(op.taken())
        if counts or kind in ("Shape", "Size"):
            self.lengths.update(name for name in op.outputs if name and self._counts_time(name))
        return data

    def _judged(self, op: Op) -> Iterator[tuple[Kind, str]]:
        """What is wrong with an operator; notes what its outputs are."""
        outputs = [name for name in op.outputs if name]
        inputs = [name for name in op.inputs if name]
        kind, moves, data = kind_of(op), self.moves[id(op)], self._data_of(op)
        if kind in ("Shape", "Size"):
            return
        if not self.streamed.intersection(op.taken()) and not (moves is None or id(op) in self.lost):
            return
        is_streamed = bool(self.streamed.intersection(op.taken()))
        if is_streamed:
            self.streamed.update(outputs)
        timed = {name: self._timed(name) for name in (*op.taken(), *outputs)}
        gives_time = any(timed[name] for name in outputs)
        if moves is None:
            takes_time = any(timed[name] and name in self.streamed for name in op.taken())
            if gives_time or takes_time:
                yield "unknown", "does what is not known along time"
            return
        self.lead.update(dict.fromkeys(outputs, max((self.lead.get(name, 0) for name in inputs), default=0)))
        lost = {
            self.axes.find(factor) for factor in self.lost.get(id(op), ())
        }  # which others have joined since
        if lost & self.time and not self.is_single:
            yield "unknown", "cuts time into other axes"
        if kind == "Concat" and (along := self._along_time(op)) is not None:
            yield from self._joined(op, along)
            return
        if id(op) in self.lost or kind == "Flatten":
            return
        if kind in RECURRENT:
            yield from self._recurrence(op, moves, timed)
            return
        for move in moves:
            if op.inputs[move.place] in self.streamed and move.axis in timed[op.inputs[move.place]]:
                yield from self._move(op, move)
        if self.is_single:
            return
        for name in data:
            if gives_time and name in self.lengths:
                yield "mixes", "computes with the number of steps in a run"
            elif name not in self.streamed and name not in self.from_states:
                continue
            elif gives_time and not timed[name]:
                yield "mixes", "spreads one value of a run over all of its steps"
            elif name not in self.streamed and timed[name]:
                yield "remembers", "takes steps of the last run"
        if any(len(timed[name]) > 1 for name in outputs):
            yield "mixes", "sets each step of a run beside every other"

    def _counts_time(self, name: str) -> bool:
        """Whether integers may depend on how many steps a run has."""
        sizes = self.flow.sizes(name)
        if self.flow.constant(name) is not None:
            return False
        named = [self.axes.named(size) for size in sizes or () if isinstance(size, str)]
        return sizes is None or any(axis is None or self.axes.goes_along(axis, self.time) for axis in named)

    def _move(self, op: Op, move: Move) -> Iterator[tuple[Kind, str]]:
        """What is wrong if time goes along an axis of an operator."""
        if move.kind:
            if not (self.is_single and move.kind in ("reverses", "mixes")):
                yield move.kind, move.why
            return
        if not (move.before or move.behind or move.reach):
            return
        name = op.outputs[move.output]
        lead = self.lead.get(op.inputs[move.place], 0) + move.before + min(move.behind, 0) - move.reach
        self.lead[name] = max(0, lead)
        if move.before > 0 or move.behind > 0 or lead < 0:
            yield "remembers", f"{move.why}; no state carries those of earlier runs"

    def _recurrence(
        self, op: Op, moves: list[Move], timed: Mapping[str, list[int]]
    ) -> Iterator[tuple[Kind, str]]:
        sequence = op.inputs[0]
        if not self.is_single and self._stops_early(op):
            yield "unknown", "stops at lengths that count from the first step of each run"
        if self.lead.get(sequence):
            yield "unknown", f"runs through {self.lead[sequence]} steps of the last run again"
        for move in moves:
            if sequence not in self.streamed or move.axis not in timed[sequence] or move.output:
                continue
            yield from self._move(op, move)
            is_along = move is moves[0]
            if is_along and id(op) not in self.carried:
                yield "remembers", "starts from its initial state in each run; no state carries its last one"
        if not self.is_single:
            for first, _ in RECURRENT[kind_of(op)]:
                name = op.inputs[first] if len(op.inputs) > first else ""
                if name in self.streamed and id(op) not in self.carried:
                    yield "mixes", "starts from a value of the same run"

    def _stops_early(self, op: Op) -> bool:
        """Whether a recurrence has lengths that are not the number of steps, and that no input gives."""
        place = LENGTHS.get(kind_of(op), 4)
        name = op.inputs[place] if len(op.inputs) > place else ""
        if not name or (name in self.dynamic and name not in self.lengths):
            return False
        sizes, shape = self.flow.sizes(name), self._shape(op.inputs[0])
        while sizes is None:
            before = self.flow.producer(name)
            if before is None or before.kind not in COPIES:
                return True
            name = before.inputs[0]
            sizes = self.flow.sizes(name)
        axes, along = self.known.get(op.inputs[0]), time_axis(op)
        if shape is None or axes is None:
            return True
        steps = self.axes.main(axes[along])
        named = [self.axes.named(size) if isinstance(size, str) else None for size in sizes]
        return any(
            size != shape[along] and (axis is None or self.axes.main(axis) != steps)
            for size, axis in zip(sizes, named, strict=True)
        )

    # Steps in front of a run's own

    def _along_time(self, op: Op) -> int | None:
        """The axis along which a Concat joins steps; None if it joins something else."""
        axes = self.known.get(op.outputs[0])
        if axes is None:
            return None
        axis = op.attributes.get("axis", 0) % len(axes)
        names = [name for name in op.inputs if name in self.streamed]
        return axis if any(axis in self._timed(name) for name in names) else None

    def _joined(self, op: Op, axis: int) -> Iterator[tuple[Kind, str]]:
        """A Concat along time: carried steps come first, and the last ones of all are the next run's."""
        first = op.inputs[0]
        shape = self.flow.shape(first)
        count = shape[axis] if shape is not None else None
        is_front = len(op.inputs) == 2 and first not in self.streamed and op.inputs[1] in self.streamed
        if not is_front or not isinstance(count, int):
            yield "remembers", "joins steps of a run with others"
            return
        self.lead[op.outputs[0]] = count + self.lead.get(op.inputs[1], 0)
        states = self.from_states.get(first, _NONE)
        if not any(self._is_kept(op.outputs[0], axis, count, self.states[state]) for state in states):
            yield "remembers", f"puts {count} steps in front of each run; no state carries the last ones"

    def _is_kept(self, joined: str, axis: int, count: int, state: str) -> bool:
        """Whether the last steps of a value become a state's next value."""
        if self.is_single:
            return state in self.leads_to.get(joined, _NONE)
        waiting = [joined]
        while waiting:
            for op in self.flow.consumers.get(waiting.pop(), ()):
                if kind_of(op) in ("Identity", "Cast"):
                    waiting += op.outputs
                elif (
                    op.kind == "Slice"
                    and self._is_tail(op, axis, count)
                    and state in self._moved_to(op.outputs[0])
                ):
                    return True
        return False

    def _is_tail(self, op: Op, axis: int, count: int) -> bool:
        step = self.step(op)
        bounds = [slice_bounds(step, place) for place in range(len(step.shape()))]
        size = step.shape()[axis]
        wanted = (size - count if isinstance(size, int) else -count, None, 1)
        return all(item == (wanted if place == axis else (0, None, 1)) for place, item in enumerate(bounds))

    def _moved_to(self, name: str, moves: tuple[str, ...] = MOVES) -> set[str]:
        """The values that hold this one, moved or joined with others."""
        found, waiting = {name}, [name]
        while waiting:
            for op in self.flow.consumers.get(waiting.pop(), ()):
                if kind_of(op) in moves and not found.issuperset(op.outputs):
                    found.update(op.outputs)
                    waiting += op.outputs
        return found


def time_axis(op: Op) -> int:
    """The axis of a recurrence's sequence that is time."""
    return 1 if op.kind.startswith("openvino::") or op.attributes.get("layout") == 1 else 0


def finding_of(op: Op, kind: Kind, why: str) -> Finding:
    """A finding about an operator."""
    name = op.name or next(filter(None, op.outputs), "")
    return Finding(kind, op.kind.removeprefix("openvino::"), name, why)
