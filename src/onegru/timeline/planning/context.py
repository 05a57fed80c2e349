"""Share data between the planners."""

from __future__ import annotations

from onegru.core.wording import count
from onegru.dataflow.operator import Op, Size
from onegru.dataflow.table import Hazard
from onegru.timeline.analysis import TimeAnalysis
from onegru.timeline.axes import Axis, parts_of
from onegru.timeline.finding import finding_of
from onegru.timeline.planning.plan import StreamingPlan, TimeExtent

COUNTS = "uses the number of steps in a run, or a stored value for each step"
NOT_ONLY_TIME = "reads earlier steps along an axis that is not only time"
UNKNOWN = "has an unknown effect along time"
ONE_FOR_ALL = "applies one value of a run to all of its steps"
_AT_ONCE = "export the model so that one operator computes all steps"
IN_LOOP = f"is a loop, which onegru cannot follow along time; {_AT_ONCE}"
ONE_BY_ONE = f"reads one step of a fixed number of steps; {_AT_ONCE}"


class PlanContext:
    """Facts along time, and the changes of the current operator."""

    def __init__(self, analysis: TimeAnalysis, time: set[int], may_delay: bool, may_cancel: bool) -> None:
        self.analysis = analysis
        # The factors of time axes, and those that are only time.
        self.time, self.only_time = analysis.axes.time_factors(time)
        self.may_delay = may_delay  # whether outputs may be delayed
        self.may_cancel = may_cancel  # whether known leading steps may make up for a delay
        self.extents: dict[str, TimeExtent] = {}  # the steps of each value
        self.extra_steps: dict[Size, int] = {}  # steps of a size's time axis beyond the input's, by its name
        self.steps = 0  # fixed steps of every run; 0: any number
        # Values that differ from chunk to chunk: inputs with a time axis, and all that depends on them.
        self.streamed = {name for name in analysis.inputs if name not in analysis.states and self.timed(name)}
        self.newest: set[str] = set()  # streamed values without a time axis
        self.generated: set[str] = set()  # values with steps that are computed only from constants
        self.step_indices: set[str] = set()  # values in `generated` that contain step indices
        self.first_steps: dict[str, int] = {}  # the number of steps of values with a run's first steps
        self.counting: set[str] = set()  # values that depend on the number of steps in a run
        # Recurrences whose states are already inputs and outputs, by id.
        self.carried = {id(op) for op in analysis.recurrent if analysis.is_carried(op)}
        self.changes = StreamingPlan()  # of the current operator, `op`

    def begin(self, op: Op) -> None:
        """Start with another operator."""
        self.op, self.changes = op, StreamingPlan()

    def refuse(self, hazard: Hazard, message: str) -> None:
        """Reject the current operator."""
        self.changes.refuse(finding_of(self.op, hazard, message))

    def refuse_uncarried(self, message: str, hazard: Hazard = "remembers") -> None:
        """Reject the current operator, unless the model itself carries steps from run to run."""
        self.changes.refusals.append(finding_of(self.op, hazard, message))

    def extent(self, name: str) -> TimeExtent:
        """Return the steps of a value."""
        return self.extents.get(name, TimeExtent())

    def note_extent(self, name: str, extent: TimeExtent) -> None:
        """Record the steps of a value, also under the name of its size."""
        self.extents[name] = extent
        for axis in self.timed(name):
            self.extra_steps.setdefault((self.analysis.shape(name) or {axis: ""})[axis], extent.extra)

    def is_read(self, name: str) -> bool:
        """Whether an operator reads a value, or it is an output of the model."""
        return name in self.analysis.flow.consumers or name in self.analysis.flow.outputs

    def goes_along(self, axis: Axis) -> bool:
        """Whether a factor of an axis is time."""
        return any(self.analysis.axes.find(item) in self.time for item in self.analysis.axes.flat(axis))

    def timed(self, name: str) -> list[int]:
        """Return the time axes of a value, including one with a single step."""
        return [
            index for index, axis in enumerate(self.analysis.axes_of.get(name) or ()) if self.goes_along(axis)
        ]

    def is_only_time(self, name: str, axis: int) -> bool:
        """Whether an axis is only time."""
        main = self.analysis.axes.main((self.analysis.axes_of[name] or ())[axis])
        return len(main) == 1 and main <= self.only_time

    def is_time_first(self, name: str, axis: int) -> bool:
        """Whether an axis has all elements of a step before those of the next step."""
        axes = self.analysis.axes
        factors = axes.flat((self.analysis.axes_of[name] or ())[axis])
        large = [item for item in factors if axes.find(item) in self.time or axes.sizes_of(item)[0] != 1]
        return axes.find(large[0]) in self.time

    def sizes_in(self, name: str) -> tuple[Size, ...] | None:
        """Return the sizes as in the analysis; None if they depend on the step count in an unknown way."""
        sizes = self.analysis.sizes_in(name)
        parts = {part for size in sizes or () for part in parts_of(size)}
        sources = {source for part in parts for source in self.analysis.derived_sizes.get(part, ())}
        is_along = any(self.goes_along(self.analysis.measured_sizes[source].axis) for source in sources)
        return None if is_along else sizes

    def steps_in(self, sizes: tuple[Size, ...] | None) -> list[list[str]]:
        """Return the values that each integer measures, for integers that depend on the number of steps."""
        measured = self.analysis.measured_sizes
        known = [[measured[part] for part in parts_of(size) if part in measured] for size in sizes or ()]
        found = [[size.value for size in parts if self.goes_along(size.axis)] for parts in known]
        return [item for item in found if item]


class PlannerPart:
    """Base of the planner's parts for some operators."""

    def __init__(self, context: PlanContext) -> None:
        self.context = context
        self.analysis = context.analysis
        self.flow = context.analysis.flow


def later_words(steps: int) -> str:
    """Return the reason for an operator with look-ahead."""
    return f"its output comes {count(steps, 'step')} later, which delay=True (--delay) allows"
