"""What makes a model of whole sequences run in chunks of time: the states that it needs, and where they go.

After N steps of input, a value of the streaming model has N - late steps; the others are still to come. A
whole run has `zeros` more in front of them, which an operator puts there: the streaming model has them only
in the cache of the convolution that reads them first. And it has `tail` more behind them, where a
convolution reads zeros behind the last step of its input, or less, if it cuts some off.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from onegru.core.activations import ACTIVATIONS, AS_OPERATORS
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.dataflow.elements import Elements, movers
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op, Size
from onegru.dataflow.shapes import SAME_SIZES
from onegru.timeline.axes import Axis
from onegru.timeline.rules import LENGTHS, RECURRENT, SIZES, kind_of
from onegru.timeline.starts import constant_start
from onegru.timeline.step import ENDLESS, Kind, Move, UnknownOpError
from onegru.timeline.walk import COPIES, FILLED, PARTS, Finding, TimeAnalysis, finding_of, time_axis

_COUNTS = "computes with the number of steps in a run, or with numbers for each of them"
_NOT_ALONE = "takes earlier steps along an axis that is not time alone"
_FORWARD = ("forward", "foward")
_MOVES = movers(Elements.KEPT, Elements.PERMUTED, casts=True, without=("Flatten",))
#: What gives zeros for zeros.
_KEEPS_ZEROS = (
    *(*_MOVES, "Neg", "Abs", "Sqrt", "PRelu", "Erf"),
    *(name for name in AS_OPERATORS if ACTIVATIONS[name].keeps_zero),
)


class Cache(NamedTuple):
    """The last steps of a value, in front of those of a chunk.

    Attributes:
        op: what takes them; the padding along time of a pooling or a convolution goes.
        place: the input of the operator.
        axis: the axis of the input that is time.
        first: how many there are before the first chunk, all zero.
        steps: how many there are later.
        waits: whether each step only waits for so many later ones, as opposed to being read with them.
    """

    op: Op
    place: int
    axis: int
    first: int
    steps: int
    waits: bool = False


@dataclass
class StreamingPlan:
    """What to change.

    Attributes:
        inputs: the axis of time of each input that has one.
        outputs: likewise.
        delays: the outputs that come later than in a whole run, states included, and by how many steps.
        newest: the outputs without time, which are those of the newest step.
        recurrent: operators whose states become inputs and outputs.
        full_length: of these, those that take lengths that are all steps.
        zero_states: operators with steps as rows, and the inputs where they take a constant of zeros.
        caches: what is put in front of chunks.
        held: outputs whose steps wait for later ones, as a shift gives them, and for how many.
        unpadded: operators that no longer pad or cut time, along these axes of their first input.
        dropped: Slices that still cut steps off the front, behind a cache: how many, by operator and axis.
        latest: Gathers of the last step by its place, which is known where the number of steps is fixed.
        reshaped: Reshapes whose sizes have a fixed number of steps, at these places.
        refusals: the operators that cannot be streamed, and why.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)
    newest: list[str] = field(default_factory=list)
    recurrent: list[Op] = field(default_factory=list)
    full_length: list[Op] = field(default_factory=list)
    zero_states: list[tuple[Op, int]] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    unpadded: list[tuple[Op, int]] = field(default_factory=list)
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    latest: list[Op] = field(default_factory=list)
    reshaped: list[tuple[Op, int]] = field(default_factory=list)
    refusals: list[Finding] = field(default_factory=list)


class TimeExtent(NamedTuple):
    """The steps of a value: see the module."""

    late: int = 0
    zeros: int = 0
    tail: int = 0

    @property
    def more(self) -> int:
        """How many steps more than the input it has in a whole run."""
        return self.zeros + self.tail - self.late

    @property
    def to_hold(self) -> int:
        """How many steps may wait as zeros came in front: all if so many are late, else those cut off."""
        return self.zeros if self.late else min(self.zeros, -self.tail)

    def held(self, steps: int) -> TimeExtent:
        """The same after so many steps of zeros, which are the first ones of a chunk."""
        return TimeExtent(self.late, self.zeros - steps, self.tail + steps)


