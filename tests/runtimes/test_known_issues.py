"""The table of known faults against the runtimes themselves, on a compact set of single-node files.

What a rule says is checked only on the version it was measured on; another one is skipped.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onegru.formats.onnx.functions.augru import add_augru_functions
from onegru.runtimes.known_issues import MEASURED, RULES, Facts, verdicts
from tests.support.comparison import Arrays, is_right
from tests.support.oracle import gru_cell, gru_sequence, onnx_gru

OPEN: dict[str, Any] = {"fixed": False, "lengths": (4, 2, 3)}


@dataclass(frozen=True)
class Case:
    """One ONNX GRU node of T = 4, B = 3 (4 where square), I = 2, H = 3."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 14
    dtype: str = "float32"
    lengths: tuple[int, ...] | None = None
    present: tuple[str, ...] = ("B", "Y", "Y_h")
    hidden_size: bool = True
    fixed: bool = True
    constant: bool = True
    square: bool = False
    scale: float = 1.0
    attention: bool = False
    unharmed: tuple[str, ...] = ()
    """Runtimes that have a rule for the node whose condition, on the arrays, does not hold here."""


@dataclass(frozen=True)
class Layer:
    """One OpenVINO layer of an IR file, with the same sizes."""

    name: str
    operator: str
    data: Mapping[str, str]
    dtype: str = "float32"
    bias: bool = True
    lengths: tuple[int, ...] = (4, 4, 4)
    fixed: bool = True
    constant: bool = True
    unharmed: tuple[str, ...] = ()


def activations(*names: str, **attributes: Any) -> dict[str, Any]:
    return {"activations": list(names), **attributes}


CASES = [
    *(Case(f"version-{version}", version=version) for version in (1, 3, 7, 14, 22)),
    Case("foward-by-default", version=1, present=("B", "Y_h")),
    Case("foward-spelled", {"direction": "foward"}, version=1),
    Case("output-sequence", {"output_sequence": 1}, version=3),
    *(Case(dtype, dtype=dtype) for dtype in ("float16", "float64")),
    *(Case(f"{dtype}-22", dtype=dtype, version=22) for dtype in ("float16", "bfloat16", "float64")),
    Case("reset-after", {"linear_before_reset": 1}),
    Case("reverse", {"direction": "reverse"}),
    Case("bidirectional", {"direction": "bidirectional"}, present=("initial_h", "Y")),
    Case("no-hidden-size", hidden_size=False),
    Case("weights-computed", constant=False),
    Case("open-shape", fixed=False),
    Case("layout-0", {"layout": 0}),
    Case("layout-1", {"layout": 1}),
    Case("layout-1-state", {"layout": 1}, present=("B", "initial_h", "Y")),
    Case("layout-1-lengths", {"layout": 1}, lengths=(4, 4, 4, 4), square=True, unharmed=("onnx",)),
    Case("clip", {"clip": 0.25}),
    Case("clip-unreached", {"clip": 1e6}, unharmed=("onnx",)),
    Case("lengths", lengths=(4, 2, 3)),
    Case(
        "lengths-zero",
        {"direction": "bidirectional"},
        lengths=(0, 4, 1),
        present=("B", "initial_h", "Y", "Y_h"),
    ),
    Case("lengths-full", lengths=(4, 4, 4), unharmed=("onnx",)),
    Case("open-lengths", **OPEN),
    Case("open-lengths-bidirectional", {"direction": "bidirectional"}, **OPEN),
    Case(
        "open-lengths-spelled-twice",
        activations("Sigmoid", "Tanh", "Sigmoid", "Tanh", direction="bidirectional"),
        **OPEN,
    ),
    Case("open-lengths-full", fixed=False, lengths=(4, 4, 4), unharmed=("onnx", "openvino")),
    Case("open-lengths-computed", constant=False, **OPEN),
    Case("open-lengths-clip", {"clip": 0.25}, **OPEN),
    Case("open-lengths-relu", activations("Sigmoid", "Relu"), **OPEN),
    Case("default-written", activations("sigmoid", "TANH")),
    Case("left-over", activations("Sigmoid", "Tanh", activation_alpha=[0.5], activation_beta=[0.5])),
    Case("relu", activations("Relu", "tanh")),
    Case("other-defaults", activations("HardSigmoid", "Elu")),
    Case("leaky-default", activations("Sigmoid", "LeakyRelu")),
    Case("softsign", activations("Sigmoid", "Softsign")),
    Case("affine", activations("Sigmoid", "Affine", activation_alpha=[0.5])),
    Case("affine-bare", activations("Sigmoid", "Affine", activation_beta=[0.5])),
    Case("affine-short", activations("LeakyRelu", "Affine", activation_alpha=[0.3])),
    Case("thresholded", activations("Sigmoid", "ThresholdedRelu", activation_alpha=[0.3])),
    Case("thresholded-bare", activations("Sigmoid", "ThresholdedRelu")),
    Case("scaled", activations("Sigmoid", "ScaledTanh", activation_alpha=[0.5], activation_beta=[0.7])),
    Case("softplus", activations("Sigmoid", "Softplus"), unharmed=("onnxruntime",)),
    Case("softplus-large", activations("Sigmoid", "Softplus"), scale=200.0),
    Case("softplus-clip", activations("Sigmoid", "Softplus", clip=80.0), scale=200.0),
    Case("two-pairs", activations("Sigmoid", "Tanh", "Tanh", "Relu", direction="bidirectional")),
    Case("second-pair", activations("Sigmoid", "Tanh", "Elu", "Tanh", direction="bidirectional")),
    Case("first-pair", activations("Elu", "Tanh", "Sigmoid", "Tanh", direction="bidirectional")),
    Case("equal-pairs", activations("Relu", "Tanh", "Relu", "Tanh", direction="bidirectional")),
    Case("attention", version=22, attention=True, lengths=(4, 2, 0)),
    Case("attention-layout", {"layout": 1, "clip": 0.5}, version=22, attention=True),
    Case("attention-reverse", {"direction": "reverse"}, version=22, attention=True),
    Case("attention-bfloat16", version=22, attention=True, dtype="bfloat16"),
]

