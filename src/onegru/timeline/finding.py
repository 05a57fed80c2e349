"""A reason why an operator cannot run in chunks."""

from __future__ import annotations

from dataclasses import dataclass

from onegru.dataflow.operator import Op
from onegru.dataflow.table import Hazard


@dataclass(frozen=True, slots=True)
class Finding:
    """Operator along the time axis with other results in chunks."""

    hazard: Hazard  # the kind of effect
    operator: str  # its kind
    name: str  # its name
    message: str  # its effect as text; follows its name

    @property
    def subject(self) -> tuple[str, str]:
        """Return the kind and the name of the operator."""
        return self.operator, self.name

    def __str__(self) -> str:
        return f"{self.operator} node {self.name!r} {self.message}"


def finding_of(op: Op, hazard: Hazard, message: str) -> Finding:
    """Return a finding about an operator."""
    name = op.name or next(filter(None, op.outputs), "")
    return Finding(hazard, op.label, name, message)
