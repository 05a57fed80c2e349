"""Fuse and compare models with decomposed GRUs, and build small ones node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import onegru
from onegru.dataflow.flow import Flow
from onegru.formats.onnx.flow import flow_of, graph_types
from onegru.formats.onnx.validate import Source
from onegru.fusion.fuse import fuse_flow
from onegru.fusion.onnx.model import fuse_model
from onegru.fusion.search import Search

Array = NDArray[Any]

DEFECT = "a bug in onegru"
GRUS = ("GRU", "AUGRU")
LOOPS = ("Loop", "Scan")

# Largest error of float32 against float64, relative to the largest output or 1. Measured: 5e-6 over 20000
# drawn models without fusion (tests/fusion/test_decomposed.py), and 8e-6 over 2000 fused ones, which have
# longer sums.
BOUND = 2e-5


def fused(model: ModelProto) -> tuple[ModelProto, Search]:
    """Return a model with its GRUs replaced, and the search; the source model stays unchanged."""
    copy = ModelProto()
    copy.CopyFrom(model)
    search = fuse_model(Source("model.onnx"), copy)
    return copy, search


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)


def kinds(model: ModelProto) -> list[str]:
    """Return the operators of a model, including those of subgraphs."""
    return [node.op_type for node in all_nodes(model.graph)]


def directions(model: ModelProto) -> int:
    """Count the GRU nodes of a model by direction, including those in subgraphs."""
    total = 0
    for node in all_nodes(model.graph):
        if node.op_type in GRUS:
            both = any(item.name == "direction" and item.s == b"bidirectional" for item in node.attribute)
            total += 2 if both else 1
    return total


def by_onnxruntime(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a model in ONNX Runtime, without its optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def by_onegru(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return a model's outputs in onegru; without ONNX Runtime's optimizations if they break the rest."""
    try:
        results = onegru.load(model.SerializeToString()).run(dict(feeds))
    except onegru.FormatError as error:
        # ONNX Runtime 1.31 loses a tensor when it fuses the reciprocals in Mul(Div(1, a), Div(1, b)).
        if "Missing Input" not in str(error) and "is not a graph input" not in str(error):
            raise
        return by_onnxruntime(model, feeds)
    return {name: np.asarray(array) for name, array in results.items()}


def error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """Return the largest difference, relative to max(1, the largest value); infinite for other shapes."""
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape:
            return float("inf")
        apart = np.max(np.abs(found[name].astype(np.float64) - wanted), initial=0.0)
        size = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
        worst = max(worst, float(apart) / size if np.isfinite(apart) else float("inf"))
    return worst


def check_fused(
    model: ModelProto, feeds: Mapping[str, Array], bound: float = BOUND
) -> tuple[ModelProto, Search]:
    """Fuse a model, and compare the result with the source model in ONNX Runtime and in onegru."""
    found, search = fused(model)
    onnx.checker.check_model(found, full_check=True)
    expected = by_onnxruntime(model, feeds)
    assert error(by_onnxruntime(found, feeds), expected) <= bound
    assert error(by_onegru(found, feeds), expected) <= bound
    return found, search


def reasons(model: ModelProto) -> set[str]:
    """Return the reasons why nothing in a model was fused."""
    found, search = fused(model)
    assert not search.fused and directions(found) == 0
    assert found == model, "a model in which nothing is found stays as it is"
    return {miss.reason for miss in search.near_misses}


def flow(model: ModelProto) -> Flow:
    """Return the graph of a model as a flow."""
    return flow_of(Source("model.onnx"), model.graph, graph_types(model), model.ir_version)


def fused_flow(given: Flow) -> Search:
    """Search a flow, which is changed."""
    search = Search(set())
    fuse_flow(given, search)
    return search