SIZE = {"hidden_size": "3"}
SEQUENCE = {**SIZE, "activations": "sigmoid, tanh"}
LAYERS = [
    Layer("cell", "GRUCell", {"hidden_size": "3", "clip": "0"}),
    Layer("cell-no-bias", "GRUCell", SIZE, bias=False),
    Layer("cell-reset-after", "GRUCell", {**SIZE, "linear_before_reset": "true"}),
    Layer("cell-clip", "GRUCell", {**SIZE, "clip": "0.25", "activations": "relu, sigmoid"}),
    Layer("cell-float64", "GRUCell", SIZE, dtype="float64"),
    Layer("cell-float16", "GRUCell", SIZE, dtype="float16"),
    Layer("sequence", "GRUSequence", SEQUENCE, lengths=(4, 0, 3)),
    Layer("sequence-no-activations", "GRUSequence", SIZE),
    Layer("sequence-reverse", "GRUSequence", {**SEQUENCE, "direction": "reverse"}, lengths=(4, 2, 3)),
    Layer("sequence-open", "GRUSequence", SEQUENCE, lengths=(4, 2, 3), fixed=False),
    Layer("sequence-open-full", "GRUSequence", SEQUENCE, fixed=False, unharmed=("openvino",)),
    Layer("sequence-open-clip", "GRUSequence", {**SEQUENCE, "clip": "0.25"}, lengths=(4, 2, 3), fixed=False),
    Layer("sequence-open-computed", "GRUSequence", SEQUENCE, lengths=(4, 2, 3), fixed=False, constant=False),
    Layer("sequence-float64", "GRUSequence", SEQUENCE, dtype="float64"),
    Layer("attention-cell", "AUGRUCell", SIZE),
    Layer("attention-sequence", "AUGRUSequence", SIZE),
]


# ---- facts, arrays and what is right ----


def facts_of(case: Case | Layer) -> Facts:
    if isinstance(case, Layer):
        version = {"GRUCell": 3, "GRUSequence": 5}.get(case.operator, 0)
        present = frozenset({"X", "W", "R", "Ho"} | ({"B"} if case.bias else set()))
        return Facts(case.operator, version, case.data, case.dtype, present, case.fixed, case.constant)
    attributes = {**case.attributes, **({"hidden_size": 3} if case.hidden_size else {})}
    names = {"X", "W", "R", *case.present, *(["sequence_lens"] if case.lengths is not None else [])}
    operator, version = ("AUGRU", 1) if case.attention else ("GRU", case.version)
    return Facts(operator, version, attributes, case.dtype, frozenset(names), case.fixed, case.constant)


