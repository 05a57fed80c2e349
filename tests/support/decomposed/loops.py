"""Write GRUs as Scan and Loop nodes, with a decomposed step in their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from tests.support.decomposed.cells import Names, Piece, Writer, draw_style, write_cell
from tests.support.decomposed.equations import Cell, Results, draw_cell, step
from tests.support.decomposed.frames import Frame, LoopFrame, Plan, ScanFrame, Setting, Source, swapped
from tests.support.decomposed.graph import Array, Generator, Graph, chance, pick
from tests.support.decomposed.models import Decomposed, Draft, as_gru, draft


@dataclass
class Made:
    """Results of a loop: the last state, all outputs with time at `axis`, and the extra output."""

    last: str
    all: str
    axis: int
    last_values: Array
    all_values: Array
    extra: str | None = None
    extra_values: Array | None = None


class Looped:
    """Writer of a loop: its body and the operators around it."""

    def __init__(self, at: Setting) -> None:
        self.at = at
        self.d = at.d
        self.T = at.T

    def write(self, plan: Plan, source: Source, name: str) -> Made:
        d, rng = self.d, self.d.rng
        special = self.at.scores is not None or plan.faulty
        style = draw_style(rng, plan.cell, fault=plan.in_step, plain=special)
        pieces: list[Piece] = []
        if plan.hoisted:
            style = replace(style, joined="")
            writer = Writer(d.graph, plan.cell, style)
            pieces = writer.project(source.name, 3, pick(rng, ["MatMul", "Einsum"]))
        notes = [w for w in ("carries", "hoisted", "zero", "arithmetic") if getattr(plan, w)]
        d.notes.append(
            f"{name}: {plan.kind} {'reverse' if plan.reverse else 'forward'} {plan.masking} {notes}: {style}"
        )
        h0, h0_values = d.initial(f"{name}_h0", self.at.X.name, 1 - self.at.X.axis)
        outputs, last, extra, kept = self.equations(plan, source.values, h0_values)
        body = Graph(rng, d.opset, outer=d.graph)
        body.carries, body.spoils = plan.carries, plan.fault == "weights change"
        frame: Frame = (ScanFrame if plan.kind == "Scan" else LoopFrame)(self.at, plan, body)
        h = frame.state(h0, [d.rows, plan.cell.H])
        old = frame.state(h0, [d.rows, plan.cell.H]) if plan.in_step == "stale" else None
        a = None if self.at.scores is None else frame.take(self.at.scores.name, self.at.scores.axis)
        x, projected = "", None
        if pieces:
            projected = [replace(piece, name=frame.take(piece.name, source.axis)) for piece in pieces]
        else:
            x = frame.take(source.name, source.axis)
        if plan.fault == "autoregressive":
            back = body.op("MatMul", h, body.constant(np.full((plan.cell.H, plan.cell.I), 0.5)))
            x = body.either("Add", x, back)
        names = write_cell(
            body, plan.cell, style, x, h, a=a, fault=plan.in_step, stale=old, projected=projected
        )
        going, shown = self.hold(plan, frame, body, names, h)
        frame.ends(h, body.op("Mul", going, body.scalar(0.5)) if plan.fault == "halved state" else going)
        if old is not None:
            frame.ends(old, body.op("Identity", h))
        if plan.fault == "early exit":
            total = body.op("ReduceSum", going, keepdims=0)
            frame.go_on = body.op("Less", total, body.constant(np.array(kept)))
        wanted = [shown] if plan.extra is None else [shown, _gate(names, plan.extra)]
        states, scans, axis = frame.close(wanted)
        d.grus.append(
            as_gru(
                plan.right or plan.cell,
                attention=self.at.scores is not None,
                reverse=plan.reverse,
                styles=[style],
            )
        )
        in_time = frame.in_time
        if plan.reverse and not in_time:
            d.flags.add("processing order")
            outputs, extra = outputs[::-1], None if extra is None else extra[::-1]
        return Made(
            states[h], scans[0], axis, last, outputs, scans[1] if plan.extra is not None else None, extra
        )

    def hold(self, plan: Plan, frame: Frame, body: Graph, names: Names, h: str) -> tuple[str, str]:
        """Return the next state and the output of a step, where some rows are held."""
        new = names.new
        if not plan.masking:
            return new, h if plan.fault == "stale output" else new
        m = frame.mask()
        if plan.arithmetic:
            number = body.op("Cast", m, to=TensorProto.FLOAT)
            rest = body.op("Sub", body.scalar(1.0), number)
            new_part = body.either("Mul", number, new)
            going = body.either("Add", new_part, body.either("Mul", rest, h))
            return going, body.either("Mul", number, new) if plan.zero else going
        below = plan.fault == "held below"
        going = body.where(m, h, new) if below else body.where(m, new, h)
        if not plan.zero:
            return going, going
        zero = body.constant(np.zeros(pick(self.d.rng, [(), (1,), (plan.cell.H,)])))
        return going, body.where(m, zero, new) if below else body.where(m, new, zero)

    def equations(self, plan: Plan, xs: Array, h: Array) -> tuple[Array, Array, Array | None, float]:
        """Return outputs in time, last state, extra output, and the bound of a loop that ends early."""
        T, cell = self.T, plan.cell
        order = list(range(T))[::-1] if plan.reverse else list(range(T))
        indices = order
        if plan.fault == "x fixed":
            indices = [0] * T
        elif plan.fault == "order":
            indices = [order[i] for i in swapped(T)]
        allowed = self.at.allowed() != (plan.fault == "held below")
        outputs = np.zeros((T, self.d.B, cell.H))
        extra = np.zeros_like(outputs)
        states: list[Array] = []
        before = h
        for i, t in enumerate(order):
            x = xs[indices[i]]
            if plan.fault == "autoregressive":
                x = x + h @ np.full((cell.H, cell.I), 0.5)
            now = cell
            if plan.fault == "weights change":
                now = replace(cell, W=cell.W * 0.5**i, R=cell.R * 0.5**i)
            a = None if self.at.scores is None else self.at.scores.values[t]
            stale = before if plan.in_step == "stale" else None
            found: Results = step(now, x, h, a, plan.in_step, stale)
            on = allowed[t][:, None]
            going = np.where(on, found.new, h)
            outputs[t] = np.where(on, found.new, 0.0) if plan.zero else going
            if plan.fault == "stale output":
                outputs[t] = h
            if plan.extra is not None:
                extra[t] = {"z": found.z, "r": found.r, "n": found.n}[plan.extra]
            if plan.faulty:
                has_no_match = plan.in_step == "wide attention" or plan.extra is not None
                has_no_match = has_no_match or plan.fault in ("early exit", "halved state")
                right = step(cell if plan.right is None else plan.right, xs[t], h, a).new
                self.d.compare(going if plan.fault != "stale output" else h, None if has_no_match else right)
            before, h = h, going * 0.5 if plan.fault == "halved state" else going
            states.append(h)
        bound = 0.0
        if plan.fault == "early exit":
            sums = [float(state.sum()) for state in states]
            bound = float(np.float32(max(sums[:-1]) - 0.01))
            h = next(state for state, total in zip(states, sums, strict=True) if total >= bound)
        return outputs, h, extra if plan.extra is not None else None, bound


def _gate(names: Names, gate: str) -> str:
    return {"z": names.z, "r": names.r, "n": names.n}[gate]


def loop(
    rng: Generator,
    kind: str | None = None,
    *,
    layers: int | None = None,
    bidirectional: bool | None = None,
    reverse: bool | None = None,
    masking: str | None = None,
    attention: bool | None = None,
    cell: Cell | None = None,
    right: Cell | None = None,
    fault: str | None = None,
    in_step: str | None = None,
    extra: str | None = None,
    words: str | None = None,
    must_not_fuse: bool = False,
    spec: Draft | None = None,
) -> Decomposed:
    """Write a GRU as a Scan or a Loop; missing arguments are drawn."""
    d = draft(rng) if spec is None else spec
    wrong = fault is not None or in_step is not None or extra is not None or words is not None
    kind = pick(rng, ["Scan", "Loop"]) if kind is None else kind
    if layers is None:
        layers = 2 if not wrong and chance(rng, 0.15) else 1
    if bidirectional is None:
        bidirectional = not wrong and chance(rng, 0.2)
    T = int(rng.integers(2, 7))
    symbolic = chance(rng, 0.5) and fault != "order"
    if symbolic:
        d.flags.add("symbolic steps")
    axis = int(rng.integers(2))
    if axis:
        d.flags.add("batch first")
    steps: int | str = "steps" if symbolic else T
    outer: list[int | str] = [d.rows, steps] if axis else [steps, d.rows]
    sizes = [d.B, T] if axis else [T, d.B]
    d.notes.append(f"T {T}, {'[B,T,I]' if axis else '[T,B,I]'}")
    name, values = d.random("X", *outer, d.I, sizes=[*sizes, d.I])
    source = Source(name, axis, np.swapaxes(values, 0, axis))
    at = Setting(d, T, symbolic, source)
    looped = Looped(at)
    if masking is None:
        masking = pick(rng, ["", "", "", "", "lengths", "lengths", "mask"]) if fault is None else ""
    if masking == "lengths":
        lengths = rng.integers(0, T + 1, d.B).astype(pick(rng, ["int32", "int64"]))
        at.lengths = (d.feed("lengths", lengths, [d.rows])[0], lengths)
    elif masking:
        mask = rng.random(sizes) < 0.6
        d.feed("mask", mask, outer)
        at.mask = Source("mask", axis, np.swapaxes(mask, 0, axis))
    if attention if attention is not None else not wrong and not bidirectional and chance(rng, 0.1):
        width = d.H if in_step == "wide attention" else 1
        A, A_values = d.scores("A", *outer, width, sizes=[*sizes, width])
        at.scores = Source(A, axis, np.swapaxes(A_values, 0, axis))
    zero = bool(masking) and chance(rng, 0.5)
    if masking:
        d.flags |= {"lengths" if masking == "lengths" else "mask"}
        d.flags |= {"zero past the end" if zero else "held past the end"}
    made: list[Made] = []
    for layer in range(layers):
        backward = reverse if reverse is not None else chance(rng, 0.3)
        made = []
        for direction in [False, True] if bidirectional else [backward]:
            width = source.values.shape[2]
            plan = Plan(
                kind,
                cell if cell is not None and layer == 0 else draw_cell(rng, width, d.H),
                direction,
                fault,
                in_step,
                extra,
                masking,
                zero,
                arithmetic=chance(rng, 0.3) and fault != "held below",
                carries=fault == "weights change" or chance(rng, 0.2),
                right=right,
                faulty=wrong,
                hoisted=fault not in ("weights change", "autoregressive") and chance(rng, 0.3),
            )
            made.append(looped.write(plan, source, f"layer{layer}{'b' if direction else ''}"))
        source = _joined(d, made) if layer + 1 < layers or bidirectional else source
    _outputs(d, made, source if bidirectional else None, steps, fault)
    return d.done(kind, words, must_not_fuse)


def _joined(d: Draft, made: Sequence[Made]) -> Source:
    """Concatenate the outputs of the directions, with time at one axis."""
    axis = made[0].axis
    names = [
        one.all if one.axis == axis else d.graph.op("Transpose", one.all, perm=[1, 0, 2]) for one in made
    ]
    values = np.concatenate([one.all_values for one in made], -1)
    name = names[0] if len(names) == 1 else d.graph.op("Concat", *names, axis=pick(d.rng, [-1, 2]))
    return Source(name, axis, values)


def _outputs(
    d: Draft, made: Sequence[Made], joined: Source | None, steps: int | str, fault: str | None
) -> None:
    """Add outputs: the last states, the outputs of all steps, or both."""
    shown = "last" if fault == "early exit" else pick(d.rng, ["last", "all", "both"])
    if fault == "stale output":
        shown = "both"
    d.notes.append(f"outputs: {shown}")
    if shown in ("last", "both"):
        for i, one in enumerate(made):
            d.output(f"last{i}", one.last, one.last_values, [d.rows, d.H])
    if shown in ("all", "both"):
        whole = Source(made[0].all, made[0].axis, made[0].all_values) if joined is None else joined
        sizes = [d.rows, steps] if whole.axis else [steps, d.rows]
        d.output("Y", whole.name, np.swapaxes(whole.values, 0, whole.axis), [*sizes, whole.values.shape[2]])
    for one in made:
        if one.extra is not None and one.extra_values is not None:
            shape = [d.rows, steps, d.H] if one.axis else [steps, d.rows, d.H]
            d.output("extra", one.extra, np.swapaxes(one.extra_values, 0, one.axis), shape)
            d.flags.add("extra output")
