"""Name cells with quantized matrix multiplications, which are not fused."""

from __future__ import annotations

from collections.abc import Collection

from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Elements, movers

_MOVING = movers(Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.JOINED, casts=True)
_ROUNDING = _MOVING | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_SUMS = {"Add", "Sub", "Sum", "Where"}
_INTEGER = {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm"}
_QUANTIZED = _INTEGER | {"MatMulNBits", "MatMulBnb4"}
_PRODUCTS = _QUANTIZED | {"MatMul", "Gemm", "Einsum"}
_MOST = 128  # operators of a step


class QuantizedCells:
    """Values of a graph that look like new states of cells with quantized matmuls."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._found: set[str] = set()
        self._has_any = any(_name(op) in _QUANTIZED or op.kind == "QuantizeLinear" for op in flow.ops)

    def product_of(self, op: Op) -> str:
        """Return the quantized matmul of an operator's output; "" if it does not look like a new state.

        A new state is a sum with a scaled value that is also an input of a quantized matmul, and it depends
        on a sigmoid and a tanh.
        """
        if not self._has_any or _plain(op) not in _SUMS:
            return ""
        step = self._before(op.outputs[0], without=_PRODUCTS)
        if not {"Sigmoid", "Tanh"} <= {_plain(item).removeprefix("Hard") for item, _ in step}:
            return ""
        scaled = self._before(op.outputs[0], through={*_ROUNDING, *_SUMS, "Mul", "Neg"})
        states = {name for item, is_scaled in scaled if is_scaled for name in item.inputs if name}
        for item, _ in step:
            kind = self._quantized(item)
            behind = [other for name in item.inputs for other, _ in self._before(name, {*_ROUNDING, "Mul"})]
            if kind and not states.isdisjoint(name for other in (item, *behind) for name in other.inputs):
                self._found.update(op.outputs)
                return kind
        return ""

    def _before(
        self, name: str, through: Collection[str] | None = None, without: Collection[str] = ()
    ) -> list[tuple[Op, bool]]:
        """Return the operators before a value, each with whether a Mul scales its output or input."""
        waiting, found, seen = [(name, False)], list[tuple[Op, bool]](), set[tuple[str, bool]]()
        while waiting and len(found) < _MOST:
            last, is_scaled = waiting.pop()
            op = self.flow.producers.get(last)
            if op is None or (last, is_scaled) in seen or last in self._found:
                continue
            seen.add((last, is_scaled))
            is_scaled = is_scaled or _plain(op) == "Mul"
            if through is None or _plain(op) in through:
                found.append((op, is_scaled))
                if _name(op) not in without:
                    waiting += [(item, is_scaled) for item in op.inputs if item]
        return found

    def _quantized(self, op: Op) -> str:
        """Return the kind of a quantized matmul; "" for other operators."""
        if (name := _name(op)) in _QUANTIZED or name not in _PRODUCTS:
            return name if name in _QUANTIZED else ""
        open_inputs = [item for item in op.inputs if item and self.flow.constant(item) is None]
        producers = [self.flow.producers.get(self.flow.resolve(item)) for item in open_inputs]
        is_rounded = any(item is not None and item.kind == "DequantizeLinear" for item in producers)
        return f"{name} after QuantizeLinear" if is_rounded else ""


def _name(op: Op) -> str:
    """Return an operator's kind without its domain."""
    return op.kind.rpartition("::")[2]


def _plain(op: Op) -> str:
    """Return an operator's kind without its domain; integer operators get the name of the float operator."""
    name = _name(op)
    return name if name in _QUANTIZED else name.removeprefix("QLinear")