def predicted(case: Case | Layer, runtime: str) -> str:
    effects = {verdict.effect for verdict in verdicts(facts_of(case)) if verdict.runtime == runtime}
    if runtime in case.unharmed:
        assert effects == {"miscomputes"}
        return "right"
    return effects.pop() if effects else "right"


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def arrays_of(case: Case) -> Arrays:
    random = np.random.default_rng(1)
    T, B, I, H = 4, 4 if case.square else 3, 2, 3
    D = 2 if case.attributes.get("direction") == "bidirectional" else 1

    def draw(*shape: int, scale: float = 1.0) -> Any:
        return random.uniform(-scale, scale, shape).astype(numpy_type(case.dtype))

    X, W, R = draw(T, B, I, scale=2.0 * case.scale), draw(D, 3 * H, I), draw(D, 3 * H, H)
    optional = {"B": draw(D, 6 * H), "initial_h": draw(D, B, H)}
    if case.attributes.get("layout") == 1:
        X, optional["initial_h"] = (a.swapaxes(0, 1).copy() for a in (X, optional["initial_h"]))
    arrays = {"X": X, "W": W, "R": R} | {k: v for k, v in optional.items() if k in case.present}
    if case.lengths is not None:
        arrays["sequence_lens"] = np.array(case.lengths, np.int32)
    if case.attention:
        arrays["A"] = draw(*X.shape[:2], 1)
    return arrays


def layer_arrays(layer: Layer) -> Arrays:
    """The layer's inputs by name, in the order of its ports."""
    random = np.random.default_rng(2)
    T, B, I, H = 4, 3, 2, 3
    cell = layer.operator.endswith("Cell")
    biases = 4 * H if layer.data.get("linear_before_reset") == "true" else 3 * H
    directions = [] if cell else [1]

    def draw(*shape: int) -> Any:
        return random.uniform(-1.0, 1.0, shape).astype(layer.dtype)

    arrays: Arrays = {"X": draw(B, I) if cell else draw(B, T, I), "state": draw(B, *directions, H)}
    if not cell:
        arrays["lengths"] = np.array(layer.lengths, np.int32)
    arrays |= {"W": draw(*directions, 3 * H, I), "R": draw(*directions, 3 * H, H)}
    if layer.bias:
        arrays["B"] = draw(*directions, biases)
    if layer.operator.startswith("AU"):
        arrays["A"] = draw(B, 1) if cell else draw(B, T, 1)
    return arrays


def right_answer(case: Case | Layer) -> Arrays:
    if isinstance(case, Case):
        Y, Y_h = onnx_gru(**arrays_of(case), **case.attributes)
        return {k: v for k, v in (("Y", Y), ("Y_h", Y_h)) if k in case.present}
    options: Arrays = {
        "hidden_size": 3,
        "linear_before_reset": case.data.get("linear_before_reset") == "true",
    }
    if "activations" in case.data:
        options["activations"] = [name.strip() for name in case.data["activations"].split(",")]
    if "clip" in case.data:
        options["clip"] = float(case.data["clip"])
    inputs = list(layer_arrays(case).values())
    if case.operator == "GRUCell":
        return {"Ho": gru_cell(*inputs, **options)}
    if "direction" in case.data:
        options["direction"] = case.data["direction"]
    return dict(zip(("Y", "Ho"), gru_sequence(*inputs, **options), strict=True))


# ---- files ----


