"""The results of a verification, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onegru.drawing.card import Card, CardReport

Status = Literal["agrees", "differs", "refuses", "failed", "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class OutputResult:
    """How one output of a model compares.

    Attributes:
        output: its name.
        agrees: whether every element lies within the tolerance.
        tolerance: the most that an element may be off, relative to max(1, its absolute value).
        max_abs: the largest absolute difference; None if the two cannot be compared element by element.
        max_ulp: the largest difference in units in the last place.
        where: the first index beyond the tolerance, in the order of the array; None if there is none.
        expected: the element expected there.
        got: the element found there.
        reason: why the two cannot be compared element by element; empty if they can.
        compared: how many elements were compared: those that are finite where they are expected.
        left_out: number of values that were not compared, because they are not finite.
    """

    output: str
    agrees: bool
    tolerance: float
    max_abs: float | None = None
    max_ulp: int | None = None
    where: tuple[int, ...] | None = None
    expected: Any = None
    got: Any = None
    reason: str = ""
    compared: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """The first GRU node, in running order, whose result differs on equal inputs.

    Attributes:
        node: its name.
        operator: the operator and its version, such as "GRU-14".
        output: the output that differs: the operator's name for it.
        where: the index of the differing element that is computed first; None if shapes or types differ.
        step: its time step; None if the output has no such axis.
        row: its row of the batch.
        direction: its direction, 0 or 1.
        unit: its hidden unit.
        expected: the element expected there.
        got: the element found there.
        max_abs: the largest absolute difference of that output.
        reason: what differs, if elements cannot be compared.
        diagnosis: the mistake that explains this result, as text that follows "as if"; None if unknown.
        known: known issues of this runtime with such a node, as in `onegru inspect`.
    """

    node: str
    operator: str
    output: str
    where: tuple[int, ...] | None = None
    step: int | None = None
    row: int | None = None
    direction: int | None = None
    unit: int | None = None
    expected: float | None = None
    got: float | None = None
    max_abs: float | None = None
    reason: str = ""
    diagnosis: str | None = None
    known: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuntimeResult:
    """The result of one runtime on a model.

    Attributes:
        runtime: its name.
        version: its version.
        status: whether it agrees, or why there is no result; "failed" for an error in onegru.
        reason: details of a missing result, or of a difference beyond `fault`.
        outputs: how each output compares; empty without a result.
        fault: the GRU node at fault; None if none is located, or nothing differs.
        known: if it refuses, the GRU nodes that it is known to refuse, and why.
        precision: the precision set, "f32" or "default"; empty if it has no such option.
    """

    runtime: str
    version: str
    status: Status
    reason: str = ""
    outputs: tuple[OutputResult, ...] = ()
    fault: Fault | None = None
    known: tuple[str, ...] = ()
    precision: str = ""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """How one GRU of a model compares with that of a reference.

    Attributes:
        node: its name in the model.
        reference: its name in the reference.
        agrees: whether the two compute the same.
        max_abs: the largest absolute difference on the inputs tried; None if they cannot be compared element
            by element.
        differences: descriptions of the differences.
        diagnosis: the mistake that turns the reference's GRU into the model's, as text that follows "as if";
            None if none is found.
    """

    node: str
    reference: str
    agrees: bool
    max_abs: float | None = None
    differences: tuple[str, ...] = ()
    diagnosis: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """How a model compares with a reference that should be the same function.

    Attributes:
        reference: the file.
        agrees: whether all that could be compared agrees.
        outputs: how each output compares; empty if the two have other inputs or outputs.
        layers: how each GRU compares, in running order.
        first: the index in `layers` of the first that differs; None if none does.
        notes: what could not be compared, and why.
    """

    reference: str
    agrees: bool
    outputs: tuple[OutputResult, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    first: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification(CardReport):
    """The result of a verification.

    Attributes:
        model: the file.
        runtimes: the result of each runtime: onegru's native engine first, then the others.
        absent: the runtimes that are not installed.
        against: how it compares with a reference; None if there is none.
        steps: how many steps the longest row of a GRU node took; None of a model without.
        input_dependent: how many numbers of the outputs change as inputs are drawn again, as the others say
            little; None of inputs that were given.
    """

    model: str
    runtimes: tuple[RuntimeResult, ...]
    absent: tuple[str, ...] = ()
    against: ReferenceComparison | None = None
    steps: int | None = None
    input_dependent: int | None = None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs. A runtime that refuses the model, or crashes on it, does not count."""
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


def _largest(outputs: Sequence[OutputResult]) -> str:
    """The largest absolute difference of all outputs; empty where none is compared."""
    found = [item.max_abs for item in outputs if item.max_abs is not None]
    return f"{max(found):.3g}" if found else ""


Verification.__module__ = "onegru.reports"
