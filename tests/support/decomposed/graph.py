"""Build ONNX graphs, with constants stored in the ways of different exporters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
Generator = np.random.Generator
Shape = Sequence[int | str]
T = TypeVar("T")

#: Storage of a weight. All variants result in the same tensor.
WEIGHT_FORMS = ("initializer", "Constant", "Transpose", "Identity", "Concat", "Squeeze", "Reshape")
IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
TYPES["bool"] = TensorProto.BOOL


def chance(rng: Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def pick(rng: Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


class Graph:
    """Nodes and initializers of a model, or of a loop's body.

    Attributes:
        outer: the graph around a body; None for a model's main graph.
        carried: for a body, the weights that it gets as states: their names outside, inside, and as outputs.
        carries: whether the weights of a body become such states.
        spoils: whether these weights are halved from one iteration to the next.
    """

    def __init__(self, rng: Generator, opset: int, outer: Graph | None = None) -> None:
        self.rng = rng
        self.opset = opset
        self.outer = outer
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shown: list[tuple[str, str]] = []
        self.carried: list[tuple[str, str, str]] = []
        self.carries = False
        self.spoils = False
        self.shared: dict[tuple[Any, ...], str] | None = None
        self._count: Iterator[int] = itertools.count() if outer is None else outer._count

    def fresh(self) -> str:
        return f"t{next(self._count)}"

    def several(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        names = [self.fresh() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.several(kind, inputs, 1, **attributes)[0]

    def either(self, kind: str, a: str, b: str) -> str:
        """Add an operator whose two operands may be swapped."""
        return self.op(kind, a, b) if chance(self.rng, 0.5) else self.op(kind, b, a)

    def where(self, mask: str, a: str, b: str) -> str:
        """Return a where the mask is set, else b; rarely with Not and swapped operands."""
        if chance(self.rng, 0.15):
            return self.op("Where", self.op("Not", mask), b, a)
        return self.op("Where", mask, a, b)

    def initializer(self, array: Array) -> str:
        home: Graph = self
        if self.outer is not None and chance(self.rng, 0.6):
            home = self.outer
        name = self.fresh()
        home.initializers.append(numpy_helper.from_array(np.array(array), name))
        return name

    def constant(self, array: Any, dtype: str = "float32") -> str:
        """Add a constant as an initializer or a Constant node."""
        value = np.array(array, dtype)
        if chance(self.rng, 0.5):
            return self.initializer(value)
        return self.op("Constant", value=numpy_helper.from_array(value))

    def integers(self, *values: int) -> str:
        return self.constant(list(values), "int64")

    def scalar(self, value: float, length: int | None = None) -> str:
        """Add a number as a tensor of rank 0, or of `length` elements if it is given."""
        shapes: list[tuple[int, ...]] = [(), (1,)]
        if length is not None:
            shapes.append((length,))
        return self.constant(np.full(pick(self.rng, shapes), value))

    def weight(self, array: Array, bias: bool = False) -> str:
        """Add a weight in one of the variants; steps of a chain may share it, and loops may carry it."""
        key = (array.shape, array.tobytes())
        if self.shared is not None and key in self.shared:
            return self.shared[key]
        value = array.astype(np.float32)
        if not np.array_equal(value.astype(np.float64), array):
            raise ValueError("a weight has to be exact in float32")
        if self.carries and self.outer is not None and not bias:
            name = self._carry(value)
        else:
            name = self._kept(value)
        if self.shared is not None:
            self.shared[key] = name
        return name

    def _carry(self, value: Array) -> str:
        assert self.outer is not None
        inside = self.fresh()
        spoiled = self.spoils
        outgoing = self.op("Mul", inside, self.scalar(0.5)) if spoiled else self.op("Identity", inside)
        self.carried.append((self.outer.weight(value.astype(np.float64)), inside, outgoing))
        return inside

    def _kept(self, value: Array) -> str:
        form = pick(self.rng, WEIGHT_FORMS)
        if form == "Constant":
            return self.op("Constant", value=numpy_helper.from_array(value))
        if form == "Transpose" and value.ndim == 2:
            return self.op("Transpose", self.initializer(value.T.copy()), perm=[1, 0])
        if form == "Identity":
            return self.op("Identity", self.initializer(value))
        if form == "Concat" and value.ndim > 0:
            axis = int(self.rng.integers(value.ndim))
            if value.shape[axis] > 1:
                at = int(self.rng.integers(1, value.shape[axis]))
                parts = [self.initializer(part) for part in np.split(value, [at], axis)]
                return self.op("Concat", *parts, axis=axis)
        if form == "Squeeze":
            if value.ndim > 1 and value.shape[0] == 1:
                return self.op("Unsqueeze", self.initializer(value[0]), self.integers(0))
            return self.op("Squeeze", self.initializer(value[None]), self.integers(0))
        if form == "Reshape":
            return self.op("Reshape", self.initializer(value.ravel()), self.integers(*value.shape))
        return self.initializer(value)

    def zero_state(self, like: str, axis: int, hidden: int, rows: int | None) -> str:
        """Return zeros [rows, hidden]; `like` has the rows at `axis`, and `rows` is None if not fixed."""
        if rows is not None and chance(self.rng, 0.5):
            return self.constant(np.zeros((rows, hidden)))
        size = self.op("Gather", self.op("Shape", like), self.integers(axis), axis=0)
        shape = self.op("Concat", size, self.integers(hidden), axis=0)
        if chance(self.rng, 0.5):
            return self.op("Expand", self.constant(np.zeros(pick(self.rng, [(), (1,), (1, hidden)]))), shape)
        if chance(self.rng, 0.5):
            return self.op("ConstantOfShape", shape)
        return self.op("ConstantOfShape", shape, value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0]))

    def input(self, name: str, shape: Shape, dtype: str = "float32") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))
        return name

    def output(self, name: str, tensor: str, shape: Shape | None, dtype: str = "float32") -> None:
        """Make a tensor an output of this name, directly or through an Identity."""
        self.shown.append((name, tensor))
        shown = None if shape is None else list(shape)
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shown))

    def _name_outputs(self) -> None:
        """Give the tensors their names as outputs, or pass them through Identity nodes."""
        new: dict[str, str] = {}
        made = {name for node in self.nodes for name in node.output}
        for name, tensor in self.shown:
            if tensor in made and tensor not in new and chance(self.rng, 0.6):
                new[tensor] = name
            else:
                self.nodes.append(helper.make_node("Identity", [tensor], [name]))
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, tensor in enumerate(names):
                    names[i] = new.get(tensor, tensor)
        self.shown = []

    def graph(self, name: str = "decomposed") -> GraphProto:
        self._name_outputs()
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)

    def model(self) -> ModelProto:
        found = helper.make_model(
            self.graph(),
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSIONS[self.opset],
            producer_name="onegru tests",
        )
        onnx.checker.check_model(found)
        return found

    def slices(self, tensor: str, sizes: Sequence[int], axis: int, form: str) -> list[str]:
        """Split a tensor along an axis into parts of these sizes, by Split, Slice or Gather."""
        if len(sizes) == 1:
            return [tensor]
        if form == "Split":
            if len(set(sizes)) == 1 and chance(self.rng, 0.5):
                more = {"num_outputs": len(sizes)} if self.opset >= 18 else {}
                return self.several("Split", [tensor], len(sizes), axis=axis, **more)
            return self.several("Split", [tensor, self.integers(*sizes)], len(sizes), axis=axis)
        ends = np.cumsum(sizes).tolist()
        starts = [end - size for end, size in zip(ends, sizes, strict=True)]
        ranges = zip(starts, ends, strict=True)
        return [self.part(tensor, start, end, axis, form, end == ends[-1]) for start, end in ranges]

    def part(self, tensor: str, start: int, end: int, axis: int, form: str, last: bool = False) -> str:
        """Return the elements from start to end of an axis, by Gather or Slice."""
        if form == "Gather":
            return self.op("Gather", tensor, self.integers(*range(start, end)), axis=axis)
        shown = 2**63 - 1 if last and chance(self.rng, 0.3) else end
        more = [self.integers(1)] if chance(self.rng, 0.3) else []
        return self.op(
            "Slice", tensor, self.integers(start), self.integers(shown), self.integers(axis), *more
        )
