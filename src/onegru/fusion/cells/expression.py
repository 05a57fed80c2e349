"""Compute the polynomials of a model's values, with a rule per operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.core.activations import ACTIVATIONS, AS_OPERATORS, ActivationKind
from onegru.core.dtypes import Array
from onegru.dataflow.memoized import memoized
from onegru.dataflow.operator import LoopIndex, Op
from onegru.dataflow.table import OPERATORS, UnknownOpError
from onegru.dataflow.table.products import activation_numbers, einsum_terms
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.algebra import Algebra
from onegru.fusion.cells.matmuls import Matmuls
from onegru.fusion.cells.polynomial import Polynomial, add, constant, same, scale


@dataclass(eq=False)
class Expressions(Matmuls):
    """The polynomials of the values of a flow."""

    # values that the model computes a second time, and the value that they equal
    duplicates: dict[str, str] = field(default_factory=dict)
    _known: dict[Hashable, Polynomial] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        """Return the original name of a value, without copies and duplicates."""
        original = self.flow.resolve(name)
        return self.duplicates.get(original, original)

    def definition(self, name: str) -> Polynomial | None:
        """Return the polynomial that a value's operator computes, even at a boundary; None if unknown."""
        view = self.whole(name)
        if view is None or view.width == 0:
            return None
        try:
            return self._by_operator(view)
        except UnknownOpError:
            return None

    def polynomial(self, view: View) -> Polynomial:
        """Return the polynomial of a view; an atom if it is unknown."""
        view = view.renamed(self.resolve(view.name))
        return self._polynomial(view.key if view.has_columns else (*view.key, view.width), view)

    @memoized("_known", if_circular=lambda exprs, key, view: exprs.atom(view))
    def _polynomial(self, key: Hashable, view: View) -> Polynomial:
        if view.name in self.boundaries:
            return self.atom(view)
        if (array := self.flow.constant(view.name)) is not None:
            return self._constant(view, array)
        if self.flow.owner(view.name) is not self.flow:  # in the same graph, a zero state is a state
            number = self.flow.fill_value(view.name)
            if isinstance(number, (int, float)):
                return constant(number)
        try:
            return self._by_operator(view)
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
        positions = np.ravel_multi_index(tuple(view.coordinates), sizes) if columns else np.zeros(1, int)
        selected = flat[:, positions]
        if not len(selected) or not np.isfinite(selected).all() or np.any(selected != selected[0]):
            return self.atom(view)  # differs from row to row
        return constant(selected[0] if columns else selected[0, 0])

    def _by_operator(self, view: View) -> Polynomial:
        if view.name in self.sliced:
            return self.polynomial(self.slice_of(view))
        op = self.flow.find_producer(view.name)
        if op is None or op.kind not in _RULES:
            raise UnknownOpError
        return _RULES[op.kind](self, op, view)


# Rules that return the polynomial of a view of an operator's output


def _moved(exprs: Expressions, op: Op, view: View) -> Polynomial:
    return exprs.polynomial(exprs.source(op, view))


def _reshaped(exprs: Expressions, op: Op, view: View) -> Polynomial:
    try:
        return _moved(exprs, op, view)
    except UnknownOpError:
        return exprs.between_reshapes(op, view)


def _inputs(exprs: Expressions, op: Op, view: View) -> list[Polynomial]:
    """Return the polynomials of an element-wise operator's inputs, with broadcasting."""
    shape = exprs.shape(op.outputs[0])
    return [exprs.polynomial(exprs.input_view(view, name, shape)) for name in op.inputs if name]


def _combined(combine: Callable[[Algebra, Polynomial, Polynomial], Polynomial]) -> Any:
    """Return the rule of an operator that combines its inputs element by element."""

    def rule(exprs: Expressions, op: Op, view: View) -> Polynomial:
        result, *rest = _inputs(exprs, op, view)
        for other in rest:
            result = combine(exprs.algebra, result, other)
        return result

    return rule


