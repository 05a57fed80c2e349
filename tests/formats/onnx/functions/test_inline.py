"""Functions that a model brings along: inlined if they contain GRUs, rejected if they have no end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto

import onegru
from onegru import FormatError
from tests.support.files.onnx_models import WEIGHTS, X_INFO, X, graph, gru, loaded, model, node, value
from tests.support.models.runtimes import onnxruntime_results

NAMES = ["x", "w", "r", "b"]


def function(
    name: str,
    nodes: Sequence[NodeProto],
    outputs: Sequence[str] = ("z",),
    *,
    opset: int = 14,
    domain: str = "own",
    attributes: Sequence[str] = (),
    defaults: dict[str, Any] | None = None,
) -> FunctionProto:
    """A function of x, w, r and b."""
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("own", 1)]
    protos = [onnx.helper.make_attribute(key, item) for key, item in (defaults or {}).items()]
    return onnx.helper.make_function(
        domain,
        name,
        NAMES,
        list(outputs),
        nodes,
        opsets,
        attributes=list(attributes),
        attribute_protos=protos,
    )


def inner_gru(**attributes: Any) -> NodeProto:
    return gru("x", ["y", "z"], W="w", R="r", bias="b", **attributes)


def call(name: str, output: str = "Z", attributes: Mapping[str, Any] | None = None) -> NodeProto:
    return node(name, ["X", "W", "R", "B"], [output], domain="own", **(attributes or {}))


def inside(name: str, output: str = "z", x: str = "x") -> NodeProto:
    """A call in a function."""
    return node(name, [x, "w", "r", "b"], [output], domain="own")


def of(functions: Sequence[FunctionProto], nodes: Sequence[NodeProto] = (), opset: int = 14) -> ModelProto:
    """A model of these nodes, or of a call of the last function."""
    nodes = nodes or [call(functions[-1].name)]
    return model(graph(nodes, [X_INFO], ["Z"], WEIGHTS), functions=functions, domains={"own": 1}, opset=opset)


def expected(**attributes: Any) -> Any:
    return onegru.gru(X, *WEIGHTS.values(), **attributes)[1]


def test_grus_in_functions_are_run(tmp_path: Path) -> None:
    """Also in functions of functions, and one for each call."""
    first = function("F", [inner_gru(layout=0)])
    second = function("G", [inside("F", "p"), inside("F", "q"), node("Add", ["p", "q"], ["z"])])
    nodes = [call("G", "g"), call("F", "f"), node("Add", ["g", "f"], ["Z"])]
    ours = loaded(tmp_path, of([first, second], nodes))
    assert len(ours.gru_nodes) == 3
    np.testing.assert_allclose(ours.run({"X": X})["Z"], 3 * expected(), rtol=1e-6)
    ours = loaded(tmp_path, of([second, first], nodes))
    assert len(ours.gru_nodes) == 3


def test_what_onnxruntime_refuses_runs_in_functions_too(tmp_path: Path) -> None:
    ours = loaded(
        tmp_path, of([function("F", [inner_gru(layout=1), node("Identity", ["z"], ["out"])], ["out"])])
    )
    np.testing.assert_array_equal(ours.run({"X": X})["Z"], expected(layout=1))


def test_functions_without_grus_are_left_to_onnxruntime(tmp_path: Path) -> None:
    proto = of([function("F", [node("Relu", ["x"], ["z"])])], [call("F", "f"), gru("f", ["Z"], bias="B")])
    ours = loaded(tmp_path, proto)
    assert (len(ours.gru_nodes), ours.other_node_count) == (1, 1)
    got = ours.run({"X": X})["Z"]
    np.testing.assert_allclose(got, onnxruntime_results(proto, {"X": X})["Z"], atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"c": 0.25}])
@pytest.mark.parametrize("default", [{}, {"c": 0.5}])
def test_attributes_of_functions(tmp_path: Path, given: dict[str, float], default: dict[str, float]) -> None:
    """From the call, else from the function's default, else absent; through a second function."""
    clipped = inner_gru()
    clipped.attribute.add(name="clip", ref_attr_name="c", type=onnx.AttributeProto.FLOAT)
    passing = inside("F")
    passing.attribute.add(name="c", ref_attr_name="c", type=onnx.AttributeProto.FLOAT)
    names = [] if default else ["c"]
    functions = [
        function("F", [clipped], attributes=names, defaults=default),
        function("G", [passing], attributes=names, defaults=default),
    ]
    clip = {**default, **given}.get("c")
    for name in ("F", "G"):
        got = loaded(tmp_path, of(functions, [call(name, attributes=given)])).run({"X": X})["Z"]
        np.testing.assert_array_equal(got, expected(clip=clip), err_msg=name)


