"""Write the pages about performance from measurements.

    python -m benchmarks.report [FILE…] [--to FOLDER]

The command merges results from build/benchmarks, or from the given files, into benchmarks/machines, which has
one file for each machine. A new result of a case replaces the old one. Then it writes:

- docs/performance.md, with a column for each machine
- benchmarks/results/performance.md, with a section for each machine
- the pictures of both
- benchmarks/targets.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.harness.turns import ROOT
from benchmarks.page.figures import Parts, drawn_ratios, drawn_threads, of_kind
from benchmarks.page.machines import (
    FOLDER,
    Machines,
    file_name,
    labels,
    machine_of,
    read_machines,
    write_machines,
)
from benchmarks.page.pictures import draw_curves, draw_rows
from benchmarks.page.story import rows_of, story
from benchmarks.page.tables import busy, drawn, paced, rows, table, targets, ways, whole
from benchmarks.page.targets import verdicts
from benchmarks.scoring import scored

__all__ = ["write_report"]

#: Notes about the missed targets, written by hand.
FOUND = Path(__file__).with_name("found.md")
#: Names of the parts of a measurement.
_PARTS = {
    "tables": "real shapes",
    "whole": "whole models",
    "ways": "weight encodings",
    "paced": "calls with pauses",
    "busy": "busy machine",
    "drawn": "random shapes",
    "scoring": "data sets",
}
#: All targets, reached or missed. The page is for developers.
TARGETS = "benchmarks/targets.md"


def write_report(machines: Machines, folder: Path) -> None:
    """Write the pages and pictures to `folder`, and print the missed targets."""
    docs, results = folder / "docs", folder / "benchmarks" / "results"
    for place in (docs, results):
        place.mkdir(parents=True, exist_ok=True)
    for name, parts in machines.items():
        ratios = {threads: drawn_ratios(parts, threads) for threads in drawn_threads(parts)}
        draw_curves(
            {threads: found for threads, found in ratios.items() if found},
            {e["case"]: e["rates"] for e in of_kind(parts, "drawn", "rows")},
            results / _curves(name),
        )
    shown = max(
        machines, key=lambda name: (len(rows_of(machines[name], "2")), _date(machines[name])), default=""
    )
    if shown:
        title = f"{labels(machines)[shown]}, two threads"
        draw_rows(rows_of(machines[shown], "2"), title, docs / "performance.png")
    for page, lines in (
        (docs / "performance.md", story(machines)),
        (results / "performance.md", _tables(machines, results)),
        (folder / TARGETS, _targets(machines)),
    ):
        page.write_text("\n".join(lines).rstrip() + "\n")
    for name, parts in machines.items():
        for verdict in verdicts(parts):
            if not verdict.reached:
                found = f"{verdict.what}, {verdict.threads}: {verdict.found:.4g}, not {verdict.words}"
                print(f"missed on {name}: {found}")
    print(f"wrote {docs / 'performance.md'}, {results / 'performance.md'} and their pictures")


def _curves(name: str) -> str:
    return f"drawn-{file_name(name)}.png"


def _date(parts: Parts) -> str:
    return str(machine_of(parts).get("date"))


def _tables(machines: Machines, folder: Path) -> list[str]:
    lines = [
        "# Performance: raw data",
        "",
        "These are the measurements of [Performance](../../docs/performance.md), written by `make bench`. "
        "The tables show the median time of a call in µs, in float32 with both outputs, an initial state and "
        "biases. A ratio is the fastest other runtime's time divided by onegru's. The spread is the range of "
        "onegru's measurements, relative to their median.",
        "",
    ]
    for name, parts in machines.items():
        lines += [f"## {name}", "", *_origin(parts)]
        for threads, limits in parts.get("tables", {"limits": {}})["limits"].items():
            lines += table(of_kind(parts, "tables", "case", threads), threads, limits)
        curves = _curves(name) if (folder / _curves(name)).exists() else ""
        lines += [*whole(parts), *ways(parts), *scored(parts), *paced(parts), *busy(parts)]
        lines += [*drawn(parts, curves), *rows(parts)]
    return lines


def _targets(machines: Machines) -> list[str]:
    lines = [
        "# Targets",
        "",
        "`python -m benchmarks.report` writes this page for developers of onegru.",
        "",
    ]
    for name, parts in machines.items():
        lines += [f"## {name}", "", *targets(parts)]
    return [*lines, FOUND.read_text()]


def _origin(parts: Parts) -> list[str]:
    """Return the versions and the date of each part."""
    said: dict[str, list[str]] = {}
    for name, document in parts.items():
        machine = document["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
        note = document.get("note", "")
        words = f"Python {machine['python']}, {versions}. Date: {machine['date']}. {note}".strip()
        said.setdefault(words, []).append(_PARTS.get(name, name))
    return [
        line for words, names in said.items() for line in (f"{', '.join(names).capitalize()}: {words}", "")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of build/benchmarks")
    parser.add_argument(
        "--to", type=Path, default=ROOT, help="folder of docs/ and benchmarks/; default: the repository"
    )
    options = parser.parse_args()
    files = options.files or sorted((ROOT / "build" / "benchmarks").glob("*.json"))
    machines = read_machines([*sorted(FOLDER.glob("*.json")), *files])
    write_machines(machines)
    write_report(read_machines(sorted(FOLDER.glob("*.json"))), options.to)  # as rounded in the files


if __name__ == "__main__":
    main()
