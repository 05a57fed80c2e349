"""Find the floating-point values that a model's integer outputs are computed from.

A changed class index or flag does not show how large an error is, but the inputs of ArgMax, TopK or a
comparison do.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import onnx

from onegru.core.dtypes import ELEMENT_TYPES, numpy_dtype
from onegru.core.errors import BROKEN
from onegru.dataflow.flow import Flow
from onegru.dataflow.operator import Op
from onegru.dataflow.table import Elements, movers
from onegru.formats.graph import Graph
from onegru.formats.onnx.parse import parse_onnx
from onegru.formats.onnx.validate import ModelProto, Source, Written, serialized
from onegru.timeline.read import read_model_flow

_INTEGER_RESULTS = ("Floor", "Ceil", "Round", "Sign", "OneHot", "QuantizeLinear", "DequantizeLinear")
_MOVES = movers(Elements.KEPT | Elements.PERMUTED, without=("Flatten",))
_SIZE_READERS = ("Shape", "Size", "Range", "ConstantOfShape")  # operators that depend only on sizes


def find_float_origins(source: Graph, made: Graph) -> dict[str, dict[str, str]]:
    """Find the floating-point values before integer, boolean or rounded outputs, in both models."""
    before, after = read_model_flow(source), read_model_flow(made)
    if before is None or after is None:
        return {}
    found: dict[str, dict[str, str]] = {}
    for info in source.outputs:
        if info.is_tensor and info.dtype not in ("str", "unknown"):
            output = before.outputs[info.name]
            try:
                values = _origins_of(before.flow, output)
            except BROKEN:
                continue
            if values and output not in values and all(name in after.flow.producers for name in values):
                found[info.name] = values
    return found


def _origins_of(flow: Flow, output: str) -> dict[str, str]:
    """Return the floating-point values that an output is computed from; empty if some are unknown."""
    found: dict[str, str] = {}
    waiting, seen = [output], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or flow.constant(name) is not None:
            continue
        seen.add(name)
        op, dtype = flow.producers.get(name), flow.dtype(name)
        if op is None or op.kind in _SIZE_READERS:  # an input, equal in both models
            continue
        if dtype in ELEMENT_TYPES and not _has_integer_results(flow, op):
            found[name] = str(dtype)
            continue
        if dtype is None or op.bodies:
            return {}
        waiting += filter(None, op.inputs)
    return found


def _has_integer_results(flow: Flow, op: Op) -> bool:
    """Whether an operator's results are integers, regardless of their type."""
    if op.kind == "Cast" or op.kind in _MOVES:
        dtype, made = flow.dtype(op.inputs[0]), flow.find_producer(op.inputs[0])
        is_float = dtype in ELEMENT_TYPES
        return dtype is not None and (not is_float or (made is not None and made.kind in _INTEGER_RESULTS))
    return op.kind in _INTEGER_RESULTS


def with_outputs(model: ModelProto, source: Source, values: Mapping[str, str]) -> tuple[Graph, Written]:
    """Add values to the outputs of a copy of an ONNX model."""
    model = deepcopy(model)
    known = {info.name for info in model.graph.output}
    for name in values.keys() - known:
        code = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(values[name]))
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, code, None))
    made = serialized(source, model, "too large to be compared")
    return parse_onnx(made, replace(source, file=None), model), (made, model)