def test_functions_called_in_bodies(tmp_path: Path) -> None:
    """They are inlined there."""
    body = graph([call("F", "a")], [], ["a"])
    nodes = [node("If", ["yes"], ["Z"], then_branch=body, else_branch=body)]
    proto = of([function("F", [inner_gru()])], nodes)
    proto.graph.input.append(value("yes", "bool", []))
    got = loaded(tmp_path, proto).run({"X": X, "yes": True})["Z"]
    np.testing.assert_array_equal(got, expected())


def refused(folder: Path, proto: ModelProto, seconds: float = 2.0) -> str:
    start = time.process_time()  # not the clock's: the machine may be busy
    with pytest.raises(FormatError) as caught:
        loaded(folder, proto)
    assert time.process_time() - start < seconds
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / 'model.onnx'}: ")
    return message.partition(": ")[2]


def leaf(holds_gru: bool) -> NodeProto:
    return inner_gru() if holds_gru else node("Relu", ["x"], ["z"])


@pytest.mark.parametrize("holds_gru", [False, True])
def test_functions_that_call_themselves(tmp_path: Path, holds_gru: bool) -> None:
    base = leaf(holds_gru)
    base.output[-1] = "n"
    own = function("F", [base, inside("F")])
    assert refused(tmp_path, of([own])) == "function 'F' calls itself"
    pair = [function("F", [base, inside("G")]), function("G", [inside("F")])]
    assert refused(tmp_path, of(pair)) == "function 'F' calls itself"
    body = graph([inside("F", "a")], [], ["a"])
    branch = node("If", ["x"], ["z"], then_branch=body, else_branch=body)
    assert refused(tmp_path, of([function("F", [base, branch])])) == "function 'F' calls itself"
    unused = [own, function("Used", [leaf(holds_gru)])]
    assert refused(tmp_path, of(unused)) == "function 'F' calls itself", "even if nothing calls it"


@pytest.mark.parametrize("holds_gru", [False, True])
@pytest.mark.parametrize("depth", [18, 60, 99])
def test_functions_that_inline_without_bounds(tmp_path: Path, holds_gru: bool, depth: int) -> None:
    """Each calls the one before it twice."""
    functions = [function("F0", [leaf(holds_gru)])]
    for k in range(1, depth):
        twice = [inside(f"F{k - 1}", "p"), inside(f"F{k - 1}", "q"), node("Add", ["p", "q"], ["z"])]
        functions.append(function(f"F{k}", twice))
    assert refused(tmp_path, of(functions)) == "inlined functions have more than 100000 nodes"
    last = call(functions[-1].name)
    assert refused(tmp_path, of(functions[::-1], [last])) == "inlined functions have more than 100000 nodes"


