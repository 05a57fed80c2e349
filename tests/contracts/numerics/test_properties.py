"""Compare all ways to compute the same result with an oracle in plain Python loops and with each other.

The reference engine and the oracle both compute in float64 and round once. So they may differ by the order of
a sum in float64, after one rounding. The native engine computes in the type itself.
"""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import onegru
from onegru import _native
from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.runtimes.known_issues import NodeFacts, verdicts
from tests.support import oracle
from tests.support.cases import Case, gru_cases, onnx_model, openvino_cases
from tests.support.files.ir_files import OPERATORS, write_case
from tests.support.suite.selection import examples

ORACLES: dict[str, Callable[..., Any]] = {
    "gru": oracle.onnx_gru,
    "gru_cell": oracle.gru_cell,
    "gru_sequence": oracle.gru_sequence,
    "augru_cell": oracle.augru_cell,
    "augru_sequence": oracle.augru_sequence,
}

# A float64 sum in another order, relative to the largest value of a result. Measured over 8,000 cases: 1e-14.
SUM_TOLERANCE = 5e-14
# Unbounded functions let values and errors grow over the steps, and a result may be the remainder of larger
# states. Measured over 40,000 float64 cases with only such functions: 3e-13 below 1e6, 1e-12 in all. There,
# the reference differs by at most 1.7e-12, and the oracle by 1.5e-12, from the result in 300 bits.
GROWN_TOLERANCE = 5e-12
GROWING = {name.lower() for name, kind in ACTIVATIONS.items() if kind.bounds is None} - {"scaledtanh"}


def call(case: Case, engine: str = "auto") -> tuple[Array, ...]:
    result = getattr(onegru, case.function)(**case.arguments, engine=engine)
    return result if isinstance(result, tuple) else (result,)


def spacing(dtype: np.dtype[Any], largest: float) -> float:
    """Return the distance between adjacent values of a type near its largest value."""
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype.name]
    return float(largest * 2.0**-bits)


def assert_close(case: Case, actual: Array, expected: Array) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    largest = np.abs(b[finite]).max(initial=1e-7)
    grows = any(name.lower() in GROWING for name in case.attributes.get("activations", ()))
    relative = GROWN_TOLERANCE if grows else SUM_TOLERANCE
    tolerance = spacing(actual.dtype, largest) + relative * largest
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def assert_same_bits(actual: Array, expected: Array) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    same = (actual.astype(np.float64) == expected.astype(np.float64)) | (
        np.isnan(actual) & np.isnan(expected)
    )
    assert np.all(same)


def grown(seed: int) -> Case:
    """Return a case whose values grow to 3e5, where the two differ by 8.6e-14 of that."""
    rng = np.random.default_rng(seed)
    shapes = {"X": (5, 2, 2), "W": (1, 9, 2), "R": (1, 9, 3)}
    inputs: dict[str, Array | None] = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return Case("gru", inputs, {"activations": ["Affine", "Affine"]}, 22)


@given(case=gru_cases())
@example(case=grown(7303))
@examples(400)
def test_gru_is_the_oracle(case: Case) -> None:
    for actual, expected in zip(call(case, "reference"), ORACLES["gru"](**arguments(case)), strict=True):
        assert_close(case, actual, expected)


@given(case=openvino_cases())
@examples(300)
def test_openvino_operators_are_the_oracle(case: Case) -> None:
    expected = ORACLES[case.function](**arguments(case))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, wanted in zip(call(case, "reference"), expected, strict=True):
        assert_close(case, actual, wanted)


# Tolerance of the native engine in its own type, relative to the largest value, or to 1 if that is less.
# Measured over 6,000 cases on every target: 4.8e-14 in float64; 1.8e-5 in float32, where unbounded functions
# let errors grow. 16-bit types may round to the adjacent value.
NATIVE_TOLERANCE = {"float64": 5e-13, "float32": 2e-4, "float16": 2.0**-10 + 2e-4, "bfloat16": 2.0**-7 + 2e-4}


@given(case=st.one_of(gru_cases(), openvino_cases()))
@examples(400)
def test_native_is_the_reference_on_every_target(case: Case) -> None:
    if has_jump(case):
        return
    expected = call(case, "reference")
    fused: list[tuple[Array, ...]] = []
    try:
        for target in _native.available_targets():
            _native.select_target(target)
            actual = call(case, "native")
            for ours, exact in zip(actual, expected, strict=True):
                assert ours.dtype == exact.dtype
                a, b = ours.astype(np.float64), exact.astype(np.float64)
                finite = np.isfinite(a) & np.isfinite(b)
                assert (
                    np.array_equal(np.isfinite(a), np.isfinite(b)) or np.abs(b[finite]).max(initial=0) > 1e4
                )
                largest = max(1.0, float(np.abs(b[finite]).max(initial=0)))
                np.testing.assert_allclose(
                    a[finite], b[finite], rtol=0, atol=NATIVE_TOLERANCE[case.dtype.name] * largest
                )
            if _native.target_traits(target)[0]:
                fused.append(actual)
    finally:
        _native.select_target(None)
    for other in fused[1:]:
        for a, b in zip(fused[0], other, strict=True):
            assert_same_bits(a, b)


