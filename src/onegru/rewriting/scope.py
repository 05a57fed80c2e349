"""One graph of a model during a rewrite."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TypeProto

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.formats.onnx.edit import code_of, node_with_lists
from onegru.formats.onnx.flow import flow_of
from onegru.formats.onnx.validate import Source
from onegru.formats.onnx.values import Names, Values, all_graphs


def value_types(graph: GraphProto) -> dict[str, TypeProto]:
    """Return the declared types of the values in a graph and its subgraphs."""
    types: dict[str, TypeProto] = {}
    for part in all_graphs(graph):
        for value in (*part.input, *part.output, *part.value_info):
            if value.type.WhichOneof("value") is not None:
                types.setdefault(value.name, value.type)
    return types


class Scope(Values):
    """Existing and new values of a graph.

    Args:
        source: the file.
        graph: the graph.
        ir_version: the model's IR version.
        types: the known types of values in the model.
        outer: the enclosing scope of a subgraph. Default: None (the main graph).
        opset: the opset of new nodes.
        names: the names in use in the model.

    Attributes:
        early: new Constant nodes, which come before all other nodes.
        retired: inputs of rewritten nodes that may no longer be needed.
    """

    def __init__(
        self,
        source: Source,
        graph: GraphProto,
        ir_version: int,
        types: Mapping[str, TypeProto],
        outer: Scope | None,
        opset: int,
        names: Names,
    ) -> None:
        super().__init__(source, graph, ir_version, types, outer)
        self.opset = opset
        self.names = names
        self.early: list[NodeProto] = []
        self.retired: set[str] = set()
        self._shared: dict[Hashable, str] = {}

    @functools.cached_property
    def flow(self) -> Flow:
        """The original graph."""
        outer = self.outer.flow if isinstance(self.outer, Scope) else None
        return flow_of(self.source, self.graph, self.types, self.ir_version, outer)

    def add(self, base: str, array: Array) -> str:
        """Add a constant, and return its name."""
        name = self.names.fresh(base)
        tensor = onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        if self.ir_version >= 4:
            self.graph.initializer.append(tensor)
            self.tensors[name] = tensor
        else:  # in these versions, an initializer must also be an input
            tensor.name = ""
            self.early.append(onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
            self.producers[name] = self.early[-1]
        return name

    def shared(self, key: Hashable, base: str, make: Callable[[], Array]) -> str:
        """Add a constant, or return the existing constant with this key."""
        if key not in self._shared:
            self._shared[key] = self.add(base, make())
        return self._shared[key]

    def number(self, value: float, dtype: str | np.dtype[Any]) -> str:
        """Add a scalar constant."""
        array = np.asarray(value, dtype)
        key = ("number", array.dtype.name, repr(value))
        return self.shared(key, f"onegru/{array.dtype}_{value:g}", lambda: array)

    def integer(self, value: int) -> str:
        """Add an int64 scalar constant."""
        array = np.array(value, np.int64)
        return self.shared(("int64", value), f"onegru/int64_scalar_{value}", lambda: array)

    def integers(self, *values: int) -> str:
        """Add an int64 vector constant."""
        words = "_".join(map(str, values)) if len(values) < 5 else f"{values[0]}_to_{values[-1]}"
        return self.shared(("integers", values), f"onegru/int64_{words}", lambda: np.array(values, np.int64))


class Draft:
    """New nodes that replace one node."""

    def __init__(self, scope: Scope, base: str) -> None:
        self.scope = scope
        self.base = base
        self.nodes: list[NodeProto] = []

    def fresh(self, what: str) -> str:
        """Return a new name."""
        return self.scope.names.fresh(f"{self.base}/{what}")

    def op(self, kind: str, inputs: Sequence[str], what: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return its output: `output`, or a new name from `what`.

        Pass lists of integers as attributes; in newer opsets they become inputs.
        """
        output = output or self.fresh(what)
        self._add(kind, inputs, [output], f"{what}/{kind}", attributes)
        return output

    def _add(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        what: str,
        attributes: Mapping[str, Any],
    ) -> None:
        name, scope = self.fresh(what), self.scope
        self.nodes.append(
            node_with_lists(
                kind,
                inputs,
                outputs,
                name,
                scope.opset,
                lambda _, numbers: scope.integers(*numbers),
                **attributes,
            )
        )

    def cast(self, value: str, dtype: str, what: str, output: str = "") -> str:
        """Add a Cast, and return its output."""
        return self.op("Cast", [value], what, output, to=code_of(dtype))

    def split(self, value: str, sizes: Sequence[int], names: Sequence[str], axis: int = 1) -> list[str]:
        """Split an axis, by default the last axis of a matrix; return the parts."""
        outputs = [self.fresh(name) for name in names]
        self._add("Split", [value], outputs, "Split", {"axis": axis, "split": list(sizes)})
        return outputs
