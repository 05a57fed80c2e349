"""Write single GRU steps, and GRUs unrolled over the steps of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import TensorProto

from tests.support.decomposed.cells import Piece, Style, Writer, draw_style, write_cell
from tests.support.decomposed.equations import Cell, draw_cell, step
from tests.support.decomposed.graph import Array, Generator, chance, pick
from tests.support.decomposed.models import Decomposed, Draft, as_gru, draft


@dataclass
class Mistakes:
    """Difference between a chain and a GRU. None and empty values have no effect.

    Attributes:
        words: the fault, as text.
        at: the step, in the order of processing.
        everywhere: whether every step is wrong.
        cell: the new parameters of that step.
        fault: a mistake in the equations of that step.
        order: the order of the steps of x.
        extra: the gate of that step that is an output of the model.
        feedback: whether x of the later steps depends on the state.
        skips: whether that step starts from the state two steps before.
        steps: the number of steps of the chain.
        attention: whether it has an attention.
        flags: flags of the model.
    """

    words: str
    at: int
    everywhere: bool = False
    cell: Cell | None = None
    fault: str | None = None
    order: Sequence[int] | None = None
    extra: str | None = None
    feedback: bool = False
    skips: bool = False
    steps: int = 0
    attention: bool = False
    flags: set[str] = field(default_factory=set)

    @property
    def place(self) -> str:
        return "every step" if self.everywhere else f"step {self.at}"


def single_cell(
    rng: Generator,
    *,
    cell: Cell | None = None,
    right: Cell | None = None,
    fault: str | None = None,
    extra: str | None = None,
    words: str | None = None,
    attention: bool | None = None,
    must_not_fuse: bool = False,
    spec: Draft | None = None,
) -> Decomposed:
    """Write a single step with inputs x [B, I] and h [B, H]; a wrong cell differs from `right`."""
    d = draft(rng) if spec is None else spec
    if cell is None:
        cell = draw_cell(rng, d.I, d.H)
    if attention is None:
        attention = chance(rng, 0.2)
    x, x_values = d.random("x", d.rows, d.I, sizes=[d.B, d.I])
    h, h_values = d.random("h", d.rows, d.H, sizes=[d.B, d.H])
    stale, stale_values = None, None
    if fault == "stale":
        stale, stale_values = d.random("h2", d.rows, d.H, sizes=[d.B, d.H])
    a, a_values = None, None
    if attention:
        width = d.H if fault == "wide attention" else 1
        a, a_values = d.scores("a", d.rows, width, sizes=[d.B, width])
    style = draw_style(rng, cell, fault=fault, plain=attention or words is not None)
    d.notes.append(str(style))
    names = write_cell(d.graph, cell, style, x, h, a=a, fault=fault, stale=stale)
    results = step(cell, x_values, h_values, a_values, fault, stale_values)
    d.output("h_new", names.new, results.new, [d.rows, d.H])
    if right is not None or fault is not None:
        one_score = fault != "wide attention"
        this = cell if right is None else right
        d.compare(results.new, step(this, x_values, h_values, a_values).new if one_score else None)
    if extra is not None:
        tensor = {"z": names.z, "r": names.r, "n": names.n}[extra]
        values = {"z": results.z, "r": results.r, "n": results.n}[extra]
        d.output("extra", tensor, 1.0 - values if extra == "z" and style.exchanged else values, [d.rows, d.H])
        d.flags.add("extra output")
        d.compare(values, None)
    d.grus.append(
        as_gru(cell if right is None else right, attention=attention, reverse=False, styles=[style])
    )
    return d.done("cell", words, must_not_fuse)


class Unrolled:
    """Writer of a GRU over the steps of x, once for each layer and direction."""

    def __init__(self, d: Draft, T: int, batch_first: bool) -> None:
        self.d = d
        self.T = T
        self.batch_first = batch_first
        self.axis = 1 if batch_first else 0
        self.rows_axis = 1 - self.axis

    def at_steps(self, tensor: str, form: str) -> list[str]:
        """Return the tensors [B, ..] of all steps of [T, B, ..] or [B, T, ..]."""
        graph, axis = self.d.graph, self.axis
        if form == "Gather":
            return [
                graph.op("Gather", tensor, graph.constant(np.array(t), "int64"), axis=axis)
                for t in range(self.T)
            ]
        if form == "Split":
            parts = graph.slices(tensor, [1] * self.T, axis, "Split")
        else:
            parts = [graph.part(tensor, t, t + 1, axis, "Slice", t + 1 == self.T) for t in range(self.T)]
        return [graph.op("Squeeze", part, graph.integers(axis)) for part in parts]

    def numbers_at_steps(self, values: Array) -> list[Array]:
        return [np.take(values, t, self.axis) for t in range(self.T)]

    def projected(self, cell: Cell, style: Style, X: str) -> list[list[Piece]]:
        """Return the products with x of all steps: computed at once, then split."""
        rng, graph = self.d.rng, self.d.graph
        writer = Writer(graph, cell, style)
        kind = pick(rng, ["MatMul", "Einsum", "Gemm"])
        if kind == "Gemm":
            flat = graph.op("Reshape", X, graph.integers(-1, cell.I))
            whole = []
            for piece in writer.project(flat, 2, "Gemm"):
                wide = len(piece.gates) * cell.H
                sizes = [-1, self.T, wide] if self.batch_first else [self.T, -1, wide]
                name = graph.op("Reshape", piece.name, graph.integers(*sizes))
                whole.append(replace(piece, name=name))
        else:
            whole = writer.project(X, 3, kind)
        form = pick(rng, ["Gather", "Slice", "Split"])
        each = [self.at_steps(piece.name, form) for piece in whole]
        return [
            [replace(piece, name=names[t]) for piece, names in zip(whole, each, strict=True)]
            for t in range(self.T)
        ]

    def stacked(self, states: Sequence[str], axis: int) -> str:
        graph = self.d.graph
        return graph.op(
            "Concat", *[graph.op("Unsqueeze", h, graph.integers(axis)) for h in states], axis=axis
        )


@dataclass
class Masks:
    """Masks of the active rows at each step (tensors [B, 1] and values), and the variant of held values."""

    names: list[str]
    values: list[Array]
    arithmetic: bool
    zero: bool


def draw_masks(u: Unrolled, masking: str) -> Masks:
    """Draw masks of the steps within the rows' lengths, or of any steps."""
    d, graph, rng = u.d, u.d.graph, u.d.rng
    zero = chance(rng, 0.4)
    d.flags |= {masking, "zero past the end" if zero else "held past the end"}
    names = []
    if masking == "mask":
        sizes: list[int] = [d.B, u.T] if u.batch_first else [u.T, d.B]
        shape: list[int | str] = [d.rows, u.T] if u.batch_first else [u.T, d.rows]
        found = rng.random(sizes) < 0.6
        mask, _ = d.feed("mask", found, shape)
        names = [graph.op("Unsqueeze", one, graph.integers(1)) for one in u.at_steps(mask, "Gather")]
        values = [np.take(found, t, u.axis)[:, None] for t in range(u.T)]
        return Masks(names, values, chance(rng, 0.3), zero)
    dtype = pick(rng, ["int32", "int64"])
    found = rng.integers(0, u.T + 1, d.B).astype(dtype)
    lengths, _ = d.feed("lengths", found, [d.rows])
    column = graph.op("Unsqueeze", lengths, graph.integers(1))
    for t in range(u.T):
        now = graph.constant(pick(rng, [np.array(t), np.array([t])]), dtype)
        less = chance(rng, 0.5)
        names.append(graph.op("Less", now, column) if less else graph.op("Greater", column, now))
    return Masks(names, [(t < found)[:, None] for t in range(u.T)], chance(rng, 0.3), zero)


