"""Find GRU nodes in subgraphs of If, Loop and Scan nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onnx import NodeProto, TensorProto

from onegru.formats.graph import GruStep
from onegru.formats.onnx.validate import describe, is_ours
from onegru.formats.onnx.values import Values

_Constant = TensorProto | NodeProto


def find_nested(
    nodes: Iterable[NodeProto], gru_of: Callable[[NodeProto, tuple[str, ...]], GruStep], values: Values
) -> tuple[list[tuple[NodeProto, GruStep]], dict[str, _Constant]]:
    """Find the GRU nodes in the subgraphs of a model's nodes."""
    grus: list[tuple[NodeProto, GruStep]] = []
    constants: dict[str, _Constant] = {}
    for node, bodies, around in _bodies_nodes(nodes, (), values):
        if not is_ours(node):
            continue
        gru = gru_of(node, bodies)
        grus.append((node, gru))
        for value, name in zip(gru.inputs.values(), filter(None, node.input), strict=True):
            constant = around.holder(name)
            if constant is not None:
                constants[value] = constant
    return grus, constants


def _bodies_nodes(
    owners: Iterable[NodeProto], bodies: tuple[str, ...], around: Values
) -> Iterator[tuple[NodeProto, tuple[str, ...], Values]]:
    """Iterate over nodes in subgraphs, with descriptions of the subgraphs and the values known there."""
    for owner in owners:
        for attribute in owner.attribute:
            for body in (attribute.g,) if attribute.HasField("g") else tuple(attribute.graphs):
                values = around.of_body(body)
                words = (*bodies, f"{attribute.name} of {describe(owner)}")
                for node in body.node:
                    yield node, words, values
                    yield from _bodies_nodes((node,), words, values)
