"""Pickle and copy objects with slots and subclasses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def state_of(instance: object, without: Collection[str] = (), **instead: object) -> Any:
    """Return the result of `__getstate__`: an instance's attributes, including those in slots."""
    state = object.__getstate__(instance)
    variables, slots = state if isinstance(state, tuple) else (state, None)
    variables = {name: value for name, value in (variables or {}).items() if name not in without} | instead
    return (variables, slots) if slots else variables or None
