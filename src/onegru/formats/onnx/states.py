"""Which inputs of an ONNX model are states, and which outputs are what becomes of them.

An exported streaming model has the initial state of its GRUs as an input and their last state as an output.
Between the two and the GRU nodes lie only nodes that move, cut or join arrays. That what goes out as the
state of a GRU comes back to the same GRU, number for number, is proved by sending numbered elements through.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto

from onegru.formats.graph import GruStep, TensorInfo
from onegru.formats.onnx.read import is_onnx

_MOVES = {"Identity", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Flatten", "Cast"}
_CUTS = {"Slice", "Split", "Gather"}
_JOINS = {"Concat"}

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
    each element of the output, had the GRUs given back their initial states, would be the input's at its
    place. Of several such outputs, which hold the same numbers, it is the one that a GRU node gives itself,
    or else the first. A state that two GRU nodes start from, and what cannot be proved, is left out.

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
        and _is_carried(gru)
        and nodes_of_start[gru.inputs["initial_h"]] == 1
    }
    if not starts:
        return ()
    reached = _reached(nodes, {info.name: {info.name} for info in inputs}, _MOVES | _CUTS)
    takers: dict[str, set[str]] = {}
    for start in starts:
        for name in reached.get(start, ()):
            takers.setdefault(name, set()).add(start)
    given = _reached(nodes, {end: {start} for start, end in starts.items()}, _MOVES | _JOINS)
    givers = {info.name: given.get(info.name, set()) for info in outputs}

    pairs = [
        (output.name, info)
        for info in inputs
        for output in sorted(outputs, key=lambda output: output.name not in starts.values())
        if info.name in takers and takers[info.name] == givers[output.name] and _alike(info, output)
    ]
    inputs_of = Counter(output for output, _ in pairs)
    found: dict[str, str] = {}
    for output, info in pairs:
        if info.name in found or inputs_of[output] > 1:
            continue
        if _comes_back(graph, opset, nodes, {s: starts[s] for s in takers[info.name]}, info, output):
            found[info.name] = output
    return tuple((output, taker) for taker, output in found.items())


def _is_carried(gru: GruStep) -> bool:
    return "initial_h" in gru.inputs and "Y_h" in gru.outputs


def _comes_back(
    graph: GraphProto,
    opset: int,
    nodes: Sequence[NodeProto],
    starts: Mapping[str, str],
    info: TensorInfo,
    output: str,
) -> bool:
    """Whether numbered elements of an input come back at their places, if each GRU gives its initial state.

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
    bridges = [onnx.helper.make_node("Identity", [start], [end]) for start, end in starts.items()]
    ends = set(starts.values())
    others = [node for node in nodes if not ends & set(node.output) and node.op_type != "GRU"]
    order = _needed(others, bridges, output)
    if order is None:
        return False
    used = {name for node in order for name in node.input}
    kind = onnx.helper.make_tensor_value_info(info.name, TensorProto.DOUBLE, None)
    small = [t for t in graph.initializer if t.name in used and math.prod(t.dims) <= _MOST_ELEMENTS]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(order, "states", [kind], [onnx.ValueInfoProto(name=output)], small),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    numbered = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) + 0.5
    try:
        from onnx.reference import ReferenceEvaluator

        (back,) = ReferenceEvaluator(model).run(None, {info.name: numbered})
    except Exception:  # whatever it cannot do, or the nodes do not fit these sizes: nothing is proved
        return False
    return isinstance(back, np.ndarray) and np.array_equal(back, numbered)


def _needed(others: Sequence[NodeProto], bridges: Sequence[NodeProto], output: str) -> list[NodeProto] | None:
    """The nodes that an output is made of, in an order in which they run; None if they are too many."""
    givers = {name: node for node in (*others, *bridges) for name in node.output if name}
    order: list[NodeProto] = []
    seen: set[int] = set()
    stack: list[tuple[NodeProto, bool]] = [(givers[output], False)] if output in givers else []
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > _MOST_NODES:
            return None
        stack.append((node, True))
        stack += [(givers[name], False) for name in node.input if name in givers]
    return order


def _reached(
    nodes: Sequence[NodeProto], sources: Mapping[str, set[str]], operators: set[str]
) -> dict[str, set[str]]:
    """For each value, the sources that it is made of, by these operators alone."""
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
    """Whether an output may be what an input takes: sizes that are both fixed are equal."""
    if info.dtype != output.dtype:
        return False
    if info.shape is None or output.shape is None:
        return True
    return len(info.shape) == len(output.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(info.shape, output.shape, strict=True)
    )