def arguments(case: Case) -> dict[str, Any]:
    """Return the arguments for the oracle, which has no versions."""
    ignored = ("opset", "output_sequence")
    return {name: value for name, value in case.arguments.items() if name not in ignored}


@given(case=gru_cases())
@examples(200)
def test_layer_is_the_function(case: Case) -> None:
    own = ("hidden_size", "layout", "output_sequence")
    attributes = {name: value for name, value in case.attributes.items() if name not in own}
    inputs: Any = case.inputs
    layer = onegru.GRU(inputs["W"], inputs["R"], inputs["B"], **attributes)
    layout = case.attributes.get("layout", 0)
    outputs = layer(inputs["X"], inputs["initial_h"], sequence_lens=inputs["sequence_lens"], layout=layout)
    for actual, expected in zip(outputs, call(case), strict=True):
        assert_same_bits(actual, expected)


@given(case=openvino_cases("gru_sequence", "augru_sequence"))
@examples(100)
def test_layer_is_the_sequence_function(case: Case) -> None:
    """The layer separates biases: sums go into Wb, and the part for the reset gate into Rb."""
    inputs: Any = case.inputs
    attributes = case.attributes
    h, after = attributes["hidden_size"], attributes.get("linear_before_reset", False)
    given_b, x = inputs["B"], inputs["X"]
    assert given_b is not None and x is not None
    b = np.zeros((len(given_b), 6 * h), x.dtype)
    b[:, : 3 * h] = given_b[:, : 3 * h]
    if after:
        b[:, 5 * h :] = given_b[:, 3 * h :]
    direction = attributes.get("direction", "forward")
    names = attributes.get("activations", ["sigmoid", "tanh"]) * (2 if direction == "bidirectional" else 1)
    attention = inputs.get("A")
    layer = onegru.GRU(
        inputs["W"],
        inputs["R"],
        b,
        direction=direction,
        linear_before_reset=after,
        clip=attributes.get("clip") or None,
        activations=names,
        attention=attention is not None,
    )
    state = inputs["H_t"] if attention is not None else inputs["initial_hidden_state"]
    lengths = inputs["sequence_lengths"]
    Y, Y_h = layer(x, state, sequence_lens=lengths, attention=attention, layout=1)
    expected_Y, expected_Y_h = call(case)
    assert_same_bits(Y.transpose(0, 2, 1, 3), expected_Y)
    assert_same_bits(Y_h, expected_Y_h)


@pytest.mark.parametrize("constant_weights", [True, False])
@given(case=gru_cases())
@examples(100)
def test_onnx_file_is_the_function(constant_weights: bool, case: Case) -> None:
    weights = ("W", "R", "B") if constant_weights else ()
    feeds = {name: array for name, array in case.inputs.items() if array is not None and name not in weights}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(onnx_model(case, constant_weights=constant_weights).SerializeToString())
        outputs = onegru.load(path).run(feeds)
    for name, expected in zip(("Y", "Y_h"), call(case), strict=True):
        assert_same_bits(outputs[name], expected)


@given(case=openvino_cases())
@examples(150)
def test_ir_file_is_the_function(case: Case) -> None:
    feeds = {
        name: array
        for name, array in case.inputs.items()
        if array is not None and name not in ("W", "R", "B")
    }
    with tempfile.TemporaryDirectory() as folder:
        path = write_case(Path(folder, "model.xml"), case.function, case.inputs, case.attributes)
        outputs = onegru.load(path).run(feeds)
    for name, expected in zip(OPERATORS[case.function][2], call(case), strict=True):
        assert_same_bits(outputs[f"gru.{name}"], expected)


# Other runtimes

# Largest differences of other runtimes, relative to the largest value, or to 1 if that is less. Measured over
# 3,000 cases each: in float32 ONNX Runtime 4.2e-7 and OpenVINO 1.2e-6; in float16 ONNX Runtime 0, OpenVINO
# 3.7e-4.
PEER_TOLERANCE = {"float32": 5e-6, "float16": 1.5e-3}


# Unbounded gates multiply a state, and its rounding, in every step. Another runtime's distance from the
# equations in float64 may then be this multiple of onegru's. At most 2.8 was measured.
PEER_ROUNDING = 8


def exactly(case: Case) -> tuple[Array, ...]:
    """Return the outputs in float64."""
    inputs = {
        name: array if array is None or array.dtype.kind != "f" else array.astype(np.float64)
        for name, array in case.inputs.items()
    }
    return call(replace(case, inputs=inputs))


