"""Tables of docs/conformance.md: cases of the suite, and results from docs/conformance.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from docs.generate.markdown import code, table
from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases, quantized_cases
from onegru.conformance.factors import all_factors_of, factors_of
from onegru.conformance.report.data import features_of, only_level
from onegru.conformance.results import STATUSES, Outcome, RuntimeResults, Status, read_results

#: The file that `make conformance` writes.
RESULTS = Path(__file__).resolve().parents[1] / "conformance.json"
MARKS: dict[Status, str] = {"passes": "✓", "differs": "≠", "refuses": "⊘", "crashes": "✗"}
_MIXED = "◐"  # passes on its own, but not in every combination
_SPACE = "\u00a0"  # keeps a number and its mark on one line


def coverage() -> str:
    """Number of cases of each operator."""
    rows = []
    for name, own in _by_operator().items():
        single = sum(len(case.choices) == 0 or only_level(case) is not None for case in own)
        factors = factors_of(own[0].operator)
        levels = sum(len(factor.levels) for factor in factors.values())
        rows.append([name, *map(str, (len(factors), levels, single, len(own) - single, len(own)))])
    total = ["**all**", "", "", *(str(sum(int(row[at]) for row in rows)) for at in (3, 4, 5))]
    header = ["operator", "factors", "levels", "at most one unusual level", "several unusual levels", "cases"]
    return table(header, [*rows, total])


def factors() -> str:
    """Every factor with its levels."""
    rows: dict[str, dict[str, None]] = {}
    for own in _by_operator().values():
        for name, factor in factors_of(own[0].operator).items():
            rows.setdefault(name, {}).update(dict.fromkeys(factor.levels))
    header = ["factor", "levels, the usual one first"]
    return table(header, ([code(name), "; ".join(levels)] for name, levels in rows.items()))


def runtimes() -> str:
    """Results of each runtime for each operator."""
    rows = {**_by_operator(), "**all**": all_cases()}
    return table(_header("operator"), ([name, *_row(own)] for name, own in rows.items()))


def features() -> str:
    """Results of each runtime for each feature, on its own and in all cases with it."""
    return table(_header("feature"), _feature_rows())


def quantized() -> str:
    """Results of each runtime for each quantized case, and in total."""
    one = f"1{_SPACE}"
    rows = [[*_about(case), *(cell.removeprefix(one) for cell in _row([case]))] for case in quantized_cases()]
    return table(
        ["stored as integers", "other features", "opset", *_header("")[1:]],
        [*rows, ["**all**", "", "", *_row(quantized_cases())]],
    )


def _about(case: Case) -> list[str]:
    """The stored integers, other unusual features, and the opset."""
    own = factors_of(case.operator)
    levels = all_factors_of(case.operator)
    checks = (levels[name].levels[level] for name, level in case.choices.items() if name not in own)
    others = (f"{name} {level}" for name, level in case.choices.items() if name in own)
    return [" ".join(checks), ", ".join(others), str(case.opset)]


def _row(cases: Sequence[Case]) -> list[str]:
    return [_counts(_outcomes(result, cases)) for result in _results()]


def _feature_rows() -> Iterator[Sequence[str]]:
    before = ""
    for factor, level in features_of(all_cases()):
        own = [case for case in all_cases() if case.choices.get(factor) == level]
        single = [case for case in own if only_level(case) == (factor, level)]
        label = level if factor == before else f"**{factor}** {level}"
        before = factor
        yield [label, *(_cell(result, single, own) for result in _results())]


@cache
def _by_operator() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in all_cases():
        found.setdefault(str(case.operator), []).append(case)
    return found


@cache
def _results() -> Sequence[RuntimeResults]:
    """Results of the last `make conformance`, if any."""
    return read_results(RESULTS) if RESULTS.exists() else ()


def _header(first: str) -> list[str]:
    found = [first]
    for item in _results():
        options = (value.removesuffix("ExecutionProvider") for value in item.options.values())
        found.append("<br>".join([item.runtime, item.version, *options]))
    return found


def _passed_operators(result: RuntimeResults) -> set[str]:
    """Operators whose case without unusual levels the runtime passes."""
    return {name for name, own in _by_operator().items() if _number(_outcomes(result, own[:1]), "passes")}


def _outcomes(result: RuntimeResults, cases: Iterable[Case]) -> list[Outcome]:
    return [result.outcomes[case.name] for case in cases if case.name in result.outcomes]


def _number(outcomes: Sequence[Outcome], status: Status) -> int:
    return sum(outcome.status == status for outcome in outcomes)


def _counts(outcomes: Sequence[Outcome]) -> str:
    """Number of cases by status, such as "81 ✓ 3 ≠ 2 ⊘"."""
    counts = {status: _number(outcomes, status) for status in STATUSES}
    return " ".join(f"{count}{_SPACE}{MARKS[status]}" for status, count in counts.items() if count) or "–"


def _cell(result: RuntimeResults, single: Sequence[Case], own: Sequence[Case]) -> str:
    """Marks for a feature on its own, then how many of all cases with it pass."""
    every = _outcomes(result, own)
    if not every:
        return "–"
    passing = _number(every, "passes")
    passed = [case for case in single if str(case.operator) in _passed_operators(result)]
    found = _outcomes(result, passed) or _outcomes(result, single)
    marks = "".join(MARKS[status] for status in STATUSES if _number(found, status))
    if passing == len(every):
        return marks or f"{passing}/{len(every)}"
    if marks == MARKS["passes"]:
        marks = _MIXED
    return _SPACE.join(filter(None, (marks, f"{passing}/{len(every)}")))
