"""A reason why an operator cannot run in chunks."""

from __future__ import annotations

from dataclasses import dataclass

from onegru.dataflow.operator import Op
from onegru.dataflow.table import Hazard


@dataclass(frozen=True, slots=True)
class Finding:
    """An operator along the time axis that a stream of chunks does not repeat."""

    # "reverses" time; "remembers" steps that no state carries; "mixes" all steps of a run; "unknown"
    hazard: Hazard
    operator: str  # its kind
    name: str  # its name
    message: str  # what it does, behind its name

    @property
    def subject(self) -> tuple[str, str]:
        """The operator and the name that the finding is about."""
        return self.operator, self.name

    def __str__(self) -> str:
        return f"{self.operator} node {self.name!r} {self.message}"


def finding_of(op: Op, hazard: Hazard, message: str) -> Finding:
    """A finding about an operator."""
    name = op.name or next(filter(None, op.outputs), "")
    return Finding(hazard, op.label, name, message)
