"""What a search through a model finds."""

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

#: Called with the number of operators looked at and of all.
Progress = Callable[[int, int], None]


_log = logging.getLogger("onegru")


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
        outputs: how many numbers the numeric check compared in each of its runs.
        input_dependent: how many of these changed with its inputs.
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
    outputs: int
    input_dependent: int


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A recurrence that was not fused.

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
        source: the model, for messages.
        dtype: the element type of what has none that is known.
        progress: called now and then.
        total: how many operators there are.
        algebra: the atoms.
        fused: the recurrences that were replaced.
        near_misses: those that were not fused.
        allows: why the format has no node for a cell; empty if it has one.
        refuted: how many matches numbers have refused, each of which the algebra should have refused.
        has_lengths: whether those who run the file honour the node's lengths.
        opset: of ONNX's operators.
        writes: the kinds of operators that the file may be given beside nodes; None for all.
        only_layers: whether cells are only those that the file has as layers, and nothing is computed
            otherwise than by them: results are the same to the bit.
    """

    names: set[str]
    source: str = "the model"
    dtype: str = "float32"
    progress: Progress | None = None
    total: int = 0
    seen: int = 0
    algebra: Algebra = field(default_factory=Algebra)
    fused: list[Fused] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    refuted: int = 0
    has_lengths: bool = True
    opset: int = EVERY_OPSET
    writes: Collection[str] | None = None
    only_layers: bool = False
    allows: Callable[[Cell], str] = lambda cell: ""

    @contextmanager
    def guarded(self, place: str) -> Iterator[None]:
        """Leave a place as it is where its search fails, so that the rest of the model is searched.

        A near miss is noted. Any other error is a bug in onegru, unless the file contradicts itself. It is
        logged with its traceback, because it says nothing about the user's GRU.
        """
        try:
            yield
        except (MissError, UnknownOpError) as error:
            self.near_misses.append(
                NearMiss(place, str(error) or "onegru has no rule for one of its operators")
            )
        except BROKEN:
            _log.exception(
                "%s: the search for decomposed GRUs failed at %r, which is left as it is. "
                "Unless the file is broken, this is a bug in onegru: please report it.",
                self.source,
                place,
            )

    def count_visited(self) -> None:
        """Count an operator."""
        self.seen += 1
        if self.progress is not None and self.seen % 500 == 0:
            self.progress(min(self.seen, self.total), self.total)
