"""A figure of matplotlib's that notebooks show by themselves."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that a notebook shows without `%matplotlib inline`, too, which shows any figure."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()
