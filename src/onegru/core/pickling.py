"""What an object keeps when it is pickled or copied: what it is made of, and what subclasses add."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def state_of(instance: object, without: Collection[str] = (), **instead: object) -> Any:
    """What a `__getstate__` gives: an instance's attributes, those in slots included.

    Args:
        instance: whose attributes they are.
        without: attributes that are made anew with the instance.
        instead: attributes that a copy has in place of the instance's.

    Returns:
        what pickles and copies restore by themselves; None if there is nothing.
    """
    state = object.__getstate__(instance)
    variables, slots = state if isinstance(state, tuple) else (state, None)
    variables = {name: value for name, value in (variables or {}).items() if name not in without} | instead
    return (variables, slots) if slots else variables or None
