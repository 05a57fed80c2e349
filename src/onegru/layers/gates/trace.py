"""The gate values of a call as a public object, which can be saved and drawn."""

from __future__ import annotations

import os
from typing import Self

from onegru.core.arguments import file_path
from onegru.layers.gates import files
from onegru.layers.gates.data import Gates
from onegru.layers.gates.pictures import picture
from onegru.layers.gates.summary import DirectionSummary, summarise
from onegru.system.atomic_write import write_files


class GateTrace(Gates):
    """Gates and states of one call, from `trace` of a GRU, stack or model.

    h is bitwise identical to Y. z, r and n are computed by the equations in float64, each step from x and
    the h before it, and rounded once to the element type.

    Attributes:
        spec: the specification of the layer.
        z: the update gate as the step uses it, after attention, [T, D, B, H]. z, r and n are NaN in the
            padding.
        r: the reset gate.
        n: the candidate.
        h: the state; 0 in the padding.
        initial_h: the state before the first step, [D, B, H].
        lengths: each row's length, [B].
        raw_z: z before attention; None without attention.
        name: the name of the node; empty for a layer.
        source: the name of the model; empty for a layer.
        previous_h: h before each step, [T, D, B, H]; NaN in the padding.
        directions: the name of each direction, "forward" or "reverse".
    """

    __slots__ = ()

    def __repr__(self) -> str:
        T, D, B, H = self.h.shape
        called = "".join(f"{name!r}, " for name in (self.source, self.name) if name)
        return f"GateTrace({called}T={T}, D={D}, B={B}, H={H}, {self.spec.dtype})"

    def _repr_html_(self) -> str:
        """Show the figures of `summary` in a notebook."""
        from onegru.drawing.card import card

        rows = [
            (item.direction, gate.gate, *map(_figure, (gate.least, gate.mean, gate.most)))
            for item in self.summary()
            for gate in item.gates
        ]
        facts = [
            ("steps", f"{len(self.h)}"),
            ("rows", f"{len(self.lengths)}"),
            ("units", f"{self.spec.hidden_size}, {self.spec.dtype}"),
            ("dead units", ", ".join(f"{len(item.dead)} {item.direction}" for item in self.summary())),
        ]
        title = " · ".join(filter(None, ("Gates", self.source, self.name)))
        return card(title, facts, ("direction", "gate", "min", "mean", "max"), rows)

    def summary(self, row: int | None = None) -> tuple[DirectionSummary, ...]:
        """Summarize each direction: ranges, saturation, dead and active units.

        Args:
            row: the row. Default: None (all).

        Raises:
            SpecError: there is no such row.
        """
        return summarise(self, row)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to an `.npz` file.

        Raises:
            SpecError: path is not the name of a file.
            OSError: the file cannot be written. An existing file stays as it is.
        """
        write_files([(file_path("path", path), files.writer(self))])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a trace from a file of `save`.

        Raises:
            FormatError: the file is not from `save`.
            SpecError: path is not the name of a file.
            OSError: the file cannot be opened.
        """
        return files.read(file_path("path", path), cls)

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        row: int = 0,
        direction: str | None = None,
        against: Gates | None = None,
    ) -> str:
        """Return an HTML page that shows one row, optionally compared with another run.

        The page needs only a browser. A run with more than about 5 million numbers is shown as means of a few
        steps each, and the page says so.

        Args:
            path: the file to write. Default: None (write nothing).
            row: the row.
            direction: "forward" or "reverse". Default: None (all directions).
            against: the trace of another call, to compare with.

        Returns:
            the page.

        Raises:
            SpecError: there is no such row or direction, path is not the name of a file, or the two traces do
                not match.
            OSError: the file cannot be written.
        """
        from onegru.drawing.page import page

        text = page(picture(self, row, direction, against))
        if path is not None:
            write_files([(file_path("path", path), lambda file: file.write(text.encode()))])
        return text


GateTrace.__module__ = "onegru.reports"


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"