def onnx_file(case: Case) -> bytes:
    helper: Any = pytest.importorskip("onnx.helper")
    tensor_type = pytest.importorskip("onnx").TensorProto.DataType.Value
    codes = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
    code, lengths_code = tensor_type(codes[case.dtype]), tensor_type("INT32")
    inputs, constants, nodes = [], [], []
    arrays = arrays_of(case)
    for name, array in arrays.items():
        kind = lengths_code if name == "sequence_lens" else code
        shape: list[Any] = list(array.shape)
        weight = name in {"W", "R", "B"}
        if weight and case.constant:
            constants.append(helper.make_tensor(name, kind, shape, array.tobytes(), raw=True))
        if not weight and not case.fixed:
            open_shapes: dict[str, list[Any]] = {"X": ["t", "b", 2], "sequence_lens": ["b"]}
            shape = open_shapes.get(name, [shape[0], "b", 3])
        if weight and not case.constant:
            nodes.append(helper.make_node("Neg", [f"minus_{name}"], [name]))
            name = f"minus_{name}"
        if not weight or not case.constant or case.version < 7:  # old files list constants as inputs too
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
    order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "A")
    given = [name if name in arrays else "" for name in order[: 7 if case.attention else 6]]
    outputs = [name if name in case.present else "" for name in ("Y", "Y_h")]
    attributes = facts_of(case).attributes
    nodes.append(helper.make_node("GRU", given, outputs, **attributes))
    if case.attention:
        nodes[-1].op_type, nodes[-1].domain = "AUGRU", "onegru"
    results = [helper.make_tensor_value_info(name, code, None) for name in outputs if name]
    graph = helper.make_graph(nodes, "one_node", inputs, results, constants)
    opset = [helper.make_opsetid("", case.version)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=3 if case.version < 7 else 10)
    add_augru_functions(model)
    return bytes(model.SerializeToString())


def fed(case: Case) -> Arrays:
    arrays = arrays_of(case)
    for name in ("W", "R", "B"):
        if name in arrays:
            array = arrays.pop(name)
            if not case.constant:
                arrays[f"minus_{name}"] = -array
    return arrays


def ir_file(layer: Layer) -> tuple[str, bytes, Arrays]:
    """The XML, the weights and the arrays to feed."""
    types = {"float16": "f16", "float32": "f32", "float64": "f64", "int32": "i32"}
    precisions = {"f16": "FP16", "f32": "FP32", "f64": "FP64", "i32": "I32"}
    xml: list[str] = []
    ports: list[str] = []
    edges: list[tuple[int, int, int, int]] = []
    blob, feeds = b"", dict[str, Any]()

    def port(number: int, shape: list[int], kind: str = "", name: str = "") -> str:
        output = f' precision="{precisions[kind]}" names="{name}"' if kind else ""
        return f'<port id="{number}"{output}>{"".join(f"<dim>{size}</dim>" for size in shape)}</port>'

    for number, (name, array) in enumerate(layer_arrays(layer).items()):
        shape: list[int] = list(array.shape)
        kind = types[array.dtype.name]
        dims = ",".join(map(str, shape))
        if name in {"W", "R", "B"} and layer.constant:
            data = f'element_type="{kind}" shape="{dims}" offset="{len(blob)}" size="{array.nbytes}"'
            blob += array.tobytes()
            layer_type = "Const"
        else:
            if not layer.fixed and name not in {"W", "R", "B"}:
                shape = [-1, -1, *shape[2:]] if name == "X" else [-1, *shape[1:]]
                dims = ",".join("?" if size < 0 else str(size) for size in shape)
            data = f'element_type="{kind}" shape="{dims}"'
            layer_type = "Parameter"
            feeds[name] = array
        xml.append(
            f'<layer id="{number}" name="{name}" type="{layer_type}" version="opset1"><data {data}/>'
            f"<output>{port(0, shape, kind, name)}</output></layer>"
        )
        edges.append((number, 0, len(layer_arrays(layer)), number))
        ports.append(port(number, shape))
    own = len(ports)
    opset = {"GRUCell": "opset3", "GRUSequence": "opset5"}.get(layer.operator, "ie_internal_opset")
    batch, steps = (3, 4) if layer.fixed else (-1, -1)
    outputs = (
        {"Ho": [batch, 3]}
        if layer.operator.endswith("Cell")
        else {"Y": [batch, 1, steps, 3], "Ho": [batch, 1, 3]}
    )
    kind = types[layer.dtype]
    results = "".join(port(own + k, shape, kind, name) for k, (name, shape) in enumerate(outputs.items()))
    data = " ".join(f'{name}="{value}"' for name, value in layer.data.items())
    xml.append(
        f'<layer id="{own}" name="gru" type="{layer.operator}" version="{opset}"><data {data}/>'
        f"<input>{''.join(ports)}</input><output>{results}</output></layer>"
    )
    for k, (name, shape) in enumerate(outputs.items(), 1):
        xml.append(
            f'<layer id="{own + k}" name="{name}" type="Result" version="opset1">'
            f"<input>{port(0, shape)}</input></layer>"
        )
        edges.append((own, own + k - 1, own + k, 0))
    joins = "".join(
        f'<edge from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"/>' for a, b, c, d in edges
    )
    text = f'<net name="g" version="11"><layers>{"".join(xml)}</layers><edges>{joins}</edges></net>'
    return text, blob, feeds


