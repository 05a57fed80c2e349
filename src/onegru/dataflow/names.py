"""Create new names that differ from existing names."""

from __future__ import annotations


def fresh_name(hint: str, used: set[str]) -> str:
    """Return the hint as a name, with a number appended if it is in use; add it to `used`."""
    name, number = hint, 1
    while name in used or not name:
        number += 1
        name = f"{hint}_{number}"
    used.add(name)
    return name
