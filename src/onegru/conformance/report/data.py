"""The data of the HTML report, as compact JSON."""

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

#: How many numbers of an array the page has at most, and how many characters of a reason.
MOST_NUMBERS, MOST_CHARACTERS = 400, 600

#: How many characters arrays may take up altogether; cases with the fewest unusual things come first.
MOST_ARRAYS = 9_000_000

# Settings of a runtime that are options of the command line, except the target.
_OPTIONS = ("provider", "engine", "precision")


def page_data(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> dict[str, Any]:
    """The data of the page; see `matrix.js` and `panel.js` for what is made of them."""
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
                _number_alone(case, numbers),
                texts.number(case.checks),
                texts.number(case.source),
            ]
            for case in ran
        ],
        "arrays": _arrays(results, ran),
        "texts": list(texts.numbers),
    }


def command(result: RuntimeResults) -> str:
    """What runs a case again, in a shell; the case's name is to follow."""
    target = result.options.get("target")
    words = [f"ONEGRU_TARGET={target}"] if target else []
    words += ["onegru", "conformance", "run", "--runtime", result.runtime]
    words += [f"--{name}={value}" for name, value in result.options.items() if name in _OPTIONS]
    return f"{' '.join(map(shlex.quote, words))} --case"


def alone(case: Case) -> tuple[str, str] | None:
    """The one unusual thing of a case, as factor and level; None where there are several, or none."""
    choices = case.choices.items()
    return next((item for item in choices if choices - companions(*item).items() == {item}), None)


def _number_alone(case: Case, numbers: Mapping[tuple[str, str], int]) -> int:
    """The number of the case's one unusual thing; -1 where there is none, -2 where there are several."""
    feature = alone(case)
    return numbers[feature] if feature else -2 if case.choices else -1


def features_of(cases: Sequence[Case]) -> dict[tuple[str, str], str]:
    """The features of cases, that is unusual levels, by factor and level in the factors' order."""
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
    """Texts that come again and again, by number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of a text, from now on if it had none."""
        return self.numbers.setdefault(text, len(self.numbers))


def _letter(outcome: Outcome | None) -> str:
    return "." if outcome is None else outcome.status[0]


def _outcome(outcome: Outcome, texts: _Texts) -> list[Any]:
    """The reason; where it differs also the worst number."""
    reason = outcome.reason
    if len(reason) > MOST_CHARACTERS:
        reason = f"{reason[:MOST_CHARACTERS]}…"
    found: list[Any] = [texts.number(reason)]
    if outcome.output is not None:
        found += [outcome.output, list(outcome.where or ())]
        found += [_number(value) for value in (outcome.expected, outcome.got, outcome.tolerance)]
    return found


def _number(value: float | None) -> float | str | None:
    """A number for JSON; infinities and NaN by their JavaScript names."""
    if value is None or math.isfinite(value):
        return value if value is None else float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# ---- arrays


def _arrays(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> dict[int, Any]:
    """The attributes, inputs and outputs of the cases that fail anywhere."""
    found: dict[int, Any] = {}
    left = MOST_ARRAYS
    for number, case in sorted(enumerate(cases), key=lambda item: len(item[1].choices)):
        outcomes = {index: result.outcomes.get(case.name) for index, result in enumerate(results)}
        failed = {index: item for index, item in outcomes.items() if item and item.status != "passes"}
        if not failed:
            continue
        found[number] = {"attributes": _attributes(case)}
        if left > 0:
            given = {index: results[index].outputs.get(case.name, {}) for index in failed}
            found[number] |= _numbers_of(case, failed, given)
            left -= sum(len(text) for text in _strings(found[number]))
    return found


def _attributes(case: Case) -> dict[str, str]:
    return {name: str(value) for name, value in case.attributes.items()}


def _strings(item: Any) -> list[str]:
    """The strings in JSON data."""
    if isinstance(item, str):
        return [item]
    items = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return [text for inner in items for text in _strings(inner)]


def _numbers_of(
    case: Case, failed: Mapping[int, Outcome], given: Mapping[int, Mapping[str, Array]]
) -> dict[str, Any]:
    """The inputs of a case; and by runtime what its outputs are, with what they should be."""
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
    """How many rows, along the last axis, the page has of an array."""
    return max(1, MOST_NUMBERS // max(1, shape[-1] if shape else 1))


def _first_row(shape: Sequence[int], worst: Sequence[int] | None) -> int:
    """The first of these rows: 0, unless the worst number would not be among them."""
    rows = math.prod(shape[:-1])
    if not worst or len(worst) != len(shape) or rows <= _rows_shown(shape):
        return 0
    row = int(np.ravel_multi_index(tuple(worst[:-1]), tuple(shape[:-1]))) if len(shape) > 1 else 0
    return max(0, min(row - _rows_shown(shape) // 2, rows - _rows_shown(shape)))


def _part(array: Array, row: int, kind: str = "") -> list[Any]:
    """Type and shape of an array, and its rows from one on, as many as there is room for."""
    shape = np.shape(array)
    rows = np.reshape(array, (-1, shape[-1])) if shape and array.size else np.reshape(array, (1, -1))
    shown = rows[row : row + _rows_shown(shape), :MOST_NUMBERS]
    kind = kind or ("f8" if array.dtype == np.float64 else "f4")
    with np.errstate(over="ignore"):
        data = contiguous(shown, f"<{kind}").tobytes()
    return [str(array.dtype), list(shape), kind, base64.b64encode(data).decode()]
