"""Evaluate the operators of a graph on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import UnknownOpError, evaluate


class EvaluatedValues(dict[str, Array]):
    """Arrays by the names of a graph's values: given ones, results of operators, and constants."""

    def __init__(self, flow: Flow, given: Mapping[str, Array], outer: EvaluatedValues | None = None) -> None:
        super().__init__(given)
        self.flow = flow
        self.outer = outer  # of the enclosing graph

    def __missing__(self, name: str) -> Array:
        resolved = self.flow.resolve(name)
        if resolved in self:
            return self[resolved]
        array = self.constant(name)
        if array is None and self.outer is not None:
            array = self.outer[resolved]
        if array is None:
            raise UnknownOpError(f"{name!r} is unknown")
        return array

    def constant(self, name: str) -> Array | None:
        """Return a constant; None for anything else."""
        return self.flow.constant(name)

    def run(self, op: Op) -> None:
        """Compute an operator whose inputs are known."""
        results = self.results(op, [self[name] if name else None for name in op.inputs])
        self.update((name, array) for name, array in zip(op.outputs, results, strict=False) if name)

    def results(self, op: Op, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """Return an operator's outputs, in the element types of its inputs."""
        return evaluate(op.kind, op.attributes, inputs, len(op.outputs))
