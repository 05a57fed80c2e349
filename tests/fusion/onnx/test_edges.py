"""Small sizes, old and new opsets, other element types, odd files, hostile ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest
from onnx import TensorProto, helper

import onegru
from onegru.formats.onnx.validate import Source
from onegru.fusion.onnx.model import fuse_model
from tests.support.cases import Case, onnx_model
from tests.support.models.fusing import (
    BOUND,
    SIGMOID,
    Function,
    Net,
    Step,
    blend,
    by_onnxruntime,
    check_fused,
    directions,
    error,
    fused,
    kinds,
    one_step,
    plain,
)

onnxruntime = pytest.importorskip("onnxruntime")

AUGRU_SHAPES = {"X": (4, 3, 2), "W": (1, 15, 2), "R": (1, 15, 5), "B": (1, 30), "initial_h": (1, 3, 5)}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("I", "H"), [(1, 1), (1, 3), (3, 1), (5, 2)])
@pytest.mark.parametrize("rows", [1, 3, "B"])
def test_sizes(I: int, H: int, rows: int | str, after: bool) -> None:
    net = one_step(Step(I, H, after=after), rows=rows)
    model, search = check_fused(net.model(), net.feeds)
    assert [(found.input_size, found.hidden_size) for found in search.fused] == [(I, H)]
    assert directions(model) == 1


def test_states_with_an_axis_of_directions() -> None:
    net = Net()
    x, h = net.input("x", 1, "B", 3), net.input("h", 1, "B", 2)
    net("Identity", Step()(net, x, h), output="y")
    net.output("y", (1, "B", 2))
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1 and directions(model) == 1


def test_vectors_without_a_batch() -> None:
    net = Net()
    x, h = net.input("x", 3), net.input("h", 2)
    net("Identity", Step()(net, x, h), output="y")
    net.output("y", (2,))
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1 and directions(model) == 1


# 7 is the first that broadcasts, 24 the last that ONNX Runtime 1.31 runs.
@pytest.mark.parametrize("opset", range(7, 25))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_opsets(opset: int, after: bool) -> None:
    net = one_step(Step(after=after), opset)
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1 and kinds(model).count("GRU") == 1
    assert model.opset_import[0].version == opset


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 18, 22])
def test_chains_in_opsets(opset: int) -> None:
    net = unrolled(Step(after=True), 3, opset)
    model, search = check_fused(net.model(), net.feeds)
    assert [(found.form, found.steps) for found in search.fused] == [("chain", 3)]
    assert directions(model) == 1


def test_opset_6_is_not_searched() -> None:
    net = one_step(Step())
    model = net.model()
    model.opset_import[0].version = 6
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    search = fuse_model(Source("model.onnx"), copy)
    assert not search.fused and copy == model


def unrolled(step: Step, T: int, opset: int = 17, dtype: str = "float32", start: str = "h") -> Net:
    """The last state of T steps over x, time first."""
    net = Net(opset, dtype)
    x = net.input("x", T, 2, step.I)
    h = net.input("h", 2, step.H) if start == "h" else net.const(np.zeros((2, step.H)))
    for t in range(T):
        h = step(net, net("Gather", x, net.const(t, "int64"), axis=0), h)
    net("Identity", h, output="y")
    net.output("y", (2, step.H))
    return net


# One step from zeros has no reset gate: its product with zeros vanishes.
@pytest.mark.parametrize(("T", "start"), [(1, "h"), (2, "h"), (7, "h"), (2, "zero"), (7, "zero")])
def test_steps(T: int, start: str) -> None:
    net = unrolled(Step(after=True), T, start=start)
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1 and directions(model) == 1


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float16", 5e-3)])
def test_element_types(dtype: str, bound: float) -> None:
    # float16: spacings of 1e-3 near 1, and rounding in each of the old operators.
    for net in (one_step(Step(after=True), dtype=dtype), unrolled(Step(), 3, dtype=dtype)):
        model, search = fused(net.model())
        onnx.checker.check_model(model, full_check=True)
        assert len(search.fused) == 1
        weights = {item.data_type for item in model.graph.initializer if len(item.dims) == 3}
        assert weights == {helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
        found = onegru.load(model.SerializeToString()).run(net.feeds)
        assert error(found, by_onnxruntime(net.model(), net.feeds)) <= bound


def test_weights_as_external_data(tmp_path: Path) -> None:
    net = one_step(Step(6, 8))
    path = tmp_path / "model.onnx"
    onnx.save(net.model(), path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    model = onegru.load(path, fuse=True)
    assert len(model.gru_nodes) == 1
    assert error(model.run(net.feeds), by_onnxruntime(net.model(), net.feeds)) <= 1e-6


def test_functions() -> None:
    net = one_step(Step())
    model = net.model()
    body = helper.make_function(
        "local",
        "Twice",
        ["v"],
        ["w"],
        [helper.make_node("Add", ["v", "v"], ["w"])],
        [helper.make_opsetid("", net.opset)],
    )
    last = model.graph.node[-1]
    last.op_type, last.domain = "Twice", "local"
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("local", 1))
    found = onegru.load(model.SerializeToString(), fuse=True)
    assert len(found.gru_nodes) == 1
    assert error(found.run(net.feeds), by_onnxruntime(model, net.feeds)) <= 1e-6


@pytest.mark.parametrize("attention", ["openvino", "dien"])
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
def test_an_augru_function_that_was_inlined(attention: str, lengths: bool) -> None:
    """Its numbers have the type of X by CastLike."""
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in AUGRU_SHAPES.items()}
    given["A"] = rng.random((4, 3, 1)).astype(np.float32)
    given |= {"sequence_lens": np.array([4, 1, 2], np.int32)} if lengths else {}
    attributes = {"attention": attention, "linear_before_reset": 1}
    model = onnx.inliner.inline_local_functions(onnx_model(Case("augru", given, attributes, 17)))
    assert "AUGRU" not in kinds(model)
    feeds = {item.name: given[item.name] for item in model.graph.input}
    found = onegru.load(model.SerializeToString(), fuse=True)
    assert [node.operator for node in found.gru_nodes] == ["AUGRU-1"]
    assert error(found.run(feeds), by_onnxruntime(model, feeds)) <= 1e-6


def test_two_side_by_side() -> None:
    net = Net()
    x, h = net.input("x", "B", 3), net.input("h", "B", 2)
    for number in range(2):
        net("Identity", Step(after=bool(number))(net, x, h), output=f"y{number}")
        net.output(f"y{number}", ("B", 2))
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 2 and directions(model) == 2


def test_one_gru_in_each_branch() -> None:
    outer = Net()
    outer.input("x", "B", 3)
    outer.input("h", "B", 2)
    outer.input("which", dtype="bool")
    branches = []
    for number in range(2):
        inner = Net(seed=number)
        inner.prefix = f"b{number}_"
        inner("Identity", Step(after=bool(number))(inner, "x", "h"), output=f"y{number}")
        inner.output(f"y{number}", ("B", 2))
        branches.append(inner.graph(f"branch{number}"))
    outer("If", "which", output="y", then_branch=branches[0], else_branch=branches[1])
    outer.output("y", ("B", 2))
    for which in (True, False):
        feeds = {**outer.feeds, "which": np.array(which)}
        model, search = check_fused(outer.model(), feeds)
        assert len(search.fused) == 2 and directions(model) == 2
        assert kinds(model).count("If") == 1


def looped(step: Step, trips: int, prefix: str = "i") -> Net:
    """A Loop's body that takes x at its iteration and passes on h."""
    body = Net()
    body.prefix = prefix
    body.inputs = [
        helper.make_tensor_value_info(f"{prefix}_n", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{prefix}_go", TensorProto.BOOL, []),
        helper.make_tensor_value_info(f"{prefix}_h", TensorProto.FLOAT, [2, step.H]),
    ]
    xt = body("Gather", "x", f"{prefix}_n", axis=0)
    body("Identity", step(body, xt, f"{prefix}_h"), output=f"{prefix}_h_new")
    body("Identity", f"{prefix}_go", output=f"{prefix}_on")
    body.output(f"{prefix}_on", (), "bool")
    body.output(f"{prefix}_h_new", (2, step.H))
    return body


def test_a_loop_in_a_loop() -> None:
    inner = looped(Step(after=True), 3)
    outer_body = Net()
    outer_body.prefix = "o"
    outer_body.inputs = [
        helper.make_tensor_value_info("o_n", TensorProto.INT64, []),
        helper.make_tensor_value_info("o_go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("o_h", TensorProto.FLOAT, [2, 2]),
    ]
    trips, go = outer_body.const(3, "int64"), outer_body.const(True, "bool")
    outer_body("Loop", trips, go, "o_h", output="o_h_last", body=inner.graph("inner"))
    outer_body("Neg", "o_h_last", output="o_h_new")
    outer_body("Identity", "o_go", output="o_on")
    outer_body.output("o_on", (), "bool")
    outer_body.output("o_h_new", (2, 2))
    net = Net()
    net.input("x", 3, 2, 3)
    net.input("h", 2, 2)
    net(
        "Loop",
        net.const(2, "int64"),
        net.const(True, "bool"),
        "h",
        output="y",
        body=outer_body.graph("outer"),
    )
    net.output("y", (2, 2))
    model, search = check_fused(net.model(), net.feeds)
    assert [found.form for found in search.fused] == ["loop"]
    assert kinds(model).count("Loop") == 1 and directions(model) == 1


class Counted(Step):
    """A step whose update gate takes the number of its iteration, or a number chosen by it."""

    chooses = False

    def bias(self, net: Net, gate: str) -> str:
        if gate != "z":
            return super().bias(net, gate)
        if self.chooses:
            return net("Where", net("Greater", "i_n", net.const(2, "int64")), net.const(2.0), net.const(0.0))
        return net("Mul", net("Cast", "i_n", to=TensorProto.FLOAT), net.const(0.3))


class Chosen(Counted):
    chooses = True


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", [Counted, Chosen])
def test_the_number_of_the_iteration_in_a_gate(kind: type[Step], backwards: bool) -> None:
    body = looped(kind(after=True), 5)
    if backwards:
        gather = next(node for node in body.nodes if node.op_type == "Gather")
        gather.input[1] = "place"
        body.nodes.insert(0, helper.make_node("Sub", [body.const(4, "int64"), "i_n"], ["place"]))
    net = Net()
    net.input("x", 5, 2, 3)
    net.input("h", 2, 2)
    trips, go = net.const(5, "int64"), net.const(True, "bool")
    net("Loop", trips, go, "h", output="y", body=body.graph("body"))
    net.output("y", (2, 2))
    model, search = check_fused(net.model(), net.feeds)
    assert [found.form for found in search.fused] == ["loop"] and not search.near_misses
    assert directions(model) == 1 and "Loop" not in kinds(model)


# Hostile files


HOSTILE = [
    ("Expand", lambda net: net("Expand", net.const([1.0]), net.ints(2**40, 2**20))),
    ("ConstantOfShape", lambda net: net("ConstantOfShape", net.ints(2**31, 2**31))),
    ("negative", lambda net: net("ConstantOfShape", net.ints(-5, 2))),
    ("Range", lambda net: net("Range", net.const(0.0), net.const(1e15), net.const(1e-3))),
    ("Tile", lambda net: net("Tile", net.const([[1.0]]), net.ints(2**31, 2**31))),
    ("grows", lambda net: grown(net)),
]


class Scored(Step):
    """A step with attention, as the paper on DIEN has it, that is switched off row by row."""

    def blend(self, net: Net, z: str, h: str, n: str) -> str:
        one = net.const(1.0)
        z = net("Sub", one, net("Mul", "a_t", net("Sub", one, z)))
        return net("Where", net("Less", "t", "lengths"), blend(net, z, h, n), h)


I, H = 3, 2


def test_outputs_of_a_body_whose_shapes_the_file_does_not_state() -> None:
    """ONNX Runtime infers none after a function, and needs those that a Scan collects along another axis."""
    net, body = Net(15), Net(15, seed=1)
    body.prefix = "b"
    for name, shape in (("x", ("T", "B", I)), ("a", ("T", "B", 1)), ("h", ("B", H)), ("lengths", ("B", 1))):
        net.input(name, *shape, fill=3)
    for name, width in (("h_old", H), ("t", 1), ("x_t", I), ("a_t", 1)):
        body.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", width]))
    state = Scored(I, H)(body, "x_t", "h_old")  # its steps are counted in a state, so that the loop stays
    given = [body("Identity", state), body("Add", "t", body.const(1.0))]
    given.append(body("Where", body("Less", "t", "lengths"), state, body.const(0.0)))
    for name, stated in zip(given, (None, ("B", 1), None), strict=True):
        body.output(name, stated)
    scan = helper.make_node(
        *("Scan", ["h", net("Sub", "lengths", "lengths"), "x", "a"], ["last", "t_last", "y"]),
        num_scan_inputs=2,
        scan_output_axes=[1],
        body=body.graph("body"),
    )
    net.nodes.append(scan)
    net.output("y", None)
    model, search = fused(net.model())
    assert [(item.form, item.operator) for item in search.fused] == [("cell", "AUGRU")]
    found = by_onnxruntime(model, net.feeds)
    assert error(found, by_onnxruntime(net.model(), net.feeds)) <= BOUND


def grown(net: Net) -> str:
    """Ever larger values, each twice as large as the one before."""
    value = net.const(np.ones((2, 2)))
    for _ in range(60):
        value = net("Concat", value, value, axis=0)
    return value


@pytest.mark.parametrize(("name", "make"), HOSTILE, ids=[name for name, _ in HOSTILE])
def test_hostile_sizes_take_no_memory(name: str, make: object) -> None:
    net = one_step(Step())
    assert callable(make)
    huge = make(net)
    net("Identity", net("Add", huge, "x"), output="other")
    net.outputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    tracemalloc.start()
    try:
        _, search = fused(net.model())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(search.fused) == 1
    # A constant may have 2^26 elements of float32.
    assert peak < 1.5e9 if name == "grows" else peak < 5e6


def test_cycles_are_refused() -> None:
    net = one_step(Step())
    model = net.model()
    model.graph.node[0].input[0] = "y"
    with pytest.raises(onegru.FormatError, match=r"cycle|depend"):
        fused(model)


def test_names_in_use_are_not_used_again() -> None:
    net = one_step(Step())
    once, _ = fused(net.model())
    names = [name for node in once.graph.node for name in node.output]
    model = net.model()
    clash = next(name for name in names if name.startswith("onegru/"))
    model.graph.node.append(helper.make_node("Identity", ["x"], [clash]))
    model.graph.output.append(helper.make_tensor_value_info(clash, TensorProto.FLOAT, ["B", 3]))
    found, search = check_fused(model, net.feeds)
    assert len(search.fused) == 1
    outputs = [name for node in found.graph.node for name in node.output if name]
    assert len(outputs) == len(set(outputs))


class OneProduct(Step):
    """Gates by a product of x and h side by side, and one activation, as nn.Linear layers make them."""

    def gate(self, net: Net, gate: str, x: str, h: str, function: Function) -> str:
        W, b = net.random(self.H, self.I + self.H), net.random(self.H)
        return function(net, net("Gemm", net("Concat", x, h, axis=1), W, b, transB=1, alpha=0.7))

    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        return self.gate(net, "n", x, net("Mul", r, h), self.g)


def optimized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """A model as ONNX Runtime's optimizer writes it."""
    path = folder / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize(
    "g", [plain("Tanh"), plain("Relu"), plain("LeakyRelu", alpha=0.3)], ids=["Tanh", "Relu", "LeakyRelu"]
)
@pytest.mark.parametrize("f", [SIGMOID, plain("HardSigmoid", alpha=0.3, beta=0.4)], ids=["", "hard"])
def test_gemm_and_activation_that_a_runtime_has_fused(f: Function, g: Function, tmp_path: Path) -> None:
    net = one_step(OneProduct(f=f, g=g))
    model = optimized(net.model(), tmp_path)
    assert kinds(model).count("FusedGemm") == 3
    _, search = check_fused(model, net.feeds)
    assert [(found.input_size, found.hidden_size) for found in search.fused] == [(3, 2)]
    assert onegru.load(model.SerializeToString(), fuse=True).gru_nodes


def features_first(steps: int) -> Net:
    """x is [rows, features, steps]; all steps are turned and multiplied at once."""
    net, step = Net(), Step(after=True)
    x, h = net.input("x", "B", step.I, steps), net.input("h", "B", step.H)
    step.weights = {"W" + gate: net.random(step.I, step.H) for gate in "zrn"}
    turned = net("Transpose", x, perm=[0, 2, 1])
    gates = {gate: net("MatMul", turned, step.weights["W" + gate]) for gate in "zrn"}
    for place in range(steps):
        step.of_x = lambda net, gate, x, at=place: net(  # type: ignore[method-assign, misc]
            "Gather", gates[gate], net.const(at, "int64"), axis=1
        )
        h = step(net, x, h)
    net("Identity", h, output="y")
    net.output("y", ("B", step.H))
    return net


def test_transpose_and_product_that_a_runtime_has_fused(tmp_path: Path) -> None:
    net = features_first(3)
    model = optimized(net.model(), tmp_path)
    assert kinds(model).count("FusedMatMul") == 3
    _, search = check_fused(model, net.feeds)
    assert [(found.form, found.steps, found.input_size) for found in search.fused] == [("chain", 3, 3)]


def test_batches_that_a_runtime_has_turned_are_not_followed() -> None:
    """The first axis of a matrix instead of the one before the last."""
    net = one_step(Step())
    model = net.model()
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "FusedMatMul", "com.microsoft"
            node.attribute.append(helper.make_attribute("transBatchA", 1))
    assert not fused(model)[1].fused
