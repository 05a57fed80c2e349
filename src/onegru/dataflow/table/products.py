"""Describe matrix and tensor products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.dataflow.operator import Op, Shape, Size
from onegru.dataflow.table.base import (
    SUMS,
    ArrayCall,
    Call,
    Move,
    Operator,
    UnknownOpError,
    Vectorization,
    check_size,
    register,
)
from onegru.dataflow.table.pointwise import broadcast

_GEMM = "alpha beta transA transB"


class MatMul(Operator):
    computes: bool = True
    dtype: str | int | None = 0
    max_inputs: int = 2

    def shape(self, call: Call, output: int) -> Shape | None:
        first, second = call.shape(), call.shape(1)
        if not first or not second:
            return None
        stacked = broadcast([first[:-2], second[:-2]] if first[:-2] or second[:-2] else [()])
        rows = first[-2:-1] if len(first) > 1 else ()
        return (*stacked, *rows, *(second[-1:] if len(second) > 1 else ()))

    def value(self, call: ArrayCall) -> Sequence[Array]:
        a, b = call.array(), call.array(1)
        if a.ndim and b.ndim:
            check_size([a.size // max(a.shape[-1], 1), b.shape[-1] if b.ndim > 1 else 1])
        return [np.asarray(np.matmul(a, b))]

    def moves(self, call: Call) -> Iterator[Move]:
        ranks = [call.rank(0), call.rank(1)]
        out = max(*ranks, 2)
        for index, rank in enumerate(ranks):
            other = call.shape(1 - index)
            for axis in range(rank - 2):
                from_end = axis - rank
                if call.shape(index)[axis] != 1 or len(other) < -from_end or other[from_end] == 1:
                    yield Move(index, axis, out + from_end)
            yield Move(index, rank - 1 if index == 0 else max(rank - 2, 0), None, 0, "mixes", SUMS)
            if rank > 1:
                kept = rank - 2 if index == 0 else rank - 1
                yield Move(index, kept, out - 2 + (index if ranks[0] > 1 else 0))

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        a, b = call.rank(0), call.rank(1)
        fits = a == b >= 2 if all(varies) else b <= 2 or b <= a if varies[0] else 2 <= b >= a
        if not fits:
            raise UnknownOpError("its matmul cannot be computed for all iterations at once")
        return Vectorization()


class MatMulInteger(MatMul):
    """MatMul whose inputs may have zero points: one, or one for each row or column."""

    computes: bool = False
    max_inputs: int = 4

    def moves(self, call: Call) -> Iterator[Move]:
        yield from super().moves(call)
        rank = max(call.rank(0), call.rank(1), 2)
        for index in range(2, len(call.op.inputs)):
            points = call.rank(index) if call.is_given(index) else 0
            if points > 1 or (points == 1 and min(call.rank(0), call.rank(1)) < 2):
                raise UnknownOpError
            if points == 1:
                yield Move(index, 0, rank - 4 + index)


class FusedMatMul(MatMul):
    """MatMul with optional transposed inputs and a factor, from ONNX Runtime's optimizer."""

    def supports(self, op: Op) -> bool:
        return super().supports(op) and not any(op.attributes.get(f"transBatch{end}") for end in "AB")

    def swaps(self, call: Call, index: int) -> bool:
        """Whether the last two axes of an input are swapped."""
        return bool(call.get(("transA", "transB")[index])) and call.rank(index) > 1

    def _plain(self, call: Call) -> Call:
        """Return the MatMul after the Transposes."""
        if not self.supports(call.op):
            raise UnknownOpError
        shapes = [call.shape(0), call.shape(1)]
        swapped = [(*s[:-2], s[-1], s[-2]) if self.swaps(call, k) else s for k, s in enumerate(shapes)]
        return Call(call.op, call.facts, swapped, call.opset)

    def shape(self, call: Call, output: int) -> Shape | None:
        return super().shape(self._plain(call), output)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        if not self.supports(call.op):
            raise UnknownOpError
        arrays = [np.swapaxes(x, -1, -2) if self.swaps(call, k) else x for k, x in enumerate(call.arrays)]
        (y,) = super().value(ArrayCall("MatMul", {}, arrays))
        return [np.asarray(call.get("alpha", 1.0) * y).astype(y.dtype, copy=False)]

    def moves(self, call: Call) -> Iterator[Move]:
        for move in super().moves(self._plain(call)):
            last = call.rank(move.input) - 1
            is_swapped = self.swaps(call, move.input) and move.axis >= last - 1
            yield replace(move, axis=2 * last - 1 - move.axis) if is_swapped else move

    def vectorization(self, call: Call, varies: Sequence[bool]) -> Vectorization:
        raise UnknownOpError


class Gemm(Operator):
    computes: bool = True
    dtype: str | int | None = 0
    max_inputs: int = 3

    def shape(self, call: Call, output: int) -> Shape | None:
        rows = call.shape()[1 if call.get("transA") else 0]
        return rows, call.shape(1)[0 if call.get("transB") else 1]

    def value(self, call: ArrayCall) -> Sequence[Array]:
        a, b = call.array(), call.array(1)
        a, b = (a.T if call.get("transA") else a), (b.T if call.get("transB") else b)
        check_size([a.shape[0], b.shape[1]])
        y = call.get("alpha", 1.0) * (a @ b)
        if (bias := call.constant(2)) is not None and call.get("beta", 1.0) != 0:
            y = y + call.get("beta", 1.0) * bias
        return [np.asarray(y).astype(a.dtype, copy=False)]

    def moves(self, call: Call) -> Iterator[Move]:
        for index, name in enumerate(("transA", "transB")):
            summed = (1 - index) ^ int(call.get(name, 0))
            yield Move(index, summed, None, 0, "mixes", SUMS)
            yield Move(index, 1 - summed, index)
        if call.is_given(2):
            rank = call.rank(2)
            yield from (Move(2, axis, 2 - rank + axis) for axis in range(rank) if call.shape(2)[axis] != 1)


