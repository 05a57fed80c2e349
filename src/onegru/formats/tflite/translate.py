"""Translate a TensorFlow Lite model to ONNX operators, one by one.

An operator without a rule, or with an option that its rule does not support, keeps its name in the domain
`tflite`. A part of the model that needs it is not recognized as a GRU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.dataflow.names import fresh_name
from onegru.formats.tflite.reader import Subgraph, TfliteOp, TfliteTensor

_DOMAIN = "tflite"  # domain of untranslated operators
_OPSET, _IR_VERSION = 17, 8
_MOST_OPERATORS = 200_000  # a body counts each time it is used
_DEEPEST = 8
_LONGEST = 200  # of names

#: Translates an operator and returns its outputs; raises `UnknownError` if it is not supported.
Rule = Callable[["OnnxWriter", TfliteOp], Sequence[str]]


class UnknownError(Exception):
    """An operator cannot be translated."""


@dataclass(eq=False)
class Translation:
    """Translation of a model by the rules for each kind of operator."""

    subgraphs: Sequence[Subgraph]
    rules: Mapping[str, Rule]
    unknown: Counter[str] = field(default_factory=Counter)  # the untranslated operators
    names: set[str] = field(default_factory=set)  # all used names
    used: Counter[str] = field(default_factory=Counter)  # number of requests for each name
    operators_left: int = _MOST_OPERATORS

    def model(self) -> ModelProto:
        """Translate the model; raises FormatError if it is malicious."""
        main = self.subgraphs[0]
        writer = OnnxWriter(self, main)
        inputs = [writer.add_input(index) for index in main.inputs]
        writer.write(main.outputs)
        outputs = [writer.add_output(index) for index in main.outputs]
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
        graph = writer.graph("main", inputs, outputs)
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


class OnnxWriter:
    """Translation of a graph, or of a body inside `depth` others."""

    def __init__(self, translation: Translation, subgraph: Subgraph, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise FormatError(f"subgraphs are nested too deeply; must have at most {_DEEPEST} levels")
        translation.operators_left -= 1 + len(subgraph.operators)
        if translation.operators_left < 0:
            raise FormatError(f"more than {_MOST_OPERATORS:,} operators, including subgraphs; not supported")
        self.translation, self.subgraph, self.depth = translation, subgraph, depth
        self.producers = {output: op for op in subgraph.operators for output in op.outputs}
        self.use_counts = Counter(index for op in subgraph.operators for index in op.inputs)
        self.use_counts.update(subgraph.outputs)
        made = [*subgraph.inputs, *(output for op in subgraph.operators for output in op.outputs)]
        if len(set(made)) < len(made):
            raise FormatError("a value is computed twice; must be computed once")
        self.values: dict[int, str] = {}
        self.nodes: list[NodeProto] = []
        self.unknown_values: list[NodeProto] = []  # nodes for values that no operator computes
        self.constants: list[TensorProto] = []
        self.infos: list[ValueInfoProto] = []
        self.base = ""

    def tensor(self, index: int) -> TfliteTensor:
        """Return a tensor of the graph."""
        if index < 0:
            raise UnknownError
        return self.subgraph.tensors[index]

    def producer(self, index: int, *kinds: str) -> TfliteOp:
        """Return the operator of one of these kinds that computes a tensor."""
        op = self.producers.get(index)
        if op is None or op.kind not in kinds:
            raise UnknownError
        return op

    def integers(self, index: int) -> list[int]:
        """Return the values of an integer constant."""
        value = self.tensor(index).value
        if value is None or value.dtype.kind != "i" or value.size > 64:
            raise UnknownError
        return [int(item) for item in value.ravel()]

    def axis(self, axis: int, index: int) -> int:
        """Return an axis of a tensor, counted from its first."""
        rank = len(self.tensor(index).shape)
        if not -rank <= axis < rank:
            raise UnknownError
        return axis % rank

    def value(self, index: int) -> str:
        """Return the ONNX name of a tensor."""
        tensor = self.tensor(index)
        if index not in self.values and tensor.value is not None:
            self.values[index] = self.constant(tensor.value, tensor.name)
        elif index not in self.values:  # a constant of another type, or the state of an operator
            self.translation.unknown[f"constant of type {tensor.dtype or tensor.type}"] += 1
            self.values[index] = self.fresh(tensor.name)
            self.unknown_values.append(helper.make_node("CONSTANT", [], [self.values[index]], domain=_DOMAIN))
        return self.values[index]

    def all(self, op: TfliteOp, count: int | None = None) -> list[str]:
        """Return the inputs of an operator, which must be `count` if given."""
        if count is not None and len(op.inputs) != count:
            raise UnknownError
        return [self.value(index) for index in op.inputs]

    def fresh(self, base: str) -> str:
        """Return a new name."""
        base = base[:_LONGEST] or "value"
        self.translation.used[base] += 1  # keeps many requests for one name fast
        number = self.translation.used[base]
        return fresh_name(base if number == 1 else f"{base}_{number}", self.translation.names)

    def constant(self, array: Array | Sequence[int], base: str = "constant") -> str:
        """Add a constant; int64 if it is not an array."""
        name = self.fresh(base)
        numbers = array if isinstance(array, np.ndarray) else np.array(array, np.int64)
        self.constants.append(onnx.numpy_helper.from_array(numbers, name))
        return name

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output."""
        return self.emit_all(kind, inputs, 1, **attributes)[0]

    def emit_all(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Add a node and return its outputs."""
        outputs = [self.fresh(self.base or kind) for _ in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0], **attributes))
        return outputs

    def add_input(self, index: int) -> ValueInfoProto:
        """Add an input, and describe its type."""
        self.values[index] = self.fresh(self.tensor(index).name)
        return type_info(self.values[index], self.tensor(index))

    def add_output(self, index: int) -> ValueInfoProto:
        """Add an output as a separate value, and describe its type."""
        self.base = self.tensor(index).name
        return type_info(self.emit("Identity", self.value(index)), self.tensor(index))

    def graph(self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> GraphProto:
        """Return the graph of the added nodes."""
        nodes, infos = [*self.unknown_values, *self.nodes], self.infos
        return helper.make_graph(nodes, name, inputs, outputs, initializer=self.constants, value_info=infos)

    def write(self, wanted: Iterable[int]) -> None:
        """Translate the operators that these values need."""
        needed, kept = set(wanted), []
        for op in reversed(self.subgraph.operators):
            if not needed.isdisjoint(op.outputs):
                needed |= set(op.inputs)
                kept.append(op)
        for op in reversed(kept):
            self.base = self.tensor(op.outputs[0]).name
            self.values.update(zip(op.outputs, self._translated(op), strict=True))

    def _translated(self, op: TfliteOp) -> Sequence[str]:
        before, unknown = len(self.nodes), self.translation.unknown.copy()
        is_quantized = any(self.tensor(i).is_quantized for i in op.inputs + op.outputs if i >= 0)
        rule = self.translation.rules.get(op.kind)
        try:
            values = [] if rule is None or is_quantized else rule(self, op)
            if len(values) == len(op.outputs):
                return values
        except (UnknownError, ValueError, LookupError):  # the operator lacks something that the rule needs
            pass
        del self.nodes[before:]
        # The initial value of a state that is stored between runs can be any value.
        self.translation.unknown = unknown + Counter({op.kind} - {"VAR_HANDLE", "READ_VARIABLE"})
        inputs = [self.value(index) if index >= 0 else "" for index in op.inputs]
        outputs = self.emit_all(op.kind, inputs, len(op.outputs), domain=_DOMAIN)
        tensors = map(self.tensor, op.outputs)
        self.infos += [type_info(name, tensor) for name, tensor in zip(outputs, tensors, strict=True)]
        return outputs


def type_info(name: str, tensor: TfliteTensor) -> ValueInfoProto:
    """Describe the type of a value."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)) if tensor.dtype else TensorProto.UNDEFINED
    return helper.make_tensor_value_info(name, code, tensor.shape)
