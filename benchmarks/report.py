"""From measurements to pages: what was found, what was to be reached, tables and pictures.

    python -m benchmarks.report [FILE…] [--to FOLDER]

takes the files of results in build/benchmarks, or those given, into benchmarks/machines, where each machine
has a file, and writes docs/performance.md, docs/performance-tables.md and their pictures, with a column or a
section for each machine; and benchmarks/targets.md, which is for those who work on onegru. A case that was
measured again replaces the earlier result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

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
from benchmarks.page.tables import beside, drawn, paced, rows, table, targets, ways, whole
from benchmarks.page.targets import verdicts
from benchmarks.scoring import scored
from benchmarks.turns import ROOT

__all__ = ["write_report"]

#: What profiles of the missed targets showed, and what was tried: written by hand.
FOUND = Path(__file__).with_name("found.md")
#: All targets, reached or missed: a page of development, which is no part of the documentation.
TARGETS = "targets.md"


def write_report(machines: Machines, folder: Path) -> None:
    """Write both pages and their pictures, and print the targets that are missed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in machines.items():
        ratios = {threads: drawn_ratios(parts, threads) for threads in drawn_threads(parts)}
        draw_curves(
            {threads: found for threads, found in ratios.items() if found},
            {e["case"]: e["rates"] for e in of_kind(parts, "drawn", "rows")},
            folder / _curves(name),
        )
    shown = max(
        machines, key=lambda name: (len(rows_of(machines[name], "2")), _date(machines[name])), default=""
    )
    if shown:
        title = f"{labels(machines)[shown]}, two threads"
        draw_rows(rows_of(machines[shown], "2"), title, folder / "performance.png")
    for page, lines in (
        ("performance.md", story(machines)),
        ("performance-tables.md", _tables(machines, folder)),
    ):
        (folder / page).write_text("\n".join(lines).rstrip() + "\n")
    (folder / TARGETS).write_text("\n".join(_targets(machines)).rstrip() + "\n")
    for name, parts in machines.items():
        for verdict in verdicts(parts):
            if not verdict.reached:
                told = f"{verdict.what}, {verdict.threads}: {verdict.found:.4g}, not {verdict.words}"
                print(f"missed on {name}: {told}")
    print(f"wrote {folder / 'performance.md'}, {folder / 'performance-tables.md'} and their pictures")


def _curves(name: str) -> str:
    return f"drawn-{file_name(name)}.png"


def _date(parts: Parts) -> str:
    return str(machine_of(parts).get("date"))


def _tables(machines: Machines, folder: Path) -> list[str]:
    lines = [
        "# Performance: every case",
        "",
        "The measurements behind [Performance](performance.md), by machine, made by `make bench`. Median "
        "time of a call in µs; float32, both outputs, an initial state, biases. A ratio is a peer's time "
        "over onegru's, the spread from the lowest to the highest of its turns.",
        "",
    ]
    for name, parts in machines.items():
        lines += [f"## {name}", "", *_origin(parts)]
        for threads, limits in parts.get("tables", {"limits": {}})["limits"].items():
            lines += table(of_kind(parts, "tables", "case", threads), threads, limits)
        curves = _curves(name) if (folder / _curves(name)).exists() else ""
        lines += [*whole(parts), *ways(parts), *scored(parts), *paced(parts), *beside(parts)]
        lines += [*drawn(parts, curves), *rows(parts)]
    return lines


def _targets(machines: Machines) -> list[str]:
    lines = [
        "# What was to be reached",
        "",
        "Made by `python -m benchmarks.report`, for those who work on onegru.",
        "",
    ]
    for name, parts in machines.items():
        lines += [f"## {name}", "", *targets(parts)]
    return [*lines, FOUND.read_text()]


def _origin(parts: Parts) -> list[str]:
    """With what each part was measured, and when."""
    said: dict[str, list[str]] = {}
    for name, document in parts.items():
        machine = document["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
        words = (
            f"Python {machine['python']}, {versions}; {machine['date']}. {document.get('note', '')}".strip()
        )
        said.setdefault(words, []).append(name)
    return [
        line for words, names in said.items() for line in (f"{', '.join(names).capitalize()}: {words}", "")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of build/benchmarks")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="default docs")
    options = parser.parse_args()
    files = options.files or sorted((ROOT / "build" / "benchmarks").glob("*.json"))
    machines = read_machines([*sorted(FOLDER.glob("*.json")), *files])
    write_machines(machines)
    write_report(read_machines(sorted(FOLDER.glob("*.json"))), options.to)  # as rounded in the files
    (options.to / TARGETS).replace(Path(__file__).with_name(TARGETS))


if __name__ == "__main__":
    main()
