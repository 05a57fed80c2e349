"""Limit the memory that loading a model needs."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Container, Iterable, Sequence

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onegru.dataflow.table import Elements, movers
from onegru.formats.onnx.functions.inline import all_nodes, call_key
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    element_type,
    external_files,
    is_augru_function,
    is_onnx,
)

# Limit of bytes computed ahead of runs: a multiple of the file size, plus a constant.
_TIMES, _FREE = 16, 2**26
# Limit of the elements of tensors that can be shapes.
_SHAPE_NUMBERS = 1024


def check_bounds(source: Source, model: ModelProto, size: int, external: Sequence[TensorProto]) -> int:
    """Reject a model that needs far more memory than its file, in any runtime."""
    files = external_files(source, external)
    most = _FREE + _TIMES * (size + sum(path.stat().st_size for path in files))
    total = 0
    owners = all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node)
    for graph in (model.graph, *(body for owner in owners for body in attribute_graphs(owner))):
        for sparse in graph.sparse_initializer:
            total += abs(math.prod(sparse.dims)) * _item_size(sparse.values.data_type)
            if total > most:
                raise source.error(
                    f"sparse initializer {sparse.values.name!r}: shape {list(sparse.dims)}; sparse tensors "
                    "are far larger than the file"
                )
    total = 0
    for tensor in external:
        total += math.prod(tensor.dims) * _item_size(tensor.data_type)
        if total > most:
            raise source.error(
                f"tensor {tensor.name!r}: external data overlap, and are far larger than their files"
            )
    return most


class ConstantPart:
    """The part of a model that depends only on constants, with the sizes of its values."""

    def __init__(
        self,
        model: ModelProto,
        nodes: Sequence[NodeProto],
        most: int,
        constants: Container[str],
        tensors: Iterable[TensorProto] | None = None,
    ) -> None:
        chosen: list[NodeProto] = []
        plain: list[NodeProto] = []
        known: set[str] = set()
        inner = 0  # nodes in subgraphs and functions, whose dependencies are not followed
        count_inner = _counter(model.functions)
        for node in nodes:
            inner += count_inner(node)
            names = [name for name in node.input if name]
            if all(name in known or name in constants for name in names):
                known.update(node.output)
                (plain if node.op_type == "Constant" else chosen).append(node)
        self.most = most  # the largest size in bytes of a value that is computed ahead of runs
        self._constants = constants
        tensors = model.graph.initializer if tensors is None else tensors
        self._sizes = _inferred(model, tensors, plain, chosen) if chosen else {}
        sizes = [self._sizes.get(name) for node in chosen for name in node.output if name]
        if inner or None in sizes or sum(size or 0 for size in sizes) > self.most:
            self.most //= max(1, len(sizes) + inner)

    def fits(self, node: NodeProto) -> bool:
        """Whether the results of a node that depends only on constants are small enough."""
        # Nodes with blocks of computed scales are not: onnx's evaluator repeats each scale as often as the
        # file states, regardless of the shape.
        has_blocks = any(attribute.name == "block_size" and attribute.i for attribute in node.attribute)
        if has_blocks and not all(name in self._constants for name in node.input if name):
            return False
        return all(self._sizes.get(name, math.inf) <= self.most for name in node.output if name)


def _counter(functions: Iterable[FunctionProto]) -> Callable[[NodeProto], int]:
    """Return a function that counts the nodes in a node's subgraphs and functions, except AUGRU's."""
    others = (function for function in functions if not is_augru_function(function))
    by_key: dict[object, FunctionProto] = {call_key(function): function for function in others}

    @functools.cache
    def called(key: object) -> int:
        nodes = all_nodes(by_key[key].node) if key in by_key else ()
        return sum(1 + called(call_key(node)) for node in nodes)

    def count(node: NodeProto) -> int:
        inner = (inner for body in attribute_graphs(node) for inner in all_nodes(body.node))
        return called(call_key(node)) + sum(1 + called(call_key(node)) for node in inner)

    return count


def _inferred(
    model: ModelProto, tensors: Iterable[TensorProto], plain: Sequence[NodeProto], chosen: Sequence[NodeProto]
) -> dict[str, int]:
    """Return the bytes of each output of some nodes, as inferred by onnx without computation."""
    graph = GraphProto(name="constants")
    used = {name for node in chosen for name in node.input}
    held = {tensor.name: tensor for tensor in tensors if tensor.name in used}
    for node in plain:
        tensors = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
        if tensors and used.intersection(node.output):
            held[node.output[0]] = tensors[0]
        else:
            graph.node.append(node)
    for name, tensor in held.items():
        # The values of small tensors can be shapes; external ones are not read.
        if math.prod(tensor.dims) > _SHAPE_NUMBERS or tensor.data_location == TensorProto.EXTERNAL:
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        else:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = name
    graph.node.extend(chosen)
    small = ModelProto(ir_version=8, graph=graph)
    small.opset_import.extend(model.opset_import)
    for entry in small.opset_import:
        if is_onnx(entry):
            entry.version = max(entry.version, 6)  # many operators have no inference before opset 6
    if not small.opset_import:
        small.opset_import.append(onnx.helper.make_opsetid("", 6))
    with contextlib.suppress(Exception):  # the other sizes stay unknown
        # Without data_prop, which needs unbounded memory for growing shapes.
        graph = onnx.shape_inference.infer_shapes(small).graph
    sizes = {name: math.prod(tensor.dims) * _item_size(tensor.data_type) for name, tensor in held.items()}
    for value in (*graph.value_info, *graph.output):
        tensor_type = value.type.tensor_type
        if tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor_type.shape.dim):
            count = abs(math.prod(dim.dim_value for dim in tensor_type.shape.dim))
            sizes[value.name] = count * _item_size(tensor_type.elem_type)
    for node in chosen:
        if node.op_type in _MOVES and node.input and node.input[0] in sizes:
            for name in node.output:
                sizes.setdefault(name, sizes[node.input[0]])
    return sizes


# Operators whose output is no larger than their first input.
_MOVES = movers(Elements.KEPT | Elements.PERMUTED | Elements.CUT, without=("Gather",))


def _item_size(code: int) -> int:
    """Return the bytes of an element in an array."""
    if code == TensorProto.STRING:
        return 64
    dtype = element_type(code)
    return 16 if dtype is None else dtype.itemsize
