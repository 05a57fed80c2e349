"""From an .onnx file to a `Graph`: the model is cut at its GRU nodes, the rest goes to ONNX Runtime.

Every node gets a stage: the number of GRU nodes on the longest way from the model's inputs to it. The
other nodes of one stage make one piece; stage after stage, the piece runs first and then its GRU nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onegru.dialect import check_attributes
from onegru.dialects.onnx import gru_version
from onegru.dialects.schema import Operator
from onegru.dtypes import Array
from onegru.errors import SpecError
from onegru.files.graph import (
    STATES_KEY,
    STATES_WORD,
    Graph,
    GruNode,
    Step,
    TensorInfo,
    ValueType,
    initial_states,
)
from onegru.files.onnx_bounds import Ahead, check_bounds
from onegru.files.onnx_functions import unfold_functions
from onegru.files.onnx_node import constant_value, is_plain_constant, node_attributes, tensor_info
from onegru.files.onnx_order import node_inputs, sort_nodes
from onegru.files.onnx_piece import RANDOM, OnnxPiece, PieceContext, value_type
from onegru.files.onnx_read import Source, attribute_graphs, describe, is_gru, read_model, to_array
from onegru.files.onnx_sizes import OnnxSizes
from onegru.files.onnx_states import find_states
from onegru.files.onnx_views import ViewPiece, view_of
from onegru.known import Facts, verdicts

__all__ = ["load_onnx", "model_opset", "parse_onnx"]

_WEIGHTS = ("W", "R", "B")


def load_onnx(path: Path) -> Graph:
    """Read a model from a file; its external data must lie in the file's folder.

    Raises:
        FormatError: the file is broken, hostile or beyond what onegru reads.
        SpecError: a GRU node's text forbids an attribute that it has.
    """
    source = Source(str(path), path.parent)
    try:
        if (size := path.stat().st_size) >= 2**31:  # which may be a hole, and takes memory all the same
            raise source.error(f"has {size} bytes; an ONNX model has less than 2 GiB")
        data = path.read_bytes()
    except OSError as error:
        raise source.error(f"cannot be read ({error.strerror})") from None
    return parse_onnx(data, source)


def parse_onnx(data: bytes, source: Source) -> Graph:
    """Read a serialized model. Raises as `load_onnx` does."""
    model = unfold_functions(source, read_model(source, data))
    return _Cutter(source, model).cut()


class _Cutter:
    """One model being cut."""

    def __init__(self, source: Source, model: ModelProto) -> None:
        self.source = source
        self.model = model
        self.graph = model.graph
        self.opset = model_opset(source, model)
        self.nodes = sort_nodes(source, self.graph)
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.sparse = {tensor.values.name for tensor in self.graph.sparse_initializer}
        # From IR version 4 on, an initializer that is an input as well is an input with a default.
        inputs = {value.name for value in self.graph.input}
        self.defaults = set(self.tensors) & inputs if model.ir_version >= 4 else set()
        self.givers = {name: node for node in self.nodes for name in node.output if name}
        check_bounds(source, model, self.nodes)
        self.ahead = Ahead(source, model, self.nodes, set(self.tensors) - self.defaults | self.sparse)
        self.constants: dict[str, Array] = {}
        self.nested: list[str] = []
        values = (*self.graph.value_info, *self.graph.output, *self.graph.input)
        self.stated = {value.name: value.type for value in values}
        self.sizes = OnnxSizes(self.givers, self._shape, self._any_integers)

    def cut(self) -> Graph:
        for node in self.nodes:
            self._check_nested_grus(node)
        grus = {id(node): self.sizes.add(self._gru_node(node)) for node in self.nodes if is_gru(node)}
        wanted = {name for gru in grus.values() for name in gru.inputs.values()}
        wanted |= {value.name for value in self.graph.output}
        prelude = self._prelude(grus.values())
        self._keep_constants(wanted)
        early = tuple(sorted({name for node in prelude for name in node.output} & wanted))
        known = {*self.constants, *early}
        context = PieceContext(self.source, self.model, self.opset, self.ahead.most)
        inputs, outputs = self._inputs(), tuple(tensor_info(value) for value in self.graph.output)
        steps = tuple(self._steps(context, grus, wanted, known))
        is_ours = any(
            (item.key, item.value) == (STATES_KEY, STATES_WORD) for item in self.model.metadata_props
        )
        return Graph(
            path=self.source.name,
            inputs=inputs,
            outputs=outputs,
            constants=self.constants,
            steps=steps,
            prelude=(self._piece(context, prelude, early),) if prelude else (),
            types=self._types(),
            nested=tuple(self.nested),
            states=find_states(self.graph, self.opset, self.nodes, grus.values(), inputs, outputs),
            zero_inputs=initial_states(steps, inputs, outputs) if is_ours else frozenset(),
        )

    # GRU nodes

    def _operator(self) -> Operator:
        operator = gru_version(self.opset)
        assert operator is not None, "model_opset lets none below 1 through"
        return operator

    def _gru_node(self, node: NodeProto) -> GruNode:
        operator = self._operator()
        place = f"{self.source.name}: {describe(node)}"
        if len(node.input) > len(operator.inputs):
            raise SpecError(f"{place}: {len(node.input)} inputs; must be at most {len(operator.inputs)}")
        if len(node.output) > len(operator.outputs):
            raise SpecError(f"{place}: {len(node.output)} outputs; must be at most {len(operator.outputs)}")
        attributes = node_attributes(self.source, node, operator)
        inputs = {port.name: name for port, name in zip(operator.inputs, node.input, strict=False) if name}
        outputs = {port.name: name for port, name in zip(operator.outputs, node.output, strict=False) if name}
        for port in operator.inputs:
            if port.required and port.name not in inputs:
                raise SpecError(f"{place}: {port.name}: missing; {operator} requires it")
        for port in operator.outputs:
            if port.required and port.name not in outputs:
                raise SpecError(f"{place}: output {port.name}: missing; {operator} requires it")
        asked = "output_sequence" in operator.attributes and attributes.get("output_sequence") == 1
        if asked and "Y" not in outputs:
            raise SpecError(f"{place}: output Y: missing; {operator} requires it with output_sequence = 1")
        name = node.name or next((name for name in node.output if name), "GRU")
        return GruNode(name, operator, attributes, inputs, outputs)

    def _check_nested_grus(self, node: NodeProto) -> None:
        """ONNX Runtime runs bodies itself: refuse a GRU in one that it is known not to run right."""
        for body in attribute_graphs(node):
            for inner in body.node:
                self._check_nested_grus(inner)
                if is_gru(inner):
                    self._check_nested_gru(inner, node)

    def _check_nested_gru(self, inner: NodeProto, owner: NodeProto) -> None:
        gru = self._gru_node(inner)
        check_attributes(gru.operator, gru.attributes, f"{self.source.name}: {describe(inner)}: ")
        facts = Facts(
            operator="GRU",
            version=gru.operator.version,
            attributes=gru.attributes,
            dtype=None,
            present=frozenset((*gru.inputs, *gru.outputs)),
        )
        for verdict in verdicts(facts):
            if verdict.runtime == "onnxruntime":
                raise self.source.error(
                    f"{describe(inner)} lies in a body of {describe(owner)}, which ONNX Runtime has "
                    f"to run; ONNX Runtime {verdict.version} {verdict.effect} it: {verdict.reason}"
                )
        self.nested.append(f"{describe(inner)} in a body of {describe(owner)}")

    # What is known before any input is

    def _prelude(self, grus: Iterable[GruNode]) -> list[NodeProto]:
        """The nodes that compute weights from constants alone, as far as those are not too large."""
        constant: set[str] = set(self.tensors) - self.defaults | self.sparse
        computable: set[int] = set()
        for node in self.nodes:
            if is_gru(node) or node.op_type in RANDOM or any(attribute_graphs(node)):
                continue
            if not is_plain_constant(node) and not self.ahead.fits(node):
                continue
            if node_inputs(node) <= constant and not (node.domain not in ("", "ai.onnx") and not node.input):
                constant |= set(node.output)
                computable.add(id(node))
        wanted = {gru.inputs[name] for gru in grus for name in _WEIGHTS if name in gru.inputs}
        chosen: list[NodeProto] = []
        for node in reversed(self.nodes):
            if id(node) in computable and wanted & set(node.output) and not is_plain_constant(node):
                chosen.append(node)
                wanted |= node_inputs(node)
        return chosen[::-1]

    def _keep_constants(self, wanted: set[str]) -> None:
        """Read the tensors that GRU nodes and outputs use, and the defaults of inputs."""
        for name in wanted | self.defaults:
            if name in self.tensors:
                self.constants[name] = to_array(self.source, self.tensors[name])
            elif name in self.givers and is_plain_constant(self.givers[name]):
                self.constants[name] = constant_value(self.source, self.givers[name])
            elif name in self.sparse:
                raise self.source.error(f"sparse initializer {name!r}: is used by a GRU node or an output")
            elif name in self.givers and self.givers[name].op_type == "Constant":
                raise self.source.error(f"sparse Constant {name!r}: is used by a GRU node or an output")

    # The cut

    def _steps(
        self, context: PieceContext, grus: Mapping[int, GruNode], wanted: set[str], known: set[str]
    ) -> list[Step]:
        """Stage after stage: the piece of its other nodes, then its GRU nodes.

        Args:
            context: what pieces share.
            grus: the GRU nodes, by the identity of their protobuf nodes.
            wanted: the values that GRU nodes and outputs need.
            known: the values that need no step, as they are known before.
        """
        stages: dict[str, int] = {}
        others: dict[int, list[NodeProto]] = {}
        ready: dict[int, list[GruNode]] = {}
        for node in self.nodes:
            stage = max((stages.get(name, 0) for name in node_inputs(node)), default=0)
            if (gru := grus.get(id(node))) is not None:
                ready.setdefault(stage, []).append(gru)
                stage += 1
            elif not is_plain_constant(node):
                others.setdefault(stage, []).append(node)
            stages.update(dict.fromkeys(node.output, stage))

        wanted = wanted - known
        steps: list[Step] = []
        for stage in reversed(range(max([*others, *ready], default=-1) + 1)):
            steps += reversed(ready.get(stage, []))
            used: list[NodeProto] = []
            inside = set(wanted)
            for node in reversed(others.get(stage, [])):
                if inside & set(node.output):
                    used.append(node)
                    inside |= node_inputs(node)
            if used:
                given = {name for node in used for name in node.output}
                piece = self._piece(context, used[::-1], tuple(sorted(given & wanted)))
                steps.append(piece)
                wanted = wanted | set(piece.inputs) - known
        return steps[::-1]

    def _piece(
        self, context: PieceContext, nodes: Sequence[NodeProto], outputs: tuple[str, ...]
    ) -> OnnxPiece | ViewPiece:
        given = {name for node in nodes for name in node.output}
        taken = set().union(*(node_inputs(node) for node in nodes)) - given
        inline = {name for name in taken if self._is_inline(name)}
        if all(view_of(node, self.opset, self._integers) is not None for node in nodes):
            firsts = {node.input[0] for node in nodes} - given
            if not firsts & inline:
                inputs = tuple(sorted(firsts))
                return ViewPiece(self.source, nodes, inputs, outputs, self.opset, self._integers)
        constants = {
            id(self.givers[name]): self.givers[name] for name in sorted(inline) if name in self.givers
        }
        return OnnxPiece(context, [*constants.values(), *nodes], tuple(sorted(taken - inline)), outputs)

    def _any_integers(self, name: str) -> Array | None:
        """The constant of a name, if it is one of integers."""
        if not self._is_inline(name) or name in self.sparse:
            return None
        if name in self.givers:
            array = constant_value(self.source, self.givers[name])
        elif self.tensors[name].data_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
            array = to_array(self.source, self.tensors[name])
        else:
            return None
        return array if array.dtype.kind == "i" else None

    def _integers(self, name: str) -> tuple[int, ...] | None:
        """The constant of a name, if it is one axis of 64-bit integers."""
        array = self._any_integers(name)
        return None if array is None or array.ndim != 1 or array.dtype != np.int64 else tuple(array.tolist())

    def _shape(self, name: str) -> tuple[int | None, ...] | None:
        """What the file says of a value's shape."""
        if name in self.stated:
            return value_type(self.stated[name]).shape
        return tuple(self.tensors[name].dims) if name in self.tensors else None

    def _is_inline(self, name: str) -> bool:
        """Whether a piece holds this value itself, as an initializer or a Constant node."""
        if name in self.givers:
            return is_plain_constant(self.givers[name])
        return (name in self.tensors or name in self.sparse) and name not in self.defaults

    # The model's own inputs

    def _inputs(self) -> tuple[TensorInfo, ...]:
        return tuple(
            tensor_info(value, optional=value.name in self.defaults)
            for value in self.graph.input
            if value.name in self.defaults or value.name not in self.tensors
        )

    def _types(self) -> dict[str, ValueType]:
        types: dict[str, ValueType] = {}
        for name, array in self.constants.items():
            code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            types[name] = value_type(onnx.helper.make_tensor_type_proto(code, array.shape))
        for value in self.graph.input:  # a default's shape is not that of every value
            types[value.name] = value_type(value.type)
        return types


def model_opset(source: Source, model: ModelProto) -> int:
    """The version of the ONNX operators that a model uses.

    Raises:
        FormatError: it names none, or several.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        if model.ir_version < 3:
            return 1  # before IR version 3 a model had no way to say
        if any(node.domain in ("", "ai.onnx") for node in model.graph.node):
            raise source.error("opset_import: no version of the ONNX operators; must name one")
        return onnx.defs.onnx_opset_version()
    if len(set(versions)) > 1:
        raise source.error(f"opset_import: versions {versions} of the ONNX operators; must be one")
    if not versions[0] >= 1:
        raise source.error(f"opset_import: version {versions[0]}; must be at least 1")
    return int(versions[0])
