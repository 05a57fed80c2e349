"""Rewrite the GRU nodes of an ONNX model in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from onegru.core.compare import QUANTIZED
from onegru.core.errors import SpecError
from onegru.formats.onnx.constant_weights import fold_weights
from onegru.formats.onnx.dequantized import fold_dequantized
from onegru.formats.onnx.flow import GraphTypes, graph_types
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.functions.inline import all_nodes, inline_functions
from onegru.formats.onnx.order import nodes_in_order
from onegru.formats.onnx.parse import model_opset
from onegru.formats.onnx.validate import (
    Source,
    all_tensors,
    attribute_graphs,
    describe,
    drop_named,
    is_augru,
    is_augru_function,
    is_gru,
    is_onnx,
    replace_nodes,
)
from onegru.formats.onnx.values import Names, all_graphs
from onegru.models.fusing import fusing_hint
from onegru.operators.onnx import DECOMPOSED_OPSET, OLDEST_OPSET
from onegru.rewriting.external_data import embed_external, external_notes
from onegru.rewriting.nodes.changes import CHANGES, FLOAT16_OPSET, RewriteOptions, to_int8
from onegru.rewriting.nodes.node_config import node_of, operator_at, read_config
from onegru.rewriting.nodes.opset import convert_nodes, is_same
from onegru.rewriting.nodes.plan import ChangeNames, attribute_changes, plan_node
from onegru.rewriting.nodes.scope import Draft, Scope

_MAYBE_CONSTANT = ("W", "R", "B", "initial_h")  # inputs that can be constants


class NodeSummary(NamedTuple):
    """The fields of a `NodeReport`."""

    name: str
    done: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model with rewritten GRU nodes."""

    model: ModelProto  # the model
    opsets: tuple[int, int]  # the opset of the source and of the model
    nodes: Sequence[NodeSummary]  # the results for each GRU node
    dtypes: Collection[str]  # the element types of the GRU nodes, before and after, and QUANTIZED
    others: Sequence[str]  # descriptions of other nodes that the new opset changed
    notes: Sequence[str]  # other changes, as text


def rewrite_model(source: Source, model: ModelProto, file_size: int, options: RewriteOptions) -> Rewritten:
    """Rewrite the GRU nodes of a model in place."""
    return _Rewriter(source, model, file_size, options).rewrite()


