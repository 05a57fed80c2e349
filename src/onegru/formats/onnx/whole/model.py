"""Open an ONNX model in ONNX Runtime, after changes for nodes that ONNX Runtime does not support."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from onegru.core.errors import SpecError
from onegru.engines.interface import EngineOptions
from onegru.formats.graph import Observer, Run, RuntimeModel
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.functions.inline import all_nodes
from onegru.formats.onnx.order import needed_nodes
from onegru.formats.onnx.upgrade import infer_shapes, upgrade
from onegru.formats.onnx.validate import Source, describe, drop_named, is_onnx, replace_nodes, serialized
from onegru.formats.onnx.whole.session import Session
from onegru.operators.onnx import OLDEST_OPSET
from onegru.runtimes.execution_provider import add_observer, remove_observer


@dataclass(frozen=True, eq=False)
class OnnxRuntimeModel(RuntimeModel):
    """Model for ONNX Runtime; see `onegru.formats.graph.RuntimeModel`."""

    source: Source  # the source of the model; ONNX Runtime reads its file, if there is one
    data: bytes  # the model, from `runnable`
    usual: bytes | None  # the model with its defaults as constants; None without defaults
    where: str  # a description of the first of its other nodes
    names: tuple[str, ...]  # distinct names of its GRU nodes
    disabled: tuple[str, ...]  # the names of ONNX Runtime's optimizers that must not run
    exact_int8: bool  # whether ONNX Runtime must multiply 8-bit integers exactly
    most_ahead: int  # the largest size in bytes of a value that is computed ahead of the runs
    # the inputs with defaults. They and values computed from them are constants. A run with other values uses
    # a separate session of the unchanged model
    defaults: frozenset[str]
    lstm: str  # a description of its first LSTM node, for which an empty batch would crash the process
    batch_axes: Mapping[str, Sequence[int]]  # the axes of inputs that can be the batch of an LSTM node

    def open(self, options: EngineOptions, observer: Observer | None = None) -> Run:
        """See `RuntimeModel`."""
        given = options.texts
        number = 0
        if observer is not None:
            indices = {name: index for index, name in enumerate(self.names)}
            number = add_observer(lambda name, moment, arrays: observer(indices[name], moment, arrays))
            given["observer"] = str(number)
        try:
            run = self._opened(given)
        except BaseException:
            if observer is not None:
                remove_observer(number)
            raise
        if observer is not None:
            weakref.finalize(run, remove_observer, number)
        return run

    def _opened(self, given: Mapping[str, Any]) -> Run:
        """Open the model with these options of the provider."""
        model = str(self.source.file) if self.source.is_unchanged else self.data

        def session(model: bytes | str) -> Run:
            made = Session(
                *(model, self.source, self.where, given, self.most_ahead, self.disabled),
                exact_int8=self.exact_int8,
            )
            names = made.output_names
            if self.lstm:
                return lambda feeds: dict(zip(names, made.run(self._checked(feeds)), strict=True))
            return lambda feeds: dict(zip(names, made.run(feeds), strict=True))

        if self.usual is None:
            return session(model)
        usual, others = session(self.usual), functools.cache(lambda: session(model))
        return lambda feeds: usual(feeds) if self.defaults.isdisjoint(feeds) else others()(feeds)

    def _checked(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Reject an empty batch of an LSTM node."""
        for name, array in feeds.items():
            shape = np.shape(array)
            if any(shape[axis] == 0 for axis in self.batch_axes.get(name, ()) if axis < len(shape)):
                raise SpecError(
                    f"{self.source.name}: {name!r} has shape {list(shape)}; must not be empty, because ONNX "
                    f"Runtime cannot run {self.lstm} on an empty batch"
                )
        return feeds


def lstm_of(model: ModelProto) -> tuple[str, Mapping[str, Sequence[int]] | None]:
    """Describe the first LSTM node, and find the batch axes of inputs; None if shape inference cannot."""
    every = all_nodes(node for owner in (model.graph, *model.functions) for node in owner.node)
    nodes = [node for node in every if node.op_type == "LSTM" and is_onnx(node)]
    if not nodes:
        return "", {}
    graph = infer_shapes(model).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.input)}
    symbols: set[str] = set()
    for node in nodes:
        dims = shapes.get(node.input[0], ())  # empty for a node of a subgraph or function
        axis = 0 if any(item.name == "layout" and item.i for item in node.attribute) else 1
        if len(dims) != 3 or not (dims[axis].dim_value or dims[axis].dim_param):
            return describe(nodes[0]), None
        symbols |= {dims[axis].dim_param} - {""}
    axes = {
        value.name: [axis for axis, dim in enumerate(shapes[value.name]) if dim.dim_param in symbols]
        for value in graph.input
    }
    known = {dim.dim_param for value in graph.input for dim in shapes[value.name]}
    return describe(nodes[0]), axes if symbols <= known else None


def runnable(
    source: Source, model: ModelProto, nodes: Sequence[NodeProto], data: bytes | None, opset: int
) -> tuple[bytes, bytes | None]:
    """Return a model that ONNX Runtime runs, and the same model with its defaults as constants."""
    version, is_changed = model.ir_version, data is None
    if model.ir_version < 4:  # before version 4, an initializer that is also an input is a constant
        drop_named(model.graph.input, {tensor.name for tensor in model.graph.initializer})
        is_changed = True
    if not any(is_onnx(entry) for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("", opset))
        is_changed = True
    model.ir_version = _least_ir_version(model)
    # Also replaces the functions in the file, which are not trusted.
    is_changed |= add_augru_functions(model, source)
    if opset < OLDEST_OPSET:
        # Without unused nodes, which the converter may not support.
        replace_nodes(model.graph, needed_nodes(nodes, (value.name for value in model.graph.output)))
        model, is_changed = upgrade(source, infer_shapes(model), opset), True
    if data is None or is_changed or model.ir_version != version:
        data = serialized(source, model, "too large for ONNX Runtime")
    inputs = list(model.graph.input)
    drop_named(model.graph.input, {tensor.name for tensor in model.graph.initializer})
    if len(model.graph.input) == len(inputs):
        return data, None
    usual = serialized(source, model, "too large for ONNX Runtime")
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return data, usual


def _least_ir_version(model: ModelProto) -> int:
    """Return the oldest sufficient IR version, because onnx writes versions too new for ONNX Runtime."""
    needed = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    if model.functions:
        needed = max(needed, 10 if any(function.overload for function in model.functions) else 8)
    return min(max(model.ir_version, 4), max(needed, 4))