def hold(d: Draft, masks: Masks, t: int, new: str, old: str) -> tuple[str, str]:
    """Return the new state where the mask is set, else the old one; and the output, which may be 0 there."""
    graph = d.graph
    if not masks.arithmetic:
        state = graph.where(masks.names[t], new, old)
        return state, graph.where(masks.names[t], new, graph.scalar(0.0)) if masks.zero else state
    m = graph.op("Cast", masks.names[t], to=TensorProto.FLOAT)
    rest = graph.op("Sub", graph.scalar(1.0), m)
    state = graph.either("Add", graph.either("Mul", m, new), graph.either("Mul", rest, old))
    return state, graph.either("Mul", m, new) if masks.zero else state


@dataclass
class Steps:
    """Results of one direction so far, in the order of processing; the states begin with h0."""

    states: list[str]
    values: list[Array]
    outputs: list[str] = field(default_factory=list)
    output_values: list[Array] = field(default_factory=list)

    def add(self, state: str, value: Array, output: str, output_value: Array) -> None:
        self.states.append(state)
        self.values.append(value)
        self.outputs.append(output)
        self.output_values.append(output_value)


def draw_styles(u: Unrolled, cell: Cell, fault: str | None, plain: bool, hoisted: bool) -> list[Style]:
    """Draw the style of each step: the same for all, or separate ones with the same activations."""
    d, rng = u.d, u.d.rng
    first = draw_style(rng, cell, fault=fault, plain=plain)
    if hoisted:
        d.notes.append("x projected at once")
        return [replace(first, joined="")] * u.T
    if chance(rng, 0.8):
        return [first] * u.T
    d.flags.add("styles")
    drawn = (draw_style(rng, cell, fault=fault) for _ in range(u.T - 1))
    return [first, *(replace(style, forms=first.forms, exchanged=first.exchanged) for style in drawn)]


