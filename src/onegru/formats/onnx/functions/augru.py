"""Define AUGRU nodes, GRUs with attention, in ONNX models.

ONNX has no operator for it. Models with onegru's own `AUGRU` nodes also contain functions that define these
nodes with ONNX's operators, for runtimes that support functions. onegru's execution provider claims the nodes
before ONNX Runtime inlines the functions.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import FunctionProto, ModelProto

from onegru.core.errors import prefixed_errors
from onegru.formats.onnx.functions.augru_body import OPTIONAL, augru_function
from onegru.formats.onnx.functions.inline import all_nodes
from onegru.formats.onnx.node import node_attributes
from onegru.formats.onnx.validate import Source, describe, is_augru, is_augru_function, is_onnx
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS

_OLDEST_IR = 8  # the first version with functions


def lacks_augru_functions(model: ModelProto) -> bool:
    """Whether a model has AUGRU nodes without a function, which ONNX Runtime rejects."""
    there = {function.domain for function in model.functions if is_augru_function(function)}
    nodes = all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node)
    return any(is_augru(node) and node.domain not in there for node in nodes)


def add_augru_functions(model: ModelProto, source: Source | None = None) -> bool:
    """Add or replace the functions of a model's AUGRU nodes, also in subgraphs and functions."""
    # Nodes with different attributes or present inputs need functions in separate domains.
    source = source or Source("the model")
    others = [function for function in model.functions if not is_augru_function(function)]
    opset = max((entry.version for entry in model.opset_import if is_onnx(entry)), default=1)
    if len(others) == len(model.functions) and not any(
        is_augru(node) for owner in (model.graph, *others) for node in all_nodes(owner.node)
    ):
        return False
    variants: dict[tuple[object, ...], FunctionProto] = {}
    is_changed = False
    for owner in (model.graph, *others):
        domains: dict[str, None] = {}
        for node in filter(is_augru, all_nodes(owner.node)):
            attributes = node_attributes(source, node, AUGRU)
            names_by_port = dict(zip((port.name for port in AUGRU.inputs), node.input, strict=False))
            names_by_port |= dict(zip((port.name for port in AUGRU.outputs), node.output, strict=False))
            given = tuple(name for name in OPTIONAL if names_by_port.get(name))
            key = (repr(sorted(attributes.items())), given)
            if key not in variants:
                if len(variants) == len(AUGRU_DOMAINS):
                    raise source.error(
                        f"{describe(node)}: needs a separate function, but the model already has "
                        f"{len(variants)}; must have the attributes and inputs of another node"
                    )
                with prefixed_errors(f"{source.name}: {describe(node)}: "):
                    domain = AUGRU_DOMAINS[len(variants)]
                    variants[key] = augru_function(attributes, opset, given, domain)
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
