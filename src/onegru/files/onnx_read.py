"""Reading an .onnx file as what it is: something a stranger wrote.

What comes out is a ModelProto whose tensors are as large as they say, whose external data lie inside the
model's folder, whose functions are finite, and whose graph is acyclic and complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onegru.dtypes import Array
from onegru.errors import FormatError

__all__ = [
    "Source",
    "attribute_graphs",
    "check_tensor",
    "describe",
    "is_gru",
    "read_model",
    "sort_nodes",
    "to_array",
]

_MAX_INLINED_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from.

    Attributes:
        name: what to call it in messages.
        folder: the folder that its external data must lie in; None if it may have none.
    """

    name: str
    folder: Path | None = None

    def error(self, message: str) -> FormatError:
        """A FormatError that names the file."""
        return FormatError(f"{self.name}: {message}")


def read_model(source: Source, data: bytes) -> ModelProto:
    """Parse and check a serialized model. External data stay where they are.

    Raises:
        FormatError: it is not a model, or one that is broken or hostile.
    """
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError is not in the public interface of every version
        raise source.error(f"not an ONNX model, or truncated ({error})") from None
    if not model.HasField("graph"):
        raise source.error("holds no graph; not an ONNX model, or truncated")
    for tensor in _all_tensors(model):
        check_tensor(source, tensor)
    if model.functions:
        model = _inline_gru_functions(source, model)
    return model


def is_gru(node: NodeProto) -> bool:
    """Whether a node is ONNX's GRU."""
    return node.op_type == "GRU" and node.domain in ("", "ai.onnx")


def describe(node: NodeProto) -> str:
    """What to call a node in messages."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    output = next((name for name in node.output if name), "")
    return f"{node.op_type} node that gives {output!r}"


def attribute_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies that a node has."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def to_array(source: Source, tensor: TensorProto) -> Array:
    """The values of a tensor, external ones included.

    Raises:
        FormatError: its values do not fit its shape.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        path, offset, length = _external_place(source, tensor)
        with path.open("rb") as file:
            file.seek(offset)
            raw = file.read(length)
        inline = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw, name=tensor.name)
        tensor = inline
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # whatever the helper stumbles over, the tensor is at fault
        raise source.error(f"tensor {tensor.name!r}: cannot be read ({error})") from None


# Tensors


def _all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
    for body in attribute_graphs(node):
        yield from _graph_tensors(body)


def check_tensor(source: Source, tensor: TensorProto) -> None:
    """Raise FormatError unless a tensor is as large as its shape says and its external data are in place."""
    if any(size < 0 for size in tensor.dims):
        raise source.error(f"tensor {tensor.name!r}: shape {list(tensor.dims)}; must not be negative")
    if tensor.data_location == TensorProto.EXTERNAL:
        path, offset, length = _external_place(source, tensor)
        size = path.stat().st_size
        if offset + length > size:
            raise source.error(
                f"tensor {tensor.name!r}: external data end at byte {offset + length} of {path.name!r}, "
                f"which has {size}"
            )
        _check_bytes(source, tensor, length)
    elif tensor.HasField("raw_data"):
        _check_bytes(source, tensor, len(tensor.raw_data))


def _check_bytes(source: Source, tensor: TensorProto, size: int) -> None:
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        raise source.error(f"tensor {tensor.name!r}: raw data of type {tensor.data_type}; must be numeric")
    try:
        bits = _bits(tensor.data_type)
    except (KeyError, ValueError):
        raise source.error(f"tensor {tensor.name!r}: unknown element type {tensor.data_type}") from None
    count = 1
    for dim in tensor.dims:
        count *= dim
    wanted = (count * bits + 7) // 8
    if size != wanted:
        raise source.error(
            f"tensor {tensor.name!r}: {size} bytes; must be {wanted} for shape {list(tensor.dims)}"
        )


def _bits(data_type: int) -> int:
    name = TensorProto.DataType.Name(data_type)
    if name.endswith(("INT4", "FLOAT4E2M1")):
        return 4
    if name.endswith("INT2"):
        return 2
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


