"""The cases of the suite: what they cover, and that what they expect is right."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.conformance import expect
from onegru.conformance.case import Case
from onegru.conformance.cases import COVERING, KIT_OPERATORS, all_cases, may_be
from onegru.conformance.expect import ROUNDOFF, problem_of
from onegru.conformance.factors import APART, factors_of
from onegru.core.activations import ACTIVATIONS
from onegru.engines import reference
from onegru.layers.call import apply
from onegru.operators.schema import OpSchema
from tests.conformance.covering import array_of, pairwise
from tests.support import oracle
from tests.support.comparison import Arrays

DIGEST = "bc82c98c665b61cd5f6145ccaf47962f1957324770674b60e2302a5a974da357"

CASES = all_cases()
#: Enough of them for what takes time: every 29th, so that no regular order hides anything.
SOME = [case for case in CASES[::29] if case.level("seq_length") != "1000"]


def test_names_are_fit_for_files_and_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_]{4,120}", name) for name in names)


def test_there_are_enough_and_not_too_many() -> None:
    assert 2000 < len(CASES) < 4000
    assert {str(case.operator) for case in CASES} == {str(operator) for operator in KIT_OPERATORS}


@pytest.mark.parametrize("operator", KIT_OPERATORS, ids=str)
def test_every_level_has_a_case_with_only_it(operator: OpSchema) -> None:
    present = {tuple(case.choices.items()) for case in CASES if case.operator is operator}
    for factor in factors_of(operator).values():
        for level in list(factor.levels)[1:]:
            both = {"direction": "bidirectional"} if factor.name.endswith("backward") else {}
            more = {"g": "ThresholdedRelu"} if level == "at threshold" else {}
            assert tuple((both | {factor.name: level} | more).items()) in present, (factor.name, level)


@pytest.mark.parametrize("operator", KIT_OPERATORS, ids=str)
def test_every_pair_of_levels_occurs(operator: OpSchema) -> None:
    """Counted by hand, from only the cases."""
    factors = {name: factor for name, factor in factors_of(operator).items() if name not in APART}
    levels = [(name, level) for name, factor in factors.items() for level in factor.levels]
    wanted = {
        frozenset(pair)
        for pair in combinations(levels, 2)
        if pair[0][0] != pair[1][0] and may_be(operator, dict(pair))
    }
    for case in (case for case in CASES if case.operator is operator):
        wanted -= {frozenset(pair) for pair in combinations([(n, case.level(n)) for n in factors], 2)}
    assert not wanted


def test_every_activation_is_in_every_position_with_and_without_its_parameters() -> None:
    found = {
        (position, case.level(position), case.level("parameters"), case.level("linear_before_reset"))
        for case in CASES
        for position in ("f", "g", "f backward", "g backward")
        if str(case.operator) == "GRU-14"
    }
    for name, kind in ACTIVATIONS.items():
        for position in ("f", "g", "f backward", "g backward"):
            for after in ("none", "1"):
                assert (position, name, "given", after) in found
                if len(kind.defaults) == len(kind.parameters):
                    assert (position, name, "defaults", after) in found


def test_words() -> None:
    case = next(case for case in CASES if case.choices == {"clip": "reached", "direction": "reverse"})
    assert case.name == "gru_14__direction_reverse__clip_reached"
    assert case.checks.startswith("In reverse, each row starts at its last step")
    assert "Clip limits the inputs of all three activations" in case.checks
    assert case.source == "GRU-14: Attribute direction, sentence 2; Attribute clip, sentences 2 and 3"
    assert all(case.checks and str(case.operator) in case.source for case in CASES)


def test_where_the_specification_is_silent_the_source_says_so() -> None:
    sources = {tuple(case.choices.items()): case.source for case in CASES if str(case.operator) == "GRU-14"}
    assert sources[(("values", "NaN"),)].endswith("unspecified cases: docs/operators/index.md")
    assert "unspecified" not in sources[(("clip", "reached"),)]


def test_cases_and_inputs_are_the_same_everywhere() -> None:
    """NumPy does not promise that its random numbers stay: a version where they do not is found out here."""
    digest = hashlib.sha256()
    for case in CASES:
        digest.update(case.name.encode())
    for case in SOME:
        for array in case.inputs.values():
            digest.update(array.tobytes())
    assert digest.hexdigest() == DIGEST


def test_inputs_are_the_same_each_time() -> None:
    first = CASES[40]
    again = Case(first.operator, first.choices)
    assert repr(again) == f"Case({first.name!r})"
    for name, array in first.inputs.items():
        np.testing.assert_array_equal(array, again.inputs[name])
    assert {array.tobytes() for array in CASES[41].inputs.values()}.isdisjoint(
        array.tobytes() for array in first.inputs.values()
    )


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_expectation_is_the_oracles(case: Case) -> None:
    """Plain loops that share nothing with the package give the same numbers."""
    right = by_oracle(case)
    atol = 2.0**-24 if case.dtype == "float16" else 1e-12
    for name in case.outputs:
        np.testing.assert_allclose(
            case.expected[name], right[name], rtol=2 * ROUNDOFF[case.dtype], atol=atol, equal_nan=True
        )
        assert case.tolerance[name].shape == case.expected[name].shape
        assert np.all(np.isfinite(case.tolerance[name]))


def by_oracle(case: Case) -> Arrays:
    """The outputs of tests/support/oracle.py, in float64 where the case's type is wider than float16."""
    attributes: dict[str, Any] = {**case.attributes}
    if case.operator.name in ("GRU", "AUGRU"):
        attributes |= case.inputs
        return dict(zip(("Y", "Y_h"), oracle.onnx_gru(**attributes), strict=True))
    attributes = {k: v for k, v in attributes.items() if not k.startswith("activations_")}
    values = list(case.inputs.values())
    functions: dict[str, Any] = {
        "GRUCell": oracle.gru_cell,
        "GRUSequence": oracle.gru_sequence,
        "AUGRUCell": oracle.augru_cell,
        "AUGRUSequence": oracle.augru_sequence,
    }
    found = functions[case.operator.name](*values, **attributes)
    names = [port.name for port in case.operator.outputs]
    return dict(zip(names, found if len(names) == 2 else (found,), strict=True))