class Planner(TimeAnalysis):
    """Plans the changes.

    Args:
        flow: the model; a value that nothing gives is an input.
        states: for each input that is a state already, the output that it is in the next run.
        opset: of ONNX's operators.
        time: the axis of time of inputs, by what the flow calls them; empty to find it.
        delay: whether outputs may come later.
    """

    def __init__(
        self, flow: Flow, states: Mapping[str, str], opset: int, time: Mapping[str, int], delay: bool
    ) -> None:
        super().__init__(flow, states, opset)
        self.asked = time
        self.delay = delay
        self.made = StreamingPlan()
        self.stretch: dict[str, TimeExtent] = {}
        self.counts: dict[Size, int] = {}  # how many steps more than the input sizes of time are, by name
        self.steps = 0  # how many a run has always; 0 if that is open
        self.counting: set[str] = set()  # what depends on how many steps a run has
        self.alone: set[int] = set()  # the factors that are time and nothing else
        self.newest: set[str] = set()  # what depends on steps, and has no axis for them

    def plan(self) -> StreamingPlan:
        """The changes.

        Raises:
            SpecError: which axis is time is not known.
        """
        recurrent = [op for op in self.ops if kind_of(op) in RECURRENT]
        self.carried = {id(op) for op in recurrent if self._carried(op)}
        self.time, self.alone = self.axes.of_time(self._find_time(recurrent))
        # Others that no output depends on go with what they read.
        needed = self._needed([op for op in recurrent if id(op) in self.carried])
        self.streamed = {name for name in self.inputs if name not in self.states and self._timed(name)}
        made = self.made
        for name in self.inputs:
            if name in self.streamed:
                made.inputs[name] = self._only_axis(name)
                self._stretched(name, TimeExtent())
                size = (self._shape(name) or ())[made.inputs[name]]
                self.steps = size if isinstance(size, int) else self.steps
        for op in self.ops:
            self.made = made if needed.intersection(op.outputs) else StreamingPlan()
            finding = next(iter(list(self._planned(op))), None)
            if finding is not None:
                self.made.refusals.append(finding_of(op, *finding))
            for name in filter(self.stretch.__contains__, op.outputs):
                self._stretched(name, self.stretch[name])
        self.made = made
        for op, place, axis, *_ in made.caches:
            if not self._is_alone(op.inputs[place], axis):
                made.refusals.append(finding_of(op, "unknown", _NOT_ALONE))
        made.refusals = list(dict.fromkeys(made.refusals))
        for name in self.flow.outputs:
            if name not in self.states.values():
                self._end(name)
        return made

    def _stretched(self, name: str, stretch: TimeExtent) -> None:
        """Note the steps of a value, by the name of its size too."""
        self.stretch[name] = stretch
        for axis in self._timed(name):
            self.counts.setdefault((self._shape(name) or {axis: ""})[axis], stretch.more)

    def _end(self, name: str) -> None:
        """Note what an output of the model is."""
        made, stretch = self.made, self.stretch.get(name)
        axes = self._timed(name)
        if name in self.counting:
            why = "is computed from the number of steps in a run"
            made.refusals.append(Finding("unknown", "output", name, why))
        if name not in self.streamed:
            return
        if name in self.newest and not axes:
            made.newest.append(name)
            return
        if len(axes) != 1 or not self._leads(name, axes[0]):
            why = "has steps along an axis that is not time alone"
            made.refusals.append(Finding("unknown", "output", name, why))
        if not axes:
            return
        made.outputs[name] = axes[0]
        if stretch is None:
            return
        if (steps := stretch.to_hold) > 0 and not self._is_alone(name, axes[0]):
            made.refusals.append(Finding("unknown", "output", name, _NOT_ALONE))
        elif steps > 0:
            made.held[name] = steps
            stretch = stretch.held(steps)
        if stretch.zeros or stretch.tail < 0 or (stretch.tail > 0 and not stretch.late):
            steps = stretch.zeros + stretch.tail
            why = f"has {count(abs(steps), 'step')} {'more' if steps > 0 else 'less'} than the input"
            made.refusals.append(Finding("unknown", "output", name, why))
        elif stretch.late:
            made.delays[name] = stretch.late

    # Which axis is time

    def _find_time(self, recurrent: list[Op]) -> set[int]:
        if self.asked:
            found: set[int] = set()
            for name, axis in self.asked.items():
                axes = self.known.get(name)
                if axes is None:
                    raise SpecError.of("time", f"the rank of input {name!r} is not known; must be known")
                if not -len(axes) <= axis < len(axes):
                    raise SpecError.of(
                        "time", f"axis {axis} of {name!r}; must be below its rank, {len(axes)}"
                    )
                found |= self.axes.main(axes[axis])
            return found
        ways: list[tuple[set[int], Size]] = []
        forward = [op for op in recurrent if op.attributes.get("direction", "forward") in _FORWARD]
        for op in forward or recurrent:
            axes, shape = self.known.get(op.inputs[0]), self._shape(op.inputs[0])
            if axes is not None and shape is not None and len(axes) == 3:
                place = time_axis(op)
                main = self.axes.main(axes[place])
                if main not in [way for way, _ in ways]:
                    ways.append((main, shape[place]))
        of_inputs = {
            factor
            for name in self.inputs
            if name not in self.states
            for axis in self.known.get(name) or ()
            for factor in self.axes.main(axis)
        }
        ways = [way for way in ways if way[0] <= of_inputs]
        if len(ways) > 1:  # others go along frequencies, whose number is fixed
            ways = [way for way in ways if isinstance(way[1], str)] or ways
        if len(ways) != 1:
            what = "no GRU goes along an axis of an input" if not ways else "GRUs go along several axes"
            raise SpecError.of(
                "time", f"{what}; give the axis of time of an input, as time={{'X': 1}} (--time X=1)"
            )
        return ways[0][0]

    def _only_axis(self, name: str) -> int:
        axes = self._timed(name)
        if len(axes) > 1:
            raise SpecError.of("time", f"{name!r} has it along axes {axes}; must be one")
        return axes[0]

    # Operators

    def _planned(self, op: Op) -> Iterator[tuple[Kind, str]]:
        """What forbids to stream an operator; notes what has to change."""
        outputs = [name for name in op.outputs if name]
        kind, moves, taken = kind_of(op), self.moves[id(op)], list(op.taken())
        if kind in ("Shape", "Size") or not self.streamed.intersection(taken):
            self._count(op, taken)
            return
        self.streamed.update(outputs)
        timed = {name: self._timed(name) for name in (*taken, *outputs)}
        gives_time = any(timed[name] for name in outputs)
        with_steps = [name for name in taken if name in self.streamed and name not in self.newest]
        if not with_steps and not gives_time and self.counting.isdisjoint(taken):
            self.newest.update(outputs)
            return
        if moves is None or any(self.known.get(name) is None for name in (*with_steps, *outputs)):
            yield "unknown", "does what is not known along time"
            return
        takes = [place for place, name in enumerate(op.inputs) if name in with_steps and timed[name]]
        yield from self._numbers(op, moves, timed)
        lost = {self.axes.find(factor) for factor in self.lost.get(id(op), ())}
        if lost & self.time:
            yield "unknown", "cuts time into other axes"
            return
        yield from self._unsaid(op, moves, takes, timed)
        is_along = kind == "Concat" and self._joins_along(op) in timed[op.outputs[0]]
        # Along any axis: a Pad with other numbers beside zeros gives no zeros.
        is_moved = is_along or kind == "Slice" or (kind == "Pad" and self._pads_zeros(op))
        before = [self.stretch.get(op.inputs[place], TimeExtent()) for place in takes]
        is_ahead = any(move.behind > 0 for move in moves)
        if not (is_moved or kind in _KEEPS_ZEROS or (kind == "Conv" and len(op.inputs) < 3 and not is_ahead)):
            before = [self._moved_back(op, *item) for item in zip(takes, before, strict=True)]
        takes_zeros = is_moved or kind in _KEEPS_ZEROS or "Conv" in kind or "Pool" in kind
        if any(item.zeros for item in before) and (len(takes) > 1 or not takes_zeros):
            yield "remembers", "takes steps of zeros that were put in front of time"
        stretch = yield from self._aligned(op, takes, before)
        self.stretch.update(dict.fromkeys(outputs, stretch))
        if id(op) in self.lost:
            yield from self._open_sizes(op, timed[op.outputs[0]], stretch)
            return
        if kind == "Squeeze" and not ("axes" in op.attributes or any(op.inputs[1:])):
            yield "unknown", "takes away time where a run has a single step"
        if kind in ("Expand", "Resize"):
            yield from self._as_long(op, timed, stretch)
        self.newest.update(name for name in outputs if not timed[name])
        if is_along:
            yield from self._joined_along(op, self._joins_along(op), stretch)
            return
        if kind == "Flatten":
            return
        yield from self._beside(op, timed)
        if kind in RECURRENT:
            yield from self._recurrent(op, moves, timed, stretch)
            return
        for move in moves:
            if move.place in takes and move.axis in timed[op.inputs[move.place]]:
                yield from self._moved(op, move, stretch)
        if any(len(timed[name]) > 1 for name in outputs):
            yield "mixes", "sets each step of a run beside every other"

    def _count(self, op: Op, taken: list[str]) -> None:
        """Note what an operator to which no step is fed gives that depends on how many there are."""
        outputs = [name for name in op.outputs if name]
        counts = self.counting.intersection(taken)
        if op.kind in ("Shape", "Size"):
            counts |= self.streamed.intersection(taken)
        if not counts:
            return
        sizes = self.sized.get(op.outputs[0])
        is_followed = op.kind == "Shape" or all(map(self._steps_in, map(self.sizes_in, counts)))
        if (
            sizes is not None
            and is_followed
            and self.counting.isdisjoint(taken if op.kind == "Shape" else ())
        ):
            self.counting.update(outputs if self._steps_in(sizes) else ())
        elif self._is_filled(op):
            self.streamed.update(outputs)
        else:
            self.counting.update(outputs)

    def _steps_in(self, sizes: tuple[Size, ...] | None) -> list[list[str]]:
        """For each integer that depends on the number of steps, the values of which it is a size."""
        found = [
            [
                self.measured[part][1]
                for part in str(size).split("*")
                if part in self.measured and self._goes_along(self.measured[part][0])
            ]
            for size in sizes or ()
        ]
        return [item for item in found if item]

    def _is_filled(self, op: Op) -> bool:
        """Whether an operator repeats what it takes for each step, and for as many as one value has."""
        if op.kind not in FILLED or self.moves[id(op)] is None:
            return False
        name, sizes = op.outputs[0], self.sized.get(op.inputs[FILLED[op.kind]])
        steps, axes = self._steps_in(sizes), self.known.get(name)
        stretches = {self.stretch.get(value, TimeExtent()) for values in steps for value in values}
        if sizes is None or axes is None or len(steps) != 1 or len(steps[0]) != 1 or len(stretches) != 1:
            return False
        if op.kind == "Expand":
            shape = self._shape(op.inputs[0])
            if op.inputs[0] in self.counting or shape is None or len(shape) > len(sizes):
                return False
            pairs = zip(shape[::-1], sizes[::-1], strict=False)
            if any(size != 1 and self._steps_in((wanted,)) for size, wanted in pairs):
                return False
        (self.stretch[name],) = stretches
        return not self.stretch[name].zeros and len(self._timed(name)) == 1

    def _numbers(
        self, op: Op, moves: list[Move], timed: Mapping[str, list[int]]
    ) -> Iterator[tuple[Kind, str]]:
        """What forbids that an operator takes numbers that depend on steps, or on how many there are."""
        kind, places = kind_of(op), SIZES.get(kind_of(op), ())
        if kind in RECURRENT:  # what it starts from and when it stops is looked at there
            places = (LENGTHS.get(kind, 4), *(first for first, _ in RECURRENT[kind]))
        named = {name for place, name in enumerate(op.inputs) if place not in places}
        named |= {*op.taken()}.difference(op.inputs)
        if not self.counting.isdisjoint(named):
            yield "mixes", _COUNTS
        for place in places if kind not in RECURRENT else ():
            name = op.inputs[place] if len(op.inputs) > place else ""
            if name in self.streamed:
                yield "mixes", "takes sizes or places that are computed from steps"
            if name not in self.counting or kind in ("Reshape", "Expand", "Resize"):
                continue
            if kind != "Slice" or not self._cuts_time_alone(op, place, moves, timed):
                yield "mixes", _COUNTS

    def _cuts_time_alone(self, op: Op, place: int, moves: list[Move], timed: Mapping[str, list[int]]) -> bool:
        """Whether the bounds of a Slice that count steps are those of time, which it keeps."""
        axes = self.flow.ints(op, "axes", 3)
        sizes, rank = self.sized.get(op.inputs[place]), len(self.known[op.inputs[0]] or ())
        if place > 2 or axes is None or any(move.to is None for move in moves):
            return False
        counted = [
            axis % rank
            for item, axis in enumerate(axes)
            if sizes is None or self._steps_in(sizes[item : item + 1])
        ]
        return set(counted) <= set(timed[op.inputs[0]])

    def _unsaid(
        self, op: Op, moves: list[Move], takes: list[int], timed: Mapping[str, list[int]]
    ) -> Iterator[tuple[Kind, str]]:
        """A rule that does not say where time goes, or lets one value of a run beside all of its steps."""
        kind = kind_of(op)
        if kind in ("Reshape", "Flatten"):
            return
        said = {(move.place, move.axis, move.to is None or move.output) for move in moves}
        for output, name in enumerate(op.outputs):
            if not name or (kind in RECURRENT and output):
                continue
            for place in takes:
                for axis in timed[op.inputs[place]]:
                    if not {(place, axis, True), (place, axis, output)} & said and not (
                        "Pool" in kind and output
                    ):
                        yield "unknown", "does what is not known along time"
        if any(timed[name] for name in op.outputs if name) and not self.newest.isdisjoint(op.taken()):
            is_start = kind in RECURRENT and time_axis(op) in timed[op.inputs[0]]  # which has its own words
            if not is_start:
                yield "mixes", "spreads one value of a run over all of its steps"

    def _beside(self, op: Op, timed: Mapping[str, list[int]]) -> Iterator[tuple[Kind, str]]:
        """What takes numbers of its own for each step, as a table of positions."""
        for move in (*self.beside.get(id(op), ()), *(self.moves[id(op)] or ())):
            name, output = op.inputs[move.place], op.outputs[move.output]
            if name in self.streamed or not output or move.to not in timed[output]:
                continue
            is_zero = kind_of(op) in RECURRENT and self.flow.fill(name) == 0
            if (self._shape(name) or {move.axis: ""})[move.axis] != 1 and not is_zero:
                yield "mixes", _COUNTS

    def _is_alone(self, name: str, axis: int) -> bool:
        """Whether an axis is time and nothing else."""
        main = self.axes.main((self.known[name] or ())[axis])
        return len(main) == 1 and main <= self.alone

    def _leads(self, name: str, axis: int) -> bool:
        """Whether all that an axis has of a step comes before the next one."""
        factors = self.axes.flat((self.known[name] or ())[axis])
        large = [
            item for item in factors if self.axes.find(item) in self.time or self.axes.sizes_of(item)[0] != 1
        ]
        return self.axes.find(large[0]) in self.time

    def _goes_along(self, axis: Axis) -> bool:
        return any(self.axes.find(item) in self.time for item in self.axes.flat(axis))

    def _timed(self, name: str) -> list[int]:
        """The axes of a value that are time, even if that has a single step."""
        return [place for place, axis in enumerate(self.known.get(name) or ()) if self._goes_along(axis)]

    def _joins_along(self, op: Op) -> int:
        """The axis along which a Concat joins."""
        axis: int = op.attributes.get("axis", 0)
        return axis % len(self.known[op.outputs[0]] or (0,))

    def _moved_back(self, op: Op, place: int, stretch: TimeExtent) -> TimeExtent:
        """Let as many steps wait as zeros came in front, if so many are not known yet or were cut off behind.

        A convolution has in its cache the zeros that it reads.
        """
        axis = self._timed(op.inputs[place])[0]
        moves = [move for move in self.moves[id(op)] or () if (move.place, move.axis) == (place, axis)]
        zeros = stretch.zeros - max((move.reach - move.before for move in moves if move.reach), default=0)
        steps = stretch._replace(zeros=zeros).to_hold
        if steps <= 0:
            return stretch
        self.made.caches.append(Cache(op, place, axis, steps, steps, waits=True))
        return stretch.held(steps)

    def _aligned(
        self, op: Op, takes: list[int], before: list[TimeExtent]
    ) -> Generator[tuple[Kind, str], None, TimeExtent]:
        """Let the inputs that are ahead of others wait; returns what they then have."""
        if not before:
            return TimeExtent()
        latest = max(before)
        for place, item in zip(takes, before, strict=True):
            if item.tail - item.late != latest.tail - latest.late:
                yield "remembers", "takes inputs with different numbers of steps"
            elif item.late != latest.late and not self.delay:
                yield "remembers", "takes steps that come later than those of its other inputs"
            elif item.late != latest.late:
                axis, steps = self._timed(op.inputs[place])[0], latest.late - item.late
                self.made.caches.append(Cache(op, place, axis, 0, steps, waits=True))
        return latest

    def _open_sizes(self, op: Op, axes: list[int], stretch: TimeExtent) -> Iterator[tuple[Kind, str]]:
        """Note a Reshape whose sizes have another number of steps than it takes: one that is written down.

        Sizes that are known as numbers are written down anew, as they may depend on the number of steps.
        """
        if op.kind != "Reshape":
            return
        places = [(op, axis) for axis in axes]
        if (sizes := self.flow.constant(op.inputs[1])) is not None:
            is_held = self.flow.holds(op.inputs[1])
            self.made.reshaped += [item for item in places if not is_held or sizes.ravel()[item[1]] > 0]
            return
        wanted = self.sized.get(op.inputs[1])
        if wanted is None:
            wanted = None if op.inputs[1] in self.counting else self.flow.sizes(op.inputs[1])
        if wanted is None:
            yield "unknown", "has sizes that are computed in a way that is not known"
            return
        for axis, size in enumerate(wanted):
            steps = self._steps_in((size,))
            if axis not in axes and steps:
                yield "mixes", _COUNTS
            elif axis in axes and steps:
                is_same = len(steps[0]) == 1 and self.stretch.get(steps[0][0], TimeExtent()) == stretch
                self.made.reshaped += [] if is_same and not stretch.late else [(op, axis)]
            elif axis in axes and size not in (0, -1):
                self.made.reshaped.append((op, axis))

    def _as_long(
        self, op: Op, timed: Mapping[str, list[int]], stretch: TimeExtent
    ) -> Iterator[tuple[Kind, str]]:
        """An Expand or a Resize along time, to a number of steps: only that which there is."""
        place = 1 if op.kind == "Expand" else 3
        name = op.inputs[place] if len(op.inputs) > place else ""
        if not name:
            return
        sizes, rank = self.sizes_in(name), len(self.known[op.outputs[0]] or ())
        if sizes is None:
            yield "unknown", "has sizes that are computed in a way that is not known"
            return
        for axis, size in enumerate(sizes, rank - len(sizes)):
            steps, is_time = self._steps_in((size,)), axis in timed[op.outputs[0]]
            is_same = (
                len(steps) == len(steps[:1]) == 1 and self.stretch.get(steps[0][0], TimeExtent()) == stretch
            )
            if (steps and not is_time) or (is_time and not (is_same or (size == 1 and op.kind == "Expand"))):
                yield "mixes", _COUNTS

    def _moved(self, op: Op, move: Move, stretch: TimeExtent) -> Iterator[tuple[Kind, str]]:
        """What forbids time along an axis of an operator."""
        kind = kind_of(op)
        if kind == "Slice" and move.to is not None and (cut := self._cut(op, move.axis, stretch)) is not None:
            yield from self._sliced(op, move, stretch, *cut)
            return
        if move.kind:
            yield move.kind, move.why
            return
        if "Pool" in kind and len(op.outputs) > 1 and op.outputs[1]:
            yield "unknown", "gives the places of steps in a run"
        changes = move.before or move.behind or move.reach
        if (changes or move.to is None) and not self._is_alone(op.inputs[move.place], move.axis):
            yield "unknown", _NOT_ALONE
            return
        if move.to is None and kind == "Gather" and self.flow.ints(op, "", 1) != [-1]:
            self.made.latest.append(op)
        if move.to is None and kind == "Slice" and not self._ends_with_time(op, move.axis):
            yield "remembers", "takes the last step by its place in a run"
        if move.to is None:
            if stretch.tail or stretch.late:
                yield "remembers", "takes the last step, which comes later or is not known"
            return
        if not (move.before or move.behind or move.reach):
            if stretch.zeros and "Conv" in kind and (len(op.inputs) > 2 or kind != "Conv"):
                yield "remembers", "adds to steps of zeros that were put in front of time"
            step = self.step(op)
            rank = len(step.shape())
            if kind == "Gather" and move.place == 0 and move.axis == step.number("axis", 0) % rank:
                yield "remembers", "takes steps by their places in a run"
            return
        name, tail = op.outputs[move.output], stretch.tail + move.behind
        first = stretch.zeros + move.before
        is_window = "Conv" in kind or "Pool" in kind
        if move.behind and stretch.tail < 0:
            yield "remembers", f"{move.why}, some in the place of its last ones"
        if not is_window:
            if min(move.before, move.behind) < 0:
                yield "remembers", f"{move.why}, which a stream does not know the ends of"
            elif kind == "Pad" and not self._pads_zeros(op):
                yield "remembers", "pads time with other numbers than zeros"
            self.stretch[name] = TimeExtent(stretch.late, max(first, 0), tail)
            self.made.unpadded.append((op, move.axis))
            return
        if kind == "ConvInteger" and first:
            yield "remembers", "pads time with other numbers than zeros"
        later = move.reach - first
        self.stretch[name] = TimeExtent(stretch.late + max(later, 0), max(-later, 0), tail)
        if later < 0 and (kind != "Conv" or len(op.inputs) > 2):
            yield "remembers", f"{move.why} and gives more than it takes"
        elif later > 0 and not self.delay:
            self.stretch[name] = TimeExtent()  # once is enough to say so
            yield "remembers", f"{move.why}: {_later(later)}"
        elif "Pool" in kind and move.before:
            yield "remembers", "pads the steps that it pools"
        if move.before or move.behind:
            self.made.unpadded.append((op, move.axis))
        if move.reach:
            self.made.caches.append(Cache(op, move.place, move.axis, min(first, move.reach), move.reach))

    def _cut(self, op: Op, axis: int, stretch: TimeExtent) -> tuple[int, int] | None:
        """How many steps of a whole run a Slice cuts off in front and behind; None if that is not known."""
        step, more = self.step(op), stretch.more
        rank = len(step.shape())
        try:
            axes, strides = step.numbers("axes", range(rank), place=3), step.numbers("steps", place=4)
        except UnknownOpError:
            return None
        places = [item % rank for item in axes]
        if axis not in places:
            return None
        index = places.index(axis)
        start, end = (self._bound(op, name, place, index) for name, place in (("starts", 1), ("ends", 2)))
        if start is None or end is None or (strides and strides[index] != 1):
            return None
        times, front = start
        if times == 0 > front and self.steps and 0 <= self.steps + more + front <= stretch.zeros:
            front += self.steps + more  # no more than zeros: not the last steps of any run
        elif times == -1:
            front = max(more + front, 0)
        if front < 0 or times == 1:
            return None
        times, last = end
        if times == 0 and (last < 0 or last >= ENDLESS):
            return front, -min(last, 0)
        if times == 0 and self.steps:
            times, last = 1, last - self.steps
        return (front, max(more - last, 0)) if times == 1 else None

    def _bound(self, op: Op, name: str, place: int, index: int) -> tuple[int, int] | None:
        """A bound of a Slice: how many times the input's number of steps, and what is added to it."""
        known = self.flow.ints(op, name, place)
        if known is not None:
            return 0, known[index]
        value, sign = op.inputs[place] if len(op.inputs) > place else "", 1
        while (before := self.flow.producer(value)) is not None and before.kind in (*SAME_SIZES, "Neg"):
            value, sign = before.inputs[0], -sign if before.kind == "Neg" else sign
        sizes = self.flow.sizes(value)
        linear = self.flow.linear(value) if sizes is None else (sizes[index if len(sizes) > 1 else 0], 0)
        if linear is None or not isinstance(linear[0], str):
            return None
        size = linear[0].removesuffix("*-1")
        inner = 1 if size == linear[0] else -1
        more = self.counts.get(size)
        return None if more is None else (sign * inner, sign * (inner * more + linear[1]))

    def _ends_with_time(self, op: Op, axis: int) -> bool:
        """Whether a Slice takes the last step of any number of them."""
        starts, ends, axes = (
            self.flow.ints(op, name, place) for place, name in enumerate(("starts", "ends", "axes"), 1)
        )
        rank = len(self.known[op.inputs[0]] or ())
        index = axis if axes is None else [item % rank for item in axes].index(axis)
        return starts is not None and ends is not None and starts[index] == -1 and ends[index] >= ENDLESS

    def _sliced(
        self, op: Op, move: Move, stretch: TimeExtent, front: int, behind: int
    ) -> Iterator[tuple[Kind, str]]:
        """A Slice along time: zeros go, steps in front are waited for, and those behind are not known yet."""
        later = max(front - stretch.zeros, 0)
        if (front or behind) and not self._is_alone(op.inputs[0], move.axis):
            yield "unknown", _NOT_ALONE
            return
        if later and not self.delay:
            yield "remembers", f"drops {count(later, 'step')} in front: {_later(later)}"
        elif later:
            self.made.caches.append(Cache(op, 0, move.axis, stretch.zeros, front))
            self.made.dropped[id(op), move.axis] = front
        zeros = max(stretch.zeros - front, 0)
        self.stretch[op.outputs[0]] = TimeExtent(stretch.late + later, zeros, stretch.tail - behind)
        self.made.unpadded.append((op, move.axis))

    def _pads_zeros(self, op: Op) -> bool:
        mode = self.step(op).text("mode", "constant").lower()
        value = op.inputs[2] if len(op.inputs) > 2 else ""
        number = self.flow.fill(value) if value else op.attributes.get("value", 0.0)
        return mode == "constant" and number == 0

    def _joined_along(self, op: Op, axis: int, stretch: TimeExtent) -> Iterator[tuple[Kind, str]]:
        """A Concat along time: zeros may come first."""
        first = op.inputs[0]
        shape = self.flow.shape(first)
        steps = None if shape is None else shape[axis]
        is_front = len(op.inputs) == 2 and first not in self.streamed and op.inputs[1] in self.streamed
        if not self._is_alone(op.outputs[0], axis):
            yield "unknown", _NOT_ALONE
        elif not is_front or not isinstance(steps, int) or first in self.states:
            yield "remembers", "joins steps of a run with others"
        elif self.flow.fill(first) != 0:
            yield "remembers", f"puts {count(steps, 'step')} in front that are not zeros"
        else:
            self.stretch[op.outputs[0]] = stretch._replace(zeros=stretch.zeros + steps)
            self.made.unpadded.append((op, axis))

    def _recurrent(
        self, op: Op, moves: list[Move], timed: Mapping[str, list[int]], stretch: TimeExtent
    ) -> Iterator[tuple[Kind, str]]:
        sequence = op.inputs[0]
        place = time_axis(op)
        for move in moves:
            if move.axis in timed[sequence] and move.output == 0 and move.kind and move.to is not None:
                yield move.kind, move.why
                return
            if move.axis in timed[sequence] and move.to is None:
                yield move.kind, move.why
                return
        if place not in timed[sequence]:  # along another axis, as over the bands of one frame
            for first, _ in RECURRENT[kind_of(op)]:
                name = op.inputs[first] if len(op.inputs) > first else ""
                if name and self.flow.fill(name) == 0:
                    self.made.zero_states.append((op, first))
                elif name in self.counting or (name in self.newest and timed[op.outputs[0]]):
                    yield "remembers", "starts from a state that is computed in each run"
                elif name and self.flow.constant(name) is not None:
                    yield "remembers", "starts from a constant with a row for each step"
            return
        if not self._is_alone(sequence, place):
            yield "unknown", _NOT_ALONE
            return
        if stretch.tail > 0 and not stretch.late:
            yield "unknown", f"runs through {count(stretch.tail, 'step')} behind the last one"
        if self._has_lengths(op):
            if self._is_full_length(op, stretch):
                self.made.full_length.append(op)
            else:
                yield "unknown", "takes lengths, which count from the first step"
        if id(op) in self.carried:
            self._delay_states(op, stretch)
            return
        for first, _ in RECURRENT[kind_of(op)]:
            name = op.inputs[first] if len(op.inputs) > first else ""
            is_computed = name in self.counting and self.flow.fill(name) != 0
            if is_computed or (name and self.outside(name) is None and self.start_of(op, name) is None):
                yield "remembers", "starts from a state that is computed in each run"
                return
        for name in op.outputs[1:]:
            if (stretch.late or stretch.tail) and (name in self.flow.outputs or name in self.flow.consumers):
                yield "remembers", "gives its last state, which comes later or is not known"
        self.made.recurrent.append(op)

    def _delay_states(self, op: Op, stretch: TimeExtent) -> None:
        """Note how late the states are that a recurrence has outside: it needs a step in each run, too."""
        for first, _ in RECURRENT[kind_of(op)]:
            taken = self.outside(op.inputs[first]) if len(op.inputs) > first else None
            if stretch.late and taken is not None and taken in self.states:
                given = self.states[taken]
                self.made.delays[given] = max(stretch.late, self.made.delays.get(given, 0))

    def _has_lengths(self, op: Op) -> bool:
        place = LENGTHS.get(kind_of(op), 4)
        return len(op.inputs) > place and bool(op.inputs[place])

    def _is_full_length(self, op: Op, stretch: TimeExtent) -> bool:
        """Whether the lengths that a recurrence takes are its number of steps, for all rows."""
        name = op.inputs[LENGTHS.get(kind_of(op), 4)]
        while (sizes := self.sizes_in(name)) is None:
            before = self.flow.producer(name)
            if before is None or before.kind not in COPIES or len(before.inputs) < 1:
                return False
            name = before.inputs[0]
        steps = [item for item in self._steps_in(sizes) if len(item) == 1]
        if len(steps) != len(sizes):
            shape = self._shape(op.inputs[0]) or ()
            return all(isinstance(size, int) and size == shape[time_axis(op)] for size in sizes)
        return all("*" not in str(size) for size in sizes) and all(
            self.stretch.get(value, TimeExtent()).more == stretch.more for (value,) in steps
        )

    def start_of(self, op: Op, name: str) -> Array | None:
        """What a recurrence starts from, its rows as one if they are the same; None if it is computed."""
        rows = 0 if op.attributes.get("layout", 0) == 1 else 1
        return np.zeros((1, 1, 1)) if self.flow.fill(name) == 0 else constant_start(self.flow, name, rows)

    def outside(self, name: str) -> str | None:
        """The input of the model that a value is, or is a part of; None for what is computed."""
        while (op := self.flow.producers.get(name)) is not None and kind_of(op) in PARTS:
            name = op.inputs[0]
        return name if name in self.inputs and name not in self.streamed else None

    def starts_alone(self, name: str) -> bool:
        """Whether the parts of an input are nothing but what recurrences start from."""
        parts = self._moved_to(name, PARTS)
        ops = [(op, part) for part in parts for op in self.flow.consumers.get(part, ())]
        return parts.isdisjoint(self.flow.outputs) and all(
            op.kind == "Shape"
            or (kind_of(op) in PARTS and part in op.inputs[:1])
            or (kind_of(op) in RECURRENT and part not in op.inputs[:5])
            for op, part in ops
        )

    def factors(self, name: str, axis: int) -> Axis:
        """What an axis of a value is made of."""
        axes = self.known.get(name)
        return () if axes is None or axis >= len(axes) else self.axes.flat(axes[axis])


def _later(steps: int) -> str:
    return f"gives each step {count(steps, 'step')} later, which delay=True (--delay) allows"
