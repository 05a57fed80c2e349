"""Results and state of a search for decomposed GRUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from onegru.core.errors import BROKEN
from onegru.dataflow.operator import EVERY_OPSET
from onegru.dataflow.table import UnknownOpError
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.cell import Cell, MissError

#: Called with the number of examined operators and the total.
Progress = Callable[[int, int], None]

_log = logging.getLogger("onegru")


@dataclass(frozen=True, slots=True)
class Fused:
    """A recurrence that became a GRU node."""

    place: str  # the output of its last step, or the name of its loop
    form: str  # "cell", "chain" or "loop"
    steps: int | None  # the number of steps; None for the number of steps of its input
    nodes: int  # the number of replaced nodes
    operator: str  # the operator of the new node
    hidden_size: int  # the hidden size, H
    input_size: int  # the input size, I
    direction: str  # "forward" or "reverse"
    linear_before_reset: bool  # whether the reset gate is applied after the recurrent matmul
    activations: tuple[str, str]  # f and g, as text
    masked: bool  # whether steps can be masked
    outputs: int  # the number of values that the numeric check compared in each run
    input_dependent: int  # the number of these values that depend on the inputs


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A recurrence that was not fused."""

    place: str  # its output, or the name of its loop
    reason: str  # the part that does not fit


@dataclass(eq=False, slots=True)
class Search:
    """The search through a model."""

    names: set[str]  # all names in use
    source: str = "the model"  # the model, for messages
    dtype: str = "float32"  # the element type of values with unknown type
    progress: Progress | None = None  # a function that is called from time to time; None for no calls
    total: int = 0  # the number of operators
    visited: int = 0  # how many of them the search has visited
    algebra: Algebra = field(default_factory=Algebra)  # the atoms
    fused: list[Fused] = field(default_factory=list)  # the recurrences that were replaced
    near_misses: list[NearMiss] = field(default_factory=list)  # those that were not fused
    refuted: int = 0  # matches that the numeric check rejected; the algebra should have rejected each of them
    allows_lengths: bool = True  # whether all runtimes of the file honour the node's lengths
    opset: int = EVERY_OPSET  # the ONNX opset
    # the kinds of operators, in addition to nodes, that can be written to the file; None for all
    writes: Collection[str] | None = None
    # whether only the file's own cell layers become cells, without other changes, so that results are bitwise
    # identical
    only_layers: bool = False
    # returns the reason why the format has no node for a cell; "" if it has one
    why_not: Callable[[Cell], str] = lambda cell: ""

    @contextmanager
    def guarded(self, location: str) -> Iterator[None]:
        """Continue the search after an error at one location, which stays unchanged."""
        # A near miss is recorded. Any other error is a bug in onegru, unless the file contradicts itself. It
        # is logged with its traceback, because it says nothing about the user's GRU.
        try:
            yield
        except (MissError, UnknownOpError) as error:
            self.near_misses.append(
                NearMiss(location, str(error) or "onegru has no rule for one of its operators")
            )
        except BROKEN:
            _log.exception(
                "%s: the search for decomposed GRUs failed at %r, which is left as it is. "
                "Unless the file is broken, this is a bug in onegru: please report it.",
                self.source,
                location,
            )

    def count_visited(self) -> None:
        """Count an examined operator, and report progress."""
        self.visited += 1
        if self.progress is not None and self.visited % 500 == 0:
            self.progress(min(self.visited, self.total), self.total)
