"""Decompose one GRU step into ONNX operators, in random variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tests.support.decomposed.activations import FORMS, write
from tests.support.decomposed.equations import Cell, exchanged
from tests.support.decomposed.graph import Array, Generator, Graph, chance, pick

#: The groups of gates with a common product, where n may take part and where it is separate.
GROUPS_OF_THREE = ("zrn", "rzn", "nzr", "nrz", "znr", "rnz", "zr|n", "n|rz", "z|r|n", "r|n|z", "zn|r")
GROUPS_OF_TWO = ("zr", "rz", "z|r", "r|z")


@dataclass(frozen=True)
class Style:
    """Variant of a step, drawn once for all steps of a chain or separately for each."""

    product: str
    joined: str
    x_groups: str
    h_groups: str
    zr_groups: str
    together: bool
    cut: str
    bias: str
    late: bool
    blend: int
    exchanged: bool
    forms: tuple[int, int, int]
    clip: str

    def __str__(self) -> str:
        return (
            f"{self.product}, {self.joined or 'x and h apart'}, x side {self.x_groups}, h {self.h_groups},"
            f" joined {self.zr_groups}, {'one activation for z and r' if self.together else 'z and r apart'},"
            f" {self.cut}, biases {self.bias}{' after the split' if self.late else ''}, blend {self.blend},"
            f" {'u = 1-z, ' if self.exchanged else ''}forms {self.forms}, {self.clip} for bounds"
        )


def draw_style(rng: Generator, cell: Cell, *, fault: str | None = None, plain: bool = False) -> Style:
    """Draw a style that the cell and its fault allow; a plain one does not exchange the roles."""
    swap = cell.functions[0].symmetric and fault is None and not plain
    style = Style(
        product=pick(rng, ["MatMul", "Gemm", "Einsum"]),
        joined=pick(rng, ["", "", "xh", "hx"]),
        x_groups=pick(rng, GROUPS_OF_THREE),
        h_groups=pick(rng, GROUPS_OF_THREE if cell.reset_after else GROUPS_OF_TWO),
        zr_groups=pick(rng, GROUPS_OF_TWO),
        together=chance(rng, 0.5),
        cut=pick(rng, ["Split", "Slice", "Gather"]),
        bias=pick(rng, ["sides", "sides", "x", "h", "sum", "parts"]),
        late=chance(rng, 0.4),
        blend=int(rng.integers(3)),
        exchanged=swap and chance(rng, 0.3),
        forms=draw_forms(rng, cell),
        clip=pick(rng, ["Clip", "Min Max"]),
    )
    return replace(style, joined="", bias="sides") if fault == "reset on x" else style


def draw_forms(rng: Generator, cell: Cell) -> tuple[int, int, int]:
    z, r, n = (int(rng.integers(FORMS[function.name])) for function in cell.functions)
    return (z, z if chance(rng, 0.7) else r, n)


@dataclass(frozen=True)
class Piece:
    """Tensor [.., gates * H], with the biases of its gates that still have to be added."""

    gates: str
    name: str
    pending: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """Tensors of a written step."""

    new: str
    z: str
    r: str
    n: str


def product(graph: Graph, kind: str, x: str, M: Array, bias: Array | None = None, rank: int = 2) -> str:
    """Return x M.T + bias for M [out, in]; x has `rank` axes."""
    rng = graph.rng
    if kind == "Gemm" and rank == 2:
        return _gemm(graph, x, M, bias)
    scale = pick(rng, [0.5, 2.0]) if chance(rng, 0.1) else 1.0
    if kind == "Einsum":
        before = "b" if rank == 2 else "tb"
        if chance(rng, 0.5):
            found = graph.op("Einsum", x, graph.weight(M / scale), equation=f"{before}i,oi->{before}o")
        else:
            found = graph.op("Einsum", x, graph.weight(M.T / scale), equation=f"{before}i,io->{before}o")
    else:
        found = graph.op("MatMul", x, graph.weight(M.T / scale))
    if scale != 1.0:
        found = graph.either("Mul", found, graph.scalar(scale))
    return found if bias is None else add_bias(graph, found, bias)


def _gemm(graph: Graph, x: str, M: Array, bias: Array | None) -> str:
    rng = graph.rng
    numbers: dict[str, float] = {}
    inputs = [x]
    if chance(rng, 0.25):
        numbers["alpha"] = pick(rng, [0.5, 2.0])
        M = M / numbers["alpha"]
    transposed = int(rng.integers(2))
    inputs.append(graph.weight(M if transposed else M.T.copy()))
    in_gemm = bias is not None and chance(rng, 0.7)
    if bias is not None and in_gemm:
        if chance(rng, 0.25):
            numbers["beta"] = pick(rng, [0.5, 2.0])
            bias = bias / numbers["beta"]
        inputs.append(graph.weight(bias if chance(rng, 0.7) else bias[None], bias=True))
    more = {"transB": transposed} if transposed or chance(rng, 0.3) else {}
    found = graph.op("Gemm", *inputs, **more, **numbers)
    return found if bias is None or in_gemm else add_bias(graph, found, bias)


def add_bias(graph: Graph, tensor: str, bias: Array) -> str:
    """Add a bias: unchanged, as [1, n], scaled, or negated for Sub."""
    rng = graph.rng
    if chance(rng, 0.1):
        return graph.op("Sub", tensor, graph.weight(-bias, bias=True))
    if chance(rng, 0.1):
        scaled = graph.either("Mul", graph.weight(bias * 2.0, bias=True), graph.scalar(0.5))
        return graph.either("Add", tensor, scaled)
    return graph.either("Add", tensor, graph.weight(bias if chance(rng, 0.8) else bias[None], bias=True))


class Writer:
    """Writer of one step. `cell` has the parameters to write, with or without exchanged roles."""

    def __init__(self, graph: Graph, cell: Cell, style: Style) -> None:
        self.graph = graph
        self.style = style
        self.cell = exchanged(cell) if style.exchanged else cell
        self.W, self.R = self.cell.W, self.cell.R
        self.parts: dict[tuple[str, str], str] = {}
        self.zr: list[Piece] = []

    def rows(self, matrix: Array, gates: str) -> Array:
        return np.concatenate([self.cell.gate(matrix, gate) for gate in gates])

    def biases(self) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Return the biases of each gate for x, for h, and for their sum."""
        x: dict[str, Array] = {}
        h: dict[str, Array] = {}
        total: dict[str, Array] = {}
        for gate in "zrn":
            Wb, Rb = self.cell.gate(self.cell.Wb, gate), self.cell.gate(self.cell.Rb, gate)
            if gate == "n" and self.cell.reset_after:
                h[gate] = Rb
                (total if self.style.bias == "sum" else x)[gate] = Wb
            elif self.style.bias == "x":
                x[gate] = Wb + Rb
            elif self.style.bias == "h":
                h[gate] = Wb + Rb
            elif self.style.bias == "sum":
                total[gate] = Wb + Rb
            elif self.style.bias == "parts":
                x[gate], total[gate] = 0.5 * (Wb + Rb), 0.5 * (Wb + Rb)
            else:
                x[gate], h[gate] = Wb, Rb
        found = [{gate: bias for gate, bias in side.items() if bias.any()} for side in (x, h, total)]
        return found[0], found[1], found[2]

    def side(
        self, x: str, matrix: Array, groups: str, biases: Mapping[str, Array], rank: int = 2, kind: str = ""
    ) -> list[Piece]:
        """Return the products of x with all gates, in groups, with their biases added or pending."""
        pieces = []
        for gates in groups.split("|"):
            mine = {gate: biases[gate] for gate in gates if gate in biases}
            bias = None
            if mine and not self.style.late:
                bias = np.concatenate([mine.get(gate, np.zeros(self.cell.H)) for gate in gates])
                mine = {}
            M = self.rows(matrix, gates)
            name = product(self.graph, kind or self.style.product, x, M, bias, rank)
            pieces.append(Piece(gates, name, mine))
        return pieces

    def project(self, x: str, rank: int, kind: str) -> list[Piece]:
        """Return the products for all steps of x at once."""
        return self.side(x, self.W, self.style.x_groups, self.biases()[0], rank, kind)

    def take(self, pieces: Sequence[Piece], wanted: Sequence[str]) -> list[str]:
        """Return gates, or runs of gates, from the pieces, with pending biases added."""
        found: dict[str, str] = {}
        for piece in pieces:
            mine = [run for run in wanted if run in piece.gates]
            if all((piece.name, run) in self.parts for run in mine):
                for run in mine:
                    found[run] = self.with_bias(self.parts[piece.name, run], run, piece.pending)
                continue
            left = piece.gates
            for run in mine:
                left = left.replace(run, "|" + "." * len(run) + "|")
            rest = [run for run in left.replace(".", "").split("|") if run]
            runs = sorted([*mine, *rest], key=piece.gates.index)
            if self.style.cut == "Split" or len(runs) == 1:
                sizes = [len(run) * self.cell.H for run in runs]
                axis = pick(self.graph.rng, [-1, 1])
                cut = self.graph.slices(piece.name, sizes, axis, self.style.cut)
                self.parts |= {(piece.name, run): part for run, part in zip(runs, cut, strict=True)}
            else:
                for run in mine:
                    start = piece.gates.index(run) * self.cell.H
                    end = start + len(run) * self.cell.H
                    last = end == len(piece.gates) * self.cell.H
                    axis = pick(self.graph.rng, [-1, 1])
                    part = self.graph.part(piece.name, start, end, axis, self.style.cut, last)
                    self.parts[piece.name, run] = part
            for run in mine:
                found[run] = self.with_bias(self.parts[piece.name, run], run, piece.pending)
        return [found[run] for run in wanted]

    def with_bias(self, tensor: str, run: str, biases: Mapping[str, Array]) -> str:
        if not any(gate in biases for gate in run):
            return tensor
        zero = np.zeros(self.cell.H)
        return add_bias(self.graph, tensor, np.concatenate([biases.get(gate, zero) for gate in run]))

    def activate(self, gate: str, a: str) -> str:
        at = "zrn".index(gate)
        bounds = self.cell.bounds[at]
        graph = self.graph
        if bounds is not None:
            low, high = bounds
            if self.style.clip == "Clip":
                a = graph.op("Clip", a, graph.constant(low), graph.constant(high))
            elif chance(graph.rng, 0.5):
                a = graph.either("Max", graph.either("Min", a, graph.scalar(high)), graph.scalar(low))
            else:
                a = graph.either("Min", graph.either("Max", a, graph.scalar(low)), graph.scalar(high))
        return write(graph, self.cell.functions[at], a, self.style.forms[at])

    def gates(self, sums: Sequence[Piece]) -> tuple[str, str]:
        """Return z and r from sums of products: by one activation if they are concatenated, or separately."""
        functions, bounds = self.cell.functions, self.cell.bounds
        alike = functions[0] == functions[1] and bounds[0] == bounds[1]
        run = next((run for run in ("zr", "rz") if any(run in piece.gates for piece in sums)), None)
        if run is None or not alike or not self.style.together:
            z, r = self.take(sums, ["z", "r"])
            return self.activate("z", z), self.activate("r", r)
        both = self.activate("z", self.take(sums, [run])[0])
        first, second = self.take([Piece(run, both)], [run[0], run[1]])
        return (first, second) if run == "zr" else (second, first)

    def sums(self, xs: Sequence[Piece], hs: Sequence[Piece], biases: Mapping[str, Array]) -> list[Piece]:
        """Return the sums of x's and h's products for z and r, by one Add if their orders agree."""
        together = self.style.together or chance(self.graph.rng, 0.5)
        for run in ("zr", "rz") if together else ():
            if all(any(run in piece.gates for piece in side) for side in (xs, hs)):
                total = self.graph.either("Add", self.take(xs, [run])[0], self.take(hs, [run])[0])
                if self.style.late:
                    return [Piece(run, total, {g: biases[g] for g in run if g in biases})]
                return [Piece(run, self.with_bias(total, run, biases))]
        x, h = (self.take(side, ["z", "r"]) for side in (xs, hs))
        added = [self.graph.either("Add", x[i], h[i]) for i in range(2)]
        return [Piece(gate, self.with_bias(added[i], gate, biases)) for i, gate in enumerate("zr")]

    def products(
        self, x: str, read: str, projected: Sequence[Piece] | None
    ) -> tuple[list[Piece], list[Piece]]:
        """Return the products of x and h for n; the sums of z and r are stored in `self.zr`."""
        on_x, on_h, on_sum = self.biases()
        groups = self.style.h_groups
        if self.style.joined and projected is None:
            both = [x, read] if self.style.joined == "xh" else [read, x]
            matrices = [self.W, self.R] if self.style.joined == "xh" else [self.R, self.W]
            joined = self.graph.op("Concat", *both, axis=pick(self.graph.rng, [-1, 1]))
            parts = [{gate: side[gate] for gate in "zr" if gate in side} for side in (on_x, on_h, on_sum)]
            bias: dict[str, Array] = {}
            for part in parts:
                for gate, more in part.items():
                    bias[gate] = bias[gate] + more if gate in bias else more
            M = np.concatenate(matrices, axis=1)
            self.zr = self.side(joined, M, self.style.zr_groups, bias)
            xs = [] if not self.cell.reset_after else self.side(x, self.W, "n", on_x)
            return xs, self.side(read, self.R, "n", on_h) if self.cell.reset_after else []
        xs = list(self.side(x, self.W, self.style.x_groups, on_x) if projected is None else projected)
        hs = self.side(read, self.R, groups, on_h)
        self.zr = self.sums(xs, hs, on_sum)
        return xs, hs

    def candidate(self, x: str, read: str, r: str | None, xs: Sequence[Piece], hs: Sequence[Piece]) -> str:
        """Return the input of n's activation; r is None in a step that lacks it."""
        graph = self.graph
        _, on_h, on_sum = self.biases()
        if self.cell.reset_after:
            h = self.take(hs, ["n"])[0]
            gated = h if r is None else graph.either("Mul", r, h)
            total = graph.either("Add", self.take(xs, ["n"])[0], gated)
            return self.with_bias(total, "n", on_sum)
        gated = read if r is None else graph.either("Mul", r, read)
        if not xs:
            order = [x, gated] if self.style.joined == "xh" else [gated, x]
            blocks = [self.W, self.R] if self.style.joined == "xh" else [self.R, self.W]
            joined = graph.op("Concat", *order, axis=pick(graph.rng, [-1, 1]))
            M = np.concatenate([self.cell.gate(block, "n") for block in blocks], axis=1)
            bias = self.cell.bias("n")
            return product(graph, self.style.product, joined, M, bias if bias.any() else None)
        h = self.take(self.side(gated, self.R, "n", on_h), ["n"])[0]
        return self.with_bias(graph.either("Add", self.take(xs, ["n"])[0], h), "n", on_sum)

    def blend(self, z: str, r: str, n: str, h: str, a: str | None, fault: str | None) -> str:
        """Return h' from the gates; z is u = 1 - z if the roles are exchanged."""
        graph, mul, form = self.graph, "Mul", self.style.blend
        if self.style.exchanged:
            n, h = h, n
        one = graph.scalar(0.75 if fault == "not one" else 1.0, self.cell.H)
        weight_of_h, weight_of_n = z, None
        if a is not None and fault != "attention on r":
            left = graph.op("Sub", graph.scalar(1.0), a)
            if fault == "attention on 1-z":
                weight_of_n = graph.either(mul, left, graph.op("Sub", one, z))
            else:
                weight_of_h = graph.either(mul, left, z)
            if fault == "attention on h":
                weight_of_n = graph.op("Sub", one, z)
        if fault == "wrong sign":
            return graph.either("Add", n, graph.either(mul, z, graph.op("Sub", n, h)))
        plain = fault is None or fault in ("stale", "tied", "no reset", "update inside", "reset on x")
        if (plain or fault in ("attention on r", "wide attention")) and form > 0:
            difference = graph.op("Sub", h, n)
            if form == 1:
                return graph.either("Add", n, graph.either(mul, weight_of_h, difference))
            other = graph.op("Sub", one, weight_of_h)
            return graph.op("Sub", h, graph.either(mul, other, difference))
        if weight_of_n is None:
            weight_of_n = graph.op("Sub", one, weight_of_h)
        if fault == "mixed gates":
            weight_of_h = r
        elif fault == "wrong blend":
            weight_of_h = weight_of_n
        elif fault == "swapped roles":
            weight_of_h, weight_of_n = weight_of_n, weight_of_h
        return graph.either("Add", graph.either(mul, weight_of_n, n), graph.either(mul, weight_of_h, h))


