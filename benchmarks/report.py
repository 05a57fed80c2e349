"""From measurements to pages: what was found, what was to be reached, tables and pictures.

    python -m benchmarks.report [FILE…] [--to FOLDER]

takes the files of results in build/benchmarks, or those given, into benchmarks/machines, where each machine
has a file, and writes docs/performance.md, docs/performance-tables.md and their pictures, with a column or a
section for each machine. A case that was measured again replaces the earlier result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.models.cases import Case
from benchmarks.page.figures import Parts, drawn_ratios, drawn_threads, of_kind, ratio
from benchmarks.page.machines import FOLDER, Machines, file_name, labels, read_machines, write_machines
from benchmarks.page.pictures import draw_curves, draw_ratios
from benchmarks.page.story import story
from benchmarks.page.tables import beside, drawn, paced, rows, table, targets, ways, whole
from benchmarks.page.targets import verdicts
from benchmarks.scoring import scored
from benchmarks.turns import ROOT

__all__ = ["write_report"]

#: What profiles of the missed targets showed, and what was tried: written by hand.
FOUND = Path(__file__).with_name("found.md")


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
    draw_ratios(
        {label: _by_model(machines[name]) for name, label in labels(machines).items()},
        folder / "performance.png",
    )
    for page, lines in (
        ("performance.md", story(machines)),
        ("performance-tables.md", _tables(machines, folder)),
    ):
        (folder / page).write_text("\n".join(lines).rstrip() + "\n")
    for name, parts in machines.items():
        for verdict in verdicts(parts):
            if not verdict.reached:
                told = f"{verdict.what}, {verdict.threads}: {verdict.found:.4g}, not {verdict.words}"
                print(f"missed on {name}: {told}")
    print(f"wrote {folder / 'performance.md'}, {folder / 'performance-tables.md'} and their pictures")


def _curves(name: str) -> str:
    return f"drawn-{file_name(name)}.png"


def _by_model(parts: Parts) -> dict[str, dict[str, float]]:
    """By number of threads, the lower ratio of the two reset modes: single steps, shapes of named models."""
    found: dict[str, dict[str, float]] = {}
    for entry in of_kind(parts, "tables", "case"):
        case = Case.read(entry["case"])
        if (case.shape.origin or case.shape.T == case.shape.B == 1) and not case.decaying:
            by_label = found.setdefault(str(entry["threads"]), {})
            by_label[case.shape.label] = min(ratio(entry), by_label.get(case.shape.label, float("inf")))
    return found


def _tables(machines: Machines, folder: Path) -> list[str]:
    lines = [
        "# Performance: every case",
        "",
        "The measurements behind [Performance](performance.md), by machine, made by `make bench`. Median "
        "time of a call in µs; float32, both outputs, an initial state, biases. A ratio is a peer's time "
        "over onegru's.",
        "",
        "The share of the limit is max(bytes / bandwidth, FLOPs / FMA peak) over the time of a call, both as "
        "measured in the run: R is read once a step, W once for eight rows of X or once a step, from the "
        "smallest cache that holds them. It exceeds 100 % where a part of them stays in a nearer cache.",
        "",
    ]
    for name, parts in machines.items():
        lines += [f"## {name}", "", *_origin(parts), *targets(parts)]
        for threads, limits in parts.get("tables", {"limits": {}})["limits"].items():
            lines += table(of_kind(parts, "tables", "case", threads), threads, limits)
        curves = _curves(name) if (folder / _curves(name)).exists() else ""
        lines += [*whole(parts), *ways(parts), *scored(parts), *paced(parts), *beside(parts)]
        lines += [*drawn(parts, curves), *rows(parts)]
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


if __name__ == "__main__":
    main()
