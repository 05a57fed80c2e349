"""Create new names that differ from existing names."""

from __future__ import annotations


def fresh_name(wanted: str, used: set[str]) -> str:
    """A name that is not in use, to which it is added: as wanted, or with a number after it."""
    name, number = wanted, 1
    while name in used or not name:
        number += 1
        name = f"{wanted}_{number}"
    used.add(name)
    return name