class FusedGemm(Gemm):
    """Gemm with an activation of its output, from ONNX Runtime's optimizer."""

    def supports(self, op: Op) -> bool:
        return super().supports(op) and str(op.attributes.get("activation")) in ACTIVATIONS

    def value(self, call: ArrayCall) -> Sequence[Array]:
        if not self.supports(call.op):
            raise UnknownOpError
        last = ArrayCall(call.op.attributes["activation"], activation_numbers(call.op), super().value(call))
        return last.operator.value(last)


def activation_numbers(op: Op) -> dict[str, Any]:
    """Return the attributes of a fused activation, by their names in the activation's operator."""
    start = "activation_"
    return {key.removeprefix(start): item for key, item in op.attributes.items() if key.startswith(start)}


def einsum_terms(op: Op, ranks: Sequence[int] = ()) -> list[str] | None:
    """Return the letters of an Einsum's inputs and output; None if the ranks do not fit."""
    left, arrow, right = str(op.attributes.get("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if arrow and "." not in left + right:
        return [*terms, right]
    free = [rank - len(term) + 3 if "." in term else 0 for rank, term in zip(ranks, terms, strict=False)]
    if len(ranks) != len(terms) or min(free) < 0:
        return None
    ellipsis = "".join(chr(0x3B1 + index) for index in range(max(free)))
    if not arrow:
        right = ellipsis + "".join(sorted(c for c in left if c.isalpha() and left.count(c) == 1))
    ends = [ellipsis[len(ellipsis) - count :] for count in free]
    terms = [term.replace("...", end) for term, end in zip(terms, ends, strict=True)]
    return [*terms, right.replace("...", ellipsis)]


class Einsum(Operator):
    computes: bool = True
    dtype: str | int | None = 0

    def terms(self, call: Call) -> tuple[list[tuple[str, Shape]], str]:
        """Return the letters of each input with its shape, and the letters of the output."""
        shapes = [call.shape(index) for index in range(len(call.op.inputs))]
        terms = einsum_terms(call.op, [len(shape) for shape in shapes])
        if terms is None:
            raise UnknownOpError
        return list(zip(terms[:-1], shapes, strict=True)), terms[-1]

    def shape(self, call: Call, output: int) -> Shape | None:
        inputs, right = self.terms(call)
        sizes: dict[str, Size] = {}
        for term, shape in inputs:
            sizes.update((key, size) for key, size in zip(term, shape, strict=True) if sizes.get(key, 1) == 1)
        return tuple(sizes[letter] for letter in right)

    def value(self, call: ArrayCall) -> Sequence[Array]:
        check_size([array.size for array in call.arrays])
        return [np.asarray(np.einsum(str(call.get("equation")), *call.arrays))]

    def moves(self, call: Call) -> Iterator[Move]:
        inputs, right = self.terms(call)
        if any(len(set(term)) < len(term) for term in (right, *(term for term, _ in inputs))):
            raise UnknownOpError
        wide = {key for term, shape in inputs for key, size in zip(term, shape, strict=True) if size != 1}
        for index, (term, shape) in enumerate(inputs):
            for axis, letter in enumerate(term):
                if shape[axis] == 1 and letter in wide:
                    continue  # one for all
                if letter in right:
                    yield Move(index, axis, right.index(letter))
                else:
                    yield Move(index, axis, None, 0, "mixes", SUMS)


class Attention(Operator):
    """OpenVINO's attention: queries [..., L, E], keys [..., S, E], values [..., S, V], mask [..., L, S]."""

    dtype: str | int | None = 0
    max_inputs: int = 5

    def moves(self, call: Call) -> Iterator[Move]:
        shapes = {index: call.shape(index) for index in range(4) if call.is_given(index)}
        out = max(len(shape) for shape in shapes.values())
        if min(len(shape) for shape in shapes.values()) < 2 or (call.is_given(4) and call.rank(4) > 1):
            raise UnknownOpError
        wide = {
            axis - len(shape) for shape in shapes.values() for axis, size in enumerate(shape) if size != 1
        }
        for index, shape in shapes.items():
            for from_end in range(-len(shape), 0):
                axis, to = len(shape) + from_end, out + from_end
                if from_end == -2 and index in (0, 3) and (shape[from_end] != 1 or not index):
                    is_causal = bool(call.get("causal"))
                    yield Move(index, axis, to, 0, *(("mixes", SUMS) if is_causal else ("", "")))
                elif from_end == -1 and index == 2:
                    yield Move(index, axis, to)
                elif from_end >= -2:
                    yield Move(index, axis, None, 0, "mixes", SUMS)
                elif shape[from_end] != 1 or from_end not in wide:
                    yield Move(index, axis, to)


register(
    Attention("openvino::ScaledDotProductAttention", "causal"),
    *(MatMul("MatMul"), MatMulInteger("MatMulInteger", dtype="int32")),
    *(Gemm("Gemm", _GEMM), Einsum("Einsum", "equation")),
    FusedMatMul("com.microsoft::FusedMatMul", "alpha transA transB transBatchA transBatchB"),
    FusedGemm("com.microsoft::FusedGemm", f"{_GEMM} activation activation_alpha activation_beta"),
)