class Net:
    """Graph that is built node by node. A call adds a node and returns its output, or its outputs."""

    def __init__(self, opset: int = 17, dtype: str = "float32", seed: int = 0) -> None:
        self.opset = opset
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[TensorProto] = []
        self.feeds: dict[str, Array] = {}
        self.prefix = "v"
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"

    def __call__(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or self.fresh()
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def several(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        names = [self.fresh() for _ in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def const(self, values: Any, dtype: str = "") -> str:
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(np.array(values, dtype or self.dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(list(values), "int64")

    def random(self, *shape: int) -> str:
        return self.const(self.rng.standard_normal(shape) * 0.5)

    def input(self, name: str, *shape: int | str, dtype: str = "", fill: int = 2) -> str:
        """Add an input; `feeds` gets random values for it, with `fill` for dynamic sizes."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        sizes = [size if isinstance(size, int) else fill for size in shape]
        if dtype == "bool":
            self.feeds[name] = self.rng.random(sizes) < 0.6
        elif dtype.startswith("int"):
            self.feeds[name] = self.rng.integers(0, 4, sizes).astype(dtype)
        else:
            self.feeds[name] = self.rng.standard_normal(sizes).astype(dtype or self.dtype)
        return name

    def output(self, name: str, shape: Sequence[int | str] | None = None, dtype: str = "") -> None:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def graph(self, name: str = "net") -> GraphProto:
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)

    def model(self) -> ModelProto:
        opsets = [helper.make_opsetid("", self.opset)]
        versions = helper.find_min_ir_version_for(opsets)
        return helper.make_model(self.graph(), opset_imports=opsets, ir_version=max(versions, 4))

    # Activations and operators that differ between opsets

    def split(self, value: str, count: int, axis: int = -1) -> list[str]:
        more = {"num_outputs": count} if self.opset >= 18 else {}
        return self.several("Split", [value], count, axis=axis, **more)

    def clip(self, value: str, low: float, high: float) -> str:
        if self.opset < 11:
            return self("Clip", value, min=low, max=high)
        return self("Clip", value, self.const(low), self.const(high))

    def unsqueeze(self, value: str, axis: int) -> str:
        if self.opset < 13:
            return self("Unsqueeze", value, axes=[axis])
        return self("Unsqueeze", value, self.ints(axis))


Function = Callable[[Net, str], str]


def plain(kind: str, **attributes: Any) -> Function:
    """Return the function that writes an activation as its operator."""
    return lambda net, value: net(kind, value, **attributes)


SIGMOID, TANH = plain("Sigmoid"), plain("Tanh")


def blend(net: Net, z: str, h: str, n: str) -> str:
    """Write (1 - z)∘n + z∘h."""
    return net("Add", net("Mul", net("Sub", net.const(1.0), z), n), net("Mul", z, h))


class Step:
    """Parts of a GRU's step, which tests can replace.

    Attributes:
        I, H: the sizes.
        after: whether the reset gate acts after the product.
        f, r, g: the activations of z, r and n.
    """

    def __init__(
        self, I: int = 3, H: int = 2, *, after: bool = False, f: Function = SIGMOID, g: Function = TANH
    ) -> None:
        self.I, self.H, self.after = I, H, after
        self.f, self.r, self.g = f, f, g
        self.weights: dict[str, str] = {}

    def weight(self, net: Net, name: str, *shape: int) -> str:
        if name not in self.weights:
            self.weights[name] = net.random(*shape)
        return self.weights[name]

    def of_x(self, net: Net, gate: str, x: str) -> str:
        return net("MatMul", x, self.weight(net, f"W{gate}", self.I, self.H))

    def of_h(self, net: Net, gate: str, h: str) -> str:
        return net("MatMul", h, self.weight(net, f"R{gate}", self.H, self.H))

    def bias(self, net: Net, gate: str) -> str:
        return self.weight(net, f"b{gate}", self.H)

    def gate(self, net: Net, gate: str, x: str, h: str, function: Function) -> str:
        total = net("Add", self.of_x(net, gate, x), self.of_h(net, gate, h))
        return function(net, net("Add", total, self.bias(net, gate)))

    def candidate(self, net: Net, x: str, h: str, r: str) -> str:
        if self.after:
            inner = net("Add", self.of_h(net, "n", h), self.weight(net, "Rbn", self.H))
            recurrent = net("Mul", r, inner)
        else:
            recurrent = self.of_h(net, "n", net("Mul", r, h))
        total = net("Add", net("Add", self.of_x(net, "n", x), recurrent), self.bias(net, "n"))
        return self.g(net, total)

    def __call__(self, net: Net, x: str, h: str) -> str:
        """Write the step and return the new state."""
        z = self.gate(net, "z", x, h, self.f)
        r = self.gate(net, "r", x, h, self.r)
        return self.blend(net, z, h, self.candidate(net, x, h, r))

    def blend(self, net: Net, z: str, h: str, n: str) -> str:
        return blend(net, z, h, n)


def one_step(step: Step, opset: int = 17, dtype: str = "float32", rows: int | str = "B") -> Net:
    """Return a graph of one step."""
    net = Net(opset, dtype)
    x, h = net.input("x", rows, step.I), net.input("h", rows, step.H)
    result = step(net, x, h)
    net("Identity", result, output="y")
    net.output("y", (rows, step.H))
    return net
