"""Single GRU steps, and GRUs unrolled over the steps of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.support.written_out_cells import Piece, Style, Writer, draw_style, write_cell
from tests.support.written_out_equations import Cell, draw_cell, sequence, step
from tests.support.written_out_graph import Array, Generator, chance, pick
from tests.support.written_out_models import Draft, WrittenOut, as_gru, draft


@dataclass
class Mistakes:
    """Where a chain departs from a GRU. The values that are None or empty change nothing.

    Attributes:
        words: what is wrong.
        at: the step, in the order of processing.
        cell: what the parameters of that step become.
        fault: a mistake in the equations of that step.
        order: the steps of x in the order in which they are taken.
        extra: the gate of that step that is an output of the model.
        feedback: whether x of the later steps depends on the state.
        skips: whether that step starts from the state two steps before.
        steps: how many steps the chain has.
        attention: whether it has an attention.
        flags: flags of the model.
    """

    words: str
    at: int
    cell: Cell | None = None
    fault: str | None = None
    order: Sequence[int] | None = None
    extra: str | None = None
    feedback: bool = False
    skips: bool = False
    steps: int = 0
    attention: bool = False
    flags: set[str] = field(default_factory=set)


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
) -> WrittenOut:
    """A single step with inputs x [B, I] and h [B, H]; a wrong cell departs from `right`."""
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
        assert tensor is not None
        d.output("extra", tensor, 1.0 - values if extra == "z" and style.exchanged else values, [d.rows, d.H])
        d.flags.add("extra output")
        d.compare(values, None)
    d.grus.append(
        as_gru(cell if right is None else right, attention=attention, reverse=False, styles=[style])
    )
    return d.done("cell", words, must_not_fuse)


class Unrolled:
    """Writes a GRU over the steps of x, once for each layer and direction."""

    def __init__(self, d: Draft, T: int, batch_first: bool) -> None:
        self.d = d
        self.T = T
        self.batch_first = batch_first
        self.axis = 1 if batch_first else 0
        self.rows_axis = 1 - self.axis

    def at_steps(self, tensor: str, form: str) -> list[str]:
        """The tensors [B, ..] of all steps of [T, B, ..] or [B, T, ..]."""
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
        """The products with x of all steps: made at once, then taken apart."""
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
    """Which rows go on at each step: tensors [B, 1] and values, in time; and how a state is held."""

    names: list[str]
    values: list[Array]
    arithmetic: bool


def draw_masks(u: Unrolled) -> Masks:
    """Steps below the rows' lengths, as an unrolled chain has them."""
    d, graph = u.d, u.d.graph
    dtype = pick(d.rng, ["int32", "int64"])
    found = d.rng.integers(0, u.T + 1, d.B).astype(dtype)
    lengths, _ = d.feed("lengths", found, [d.rows])
    column = graph.op("Unsqueeze", lengths, graph.integers(1))
    names = []
    for t in range(u.T):
        now = graph.constant(pick(d.rng, [np.array(t), np.array([t])]), dtype)
        less = chance(d.rng, 0.5)
        names.append(graph.op("Less", now, column) if less else graph.op("Greater", column, now))
    d.flags.add("lengths")
    return Masks(names, [(t < found)[:, None] for t in range(u.T)], chance(d.rng, 0.3))


def hold(d: Draft, masks: Masks, t: int, new: str, old: str) -> str:
    """The new state where the mask is set, the old one elsewhere."""
    graph = d.graph
    if not masks.arithmetic:
        return graph.op("Where", masks.names[t], new, old)
    m = graph.op("Cast", masks.names[t], to=1)
    rest = graph.op("Sub", graph.scalar(1.0), m)
    return graph.either("Add", graph.either("Mul", m, new), graph.either("Mul", rest, old))


