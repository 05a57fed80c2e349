"""The plan for streaming a model: its states, and the step numbers of its values.

After N steps of input, a value of the streaming model has N - delay steps; the others follow later. The delay
is negative if an operator adds steps before the first step. A whole run has `left_pad` more leading steps,
which are zeros that an operator adds. The streaming model stores them only in the cache of the convolution
that reads them first. A whole run also has `right_pad` more trailing steps: a convolution reads zeros after
the last step of its input. The number is negative if the convolution removes steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onegru.dataflow.operator import Op
from onegru.timeline.finding import Finding


class Cache(NamedTuple):
    """The last steps of a value, in front of those of a chunk."""

    op: Op  # what takes them; the padding along time of a pooling or a convolution goes
    port: int  # the input of the operator
    axis: int  # the axis of the input that is time
    first: int  # how many there are before the first chunk
    steps: int  # how many there are later
    # whether each step only waits for so many later ones, as opposed to being read with them
    waits: bool = False
    fill: float = 0.0  # the number that those before the first chunk are
    # whether each chunk gives as many steps as an input of the model has, and keeps the others
    is_paced: bool = False


class FirstSteps(NamedTuple):
    """The steps of a chunk that are among the first ones of the run."""

    op: Op  # a Slice that takes them, or a Pad that repeats the first one before the first step
    axis: int  # the axis of its first input that is time
    steps: int  # how many a run has
    copies: int = 0  # how often a Pad repeats them; 0 for a Slice
    after: int = 0  # how many caches of the operator come before them, as those for zeros in front of the run


@dataclass
class StreamingPlan:
    """What to change."""

    inputs: dict[str, int] = field(default_factory=dict)  # the time axis of each input that has one
    outputs: dict[str, int] = field(default_factory=dict)  # as above
    # the outputs that come later than in a whole run, states included, and by how many steps
    delays: dict[str, int] = field(default_factory=dict)
    # the outputs without time, which are those of the newest step
    newest: list[str] = field(default_factory=list)
    recurrent: list[Op] = field(default_factory=list)  # operators whose states become inputs and outputs
    # recurrences that take lengths, which are all steps of the axis that they go along
    full_length: list[Op] = field(default_factory=list)
    # operators with steps as rows, and the inputs where they take a constant of zeros
    zero_states: list[tuple[Op, int]] = field(default_factory=list)
    firsts: list[FirstSteps] = field(default_factory=list)  # the operators that take the first steps of a run
    caches: list[Cache] = field(default_factory=list)  # what is put in front of chunks
    # outputs whose steps wait for later ones, as a shift gives them, and for how many
    held: dict[str, int] = field(default_factory=dict)
    # operators that no longer pad or cut time, along these axes of their first input
    unpadded: list[tuple[Op, int]] = field(default_factory=list)
    # Slices that still cut steps off the front, behind a cache: how many, by operator and axis
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    # Gathers of all steps, each by its number, with the axis of the indices that numbers them
    whole: list[tuple[Op, int]] = field(default_factory=list)
    # Gathers of the last step by its index, which is known where the number of steps is fixed
    latest: list[Op] = field(default_factory=list)
    # Reshapes whose sizes have a fixed number of steps, at these axes
    reshaped: list[tuple[Op, int]] = field(default_factory=list)
    # sums and products from the first step on, which need that of the steps before, and the axis
    accumulated: list[tuple[Op, int]] = field(default_factory=list)
    # Ranges that number steps, and the number between two
    numbered: list[tuple[Op, int]] = field(default_factory=list)
    # Resizes and Expands that keep time, to a number of steps that is written down: where among their sizes,
    # and the axis
    resized: list[tuple[Op, int, int]] = field(default_factory=list)
    # inputs of operators that are the same for each of a fixed number of steps, and the axis
    repeated: list[tuple[Op, int, int]] = field(default_factory=list)
    refusals: list[Finding] = field(default_factory=list)  # the operators that cannot be streamed, and why
    # of these, those that steps which a model carries on its own do not make good
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
