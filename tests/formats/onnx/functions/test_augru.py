"""AUGRU nodes in ONNX models, and the functions by which runtimes without onegru run them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from onnx.reference import ReferenceEvaluator

import onegru
from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.formats.onnx.functions.augru_body import OPTIONAL, augru_function
from tests.support.cases import Case, augru_cases, normal, onnx_model
from tests.support.comparison import same_bits
from tests.support.files import onnx_models as m
from tests.support.files.onnx_models import augru_node
from tests.support.oracle import onnx_gru
from tests.support.suite.selection import examples

DIRECTIONS = ("forward", "reverse", "bidirectional")


def case_of(
    attributes: Mapping[str, Any], given: Any = OPTIONAL, opset: int = 22, dtype: str = "float32"
) -> Case:
    """T = 4, B = 3, I = 2, H = 5."""
    T, B, I, H = 4, 3, 2, 5
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rng, kind = np.random.default_rng(0), np.dtype(dtype)
    batch_first = attributes.get("layout") == 1
    inputs: dict[str, Any] = {
        "X": normal(rng, kind, *((B, T) if batch_first else (T, B)), I),
        "W": normal(rng, kind, D, 3 * H, I),
        "R": normal(rng, kind, D, 3 * H, H),
        "B": normal(rng, kind, D, 6 * H),
        "sequence_lens": np.array([4, 0, 2], np.int32),
        "initial_h": normal(rng, kind, *((B, D) if batch_first else (D, B)), H),
        "A": normal(rng, kind, *((B, T) if batch_first else (T, B)), 1),
    }
    inputs |= {name: None for name in OPTIONAL if name not in given}
    return Case("augru", inputs, attributes, opset)


def plain(model: onnx.ModelProto) -> Any:
    """A session of ONNX Runtime without onegru."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def fed(case: Case, opened: Any) -> dict[str, Any]:
    used = {info.name for info in opened.get_inputs()}
    return {name: array for name, array in case.inputs.items() if array is not None and name in used}


def assert_near(got: Any, case: Case, factor: float = 1.0) -> None:
    """Seen at most over 2000 cases of float32: 4e-6 of max(1, |Y|), which Affine makes large."""
    arguments: dict[str, Any] = {name: array for name, array in case.inputs.items() if array is not None}
    for have, want in zip(got, onnx_gru(**arguments, **case.attributes), strict=False):
        assert have.shape == want.shape
        bound = factor * 2e-5 * max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(have, want, rtol=0, atol=bound)


# --- the function


@pytest.mark.parametrize("opset", [15, 18, 22])
@pytest.mark.parametrize(("direction", "layout", "after"), itertools.product(DIRECTIONS, (0, 1), (0, 1)))
def test_onnxruntime_runs_the_function(opset: int, direction: str, layout: int, after: int) -> None:
    attributes = {"direction": direction, "layout": layout, "linear_before_reset": after}
    for size in range(5):
        for present in itertools.combinations(OPTIONAL, size):
            case = case_of(attributes, present, opset)
            model = onnx_model(case)
            if "Y_h" not in present:
                del model.graph.node[0].output[1:], model.graph.output[1:]
                add_augru_functions(model)
            for output, rank in zip(model.graph.output, (4, 3), strict=False):
                output.CopyFrom(m.value(output.name, shape=[None] * rank))
            onnx.checker.check_model(model, full_check=True)
            opened = plain(model)
            assert_near(opened.run(None, fed(case, opened)), case)


@examples(150)
@given(augru_cases((15, 18, 22)))
def test_the_function_is_the_operator(case: Case) -> None:
    functions = map(str.lower, case.attributes.get("activations", ()))
    if case.inputs["X"] is None or not case.inputs["X"].size or "thresholdedrelu" in functions:
        return  # ONNX Runtime's Scan takes no empty sequences; at a function's jumps, nothing is comparable
    inputs = {
        name: array if array is None or name == "sequence_lens" else array.astype(np.float32)
        for name, array in case.inputs.items()
    }
    case = replace(case, inputs=inputs)  # it has not all activations in float64, and none in bfloat16
    opened = plain(onnx_model(case, constant_weights=False))
    got = opened.run(None, fed(case, opened))
    if all(np.abs(array).max(initial=0) < 1e4 for array in got):
        assert_near(got, case, 10)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("layout", [0, 1])
