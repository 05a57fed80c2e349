"""Create the data of the HTML report, as compact JSON."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onegru.conformance.case import Case
from onegru.conformance.factors import all_factors_of, companions
from onegru.conformance.results import Outcome, RuntimeResults
from onegru.core.dtypes import Array, contiguous

#: The largest number of values of an array on the page, and of characters of a reason.
MOST_NUMBERS, MOST_CHARACTERS = 400, 600

#: The largest number of characters of all arrays; cases with the fewest unusual levels come first.
MOST_ARRAYS = 9_000_000

# Settings of a runtime that are options of the command line, except the target.
_OPTIONS = ("provider", "engine", "precision")


def page_data(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> dict[str, Any]:
    """Return the data of the page; `matrix.js` and `panel.js` display them."""
    ran = [case for case in cases if any(case.name in result.outcomes for result in results)]
    texts = _Texts()
    features = features_of(ran)
    numbers = {feature: number for number, feature in enumerate(features)}
    return {
        "runtimes": [
            {
                "label": result.label,
                "name": result.runtime,
                "version": result.version,
                "options": dict(result.options),
                "command": command(result),
                "status": "".join(_letter(result.outcomes.get(case.name)) for case in ran),
                "outcomes": {
                    number: _outcome(outcome, texts)
                    for number, case in enumerate(ran)
                    if (outcome := result.outcomes.get(case.name)) and outcome.status != "passes"
                },
            }
            for result in results
        ],
        "operators": list(dict.fromkeys(str(case.operator) for case in ran)),
        "features": [[factor, level, checks] for (factor, level), checks in features.items()],
        "cases": [
            [
                case.name,
                str(case.operator),
                [numbers[item] for item in case.choices.items()],
                _number_of_only_level(case, numbers),
                texts.number(case.checks),
                texts.number(case.source),
            ]
            for case in ran
        ],
        "arrays": _arrays(results, ran),
        "texts": list(texts.numbers),
    }


def command(result: RuntimeResults) -> str:
    """Return the shell command that runs a case again; append the case's name."""
    target = result.options.get("target")
    words = [f"ONEGRU_TARGET={target}"] if target else []
    words += ["onegru", "conformance", "run", "--runtime", result.runtime]
    words += [f"--{name}={value}" for name, value in result.options.items() if name in _OPTIONS]
    return f"{' '.join(map(shlex.quote, words))} --case"


def only_level(case: Case) -> tuple[str, str] | None:
    """Return the only unusual factor and level of a case; None if it has none or several."""
    choices = case.choices.items()
    return next((item for item in choices if choices - companions(*item).items() == {item}), None)


def _number_of_only_level(case: Case, numbers: Mapping[tuple[str, str], int]) -> int:
    """Return the number of the case's only unusual level; -1 if it has none, -2 if several."""
    feature = only_level(case)
    return numbers[feature] if feature else -2 if case.choices else -1


def features_of(cases: Sequence[Case]) -> dict[tuple[str, str], str]:
    """Return the unusual levels of cases, with their names, in the factors' order."""
    there = {item for case in cases for item in case.choices.items()}
    operators = {str(case.operator): case.operator for case in cases}
    by_factor: dict[str, dict[tuple[str, str], str]] = {}
    for operator in operators.values():
        for name, factor in all_factors_of(operator).items():
            found = by_factor.setdefault(name, {})
            for level, checks in factor.levels.items():
                if (name, level) in there:
                    found.setdefault((name, level), checks)
    return {feature: checks for found in by_factor.values() for feature, checks in found.items()}


@dataclass
class _Texts:
    """Repeated texts, by number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text, which is added if it is new."""
        return self.numbers.setdefault(text, len(self.numbers))


def _letter(outcome: Outcome | None) -> str:
    return "." if outcome is None else outcome.status[0]


