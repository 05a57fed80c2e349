"""GRUs with attention (AUGRU) in ONNX models.

ONNX has no operator for it. Models with onegru's own `AUGRU` nodes also contain functions that define these
nodes with ONNX's operators, for runtimes that support functions. onegru's execution provider claims the nodes
before ONNX Runtime inlines the functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onegru.core.errors import SpecError, prefixed_errors
from onegru.formats.onnx.functions.augru_body import CASTS_LIKE, OPTIONAL, augru_function
from onegru.formats.onnx.functions.unfold import all_nodes
from onegru.formats.onnx.node import node_attributes
from onegru.formats.onnx.validate import (
    Source,
    attribute_graphs,
    describe,
    element_type,
    is_augru,
    is_augru_function,
    is_onnx,
    trimmed,
)
from onegru.operators.attributes import read_attributes
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS

_OLDEST_IR = 8  # the first version with functions


def augru_node(
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    attributes: Mapping[str, object] | None = None,
    name: str = "",
) -> NodeProto:
    """A node of the operator AUGRU. Once it is in a model, `add_augru_functions` adds its function."""
    attributes = attributes or {}
    read_attributes(AUGRU, attributes)
    for kind, ports, given in (("input", AUGRU.inputs, inputs), ("output", AUGRU.outputs, outputs)):
        for port in ports:
            if port.required and not given.get(port.name):
                raise SpecError(f"{port.name}: missing; {AUGRU} requires it")
        names = [port.name for port in ports]
        if unknown := [item for item in given if item not in names]:
            raise SpecError(f"{unknown[0]}: not an {kind} of {AUGRU}; must be one of {', '.join(names)}")
    taken = trimmed(inputs.get(port.name, "") for port in AUGRU.inputs)
    made = trimmed(outputs.get(port.name, "") for port in AUGRU.outputs)
    node = onnx.helper.make_node(AUGRU.name, taken, made, name, domain=AUGRU_DOMAINS[0])
    node.attribute.extend(
        onnx.helper.make_attribute(key, value)
        for key, value in attributes.items()
        if not isinstance(value, list | tuple) or value  # an empty list has no type
    )
    return node


def lacks_augru_functions(model: ModelProto) -> bool:
    """Whether a model has AUGRU nodes without a function, which ONNX Runtime rejects."""
    there = {function.domain for function in model.functions if is_augru_function(function)}
    nodes = all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node)
    return any(is_augru(node) and node.domain not in there for node in nodes)


def add_augru_functions(model: ModelProto, source: Source | None = None) -> bool:
    """Add the functions of a model's AUGRU nodes, and replace existing ones.

    Nodes in bodies and in other functions count as well. Nodes that differ in their attributes, or in which
    inputs they have, need separate functions, for which they get separate domains. The domains are
    added to the opsets, and the IR version is raised to one that has functions.
    """
    source = source or Source("the model")
    others = [function for function in model.functions if not is_augru_function(function)]
    opset = max((entry.version for entry in model.opset_import if is_onnx(entry)), default=1)
    if len(others) == len(model.functions) and not any(map(_holds_augru, (model.graph, *others))):
        return False
    variants: dict[tuple[object, ...], FunctionProto] = {}
    is_changed = False
    for owner in (model.graph, *others):
        domains: dict[str, None] = {}
        for node, dtypes in _augru_nodes(owner, {}):
            attributes = node_attributes(source, node, AUGRU)
            taken = dict(zip((port.name for port in AUGRU.inputs), node.input, strict=False))
            taken |= dict(zip((port.name for port in AUGRU.outputs), node.output, strict=False))
            given = tuple(name for name in OPTIONAL if taken.get(name))
            found = (dtypes.get(taken.get(name, "")) for name in ("W", "R", "B", "X"))
            dtype = None if opset >= CASTS_LIKE else next(filter(None, found), None)
            key = (repr(sorted(attributes.items())), given, dtype)
            if key not in variants:
                if len(variants) == len(AUGRU_DOMAINS):
                    raise source.error(
                        f"{describe(node)}: needs a separate function, but the model already has "
                        f"{len(variants)}; must have the attributes and inputs of another node"
                    )
                with prefixed_errors(f"{source.name}: {describe(node)}: "):
                    domain = AUGRU_DOMAINS[len(variants)]
                    variants[key] = augru_function(attributes, opset, given, dtype, domain)
            domain = variants[key].domain
            domains[domain] = None
            if (node.domain, node.overload) != (domain, ""):
                node.domain, node.overload, is_changed = domain, "", True
        if isinstance(owner, FunctionProto):
            is_changed |= _import(owner, domains)
    is_changed |= _import(model, [function.domain for function in variants.values()])
    functions = list(variants.values())
    if [function for function in model.functions if is_augru_function(function)] != functions:
        del model.functions[:]
        model.functions.extend([*others, *functions])
        is_changed = True
    if functions and model.ir_version < _OLDEST_IR:
        model.ir_version, is_changed = _OLDEST_IR, True
    return is_changed


def _import(owner: ModelProto | FunctionProto, domains: Iterable[str]) -> bool:
    """Add domains to the opset imports; return whether one was missing."""
    missing = [domain for domain in domains if all(entry.domain != domain for entry in owner.opset_import)]
    owner.opset_import.extend(onnx.helper.make_opsetid(domain, AUGRU.version) for domain in missing)
    return bool(missing)


def _holds_augru(owner: GraphProto | FunctionProto) -> bool:
    return any(map(is_augru, all_nodes(owner.node)))


def _augru_nodes(
    owner: GraphProto | FunctionProto, around: Mapping[str, str]
) -> Iterator[tuple[NodeProto, Mapping[str, str]]]:
    """Find the AUGRU nodes of a graph or function and its subgraphs, with the known element types."""
    codes = {value.name: value.type.tensor_type.elem_type for value in owner.value_info}
    if isinstance(owner, GraphProto):
        codes |= {value.name: value.type.tensor_type.elem_type for value in owner.input}
        codes |= {tensor.name: tensor.data_type for tensor in owner.initializer}
    for node in owner.node:
        tensors = [item.t for item in node.attribute if item.HasField("t")]
        codes.update((name, tensor.data_type) for name, tensor in zip(node.output, tensors, strict=False))
    dtypes = dict(around)
    dtypes |= {name: known.name for name, code in codes.items() if (known := element_type(code)) is not None}
    for node in owner.node:
        if is_augru(node):
            yield node, dtypes
        for body in attribute_graphs(node):
            yield from _augru_nodes(body, dtypes)