def _external_place(source: Source, tensor: TensorProto) -> tuple[Path, int, int]:
    """The file, offset and length of external data, checked to lie inside the model's folder."""
    place = f"tensor {tensor.name!r}: external data"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if source.folder is None:
        raise source.error(f"{place} in {location!r}, but the model has no folder; load it from its file")
    folder = Path(os.path.realpath(source.folder))
    if not location or "\0" in location:
        raise source.error(f"{place} without a location")
    path = Path(os.path.realpath(folder / location))
    if Path(location).is_absolute() or not path.is_relative_to(folder):
        raise source.error(f"{place} in {location!r}, outside the model's folder")
    if not path.is_file():
        raise source.error(f"{place} in {location!r}, which is not a file")
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(path.stat().st_size - offset)))
    except ValueError:
        raise source.error(f"{place}: offset and length must be numbers") from None
    if offset < 0 or length < 0:
        raise source.error(f"{place}: offset {offset}, length {length}; must not be negative")
    return path, offset, length


# Functions


def _inline_gru_functions(source: Source, model: ModelProto) -> ModelProto:
    """Put functions in the place of their calls, if any of them holds a GRU."""
    functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    holds_gru = False

    def size_of(nodes: Sequence[NodeProto], callers: tuple[tuple[str, str, str], ...]) -> int:
        nonlocal holds_gru
        total = 0
        for node in nodes:
            total += 1
            for body in attribute_graphs(node):
                total += size_of(body.node, callers)
            key = (node.domain, node.op_type, getattr(node, "overload", ""))
            if key not in functions:
                continue
            if key in callers or len(callers) > 200:
                raise source.error(f"function {node.op_type!r} calls itself")
            if key not in sizes:
                sizes[key] = size_of(functions[key].node, (*callers, key))
            total += sizes[key]
            if total > _MAX_INLINED_NODES:
                raise source.error(f"functions unfold to more than {_MAX_INLINED_NODES} nodes")
        return total

    size_of(model.graph.node, ())
    for function in functions.values():
        holds_gru = holds_gru or any(_holds_gru(node) for node in function.node)
    if not holds_gru:
        return model
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # a C++ exception of no particular class
        raise source.error(f"functions that hold GRUs cannot be unfolded ({_first_line(error)})") from None


def _holds_gru(node: NodeProto) -> bool:
    return is_gru(node) or any(_holds_gru(inner) for body in attribute_graphs(node) for inner in body.node)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


# Order


def free_names(graph: GraphProto) -> set[str]:
    """The names that a body takes from the graphs around it."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    known |= {name for node in graph.node for name in node.output}
    used = {value.name for value in graph.output}
    for node in graph.node:
        used |= node_inputs(node)
    return used - known - {""}


def node_inputs(node: NodeProto) -> set[str]:
    """The names that a node takes, those that its bodies take from outside included."""
    names = set(node.input) - {""}
    for body in attribute_graphs(node):
        names |= free_names(body)
    return names


def sort_nodes(source: Source, graph: GraphProto) -> list[NodeProto]:
    """The nodes in an order in which they can be run.

    Raises:
        FormatError: a name is given twice or never, or nodes wait for each other.
    """
    given: dict[str, int | None] = {}

    def give(name: str, index: int | None, place: str) -> None:
        if name in given:
            raise source.error(f"{place}: {name!r} is defined twice")
        given[name] = index

    for value in graph.input:
        give(value.name, None, "graph input")
    inputs = set(given)
    for tensor in graph.initializer:
        if tensor.name not in inputs:
            give(tensor.name, None, "initializer")
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in inputs:
            give(sparse.values.name, None, "initializer")
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name:
                give(name, index, describe(node))

    waits: list[set[int]] = []
    for node in graph.node:
        needed: set[int] = set()
        for name in node_inputs(node):
            if name not in given:
                raise source.error(f"{describe(node)}: input {name!r} is defined nowhere")
            if (giver := given[name]) is not None:
                needed.add(giver)
        waits.append(needed)
    for value in graph.output:
        if value.name not in given:
            raise source.error(f"graph output {value.name!r} is defined nowhere")
    return [graph.node[index] for index in _topological_order(source, graph, waits)]


def _topological_order(source: Source, graph: GraphProto, waits: list[set[int]]) -> list[int]:
    takers: list[list[int]] = [[] for _ in waits]
    for index, needed in enumerate(waits):
        for giver in needed:
            takers[giver].append(index)
    missing = [len(needed) for needed in waits]
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    for index in ready:  # grows while it is walked
        order.append(index)
        for taker in takers[index]:
            missing[taker] -= 1
            if missing[taker] == 0:
                ready.append(taker)
    if len(order) < len(waits):
        stuck = next(index for index, count in enumerate(missing) if count)
        raise source.error(f"{describe(graph.node[stuck])}: waits for itself; the graph has a cycle")
    return order
