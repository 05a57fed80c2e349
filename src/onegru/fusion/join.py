"""What new nodes make needless: two reversals in a row, and two directions in two nodes."""

from __future__ import annotations

from onegru.fusion.flow import Flow


def join(flow: Flow, names: set[str]) -> None:
    """Simplify a graph that has new nodes."""
