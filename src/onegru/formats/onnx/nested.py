"""The GRU nodes in the bodies of other nodes, such as If, Loop and Scan."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

from onnx import NodeProto, TensorProto

from onegru.formats.graph import GruStep
from onegru.formats.onnx.node import is_plain_constant
from onegru.formats.onnx.validate import describe, is_ours

_Constant = TensorProto | NodeProto
#: The values of bodies; None for one that is no constant, and may shadow one of the model's.
_Values = MutableMapping[str, _Constant | None]


def find_nested(
    nodes: Iterable[NodeProto],
    gru_of: Callable[[NodeProto, tuple[str, ...]], GruStep],
    constant_of: Callable[[str], _Constant | None],
) -> tuple[list[tuple[NodeProto, GruStep]], dict[str, _Constant]]:
    """Find the GRU nodes in the bodies of a model's nodes.

    Args:
        nodes: the model's own.
        gru_of: makes a `GruStep` of a node and descriptions of the bodies around it, the outermost first.
        constant_of: the initializer or node of a constant of the model, by its name.

    Returns:
        the GRU nodes; and the initializers and nodes of the constants that they take, by the values' names.
    """
    grus: list[tuple[NodeProto, GruStep]] = []
    constants: dict[str, _Constant] = {}
    for node, bodies, values in _bodies_nodes(nodes, (), {}):
        if not is_ours(node):
            continue
        gru = gru_of(node, bodies)
        grus.append((node, gru))
        for value, name in zip(gru.inputs.values(), filter(None, node.input), strict=True):
            constant = values[name] if name in values else constant_of(name)
            if constant is not None:
                constants[value] = constant
    return grus, constants


def _bodies_nodes(
    owners: Iterable[NodeProto], bodies: tuple[str, ...], around: _Values
) -> Iterator[tuple[NodeProto, tuple[str, ...], Mapping[str, _Constant | None]]]:
    """The nodes in the bodies of others, with descriptions of these bodies, and the values known there."""
    for owner in owners:
        for attribute in owner.attribute:
            for body in (attribute.g,) if attribute.HasField("g") else tuple(attribute.graphs):
                own: _Values = dict.fromkeys(value.name for value in body.input)
                own.update({tensor.name: tensor for tensor in body.initializer})
                for node in body.node:
                    own.update(dict.fromkeys(node.output, node if is_plain_constant(node) else None))
                known = ChainMap(own, around)
                words = (*bodies, f"{attribute.name} of {describe(owner)}")
                for node in body.node:
                    yield node, words, known
                    yield from _bodies_nodes((node,), words, known)
