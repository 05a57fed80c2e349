"""Draw random ONNX models with GRUs decomposed into other operators, and their expected outputs.

These models test the search for GRUs, and share no code with it. `onnx.helper` builds the models from random
parameters. The expected outputs come from the same parameters, by the equations in NumPy and float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.support.decomposed.chains import chain, single_cell
from tests.support.decomposed.graph import Generator, pick
from tests.support.decomposed.loops import loop
from tests.support.decomposed.misses import NEAR_MISSES, near_miss
from tests.support.decomposed.models import FLAGS, Decomposed, Gru

__all__ = [
    "FLAGS",
    "KINDS",
    "NEAR_MISSES",
    "Decomposed",
    "Gru",
    "chain",
    "decomposed",
    "draw_decomposed",
    "draw_near_miss",
    "loop",
    "near_miss",
    "single_cell",
]


#: The kinds of models that must be fused, by name. All other properties are drawn.
KINDS: dict[str, Callable[[Generator], Decomposed]] = {
    "cell": partial(single_cell, attention=False),
    "cell with attention": partial(single_cell, attention=True),
    "chain": partial(chain, layers=1, bidirectional=False, masking="", attention=False, reverse=False),
    "chain backwards": partial(chain, layers=1, bidirectional=False, masking="", reverse=True),
    "chain in both directions": partial(chain, layers=1, bidirectional=True, masking=""),
    "chain of two layers": partial(chain, layers=2, bidirectional=False, masking=""),
    "chain with lengths": partial(chain, layers=1, bidirectional=False, masking="lengths"),
    "chain with a mask": partial(chain, layers=1, bidirectional=False, masking="mask"),
    "chain with attention": partial(chain, layers=1, bidirectional=False, attention=True),
    "any cell": single_cell,
    "any chain": chain,
}
for _kind in ("Scan", "Loop"):
    _one = partial(loop, kind=_kind, layers=1, bidirectional=False)
    KINDS |= {
        _kind: partial(_one, masking="", attention=False, reverse=False),
        f"{_kind} backwards": partial(_one, masking="", reverse=True),
        f"{_kind} in both directions": partial(_one, bidirectional=True, masking=""),
        f"{_kind} of two layers": partial(_one, layers=2, masking=""),
        f"{_kind} with lengths": partial(_one, masking="lengths"),
        f"{_kind} with a mask": partial(_one, masking="mask"),
        f"{_kind} with attention": partial(_one, attention=True),
        f"any {_kind}": partial(loop, kind=_kind),
    }


def decomposed(name: str, rng: Generator) -> Decomposed:
    """Draw a model of one of `KINDS`."""
    return KINDS[name](rng)


def draw_decomposed(rng: Generator) -> Decomposed:
    """Draw a model whose GRUs can all be found: a third each of single steps, chains and loops."""
    return KINDS[pick(rng, [*["any cell", "any chain"] * 2, "any Scan", "any Loop"])](rng)


def draw_near_miss(rng: Generator) -> Decomposed:
    """Draw a model with one fault, which no standard GRU computes completely."""
    return near_miss(pick(rng, list(NEAR_MISSES)), rng)
