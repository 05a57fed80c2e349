"""A part of an ONNX graph without GRU nodes, as a model of its own that ONNX Runtime runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onegru.dtypes import bfloat16
from onegru.files._onnxruntime import Session
from onegru.files.graph import Piece, ValueType
from onegru.files.onnx_guard import guard
from onegru.files.onnx_lift import OLDEST, infer_types, lift
from onegru.files.onnx_order import node_inputs
from onegru.files.onnx_read import Source, attribute_graphs, describe
from onegru.native import get_num_threads

__all__ = ["RANDOM", "OnnxPiece", "PieceContext", "type_words", "value_type"]

# These give other results each time: they are never run ahead of time, nor in two sessions. Dropout may, too.
RANDOM = {
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}

# bfloat16 arrays do not cross into ONNX Runtime, so such values cross as float32, which holds each exactly.
_BFLOAT16 = "tensor(bfloat16)"
_CROSSING = "/onegru_as_float32"


# Up to so many weights times numbers of input, threads do not pay: waking one takes as long as it saves.
_LITTLE = 1 << 28
# A second session holds the weights a second time.
_MOST_WEIGHTS = 1 << 20


@dataclass
class PieceContext:
    """What the pieces of one model share; `most_ahead`: the bytes of a value computed ahead of runs."""

    source: Source
    model: ModelProto
    opset: int
    most_ahead: int
    types: dict[str, TypeProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types = {value.name: value.type for value in self.model.graph.input}
        if self.opset < OLDEST:
            self.types = infer_types(self.model) | self.types


class OnnxPiece(Piece):
    """Some nodes of a model; see `onegru.files.graph.Piece`."""

    def __init__(
        self,
        context: PieceContext,
        nodes: Sequence[NodeProto],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> None:
        self._context = context
        self._nodes = nodes
        super().__init__(inputs, outputs)
        self._session: Session | None = None
        self._on_one_thread: Session | None = None  # for inputs of few numbers
        self._few = 0
        self._latest: Session | None = None  # the one that ran last
        self._bfloat16_inputs: set[str] = set()
        self._bfloat16_outputs: set[str] = set()

    def __getstate__(self) -> dict[str, object]:
        return {
            **self.__dict__,
            "_session": None,
            "_on_one_thread": None,
            "_latest": None,
        }  # a session lives in this process alone: prepare it again

    @property
    def node_count(self) -> int:
        """How many nodes it has."""
        return len(self._nodes)

    def prepare(self, types: dict[str, ValueType]) -> None:
        """Hand it to ONNX Runtime.

        Raises:
            FormatError: ONNX Runtime refuses it, or it is too old to be lifted.
        """
        unknown = ValueType()
        self._bfloat16_inputs = {name for name in self.inputs if types.get(name, unknown).words == _BFLOAT16}
        self._session = self._open(types)
        self._bfloat16_outputs = {
            name for name, known in self._session.output_types.items() if known.words == _BFLOAT16
        }
        types.update(self._session.output_types)
        if self._bfloat16_outputs:
            self._session = self._open(types)
        elif not self._bfloat16_inputs and get_num_threads() > 1:
            weights = self._count_weights()
            if weights <= _MOST_WEIGHTS and all(map(_is_plain, self._nodes)):
                self._few = _LITTLE // max(1, weights)
                self._on_one_thread = self._open(types, threads=1)

    def run(self, values: dict[str, Any]) -> None:
        """Add its outputs to the values."""
        assert self._session is not None, "prepare comes before run"
        if not self._bfloat16_inputs and not self._bfloat16_outputs:
            results = None if self._latest is None else self._latest.run_again(values)
            if results is None:
                given = {name: values[name] for name in self.inputs}
                self._latest = session = self._session_for(given)
                results = session.run(given)
            values.update(zip(self.outputs, results, strict=True))
            return
        feeds: dict[str, Any] = {}
        for name in self.inputs:
            if name in self._bfloat16_inputs:
                feeds[name + _CROSSING] = np.asarray(values[name]).astype(np.float32)
            else:
                feeds[name] = values[name]
        for name, value in zip(self.outputs, self._session.run(feeds), strict=True):
            values[name] = value.astype(bfloat16()) if name in self._bfloat16_outputs else value

    def _session_for(self, given: Mapping[str, object]) -> Session:
        if self._on_one_thread is not None and _numbers(given) <= self._few:
            return self._on_one_thread
        assert self._session is not None, "prepare comes before run"
        return self._session

    def _count_weights(self) -> int:
        used = set().union(*(node_inputs(node) for node in self._nodes))
        tensors = [tensor for tensor in self._context.model.graph.initializer if tensor.name in used]
        tensors += [
            attribute.t for node in self._nodes for attribute in node.attribute if attribute.HasField("t")
        ]
        return sum(math.prod(tensor.dims) for tensor in tensors)

    def _open(self, types: Mapping[str, ValueType], threads: int | None = None) -> Session:
        context = self._context
        model = self._build(types)
        if context.opset < OLDEST:
            model = lift(context.source, model)
        guard(model)
        try:
            data = model.SerializeToString()
        except Exception as error:  # protobuf's own, beyond 2 GiB
            raise context.source.error(f"the part around {self._where()} is too large ({error})") from None
        return Session(data, context.source, self._where(), threads, context.most_ahead)

    def _where(self) -> str:
        return describe(next((node for node in self._nodes if node.op_type != "Constant"), self._nodes[0]))

    def _build(self, types: Mapping[str, ValueType]) -> ModelProto:
        context = self._context
        whole = context.model.graph
        used = set().union(*(node_inputs(node) for node in self._nodes)) | set(self.outputs)
        graph = GraphProto(name=whole.name or "piece")
        for name in self.inputs:
            graph.input.append(self._input(name, types.get(name, ValueType()), graph))
        inside = used - set(self.inputs)
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in inside)
        graph.sparse_initializer.extend(
            tensor for tensor in whole.sparse_initializer if tensor.values.name in inside
        )
        graph.node.extend(self._nodes)
        if context.opset < OLDEST:
            names = {name for node in self._nodes for name in node.output} - set(self.outputs)
            known = sorted(names & set(context.types))
            graph.value_info.extend(ValueInfoProto(name=name, type=context.types[name]) for name in known)
        for name in self.outputs:
            graph.output.append(self._output(name, graph))
        model = ModelProto(graph=graph)
        model.opset_import.extend(context.model.opset_import)
        if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
            model.opset_import.append(onnx.helper.make_opsetid("", context.opset))
        model.functions.extend(context.model.functions)
        model.ir_version = _least_ir_version(model, context.model.ir_version)
        return model

    def _input(self, name: str, known: ValueType, graph: GraphProto) -> ValueInfoProto:
        if name in self._bfloat16_inputs:
            node = onnx.helper.make_node("Cast", [name + _CROSSING], [name], to=TensorProto.BFLOAT16)
            graph.node.append(node)
            return onnx.helper.make_tensor_value_info(name + _CROSSING, TensorProto.FLOAT, known.shape)
        info = ValueInfoProto(name=name)
        if name in self._context.types:
            info.type.CopyFrom(self._context.types[name])
        elif known.words:
            info.type.CopyFrom(_parse_type(known.words, known.shape))
        kind = info.type.WhichOneof("value")
        if kind is None or (kind == "tensor_type" and not info.type.tensor_type.elem_type):
            words = known.words or "unknown"
            raise self._context.source.error(
                f"the part around {self._where()}: takes {name!r}, whose type is {words}; must be one that "
                "can be handed to ONNX Runtime"
            )
        return info

    def _output(self, name: str, graph: GraphProto) -> ValueInfoProto:
        if name in self._bfloat16_outputs:
            graph.node.append(onnx.helper.make_node("Cast", [name], [name + _CROSSING], to=TensorProto.FLOAT))
            return ValueInfoProto(name=name + _CROSSING)
        info = ValueInfoProto(name=name)
        if self._context.opset < OLDEST and name in self._context.types:
            info.type.CopyFrom(self._context.types[name])
        return info


def _is_plain(node: NodeProto) -> bool:
    """Whether it may run in either of two sessions, and holds no more than is seen of it."""
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in {*RANDOM, "Dropout"}
        and not any(attribute_graphs(node))
    )


def _numbers(values: Mapping[str, object]) -> int:
    """How many come in; many, where they are not in plain arrays."""
    return sum(value.size if type(value) is np.ndarray else _LITTLE for value in values.values())


def _least_ir_version(model: ModelProto, given: int) -> int:
    """The oldest IR version that will do: onnx writes newer ones than ONNX Runtime knows."""
    needed = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    if model.functions:
        needed = max(needed, 10 if any(getattr(f, "overload", "") for f in model.functions) else 8)
    return min(max(given, 4), max(needed, 4))


# A type in words, as ONNX Runtime spells it: "tensor(float)", "seq(tensor(int64))", …

_ELEMENT_WORDS = {
    TensorProto.FLOAT: "float",
    TensorProto.DOUBLE: "double",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.STRING: "string",
    TensorProto.BOOL: "bool",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
}
_ELEMENT_CODES = {words: code for code, words in _ELEMENT_WORDS.items()}


def type_words(kind: TypeProto) -> str:
    """A type in words; empty where there are none for it."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            words = _ELEMENT_WORDS.get(kind.tensor_type.elem_type, "")  # type: ignore[call-overload]
            return f"tensor({words})" if words else ""
        case "sequence_type":
            return f"seq({type_words(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_words(kind.optional_type.elem_type)})"
    return ""


def value_type(kind: TypeProto) -> ValueType:
    """What a type says."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return ValueType(type_words(kind))
    fixed = (
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    )
    return ValueType(type_words(kind), tuple(fixed))


def _parse_type(words: str, shape: tuple[int | None, ...] | None = None) -> TypeProto:
    """The type that these words say; an empty one for words that it does not know."""
    outer, _, inner = words.removesuffix(")").partition("(")
    if outer == "tensor" and inner in _ELEMENT_CODES:
        return onnx.helper.make_tensor_type_proto(_ELEMENT_CODES[inner], shape)
    if outer == "seq":
        return onnx.helper.make_sequence_type_proto(_parse_type(inner))
    if outer == "optional":
        return onnx.helper.make_optional_type_proto(_parse_type(inner))
    return TypeProto()
