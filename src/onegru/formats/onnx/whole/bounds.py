"""Bounds on the memory that loading a model needs.

ONNX Runtime computes nodes that depend only on constants when it creates a session, and propagates the values
of shapes from node to node.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onegru.dataflow.table import Elements, movers
from onegru.formats.onnx.functions.unfold import all_nodes, call_key
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    describe,
    element_type,
    external_files,
    is_augru_function,
    is_onnx,
)

# Limit of bytes computed ahead of runs: a multiple of the file size, plus a constant.
_TIMES, _FREE = 16, 2**26
# Limit of the elements of propagated shapes: ONNX Runtime needs 280 bytes for each (seen in 1.31).
_NUMBERS = 2**18
# Limit of the elements of tensors that can be shapes.
_SHAPE_NUMBERS = 1024


def check_bounds(
    source: Source, model: ModelProto, nodes: Sequence[NodeProto], size: int, external: Sequence[TensorProto]
) -> int:
    """Refuse a model that takes far more memory than its file, whatever runs it."""
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
    _Shapes(source, model, size).follow(nodes, {tensor.name: tensor for tensor in model.graph.initializer})
    return most


class Ahead:
    """The part of a model that depends only on constants, with the sizes of its values.

    Args:
        model: the model.
        nodes: the nodes of its graph in topological order.
        most: the limit of bytes that can be computed ahead of runs.
        constants: the names of initializers that callers cannot replace.
        tensors: the initializers. Default: None (those of the model's graph).

    Attributes:
        most: the largest size in bytes of a value that is computed ahead of runs.
    """

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
        self.most = most
        self._constants = constants
        tensors = model.graph.initializer if tensors is None else tensors
        self._sizes = _inferred(model, tensors, plain, chosen) if chosen else {}
        sizes = [self._sizes.get(name) for node in chosen for name in node.output if name]
        if inner or None in sizes or sum(size or 0 for size in sizes) > self.most:
            self.most //= max(1, len(sizes) + inner)

    def fits(self, node: NodeProto) -> bool:
        """Whether the results of a node that depends only on constants are small enough.

        Nodes with blocks of computed scales are not: onnx's evaluator repeats each scale as often as the file
        states, regardless of the shape.
        """
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
    model: ModelProto,
    tensors: Iterable[TensorProto],
    plain: Sequence[NodeProto],
    chosen: Sequence[NodeProto],
) -> dict[str, int]:
    """The bytes of each output of some nodes, as onnx infers them without computing anything."""
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


class _Shapes:
    """Lists of integers that a runtime propagates from node to node, in case they become shapes."""

    def __init__(self, source: Source, model: ModelProto, size: int) -> None:
        self._source = source
        self._functions = {call_key(function): function for function in model.functions}
        self._left = _NUMBERS + size // 8

    def follow(
        self,
        nodes: Iterable[NodeProto],
        tensors: Mapping[str, TensorProto],
        outer: ChainMap[str, _List] | None = None,
        depth: int = 0,
    ) -> ChainMap[str, _List]:
        """The lists that are followed, by the names of values."""
        known: ChainMap[str, _List] = (ChainMap() if outer is None else outer).new_child()
        known.update({name: _List.of(tensor) for name, tensor in tensors.items() if _is_shape(tensor)})
        for node in nodes:
            found = self._given(node, known)
            if found is not None and node.output:
                known[node.output[0]] = found
                self._left -= found.size
                if self._left < 0:
                    raise self._source.error(
                        f"{describe(node)}: shapes have too many elements for the size of the file"
                    )
            function = self._functions.get(call_key(node)) if self._functions else None
            bodies = list(attribute_graphs(node))
            if (bodies or function is not None) and depth >= _MAX_DEPTH:
                raise self._source.error(
                    f"{describe(node)}: nested in more than {_MAX_DEPTH} subgraphs and calls"
                )
            for body in bodies:
                self.follow(body.node, {tensor.name: tensor for tensor in body.initializer}, known, depth + 1)
            if function is not None:
                taken = {
                    inner: known[name]
                    for inner, name in zip(function.input, node.input, strict=False)
                    if name in known
                }
                given = self.follow(function.node, {}, ChainMap(taken), depth + 1)
                names = zip(function.output, node.output, strict=False)
                known.update({name: given[inner] for inner, name in names if inner in given})
        return known

    def _given(self, node: NodeProto, known: Mapping[str, _List]) -> _List | None:
        if node.op_type == "Shape":
            return _List(_RANK, 1)
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value_int":
                    return _List(1, 0, (attribute.i,))
                if attribute.name == "value_ints":
                    numbers = tuple(attribute.ints)
                    return _List(len(numbers), 1, numbers if len(numbers) == 1 else ())
                if attribute.name == "value" and _is_shape(attribute.t):
                    return _List.of(attribute.t)
            return None
        if node.op_type not in _FOLLOWED or not node.input or node.input[0] not in known:
            return None
        lists = [known[name] for name in node.input if name in known]
        data, second = lists[0], known.get(node.input[1]) if len(node.input) > 1 else None
        size, rank = max(item.size for item in lists), max(item.rank for item in lists)
        if node.op_type == "Concat":
            if len(lists) < len(node.input):
                return None
            size = sum(item.size for item in lists)
        elif node.op_type == "Reshape":
            rank = _RANK if second is None else second.size
        elif node.op_type == "Unsqueeze":
            if len(node.input) < 2:  # before opset 13
                rank += sum(len(item.ints) for item in node.attribute)
            else:
                rank = _RANK if second is None else data.rank + second.size
        elif node.op_type == "Gather":  # the number of indices, for any length of the table
            rank = _RANK if second is None else data.rank + second.rank - 1
            if second is not None:
                size = second.size * (1 if data.rank <= 1 else data.size)
        elif node.op_type == "Slice":
            size, rank = (_sliced(node, known, data.size) if data.rank <= 1 else data.size), data.rank
        return _List(size, rank)


class _List(NamedTuple):
    """The number of integers, the maximum rank, and the value of a constant with one element."""

    size: int
    rank: int
    only: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: TensorProto) -> _List:
        size, only = math.prod(tensor.dims), ()
        if size == 1 and tensor.data_location != TensorProto.EXTERNAL:
            with contextlib.suppress(Exception):  # readers reject broken tensors later
                only = tuple(onnx.numpy_helper.to_array(tensor).ravel().tolist())
        return cls(size, len(tensor.dims), only)


def _sliced(node: NodeProto, known: Mapping[str, _List], count: int) -> int:
    """Return how many of `count` elements Slice keeps; all, unless its bounds are constants."""
    told = {item.name: tuple(item.ints) for item in node.attribute}
    for name, value in zip(("starts", "ends", "axes", "steps"), node.input[1:], strict=False):
        if value:
            told[name] = known[value].only if value in known else ()
    bounds = [told.get("starts", ()), told.get("ends", ()), told.get("steps", (1,))]
    if any(len(numbers) != 1 for numbers in bounds) or bounds[2] == (0,):
        return count
    return len(range(count)[slice(*(number for (number,) in bounds))])


# Operators whose results are also propagated.
_FOLLOWED = {"Add", "Concat", "Div", "Gather", "Max", "Min", "Mod", "Mul", "Neg", "Slice", "Sub", "Where"}
_FOLLOWED |= movers(Elements.KEPT, casts=True, without=("Flatten",))
_RANK = 8
_MAX_DEPTH = 100


def _is_shape(tensor: TensorProto) -> bool:
    return tensor.data_type in (TensorProto.INT32, TensorProto.INT64) and len(tensor.dims) <= 1


def _item_size(code: int) -> int:
    """Return the bytes of an element in an array."""
    if code == TensorProto.STRING:
        return 64
    dtype = element_type(code)
    return 16 if dtype is None else dtype.itemsize