def _outcome(outcome: Outcome, texts: _Texts) -> list[Any]:
    """Return the reason and, if the output differs, the worst value."""
    reason = outcome.reason
    if len(reason) > MOST_CHARACTERS:
        reason = f"{reason[:MOST_CHARACTERS]}…"
    found: list[Any] = [texts.number(reason)]
    if outcome.output is not None:
        found += [outcome.output, list(outcome.where or ())]
        found += [_number(value) for value in (outcome.expected, outcome.got, outcome.tolerance)]
    return found


def _number(value: float | None) -> float | str | None:
    """Return a number for JSON; infinities and NaN by their JavaScript names."""
    if value is None or math.isfinite(value):
        return value if value is None else float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# Arrays


def _arrays(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> dict[int, Any]:
    """Return the attributes, inputs and outputs of the cases that fail in any runtime."""
    found: dict[int, Any] = {}
    left = MOST_ARRAYS
    for number, case in sorted(enumerate(cases), key=lambda item: len(item[1].choices)):
        outcomes = {index: result.outcomes.get(case.name) for index, result in enumerate(results)}
        failed = {index: item for index, item in outcomes.items() if item and item.status != "passes"}
        if not failed:
            continue
        found[number] = {"attributes": {name: str(value) for name, value in case.attributes.items()}}
        if left > 0:
            given = {index: results[index].outputs.get(case.name, {}) for index in failed}
            found[number] |= _numbers_of(case, failed, given)
            left -= sum(len(text) for text in _strings(found[number]))
    return found


def _strings(item: Any) -> list[str]:
    """Return the strings in JSON data."""
    if isinstance(item, str):
        return [item]
    items = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [text for inner in items for text in _strings(inner)]


def _numbers_of(
    case: Case, failed: Mapping[int, Outcome], given: Mapping[int, Mapping[str, Array]]
) -> dict[str, Any]:
    """Return the inputs of a case, and the outputs of each runtime with the expected ones."""
    expected: dict[str, dict[int, Any]] = {}
    got: dict[int, dict[str, Any]] = {}
    for index, outcome in failed.items():
        for name, array in given[index].items():
            should = case.expected.get(name)
            if should is None:
                continue
            worst = outcome.where if outcome.output == name else None
            row = _first_row(should.shape, worst)
            if row not in expected.setdefault(name, {}):
                kind = "f8" if case.dtype == "float64" else "f4"
                expected[name][row] = [_part(item, row, kind) for item in (should, case.tolerance[name])]
            same = np.shape(array) == should.shape
            got.setdefault(index, {})[name] = [row, _part(array, row if same else 0)]
    inputs = {name: _part(array, 0) for name, array in case.inputs.items()}
    return {"inputs": inputs, "expected": expected, "got": got}


def _rows_shown(shape: Sequence[int]) -> int:
    """Return the number of rows, along the last axis, that the page shows of an array."""
    return max(1, MOST_NUMBERS // max(1, shape[-1] if shape else 1))


def _first_row(shape: Sequence[int], worst: Sequence[int] | None) -> int:
    """Return the first of these rows: 0, unless the worst value would be missing."""
    rows = math.prod(shape[:-1])
    if not worst or len(worst) != len(shape) or rows <= _rows_shown(shape):
        return 0
    row = int(np.ravel_multi_index(tuple(worst[:-1]), tuple(shape[:-1]))) if len(shape) > 1 else 0
    return max(0, min(row - _rows_shown(shape) // 2, rows - _rows_shown(shape)))


def _part(array: Array, row: int, kind: str = "") -> list[Any]:
    """Return type, shape and rows of an array, from a row on, as many as the page shows."""
    shape = np.shape(array)
    rows = np.reshape(array, (-1, shape[-1])) if shape and array.size else np.reshape(array, (1, -1))
    shown = rows[row : row + _rows_shown(shape), :MOST_NUMBERS]
    kind = kind or ("f8" if array.dtype == np.float64 else "f4")
    with np.errstate(over="ignore"):
        data = contiguous(shown, f"<{kind}").tobytes()
    return [str(array.dtype), list(shape), kind, base64.b64encode(data).decode()]
