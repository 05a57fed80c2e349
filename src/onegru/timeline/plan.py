"""What makes a model of whole sequences run in chunks of time: the states that it needs, and where they go.

After N steps of input, a value of the streaming model has N - delay steps; the others are still to come. The
delay is negative where the first chunk begins with steps that an operator has put in front. A
whole run has `left_pad` more in front of them, zeros that an operator puts there: the streaming model has
them only in the cache of the convolution that reads them first. And it has `right_pad` more behind them,
where a convolution reads zeros behind the last step of its input, or less, if it cuts some off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onegru.dataflow.operator import Op
from onegru.timeline.finding import Finding


class Cache(NamedTuple):
    """The last steps of a value, in front of those of a chunk.

    Attributes:
        op: what takes them; the padding along time of a pooling or a convolution goes.
        place: the input of the operator.
        axis: the axis of the input that is time.
        first: how many there are before the first chunk.
        steps: how many there are later.
        waits: whether each step only waits for so many later ones, as opposed to being read with them.
        fill: the number that those before the first chunk are.
        is_paced: whether each chunk gives as many steps as an input of the model has, and keeps the others.
    """

    op: Op
    place: int
    axis: int
    first: int
    steps: int
    waits: bool = False
    fill: float = 0.0
    is_paced: bool = False


class FirstSteps(NamedTuple):
    """The steps of a chunk that are among the first ones of the run.

    Attributes:
        op: a Slice that takes them, or a Pad that repeats the first one in front of time.
        axis: the axis of its first input that is time.
        steps: how many a run has.
        copies: how often a Pad repeats them; 0 for a Slice.
        after: how many caches of the operator come before them, as those for zeros in front of the run.
    """

    op: Op
    axis: int
    steps: int
    copies: int = 0
    after: int = 0


@dataclass
class StreamingPlan:
    """What to change.

    Attributes:
        inputs: the axis of time of each input that has one.
        outputs: likewise.
        delays: the outputs that come later than in a whole run, states included, and by how many steps.
        newest: the outputs without time, which are those of the newest step.
        recurrent: operators whose states become inputs and outputs.
        full_length: recurrences that take lengths, which are all steps of the axis that they go along.
        zero_states: operators with steps as rows, and the inputs where they take a constant of zeros.
        firsts: the operators that take the first steps of a run.
        caches: what is put in front of chunks.
        held: outputs whose steps wait for later ones, as a shift gives them, and for how many.
        unpadded: operators that no longer pad or cut time, along these axes of their first input.
        dropped: Slices that still cut steps off the front, behind a cache: how many, by operator and axis.
        whole: Gathers of all steps, each by its number, with the axis of the indices that numbers them.
        latest: Gathers of the last step by its place, which is known where the number of steps is fixed.
        reshaped: Reshapes whose sizes have a fixed number of steps, at these places.
        summed: sums from the first step on, which need that of the steps before, and the axis.
        numbered: Ranges that number steps, and the number between two.
        resized: Resizes and Expands that keep time, to a number of steps that is written down: where among
            their sizes, and the axis.
        repeated: inputs of operators that are the same for each of a fixed number of steps, and the axis.
        refusals: the operators that cannot be streamed, and why.
        lasting: of these, those that steps which a model carries by itself do not make good.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)
    newest: list[str] = field(default_factory=list)
    recurrent: list[Op] = field(default_factory=list)
    full_length: list[Op] = field(default_factory=list)
    zero_states: list[tuple[Op, int]] = field(default_factory=list)
    firsts: list[FirstSteps] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    unpadded: list[tuple[Op, int]] = field(default_factory=list)
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    whole: list[tuple[Op, int]] = field(default_factory=list)
    latest: list[Op] = field(default_factory=list)
    reshaped: list[tuple[Op, int]] = field(default_factory=list)
    summed: list[tuple[Op, int]] = field(default_factory=list)
    numbered: list[tuple[Op, int]] = field(default_factory=list)
    resized: list[tuple[Op, int, int]] = field(default_factory=list)
    repeated: list[tuple[Op, int, int]] = field(default_factory=list)
    refusals: list[Finding] = field(default_factory=list)
    lasting: list[Finding] = field(default_factory=list)

    def add(self, other: StreamingPlan) -> None:
        """Take over the changes of an operator."""
        for own, more in zip(self._lists(), other._lists(), strict=True):
            own.extend(more)
        self.dropped |= other.dropped
        for name, steps in other.delays.items():
            self.delays[name] = max(steps, self.delays.get(name, 0))

    def refuse(self, finding: Finding) -> None:
        """Refuse the model, whatever it carries."""
        self.refusals.append(finding)
        self.lasting.append(finding)

    def _lists(self) -> Iterable[list[Any]]:
        return (value for value in vars(self).values() if isinstance(value, list))


class TimeExtent(NamedTuple):
    """The steps of a value: see the module."""

    delay: int = 0
    left_pad: int = 0
    right_pad: int = 0

    @property
    def extra(self) -> int:
        """How many steps more than the input it has in a whole run."""
        return self.left_pad + self.right_pad - self.delay

    @property
    def to_hold(self) -> int:
        """How many steps may wait as zeros came in front: all if so many are late, else those cut off."""
        return self.left_pad if self.delay > 0 else min(self.left_pad, -self.right_pad)

    def held(self, steps: int) -> TimeExtent:
        """The same after so many steps of zeros, which are the first ones of a chunk."""
        return TimeExtent(self.delay, self.left_pad - steps, self.right_pad + steps)
