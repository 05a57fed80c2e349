"""Which inputs of an ONNX model are states, and which outputs are what becomes of them.

An exported streaming model has the initial state of its GRUs as an input and their last state as an output.
Between the two and the GRU nodes lie only nodes that move, cut or join arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import NodeProto

from onegru.files.graph import GruNode, TensorInfo

__all__ = ["find_states"]

_MOVES = {"Identity", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Flatten", "Cast"}
_CUTS = {"Slice", "Split", "Gather"}
_JOINS = {"Concat"}


def find_states(
    nodes: Sequence[NodeProto],
    grus: Iterable[GruNode],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
) -> tuple[tuple[str, str], ...]:
    """Pairs of an output and the input that takes it in the next run.

    An input and an output are a pair if they reach the same GRU nodes, and are of one type and shape. What
    could be paired in two ways is left out.

    Args:
        nodes: the model's nodes, in an order in which they can run.
        grus: its GRU nodes.
        inputs: what the model takes.
        outputs: what it gives.
    """
    forward = _reached(nodes, {info.name: {info.name} for info in inputs}, _MOVES | _CUTS)
    takers: dict[str, set[int]] = {}
    sources: dict[str, set[str]] = {}
    for index, gru in enumerate(grus):
        for name in forward.get(gru.inputs.get("initial_h", ""), ()):
            takers.setdefault(name, set()).add(index)
        if "Y_h" in gru.outputs:
            sources[gru.outputs["Y_h"]] = {str(index)}
    given = _reached(nodes, sources, _MOVES | _JOINS)
    givers = {info.name: {int(index) for index in given.get(info.name, ())} for info in outputs}

    pairs = [
        (output.name, info.name)
        for info in inputs
        for output in outputs
        if info.name in takers and takers[info.name] == givers[output.name] and _alike(info, output)
    ]
    return tuple(
        pair
        for pair in pairs
        if sum(pair[0] == other[0] for other in pairs) == sum(pair[1] == other[1] for other in pairs) == 1
    )


def _reached(
    nodes: Sequence[NodeProto], sources: Mapping[str, set[str]], operators: set[str]
) -> dict[str, set[str]]:
    """For each value, the sources that it is made of, by these operators alone."""
    reached = {name: set(made_of) for name, made_of in sources.items()}
    for node in nodes:
        if node.op_type not in operators or node.domain not in ("", "ai.onnx"):
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
