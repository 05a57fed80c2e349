"""Draw models that resemble GRUs: each has one fault, and outputs by its own equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from tests.support.decomposed.activations import Function
from tests.support.decomposed.chains import Mistakes, chain, single_cell
from tests.support.decomposed.equations import FAULTS, OF_ATTENTION, OTHER_WEIGHTS, Bounds, Cell, draw_cell
from tests.support.decomposed.frames import LOOP_FAULTS
from tests.support.decomposed.graph import Array, Generator, chance, pick
from tests.support.decomposed.loops import loop
from tests.support.decomposed.models import Decomposed, Draft, draft

#: Faults of a step's parameters that no GRU has, as text.
CELL_FAULTS = {
    "two functions": "z and r have different activations",
    "two bounds": "the gates are clipped at different bounds",
    "one gate clipped": "only one gate is clipped",
    "lopsided bounds": "the bounds of the clip are not symmetric",
}
#: Changes of one step in a chain. The changed step is a GRU's, but the chain is not.
STEP_CHANGES = {
    "R differs": "one element of R is different",
    "W differs": "one element of W is different",
    "bias differs": "one element of the biases is different",
    "bias twice": "the bias is added twice",
    "candidate differs": "n has another activation",
    "gates differ": "z and r have another activation",
    "clip differs": "the inputs of the activations have other bounds",
    "reset differs": "r comes before the product with R instead of after it, or after instead of before",
}

#: Parts that can still be fused if the fault is around a loop's step.
FLAGS_OF = {
    "weights change": ("cells only",),
    "halved state": ("cells only",),
    "early exit": ("cells only",),
    "autoregressive": ("cells only", "autoregressive"),
    "x fixed": ("any order",),
    "order": ("any order",),
}


def spoiled(rng: Generator, cell: Cell, fault: str) -> Cell:
    """Return a cell with one of `CELL_FAULTS`, which no GRU has."""
    f, _, g = cell.functions
    if fault == "two functions":
        others = [Function("Softsign"), Function("Tanh")]
        others.append(Function("HardSigmoid", 0.25, 0.5) if f.name == "Sigmoid" else Function("Sigmoid"))
        other = pick(rng, others)
        return replace(cell, functions=pick(rng, [(f, other, g), (other, f, g)]))
    if fault == "lopsided bounds":
        lopsided: Bounds = pick(rng, [(-0.5, 0.25), (-0.25, 0.75), (0.0, 0.5)])
        return replace(cell, bounds=(lopsided,) * 3)
    at = int(rng.integers(3))
    usual: Bounds = (-0.5, 0.5)
    bounds = [None if fault == "one gate clipped" else usual] * 3
    bounds[at] = usual if fault == "one gate clipped" else (-0.25, 0.25)
    return replace(cell, bounds=(bounds[0], bounds[1], bounds[2]))


def changed(rng: Generator, cell: Cell, change: str) -> Cell:
    """Return a cell with one of `STEP_CHANGES`, which is still a GRU's."""
    f, _, g = cell.functions
    if change == "R differs":
        return replace(cell, R=_one_more(rng, cell.R))
    if change == "W differs":
        return replace(cell, W=_one_more(rng, cell.W))
    if change == "bias differs":
        return replace(cell, Wb=_one_more(rng, cell.Wb))
    if change == "bias twice":
        return replace(cell, Wb=2.0 * cell.Wb, Rb=2.0 * cell.Rb)
    if change == "candidate differs":
        other = Function("Softsign" if g.name == "Tanh" else "Tanh")
        return replace(cell, functions=(f, f, other))
    if change == "gates differ":
        other = Function("HardSigmoid", 0.25, 0.5) if f.name == "Sigmoid" else Function("Sigmoid")
        return replace(cell, functions=(other, other, g))
    if change == "clip differs":
        narrow: Bounds = (-0.25, 0.25)
        return replace(cell, bounds=(narrow,) * 3)
    return replace(cell, reset_after=not cell.reset_after)


def _one_more(rng: Generator, array: Array) -> Array:
    found = array.copy()
    found[tuple(int(rng.integers(size)) for size in array.shape)] += 0.5
    return found


def _start(rng: Generator, hidden: int = 1) -> tuple[Draft, Cell]:
    """Draw sizes with at least `hidden` units, and a cell whose functions cannot hide a fault."""
    d = draft(rng)
    d.H = max(d.H, hidden)
    cell = draw_cell(rng, d.I, d.H, plain=True)
    if not cell.Wb.any():
        cell = replace(cell, Wb=np.resize([0.5, -0.25, 0.75], 3 * d.H))
    return d, cell


def cell_with(rng: Generator, fault: str) -> Decomposed:
    """Draw a single step with one of `FAULTS` or `CELL_FAULTS`, or with a gate as an output."""
    d, cell = _start(rng, 2 if fault == "wide attention" else 1)
    attention = fault in OF_ATTENTION
    if fault == "extra output":
        gate = pick(rng, ["z", "r", "n"])
        return single_cell(
            rng, cell=cell, extra=gate, words=f"{gate} is an output of the model", must_not_fuse=True, spec=d
        )
    if fault in CELL_FAULTS:
        wrong = spoiled(rng, cell, fault)
        return single_cell(
            rng, cell=wrong, right=cell, words=CELL_FAULTS[fault], must_not_fuse=True, attention=False, spec=d
        )
    return single_cell(
        rng,
        cell=cell,
        fault=fault,
        words=FAULTS[fault],
        attention=attention,
        must_not_fuse=True,
        spec=d,
    )


