"""The table of operators that only move elements, held against what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onegru.core.dtypes import Array
from onegru.dataflow.table import Elements, evaluate, movers, operator_of

X = np.arange(1.0, 7.0, dtype=np.float32).reshape(1, 2, 3)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


#: Attributes, and inputs after the first, with which each shows what it does.
CALLS: dict[str, tuple[dict[str, Any], list[Array]]] = {
    "Identity": ({}, []),
    "Squeeze": ({}, [ints(0)]),
    "Unsqueeze": ({}, [ints(1)]),
    "Reshape": ({}, [ints(3, 2)]),
    "Flatten": ({"axis": 1}, []),
    "Transpose": ({"perm": [2, 0, 1]}, []),
    "Slice": ({}, [ints(1), ints(3), ints(2)]),
    "Split": ({"axis": 2}, [ints(1, 2)]),
    "Gather": ({"axis": 2}, [ints(0, 2)]),
    "Concat": ({"axis": 1}, [X + 10]),
    "Expand": ({}, [ints(4, 2, 3)]),
    "Tile": ({}, [ints(1, 2, 1)]),
}


def outputs(kind: str) -> list[Array]:
    """What onnx's own evaluator gives."""
    attributes, others = CALLS[kind]
    names = [f"in{index}" for index in range(1 + len(others))]
    count = 2 if kind == "Split" else 1
    node = onnx.helper.make_node(kind, names, [f"out{index}" for index in range(count)], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, [X, *others], strict=True)
        ],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in node.output],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    evaluator = ReferenceEvaluator(model)
    return list(evaluator.run(None, dict(zip(names, [X, *others], strict=True))))


ALL = Elements.KEPT | Elements.PERMUTED | Elements.CUT | Elements.JOINED | Elements.REPEATED


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_each_does_with_elements_what_the_table_says(kind: str) -> None:
    found = outputs(kind)
    whole = found[0].ravel().tolist()
    given = X.ravel().tolist()
    (what,) = (elements for elements in Elements if kind in movers(elements))
    match what:
        case Elements.KEPT:
            assert whole == given
        case Elements.PERMUTED:
            assert whole != given and sorted(whole) == given
        case Elements.CUT:
            assert all(set(part.ravel().tolist()) < set(given) and part.size < X.size for part in found)
        case Elements.JOINED:
            assert sorted(whole) == sorted(given + (X + 10).ravel().tolist())
        case Elements.REPEATED:
            assert set(whole) == set(given) and len(whole) > len(given)
    if operator_of(kind).computes:  # the same by the flow's own rule
        attributes, others = CALLS[kind]
        own = evaluate(kind, attributes, [X, *others], len(found))
        for array, right in zip(own, found, strict=True):
            np.testing.assert_array_equal(array, right)


def test_every_mover_is_in_the_table_once() -> None:
    kinds = [kind for elements in Elements for kind in movers(elements)]
    assert len(kinds) == len(set(kinds)) and set(kinds) == movers(ALL)
    assert {kind for kind in kinds if "::" not in kind} == set(CALLS)
    assert "Cast" not in kinds and "Cast" in movers(Elements.KEPT, casts=True)
