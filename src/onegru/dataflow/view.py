"""Follow columns of a value through operators that only move elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onegru.core.dtypes import Array
from onegru.dataflow.operator import LoopIndex

#: Axes of rows of the batch, axes whose indices identify a column, and an axis of steps in a node's input.
ROWS, COLUMNS, STEPS = "rows", "columns", "steps"
#: The role of an axis in a view: one of these, or the only index that is read there.
Role = str | int | LoopIndex


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Columns of a value, in each row."""

    name: str  # the value
    roles: tuple[Role, ...]  # the role of each axis
    coordinates: Array  # the index of each column along each COLUMNS axis, [axes, columns]

    @property
    def key(self) -> tuple[str, tuple[Role, ...], bytes]:
        """Return a key that is equal for equal views."""
        return self.name, self.roles, self.coordinates.tobytes() if self.has_columns else b""

    @property
    def has_columns(self) -> bool:
        """Whether the columns differ; without COLUMNS axes, each row has the same number in all of them."""
        return len(self.coordinates) > 0

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return int(self.coordinates.shape[1])

    @property
    def columns(self) -> Array:
        """Return the indices of all columns."""
        return np.arange(self.width)

    def coordinate_row(self, axis: int) -> int:
        """Return the row of `coordinates` for a COLUMNS axis."""
        return sum(other == COLUMNS for other in self.roles[:axis])

    def renamed(self, name: str) -> View:
        """Return the view of the same columns of another value."""
        return View(name, self.roles, self.coordinates)

    def has_columns_of(self, other: View) -> bool:
        """Whether the columns have the coordinates of those of another view."""
        return np.array_equal(self.coordinates, other.coordinates)

    def replaced(self, name: str, roles: dict[int, Role], changed: dict[int, Array]) -> View:
        """Return the view of another value, with other roles and coordinates of these axes."""
        coordinates = self.coordinates.copy()
        for axis, indices in changed.items():
            coordinates[self.coordinate_row(axis)] = indices
        return View(name, tuple(roles.get(axis, role) for axis, role in enumerate(self.roles)), coordinates)