def write_cell(
    graph: Graph,
    cell: Cell,
    style: Style,
    x: str,
    h: str,
    *,
    a: str | None = None,
    fault: str | None = None,
    stale: str | None = None,
    projected: Sequence[Piece] | None = None,
) -> Names:
    """Write one step; `projected` are products with x that exist already."""
    writer = Writer(graph, cell, style)
    read = h if stale is None else stale
    xs, hs = writer.products(x, read, projected)
    z, r = writer.gates(writer.zr)
    seen: str | None = r
    if fault == "update inside":
        seen = graph.either("Mul", r, z)
    elif fault == "tied":
        seen = z
    elif fault == "no reset":
        seen = None
    elif fault == "attention on r" and a is not None:
        seen = graph.either("Mul", graph.op("Sub", graph.scalar(1.0), a), r)
    if fault == "reset on x":
        both = graph.either("Add", *_whole(writer, xs, hs, read))
        s = graph.either("Mul", r, both)
    else:
        s = writer.candidate(x, read, seen, xs, hs)
    n = writer.activate("n", s)
    return Names(writer.blend(z, r, n, h, a, fault), z, r, n)


def _whole(writer: Writer, xs: Sequence[Piece], hs: Sequence[Piece], read: str) -> tuple[str, str]:
    """Return the candidate's products with x and h, with their biases and without r."""
    own = hs if writer.cell.reset_after else writer.side(read, writer.R, "n", writer.biases()[1])
    return writer.take(xs, ["n"])[0], writer.take(own, ["n"])[0]
