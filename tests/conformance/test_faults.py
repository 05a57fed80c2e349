"""Faults planted in a copy of the reference, one after another: each is caught by a case of the suite."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases
from onegru.conformance.expect import problem_of
from onegru.core import activations, elementary
from onegru.core.shapes import arrange
from onegru.engines import reference
from onegru.operators.onnx import GRU_VERSIONS
from onegru.operators.schema import CANONICAL_AXES

GRU = GRU_VERSIONS[22]
SOURCES = {
    module.__name__.rpartition(".")[2]: Path(str(module.__file__)).read_text()
    for module in (reference, activations, elementary)
}
SOURCE = SOURCES["reference"]

Z, R = "clip(Xt @ w.Wz + H @ w.Rz + w.Wbz + w.Rbz)", "clip(Xt @ w.Wr + H @ w.Rr + w.Wbr + w.Rbr)"
AFTER = "clip(Xt @ w.Wh + rt * (H @ w.Rh + w.Rbh) + w.Wbh)"
BEFORE = "clip(Xt @ w.Wh + (rt * H) @ w.Rh + w.Rbh + w.Wbh)"
BLEND = "(1 - zt) * ht + zt * H"
LINE = "ops.add(ops.mul(x, alpha), beta)"
ATTENDED = "attended(spec.attention, zt, at)"

#: What is in the reference, and what a fault makes of it.
FAULTS = {
    "z without Wb": (Z, Z.replace(" + w.Wbz", "")),
    "z without Rb": (Z, Z.replace(" + w.Rbz", "")),
    "z without x": (Z, Z.replace("Xt @ w.Wz + ", "")),
    "z without h": (Z, Z.replace("H @ w.Rz + ", "")),
    "r without Wb": (R, R.replace(" + w.Wbr", "")),
    "r without Rb": (R, R.replace(" + w.Rbr", "")),
    "r without h": (R, R.replace("H @ w.Rr + ", "")),
    "z and r in the other order": (R, R.replace("w.Rr", "w.Rz")),
    "R not transposed": ("*gates(R, True)", "*(gate.T for gate in gates(R, True))"),
    "z not clipped": (f"activate(f, {Z})", f"activate(f, {Z[5:-1]})"),
    "r not clipped": (f"activate(f, {R})", f"activate(f, {R[5:-1]})"),
    "n not clipped, reset after": (f"activate(g, {AFTER})", f"activate(g, {AFTER[5:-1]})"),
    "n not clipped, reset before": (f"activate(g, {BEFORE})", f"activate(g, {BEFORE[5:-1]})"),
    "clip only above": ("np.clip(x, -spec.clip, spec.clip)", "np.minimum(x, spec.clip)"),
    "clip before the biases": (Z, "clip(Xt @ w.Wz + H @ w.Rz) + w.Wbz + w.Rbz"),
    "reset after without Rb": (AFTER, AFTER.replace(" + w.Rbh", "")),
    "reset after without Wb": (AFTER, AFTER.replace(" + w.Wbh", "")),
    "Rb not reset": (AFTER, "clip(Xt @ w.Wh + rt * (H @ w.Rh) + w.Rbh + w.Wbh)"),
    "Wb reset": (AFTER, "clip(Xt @ w.Wh + rt * (H @ w.Rh + w.Rbh + w.Wbh))"),
    "reset before without Rb": (BEFORE, BEFORE.replace(" + w.Rbh", "")),
    "reset before without Wb": (BEFORE, BEFORE.replace(" + w.Wbh", "")),
    "never reset": (BEFORE, BEFORE.replace("(rt * H)", "H")),
    "always before": ("if spec.linear_before_reset:", "if False:"),
    "always after": ("if spec.linear_before_reset:", "if True:"),
    "g for z": (f"zt = activate(f, {Z})", f"zt = activate(g, {Z})"),
    "g for r": (f"rt = activate(f, {R})", f"rt = activate(g, {R})"),
    "f for n, reset before": (f"activate(g, {BEFORE})", f"activate(f, {BEFORE})"),
    "f for n, reset after": (f"activate(g, {AFTER})", f"activate(f, {AFTER})"),
    "the gate's other side": (BLEND, "zt * ht + (1 - zt) * H"),
    "the state clipped": (BLEND, f"clip({BLEND})"),
    "no attention": (ATTENDED, "zt"),
    "attention's other side": (ATTENDED, "at * zt"),
    "attention clamped": (ATTENDED, "attended(spec.attention, zt, np.clip(at, 0, 1))"),
    "first activations in both directions": ("spec.activations[d]", "spec.activations[0]"),
    "first weights in both directions": ("weights[d]", "weights[0]"),
    "no direction backwards": ("(spec.reversed_directions)", "([False] * spec.num_directions)"),
    "backwards from the last step of all": ("lengths[rows] - 1 - done", "T - 1 - np.full(len(rows), done)"),
    "backwards, outputs in the order of computation": (
        "Y[t, d, rows] = H[rows]",
        "Y[done, d, rows] = H[rows]",
    ),
    "lengths ignored": ("np.full(B, T) if problem.sequence_lens is None", "np.full(B, T) if True"),
    "a length of 0 keeps its first state": ("H[lengths == 0] = 0", "pass"),
    "Y in the padding": ("        Y[...] = 0", "        Y[...] = 1"),
    "no first state": ("Y_h[...] = problem.initial_h", "pass"),
    "the first direction's first state in both": ("= problem.initial_h", "= problem.initial_h[0]"),
    "the state of the step before": ("H[rows], a).h", "H[rows] * 0, a).h"),
    "Relu leaks": ("np.asarray(np.maximum(x, 0.0))", "np.maximum(x, 0.01 * x)"),
    "Tanh without its limits": ("ops.tanh(x),", "x,"),
    "Sigmoid of half": ("e = np.exp(-np.abs(x))", "e = np.exp(-np.abs(x) / 2)"),
    "Affine without beta": ("beta: ops.add(ops.mul(x, alpha), beta),", "beta: ops.mul(x, alpha),"),
    "LeakyRelu without alpha": (
        "ops.piecewise(x, ops.mul(x, alpha), x)",
        "ops.piecewise(x, ops.mul(x, 0.01), x)",
    ),
    "ThresholdedRelu at 0": ("ops.where_less(x, alpha, 0.0, x)", "ops.where_less(x, 0.0, 0.0, x)"),
    "ThresholdedRelu loses a NaN": (
        "np.where(x < bound, then, otherwise)",
        "np.where(x >= bound, otherwise, then)",
    ),
    "ScaledTanh without alpha": ("ops.mul(ops.tanh(ops.mul(x, beta)), alpha)", "ops.tanh(ops.mul(x, beta))"),
    "ScaledTanh without beta": ("ops.mul(ops.tanh(ops.mul(x, beta)), alpha)", "ops.mul(ops.tanh(x), alpha)"),
    "HardSigmoid below 0": (f"ops.maximum(ops.minimum({LINE}, 1.0), 0.0)", f"ops.minimum({LINE}, 1.0)"),
    "HardSigmoid above 1": (f"ops.maximum(ops.minimum({LINE}, 1.0), 0.0)", f"ops.maximum({LINE}, 0.0)"),
    "Elu without alpha": ("ops.mul(ops.expm1_of_negative(x), alpha)", "ops.expm1_of_negative(x)"),
    "Softsign of infinity": (
        "ops.div(ops.finite(x), ops.add(ops.abs(ops.finite(x)), 1.0))",
        "ops.div(x, ops.add(ops.abs(x), 1.0))",
    ),
    "Softsign without its sign": ("ops.div(ops.finite(x),", "ops.div(ops.abs(ops.finite(x)),"),
    "Softplus as Relu": ("ops.softplus(x)", "ops.relu(x)"),
}


def run_source(name: str, text: str) -> ModuleType:
    """A module of this text, where dataclasses look for it."""
    module = ModuleType(f"faulty_{name}")
    sys.modules[module.__name__] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


@pytest.fixture
def faulty(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The reference with a fault."""
    old, new = FAULTS[request.param]
    (name,) = [name for name, text in SOURCES.items() if old in text]  # else the reference has changed
    is_unique = name == "reference" or SOURCES[name].count(old) == 1  # reference.py repeats some sums
    assert is_unique, f"the text of the fault {request.param!r} must occur once"
    mistaken = run_source(name, SOURCES[name].replace(old, new)).__dict__
    module = run_source("reference", SOURCE.replace(old, new))
    class_names = {"activations": "ACTIVATIONS", "elementary": "NumpyElementary"}
    module.__dict__.update({class_names[name]: mistaken[class_names[name]]} if name in class_names else {})
    yield module
    for name in SOURCES:
        sys.modules.pop(f"faulty_{name}", None)


