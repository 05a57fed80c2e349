"""Which inputs of an ONNX model are states, and which outputs are the same states after a run.

An exported streaming model has the initial state of its GRUs as an input and their last state as an output.
Between these and the GRU nodes lie only nodes that move, cut or join arrays. Numbered elements are sent
through them to prove that the last state of a GRU comes back to the same GRU, each number at its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto

from onegru.core.dtypes import Array
from onegru.dataflow.table import Elements, movers
from onegru.formats.graph import GruStep, TensorInfo
from onegru.formats.onnx.order import needed_nodes
from onegru.formats.onnx.validate import is_onnx, is_ours

_MOVES = movers(Elements.KEPT | Elements.PERMUTED, casts=True)
_CUTS, _JOINS = movers(Elements.CUT), movers(Elements.JOINED)

# More than any state has; beyond, nothing is proved.
_MOST_ELEMENTS = 1 << 20
_MOST_NODES = 1000


def find_states(
    graph: GraphProto,
    opset: int,
    nodes: Sequence[NodeProto],
    grus: Collection[GruStep],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
) -> tuple[tuple[str, str], ...]:
    """Pairs of an output and the input that takes it in the next run.

    An input and an output are a pair if they reach the same forward GRU nodes, are of one type and shape, and
    each element of the output would be the input's at its place if the GRUs returned their initial states. Of
    several such outputs, which hold the same numbers, it is the one that is a GRU node's own, or else the
    first. A state that two GRU nodes start from, and what is not certain, is left out.

    Args:
        graph: the model's graph.
        opset: of its nodes.
        nodes: its nodes, in an order in which they can run.
        grus: its GRU nodes.
        inputs: what the model takes.
        outputs: what it gives.
    """
    nodes_of_start = Counter(gru.inputs.get("initial_h") for gru in grus)
    starts = {
        gru.inputs["initial_h"]: gru.outputs["Y_h"]
        for gru in grus
        if gru.attributes.get("direction", "forward") in ("forward", "foward")
        and "initial_h" in gru.inputs
        and "Y_h" in gru.outputs
        and nodes_of_start[gru.inputs["initial_h"]] == 1
    }
    if not starts:
        return ()
    reached = _reached(nodes, {info.name: {info.name} for info in inputs}, _MOVES | _CUTS)
    consumers: dict[str, set[str]] = {}
    for start in starts:
        for name in reached.get(start, ()):
            consumers.setdefault(name, set()).add(start)
    given = _reached(nodes, {end: {start} for start, end in starts.items()}, _MOVES | _JOINS)
    producers = {info.name: given.get(info.name, set()) for info in outputs}

    pairs = [
        (output.name, info)
        for info in inputs
        for output in sorted(outputs, key=lambda output: output.name not in starts.values())
        if info.name in consumers and consumers[info.name] == producers[output.name] and _alike(info, output)
    ]
    inputs_of = Counter(output for output, _ in pairs)
    found: dict[str, str] = {}
    for output, info in pairs:
        if info.name in found or inputs_of[output] > 1:
            continue
        if _comes_back(graph, opset, nodes, {s: starts[s] for s in consumers[info.name]}, info, output):
            found[info.name] = output
    return tuple((output, consumer) for consumer, output in found.items())


def _comes_back(
    graph: GraphProto,
    opset: int,
    nodes: Sequence[NodeProto],
    starts: Mapping[str, str],
    info: TensorInfo,
    output: str,
) -> bool:
    """Whether numbered elements of an input come back at their places, if each GRU keeps its initial state.

    Args:
        graph: the model's graph.
        opset: of its nodes.
        nodes: the nodes that can be run.
        starts: for each of the GRUs, the value of its initial state and that of its last.
        info: the input.
        output: the output.
    """
    if info.shape is None:
        return False
    shape = [size if isinstance(size, int) else 2 + index for index, size in enumerate(info.shape)]
    if not 0 < math.prod(shape) <= _MOST_ELEMENTS:
        return False
    ends = {end: start for start, end in starts.items()}
    bridged: list[NodeProto] = []
    for node in nodes:
        if not is_ours(node):
            bridged.append(node)
        else:
            given = (name for name in node.output if name in ends)
            bridged += [onnx.helper.make_node("Identity", [ends[name]], [name]) for name in given]
    order = needed_nodes(bridged, [output])
    if len(order) > _MOST_NODES:
        return False
    used = {name for node in order for name in node.input}
    kind = onnx.helper.make_tensor_value_info(info.name, TensorProto.DOUBLE, None)
    small = [t for t in graph.initializer if t.name in used and math.prod(t.dims) <= _MOST_ELEMENTS]
    part = onnx.helper.make_graph(order, "states", [kind], [onnx.ValueInfoProto(name=output)], small)
    numbered = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) + 0.5
    results = evaluate(part, opset, {info.name: numbered})
    return results is not None and np.array_equal(results[0], numbered)


def evaluate(graph: GraphProto, opset: int, feeds: Mapping[str, Array]) -> list[Array] | None:
    """The outputs of a graph by onnx's own evaluator; None if it cannot run it, or they are no arrays."""
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            results = list(ReferenceEvaluator(model).run(None, dict(feeds)))
    except Exception:  # an operator that it does not have, or whatever is wrong with the nodes
        return None
    return results if all(isinstance(result, np.ndarray) for result in results) else None


def _reached(
    nodes: Sequence[NodeProto], sources: Mapping[str, set[str]], operators: frozenset[str]
) -> dict[str, set[str]]:
    """For each value, the sources that it is made of, by only these operators."""
    reached = {name: set(made_of) for name, made_of in sources.items()}
    for node in nodes:
        if node.op_type not in operators or not is_onnx(node):
            continue
        data = node.input if node.op_type in _JOINS else node.input[:1]
        found: set[str] = set().union(*(reached.get(name, set()) for name in data))
        if found:
            for name in node.output:
                reached.setdefault(name, set()).update(found)
    return reached


def _alike(info: TensorInfo, output: TensorInfo) -> bool:
    """Whether an input may take an output: sizes that are fixed in both are equal."""
    if info.dtype != output.dtype:
        return False
    if info.shape is None or output.shape is None:
        return True
    return len(info.shape) == len(output.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(info.shape, output.shape, strict=True)
    )
