"""Store the results of the suite's cases in runtimes."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onegru.core.arguments import file_path
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.system.atomic_write import write_files
from onegru.system.bounded import check_regular, parse_json

Status = Literal["passes", "differs", "refuses", "crashes"]

#: The possible results of a case, the best first.
STATUSES: tuple[Status, ...] = ("passes", "differs", "refuses", "crashes")

#: The past tense of each result, for counts.
PAST: Mapping[Status, str] = {
    "passes": "passed",
    "differs": "differed",
    "refuses": "refused",
    "crashes": "crashed",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a case in a runtime.

    Attributes:
        status: passes, differs, refuses (the runtime raises an error) or crashes (a signal, an exit, a hang,
            or no memory).
        reason: the reason, in one line; "" if it passes.
        output: if it differs, the output with the largest ratio of error to tolerance.
        where: the index of the value with that ratio.
        expected: the expected value.
        got: the runtime's value.
        tolerance: the largest allowed error.
    """

    status: Status
    reason: str = ""
    output: str | None = None
    where: tuple[int, ...] | None = None
    expected: float | None = None
    got: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class RuntimeResults:
    """Results of all cases in one runtime.

    Attributes:
        runtime: its name.
        version: its version.
        options: other settings, such as precision, provider, engine or SIMD target.
        outcomes: by the case's name. Cases in files that the runtime does not read are omitted, such as an IR
            for ONNX Runtime.
        outputs: the runtime's outputs in the cases that differ, by the names of case and output.
    """

    runtime: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name with its version and options."""
        return " ".join(filter(None, [self.runtime, self.version, *self.options.values()]))

    def counts(self) -> dict[Status, int]:
        """Count the cases of each status."""
        found = Counter(outcome.status for outcome in self.outcomes.values())
        return {status: found[status] for status in STATUSES}

    def summary(self) -> str:
        """Summarize the counts, such as "81 passed, 1 differed"."""
        return ", ".join(f"{number} {PAST[status]}" for status, number in self.counts().items() if number)


def document(results: Sequence[RuntimeResults], *, figures: bool = True) -> dict[str, Any]:
    """Return results for JSON, without the runtimes' outputs."""
    numbers: dict[str, int] = {}
    for name in (name for result in results for name in result.outcomes):
        numbers.setdefault(name, len(numbers))
    runtimes = []
    for result in results:
        groups: dict[str, list[int]] = {}
        for name, outcome in result.outcomes.items():
            groups.setdefault(json.dumps(_fields(outcome, figures)), []).append(numbers[name])
        runtimes.append(
            {
                "runtime": result.runtime,
                "version": result.version,
                "options": dict(result.options),
                "counts": result.counts(),
                "outcomes": [json.loads(fields) | {"cases": cases} for fields, cases in groups.items()],
            }
        )
    return {"cases": list(numbers), "runtimes": runtimes}


def write_results(
    path: str | os.PathLike[str], results: Sequence[RuntimeResults], *, figures: bool = True
) -> None:
    """Write results to a file in the form of `document`, atomically."""
    found = document(results, figures=figures)
    runtimes: list[str] = []
    for entry in found["runtimes"]:
        outcomes = _listed(map(json.dumps, entry.pop("outcomes")))
        runtimes.append(f'{json.dumps(entry)[:-1]}, "outcomes": {outcomes}}}')
    cases = _listed(map(json.dumps, found["cases"]))
    text = f'{{"cases": {cases},\n"runtimes": {_listed(runtimes)}}}\n'
    write_files([(file_path("path", path), lambda file: file.write(text.encode()))])


def read_results(path: str | os.PathLike[str]) -> list[RuntimeResults]:
    """Read results from a file that `write_results` wrote."""
    path = file_path("path", path)
    check_regular(path)
    try:
        read = parse_json(path.read_bytes())
        return [_results(entry, read["cases"]) for entry in read["runtimes"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not results of the conformance suite ({error})") from error


def _listed(texts: Iterable[str]) -> str:
    """Return a list in JSON, with a line for each item."""
    lines = ",\n".join(texts)
    return f"[\n{lines}\n]"


def _fields(outcome: Outcome, figures: bool) -> dict[str, Any]:
    """Return the fields of an outcome; numbers that JSON lacks become names that `float` reads."""
    found = asdict(outcome) if figures else {"status": outcome.status, "reason": outcome.reason}
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
        if value not in (None, "")
    }


def _results(entry: Mapping[str, Any], names: Sequence[str]) -> RuntimeResults:
    found: dict[int, Outcome] = {}
    for fields in entry["outcomes"]:
        more = {name: value for name, value in fields.items() if name != "cases"}
        more |= {name: float(more[name]) for name in ("expected", "got", "tolerance") if name in more}
        more |= {"where": tuple(more["where"])} if "where" in more else {}
        if more["status"] not in STATUSES:
            raise ValueError(f"status {more['status']!r}")
        found |= dict.fromkeys(fields["cases"], Outcome(**more))
    outcomes = {names[number]: found[number] for number in sorted(found)}
    return RuntimeResults(entry["runtime"], entry["version"], dict(entry["options"]), outcomes)
