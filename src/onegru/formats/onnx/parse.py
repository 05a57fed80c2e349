"""Read .onnx files as `Graph`.

A model that consists of GRU nodes and nodes that only move axes becomes steps for NumPy. ONNX Runtime runs
all other models, with onegru for their GRU nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, SpecError
from onegru.core.wording import count
from onegru.formats.graph import (
    STATES_KEY,
    STATES_WORD,
    STREAM_KEY,
    Graph,
    GruStep,
    LazyConstants,
    Outline,
    Step,
    TensorInfo,
    initial_states,
)
from onegru.formats.onnx.constant_weights import compute_nodes, fold_weights, nodes_ahead
from onegru.formats.onnx.dequantized import fold_dequantized
from onegru.formats.onnx.flow import lazy_flow_of
from onegru.formats.onnx.functions.inline import inline_functions
from onegru.formats.onnx.nested import find_nested
from onegru.formats.onnx.node import is_plain_constant, node_attributes, tensor_info
from onegru.formats.onnx.order import nodes_in_order
from onegru.formats.onnx.sizes import without_weights
from onegru.formats.onnx.validate import (
    Source,
    describe,
    external_tensors,
    is_augru,
    is_augru_function,
    is_onnx,
    is_ours,
    model_of,
    read_model,
)
from onegru.formats.onnx.values import Values
from onegru.formats.onnx.views import ViewStep, view_of
from onegru.formats.onnx.whole.bounds import ConstantPart, check_bounds
from onegru.formats.onnx.whole.model import OnnxRuntimeModel, lstm_of, runnable
from onegru.formats.onnx.whole.optimizers import harmful_optimizers, takes_exact_int8
from onegru.formats.opened import Opened
from onegru.formats.sizes import with_sizes
from onegru.formats.states import find_states
from onegru.formats.stream_note import read_note
from onegru.operators.lowering import check_attributes, check_weights
from onegru.operators.onnx import AUGRU, GRU_VERSIONS, NEWEST_CHECKED_OPSET, gru_version

_MOST_AXES = 64  # limit of NumPy's arrays
_WEIGHTS = ("W", "R", "B")
_SEARCHED = 1 << 20
_SPARSE = "is sparse; inputs of GRU nodes and outputs of the model must be dense"


def read_onnx(file: Opened, *, keep_parsed: bool = False) -> Graph:
    """Read a model. With `keep_parsed`, its file keeps the parsed model for later readers."""
    source = Source.of(file)
    parse = (
        functools.partial(model_of, file) if keep_parsed else functools.partial(read_model, source, file.data)
    )
    graph = _ModelReader(source, file.data, parse).read()
    return replace(graph, file=file if keep_parsed else replace(file))


def parse_onnx(data: bytes, source: Source, model: ModelProto | None = None) -> Graph:
    """Read a serialized model; `model` is the same model if it is parsed already."""
    parse = functools.partial(read_model, source, data)
    return _ModelReader(source, data, parse if model is None else functools.partial(deepcopy, model)).read()


def _constants(source: Source, data: bytes, parse: Callable[[], ModelProto]) -> dict[str, Array]:
    """Read the constants that the GRU nodes of a serialized model use."""
    return _ModelReader(source, data, parse, folds=True).constants()


class _ModelReader:
    """Reads one model; with `folds`, weights that nodes compute from constants become constants."""

    def __init__(
        self, source: Source, data: bytes, parse: Callable[[], ModelProto], folds: bool = False
    ) -> None:
        self.source = source
        self.data = data
        self.parse = parse
        given = parse()
        self.augru_domains = {item.domain for item in given.functions if is_augru_function(item)}
        self.model = model = inline_functions(source, given)
        self.is_changed = model is not given
        self.graph = model.graph
        self.opset = model_opset(source, model)
        self.nodes = nodes_in_order(source, self.graph)
        if fold_dequantized(source, model, self.opset):
            self.nodes = nodes_in_order(source, self.graph)
            self.is_changed = True
        if folds and fold_weights(source, model, self.opset, len(data)):
            self.nodes = nodes_in_order(source, self.graph)
        self.values = Values(source, self.graph, model.ir_version)
        self.tensors, self.sparse = self.values.tensors, self.values.sparse
        self.defaults, self.producers = self.values.defaults, self.values.producers
        has_none = len(data) < _SEARCHED and b"location" not in data  # slow for large models
        external = [] if has_none else external_tensors(model)
        most = check_bounds(source, model, len(data), external)
        self.ahead = ConstantPart(model, self.nodes, most, set(self.tensors) - self.defaults | self.sparse)
        grus = {id(node): self._gru_node(node) for node in self.nodes if is_ours(node)}
        self.grus = with_sizes(grus, self.values.shape, lambda: lazy_flow_of(self.values))
        self.nested, self.inner = find_nested(self.nodes, self._gru_node, self.values)
        self._check_sparse()

    def read(self) -> Graph:
        """Return the model as a graph."""
        inputs = tuple(
            tensor_info(value, optional=value.name in self.defaults)
            for value in self.graph.input
            if value.name in self.defaults or value.name not in self.tensors
        )
        outputs = tuple(tensor_info(value) for value in self.graph.output)
        outline = Outline(without_weights(self.model))
        state_fields = self._state_fields(inputs, outputs)
        ahead = self._ahead_of_runs()
        steps = self._steps({id(node) for node in ahead})
        constants: Mapping[str, Array] | None = None if steps is None else self._folded(ahead)
        whole: OnnxRuntimeModel | None = None
        if steps is None or constants is None:
            read = functools.partial(_constants, self.source, self.data, self.parse)
            constants, steps = LazyConstants(read), ()
            plain = sum(map(is_plain_constant, self.nodes))
            count = len(self.nodes) - plain - len(self.grus) - len(ahead)
            whole = self._whole(count, state_fields["states"])
        is_from_onegru = any((p.key, p.value) == (STATES_KEY, STATES_WORD) for p in self.model.metadata_props)
        graph = Graph(
            path=self.source.name,
            inputs=inputs,
            outputs=outputs,
            constants=constants,
            steps=steps,
            grus=(*self.grus.values(), *(gru for _, gru in self.nested)),
            whole=whole,
            **state_fields,
            outline=outline,
        )
        return replace(graph, zero_inputs=initial_states(graph)) if is_from_onegru and steps else graph

    def _state_fields(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> dict[str, Any]:
        """Return the attributes of a `Graph` about states, from the metadata or from an analysis."""
        text = next((item.value for item in self.model.metadata_props if item.key == STREAM_KEY), None)
        if text is None:
            grus = self.grus.values()
            return {"states": find_states(lambda: lazy_flow_of(self.values), grus, inputs, outputs)}
        fields = read_note(text, inputs, outputs)
        if fields is None:
            raise self.source.error(f"its metadata {STREAM_KEY!r} do not fit its inputs and outputs")
        return fields

    def constants(self) -> dict[str, Array]:
        """Return the constants that GRU nodes use, if they are known before a run."""
        return (self._folded([]) or {}) | {
            name: self.values.array(constant) for name, constant in self.inner.items()
        }

    # GRU nodes

    def _gru_node(self, node: NodeProto, bodies: tuple[str, ...] = ()) -> GruStep:
        location = f"{self.source.name}: {describe(node)}"
        operator = AUGRU if is_augru(node) else gru_version(self.opset)
        assert operator is not None, "model_opset rejects versions below 1"
        since = onnx.defs.get_schema("GRU", min(self.opset, onnx.defs.onnx_opset_version())).since_version
        if operator is not AUGRU and since > operator.version:
            words = f"version {since}; must be at most {max(GRU_VERSIONS)}, the newest that onegru supports"
            raise FormatError(f"{location}: {words}")
        versions = {entry.domain: entry.version for entry in self.model.opset_import}
        if operator is AUGRU and (version := versions.get(node.domain, AUGRU.version)) != AUGRU.version:
            raise SpecError(f"{location}: version {version} of its domain; must be {AUGRU.version}")
        if len(node.input) > len(operator.inputs):
            raise SpecError(
                f"{location}: {count(len(node.input), 'input')}; must be at most {len(operator.inputs)}"
            )
        if len(node.output) > len(operator.outputs):
            raise SpecError(
                f"{location}: {count(len(node.output), 'output')}; must be at most {len(operator.outputs)}"
            )
        attributes = node_attributes(self.source, node, operator)
        scope = "".join(f"{body}/" for body in bodies)  # another subgraph can use the same name
        inputs, outputs = (
            {port.name: scope + name for port, name in zip(ports, names, strict=False) if name}
            for ports, names in ((operator.inputs, node.input), (operator.outputs, node.output))
        )
        for side, ports, values in (("", operator.inputs, inputs), ("output ", operator.outputs, outputs)):
            for port in ports:
                if port.required and port.name not in values:
                    raise SpecError(f"{location}: {side}{port.name}: missing; {operator} requires it")
        asked = "output_sequence" in operator.attributes and attributes.get("output_sequence") == 1
        if asked and "Y" not in outputs:
            raise SpecError(f"{location}: output Y: missing; {operator} requires it with output_sequence = 1")
        name = node.name or next(filter(None, node.output), operator.name)
        is_defined = operator is not AUGRU or node.domain in self.augru_domains
        return GruStep(name, operator, attributes, inputs, outputs, bodies, has_function=is_defined)

    def _check_sparse(self) -> None:
        used = {name for gru in self.grus.values() for name in gru.inputs.values()}
        for name in sorted(used | {value.name for value in self.graph.output}):
            if name in self.sparse:
                raise self.source.error(f"initializer {name!r}: {_SPARSE}")
            producer = self.producers.get(name)
            if producer is not None and producer.op_type == "Constant" and not is_plain_constant(producer):
                raise self.source.error(f"Constant {name!r}: {_SPARSE}")

    # For ONNX Runtime

    def _whole(self, count: int, states: Iterable[tuple[str, str]]) -> OnnxRuntimeModel:
        """Return the model for ONNX Runtime, in which each GRU node has a unique name."""
        names: dict[str, None] = {}
        own = [(node, self.grus[id(node)]) for node in self.nodes if id(node) in self.grus]
        for node, gru in (*own, *self.nested):
            location = f"{self.source.name}: {describe(node)}: "
            check_attributes(gru.operator, gru.attributes, location)
            self._check_weights(gru, location)
            name, number = gru.name, 2
            while name in names:
                name, number = f"{gru.name}#{number}", number + 1
            names[name] = None
            if name != node.name:
                node.name, self.is_changed = name, True
        self._check_inputs()
        outputs = {value.name for value in self.graph.output}
        shared = outputs & ({value.name for value in self.graph.input} | self.tensors.keys())
        others = [n for n in self.nodes if not is_ours(n) and not is_plain_constant(n)] or self.nodes
        where = describe(others[0]) if others else "the model"
        given = None if self.is_changed else self.data
        data, usual = runnable(self.source, self.model, self.nodes, given, self.opset)
        lstm, batch_axes = lstm_of(self.model)
        if batch_axes is None:  # any axis can be the batch; but of states, others than the batch can be empty
            kept = {name for _, name in states}
            inputs = [value.name for value in self.graph.input if value.name not in kept]
            batch_axes = dict.fromkeys(inputs, range(_MOST_AXES))
        return OnnxRuntimeModel(
            node_count=count,
            shared=frozenset(shared),
            source=self.source if data is self.data else replace(self.source, file=None),
            data=data,
            usual=usual,
            where=where,
            names=tuple(names),
            disabled=harmful_optimizers(self.model),
            exact_int8=takes_exact_int8(self.model),
            most_ahead=self.ahead.most,
            defaults=frozenset(self.defaults),
            lstm=lstm,
            batch_axes=batch_axes,
        )

    def _check_inputs(self) -> None:
        """Give each input without a type the type of the weights of a GRU node that uses it."""
        for value in self.graph.input:
            kind = value.type
            if kind.WhichOneof("value") not in (None, "tensor_type") or kind.tensor_type.elem_type:
                continue
            consumers = [gru for gru in self.grus.values() if value.name in gru.inputs.values()]
            types = {
                self.tensors[name].data_type for gru in consumers if (name := gru.inputs["W"]) in self.tensors
            }
            if len(types) != 1:
                raise self.source.error(f"graph input {value.name!r}: must have a type")
            kind.tensor_type.elem_type, self.is_changed = types.pop(), True

    def _check_weights(self, gru: GruStep, location: str) -> None:
        """Check the sizes of weights in the file."""
        arrays: dict[str, Array] = {}
        for name in _WEIGHTS:
            if name in gru.inputs:
                value = gru.inputs[name]
                constant = self.inner.get(value) or self.tensors.get(value)
                if not isinstance(constant, TensorProto) or value in self.defaults:
                    return
                dtype = onnx.helper.tensor_dtype_to_np_dtype(constant.data_type)
                arrays[name] = np.broadcast_to(np.zeros((), dtype), tuple(constant.dims))
        W, R, B = map(arrays.get, _WEIGHTS)
        check_weights(gru.operator, gru.attributes, W, R, B, location)

    # Constants

    def _ahead_of_runs(self) -> list[NodeProto]:
        """Return the nodes that compute weights only from constants, unless the results are too large."""
        weights = [gru.inputs[n] for gru in self.grus.values() for n in _WEIGHTS if n in gru.inputs]
        return nodes_ahead(self.values, weights, self.ahead.fits)[0]

    def _folded(self, ahead: Sequence[NodeProto]) -> dict[str, Array] | None:
        """Return the constants that GRU nodes and outputs use, and the defaults of inputs."""
        wanted = {name for gru in self.grus.values() for name in gru.inputs.values()}
        wanted |= {value.name for value in self.graph.output} | self.defaults
        found: dict[str, Array] = {}
        for name in wanted:
            constant = self.tensors.get(name) or self.producers.get(name)
            if isinstance(constant, TensorProto) or (constant is not None and is_plain_constant(constant)):
                found[name] = self.values.array(constant)
        names = sorted({name for node in ahead for name in node.output} & wanted)
        computed = compute_nodes(self.values, self.opset, ahead, names) if names else {}
        return None if computed is None else found | computed

    # As steps

    def _steps(self, ahead: set[int]) -> tuple[Step, ...] | None:
        """Return the steps of a model that consists of GRU nodes and nodes that move axes; else None."""
        if self.nested:
            return None
        steps: list[Step] = []
        wanted = {value.name for value in self.graph.output}
        for node in reversed(self.nodes):
            if (gru := self.grus.get(id(node))) is not None:
                steps.append(gru)
                wanted |= set(gru.inputs.values())
            elif wanted & set(node.output) and not is_plain_constant(node) and id(node) not in ahead:
                is_view = view_of(node, self.opset, self._integers) is not None
                if not is_view or self.values.is_constant(node.input[0]):
                    return None
                steps.append(ViewStep(self.source, node, self.opset, self._integers))
                wanted.add(node.input[0])
        return tuple(steps[::-1])

    def _integers(self, name: str) -> tuple[int, ...] | None:
        """Return a constant if it is a list of 64-bit integers."""
        array = self.values.integers_of(name)
        return None if array is None or array.ndim != 1 or array.dtype != np.int64 else tuple(array.tolist())


def model_opset(source: Source, model: ModelProto) -> int:
    """Return the version of the ONNX operators that a model uses."""
    versions = [entry.version for entry in model.opset_import if is_onnx(entry)]
    if not versions:
        if model.ir_version < 3:
            return 1  # before IR version 3, models had no opset
        if any(is_onnx(node) for node in model.graph.node):
            raise source.error("opset_import: no version of the ONNX operators; must have one")
        return onnx.defs.onnx_opset_version()
    if len(set(versions)) > 1:
        raise source.error(f"opset_import: versions {versions} of the ONNX operators; must have only one")
    newest = max(NEWEST_CHECKED_OPSET, onnx.defs.onnx_opset_version())
    if not 1 <= versions[0] <= newest:
        words = f"must be 1 to {newest}, the newest that onegru and the installed onnx support"
        raise source.error(f"opset_import: version {versions[0]}; {words}")
    return int(versions[0])