def is_right(case: Case, engine: ModuleType) -> bool:
    """Whether a copy of the reference gives what a case expects, within its tolerance."""
    problem = problem_of(case.lowered, case.inputs)
    weights = engine.ReferenceWeights.split(case.lowered.weights)
    engine.run(case.lowered.spec, weights, problem)
    for port in case.lowered.ports:
        if port.name in case.outputs:
            expected, tolerance = (
                arrange(arrays[port.name], port.axes, CANONICAL_AXES[port.role])
                for arrays in (case.expected, case.tolerance)
            )
            got = getattr(problem, port.role)
            with np.errstate(all="ignore"):
                near = np.abs(got - expected) <= tolerance
            if not np.all(near | (got == expected) | (np.isnan(got) & np.isnan(expected))):
                return False
    return True


def test_the_copy_without_a_fault_passes() -> None:
    assert all(is_right(case, reference) for case in all_cases()[::29])


@pytest.mark.parametrize("faulty", FAULTS, indirect=True)
def test_a_case_catches_it(faulty: ModuleType) -> None:
    """The cases that are simplest, and so say most about a fault, come first."""
    cases = sorted(all_cases(), key=lambda case: len(case.choices))
    assert any(not is_right(case, faulty) for case in cases)


@pytest.mark.parametrize(
    ("faulty", "dtype"),
    [("never reset", "bfloat16"), ("r without Rb", "bfloat16"), ("r without Rb", "float16")],
    indirect=["faulty"],
)
def test_what_a_plain_case_of_16_bits_does_not_notice(faulty: ModuleType, dtype: str) -> None:
    """As docs/guides/conformance.md says. The cases of float32 and float64 notice it."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    noticed = {name: not is_right(Case(GRU, {"type": name}), faulty) for name in (dtype, "float64")}
    assert noticed == {dtype: False, "float64": True}
    assert not is_right(Case(GRU, {}), faulty)
