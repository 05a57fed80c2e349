"""ONNX graphs as flows: what is constant, what operators are called, what of old opsets is not known."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onegru.formats.onnx.flow import flow_of, graph_types
from onegru.formats.onnx.validate import Source
from tests.support.models.fusing import Net, Step, check_fused, flow, fused, one_step

pytest.importorskip("onnxruntime")


def test_constants() -> None:
    net = Net()
    net.input("x", 2)
    value = onnx.numpy_helper.from_array(np.array([1.0, 2.0], np.float32))
    node, held = net("Constant", value=value), net.const([3.0, 4.0])
    known = flow(net.model())
    assert known.holds(node) and known.holds(held) and not known.holds("x")
    assert [op.kind for op in known.ops] == []
    found = known.constant(node)
    assert found is not None and found.tolist() == [1.0, 2.0]


def test_defaults_of_inputs_are_no_constants() -> None:
    """A caller may replace them; before IR 4, every initializer was an input and none was a default."""
    step = Step()
    model = one_step(step).model()
    weight = next(item for item in model.graph.initializer if item.name == step.weights["Rz"])
    model.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, list(weight.dims)))
    assert not flow(model).holds(weight.name)
    found, _ = fused(model)  # its product with h is an input like any other then
    assert any(weight.name in node.input for node in found.graph.node)
    old = flow_of(Source("model.onnx"), model.graph, graph_types(model), 3)
    assert old.holds(weight.name)


def test_operators_of_other_domains_keep_theirs() -> None:
    net = Net()
    net.input("x", 2)
    net.nodes.append(helper.make_node("Add", ["x", "x"], ["y"], domain="local"))
    net.nodes.append(helper.make_node("Tanh", ["y"], ["z"], domain="ai.onnx"))
    assert [op.kind for op in flow(net.model()).ops] == ["local::Add", "Tanh"]


def test_what_broadcasts_by_attributes_is_not_known() -> None:
    net = Net()
    net.input("x", 2)
    net.nodes.append(helper.make_node("Add", ["x", "x"], ["y"], axis=0, broadcast=1))
    assert [op.kind for op in flow(net.model()).ops] == ["unknown::Add"]


def test_casts_have_numpy_names() -> None:
    net = Net()
    net.input("x", 2)
    net("Cast", "x", to=TensorProto.FLOAT16)
    (op,) = flow(net.model()).ops
    assert op.attributes["dtype"] == "float16"


def test_shapes_and_types() -> None:
    net = Net()
    net.input("x", "B", 3)
    mask = net("Less", "x", net.const(0.0))
    known = flow(net.model())
    assert known.shape("x") == ("dim:B", 3)
    assert known.shape(mask) == ("dim:B", 3) and known.dtype(mask) == "bool"


def test_equal_names_in_two_branches() -> None:
    net = Net()
    net.input("flag", dtype="bool")
    net.input("x", "B", 3)
    branches = {}
    for name, kind in (("then_branch", "Less"), ("else_branch", "Transpose")):
        inputs = ["x", "x"][: 1 + (kind == "Less")]
        part = helper.make_node(kind, inputs, ["part"])
        size = helper.make_node("Size", ["part"], ["size"])
        outputs = [helper.make_tensor_value_info("size", TensorProto.INT64, [])]
        branches[name] = helper.make_graph([part, size], name, [], outputs)
    net("If", "flag", **branches)
    (op,) = flow(net.model()).ops
    found = {name: (body.shape("part"), body.dtype("part")) for name, body in op.bodies.items()}
    wanted = {"then_branch": (("dim:B", 3), "bool"), "else_branch": ((3, "dim:B"), "float32")}
    assert found == wanted


def test_nodes_in_any_order() -> None:
    net = one_step(Step())
    model = net.model()
    kept = list(model.graph.node)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(kept[::-1])
    found, search = fused(shuffled)
    assert len(search.fused) == 1
    onnx.checker.check_model(found, full_check=True)


def test_large_weights_are_not_part_of_the_inference() -> None:
    net = one_step(Step(40, 30))
    types = graph_types(net.model())
    assert types["y"].tensor_type.shape.dim[1].dim_value == 30
    check_fused(net.model(), net.feeds)
