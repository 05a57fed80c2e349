"""Compute the polynomials of a model's values, with a rule per operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from onegru.core.activations import ACTIVATIONS, AS_OPERATORS, ActivationKind
from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.loops.loop import Slices
from onegru.dataflow.memoized import memoized
from onegru.dataflow.operator import LoopIndex, Op
from onegru.dataflow.table import OPERATORS, UnknownOpError
from onegru.dataflow.table.products import activation_numbers, einsum_terms
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.polynomial import Polynomial, add, constant, same, scale
from onegru.fusion.cells.products import Products
from onegru.fusion.cells.views import whole_view


class Expressions(Products):
    """The polynomials of the values of a flow."""

    def __init__(
        self,
        flow: Flow,
        algebra: Algebra,
        indices: Mapping[str, LoopIndex] | None = None,
        slices: Mapping[str, Slices] | None = None,
    ) -> None:
        super().__init__(flow, algebra, indices, slices)
        self._known: dict[Hashable, Polynomial] = {}
        self.twins: dict[str, str] = {}  # values that equal another value, and the other value

    def resolve(self, name: str) -> str:
        """Return the original name of a value, without copies and equal values."""
        first = self.flow.resolve(name)
        return self.twins.get(first, first)

    def of(self, name: str) -> tuple[View, Polynomial] | None:
        """Return the polynomial of a value, even if it is a boundary; None if it is unknown."""
        view = whole_view(self.flow, name)
        if view is None or view.width == 0:
            return None
        try:
            return view, self._operator(view)
        except UnknownOpError:
            return None

    def polynomial(self, view: View) -> Polynomial:
        """Return the polynomial of a view; an atom if it is unknown."""
        view = View(self.resolve(view.name), view.roles, view.index)
        return self._find(view.key if len(view.index) else (*view.key, view.width), view)

    @memoized("_known", if_circular=lambda at, key, view: at.atom(view))
    def _find(self, key: Hashable, view: View) -> Polynomial:
        if view.name in self.boundaries:
            return self.atom(view)
        if (array := self.flow.constant(view.name)) is not None:
            return self._constant(view, array)
        if self.flow.owner(view.name) is not self.flow:  # in the same graph, a zero state is a state
            number = self.flow.fill(view.name)
            if isinstance(number, (int, float)):
                return constant(number)
        try:
            return self._operator(view)
        except UnknownOpError:
            return self.atom(view)

    def _constant(self, view: View, array: Array) -> Polynomial:
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            return self.atom(view)
        if any(isinstance(role, LoopIndex) for role in view.roles):
            return self.atom(view)
        found = array[tuple(role if isinstance(role, int) else slice(None) for role in view.roles)]
        kept = [role for role in view.roles if not isinstance(role, int)]
        rows, columns = ([axis for axis, role in enumerate(kept) if role == kind] for kind in (ROWS, COLUMNS))
        found = found.transpose(rows + columns).astype(np.float64)
        sizes = found.shape[len(rows) :]
        flat = found.reshape(-1, int(np.prod(sizes)))
        selected = flat[:, np.ravel_multi_index(tuple(view.index), sizes) if columns else np.zeros(1, int)]
        if not len(selected) or not np.isfinite(selected).all() or np.any(selected != selected[0]):
            return self.atom(view)  # differs from row to row
        return constant(selected[0] if columns else selected[0, 0])

    def _operator(self, view: View) -> Polynomial:
        if view.name in self.slices:
            return self.polynomial(self.slice_of(view))
        op = self.flow.producer(view.name)
        if op is None or op.kind not in _RULES:
            raise UnknownOpError
        return _RULES[op.kind](self, op, view)


# Rules that return the polynomial of a view of an operator's output


def _moved(at: Expressions, op: Op, view: View) -> Polynomial:
    parts = at.through(op, view)
    if parts is None or len(parts) != 1:
        raise UnknownOpError
    return at.polynomial(parts[0][1])


def _reshaped(at: Expressions, op: Op, view: View) -> Polynomial:
    try:
        return _moved(at, op, view)
    except UnknownOpError:
        return at.of_rows(op, view)


def _inputs(at: Expressions, op: Op, view: View) -> list[Polynomial]:
    shape = at.shape(op.outputs[0])
    return [at.polynomial(at.input_view(view, name, shape)) for name in op.inputs if name]


def _combined(combine: Callable[[Algebra, Polynomial, Polynomial], Polynomial]) -> Any:
    def rule(at: Expressions, op: Op, view: View) -> Polynomial:
        result, *rest = _inputs(at, op, view)
        for other in rest:
            result = combine(at.algebra, result, other)
        return result

    return rule


def _applied(function: Callable[[Algebra, Polynomial, Mapping[str, Any]], Polynomial]) -> Any:
    def rule(at: Expressions, op: Op, view: View) -> Polynomial:
        return function(at.algebra, at.polynomial(View(op.inputs[0], view.roles, view.index)), op.attributes)

    return rule


def _numbers(kind: ActivationKind, attributes: Mapping[str, Any]) -> list[float]:
    """Return the parameters of an activation's operator, which are float32 in a file."""
    return [float(attributes.get(key, kind.default(key))) for key, _ in kind.defaults]


