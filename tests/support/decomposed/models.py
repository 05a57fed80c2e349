"""Build random models with their expected outputs: common code of all kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto

from tests.support.decomposed.activations import Function
from tests.support.decomposed.cells import Style
from tests.support.decomposed.equations import Bounds, Cell
from tests.support.decomposed.graph import Array, Generator, Graph, chance


@dataclass(frozen=True)
class Gru:
    """GRU of one direction in a model, with the attributes of the ONNX operator.

    Attributes:
        W: [3H, I] float32, in the order z, r, n.
        R: [3H, H] float32.
        B: [6H] float32: Wb, then Rb. Only their sums matter, except n's with linear_before_reset = 1.
        direction: "forward" or "reverse", in time.
        unique: whether alpha, beta and weights are unique. They are not if constant factors surround a
            function, as in alpha * tanh(beta * a).
    """

    W: Array
    R: Array
    B: Array
    functions: tuple[Function, Function]
    linear_before_reset: int
    clip: float | None
    attention: bool
    direction: str
    unique: bool

    @property
    def activations(self) -> tuple[str, str]:
        return (self.functions[0].name, self.functions[1].name)

    @property
    def alphas(self) -> tuple[float | None, float | None]:
        return (self.functions[0].alpha, self.functions[1].alpha)

    @property
    def betas(self) -> tuple[float | None, float | None]:
        return (self.functions[0].beta, self.functions[1].beta)

    def __str__(self) -> str:
        reset = "after" if self.linear_before_reset else "before"
        clip = "" if self.clip is None else f", clip {self.clip}"
        score = ", attention" if self.attention else ""
        f, g = self.functions
        return f"GRU {self.direction}, reset {reset}, {f}, {g}{clip}{score}, W {self.W.shape}"


@dataclass(frozen=True)
class Decomposed:
    """Model with decomposed GRUs, its inputs, and its outputs by the equations.

    Attributes:
        model: the model; it has no GRU node.
        feeds: random inputs.
        expected: the outputs in float64.
        recipe: the drawn properties, as text.
        grus: the GRUs in it, one for each layer and direction. For a near miss, the GRUs before the fault.
        kind: "cell", "chain", "Scan" or "Loop".
        flags: special properties, each explained in `FLAGS`.
        fault: the fault, as text; None for a model that must be fused.
        must_not_fuse: whether no step may be replaced. If it is False, parts may be replaced.
        difference: for a near miss, the distance of the faulty steps from those of the GRU in `grus`;
            infinite if there are none to compare with.
    """

    model: ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]
    recipe: str
    grus: tuple[Gru, ...]
    kind: str
    flags: frozenset[str] = frozenset()
    fault: str | None = None
    must_not_fuse: bool = False
    difference: float = 0.0

    @property
    def count(self) -> int:
        """Return the largest possible number of GRU nodes of one direction."""
        return len(self.grus)


#: Meanings of the flags.
FLAGS = {
    "batch first": "X is [B, T, I]",
    "symbolic": "the batch has no fixed size",
    "symbolic steps": "the number of steps is not fixed",
    "lengths": "sequence lengths hold the state past the end of each row",
    "mask": "any steps of a row may be held: no sequence_lens says that, but a cell in the loop may be a GRU",
    "zero past the end": "outputs past the end are zeros, as those of ONNX's GRU",
    "held past the end": "outputs past the end repeat the last state",
    "extra output": "a gate is an output of the model: the step it is in must not be fused",
    "autoregressive": "x depends on the state before: no more than single steps can be fused",
    "any order": "the steps are read in another order: fusing needs a Gather of x, or single steps",
    "other weights": "one step has other weights: each step is a GRU, all together are not",
    "cells only": "no more than single steps can be fused, or the step in a loop's body",
    "processing order": "outputs of a reverse direction stand in the order in which they were computed",
    "styles": "the steps of a chain are written in different forms",
}


def as_gru(cell: Cell, *, attention: bool, reverse: bool, styles: Sequence[Style] = ()) -> Gru:
    """Return the GRU of a cell without faults."""
    f, _, g = cell.functions
    bounds: Bounds = cell.bounds[0]
    loose = {"Affine", "ScaledTanh"} & {f.name, g.name}
    for at, function in ((0, f), (2, g)):
        if function.name == "HardSigmoid" and any(style.forms[at] > 0 for style in styles):
            loose = {*loose, "HardSigmoid"}
    return Gru(
        cell.W.astype(np.float32),
        cell.R.astype(np.float32),
        np.concatenate([cell.Wb, cell.Rb]).astype(np.float32),
        (f, g),
        int(cell.reset_after),
        None if bounds is None else bounds[1],
        attention,
        "reverse" if reverse else "forward",
        not loose,
    )


@dataclass
class Draft:
    """Model under construction: its graph, sizes, inputs and expected outputs."""

    rng: Generator
    opset: int
    I: int
    H: int
    B: int
    symbolic: bool
    graph: Graph = field(init=False)
    feeds: dict[str, Array] = field(default_factory=dict)
    expected: dict[str, Array] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    grus: list[Gru] = field(default_factory=list)
    difference: float = 0.0

    def __post_init__(self) -> None:
        self.graph = Graph(self.rng, self.opset)
        if self.symbolic:
            self.flags.add("symbolic")

    @property
    def rows(self) -> int | str:
        return "batch" if self.symbolic else self.B

    @property
    def fixed_rows(self) -> int | None:
        return None if self.symbolic else self.B

    def feed(self, name: str, values: Array, shape: Sequence[int | str]) -> tuple[str, Array]:
        """Add an input of the model with these values; also return the values in float64."""
        self.feeds[name] = values
        self.graph.input(name, shape, str(values.dtype))
        return name, values.astype(np.float64)

    def random(self, name: str, *shape: int | str, sizes: Sequence[int]) -> tuple[str, Array]:
        """Add an input of random values."""
        return self.feed(name, self.rng.standard_normal(sizes).astype(np.float32), shape)

    def scores(self, name: str, *shape: int | str, sizes: Sequence[int]) -> tuple[str, Array]:
        """Add an input of attention scores between 0 and 1."""
        return self.feed(name, self.rng.random(sizes).astype(np.float32), shape)

    def output(self, name: str, tensor: str, values: Array, shape: Sequence[int | str] | None) -> None:
        self.graph.output(name, tensor, shape)
        self.expected[name] = values

    def initial(self, name: str, like: str, axis: int) -> tuple[str, Array]:
        """Add an initial state: an input or zeros."""
        if chance(self.rng, 0.5):
            self.notes.append("initial state an input")
            return self.random(name, self.rows, self.H, sizes=[self.B, self.H])
        self.notes.append("initial state zeros")
        return self.graph.zero_state(like, axis, self.H, self.fixed_rows), np.zeros((self.B, self.H))

    def compare(self, faulty: Array, right: Array | None) -> None:
        """Record the distance between a faulty step and the correct one."""
        far = np.inf if right is None else float(np.max(np.abs(faulty - right)))
        self.difference = max(self.difference, far)

    def done(self, kind: str, fault: str | None = None, must_not_fuse: bool = False) -> Decomposed:
        head = f"{kind}, opset {self.opset}, I {self.I}, H {self.H}, B {self.B}"
        return Decomposed(
            self.graph.model(),
            self.feeds,
            self.expected,
            "; ".join(
                [head, *([] if fault is None else [f"FAULT: {fault}"]), *map(str, self.grus), *self.notes]
            ),
            tuple(self.grus),
            kind,
            frozenset(self.flags),
            fault,
            must_not_fuse,
            self.difference,
        )


def draft(rng: Generator) -> Draft:
    """Draw a model with random small sizes."""
    return Draft(
        rng,
        opset=int(rng.integers(13, 22)),
        I=int(rng.integers(1, 6)),
        H=int(rng.integers(1, 7)),
        B=int(rng.integers(1, 4)),
        symbolic=chance(rng, 0.5),
    )
