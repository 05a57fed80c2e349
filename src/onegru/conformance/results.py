"""How runtimes did on the cases of the kit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.system.atomic_write import write_files
from onegru.system.bounded import check_regular, parse_json

Status = Literal["passes", "differs", "refuses", "crashes"]

#: What may come of a case, the best first.
STATUSES: tuple[Status, ...] = ("passes", "differs", "refuses", "crashes")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case in a runtime.

    Attributes:
        status: passes, differs, refuses (an error of the runtime's own) or crashes (a signal, an exit, a
            hang, no memory left).
        reason: why, in one line; empty if it passes.
        output: where it differs, the output that is off by the most times its tolerance.
        where: the index of that number.
        expected: what it should be.
        got: what it is.
        tolerance: how far it may be off.
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
    """What came of all cases in one runtime.

    Attributes:
        runtime: its name.
        version: its version.
        options: what it was asked for beside that, such as its precision, provider, engine or SIMD target.
        outcomes: by the case's name, without cases that are not this runtime's, such as an IR for ONNX
            Runtime.
        outputs: what it gave in the cases where it differs, by the case's name and the output's.
    """

    runtime: str
    version: str
    options: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name with its version and options."""
        return " ".join([self.runtime, self.version, *self.options.values()])

    def counts(self) -> dict[Status, int]:
        """How many cases there are of each status."""
        found = Counter(outcome.status for outcome in self.outcomes.values())
        return {status: found[status] for status in STATUSES}


def document(results: Sequence[RuntimeResults], *, figures: bool = True) -> dict[str, Any]:
    """Results as JSON has them, without the runtimes' outputs.

    Args:
        results: how each runtime did.
        figures: whether to tell the number that is off; it is another one on another processor.

    Returns:
        `lists`: the names of cases, one list for all runtimes that ran the same ones; `runtimes`: each with
        its name, version, options and counts, the number of its list, and what came of the cases that it does
        not pass.
    """
    lists: list[list[str]] = []
    runtimes: list[dict[str, Any]] = []
    for result in results:
        names = list(result.outcomes)
        if names not in lists:
            lists.append(names)
        failed = {name: item for name, item in result.outcomes.items() if item.status != "passes"}
        runtimes.append(
            {
                "runtime": result.runtime,
                "version": result.version,
                "options": dict(result.options),
                "counts": result.counts(),
                "list": lists.index(names),
                "outcomes": {name: _outcome(item, figures) for name, item in failed.items()},
            }
        )
    return {"lists": lists, "runtimes": runtimes}


def write_results(path: Path, results: Sequence[RuntimeResults], *, figures: bool = True) -> None:
    """Write results to a file, as `document` has them, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps(document(results, figures=figures), indent=1, allow_nan=False, ensure_ascii=False)
    write_files([(path, lambda file: file.write(f"{text}\n".encode()))])


def read_results(path: Path) -> list[RuntimeResults]:
    """The results in a file that `write_results` wrote.

    Raises:
        FormatError: it is another file.
        OSError: it cannot be opened.
    """
    check_regular(path)
    try:
        read = parse_json(path.read_bytes())
        return [_results(entry, read["lists"][entry["list"]]) for entry in read["runtimes"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not results of the conformance kit ({error})") from None


def _outcome(outcome: Outcome, figures: bool) -> dict[str, Any]:
    """What there is of an outcome; numbers that JSON has not by the names that `float` reads."""
    found = asdict(outcome) if figures else {"status": outcome.status, "reason": outcome.reason}
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
        if value is not None
    }


def _results(entry: Mapping[str, Any], names: Sequence[str]) -> RuntimeResults:
    outcomes = {name: Outcome("passes") for name in names}
    for name, fields in entry["outcomes"].items():
        figures = {key: float(fields[key]) for key in ("expected", "got", "tolerance") if key in fields}
        where = {"where": tuple(fields["where"])} if "where" in fields else {}
        if fields["status"] not in STATUSES:
            raise ValueError(f"status {fields['status']!r}")
        outcomes[name] = Outcome(**{**fields, **figures, **where})
    return RuntimeResults(entry["runtime"], entry["version"], dict(entry["options"]), outcomes)