def _applied(function: Callable[[Algebra, Polynomial, Mapping[str, Any]], Polynomial]) -> Any:
    """Return the rule of an operator that applies a function of one input and of attributes."""

    def rule(exprs: Expressions, op: Op, view: View) -> Polynomial:
        return function(exprs.algebra, exprs.polynomial(view.renamed(op.inputs[0])), op.attributes)

    return rule


def _parameters(kind: ActivationKind, attributes: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the parameters of an activation's operator, which are float32 in a file."""
    return tuple(float(attributes.get(key, kind.default(key))) for key, _ in kind.defaults)


def _hard_sigmoid(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
    alpha, beta = _parameters(ACTIVATIONS["HardSigmoid"], attributes)
    return algebra.clip(add(scale(p, alpha), constant(beta)), 0.0, 1.0)


def _activation(name: str) -> Any:
    """Return the rule of an activation that has no simplification."""
    row = ACTIVATIONS[name]

    def rule(algebra: Algebra, p: Polynomial, attributes: Mapping[str, Any]) -> Polynomial:
        if row.is_odd:
            return algebra.odd_function(name, p)
        return algebra.function(name, p, parameters=_parameters(row, attributes))

    return rule


def _clip(exprs: Expressions, op: Op, view: View) -> Polynomial:
    bounds = []
    for name, index, default in (("min", 1, -np.inf), ("max", 2, np.inf)):
        bound: float | None = op.attributes.get(name, default)
        if op.input(index):
            bound = exprs.flow.number(op.input(index))
        if bound is None:
            raise UnknownOpError
        bounds.append(float(bound))
    limit = 3.4e38  # exporters write this for no limit
    low, high = (-np.inf if bounds[0] < -limit else bounds[0]), (np.inf if bounds[1] > limit else bounds[1])
    return exprs.algebra.clip(exprs.polynomial(view.renamed(op.inputs[0])), low, high)


def _prelu(exprs: Expressions, op: Op, view: View) -> Polynomial:
    p, slope = _inputs(exprs, op, view)
    number = float(slope.constant.ravel()[0])
    if not slope.is_constant or np.any(slope.constant != number):
        raise UnknownOpError
    return exprs.algebra.function("LeakyRelu", p, parameters=(number,))


# the sign of the inputs' difference where a comparison is true
_COMPARISONS = {"Greater": 1.0, "GreaterOrEqual": 1.0, "Less": -1.0, "LessOrEqual": -1.0}


def _where(exprs: Expressions, op: Op, view: View) -> Polynomial:
    shape = exprs.shape(op.outputs[0])
    condition = exprs.input_view(view, op.inputs[0], shape)
    p, q = (exprs.polynomial(exprs.input_view(view, name, shape)) for name in op.inputs[1:])
    producer = exprs.flow.find_producer(exprs.flow.resolve(condition.name))
    if producer is not None and producer.kind in _COMPARISONS:
        first, second = _inputs(exprs, producer, condition.renamed(producer.outputs[0]))
        w = scale(add(first, second, -1.0), _COMPARISONS[producer.kind])
        try:
            return exprs.algebra.piecewise(w, p, q, "Equal" not in producer.kind)
        except UnknownOpError:
            pass
    m = exprs.polynomial(condition)
    if same(p, q):
        return p
    if m.is_constant or not all(exprs.algebra.atoms[atom_id].is_bool for atom_id in m.atoms()):
        raise UnknownOpError
    return add(exprs.algebra.multiply(m, add(p, q, -1.0)), q)


def _matmul(exprs: Expressions, op: Op, view: View) -> Polynomial:
    if not OPERATORS[op.kind].supports(op):
        raise UnknownOpError
    first, second = op.inputs
    ranks = len(exprs.shape(first)), len(exprs.shape(second))
    if exprs.flow.constant(second) is not None:
        lead = "abcdefg"[: ranks[0] - 1]
        if ranks[1] < 2 or len(view.roles) != ranks[0]:
            raise UnknownOpError
        first_letters = f"{lead[:-1]}k{lead[-1]}" if op.attributes.get("transA") and lead else f"{lead}k"
        letters = "nk" if op.attributes.get("transB") else "kn"
        result = exprs.contract(view, f"{first_letters},{letters}->{lead}n", first, second)
        return scale(result, float(op.attributes.get("alpha", 1.0)))
    if op.kind != "MatMul":
        raise UnknownOpError
    if exprs.flow.constant(first) is not None and ranks[0] == 2:  # a column: W·x
        if ranks[1] == 1:
            return exprs.contract(view, "k,nk->n", second, first)
        if ranks[1] == 2:
            return exprs.contract(view, "kb,nk->nb", second, first)
    raise UnknownOpError


def _gemm(exprs: Expressions, op: Op, view: View) -> Polynomial:
    if op.attributes.get("transA"):
        raise UnknownOpError
    letters = "nk" if op.attributes.get("transB") else "kn"
    result = exprs.contract(view, f"bk,{letters}->bn", op.inputs[0], op.inputs[1])
    result = scale(result, float(op.attributes.get("alpha", 1.0)))
    if op.input(2):
        bias = exprs.polynomial(exprs.input_view(view, op.inputs[2], exprs.shape(op.outputs[0])))
        result = add(result, bias, float(op.attributes.get("beta", 1.0)))
    return result


def _fused_gemm(exprs: Expressions, op: Op, view: View) -> Polynomial:
    function = _FUNCTIONS.get(str(op.attributes.get("activation")))
    if function is None or not OPERATORS[op.kind].supports(op):
        raise UnknownOpError
    return function(exprs.algebra, _gemm(exprs, op, view), activation_numbers(op))


def _einsum(exprs: Expressions, op: Op, view: View) -> Polynomial:
    terms = einsum_terms(op)
    if terms is None or len(op.inputs) != 2:
        raise UnknownOpError
    for first, second in ((0, 1), (1, 0)):
        if exprs.flow.constant(op.inputs[second]) is not None:
            equation = f"{terms[first]},{terms[second]}->{terms[2]}"
            return exprs.contract(view, equation, op.inputs[first], op.inputs[second])
    raise UnknownOpError


_FUNCTIONS: dict[str, Callable[[Algebra, Polynomial, Mapping[str, Any]], Polynomial]] = {
    **{name: _activation(name) for name in AS_OPERATORS},
    "Sigmoid": lambda algebra, p, attributes: algebra.sigmoid(p),
    "Tanh": lambda algebra, p, attributes: algebra.tanh(p),
    "Relu": lambda algebra, p, attributes: algebra.clip(p, 0.0, np.inf),
    "HardSigmoid": _hard_sigmoid,
}
_RULES: dict[str, Callable[[Expressions, Op, View], Polynomial]] = {
    **{kind: _moved for kind, operator in OPERATORS.items() if operator.has_source},
    "Reshape": _reshaped,
    "Add": _combined(lambda algebra, p, q: add(p, q)),
    "Sum": _combined(lambda algebra, p, q: add(p, q)),
    "Sub": _combined(lambda algebra, p, q: add(p, q, -1.0)),
    "Mul": _combined(Algebra.multiply),
    "And": _combined(Algebra.multiply),
    "Div": _combined(Algebra.divide),
    "Max": _combined(Algebra.maximum),
    "Min": _combined(Algebra.minimum),
    "Neg": _applied(lambda algebra, p, attributes: scale(p, -1.0)),
    "Reciprocal": _applied(lambda algebra, p, attributes: algebra.divide(constant(1), p)),
    "Exp": _applied(lambda algebra, p, attributes: algebra.exp(p)),
    "Log": _applied(lambda algebra, p, attributes: algebra.log(p)),
    "Abs": _applied(lambda algebra, p, attributes: algebra.absolute(p)),
    **{name: _applied(function) for name, function in _FUNCTIONS.items()},
    "PRelu": _prelu,
    "Clip": _clip,
    "Where": _where,
    "Not": _applied(lambda algebra, p, attributes: add(constant(1), p, -1.0)),
    "MatMul": _matmul,
    "com.microsoft::FusedMatMul": _matmul,
    "Gemm": _gemm,
    "com.microsoft::FusedGemm": _fused_gemm,
    "Einsum": _einsum,
}
