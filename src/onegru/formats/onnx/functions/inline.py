"""Inline the functions of an ONNX model that contain GRU nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy

import onnx
from onnx import FunctionProto, ModelProto, NodeProto

from onegru.formats.onnx.validate import Source, attribute_graphs, is_augru_function, is_onnx, is_ours

_MAX_NODES = 100_000
_MAX_DEPTH = 100
# Size limit of inlined functions: a multiple of the file size, plus a constant number of bytes.
_TIMES, _FREE_BYTES = 16, 2**26

# The key of a function: domain, name and overload.
_Key = tuple[str, str, str]


def inline_functions(source: Source, model: ModelProto) -> ModelProto:
    """Inline the functions of a model, if one of them contains a GRU."""
    if not model.functions:
        return model
    functions: dict[_Key, FunctionProto] = {}
    own = [function for function in model.functions if is_augru_function(function)]
    for function in model.functions:
        if is_augru_function(function):
            continue
        key = call_key(function)
        if key in functions:
            raise source.error(f"function {function.name!r} is defined twice")
        if key[:2] == ("", "GRU"):
            raise source.error("function 'GRU' has the name of ONNX's operator; must have another name")
        functions[key] = function
    _check_sizes(source, model, functions)
    holders = _holders(functions)
    if not holders:
        return model

    from onnx import inliner

    _write_defaults(model, functions)
    for key in holders:
        _write_opset(model, functions[key])
    if own:
        model = deepcopy(model)
        del model.functions[:]
        model.functions.extend(functions.values())
    try:
        model = inliner.inline_local_functions(model)
        model.functions.extend(own)
    except Exception as error:  # a C++ exception without a specific class
        raise source.error(f"functions with GRUs cannot be inlined ({_first_line(error)})") from error
    # The inliner leaves calls of functions that have another opset than the model. (convert_version=True
    # fails if they take an initializer, such as weights: "Type unknown", onnx 1.23.)
    for node in all_nodes(model.graph.node):
        if call_key(node) in holders:
            raise source.error(
                f"function {node.op_type!r} contains a GRU and imports other opsets than the model; must "
                "import the same opsets, or contain only operators that are equal in both"
            )
    return model


def call_key(owner: NodeProto | FunctionProto) -> _Key:
    """Return the key of the function that a node calls, or of a function."""
    name = owner.op_type if isinstance(owner, NodeProto) else owner.name
    return "" if owner.domain == "ai.onnx" else owner.domain, name, owner.overload


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Iterate over nodes and the nodes in their subgraphs."""
    for node in nodes:
        yield node
        for body in attribute_graphs(node):
            yield from all_nodes(body.node)


def _check_sizes(source: Source, model: ModelProto, functions: dict[_Key, FunctionProto]) -> None:
    """Raise FormatError if inlined functions would be infinite, too large or nested too deeply."""
    known: dict[_Key, tuple[int, int, int]] = {}
    most_bytes = _FREE_BYTES + _TIMES * model.ByteSize()

    def measure(nodes: Iterable[NodeProto], callers: tuple[_Key, ...]) -> tuple[int, int, int]:
        """Return the number of nodes after inlining, their bytes, and the depth of calls."""
        size = depth = 0
        nodes = list(nodes)
        length = sum(node.ByteSize() for node in nodes)
        for node in all_nodes(nodes):
            size += 1
            key = call_key(node)
            if key in functions:
                if key in callers:
                    raise source.error(f"function {node.op_type!r} calls itself")
                if key not in known and len(callers) < _MAX_DEPTH:
                    known[key] = measure(functions[key].node, (*callers, key))
                inner_size, inner_length, inner_depth = known.get(key, (0, 0, _MAX_DEPTH))
                size, length = size + inner_size, length + inner_length
                depth = max(depth, inner_depth + 1)
            if size > _MAX_NODES:
                raise source.error(f"inlined functions have more than {_MAX_NODES} nodes")
            if length > most_bytes:
                raise source.error(f"inlined functions have more than {most_bytes} bytes")
            if depth > _MAX_DEPTH:
                raise source.error(f"function calls are nested more than {_MAX_DEPTH} levels deep")
        return size, length, depth

    for key, function in functions.items():
        if key not in known:
            known[key] = measure(function.node, (key,))
    measure(model.graph.node, ())


def _holders(functions: dict[_Key, FunctionProto]) -> set[_Key]:
    """Return the functions that contain a GRU, directly or through calls."""
    holders: set[_Key] = set()
    size = -1
    while len(holders) > size:
        size = len(holders)
        for key, function in functions.items():
            if any(is_ours(node) or call_key(node) in holders for node in all_nodes(function.node)):
                holders.add(key)
    return holders


def _write_defaults(model: ModelProto, functions: dict[_Key, FunctionProto]) -> None:
    """Write the defaults of functions' attributes into their calls, because the inliner drops them."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in all_nodes(nodes):
            if (function := functions.get(call_key(node))) is not None:
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(item for item in function.attribute_proto if item.name not in given)


def _write_opset(model: ModelProto, function: FunctionProto) -> None:
    """Give a function the model's opset if all its operators have the same version in both opsets."""
    new = {entry.version for entry in model.opset_import if is_onnx(entry)}
    entries = [entry for entry in function.opset_import if is_onnx(entry)]
    opsets = {*new, *(entry.version for entry in entries)}
    if len(new) != 1 or not entries or not 1 <= min(opsets) <= max(opsets) <= onnx.defs.onnx_opset_version():
        return
    for kind in {node.op_type for node in all_nodes(function.node) if is_onnx(node)}:
        try:
            versions = {onnx.defs.get_schema(kind, opset, "").since_version for opset in opsets}
        except onnx.defs.SchemaError:
            return
        if len(versions) > 1:
            return
    for entry in entries:
        entry.version = max(new)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
