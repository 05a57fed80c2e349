"""Shared data of the planners."""

from __future__ import annotations

from onegru.core.wording import count
from onegru.dataflow.operator import TIMES, Size
from onegru.dataflow.table import Hazard
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.axes import Axis
from onegru.timeline.planning.plan import StreamingPlan, TimeExtent

COUNTS = "computes with the number of steps in a run, or with numbers for each of them"
NOT_ALONE = "takes earlier steps along an axis that is not time alone"
UNKNOWN = "has an unknown effect along time"
ONE_FOR_ALL = "applies one value of a run to all of its steps"
_AT_ONCE = "a layer of each step must take all at once, as Dense does without TimeDistributed"
IN_LOOP = f"is a loop, which is not followed along time: {_AT_ONCE}"
ONE_BY_ONE = f"cuts out one step of a fixed number, as others do: {_AT_ONCE}"


class PlanContext:
    """The known facts along time, and the changes of the current operator."""

    def __init__(self, analysis: TimeAnalysis, time: set[int], delay: bool, catches_up: bool) -> None:
        self.analysis = analysis
        # The factors of axes that are time, and those that are nothing else.
        self.time, self.alone = analysis.axes.of_time(time)
        self.delay = delay  # whether outputs may come later
        self.catches_up = catches_up  # whether a step that comes later may come at once again
        self.extents: dict[str, TimeExtent] = {}
        self.counts: dict[Size, int] = {}  # by name, steps beyond the input's time axis
        self.steps = 0  # of every run; 0 if that is open
        self.streamed = {name for name in analysis.inputs if name not in analysis.states and self.timed(name)}
        self.newest: set[str] = set()  # streamed values without an axis for steps
        self.made: set[str] = set()  # values for each step that are computed only from constants
        self.indices: set[str] = set()  # of these, values that contain step indices
        self.firsts: dict[str, int] = {}  # values that are the first steps of a run, and how many
        self.counting: set[str] = set()  # values that depend on how many steps a run has
        # By id, the recurrences whose states are already inputs and outputs.
        self.carried = {id(op) for op in analysis.recurrent if analysis.is_carried(op)}
        self.changes = StreamingPlan()  # of the operator at hand
        # What forbids to stream it, and whether that is about steps at either end of a run.
        self.hazards: list[tuple[Hazard, str, bool]] = []

    def begin(self) -> StreamingPlan:
        """Turn to another operator; returns what will be its changes."""
        self.changes, self.hazards = StreamingPlan(), []
        return self.changes

    def refuse(self, hazard: Hazard, message: str) -> None:
        """Refuse the operator at hand."""
        self.hazards.append((hazard, message, False))

    def refuse_ends(self, message: str, hazard: Hazard = "remembers") -> None:
        """Refuse the operator at hand, unless the model carries steps from run to run on its own."""
        self.hazards.append((hazard, message, True))

    def extent(self, name: str) -> TimeExtent:
        """The steps of a value."""
        return self.extents.get(name, TimeExtent())

    def note_extent(self, name: str, extent: TimeExtent) -> None:
        """Note the steps of a value, by the name of its size too."""
        self.extents[name] = extent
        for axis in self.timed(name):
            self.counts.setdefault((self.analysis.shape(name) or {axis: ""})[axis], extent.extra)

    def is_read(self, name: str) -> bool:
        """Whether an operator takes a value, or it is an output of the model."""
        return name in self.analysis.flow.consumers or name in self.analysis.flow.outputs

    def goes_along(self, axis: Axis) -> bool:
        """Whether one of an axis' factors is time."""
        return any(self.analysis.axes.find(item) in self.time for item in self.analysis.axes.flat(axis))

    def timed(self, name: str) -> list[int]:
        """The axes of a value that are time, even if that has a single step."""
        return [
            index for index, axis in enumerate(self.analysis.known.get(name) or ()) if self.goes_along(axis)
        ]

    def is_alone(self, name: str, axis: int) -> bool:
        """Whether an axis is time and nothing else."""
        main = self.analysis.axes.main((self.analysis.known[name] or ())[axis])
        return len(main) == 1 and main <= self.alone

    def leads(self, name: str, axis: int) -> bool:
        """Whether all that an axis has of a step comes before the next one."""
        factors = self.analysis.axes.flat((self.analysis.known[name] or ())[axis])
        large = [
            item
            for item in factors
            if self.analysis.axes.find(item) in self.time or self.analysis.axes.sizes_of(item)[0] != 1
        ]
        return self.analysis.axes.find(large[0]) in self.time

    def sizes_in(self, name: str) -> tuple[Size, ...] | None:
        """As of the analysis; None if they are computed of the number of steps in an unknown way."""
        sizes = self.analysis.sizes_in(name)
        parts = {part for size in sizes or () for part in str(size).split(TIMES)}
        sources = {source for part in parts for source in self.analysis.computed.get(part, ())}
        is_along = any(self.goes_along(self.analysis.measured[source][0]) for source in sources)
        return None if is_along else sizes

    def steps_in(self, sizes: tuple[Size, ...] | None) -> list[list[str]]:
        """For each integer that depends on the number of steps, the values of which it is a size."""
        found = [
            [
                self.analysis.measured[part][1]
                for part in str(size).split(TIMES)
                if part in self.analysis.measured and self.goes_along(self.analysis.measured[part][0])
            ]
            for size in sizes or ()
        ]
        return [item for item in found if item]


class PlannerPart:
    """A part of the planner, for some operators."""

    def __init__(self, context: PlanContext) -> None:
        self.context = context
        self.analysis = context.analysis
        self.flow = context.analysis.flow


def later_words(steps: int) -> str:
    """That an operator looks ahead."""
    return f"its output comes {count(steps, 'step')} later, which delay=True (--delay) allows"
