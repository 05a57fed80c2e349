"""One graph of a model during a rewrite."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TypeProto

from onegru.core.dtypes import Array
from onegru.dataflow.flow import Flow
from onegru.dataflow.table import evaluate
from onegru.formats.onnx.flow import GraphTypes, flow_of
from onegru.formats.onnx.validate import Source, is_gru
from onegru.formats.onnx.values import Names, Values
from onegru.formats.onnx.writing.edit import code_of, node_with_lists


class Scope(Values):
    """Existing and new values of a graph."""

    def __init__(
        self,
        source: Source,
        graph: GraphProto,
        ir_version: int,
        types: GraphTypes,
        outer: Scope | None,
        opset: int,
        names: Names,
    ) -> None:
        super().__init__(source, graph, ir_version, types, outer)
        self.graph_types = types
        self.opset = opset
        self.names = names
        self.early: list[NodeProto] = []  # new Constant nodes, which come before all other nodes
        self.unread_constants: dict[str, Array] = {}  # new constants that no node uses yet; not in the graph
        self.released_inputs: set[str] = set()  # values that rewritten nodes may no longer read
        self.taken_outputs: set[str] = set()  # GRU nodes write these now; their old nodes are removed
        self._shared: dict[Hashable, str] = {}

    @functools.cached_property
    def flow(self) -> Flow:
        """The original graph."""
        outer = self.outer.flow if isinstance(self.outer, Scope) else None
        return flow_of(self.source, self.graph, self.graph_types, self.ir_version, outer)

    @functools.cached_property
    def grus_by_input(self) -> Counter[str]:
        """How many GRU nodes read a value as X, also through nodes that pass it on; empty for one GRU."""
        names = [name for node in filter(is_gru, self.graph.node) for name in node.input[:1]]
        return Counter(map(self.flow.resolve, names) if len(names) > 1 else ())

    def bodies(self, node: NodeProto) -> list[Scope]:
        """Return the scopes of a node's subgraphs."""
        return [
            Scope(self.source, body, self.ir_version, types, self, self.opset, self.names)
            for body, types in self.graph_types.bodies(node)
        ]

    def constant(self, name: str) -> Array | None:
        """Return a dense constant, in the graph or not yet; None for any other value."""
        return self.unread_constants[name] if name in self.unread_constants else super().constant(name)

    def type_of(self, name: str) -> TypeProto | None:
        """Return the type of a value; None if it is unknown."""
        array = self.constant(name)
        if array is None:
            return self.types.get(name)
        code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.helper.make_tensor_type_proto(code, array.shape)

    def shared_constant(self, wanted: str, array: Array) -> str:
        """Return the name of a constant with this content, which `in_graph` adds to the graph."""
        key = array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).digest()
        if key not in self._shared:
            self._shared[key] = self.names.fresh(wanted)
            self.unread_constants[self._shared[key]] = array
        return self._shared[key]

    def in_graph(self, name: str) -> str:
        """Return the name of an input of a node. If it is a new constant, add it to the graph first."""
        if name not in self.unread_constants:
            return name
        tensor = onnx.numpy_helper.from_array(np.asarray(self.unread_constants.pop(name), order="C"), name)
        if self.ir_version >= 4:
            self.graph.initializer.append(tensor)
            self.tensors[name] = tensor
        else:  # in these versions, an initializer must also be an input
            tensor.name = ""
            self.early.append(onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
            self.producers[name] = self.early[-1]
        return name

    def number(self, value: float, dtype: str | np.dtype[Any]) -> str:
        """Add a scalar constant."""
        return self.shared_constant(f"onegru/{np.dtype(dtype)}_{value:g}", np.asarray(value, dtype))

    def integer(self, value: int) -> str:
        """Add an int64 scalar constant."""
        return self.shared_constant(f"onegru/int64_scalar_{value}", np.array(value, np.int64))

    def integers(self, *values: int) -> str:
        """Add an int64 vector constant."""
        words = "_".join(map(str, values)) if len(values) < 5 else f"{values[0]}_to_{values[-1]}"
        return self.shared_constant(f"onegru/int64_{words}", np.array(values, np.int64))


class Draft:
    """New nodes that replace one node. Names of new nodes and values are `base`, a slash and a suffix."""

    def __init__(self, scope: Scope, base: str) -> None:
        self.scope = scope
        self.base = base
        self.nodes: list[NodeProto] = []  # the new nodes before the GRU nodes that remain, in order
        self.after: list[NodeProto] = []  # the new nodes after them, in order
        self.done: list[str] = []  # descriptions of the changes
        self.notes: list[str] = []  # what users of the new nodes must know

    def fresh(self, suffix: str) -> str:
        """Return a new name."""
        return self.scope.names.fresh(f"{self.base}/{suffix}")

    def op(self, kind: str, inputs: Sequence[str], suffix: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return its output: `output`, or a new name with this suffix."""
        output = output or self.fresh(suffix)
        self.nodes.append(self._node(kind, inputs, [output], f"{suffix}/{kind}", attributes))
        return output

    def op_after(self, kind: str, inputs: Sequence[str], suffix: str, output: str, **attributes: Any) -> None:
        """Add a node after the GRU node, and before nodes that were added earlier."""
        self.after.insert(0, self._node(kind, inputs, [output], f"{suffix}/{kind}", attributes))

    def folded(self, kind: str, inputs: Sequence[str], suffix: str, **attributes: Any) -> str:
        """Do the same as `op`, but return a constant if all inputs are constants."""
        arrays = [self.scope.constant(name) for name in inputs]
        if any(array is None for array in arrays):
            return self.op(kind, inputs, suffix, **attributes)
        return self.scope.shared_constant(f"{self.base}/{suffix}", evaluate(kind, attributes, arrays)[0])

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        suffix: str,
        attributes: Mapping[str, Any],
    ) -> NodeProto:
        name, scope = self.fresh(suffix), self.scope
        if kind == "Cast":
            attributes = {"to": code_of(attributes["dtype"])}

        def constant(_: str, numbers: list[int]) -> str:  # for lists that are inputs in this opset
            return scope.in_graph(scope.integers(*numbers))

        inputs = [scope.in_graph(item) for item in inputs]
        return node_with_lists(kind, inputs, outputs, name, scope.opset, constant, **attributes)

    def split(self, value: str, sizes: Sequence[int], names: Sequence[str], axis: int = 1) -> list[str]:
        """Split an axis, by default the last axis of a matrix; return the parts."""
        outputs = [self.fresh(name) for name in names]
        attributes = {"axis": axis, "split": list(sizes)}
        self.nodes.append(self._node("Split", [value], outputs, "Split", attributes))
        return outputs