def write_direction(
    u: Unrolled,
    cell: Cell,
    X: str | None,
    xs: Sequence[str],
    values: Sequence[Array],
    name: str,
    *,
    reverse: bool,
    like: str,
    scores: tuple[list[str], list[Array]] | None = None,
    masks: Masks | None = None,
    wrong: Mistakes | None = None,
) -> Steps:
    """Unroll one direction of one layer.

    X is the whole sequence, or None if there are only its steps `xs`; `values` are the steps in float64.
    """
    d, rng, T = u.d, u.d.rng, u.T
    hoisted = X is not None and chance(rng, 0.4) and (wrong is None or not (wrong.feedback or wrong.cell))
    plain = scores is not None or wrong is not None
    styles = draw_styles(u, cell, None if wrong is None else wrong.fault, plain, hoisted)
    d.notes.append(f"{name} {'reverse' if reverse else 'forward'}: {styles[0]}")
    order = list(wrong.order) if wrong is not None and wrong.order else list(range(T))
    projected = u.projected(cell, styles[0], X) if hoisted and X is not None else None
    h0, h0_values = d.initial(f"{name}_h0", like, u.rows_axis)
    done = Steps([h0], [h0_values])
    for i, t in enumerate(order[::-1] if reverse else order):
        a, a_values = (None, None) if scores is None else (scores[0][t], scores[1][t])
        pieces = None if projected is None else projected[t]
        if wrong is not None:
            usual = values[T - 1 - i if reverse else i]
            at = Place(xs[t], values[t], usual, a, a_values, pieces, styles[i])
            write_wrong_step(u, cell, wrong, i, at, done)
            continue
        h, h_values = done.states[-1], done.values[-1]
        new = write_cell(d.graph, cell, styles[i], xs[t], h, a=a, projected=pieces).new
        new_values = step(cell, values[t], h_values, a_values).new
        if masks is None:
            done.add(new, new_values, new, new_values)
            continue
        state, output = hold(d, masks, t, new, h)
        state_values = np.where(masks.values[t], new_values, h_values)
        zeros = np.where(masks.values[t], new_values, 0.0)
        done.add(state, state_values, output, zeros if masks.zero else state_values)
    d.grus.append(as_gru(cell, attention=scores is not None, reverse=reverse, styles=styles))
    return done


@dataclass
class Place:
    """Inputs of a step in a chain with a fault: x, the correct x, and the others."""

    x: str
    x_values: Array
    usual: Array
    a: str | None
    a_values: Array | None
    projected: list[Piece] | None
    style: Style


def write_wrong_step(u: Unrolled, cell: Cell, wrong: Mistakes, i: int, at: Place, done: Steps) -> None:
    """Write one step of a chain with a fault in this step or another."""
    d, graph = u.d, u.d.graph
    here = wrong.everywhere or wrong.at == i
    x, x_values, style = at.x, at.x_values, at.style
    if wrong.feedback and i > 0:
        x, x_values = feed_back(u, cell, x, x_values, done.states[-1], done.values[-1])
    this = wrong.cell if here and wrong.cell is not None else cell
    fault = wrong.fault if here else None
    back = -2 if here and wrong.skips else -1
    h, h_values = done.states[back], done.values[back]
    stale, stale_values = (done.states[-2], done.values[-2]) if fault == "stale" else (None, None)
    if this.reset_after != cell.reset_after:
        style = replace(draw_style(d.rng, this, plain=True), forms=style.forms)
    names = write_cell(graph, this, style, x, h, a=at.a, fault=fault, stale=stale, projected=at.projected)
    found = step(this, x_values, h_values, at.a_values, fault, stale_values)
    if here and wrong.extra is not None:
        tensor = {"z": names.z, "r": names.r, "n": names.n}[wrong.extra]
        seen = {"z": found.z, "r": found.r, "n": found.n}[wrong.extra]
        d.output("extra", tensor, seen, [d.rows, cell.H])
    if here or wrong.order or wrong.feedback:
        has_no_match = wrong.extra is not None or fault == "wide attention"
        right = None if has_no_match else step(cell, at.usual, done.values[-1], at.a_values).new
        d.compare(found.new, right)
    done.add(names.new, found.new, names.new, found.new)


def feed_back(u: Unrolled, cell: Cell, x: str, values: Array, h: str, state: Array) -> tuple[str, Array]:
    """Add a product of the state to x, as in a decoder with feedback."""
    graph = u.d.graph
    P = np.ones((cell.I, cell.H)) * 0.5
    back = graph.op("MatMul", h, graph.weight(P.T.copy()))
    return graph.either("Add", x, back), values + state @ P.T


