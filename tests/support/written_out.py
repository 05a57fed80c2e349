"""Random ONNX models that hold GRUs written out in other operators, and what their outputs have to be.

A finder of GRUs is tested against these models. Nothing here is shared with it: the models are put together
from drawn parameters with `onnx.helper`, and the expected outputs come from the same parameters by the
equations in NumPy and float64.
"""

from __future__ import annotations

from tests.support.written_out_chains import chain, single_cell
from tests.support.written_out_graph import Generator, pick
from tests.support.written_out_loops import loop
from tests.support.written_out_misses import NEAR_MISSES, near_miss
from tests.support.written_out_models import FLAGS, Gru, WrittenOut

__all__ = [
    "FLAGS",
    "NEAR_MISSES",
    "Gru",
    "WrittenOut",
    "chain",
    "draw_near_miss",
    "draw_written_out",
    "loop",
    "near_miss",
    "single_cell",
]


def draw_written_out(rng: Generator) -> WrittenOut:
    """A model whose GRUs can all be found."""
    kind = rng.random()
    return single_cell(rng) if kind < 0.3 else chain(rng) if kind < 0.6 else loop(rng)


def draw_near_miss(rng: Generator) -> WrittenOut:
    """A model with one fault: no standard GRU computes all of it."""
    return near_miss(pick(rng, list(NEAR_MISSES)), rng)
