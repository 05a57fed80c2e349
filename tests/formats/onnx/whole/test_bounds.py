"""Small ONNX files that would take much memory when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.numpy_helper import from_array

import onegru
from tests.support.machine.processes import run_python

node = helper.make_node
MANY = 180_000_000  # numbers, 720 MB; ONNX Runtime by itself computes constants of up to 1 GiB
H, I = 2, 3

Parts = tuple[list[NodeProto], list[TensorProto]]


def tensor(name: str, values: object, dtype: str = "int64") -> TensorProto:
    return from_array(np.array(values, dtype), name)


def constant_of_shape() -> Parts:
    return [node("ConstantOfShape", ["s"], ["k"])], [tensor("s", [MANY])]


def computed_shape() -> Parts:
    nodes = [node("Mul", ["p", "q"], ["s"]), node("ConstantOfShape", ["s"], ["k"])]
    return nodes, [tensor("p", [MANY // 1000]), tensor("q", [1000])]


def steps() -> Parts:
    limits = [tensor(name, value, "float32") for name, value in zip("abc", (0, MANY, 1), strict=True)]
    return [node("Range", [*"abc"], ["k"])], limits


def tile() -> Parts:
    return [node("Tile", ["a", "n"], ["k"])], [tensor("a", [1], "float32"), tensor("n", [MANY])]


def expand() -> Parts:
    return [node("Expand", ["a", "n"], ["k"])], [tensor("a", [1], "float32"), tensor("n", [MANY])]


def pad() -> Parts:
    return [node("Pad", ["a", "n"], ["k"])], [tensor("a", [1], "float32"), tensor("n", [0, MANY])]


def resize() -> Parts:
    sizes = [tensor("a", [[[1]]], "float32"), tensor("n", [1, 1, MANY])]
    return [node("Resize", ["a", "", "", "n"], ["k"], mode="nearest")], sizes


def one_hot() -> Parts:
    numbers = [tensor("i", [0] * 10), tensor("d", MANY // 10), tensor("v", [0, 1], "float32")]
    return [node("OneHot", ["i", "d", "v"], ["k"])], numbers


def broadcast() -> Parts:
    ones = [tensor("a", np.ones((13000, 1)), "float32"), tensor("b", np.ones((1, 13000)), "float32")]
    return [node("Add", ["a", "b"], ["k"])], ones


def doubled() -> Parts:
    nodes = [node("Concat", [f"k{i}"] * 2, [f"k{i + 1}"], axis=0) for i in range(23)]
    return [*nodes, node("Identity", ["k23"], ["k"])], [tensor("k0", np.ones(16), "float32")]


def many_of_some() -> Parts:
    """Each is small enough, and there are many."""
    nodes = [node("ConstantOfShape", ["s"], [f"k{i}"]) for i in range(40)]
    return [*nodes, node("Sum", [f"k{i}" for i in range(40)], ["k"])], [tensor("s", [16_000_000])]


def in_a_body() -> Parts:
    def branch(name: str) -> onnx.GraphProto:
        size = node("Constant", [], [f"{name}s"], value=tensor("", [MANY]))
        nodes = [size, node("ConstantOfShape", [f"{name}s"], [name])]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, 1, None)])

    nodes = [node("If", ["yes"], ["k"], then_branch=branch("p"), else_branch=branch("q"))]
    return nodes, [tensor("yes", True, "bool")]


def weights() -> Parts:
    """A GRU's own weights, W [1, 6, MANY / 6]."""
    nodes = [node("ConstantOfShape", ["s"], ["W"]), node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H)]
    nodes.append(node("Identity", ["Y"], ["k"]))
    return nodes, [tensor("s", [1, 3 * H, MANY // 6]), tensor("R", np.ones((1, 3 * H, H)), "float32")]


def write(path: Path, parts: Parts) -> Path:
    nodes, tensors = parts
    nodes = [*nodes, node("ReduceSum", ["k"], ["sum"], keepdims=0), node("Add", ["x", "sum"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", 1, [1])]
    if any(item.op_type == "GRU" for item in nodes):
        inputs.append(helper.make_tensor_value_info("X", 1, ["T", 1, None]))
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


LOAD = """
import resource, sys
import onegru
onegru.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    onegru.load(sys.argv[2])
except onegru.FormatError as error:
    print(error, file=sys.stderr)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def load(path: Path) -> tuple[int, str]:
    """The most MB that loading it took, and the error."""
    small = write(
        path.with_name("small.onnx"), ([node("Identity", ["c"], ["k"])], [tensor("c", [1], "float32")])
    )
    result = run_python(LOAD, small, path, timeout=60)
    return int(result.stdout) // 1024, result.stderr.strip()


BOMBS: list[Callable[[], Parts]] = [
    constant_of_shape,
    computed_shape,
    steps,
    tile,
    expand,
    pad,
    resize,
    one_hot,
    broadcast,
    doubled,
    many_of_some,
    in_a_body,
    weights,
]


@pytest.mark.parametrize("make", BOMBS, ids=lambda make: make.__name__)
def test_large_constants_are_left_to_the_run(tmp_path: Path, make: Callable[[], Parts]) -> None:
    path = write(tmp_path / "m.onnx", make())
    megabytes, error = load(path)
    assert error == ""
    assert megabytes < 64 + 16 * path.stat().st_size / 2**20 + 200  # what it may take, twice, and some more


def test_large_weights_are_computed_by_each_run(tmp_path: Path) -> None:
    """As right as ever: R of 20 million equal numbers, one GRU."""
    H, T = 2600, 2
    nodes = [
        node("ConstantOfShape", ["s"], ["R"], value=tensor("", [0.25 / H], "float32")),
        node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H),
        node("Identity", ["Y"], ["k"]),
    ]
    W = np.full((1, 3 * H, 1), 0.5, np.float32)
    path = write(tmp_path / "m.onnx", (nodes, [tensor("s", [1, 3 * H, H]), tensor("W", W, "float32")]))
    model = onegru.load(path)
    assert model.gru_nodes[0].layer is None
    X = np.ones((T, 1, 1), np.float32)
    y = model.run({"x": np.zeros(1, np.float32), "X": X})["y"]
    Y, _ = onegru.gru(X, W, np.full((1, 3 * H, H), 0.25 / H, np.float32))
    np.testing.assert_allclose(y, [Y.sum()], rtol=1e-5)


def test_small_weights_are_computed_once(tmp_path: Path) -> None:
    """From constants of constants, through shapes that are computed too."""
    R = np.arange(3 * H * H).reshape(3 * H, H)
    nodes = [
        node("ConstantOfShape", ["s"], ["W"]),
        node("Concat", ["one", "rest"], ["shape"], axis=0),
        node("Reshape", ["flat", "shape"], ["R"]),
        node("GRU", ["X", "W", "R"], ["Y"], hidden_size=H),
        node("Identity", ["Y"], ["k"]),
    ]
    tensors = [tensor("s", [1, 3 * H, I]), tensor("flat", R, "float32")]
    tensors += [tensor("one", [1]), tensor("rest", [3 * H, H])]
    (gru,) = onegru.load(write(tmp_path / "m.onnx", (nodes, tensors))).gru_nodes
    assert gru.layer is not None
    assert np.array_equal(gru.layer.weights.R[0], R) and not gru.layer.weights.W.any()


def refused(path: Path, *words: str) -> None:
    megabytes, error = load(path)
    assert all(word in error for word in (str(path), *words)), error
    assert megabytes < 300


def test_functions_that_inline_to_many_bytes(tmp_path: Path) -> None:
    """A constant of 1 MB, called for a thousand times."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    many = node("Constant", [], ["c"], value=tensor("", np.ones(2**18), "float32"))
    one = helper.make_function(
        "f",
        "one",
        ["a"],
        ["b"],
        [many, node("ReduceMax", ["c"], ["m"]), node("Add", ["a", "m"], ["b"])],
        opsets,
    )
    nodes = [node("one", [f"v{i}"], [f"v{i + 1}"], domain="f") for i in range(1000)]
    path = write(
        tmp_path / "m.onnx",
        ([node("Identity", ["x"], ["v0"]), *nodes, node("Identity", ["v1000"], ["k"])], []),
    )
    model = onnx.load(path)
    model.functions.append(one)
    model.opset_import.append(opsets[1])
    path.write_bytes(model.SerializeToString())
    refused(path, "inlined functions have more than", "bytes")


def test_bodies_that_lie_deep(tmp_path: Path) -> None:
    """Functions that call each other from within bodies; messages themselves cannot lie as deep."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    functions = []
    for index in range(60):
        inner = (
            node(f"g{index + 1}", ["a"], ["c"], domain="f") if index < 59 else node("Identity", ["a"], ["c"])
        )
        for depth in range(2):
            out = helper.make_tensor_value_info("c" if depth == 0 else "d", 1, None)
            body = helper.make_graph([inner], f"b{depth}", [], [out])
            inner = node("If", ["yes"], ["d" if depth == 0 else "b"], then_branch=body, else_branch=body)
        yes = node("Constant", [], ["yes"], value=tensor("", True, "bool"))
        functions.append(helper.make_function("f", f"g{index}", ["a"], ["b"], [yes, inner], opsets))
        functions[-1].node[1].attribute.pop()  # only one branch, else the nodes are too many
    path = write(tmp_path / "m.onnx", ([node("g0", ["x"], ["k"], domain="f")], []))
    model = onnx.load(path)
    model.functions.extend(functions)
    model.opset_import.append(opsets[1])
    path.write_bytes(model.SerializeToString())
    _, error = load(path)
    assert "nested in more than 100 subgraphs and calls" in error or "inlined functions have" in error


def test_sparse_tensors(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ([node("Identity", ["k0"], ["k"])], []))
    model = onnx.load(path)
    values, places = tensor("k0", [1], "float32"), tensor("", [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [MANY]))
    path.write_bytes(model.SerializeToString())
    refused(path, "sparse initializer 'k0': shape [180000000]; sparse tensors are far larger")


def test_external_data_that_overlap(tmp_path: Path) -> None:
    count = 2000
    (tmp_path / "data").write_bytes(bytes(2**20))
    path = write(tmp_path / "m.onnx", ([node("Sum", [f"t{i}" for i in range(count)], ["k"])], []))
    model = onnx.load(path)
    for index in range(count):
        item = TensorProto(name=f"t{index}", data_type=1, dims=[2**18], data_location=TensorProto.EXTERNAL)
        item.external_data.add(key="location", value="data")
        model.graph.initializer.append(item)
    path.write_bytes(model.SerializeToString())
    refused(path, "external data overlap, and are far larger than their files")


@pytest.mark.parametrize(
    "odd",
    [
        node("Constant", [], ["c"]),
        node("Constant", [], []),
        node("Constant", [], ["c"], value_int=3),
        node("Reshape", [], ["c"]),
        node("Concat", [], ["c"], axis=0),
        node("Identity", ["", ""], ["c"]),
        node("ConstantOfShape", ["negative"], ["c"]),
        node("NoSuchOperator", ["negative"], ["c"], domain="somewhere"),
    ],
    ids=lambda item: f"{item.op_type} {len(item.attribute)} {len(item.output)}",
)
def test_odd_nodes(tmp_path: Path, odd: NodeProto) -> None:
    """They are refused by what runs them, or run."""
    nodes = [odd, node("Cast", ["c"], ["k"], to=1)]
    path = write(tmp_path / "m.onnx", (nodes, [tensor("negative", [-5])]))
    try:
        onegru.load(path)
    except onegru.FormatError as error:
        assert str(path) in str(error)