def _hard_sigmoid(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
    alpha, beta = _numbers(ACTIVATIONS["HardSigmoid"], attributes)
    return algebra.clip(add(scale(p, alpha), constant(beta)), 0.0, 1.0)


def _activation(name: str) -> Any:
    """Return the rule of an activation that has no simplification."""
    row = ACTIVATIONS[name]

    def rule(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
        numbers = _numbers(row, attributes)
        return algebra.odd(name, p) if row.is_odd else algebra.function(name, p, parameters=tuple(numbers))

    return rule


def _clip(at: Expressions, op: Op, view: View) -> Polynomial:
    bounds = []
    for name, index, default in (("min", 1, -np.inf), ("max", 2, np.inf)):
        bound: float | None = op.attributes.get(name, default)
        if op.input(index):
            bound = at.flow.number(op.input(index))
        if bound is None:
            raise UnknownOpError
        bounds.append(float(bound))
    limit = 3.4e38  # exporters write this for no limit
    low, high = (-np.inf if bounds[0] < -limit else bounds[0]), (np.inf if bounds[1] > limit else bounds[1])
    return at.algebra.clip(at.polynomial(View(op.inputs[0], view.roles, view.index)), low, high)


def _prelu(at: Expressions, op: Op, view: View) -> Polynomial:
    p, slope = _inputs(at, op, view)
    number = float(slope.constant.ravel()[0])
    if not slope.is_constant or np.any(slope.constant != number):
        raise UnknownOpError
    return at.algebra.function("LeakyRelu", p, parameters=(number,))


_COMPARED = {"Greater": 1.0, "GreaterOrEqual": 1.0, "Less": -1.0, "LessOrEqual": -1.0}


def _where(at: Expressions, op: Op, view: View) -> Polynomial:
    shape = at.shape(op.outputs[0])
    condition = at.input_view(view, op.inputs[0], shape)
    p, q = (at.polynomial(at.input_view(view, name, shape)) for name in op.inputs[1:])
    producer = at.flow.producer(at.flow.resolve(condition.name))
    if producer is not None and producer.kind in _COMPARED:
        first, second = _inputs(at, producer, View(producer.outputs[0], condition.roles, condition.index))
        w = scale(add(first, second, -1.0), _COMPARED[producer.kind])
        try:
            return at.algebra.positive(w, p, q, "Equal" not in producer.kind)
        except UnknownOpError:
            pass
    m = at.polynomial(condition)
    if same(p, q):
        return p
    if m.is_constant or not all(at.algebra.atoms[number].is_bool for number in m.atoms()):
        raise UnknownOpError
    return add(at.algebra.multiply(m, add(p, q, -1.0)), q)


def _not(at: Expressions, op: Op, view: View) -> Polynomial:
    return add(constant(1), at.polynomial(View(op.inputs[0], view.roles, view.index)), -1.0)


def _matmul(at: Expressions, op: Op, view: View) -> Polynomial:
    if not OPERATORS[op.kind].understands(op):
        raise UnknownOpError
    first, second = op.inputs
    ranks = len(at.shape(first)), len(at.shape(second))
    if at.flow.constant(second) is not None:
        lead = "abcdefg"[: ranks[0] - 1]
        if ranks[1] < 2 or len(view.roles) != ranks[0]:
            raise UnknownOpError
        first_letters = f"{lead[:-1]}k{lead[-1]}" if op.attributes.get("transA") and lead else f"{lead}k"
        letters = "nk" if op.attributes.get("transB") else "kn"
        result = at.contract(view, [first_letters, letters, f"{lead}n"], (first, second))
        return scale(result, float(op.attributes.get("alpha", 1.0)))
    if op.kind != "MatMul":
        raise UnknownOpError
    if at.flow.constant(first) is not None and ranks[0] == 2:  # a column: W·x
        if ranks[1] == 1:
            return at.contract(view, ["k", "nk", "n"], (second, first))
        if ranks[1] == 2:
            return at.contract(view, ["kb", "nk", "nb"], (second, first))
    raise UnknownOpError


def _gemm(at: Expressions, op: Op, view: View) -> Polynomial:
    if op.attributes.get("transA"):
        raise UnknownOpError
    letters = "nk" if op.attributes.get("transB") else "kn"
    result = at.contract(view, ["bk", letters, "bn"], (op.inputs[0], op.inputs[1]))
    result = scale(result, float(op.attributes.get("alpha", 1.0)))
    if op.input(2):
        bias = at.polynomial(at.input_view(view, op.inputs[2], at.shape(op.outputs[0])))
        result = add(result, bias, float(op.attributes.get("beta", 1.0)))
    return result


def _fused_gemm(at: Expressions, op: Op, view: View) -> Polynomial:
    function = _FUNCTIONS.get(str(op.attributes.get("activation")))
    if function is None or not OPERATORS[op.kind].understands(op):
        raise UnknownOpError
    return function(at.algebra, _gemm(at, op, view), activation_numbers(op))


def _einsum(at: Expressions, op: Op, view: View) -> Polynomial:
    terms = einsum_terms(op)
    if terms is None or len(op.inputs) != 2:
        raise UnknownOpError
    for first, second in ((0, 1), (1, 0)):
        if at.flow.constant(op.inputs[second]) is not None:
            letters = [terms[first], terms[second], terms[2]]
            return at.contract(view, letters, (op.inputs[first], op.inputs[second]))
    raise UnknownOpError


_FUNCTIONS: dict[str, Callable[[Algebra, Polynomial, Mapping[str, Any]], Polynomial]] = {
    **{name: _activation(name) for name in AS_OPERATORS},
    "Sigmoid": lambda algebra, p, attributes: algebra.sigmoid(p),
    "Tanh": lambda algebra, p, attributes: algebra.tanh(p),
    "Relu": lambda algebra, p, attributes: algebra.clip(p, 0.0, np.inf),
    "HardSigmoid": _hard_sigmoid,
}
_RULES: dict[str, Callable[[Expressions, Op, View], Polynomial]] = {
    **{kind: _moved for kind, operator in OPERATORS.items() if operator.has_view},
    "Reshape": _reshaped,
    "Add": _combined(lambda algebra, p, q: add(p, q)),
    "Sum": _combined(lambda algebra, p, q: add(p, q)),
    "Sub": _combined(lambda algebra, p, q: add(p, q, -1.0)),
    "Mul": _combined(Algebra.multiply),
    "And": _combined(Algebra.multiply),
    "Div": _combined(Algebra.divide),
    "Max": _combined(Algebra.larger),
    "Min": _combined(Algebra.smaller),
    "Neg": _applied(lambda algebra, p, attributes: scale(p, -1.0)),
    "Reciprocal": _applied(lambda algebra, p, attributes: algebra.divide(constant(1), p)),
    "Exp": _applied(lambda algebra, p, attributes: algebra.exp(p)),
    "Log": _applied(lambda algebra, p, attributes: algebra.log(p)),
    "Abs": _applied(lambda algebra, p, attributes: algebra.absolute(p)),
    **{name: _applied(function) for name, function in _FUNCTIONS.items()},
    "PRelu": _prelu,
    "Clip": _clip,
    "Where": _where,
    "Not": _not,
    "MatMul": _matmul,
    "com.microsoft::FusedMatMul": _matmul,
    "Gemm": _gemm,
    "com.microsoft::FusedGemm": _fused_gemm,
    "Einsum": _einsum,
}