class _Rewriter:
    """The rewrite of one model."""

    def __init__(self, source: Source, given: ModelProto, file_size: int, options: RewriteOptions) -> None:
        self.source = source
        self.options = options
        self.notes: list[str] = []
        self.nodes: list[NodeSummary] = []
        self.dtypes: set[str] = set()
        self.others: list[str] = []
        self.released: set[str] = set()  # `released_inputs` of all graphs
        has_added_functions = add_augru_functions(given, source)  # broken ones crash onnx's shape inference
        function_count = len(given.functions)
        self.model = inline_functions(source, given)
        nodes_in_order(source, self.model.graph)  # rejects graphs with cycles or ambiguous names
        has_augru = any(map(is_augru, all_nodes(self.model.graph.node)))
        self.decomposes_augru = options.decomposes_augru and has_augru
        if has_added_functions and not self.decomposes_augru:
            self.notes.append("AUGRU functions, which other runtimes need, were added")
        if len(self.model.functions) < function_count:
            self.notes.append("functions that contain GRU nodes were inlined")
        self.notes += embed_external(source, self.model, file_size)
        self.old_opset = model_opset(source, self.model)
        reads_weights = options.reads_weights or self.decomposes_augru
        has_folded = reads_weights and fold_dequantized(source, self.model, self.old_opset)
        if has_folded and options.quantize is not True:
            self.notes.append("quantized weights were dequantized")
        if reads_weights:
            weight_bytes = sum(len(tensor.raw_data) for tensor in all_tensors(self.model))
            self.released = fold_weights(source, self.model, self.old_opset, max(file_size, weight_bytes))
            if self.released:
                self.notes.append("weights that nodes compute from constants are now constants")
        self.types = graph_types(self.model)
        self.names = Names(self.model)
        self.new_opset = options.opset or self._least_opset()

    def rewrite(self) -> Rewritten:
        if not any(is_gru(node) or is_augru(node) for node in all_nodes(self.model.graph.node)):
            hint = fusing_hint(self.source.name) or "there is nothing to rewrite"
            raise self.source.error(f"has no GRU node; {hint}")
        needed = operator_at(self.new_opset).later.get("layout")
        if self.options.opset is None and self.options.layout and needed is not None:
            raise SpecError.of(
                "layout",
                f"1; needs opset {needed} or newer, and the target has opset {self.new_opset}; "
                f"add --opset {needed}",
            )
        if self.new_opset != self.old_opset:
            self._convert_others()
        if self.options.runtime == "onnxruntime":
            self._rename_nodes()
        self._rewrite_graph(self._scope(self.new_opset))
        if not isinstance(self.options.quantize, bool):
            names = [summary.name for summary in self.nodes]
            for name in sorted(self.options.quantize - set(names)):
                listed = ", ".join(map(repr, names))
                raise SpecError.of("quantize", f"no GRU node is called {name!r}; must be one of {listed}")
        self._remove_released()
        add_augru_functions(self.model, self.source)
        opsets = (self.old_opset, self.new_opset)
        self.notes += external_notes(self.model)
        return Rewritten(self.model, opsets, self.nodes, self.dtypes, self.others, self.notes)

    # Opset

    def _least_opset(self) -> int:
        """Return the model's opset, or the oldest opset that the target runtime supports."""
        least = self.old_opset
        if self.options.runtime == "onnxruntime":
            least = max(least, OLDEST_OPSET)
        if self.options.float16:
            least = max(least, FLOAT16_OPSET)
        if self.options.decompose or self.decomposes_augru:
            least = max(least, DECOMPOSED_OPSET)
        if self.options.runtime is not None and least < DECOMPOSED_OPSET:
            waiting, plans = [self._scope(least)], list[ChangeNames]()
            for scope in waiting:
                grus = filter(is_gru, scope.graph.node)
                configs = [read_config(scope, node, self.old_opset) for node in grus]
                plans += [plan_node(scope, config, self.options, self.old_opset)[0] for config in configs]
                waiting += [body for node in scope.graph.node for body in scope.bodies(node)]
            if any("decompose" in plan for plan in plans):
                least = DECOMPOSED_OPSET
        return least

    def _convert_others(self) -> None:
        """Convert all nodes except the GRUs to the new opset."""
        self._convert_graph(self._scope(self.new_opset))
        for function in self.model.functions:
            if not is_augru_function(function):  # AUGRU functions are created again
                self._check_function(function)
        for owner in (self.model, *self.model.functions):
            for entry in owner.opset_import:
                if is_onnx(entry):
                    entry.version = self.new_opset
        if not any(is_onnx(entry) for entry in self.model.opset_import):
            self.model.opset_import.append(onnx.helper.make_opsetid("", self.new_opset))
            self.model.ir_version = max(self.model.ir_version, 3)

    def _convert_graph(self, scope: Scope) -> None:
        graph = scope.graph
        for node in graph.node:
            for body in scope.bodies(node):
                self._convert_graph(body)
        self.others += convert_nodes(scope, self.old_opset, self.new_opset)
        if scope.early:
            replace_nodes(graph, [*scope.early, *graph.node])

    def _check_function(self, function: FunctionProto) -> None:
        """Raise FormatError for a function with nodes that differ between the opsets."""
        old = next((item.version for item in function.opset_import if is_onnx(item)), self.old_opset)
        outputs = [ValueInfoProto(name=name) for name in function.output]
        graph, types = GraphProto(node=function.node, output=outputs), GraphTypes(GraphProto())
        scope = Scope(self.source, graph, 3, types, None, self.new_opset, self.names)
        for node in all_nodes(function.node):
            if is_onnx(node) and not is_same(scope, node, old, self.new_opset):
                raise self.source.error(
                    f"function {function.name!r}: {describe(node)}: cannot be converted from opset {old} to "
                    f"{self.new_opset}; inline the functions first (onnx.inliner)"
                )

    # GRU nodes

    def _rename_nodes(self) -> None:
        """Give different names to the nodes of each graph."""
        for graph in all_graphs(self.model.graph):
            used: set[str] = set()
            for node in graph.node:
                if node.name in used:
                    name = self.names.fresh(node.name)
                    reason = "ONNX Runtime refuses two nodes of a graph with the same name"
                    self.notes.append(f"{describe(node)} is now called {name!r}, because {reason}")
                    node.name = name
                used |= {node.name} - {""}

    def _scope(self, opset: int) -> Scope:
        model = self.model
        return Scope(self.source, model.graph, model.ir_version, self.types, None, opset, self.names)

    def _rewrite_graph(self, scope: Scope) -> None:
        graph = scope.graph
        rewritten: dict[int, list[NodeProto]] = {}  # the nodes that replace a node, by its index
        for node in graph.node:
            for body in scope.bodies(node):
                self._rewrite_graph(body)
        for index, node in enumerate(graph.node):
            if is_gru(node) or (self.decomposes_augru and is_augru(node)):
                draft = Draft(scope, node.name or next(filter(None, node.output), ""))
                grus = self._rewrite_node(draft, node)
                rewritten[index] = [*draft.nodes, *grus, *draft.after]
            elif is_augru(node) and self.options.quantizes(node):
                rewritten[index] = self._quantized_augru(scope, node)
        nodes = list(scope.early)
        for index, node in enumerate(graph.node):
            is_kept = scope.taken_outputs.isdisjoint(node.output)
            nodes += rewritten.get(index, [node] if is_kept else [])
        replace_nodes(graph, nodes)
        self.released |= scope.released_inputs
        remaining = {name for node in nodes for name in node.output}
        drop_named(graph.value_info, scope.producers.keys() - remaining)

    def _rewrite_node(self, draft: Draft, node: NodeProto) -> list[NodeProto]:
        """Add the nodes around a GRU node to `draft`; return the GRU nodes."""
        scope = draft.scope
        config = read_config(scope, node, self.old_opset)
        plan, reasons = plan_node(scope, config, self.options, self.old_opset)
        name = node.name or config.base
        self.dtypes |= {dtype for dtype in (config.dtype, *plan & {"float16", QUANTIZED}) if dtype}
        if not plan:
            self.nodes.append(NodeSummary(name, (), reasons))
            return [node]
        scope.released_inputs.update(config.inputs[port] for port in _MAYBE_CONSTANT if port in config.inputs)
        if {"decompose", QUANTIZED} <= plan:
            raise SpecError.of(
                "quantize",
                f"{config.label} must be decomposed for {self.options.runtime}, so no GRU node remains to "
                "quantize",
            )
        configs = [config]
        for change in (change for key, change in CHANGES.items() if key in plan):
            configs = [part for item in configs for part in change.apply(draft, item, self.options)]
        self.notes += [note for note in draft.notes if note not in self.notes]
        written = attribute_changes(configs[0], self.new_opset) if len(configs) == 1 else []
        self.nodes.append(NodeSummary(name, (*dict.fromkeys(draft.done), *written), reasons))
        return [node_of(scope, item) for item in configs]

    def _quantized_augru(self, scope: Scope, node: NodeProto) -> list[NodeProto]:
        """Store W and R of an AUGRU node as int8, without other changes."""
        config = read_config(scope, node, self.old_opset)
        draft = Draft(scope, config.base)
        scope.released_inputs.update(config.inputs[port] for port in ("W", "R"))
        (config,) = to_int8(draft, config, self.options)
        made = deepcopy(node)
        made.input[1], made.input[2] = config.inputs["W"], config.inputs["R"]
        self.dtypes |= {"float32", QUANTIZED}
        self.nodes.append(NodeSummary(node.name or config.base, tuple(draft.done), ()))
        return [*draft.nodes, made]

    # Unused nodes and constants

    def _remove_released(self) -> None:
        """Remove released values that nothing reads now, and the nodes that computed only such values."""
        graphs = list(all_graphs(self.model.graph))
        reads = Counter(value.name for graph in graphs for value in graph.output)
        reads.update(name for graph in graphs for node in graph.node for name in node.input)
        for graph in reversed(graphs):  # bodies first, because `replace_nodes` copies them
            kept: list[NodeProto] = []
            for node in reversed(graph.node):
                outputs = set(node.output) - {""}
                if self.released.isdisjoint(outputs) or any(reads[name] for name in outputs):
                    kept.append(node)
                    continue
                removed = list(all_nodes([node]))
                bodies = [body for item in removed for body in attribute_graphs(item)]
                freed = [name for item in removed for name in item.input]
                freed += [value.name for body in bodies for value in body.output]
                reads.subtract(freed)
                self.released |= {*freed, *outputs}
            unread = {name for name in self.released if not reads[name]}
            gone = {tensor.name for tensor in graph.initializer} & unread
            if self.model.ir_version >= 4:  # an input's default is part of the interface
                gone -= {value.name for value in graph.input}
            drop_named(graph.initializer, gone)
            drop_named(graph.input, gone)
            if len(kept) < len(graph.node):
                gone |= unread
                replace_nodes(graph, reversed(kept))
            drop_named(graph.value_info, gone)