def chain_with(rng: Generator, fault: str) -> Decomposed:
    """Draw an unrolled chain with a fault at one step, or at every step if no GRU has it."""
    d, cell = _start(rng, 2 if fault == "wide attention" else 1)
    T = int(rng.integers(3, 7))
    wrong = Mistakes("", int(rng.integers(1, T)), steps=T)
    if fault == "extra output":
        wrong.extra = pick(rng, ["z", "r", "n"])
        wrong.words, wrong.flags = f"{wrong.extra} of a step is an output of the model", {"extra output"}
    elif fault in CELL_FAULTS:
        wrong.words, wrong.cell = CELL_FAULTS[fault], spoiled(rng, cell, fault)
    elif fault in STEP_CHANGES:
        wrong.words, wrong.cell, wrong.flags = (
            STEP_CHANGES[fault],
            changed(rng, cell, fault),
            {"other weights"},
        )
    elif fault == "order":
        order = list(range(T))
        at = wrong.at - 1
        order[at], order[at + 1] = order[at + 1], order[at]
        wrong.words, wrong.order, wrong.flags = f"the steps of x are read as {order}", order, {"any order"}
    elif fault == "autoregressive":
        wrong.words, wrong.feedback, wrong.at = "a product of the state is added to x", True, 1
        wrong.flags = {"autoregressive", "cells only"}
    elif fault == "skips":
        wrong.words, wrong.skips = "the step starts from the state two steps before", True
    else:
        wrong.words, wrong.fault = FAULTS[fault], fault
        wrong.flags = {"other weights"} if fault in OTHER_WEIGHTS else set()
    no_gru = fault in CELL_FAULTS or (wrong.fault is not None and fault not in (*OTHER_WEIGHTS, "stale"))
    wrong.everywhere = no_gru and (fault == "wide attention" or chance(rng, 0.3))
    return chain(
        rng,
        layers=1,
        bidirectional=False,
        masking="",
        attention=fault in OF_ATTENTION,
        cell=cell,
        wrong=wrong,
        must_not_fuse=wrong.everywhere,
        spec=d,
    )


def loop_with(rng: Generator, kind: str, fault: str) -> Decomposed:
    """Draw a Scan or a Loop with a fault in or around its step."""
    d, cell = _start(rng, 2 if fault == "wide attention" else 1)
    if fault in LOOP_FAULTS:
        d.flags |= {*FLAGS_OF.get(fault, ())}
        masking = "lengths" if fault == "held below" else None
        words = LOOP_FAULTS[fault]
        return loop(rng, kind, cell=cell, fault=fault, words=words, masking=masking, attention=False, spec=d)
    if fault == "extra output":
        gate = pick(rng, ["z", "r", "n"])
        words = f"{gate} is an output of the loop"
        return loop(rng, kind, cell=cell, extra=gate, words=words, masking="", must_not_fuse=True, spec=d)
    if fault in CELL_FAULTS:
        wrong, words = spoiled(rng, cell, fault), CELL_FAULTS[fault]
        return loop(rng, kind, cell=wrong, right=cell, words=words, masking="", must_not_fuse=True, spec=d)
    return loop(
        rng,
        kind,
        cell=cell,
        in_step=fault,
        words=FAULTS[fault],
        masking="",
        attention=fault in OF_ATTENTION,
        must_not_fuse=True,
        spec=d,
    )


def _named() -> dict[str, Callable[[Generator], Decomposed]]:
    found: dict[str, Callable[[Generator], Decomposed]] = {}
    for fault in (*FAULTS, *CELL_FAULTS, "extra output"):
        if fault in OTHER_WEIGHTS:
            continue
        found[f"cell: {fault}"] = partial(cell_with, fault=fault)
        found[f"chain: {fault}"] = partial(chain_with, fault=fault)
        for kind in ("Scan", "Loop"):
            found[f"{kind}: {fault}"] = partial(loop_with, kind=kind, fault=fault)
    for fault in (*STEP_CHANGES, *OTHER_WEIGHTS, "order", "autoregressive", "skips"):
        found[f"chain: {fault}"] = partial(chain_with, fault=fault)
    for fault in LOOP_FAULTS:
        for kind in ("Scan", "Loop"):
            if kind == "Loop" or fault not in ("x fixed", "order", "early exit"):
                found[f"{kind}: {fault}"] = partial(loop_with, kind=kind, fault=fault)
    return found


#: The near misses by name. Each is drawn until its fault changes the outputs.
NEAR_MISSES = _named()


def near_miss(name: str, rng: Generator) -> Decomposed:
    """Draw a near miss of this name whose faulty step clearly differs from the GRU's."""
    for _ in range(100):
        found = NEAR_MISSES[name](rng)
        if found.difference > 0.01:
            return found
    raise AssertionError(f"{name}: a hundred draws show nothing of the fault")