# ---- the tolerance


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_layers_keep_within_the_tolerance(case: Case) -> None:
    layer = onegru.GRU.from_canonical(case.lowered.spec, case.lowered.weights)
    got = apply(layer, case.lowered.ports, case.inputs, dict.fromkeys(case.outputs))
    for name in case.outputs:
        off = np.abs(got[name].astype(np.float64) - case.expected[name])
        finite = np.isfinite(case.expected[name])
        assert np.all(off[finite] <= case.tolerance[name][finite])
        np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(case.expected[name]))


@pytest.mark.parametrize("order", [1, -1, 0], ids=["in order", "backwards", "shuffled"])
def test_any_order_of_sums_keeps_within_the_tolerance(order: int) -> None:
    """Rows and columns of W, R and X in another order are another order of each sum."""
    largest = 0.0
    for case in SOME:
        spec = case.lowered.spec
        if spec.dtype != "float32" or case.level("values") != "usual" or not min(case.inputs["X"].shape):
            continue
        places = np.arange(spec.input_size)[:: order or 1]
        if not order:
            np.random.default_rng(0).shuffle(places)
        inputs = dict(case.inputs)
        inputs["X"], inputs["W"] = inputs["X"][..., places], inputs["W"][..., places]
        weights = case.lowered.weights
        layer = onegru.GRU.from_canonical(spec, onegru.Weights(weights.W[..., places], weights.R, weights.B))
        got = apply(layer, case.lowered.ports, inputs, dict.fromkeys(case.outputs))
        for name in case.outputs:
            off = np.abs(got[name] - case.expected[name])
            share = off[off > 0] / case.tolerance[name][off > 0]
            largest = max(largest, float(np.max(share, initial=0.0)))
    assert 0.001 < largest < 0.5


def test_the_tolerance_is_what_a_rounding_makes_of_it() -> None:
    """float16 allows 2^13 times what float32 does, times at most what it stores less often."""
    by_type = {
        case.dtype: max(float(array.max()) for array in case.tolerance.values())
        for case in CASES
        if str(case.operator) == "GRU-22" and set(case.choices) <= {"type"}
    }
    assert 2.0**11 < by_type["float16"] / by_type["float32"] < 2.0**13
    assert 4 < by_type["bfloat16"] / by_type["float16"] < 16
    assert by_type["float64"] < 2.0**-28 * by_type["float32"]


def test_errors_are_carried_along_with_the_numbers() -> None:
    """The numbers that know their error are the reference's."""
    case = next(case for case in CASES if case.level("linear_before_reset") == "1")
    spec = case.lowered.spec
    w = reference.ReferenceWeights.split(case.lowered.weights)[0]
    problem = problem_of(case.lowered, case.inputs)
    X, H = problem.X[0].astype(np.float64), np.full((3, 5), 0.25)
    plain = reference.step(spec, w, 0, X, H, None).h
    carried = reference.step(
        spec,
        w,
        0,
        expect.Rounded(X, np.zeros_like(X), "float32"),
        expect.Rounded(H, np.zeros_like(H), "float32"),
        None,
        expect._activate,
    ).h
    np.testing.assert_array_equal(carried.value, plain)
    assert np.all(carried.rounded().error > 0)


# ---- covering arrays


def test_operators_without_stored_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "covering.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("onegru.conformance.cases.COVERING", tmp_path / "covering.json")
    with pytest.raises(LookupError, match=r"^GRU-1: has no stored cases; run `python -m tests.conformance"):
        all_cases.__wrapped__()


@pytest.mark.parametrize("operator", [KIT_OPERATORS[0], *KIT_OPERATORS[-4:]], ids=str)
def test_covering_arrays_are_current(operator: OpSchema) -> None:
    stored = json.loads(COVERING.read_text(encoding="utf-8"))[str(operator)]
    assert stored == array_of(operator), "run `python -m tests.conformance.covering`"


def test_pairwise_by_hand() -> None:
    levels = {"a": ["1", "2", "3"], "b": ["1", "2", "3"], "c": ["1", "2"]}
    rows = pairwise(levels, lambda row: not (row.get("a") == "1" and row.get("c") == "2"))
    assert {(row["a"], row["b"]) for row in rows} == {(a, b) for a in "123" for b in "123"}
    assert {(row["a"], row["c"]) for row in rows} == {
        ("1", "1"),
        ("2", "1"),
        ("2", "2"),
        ("3", "1"),
        ("3", "2"),
    }
    assert len(rows) <= 11
