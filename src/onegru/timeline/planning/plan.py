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
    """Last steps of a value, to prepend to those of a chunk."""

    op: Op  # the reader; a pooling or a convolution loses its padding along time
    port: int  # the input of the operator
    axis: int  # the time axis of the input
    initial_steps: int  # number of steps before the first chunk
    steps: int  # number of steps later
    waits: bool = False  # whether each step only waits that many steps, without being read with them
    fill: float = 0.0  # the value of the steps before the first chunk
    is_paced: bool = False  # whether each chunk returns as many steps as an input, and stores the others


class FirstSteps(NamedTuple):
    """Steps of a chunk that belong to the first steps of the run."""

    op: Op  # a Slice that selects them, or a Pad that repeats the first one before the first step
    axis: int  # the time axis of its first input
    steps: int  # number of such steps in a run
    copies: int = 0  # number of repetitions by a Pad; 0 for a Slice
    earlier_caches: int = 0  # number of the operator's caches before them, such as leading zeros


@dataclass
class StreamingPlan:
    """Changes to make."""

    input_axes: dict[str, int] = field(default_factory=dict)  # the time axis of each input with one
    output_axes: dict[str, int] = field(default_factory=dict)  # the same for outputs
    delays: dict[str, int] = field(default_factory=dict)  # delays of outputs, states included, in steps
    newest: list[str] = field(default_factory=list)  # outputs of the newest step, without a time axis
    recurrent: list[Op] = field(default_factory=list)  # operators whose states become inputs and outputs
    full_length: list[Op] = field(default_factory=list)  # recurrences whose lengths are all steps
    # operators with steps as rows, and their inputs that become constant zeros
    zero_states: list[tuple[Op, int]] = field(default_factory=list)
    first_steps: list[FirstSteps] = field(default_factory=list)  # the readers of a run's first steps
    caches: list[Cache] = field(default_factory=list)  # steps to prepend to chunks
    waiting: dict[str, int] = field(default_factory=dict)  # steps that outputs wait, as after a shift
    # operators that lose their padding or cut along time, along these axes of their first input
    removed_padding: list[tuple[Op, int]] = field(default_factory=list)
    # Slices that still cut leading steps, after a cache: the number, by operator and axis
    cut_steps: dict[tuple[int, int], int] = field(default_factory=dict)
    whole: list[tuple[Op, int]] = field(default_factory=list)  # Gathers of all steps, and their indices' axis
    latest: list[Op] = field(default_factory=list)  # Gathers of the last step of a fixed number, by its index
    # Reshapes whose sizes have a fixed number of steps, at these axes
    reshaped: list[tuple[Op, int]] = field(default_factory=list)
    # sums and products from the first step on, which need the earlier result, and their axis
    accumulated: list[tuple[Op, int]] = field(default_factory=list)
    numbered: list[tuple[Op, int]] = field(default_factory=list)  # Ranges of step numbers, and the increment
    # Resizes and Expands that keep time, to a constant number of steps: its index in their sizes, its axis
    resized: list[tuple[Op, int, int]] = field(default_factory=list)
    # inputs of operators that are equal for each of a fixed number of steps, and their axis
    repeated: list[tuple[Op, int, int]] = field(default_factory=list)
    refusals: list[Finding] = field(default_factory=list)  # operators that cannot be streamed
    lasting: list[Finding] = field(default_factory=list)  # those that remain if the model carries its steps

    def add(self, other: StreamingPlan) -> None:
        """Add the changes of an operator."""
        for own, more in zip(self._lists(), other._lists(), strict=True):
            own.extend(more)
        self.cut_steps |= other.cut_steps
        for name, steps in other.delays.items():
            self.delays[name] = max(steps, self.delays.get(name, 0))

    def refuse(self, finding: Finding) -> None:
        """Reject the model, regardless of the states that it carries."""
        self.refusals.append(finding)
        self.lasting.append(finding)

    def _lists(self) -> Iterable[list[Any]]:
        return (value for value in vars(self).values() if isinstance(value, list))


class TimeExtent(NamedTuple):
    """Steps of a value; see the module docstring."""

    delay: int = 0
    left_pad: int = 0
    right_pad: int = 0

    @property
    def extra(self) -> int:
        """Return the additional steps of a whole run, compared with the input."""
        return self.left_pad + self.right_pad - self.delay

    @property
    def steps_to_wait(self) -> int:
        """Return the number of steps that may wait as leading zeros; unless delayed, only cut-off ones."""
        return self.left_pad if self.delay > 0 else min(self.left_pad, -self.right_pad)

    def after_waiting(self, steps: int) -> TimeExtent:
        """Return the extent after a number of zero steps, which begin the first chunk."""
        return TimeExtent(self.delay, self.left_pad - steps, self.right_pad + steps)
