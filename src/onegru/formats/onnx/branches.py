"""Inline branches of If nodes with a constant condition."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, helper

from onegru.dataflow.flow import Flow
from onegru.dataflow.names import fresh_name
from onegru.formats.onnx.validate import attribute_graphs, is_onnx, replace_nodes
from onegru.formats.onnx.values import names_in


def inline_branches(model: ModelProto, flow: Flow) -> bool:
    """Replace each If with a constant condition by its branch; return whether there was one."""
    names, nodes = names_in(model), list[NodeProto]()
    for node in model.graph.node:
        branch = _branch(node, flow) if is_onnx(node) and node.op_type == "If" else None
        nodes += [node] if branch is None else _inlined(model.graph, node, branch, names)
    is_changed = len(nodes) != len(model.graph.node) or any(
        new is not old for new, old in zip(nodes, model.graph.node, strict=True)
    )
    if is_changed:
        replace_nodes(model.graph, nodes)
    return is_changed


def _branch(node: NodeProto, flow: Flow) -> GraphProto | None:
    """Return the branch that an If always runs; None if unknown, or if the branch has nested subgraphs."""
    condition = flow.constant(node.input[0]) if len(node.input) == 1 else None
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if condition.any() else "else_branch"
    found = [item.g for item in node.attribute if item.name == name]
    is_plain = len(found) == 1 and len(found[0].output) == len(node.output) and not found[0].input
    is_plain = is_plain and not found[0].sparse_initializer
    return found[0] if is_plain and not any(any(attribute_graphs(item)) for item in found[0].node) else None


def _inlined(graph: GraphProto, node: NodeProto, branch: GraphProto, names: set[str]) -> list[NodeProto]:
    """Return the nodes of a branch under new names, then Identity nodes for the outputs of the If."""
    own = {name for item in branch.node for name in item.output} | {item.name for item in branch.initializer}
    renamed = {name: fresh_name(name, names) for name in sorted(own - {""})}
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = renamed[tensor.name]
    nodes: list[NodeProto] = []
    for item in branch.node:
        nodes.append(NodeProto())
        nodes[-1].CopyFrom(item)
        nodes[-1].input[:] = [renamed.get(name, name) for name in item.input]
        nodes[-1].output[:] = [renamed.get(name, name) for name in item.output]
    for value, given in zip(branch.output, node.output, strict=True):
        if given:
            nodes.append(helper.make_node("Identity", [renamed.get(value.name, value.name)], [given]))
    return nodes
