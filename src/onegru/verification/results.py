"""What a verification finds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["agrees", "differs", "refuses", "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class OutputResult:
    """How one output of a model compares.

    Attributes:
        output: its name.
        agrees: whether every element lies within the tolerance.
        tolerance: the most that an element may be off, relative to max(1, its absolute value).
        max_abs: the largest absolute difference; None where the two cannot be compared so.
        max_ulp: the largest distance in units of the last place, likewise.
        where: the first index beyond the tolerance, in the order of the array; None if there is none.
        expected: what should be there.
        got: what is there.
        reason: why the two cannot be compared element by element; empty if they can.
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


@dataclass(frozen=True, slots=True)
class Fault:
    """The first GRU node, in running order, that gives another result on equal inputs.

    Attributes:
        node: its name.
        operator: the operator and its version, such as "GRU-14".
        output: the output that differs: the operator's name for it.
        where: the index of the element that differs and is computed first; None if only shapes can be told.
        step: its time step; None where the output has no such axis.
        row: its row of the batch, likewise.
        direction: its direction, 0 or 1, likewise.
        unit: its hidden unit, likewise.
        expected: what should be there.
        got: what is there.
        max_abs: the largest absolute difference of that output.
        reason: what differs, where elements cannot be compared.
        diagnosis: the mistake that would give this result, in words that follow "as if"; None if none is
            found.
        known: what is known of this runtime on such a node, from the table of `onegru inspect`.
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
    """What one runtime makes of a model.

    Attributes:
        runtime: its name.
        version: its version.
        status: whether it agrees; what became of the run otherwise.
        reason: why there is no result, or what is known of the difference beyond `fault`.
        outputs: how each output compares; empty where there is no result.
        fault: the GRU node at fault; None where there is none, or no difference.
        known: which GRU nodes the runtime is known to refuse, and why, where it refuses.
        precision: what it was told to compute in: "f32" or "default"; empty where it has no choice.
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
        max_abs: the largest absolute difference on the inputs that were tried; None where they cannot be
            compared so.
        differences: what differs about the two, in words.
        diagnosis: the mistake that would make the reference's GRU into the model's, in words that follow
            "as if"; None if none is found.
    """

    node: str
    reference: str
    agrees: bool
    max_abs: float | None = None
    differences: tuple[str, ...] = ()
    diagnosis: str | None = None


@dataclass(frozen=True, slots=True)
class Against:
    """How a model compares with a reference that should be the same function.

    Attributes:
        reference: the file.
        agrees: whether all that could be compared agrees.
        outputs: how each output compares; empty where the two take or give other things.
        layers: how each GRU compares, in running order.
        first: the place in `layers` of the first that differs; None if none does.
        notes: what could not be compared, and why.
        runtimes: what the checkpoint's own framework makes of it, against onegru's reading of it.
    """

    reference: str
    agrees: bool
    outputs: tuple[OutputResult, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    first: int | None = None
    notes: tuple[str, ...] = ()
    runtimes: tuple[RuntimeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification found.

    Attributes:
        model: the file.
        runtimes: what each runtime makes of it: onegru's native engine first, then the others.
        absent: the runtimes that are not installed.
        against: how it compares with a reference; None if there is none.
    """

    model: str
    runtimes: tuple[RuntimeResult, ...]
    absent: tuple[str, ...] = ()
    against: Against | None = None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs. A runtime that refuses the model, or crashes on it, says nothing."""
        differs = any(item.status == "differs" for item in self.runtimes)
        return not differs and (self.against is None or self.against.agrees)