def assert_agree(peer: Iterable[Array], case: Case) -> None:
    for theirs, ours, exact in zip(peer, call(case), exactly(case), strict=True):
        a, b = theirs.astype(np.float64), ours.astype(np.float64)
        finite = np.isfinite(b) & np.isfinite(exact)
        largest = max(1.0, float(np.abs(b[finite]).max(initial=0)))
        rounding = float(np.abs(b - exact)[finite].max(initial=0)) - spacing(ours.dtype, largest)
        tolerance = max(PEER_TOLERANCE[ours.dtype.name] * largest, PEER_ROUNDING * rounding)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def is_known_to_fail(runtime: str, case: Case, operator: str, version: int) -> bool:
    present = {name for name, array in case.inputs.items() if array is not None} | {"Y", "Y_h", "Ho"}
    facts = NodeFacts(
        operator=operator,
        version=version,
        attributes=case.attributes,
        dtype=case.dtype.name,
        present=frozenset(present),
        fixed_shape=True,
        constant_weights=True,
    )
    return any(verdict.runtime == runtime for verdict in verdicts(facts))


def is_empty(case: Case) -> bool:
    """Whether a case crashes other runtimes: an empty batch or sequence, or for OpenVINO an empty input."""
    x = case.inputs["X"]
    return x is None or 0 in x.shape


def has_jump(case: Case) -> bool:
    """Whether a function is ThresholdedRelu, at whose jump rounding may have any effect."""
    return any(name.lower() == "thresholdedrelu" for name in case.attributes.get("activations", ()))


@given(case=gru_cases())
@examples(300)
def test_onnxruntime_agrees(case: Case) -> None:
    import onnxruntime

    version = max(v for v in (1, 3, 7, 14, 22) if v <= case.opset)
    if is_known_to_fail("onnxruntime", case, "GRU", version) or is_empty(case) or has_jump(case):
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        onnx_model(case).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        name: array
        for name, array in case.inputs.items()
        if array is not None and name not in ("W", "R", "B")
    }
    assert_agree(session.run(["Y", "Y_h"], feeds), case)


@given(case=openvino_cases("gru_cell", "gru_sequence"))
@examples(60)
def test_openvino_agrees(case: Case) -> None:
    openvino = pytest.importorskip("openvino")
    kind, version = {"gru_cell": ("GRUCell", 3), "gru_sequence": ("GRUSequence", 5)}[case.function]
    attributes = {"activations": ["sigmoid", "tanh"], **case.attributes}
    given_case = Case(case.function, case.inputs, attributes)
    if is_known_to_fail("openvino", given_case, kind, version) or is_empty(case):
        return
    if case.dtype.name not in PEER_TOLERANCE or case.attributes.get("clip") == float("inf"):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_case(Path(folder, "model.xml"), case.function, case.inputs, attributes)
        core = openvino.Core()
        model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        feeds = [a for n, a in case.inputs.items() if a is not None and n not in ("W", "R", "B")]
        results = model(feeds)
        assert_agree((results[output] for output in model.outputs), case)


# Special values


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("after", "attention"), itertools.product([False, True], repeat=2))
def test_special_values_stay_in_their_row(poison: float, after: bool, attention: bool) -> None:
    rng = np.random.default_rng(5)
    W, R, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 9, 2), (1, 9, 3), (1, 18)))
    layer = onegru.GRU(W, R, B, linear_before_reset=after, attention=attention)
    X = rng.standard_normal((4, 3, 2)).astype(np.float32)
    A = rng.standard_normal((4, 3)).astype(np.float32) if attention else None
    clean, _ = layer(X, attention=A)
    X[1, 1, 0] = poison
    Y, _ = layer(X, attention=A)
    assert_same_bits(Y[:, :, [0, 2]], clean[:, :, [0, 2]])
    assert_same_bits(Y[0], clean[0])
    if np.isnan(poison):
        assert np.isnan(Y[1:, :, 1]).all()
    else:
        assert np.isfinite(Y).all()  # sigmoid and tanh saturate


def test_nan_past_the_end_of_a_row_is_never_read() -> None:
    rng = np.random.default_rng(6)
    W, R = rng.standard_normal((2, 9, 2)), rng.standard_normal((2, 9, 3))
    X = rng.standard_normal((4, 2, 2))
    lens = [2, 4]
    expected = onegru.gru(X, W, R, sequence_lens=lens, direction="bidirectional")
    X[2:, 0] = np.nan
    for actual, wanted in zip(
        onegru.gru(X, W, R, sequence_lens=lens, direction="bidirectional"), expected, strict=True
    ):
        assert_same_bits(actual, wanted)


def test_unused_values_warn_once() -> None:
    W, R, X = np.zeros((1, 3, 1)), np.zeros((1, 3, 1)), np.zeros((1, 1, 1))
    with pytest.warns(onegru.SpecWarning, match=r"activation_alpha: 1 value too many"):
        onegru.gru(X, W, R, activation_alpha=[0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onegru.gru(X, W, R, activation_alpha=[])