@pytest.mark.parametrize("holds_gru", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_functions_nested_too_deep(tmp_path: Path, holds_gru: bool, backwards: bool) -> None:
    functions = [function("F0", [leaf(holds_gru)])]
    functions += [function(f"F{k}", [inside(f"F{k - 1}")]) for k in range(1, 3000)]
    last = call(functions[-1].name)
    ordered = functions[::-1] if backwards else functions
    assert refused(tmp_path, of(ordered, [last])) == "function calls are nested more than 100 levels deep"


def test_functions_nested_deep(tmp_path: Path) -> None:
    functions = [function("F0", [leaf(True)])]
    functions += [function(f"F{k}", [inside(f"F{k - 1}")]) for k in range(1, 100)]
    np.testing.assert_array_equal(loaded(tmp_path, of(functions)).run({"X": X})["Z"], expected())


def test_functions_of_another_opset(tmp_path: Path) -> None:
    """Where an operator changed, they cannot be put into the graph, and must not be run unseen."""
    for opset in (13, 22, 99, 0):
        message = refused(tmp_path, of([function("F", [inner_gru()], opset=opset)]))
        assert message == (
            "function 'F' contains a GRU and imports other opsets than the model; must import the same "
            "opsets, or contain only operators that are equal in both"
        )
    axes = gru("x", ["y", "h"], W="w", R="r", bias="b"), node("ReduceMax", ["h"], ["z"], axes=[0])
    body = graph([node("ReduceMax", ["w"], ["v"], axes=[0])], [], ["v"])
    branch = node("If", ["x"], ["u"], then_branch=body, else_branch=body)
    for nodes in (axes, (inner_gru(), branch), (inner_gru(), node("Unknown", ["x"], ["u"]))):
        message = refused(tmp_path, of([function("F", nodes, opset=17)], opset=18))
        assert message.startswith("function 'F' contains a GRU and imports other opsets"), nodes[-1]
    negated = [inside("F", "n"), node("Neg", ["n"], ["z"])]
    inner, outer = function("F", [inner_gru()]), function("G", negated, opset=12)
    assert "function 'G' contains a GRU and imports other" in refused(tmp_path, of([inner, outer]))
    inner, outer = function("F", [inner_gru()], opset=13), function("G", [inside("F")])
    assert "function 'F' contains a GRU and imports other" in refused(
        tmp_path, of([outer, inner], [call("G")])
    )
    other = [function("F", [inner_gru()]), function("G", [node("ReduceMax", ["x"], ["z"])], opset=13)]
    calls = [call("F", "f"), call("G", "g"), node("Add", ["f", "g"], ["Z"])]
    assert len(loaded(tmp_path, of(other, calls)).gru_nodes) == 1, "one without a GRU may be of any opset"


@pytest.mark.parametrize(("old", "new"), [(14, 17), (18, 14), (22, 23)])
def test_functions_of_another_opset_that_says_the_same(tmp_path: Path, old: int, new: int) -> None:
    inner = function("F", [inner_gru()], opset=old)
    outer = function("G", [inside("F", "n"), node("Neg", ["n"], ["z"])], opset=old)
    for functions in ([inner, outer], [outer, inner]):
        ours = loaded(tmp_path, of(functions, [call("G")], opset=new))
        np.testing.assert_array_equal(ours.run({"X": X})["Z"], -expected())
    assert onegru.inspect(tmp_path / "model.onnx").grus
    onegru.rewrite(tmp_path / "model.onnx", tmp_path / "new.onnx", decompose=True)


def test_functions_that_are_defined_twice(tmp_path: Path) -> None:
    """One reader might take the first, another the last."""
    functions = [function("F", [leaf(False)]), function("F", [leaf(True)])]
    assert refused(tmp_path, of(functions)) == "function 'F' is defined twice"


def test_functions_that_take_the_operators_place(tmp_path: Path) -> None:
    for domain in ("", "ai.onnx"):
        own = function("GRU", [node("Relu", ["x"], ["z"])], domain=domain)
        proto = of([own], [gru("X", ["Z"])])
        assert (
            refused(tmp_path, proto)
            == "function 'GRU' has the name of ONNX's operator; must have another name"
        )


def test_functions_that_cannot_be_inlined(tmp_path: Path) -> None:
    """A call with more inputs than the function has."""
    bad = node("F", ["X", "W", "R", "B", "X", "X"], ["Z"], domain="own")
    assert "functions with GRUs cannot be inlined (" in refused(
        tmp_path, of([function("F", [inner_gru()])], [bad])
    )