def write_direction(
    u: Unrolled,
    cell: Cell,
    X: str | None,
    xs: Sequence[str],
    values: Sequence[Array],
    name: str,
    *,
    reverse: bool,
    like: tuple[str, int],
    scores: tuple[list[str], list[Array]] | None = None,
    masks: Masks | None = None,
    wrong: Mistakes | None = None,
) -> tuple[list[str], list[Array]]:
    """Unroll one direction of one layer; its states in the order of processing.

    X is the whole sequence, or None if there are only its steps `xs`; `values` are the steps in float64.
    """
    d, rng, graph, T = u.d, u.d.rng, u.d.graph, u.T
    fault = None if wrong is None else wrong.fault
    first = draw_style(rng, cell, fault=fault, plain=scores is not None or wrong is not None)
    anew = chance(rng, 0.2)
    styles = [first] * T
    hoisted = X is not None and chance(rng, 0.4) and (wrong is None or not (wrong.feedback or wrong.cell))
    if hoisted:
        first = replace(first, joined="")
        styles = [first] * T
        d.notes.append("x projected at once")
    elif anew:
        drawn = (draw_style(rng, cell, fault=fault) for _ in range(T - 1))
        again = [replace(style, forms=first.forms, exchanged=first.exchanged) for style in drawn]
        styles = [first, *again]
        d.flags.add("styles")
    d.notes.append(f"{name} {'reverse' if reverse else 'forward'}: {first}")
    order = list(wrong.order) if wrong is not None and wrong.order else list(range(T))
    if reverse:
        order = order[::-1]
    projected = u.projected(cell, first, X) if hoisted and X is not None else None
    h, h_values = d.initial(f"{name}_h0", *like)
    states, results = [h], [h_values]
    for i, t in enumerate(order):
        here = wrong is not None and wrong.at == i
        this, mistake, stale, stale_values = cell, None, None, None
        start, start_values = states[-1], results[-1]
        x, x_values = (xs[t] if xs else ""), values[t]
        if wrong is not None and wrong.feedback and i >= wrong.at and i > 0:
            x, x_values = feed_back(u, cell, x, x_values, states[-1], results[-1])
        if here and wrong is not None:
            this = cell if wrong.cell is None else wrong.cell
            mistake = wrong.fault
            if mistake == "stale":
                stale, stale_values = states[-2], results[-2]
            if wrong.skips:
                start, start_values = states[-2], results[-2]
        a, a_values = (None, None) if scores is None else (scores[0][t], scores[1][t])
        pieces = None if projected is None else projected[t]
        style = styles[i]
        if this.reset_after != cell.reset_after:
            style = replace(draw_style(rng, this, plain=True), forms=style.forms)
        names = write_cell(graph, this, style, x, start, a=a, fault=mistake, stale=stale, projected=pieces)
        found = step(this, x_values, start_values, a_values, mistake, stale_values)
        new, new_values = names.new, found.new
        if masks is not None:
            new = hold(d, masks, t, new, start)
            new_values = np.where(masks.values[t], new_values, start_values)
        if here and wrong is not None and wrong.extra is not None:
            tensor = {"z": names.z, "r": names.r, "n": names.n}[wrong.extra]
            seen = {"z": found.z, "r": found.r, "n": found.n}[wrong.extra]
            assert tensor is not None
            d.output("extra", tensor, seen, [d.rows, cell.H])
        if wrong is not None and (here or wrong.order or wrong.feedback):
            usual = values[T - 1 - i if reverse else i]
            alone = wrong.extra is not None or mistake == "wide attention"
            d.compare(new_values, None if alone else step(cell, usual, results[-1], a_values).new)
        states.append(new)
        results.append(new_values)
    if wrong is None:
        check = sequence(
            [cell] * T,
            [values[t] for t in order],
            h_values,
            None if scores is None else [scores[1][t] for t in order],
            None if masks is None else [masks.values[t] for t in order],
        )
        assert all(np.array_equal(a, b) for a, b in zip(check, results[1:], strict=True))
    d.grus.append(as_gru(cell, attention=scores is not None, reverse=reverse, styles=styles))
    return states[1:], results[1:]


def feed_back(u: Unrolled, cell: Cell, x: str, values: Array, h: str, state: Array) -> tuple[str, Array]:
    """x with a product of the state added to it, as a decoder feeds its own output back."""
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
    lengths: bool | None = None,
    attention: bool | None = None,
    cell: Cell | None = None,
    wrong: Mistakes | None = None,
    must_not_fuse: bool = False,
    spec: Draft | None = None,
) -> WrittenOut:
    """A GRU unrolled over the steps of X; what is not given is drawn."""
    d = draft(rng) if spec is None else spec
    if layers is None:
        layers = 2 if chance(rng, 0.2) else 1
    if bidirectional is None:
        bidirectional = chance(rng, 0.2)
    T = int(rng.integers(2, 7)) if wrong is None or not wrong.steps else wrong.steps
    u = Unrolled(d, T, chance(rng, 0.5))
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
    masks = None
    if lengths if lengths is not None else chance(rng, 0.12):
        masks = draw_masks(u)
        d.flags.add("held past the end")
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
            like = (X, u.rows_axis)
            found = write_direction(
                u, this, whole, xs, values, name,
                reverse=direction, like=like, scores=scores, masks=masks, wrong=wrong,
            )  # fmt: skip
            ends.append((found[0][-1], found[1][-1]))
            flip = -1 if direction and not (layers == 1 and not bidirectional and chance(rng, 0.3)) else 1
            if direction and flip == 1:
                d.flags.add("processing order")
            sides.append(found[0][::flip])
            numbers.append(found[1][::flip])
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
    return d.done("chain", None if wrong is None else f"{wrong.words} (step {wrong.at})", must_not_fuse)


def chain_outputs(
    u: Unrolled, states: Sequence[str], results: Sequence[Array], ends: Sequence[tuple[str, Array]]
) -> None:
    """The last states, all states stacked, some of them, or several of these."""
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