# ---- the runtimes ----


def run_onnxruntime(case: Case | Layer) -> Arrays:
    assert isinstance(case, Case)
    module: Any = importlib.import_module("onnxruntime")
    options = module.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = module.InferenceSession(onnx_file(case), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, fed(case)), strict=True))


def run_evaluator(case: Case | Layer) -> Arrays:
    assert isinstance(case, Case)
    module: Any = importlib.import_module("onnx.reference")
    session = module.ReferenceEvaluator(onnx_file(case))
    with np.errstate(all="ignore"):
        results = session.run(None, fed(case))
    return dict(zip(session.output_names, results, strict=True))


def run_openvino(case: Case | Layer) -> Arrays:
    ov: Any = importlib.import_module("openvino")
    core = ov.Core()
    if isinstance(case, Case):
        model, feeds = core.read_model(onnx_file(case)), fed(case)
    else:
        text, blob, feeds = ir_file(case)
        model = core.read_model(text.encode(), ov.Tensor(np.frombuffer(blob or b"\0", np.uint8).copy()))
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    for place in request.model_inputs:
        array = feeds[place.get_any_name()]
        tensor = ov.Tensor(place.element_type, ov.Shape(array.shape))
        as_bytes(tensor.data)[...] = as_bytes(array)
        request.set_tensor(place, tensor)
    request.infer()
    results = {}
    for place in request.model_outputs:
        data = request.get_tensor(place).data
        results[place.get_any_name()] = (
            data.view(numpy_type("bfloat16")) if case.dtype == "bfloat16" else data
        )
    return results


def as_bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


RUNNERS: dict[str, Callable[[Case | Layer], Arrays]] = {
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
    "onnx": run_evaluator,
}
# How an error of the runtime itself reads, so that a slip in this file does not pass for a refusal.
REFUSAL = {
    "onnxruntime": r"\[ONNXRuntimeError\]",
    "openvino": r"^Exception from src/",
    "onnx": r"output_sequence|Unknown direction|Scan is not implemented",
}
PAIRS: list[tuple[Case | Layer, str]] = [
    *((case, runtime) for case in CASES for runtime in RUNNERS),
    *((layer, "openvino") for layer in LAYERS),
]


@pytest.mark.parametrize(
    ("case", "runtime"), PAIRS, ids=[f"{runtime}-{case.name}" for case, runtime in PAIRS]
)
def test_prediction_and_observation_agree(case: Case | Layer, runtime: str) -> None:
    version = pytest.importorskip(runtime).__version__.split("-")[0]
    if version != MEASURED[runtime]:
        pytest.skip(f"{runtime} {version} is installed, the rules were measured on {MEASURED[runtime]}")
    prediction = predicted(case, runtime)
    if prediction == "refuses":
        with pytest.raises(Exception, match=REFUSAL[runtime]):
            RUNNERS[runtime](case)
    else:
        got = RUNNERS[runtime](case)
        assert is_right(got, right_answer(case), case.dtype) == (prediction == "right")


def test_every_rule_is_exercised() -> None:
    for rule in RULES:
        cases = [case for case, runtime in PAIRS if runtime == rule.runtime]
        assert any(rule.applies(facts_of(case)) for case in cases), rule.reason


def test_nothing_is_said_of_a_plain_node() -> None:
    present = frozenset({"X", "W", "R", "B", "initial_h", "Y", "Y_h"})
    assert verdicts(Facts("GRU", 14, {"hidden_size": 8, "linear_before_reset": 1}, "float32", present)) == []
    assert verdicts(Facts("GRUCell", 3, {"hidden_size": "8", "clip": "0"}, None, present)) == []


def test_a_refusal_hides_what_would_be_miscomputed() -> None:
    facts = Facts("GRU", 3, {"activations": ["Sigmoid", "Affine"]}, None, frozenset())
    found = [verdict for verdict in verdicts(facts) if verdict.runtime == "onnxruntime"]
    assert [verdict.effect for verdict in found] == ["refuses", "refuses"]
    assert all(verdict.version == MEASURED["onnxruntime"] for verdict in found)