def test_the_function_serves_other_types(dtype: str, layout: int) -> None:
    case = case_of({"layout": layout, "clip": 0.75}, dtype=dtype)
    opened = plain(onnx_model(case))
    got = opened.run(None, fed(case, opened))
    assert all(array.dtype == dtype for array in got)
    assert_near(got, case, 200 if dtype == "float16" else 1e-8)


def test_onnx_runs_the_function() -> None:
    case = case_of({})
    evaluator = ReferenceEvaluator(onnx_model(case))
    feeds = {name: case.inputs[name] for name in evaluator.input_names}
    assert_near(evaluator.run(None, feeds), case)


def test_shapes_are_inferred_by_the_function() -> None:
    model = onnx_model(case_of({}))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    ranks = [len(output.type.tensor_type.shape.dim) for output in inferred.graph.output]
    assert ranks == [4, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"opset": 14}, "opset: 14; must be at least 15 for AUGRU-1"),
        ({"given": ["Z"]}, "given: 'Z'; must be one of B, sequence_lens, initial_h"),
        ({"attributes": {"layout": 2}}, "layout: 2; must be 0 or 1"),
        ({"attributes": {"activations": ["Cube", "Tanh"]}}, "activations: unknown function 'Cube'; must be"),
    ],
)
def test_functions_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(onegru.SpecError) as refused:
        augru_function(**{"attributes": {}, "opset": 17, **arguments})
    assert str(refused.value).startswith(message)


# --- nodes and models

INPUTS = {"X": "X", "W": "W", "R": "R", "B": "B", "A": "A"}
VALUES = [m.value("X", shape=["T", m.B, m.I]), m.value("A", shape=["T", m.B, 1])]
A = m.numbers(7, m.T, m.B, 1)


def node(name: str = "attention", outputs: Any = None, **attributes: Any) -> onnx.NodeProto:
    return augru_node(INPUTS, outputs or {"Y": "Y", "Y_h": "Y_h"}, attributes, name)


def model_of(nodes: Any, outputs: Any = ("Y", "Y_h"), **arguments: Any) -> onnx.ModelProto:
    made = m.model(m.graph(nodes, VALUES, outputs, m.WEIGHTS), **{"opset": 17, "ir": 8, **arguments})
    add_augru_functions(made)
    return made


def expected(**attributes: Any) -> list[Any]:
    return list(onnx_gru(m.X, **m.WEIGHTS, A=A, **attributes))


def test_a_model_gets_what_its_nodes_need() -> None:
    proto = m.model(m.graph([node()], VALUES, ["Y"], m.WEIGHTS), opset=17, ir=7)
    assert add_augru_functions(proto)
    assert [(item.domain, item.version) for item in proto.opset_import] == [("", 17), ("onegru", 1)]
    assert proto.ir_version == 8
    assert [function.domain for function in proto.functions] == ["onegru"]
    kept = proto.SerializeToString()
    assert not add_augru_functions(proto)
    assert proto.SerializeToString() == kept
    del proto.graph.node[:]
    assert add_augru_functions(proto)
    assert not proto.functions


def test_nodes_that_differ_have_functions_that_differ() -> None:
    turned = node("turned", {"Y": "Z", "Y_h": "Z_h"}, direction="reverse")
    again = node("again", {"Y": "V", "Y_h": "V_h"})
    outputs = [m.value(name, shape=[1, m.B, m.H]) for name in ("Y_h", "Z_h", "V_h")]
    proto = model_of([node(), turned, again], outputs)
    assert [item.domain for item in proto.graph.node] == ["onegru", "onegru.2", "onegru"]
    assert [item.domain for item in proto.functions] == ["onegru", "onegru.2"]
    assert [item.domain for item in proto.opset_import] == ["", "onegru", "onegru.2"]
    onnx.checker.check_model(proto)
    got = plain(proto).run(None, {"X": m.X, "A": A})
    wanted = [expected()[1], expected(direction="reverse")[1], expected()[1]]
    for have, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=2e-6)