def chain(
    rng: Generator,
    *,
    layers: int | None = None,
    bidirectional: bool | None = None,
    reverse: bool | None = None,
    masking: str | None = None,
    attention: bool | None = None,
    cell: Cell | None = None,
    wrong: Mistakes | None = None,
    must_not_fuse: bool = False,
    spec: Draft | None = None,
) -> Decomposed:
    """Write a GRU unrolled over the steps of X; missing arguments are drawn."""
    d = draft(rng) if spec is None else spec
    if layers is None:
        layers = 2 if chance(rng, 0.2) else 1
    if bidirectional is None:
        bidirectional = chance(rng, 0.2)
    T = int(rng.integers(2, 7)) if wrong is None or not wrong.steps else wrong.steps
    u = Unrolled(d, T, chance(rng, 0.5))
    if u.batch_first:
        d.flags.add("batch first")
    d.graph.shared = {} if chance(rng, 0.7) else None
    outer: list[int | str] = [d.rows, T] if u.batch_first else [T, d.rows]
    sizes = [d.B, T] if u.batch_first else [T, d.B]
    d.notes.append(f"T {T}, {'[B,T,I]' if u.batch_first else '[T,B,I]'}")
    X, X_values = d.random("X", *outer, d.I, sizes=[*sizes, d.I])
    values = u.numbers_at_steps(X_values)
    whole: str | None = X
    xs = u.at_steps(X, pick(rng, ["Gather", "Slice", "Split"]))
    scores = None
    if attention if attention is not None else chance(rng, 0.1) and not bidirectional:
        width = d.H if wrong is not None and wrong.fault == "wide attention" else 1
        A, A_values = d.scores("A", *outer, width, sizes=[*sizes, width])
        scores = (u.at_steps(A, pick(rng, ["Gather", "Slice"])), u.numbers_at_steps(A_values))
    if masking is None:
        masking = pick(rng, [""] * 12 + ["lengths", "lengths", "mask"])
    masks = draw_masks(u, masking) if masking else None
    ends: list[tuple[str, Array]] = []
    states: list[str] = []
    results: list[Array] = []
    for layer in range(layers):
        width = values[0].shape[1]
        ends, sides, numbers = [], [], []
        backward = reverse if reverse is not None else chance(rng, 0.3)
        for direction in [False, True] if bidirectional else [backward]:
            this = cell if cell is not None and layer == 0 else draw_cell(rng, width, d.H)
            name = f"layer{layer}{'b' if direction else ''}"
            found = write_direction(
                u, this, whole, xs, values, name,
                reverse=direction, like=X, scores=scores, masks=masks, wrong=wrong,
            )  # fmt: skip
            ends.append((found.states[-1], found.values[-1]))
            flip = -1 if direction and not (layers == 1 and not bidirectional and chance(rng, 0.3)) else 1
            if direction and flip == 1:
                d.flags.add("processing order")
            sides.append(found.outputs[::flip])
            numbers.append(found.output_values[::flip])
        if bidirectional:
            states = [d.graph.op("Concat", *pair, axis=-1) for pair in zip(*sides, strict=True)]
            results = [np.concatenate(pair, -1) for pair in zip(*numbers, strict=True)]
        else:
            states, results = sides[0], numbers[0]
        whole, xs, values = None, states, results
        if layer + 1 < layers and chance(rng, 0.5):
            whole = u.stacked(states, u.axis)
            xs = u.at_steps(whole, pick(rng, ["Gather", "Slice", "Split"]))
    chain_outputs(u, states, results, ends)
    if wrong is not None:
        d.flags |= wrong.flags
    return d.done("chain", None if wrong is None else f"{wrong.words} ({wrong.place})", must_not_fuse)


def chain_outputs(
    u: Unrolled, states: Sequence[str], results: Sequence[Array], ends: Sequence[tuple[str, Array]]
) -> None:
    """Add outputs: the last states, all states stacked, some of them, or several of these."""
    d, rng = u.d, u.d.rng
    shown = pick(rng, ["last", "stacked", "both", "some"])
    d.notes.append(f"outputs: {shown}")
    wide = results[0].shape[1]
    if shown in ("last", "both", "some"):
        for i, (tensor, values) in enumerate(ends):
            d.output(f"last{i}", tensor, values, [d.rows, values.shape[1]])
    if shown in ("stacked", "both"):
        axis = int(rng.integers(2))
        shape = [d.rows, u.T, wide] if axis else [u.T, d.rows, wide]
        d.output("Y", u.stacked(states, axis), np.stack(results, axis), shape)
    if shown == "some":
        for t in range(u.T):
            if chance(rng, 0.5):
                d.output(f"state{t}", states[t], results[t], [d.rows, wide])
