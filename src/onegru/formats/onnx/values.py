"""Values of an ONNX graph: producers, consumers, constants, types and shapes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onegru.core.dtypes import Array
from onegru.dataflow.names import fresh_name
from onegru.formats.onnx.node import constant_value, fixed_sizes, is_plain_constant
from onegru.formats.onnx.order import node_inputs
from onegru.formats.onnx.validate import Source, attribute_graphs, element_type, to_array

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Iterate over a graph and all its subgraphs."""
    yield graph
    for node in graph.node:
        for body in attribute_graphs(node):
            yield from all_graphs(body)


def names_in(model: ModelProto) -> set[str]:
    """Return the names of values and nodes in a model, including its subgraphs."""
    used: set[str] = set()
    for graph in all_graphs(model.graph):
        used |= {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
        used |= {tensor.name for tensor in graph.initializer}
        used |= {tensor.values.name for tensor in graph.sparse_initializer}
        for node in graph.node:
            used |= {node.name, *node.input, *node.output}
    return used


class Names:
    """The names of values and nodes in a model, to create new names."""

    def __init__(self, model: ModelProto) -> None:
        self._used = names_in(model)

    def fresh(self, base: str) -> str:
        """Return `base`, with a number appended if the name is already used."""
        return fresh_name(base, self._used)


class Values:
    """Values of a graph, and of the enclosing graphs if it is a subgraph."""

    def __init__(
        self,
        source: Source,
        graph: GraphProto,
        ir_version: int,
        types: Mapping[str, TypeProto] | None = None,
        outer: Values | None = None,
    ) -> None:
        self.source = source
        self.graph = graph
        self.ir_version = ir_version
        self.outer = outer
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.sparse = {tensor.values.name for tensor in graph.sparse_initializer}
        self.inputs = {value.name for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.defaults = self.tensors.keys() & self.inputs if ir_version >= 4 else set()
        stated = (*graph.value_info, *graph.output, *graph.input)
        self.types = {value.name: value.type for value in stated} if types is None else types

    def of_body(self, body: GraphProto) -> Values:
        """Return the values of a subgraph of one of the nodes, without types."""
        return Values(self.source, body, self.ir_version, {}, self)

    @functools.cached_property
    def consumers(self) -> dict[str, list[NodeProto]]:
        """The nodes that use each value, directly or in their subgraphs."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in node_inputs(node):
                found.setdefault(name, []).append(node)
        return found

    def owner(self, name: str) -> Values:
        """Return the graph's values in which a value is defined; the outermost if it is undefined."""
        values = self
        while values.outer is not None and not (
            name in values.producers
            or name in values.tensors
            or name in values.inputs
            or name in values.sparse
        ):
            values = values.outer
        return values

    # Constants

    def is_constant(self, name: str) -> bool:
        """Whether a value is an initializer (except defaults of inputs) or the output of a Constant node."""
        at = self.owner(name)
        if name in at.producers:
            return is_plain_constant(at.producers[name])
        return (name in at.tensors or name in at.sparse) and name not in at.defaults

    def holder(self, name: str) -> TensorProto | NodeProto | None:
        """Return the initializer or Constant node that holds a dense constant; None for other values."""
        at = self.owner(name)
        if name in at.sparse or not at.is_constant(name):
            return None
        found: TensorProto | NodeProto = at.producers.get(name) or at.tensors[name]
        return found

    def constant(self, name: str) -> Array | None:
        """Return a dense constant; None for other values."""
        holder = self.holder(name)
        return None if holder is None else self.array(holder)

    def array(self, holder: TensorProto | NodeProto) -> Array:
        """Read an initializer or a Constant node; raises as `constant`."""
        if isinstance(holder, NodeProto):
            return constant_value(self.source, holder)
        return to_array(self.source, holder)

    def integers_of(self, name: str) -> Array | None:
        """Read a dense constant of integers; None for other values."""
        holder = self.holder(name)
        if holder is None or (
            isinstance(holder, TensorProto) and holder.data_type not in (TensorProto.INT32, TensorProto.INT64)
        ):
            return None
        array = self.array(holder)
        return array if array.dtype.kind == "i" else None

    # Types

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Return the shape of a value, with None for dynamic sizes; None if even the rank is unknown."""
        holder = self.holder(name)
        if holder is not None:
            return tuple(holder.dims) if isinstance(holder, TensorProto) else self.array(holder).shape
        return fixed_sizes(self.types.get(name, TypeProto()))

    def dtype(self, name: str) -> str | None:
        """Return the element type of a constant or floating-point value by NumPy's name."""
        holder = self.holder(name)
        if isinstance(holder, TensorProto):  # without reading its values, which can be in another file
            stored = element_type(holder.data_type)
            return None if stored is None else stored.name
        if holder is not None:
            return self.array(holder).dtype.name
        known = element_type(self.types[name].tensor_type.elem_type) if name in self.types else None
        return known.name if known is not None and known.name in _FLOATS else None


def all_values(source: Source, model: ModelProto) -> Iterator[Values]:
    """Iterate over the values of a model's graph, then of its subgraphs, outer before inner."""
    waiting = [Values(source, model.graph, model.ir_version)]
    while waiting:
        values = waiting.pop()
        yield values
        waiting += [values.of_body(body) for node in values.graph.node for body in attribute_graphs(node)]