def test_there_are_eight_kinds_at_most() -> None:
    kinds = [node(f"n{number}", {"Y": f"Y{number}"}, clip=1.0 + number) for number in range(9)]
    proto = m.model(m.graph(kinds[:8], VALUES, ["Y7"], m.WEIGHTS), opset=17, ir=8)
    add_augru_functions(proto)
    wanted = onegru.GRU(**m.WEIGHTS, attention=True, clip=8.0)(m.X, attention=A[..., 0])[0]
    feeds = {"X": m.X, "A": A}
    assert same_bits(onegru.InferenceSession(proto.SerializeToString()).run(None, feeds)[0], wanted)
    np.testing.assert_allclose(plain(proto).run(None, feeds)[0], wanted, rtol=0, atol=1e-6)
    proto.graph.node.append(kinds[8])
    with pytest.raises(onegru.FormatError, match="AUGRU node 'n8': needs a separate function"):
        add_augru_functions(proto)


# --- loaded


def cos(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a node that ONNX Runtime runs."""
    model.graph.node.append(m.node("Cos", ["Y"], ["cos"]))
    model.graph.output.append(m.value("cos"))
    return model


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("attributes", [{}, {"direction": "reverse", "linear_before_reset": 1, "clip": 0.5}])
def test_models_are_loaded(whole: bool, engine: Any, attributes: Any, tmp_path: Path) -> None:
    proto = model_of([node(**attributes)])
    path = m.save(tmp_path, cos(proto) if whole else proto)
    model = onegru.load(path, engine=engine)
    (gru,) = model.gru_nodes
    assert (gru.name, str(gru.operator)) == ("attention", "AUGRU-1")
    assert gru.layer is not None
    assert gru.layer.spec.attention
    layer = onegru.GRU(**m.WEIGHTS, attention=True, engine=engine, **attributes)
    results = model.run({"X": m.X, "A": A})
    for name, want in zip(("Y", "Y_h"), layer(m.X, attention=A[..., 0]), strict=True):
        assert same_bits(results[name], want)
    (report,) = onegru.inspect(path).grus
    assert (report.operator, report.attention) == ("AUGRU-1", "openvino")


@pytest.mark.parametrize("functions", [True, False])
def test_what_the_file_says_of_the_operator_does_not_count(functions: bool, tmp_path: Path) -> None:
    proto = cos(model_of([node()]))
    (own,) = proto.functions
    if functions:
        wrong = m.node("Identity", ["initial_h"], ["Y_h"])
        del own.node[:]
        own.node.extend([wrong, m.node("Identity", ["X"], ["Y"])])
    else:
        del proto.functions[:]
    got = m.loaded(tmp_path, proto).run({"X": m.X, "A": A})
    np.testing.assert_allclose(got["Y_h"], expected()[1], rtol=0, atol=1e-6)


def test_a_node_in_a_function_and_one_in_a_body(tmp_path: Path) -> None:
    inner = onnx.helper.make_function(
        "own",
        "Attend",
        ["X", "A", "W", "R", "B"],
        ["Y"],
        [node("inner", {"Y": "Y"}, linear_before_reset=1)],
        [onnx.helper.make_opsetid("", 17)],
    )
    call = m.node("Attend", ["X", "A", "W", "R", "B"], ["first"], domain="own")
    body = onnx.helper.make_graph([node("body", {"Y_h": "last"})], "body", [], [m.value("last")])
    other = onnx.helper.make_graph(
        [augru_node(INPUTS, {"Y_h": "other"}, {"direction": "reverse"}, "other")],
        "other",
        [],
        [m.value("other")],
    )
    chosen = m.node("If", ["yes"], ["second"], then_branch=body, else_branch=other)
    outputs = [m.value("first", shape=["T", 1, m.B, m.H]), m.value("second", shape=[1, m.B, m.H])]
    graph = m.graph([call, chosen], [*VALUES, m.value("yes", "bool", [])], outputs, m.WEIGHTS)
    proto = m.model(graph, opset=17, ir=8, functions=[inner], domains={"own": 1})
    add_augru_functions(proto)
    onnx.checker.check_model(proto)
    model = m.loaded(tmp_path, proto)
    assert {gru.name.split("__")[0] for gru in model.gru_nodes} == {"inner", "body", "other"}
    for yes in (True, False):
        feeds = {"X": m.X, "A": A, "yes": np.array(yes)}
        wanted = [expected(linear_before_reset=1)[0], expected(direction="forward" if yes else "reverse")[1]]
        for got in (list(model.run(feeds).values()), plain(proto).run(None, feeds)):
            for have, want in zip(got, wanted, strict=True):
                np.testing.assert_allclose(have, want, rtol=0, atol=2e-6)


def test_streams_find_the_state(tmp_path: Path) -> None:
    made = augru_node(INPUTS | {"initial_h": "h"}, {"Y": "Y", "Y_h": "h_out"}, {}, "attention")
    values = [*VALUES, m.value("h", shape=[1, m.B, m.H])]
    outputs: list[Any] = ["Y", m.value("h_out", shape=[1, m.B, m.H])]
    proto = m.model(m.graph([made], values, outputs, m.WEIGHTS), opset=17, ir=8)
    add_augru_functions(proto)
    for model in (m.loaded(tmp_path, proto), m.loaded(tmp_path, cos(proto))):
        stream = model.stream()
        parts = [stream.step({"X": m.X[t : t + 1], "A": A[t : t + 1]})["Y"] for t in range(m.T)]
        np.testing.assert_allclose(np.concatenate(parts), expected()[0], rtol=0, atol=1e-6)


def test_verify_holds_runtimes_to_the_function(tmp_path: Path) -> None:
    result = onegru.verify(m.save(tmp_path, cos(model_of([node()]))), dims={"T": 4})
    found = {runtime.runtime: runtime.status for runtime in result.runtimes}
    assert {found[name] for name in ("onegru", "onnxruntime", "onnx")} == {"agrees"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": ["X", "W", "R"]}, "A: missing; AUGRU-1 requires it"),
        ({"input": [*"XWRB", "", "", "A", "A"]}, "8 inputs; must be at most 7"),
        ({"attributes": {"clip": -1.0}}, "clip: -1; must be > 0"),
        ({"attributes": {"output_sequence": 1}}, "output_sequence: not an attribute of AUGRU-1; must be one"),
        ({"attributes": {"direction": "foward"}}, "direction: 'foward'; must be 'forward', 'reverse' or"),
        ({"version": 2}, "version 2 of its domain; must be 1"),
        (
            {"weights": {"R": m.numbers(1, 1, 9, 4)}},
            "R: shape [1, 9, 4]; must be [num_directions, 3*hidden_size",
        ),
        ({"opset": 14}, "opset: 14; must be at least 15 for AUGRU-1"),
    ],
)
def test_what_is_illegal_is_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = node()
    if "input" in change:
        del made.input[:]
        made.input.extend(change["input"])
    for name, value in change.get("attributes", {}).items():
        made.attribute.append(onnx.helper.make_attribute(name, value))
    graph = m.graph([made], VALUES, ["Y"], m.WEIGHTS | change.get("weights", {}))
    versions = {"onegru": change.get("version", 1)}
    proto = cos(m.model(graph, opset=change.get("opset", 17), ir=8, domains=versions))
    with pytest.raises(onegru.SpecError) as refused:
        m.loaded(tmp_path, proto)
    assert f"model.onnx: AUGRU node 'attention': {message}" in str(refused.value)
    assert "\n" not in str(refused.value)
