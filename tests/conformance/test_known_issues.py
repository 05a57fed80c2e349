"""The table of known issues against how runtimes did on the suite, which docs/conformance.json has.

Where a case fails, a rule must say so; where one passes, none may.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases
from onegru.conformance.results import Outcome, RuntimeResults, read_results
from onegru.runtimes.known_issues import MEASURED, RULES, Effect, NodeFacts, Rule, verdicts
from tests.support.machine.repository import ROOT

COMES_OF: dict[Effect, str] = {"refuses": "refuses", "miscomputes": "differs"}


def facts_of(case: Case) -> NodeFacts:
    """What `onegru inspect` knows of the case's node; an IR has its attributes as strings."""
    attributes = case.attributes
    if case.operator.biases == "summed":
        attributes = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()
            for name, value in attributes.items()
        }
    given = {port.name for port in case.operator.inputs if case.level(port.name) != "none"}
    return NodeFacts(
        case.operator.name,
        case.operator.version,
        attributes,
        case.dtype,
        frozenset({*given, *case.outputs}),
        case.has_fixed_shapes,
        case.has_constant_weights,
    )


@cache
def results() -> dict[str, RuntimeResults]:
    return {
        item.runtime: item
        for item in read_results(ROOT / "docs" / "conformance.json")
        if item.runtime in MEASURED and item.options.get("provider", "") in ("", "CPUExecutionProvider")
    }


def outcomes(runtime: str) -> Iterator[tuple[Case, Outcome, list[str]]]:
    """The cases that it ran, what came of each, and the reasons of the rules that name it."""
    found = results()[runtime].outcomes
    for case in all_cases():
        if case.name in found:
            reasons = [item.reason for item in verdicts(facts_of(case)) if item.runtime == runtime]
            yield case, found[case.name], reasons


def test_the_table_is_of_the_measured_versions() -> None:
    assert {name: item.version for name, item in results().items()} == dict(MEASURED)


@pytest.mark.parametrize("runtime", MEASURED)
def test_what_fails_is_known(runtime: str) -> None:
    unknown = {
        case.name: outcome
        for case, outcome, reasons in outcomes(runtime)
        if outcome.status != "passes"
        and outcome.status not in {COMES_OF[rule.effect] for rule in rules(runtime, reasons)}
        and not is_extreme(case, runtime)
        and not any("ignores layout" in reason for reason in reasons)  # which of both depends on sizes
    }
    assert unknown == {}


@pytest.mark.parametrize("runtime", MEASURED)
def test_what_is_known_fails(runtime: str) -> None:
    right = {
        case.name: reasons
        for case, outcome, reasons in outcomes(runtime)
        if outcome.status == "passes" and any(not is_hidden(case, reason) for reason in reasons)
    }
    assert right == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.runtime}: {rule.reason}")
def test_every_rule_is_seen(rule: Rule) -> None:
    assert any(
        outcome.status == COMES_OF[rule.effect] and rule.applies(facts_of(case))
        for case, outcome, reasons in outcomes(rule.runtime)
        if rule.reason in reasons
    )


def rules(runtime: str, reasons: list[str]) -> list[Rule]:
    return [rule for rule in RULES if rule.runtime == runtime and rule.reason in reasons]


def is_extreme(case: Case, runtime: str) -> bool:
    """Whether the arrays are enough to make the runtime fail, as the table's module says."""
    if "0" in (case.level("seq_length"), case.level("batch_size")):
        return True
    names = {case.level(name) for name in ("f", "g", "f backward", "g backward")}
    return case.level("values") == "NaN" and (
        runtime == "onnxruntime"
        or (runtime == "openvino" and (case.level("clip") == "reached" or "Relu" in names))
    )


def is_hidden(case: Case, reason: str) -> bool:
    """Whether the arrays keep an issue of the node from showing."""
    lengths = case.inputs.get("sequence_lens", case.inputs.get("sequence_lengths"))
    if lengths is not None and not lengths.any():  # nothing is computed
        return True
    if "lens" in reason or "lengths" in reason:
        return lengths is None or bool((lengths == int(case.level("seq_length"))).all())
    if "clip" in reason:
        return case.level("clip") not in ("reached", "at threshold")
    return "if its input exceeds 88" in reason
