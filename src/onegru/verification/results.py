"""The results of a verification, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from onegru.core.compare import Comparison, merged
from onegru.drawing.card import Card, CardReport

Status = Literal["agrees", "differs", "refuses", "failed", "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class Fault:
    """The first GRU node, in execution order, whose result differs on equal inputs."""

    node: str  # its name
    operator: str  # the operator and its version, such as "GRU-14"
    output: str  # the operator's name of the output that differs
    # the index of the differing element that is computed first; None if shapes or types differ
    where: tuple[int, ...] | None = None
    step: int | None = None  # its time step; None if the output has no such axis
    row: int | None = None  # its row of the batch
    direction: int | None = None  # its direction, 0 or 1
    unit: int | None = None  # its hidden unit
    expected: float | None = None  # the element expected there
    got: float | None = None  # the element found there
    max_abs: float | None = None  # the largest absolute difference of that output
    reason: str = ""  # what differs, if elements cannot be compared
    # the mistake that explains this result, as text that follows "as if"; None if unknown
    diagnosis: str | None = None
    known: tuple[str, ...] = ()  # known issues of this runtime with such a node, as in `onegru inspect`


@dataclass(frozen=True, slots=True)
class RuntimeResult:
    """The result of one runtime on a model."""

    runtime: str  # its name
    version: str  # its version
    status: Status  # whether it agrees, or why there is no result; "failed" for an error in onegru
    reason: str = ""  # details of a missing result, or of a difference beyond `fault`
    outputs: tuple[Comparison, ...] = ()  # how each output compares; empty without a result
    fault: Fault | None = None  # the GRU node at fault; None if none is located, or nothing differs
    known: tuple[str, ...] = ()  # if it refuses the model: the GRU nodes that it is known to refuse, and why
    precision: str = ""  # the requested precision, "f32" or "default"; empty if there is no such option


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Result of comparing one GRU of a model with a GRU of a reference."""

    node: str  # its name in the model
    reference: str  # its name in the reference
    agrees: bool  # whether the two compute the same function
    # the largest absolute difference on the inputs tried; None if they cannot be compared element by element
    max_abs: float | None = None
    differences: tuple[str, ...] = ()  # descriptions of the differences
    # the mistake that turns the reference's GRU into the model's, as text that follows "as if"; None if
    # unknown
    diagnosis: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """Result of comparing a model with a reference that should be the same function."""

    reference: str  # the file
    agrees: bool  # whether everything that could be compared agrees
    # how each output compares; empty if the two have different inputs or outputs
    outputs: tuple[Comparison, ...] = ()
    layers: tuple[LayerResult, ...] = ()  # how each GRU compares, in execution order
    first: int | None = None  # the index in `layers` of the first GRU that differs; None if none differs
    notes: tuple[str, ...] = ()  # what could not be compared, and why


@dataclass(frozen=True, slots=True)
class Verification(CardReport):
    """Result of `verify`.

    Attributes:
        model: the file.
        runtimes: the result of each runtime: onegru's native engine first, then the others.
        absent: the runtimes that are not installed.
        against: the comparison with a reference; None without a reference.
        steps: how many steps the longest row of a GRU node took; None for a model without GRU nodes.
        input_dependent: the number of output values that change with other random inputs. A check of the
            other values verifies little. None for given inputs.
    """

    model: str
    runtimes: tuple[RuntimeResult, ...]
    absent: tuple[str, ...] = ()
    against: ReferenceComparison | None = None
    steps: int | None = None
    input_dependent: int | None = None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs. A runtime that rejects the model or crashes does not count."""
        differs = any(item.status == "differs" for item in self.runtimes)
        return not differs and (self.against is None or self.against.agrees)

    def __repr__(self) -> str:
        found = [f"{item.runtime} {item.status}" for item in self.runtimes]
        if self.against is not None:
            found.append(f"{self.against.reference!r} {'agrees' if self.against.agrees else 'differs'}")
        return f"Verification({self.model!r}, {', '.join(found)})"

    def _card(self) -> Card:
        faults = ["" if item.fault is None else item.fault.node for item in self.runtimes]
        rows = [
            (item.runtime, item.version, item.status, _largest(item.outputs), fault, item.reason)
            for item, fault in zip(self.runtimes, faults, strict=True)
        ]
        facts = [("agrees", "yes" if self.agrees else "no")]
        if self.against is not None:
            facts.append(("against", self.against.reference))
        if self.absent:
            facts.append(("not installed", ", ".join(self.absent)))
        headings = ("runtime", "version", "result", "max abs", "first node that differs", "why")
        return f"Verification · {self.model}", facts, headings, rows


def _largest(outputs: Sequence[Comparison]) -> str:
    """Return the largest absolute difference of all outputs; empty if no output is compared."""
    found = [item for item in outputs if item.compared]
    return f"{merged(found).max_abs:.3g}" if found else ""


Verification.__module__ = "onegru.reports"
