"""The native core: its version, and which SIMD target it uses."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from onegru import _native
from onegru.errors import SpecError

__all__ = ["Targets", "targets"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The SIMD targets of the native core.

    Attributes:
        available: those that were compiled and that this processor runs, best first.
        chosen: the one in use: the best, or what the environment variable ONEGRU_TARGET names.
    """

    available: tuple[str, ...]
    chosen: str


def targets() -> Targets:
    """Which SIMD targets the native core has here, and which one it uses."""
    return Targets(tuple(_native.available_targets()), _native.chosen_target())


def _choose() -> None:
    """Honour ONEGRU_TARGET, once, when onegru is imported."""
    name = os.environ.get("ONEGRU_TARGET")
    if not name:
        return
    if name not in _native.available_targets():
        must = ", ".join(_native.available_targets())
        raise SpecError(f"ONEGRU_TARGET: {name!r}; must be one of {must}, which this processor runs")
    _native.select_target(name)


try:
    _choose()
except SpecError as error:
    # The command `onegru` gets here before any code of its own runs, so what it would say is said here.
    if [Path(program).name for program in sys.argv[:1]] != ["onegru"]:
        raise
    print(f"onegru: {error}", file=sys.stderr)
    sys.exit(2)
