"""How runtimes did on the cases of the kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from onegru.core.dtypes import Array

Status = Literal["passes", "differs", "refuses", "crashes"]

#: What may come of a case, the best first.
STATUSES: tuple[Status, ...] = ("passes", "differs", "refuses", "crashes")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case in a runtime.

    Attributes:
        status: passes, differs, refuses (an error of the runtime's own) or crashes (a signal, an exit, a
            hang, no memory left).
        reason: why, in one line; empty if it passes.
        output: where it differs, the output that is off by the most times its tolerance.
        where: the index of that number.
        expected: what it should be.
        got: what it is.
        tolerance: how far it may be off.
    """

    status: Status
    reason: str = ""
    output: str | None = None
    where: tuple[int, ...] | None = None
    expected: float | None = None
    got: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class RuntimeResults:
    """What came of all cases in one runtime.

    Attributes:
        runtime: its name.
        version: its version.
        options: what it was asked for beside that, such as its precision, provider, engine or SIMD target.
        outcomes: by the case's name, without cases that are not this runtime's, such as an IR for ONNX
            Runtime.
        outputs: what it gave in the cases where it differs, by the case's name and the output's.
    """

    runtime: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name with its version and options."""
        return " ".join([self.runtime, self.version, *self.options.values()])
