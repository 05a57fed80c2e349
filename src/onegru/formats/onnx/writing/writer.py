"""Write layers as an ONNX model with opset 1 to 22."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.spec import Spec, Weights
from onegru.formats.graph import STATES_KEY, STATES_WORD
from onegru.formats.onnx.dequantized import int8_opset, quantized_inputs
from onegru.formats.onnx.validate import trimmed
from onegru.formats.onnx.writing.edit import node_with_lists
from onegru.formats.writing import Interface, Layers, suffixes
from onegru.operators.onnx import GRU_VERSIONS, check_node_opset, gru_attributes, gru_version
from onegru.operators.schema import OpSchema

#: The newest opset that `onnx_bytes` writes. The installed onnx can be older than the newest GRU.
NEWEST_WRITTEN = min(max(GRU_VERSIONS), onnx.defs.onnx_opset_version())
_MAX_BYTES = 2**31 - 2**20  # 2 GiB per file, minus 1 MiB for everything except weights


def onnx_bytes(layers: Layers, opset: int, layout: int, interface: Interface) -> bytes:
    """Return a serialized model: GRU nodes, and nodes between them that concatenate the directions."""
    operator = gru_version(opset) if opset <= NEWEST_WRITTEN else None
    if operator is None:
        raise SpecError.of(
            "opset", f"{opset}; must be in 1…{NEWEST_WRITTEN}, the newest that changes the GRU"
        )
    size = sum(array.nbytes for _, weights, _ in layers for array in _tensors(weights).values())
    if size > _MAX_BYTES:
        raise SpecError.of(
            "layers", f"{size} bytes of weights; must be below 2 GiB, the limit of an .onnx file"
        )
    graph = _Graph(operator, opset, layout, interface)
    value = "X"
    for index, ((spec, weights, group), suffix) in enumerate(zip(layers, suffixes(layers), strict=True)):
        is_last = index == len(layers) - 1
        Y = "Y" if is_last else f"Y{suffix}"
        is_int8 = group is not None and opset >= int8_opset(group)
        graph.gru(spec, weights, group if is_int8 else None, value, suffix, Y)
        if not is_last:
            value = graph.side_by_side(spec, Y, f"X_{index + 1}")
    return graph.serialized(layers)


def _tensors(weights: Weights) -> dict[str, Array]:
    return {"W": weights.W, "R": weights.R, "B": weights.B}


class _Graph:
    """Builder of the graph, layer by layer."""

    def __init__(self, operator: OpSchema, opset: int, layout: int, interface: Interface) -> None:
        self.operator = operator
        self.opset = opset
        self.layout = layout
        self.interface = interface
        # The oldest IR version with this opset. onnx's table lacks opsets 2 to 4, which are as opset 1.
        known = opset if opset >= 5 else 1
        self.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", known)])
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []

    def constant(self, name: str, array: Array) -> str:
        self.initializers.append(onnx.numpy_helper.from_array(array, name))
        return name

    def in_int8(self, name: str, array: Array, group: int) -> str:
        """Add an int8 weight and the nodes that dequantize it; return its name."""
        q, scale, attributes = quantized_inputs(array, group)
        value = name if q.ndim == 3 else f"{name}.rows"
        inputs = [self.constant(f"{name}.int8", q), self.constant(f"{name}.scale", scale)]
        self.nodes.append(
            onnx.helper.make_node("DequantizeLinear", inputs, [value], name=value, **attributes)
        )
        if q.ndim == 3:
            return name
        return self._with_lists("Reshape", value, name, shape=[*array.shape])

    def gru(self, spec: Spec, weights: Weights, group: int | None, X: str, suffix: str, Y: str) -> None:
        """Add a layer."""
        attributes = self._attributes(spec)
        names = [X]
        for name, array in _tensors(weights).items():
            if group is None or name == "B":
                names.append(self.constant(name + suffix, array))
            else:
                names.append(self.in_int8(name + suffix, array, group))
        names.append("sequence_lens" if self.interface.sequence_lens else "")
        names.append(f"initial_h{suffix}" if self.interface.initial_h else "")
        outputs = [Y, f"Y_h{suffix}"]
        node = onnx.helper.make_node("GRU", trimmed(names), outputs, name=f"GRU{suffix}", **attributes)
        self.nodes.append(node)

    def _attributes(self, spec: Spec) -> dict[str, Any]:
        """Return direction, hidden_size, and the attributes that differ from their defaults."""
        if spec.attention:
            raise SpecError.of("attention", f"{spec.attention!r}; ONNX's GRU has none in any version")
        attributes = gru_attributes(spec, spec.direction, spec.activations, self.layout, ["direction"])
        if "output_sequence" in self.operator.attributes:
            attributes["output_sequence"] = 1
        check_node_opset(self.opset, attributes, spec.dtype, "the layer")
        return attributes

    def side_by_side(self, spec: Spec, Y: str, name: str) -> str:
        """Add nodes that turn Y into [T, B, D·H] ([B, T, D·H] in layout 1); return the result's name."""
        D, H = spec.num_directions, spec.hidden_size
        if self.layout == 0 and D == 1:
            return self._with_lists("Squeeze", Y, name, axes=[1])
        if self.layout == 0:
            self.nodes.append(
                onnx.helper.make_node("Transpose", [Y], [f"{Y}.rows"], name=f"{Y}.rows", perm=[0, 2, 1, 3])
            )
            Y = f"{Y}.rows"
        return self._with_lists("Reshape", Y, name, shape=[0, 0, D * H])

    def _with_lists(self, kind: str, value: str, name: str, **lists: list[int]) -> str:
        """Add a node with lists of integers and return its output."""

        def constant(argument: str, numbers: list[int]) -> str:
            return self.constant(f"{name}.{argument}", np.array(numbers, np.int64))

        self.nodes.append(node_with_lists(kind, [value], [name], name, self.opset, constant, **lists))
        return name

    def serialized(self, layers: Layers) -> bytes:
        """Return the serialized model."""
        first, last = layers[0][0], layers[-1][0]
        inputs = [self._info("X", first, "X")]
        if self.interface.sequence_lens:
            batch: Sequence[int | str] = [self.interface.batch_size or "batch_size"]
            inputs.append(onnx.helper.make_tensor_value_info("sequence_lens", TensorProto.INT32, batch))
        outputs = [self._info("Y", last, "Y")]
        for (spec, *_), suffix in zip(layers, suffixes(layers), strict=True):
            if self.interface.initial_h:
                inputs.append(self._info(f"initial_h{suffix}", spec, "initial_h"))
            outputs.append(self._info(f"Y_h{suffix}", spec, "Y_h"))
        if self.ir_version < 4:  # before version 4, every initializer is also an input
            inputs += [
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                for tensor in self.initializers
            ]
        graph = onnx.helper.make_graph(self.nodes, "onegru", inputs, outputs, self.initializers)
        model = onnx.helper.make_model(
            graph,
            opset_imports=[onnx.helper.make_opsetid("", self.opset)],
            ir_version=self.ir_version,
            producer_name="onegru",
        )
        if self.interface.initial_h:
            model.metadata_props.add(key=STATES_KEY, value=STATES_WORD)
        return bytes(model.SerializeToString())

    def _info(self, name: str, spec: Spec, role: str) -> ValueInfoProto:
        sizes: dict[str, int | str] = {
            "T": self.interface.seq_length or "seq_length",
            "B": self.interface.batch_size or "batch_size",
            "I": spec.input_size,
            "D": spec.num_directions,
            "H": spec.hidden_size,
        }
        port = next(port for port in self.operator.ports(self.layout) if port.role == role)
        dtype = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(spec.dtype))
        return onnx.helper.make_tensor_value_info(name, dtype, [sizes[axis] for axis in port.axes])
