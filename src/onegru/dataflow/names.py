"""Create new names that differ from existing names."""

from __future__ import annotations


def fresh_name(wanted: str, used: set[str]) -> str:
    """Return the wanted name, with a number appended if it is in use; add it to `used`."""
    name, number = wanted, 1
    while name in used or not name:
        number += 1
        name = f"{wanted}_{number}"
    used.add(name)
    return name
