"""The tables of docs/conformance.md: what the kit covers, and how runtimes do, from docs/conformance.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from docs.generate.markdown import code, table
from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases, quantized_cases
from onegru.conformance.factors import all_factors_of, factors_of
from onegru.conformance.report.data import alone, features_of
from onegru.conformance.results import STATUSES, Outcome, RuntimeResults, Status, read_results

#: Where `make conformance` leaves its results.
RESULTS = Path(__file__).resolve().parents[1] / "conformance.json"
MARKS: dict[Status, str] = {"passes": "✓", "differs": "≠", "refuses": "⊘", "crashes": "✗"}
_MIXED = "◐"  # passes alone, but not in every combination
_SPACE = "\u00a0"  # between a number and its mark, which belong on one line


def coverage() -> str:
    """How many cases there are of each operator."""
    rows = []
    for name, own in _by_operator().items():
        single = sum(len(case.choices) == 0 or alone(case) is not None for case in own)
        factors = factors_of(own[0].operator)
        levels = sum(len(factor.levels) for factor in factors.values())
        rows.append([name, *map(str, (len(factors), levels, single, len(own) - single, len(own)))])
    total = ["**all**", "", "", *(str(sum(int(row[at]) for row in rows)) for at in (3, 4, 5))]
    header = ["operator", "factors", "levels", "one thing unusual, or none", "several", "cases"]
    return table(header, [*rows, total])


def factors() -> str:
    """What varies, with its levels."""
    rows: dict[str, dict[str, None]] = {}
    for own in _by_operator().values():
        for name, factor in factors_of(own[0].operator).items():
            rows.setdefault(name, {}).update(dict.fromkeys(factor.levels))
    header = ["factor", "levels, the usual one first"]
    return table(header, ([code(name), "; ".join(levels)] for name, levels in rows.items()))


def runtimes() -> str:
    """How each runtime does on each operator."""
    rows = {**_by_operator(), "**all**": all_cases()}
    return table(_header("operator"), ([name, *_row(own)] for name, own in rows.items()))


def features() -> str:
    """How each runtime does on each feature: alone, and in all cases with it."""
    return table(_header("feature"), _feature_rows())


def quantized() -> str:
    """How each runtime does on each quantized case, and on all of them."""
    one = f"1{_SPACE}"
    rows = [[*_about(case), *(cell.removeprefix(one) for cell in _row([case]))] for case in quantized_cases()]
    return table(
        ["integers", "beside that", "opset", *_header("")[1:]],
        [*rows, ["**all**", "", "", *_row(quantized_cases())]],
    )


def _about(case: Case) -> list[str]:
    """What is stored as integers, what else is unusual, and the opset."""
    own = factors_of(case.operator)
    levels = all_factors_of(case.operator)
    checks = (levels[name].levels[level] for name, level in case.choices.items() if name not in own)
    beside = (f"{name} {level}" for name, level in case.choices.items() if name in own)
    return [" ".join(checks), ", ".join(beside), str(case.opset)]


def _row(cases: Sequence[Case]) -> list[str]:
    return [_counts(_outcomes(result, cases)) for result in _results()]


def _feature_rows() -> Iterator[Sequence[str]]:
    before = ""
    for factor, level in features_of(all_cases()):
        own = [case for case in all_cases() if case.choices.get(factor) == level]
        single = [case for case in own if alone(case) == (factor, level)]
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
    """Those of the last `make conformance`; nothing before the first."""
    return read_results(RESULTS) if RESULTS.exists() else ()


def _header(first: str) -> list[str]:
    found = [first]
    for item in _results():
        options = (value.removesuffix("ExecutionProvider") for value in item.options.values())
        found.append("<br>".join([item.runtime, item.version, *options]))
    return found


def _taken(result: RuntimeResults) -> set[str]:
    """The operators whose plain node it passes."""
    return {name for name, own in _by_operator().items() if _number(_outcomes(result, own[:1]), "passes")}


def _outcomes(result: RuntimeResults, cases: Iterable[Case]) -> list[Outcome]:
    return [result.outcomes[case.name] for case in cases if case.name in result.outcomes]


def _number(outcomes: Sequence[Outcome], status: Status) -> int:
    return sum(outcome.status == status for outcome in outcomes)


def _counts(outcomes: Sequence[Outcome]) -> str:
    """How many there are of each outcome, such as "81 ✓ 3 ≠ 2 ⊘"."""
    counts = {status: _number(outcomes, status) for status in STATUSES}
    return " ".join(f"{count}{_SPACE}{MARKS[status]}" for status, count in counts.items() if count) or "–"


def _cell(result: RuntimeResults, single: Sequence[Case], own: Sequence[Case]) -> str:
    """What comes of a feature alone, as marks; behind that how many of all cases with it pass."""
    every = _outcomes(result, own)
    if not every:
        return "–"
    passing = _number(every, "passes")
    taken = [case for case in single if str(case.operator) in _taken(result)]
    found = _outcomes(result, taken) or _outcomes(result, single)
    marks = "".join(MARKS[status] for status in STATUSES if _number(found, status))
    if passing == len(every):
        return marks or f"{passing}/{len(every)}"
    if marks == MARKS["passes"]:
        marks = _MIXED
    return _SPACE.join(filter(None, (marks, f"{passing}/{len(every)}")))
