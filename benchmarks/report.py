"""From measurements to a page: tables, what was to be reached and was it, pictures.

python -m benchmarks.report [FILE…] [--to FOLDER]   writes docs/performance.md and its pictures, of the files
in build/benchmarks or of those given; where two have the same case of a part, the later one counts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.beside import LOOPS
from benchmarks.models.cases import Case
from benchmarks.models.written_out import FUSED_TARGETS
from benchmarks.page.figures import (
    OTHERS,
    Entry,
    Parts,
    beside_ratio,
    drawn_ratios,
    drawn_threads,
    falls,
    mean_of,
    of_kind,
    rate,
    ratio,
    read_parts,
    share,
    times,
    whole_times,
    whole_words,
)
from benchmarks.page.pictures import draw_curves, draw_ratios
from benchmarks.scoring import SCORING_TARGETS, scored, scored_figures
from benchmarks.tables import (
    BESIDE_TARGET,
    DRAWN_TARGET,
    FALL_TARGET,
    beside,
    drawn,
    rows,
    table,
    whole,
)
from benchmarks.turns import ROOT

__all__ = ["TARGETS", "write_report"]

#: regime → the ratio, fastest peer's time over ours, that is to be reached on one thread and on two.
TARGETS = {
    "step 64": (5.0, 5.0),
    "step 128": (3.5, 4.0),
    "step 256": (2.0, 2.0),
    "step 512": (1.5, 1.5),
    "step 1024": (1.3, 1.3),
    "tiny": (5.0, 5.0),
    "sequence 64…128": (1.7, 1.7),
    "sequence 256": (1.4, 1.6),
    "sequence 384…512": (1.2, 1.2),
    "large": (1.15, 1.15),
    "scoring": (1.6, 1.6),
    "batch": (1.3, 1.3),
    "DIEN": (2.0, 2.0),
}
BFLOAT16_TARGET = 1.7  # of the regimes "large" and "step 1024" with 16-bit weights
PEAK_TARGET = 0.85  # of the FMA peak, in the regime "batch" where H is at least 256
LIMIT_TARGET = 0.8  # of what is possible, one row over time where H is at least 256
MEAN_TARGET = 2.0  # geometric mean over all cases
DRAWN_MEANS = (1.8, 2.3)  # of drawn shapes, on one thread and on two
FALL_SIZE = 256
WHOLE_TARGET = 1.0  # of whole models: the lowest ratio
WHOLE_MEANS = (1.25, 1.2)  # and the geometric mean, on one thread and on two
LOADING_TARGET = 1.5  # at most: the time to load one over the runtime's


#: What profiles of the missed targets showed, and what was tried: written by hand.
FOUND = Path(__file__).with_name("found.md")


def write_report(parts: Parts, folder: Path) -> None:
    """Write performance.md and its pictures, and print the targets."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = _targets(parts)
    tables = parts.get("tables", {"limits": {}})["limits"]
    lines = [*_head(parts), *targets]
    for threads, limits in tables.items():
        lines += table(of_kind(parts, "tables", "case", threads), threads, limits)
    lines += [*whole(parts), *scored(parts), *beside(parts), *drawn(parts), *rows(parts), FOUND.read_text()]
    (folder / "performance.md").write_text("\n".join(lines).rstrip() + "\n")
    ratios = {t: {e["case"]: ratio(e) for e in of_kind(parts, "tables", "case", t)} for t in tables}
    draw_ratios({t: found for t, found in ratios.items() if found}, folder / "performance.png")
    draw_curves(
        {t: drawn_ratios(parts, t) for t in drawn_threads(parts)},
        {e["case"]: e["rates"] for e in of_kind(parts, "drawn", "rows")},
        folder / "drawn.png",
    )
    print("\n".join(targets))
    print(f"wrote {folder / 'performance.md'} and its pictures")


def _head(parts: Parts) -> list[str]:
    lines = [
        "# Performance",
        "",
        "Made by `make bench`. Median time of a call in µs; float32, both outputs, an initial state, biases. "
        "Peers at their best: constant weights, static shapes, bound outputs, inference mode, pinned. "
        "Results are checked against float64 first; then all take turns. Figures are of one run on one "
        "machine: ratios count, not times.",
        "",
        "The share of the limit is max(bytes / bandwidth, FLOPs / FMA peak) over the time of a call, both as "
        "measured in the run: R is read once a step, W once for eight rows of X or once a step, from the "
        "smallest cache that holds them. It exceeds 100 % where a part of them stays in a nearer cache.",
        "",
        *(["![ratios](performance.png)", ""] if "tables" in parts else []),
    ]
    said: dict[str, list[str]] = {}
    for name, document in parts.items():
        machine = document["machine"]
        versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
        text = (
            f"{machine['cpu']}, {machine['cores']} cores, SIMD target {machine['target']}; Python "
            f"{machine['python']}, {versions}; {machine['date']}."
        )
        said.setdefault(text, []).append(name)
    for text, names in said.items():
        lines += [text if len(said) == 1 else f"{', '.join(names).capitalize()}: {text}", ""]
    return lines


class Verdicts:
    """The rows of the table of targets."""

    def __init__(self) -> None:
        self.lines = [
            "## Targets",
            "",
            "| regime | threads | target | measured | |",
            "| --- | --- | --- | --- | --- |",
        ]

    def least(self, regime: str, threads: str, wanted: float, found: float) -> None:
        self._add(regime, threads, f"≥ {wanted:g}", found, found >= wanted)

    def most(self, regime: str, threads: str, wanted: float, found: float) -> None:
        self._add(regime, threads, f"≤ {wanted:g}", found, found <= wanted)

    def _add(self, regime: str, threads: str, wanted: str, found: float, reached: bool) -> None:
        verdict = "reached" if reached else "**missed**"
        self.lines.append(f"| {regime} | {threads} | {wanted} | {found:.4g} | {verdict} |")


def _targets(parts: Parts) -> list[str]:
    verdicts = Verdicts()
    ratios: list[float] = []
    for threads, limits in parts.get("tables", {"limits": {}})["limits"].items():
        entries = of_kind(parts, "tables", "case", threads)
        ratios += [ratio(e) for e in entries]
        _table_targets(verdicts, entries, threads, limits)
    if ratios:
        verdicts.least("geometric mean of all", "all", MEAN_TARGET, mean_of(ratios))
    _whole_targets(verdicts, of_kind(parts, "whole", "whole"))
    for entry in of_kind(parts, "scoring", "scoring"):
        name, threads = f"`onegru score`, {entry['case']}", str(entry["threads"])
        share_of_layers, ratio_of_padding, memory = scored_figures(entry)
        verdicts.least(f"{name}, of the layers alone", threads, SCORING_TARGETS[0], share_of_layers)
        verdicts.least(f"{name}, over padding in ONNX Runtime", threads, SCORING_TARGETS[1], ratio_of_padding)
        verdicts.most(f"{name}, MiB of memory", threads, SCORING_TARGETS[2] >> 20, memory / (1 << 20))
    for neighbour in LOOPS:
        members = [e for e in of_kind(parts, "beside", "beside") if e["beside"] == neighbour]
        for kind in ("median", "mean") if members else ():
            highest = max(beside_ratio(e, kind) for e in members)
            verdicts.most(
                f"beside {neighbour}, highest {kind} over the better's", "default", BESIDE_TARGET, highest
            )
    for threads in drawn_threads(parts):
        if found := drawn_ratios(parts, threads):
            verdicts.least(f"lowest of {len(found)} drawn shapes", threads, DRAWN_TARGET, min(found))
            wanted = DRAWN_MEANS[int(threads) > 1]
            verdicts.least("geometric mean of drawn shapes", threads, wanted, mean_of(found))
    for entry in of_kind(parts, "drawn", "rows"):
        if entry["H"] == FALL_SIZE:
            fall = max(falls(entry["rates"]))
            verdicts.most(f"fall of GFLOP/s from B to B + 1, H = {FALL_SIZE}", "1", FALL_TARGET, fall)
    return [*verdicts.lines, ""]


def _whole_targets(verdicts: Verdicts, entries: list[Entry]) -> None:
    for form in dict.fromkeys(whole_words(entry)[2] for entry in entries):
        for threads in dict.fromkeys(str(entry["threads"]) for entry in entries):
            members = [e for e in entries if whole_words(e)[2] == form and str(e["threads"]) == threads]
            if form == "fused":
                for entry in members if threads == "1" else ():
                    model, found = whole_words(entry)[0], whole_times(entry)
                    verdicts.least(
                        f"written out: {model}", threads, FUSED_TARGETS[model], found[2] / found[0]
                    )
                continue
            name = f"whole models, {form}"
            for who, place in (("", 0), (", provider", 1)):
                ratios = [found[2] / found[place] for e in members if (found := whole_times(e))[place] > 0]
                if ratios:
                    verdicts.least(f"{name}{who}, lowest", threads, WHOLE_TARGET, min(ratios))
                    wanted = WHOLE_MEANS[int(threads) > 1]
                    verdicts.least(f"{name}{who}, geometric mean", threads, wanted, mean_of(ratios))
                loads = [f[place] / f[2] for e in members if (f := whole_times(e, "opening"))[place] > 0]
                if loads:
                    verdicts.most(f"{name}{who}, most of loading", threads, LOADING_TARGET, max(loads))


def _table_targets(verdicts: Verdicts, entries: list[Entry], threads: str, limits: Entry) -> None:
    by_regime: dict[str, list[Entry]] = {}
    for entry in entries:
        by_regime.setdefault(Case.read(entry["case"]).shape.regime, []).append(entry)
    for regime, members in by_regime.items():
        if regime in TARGETS:
            found = min(map(ratio, members))
            verdicts.least(regime, threads, TARGETS[regime][int(threads) > 1], found)
    for regime in ("large", "step 1024"):
        narrow = [
            min(times(e, OTHERS).values(), default=math.nan) / time
            for e in by_regime.get(regime, [])
            for time in times(e, ["onegru bfloat16"]).values()
        ]
        if narrow:
            verdicts.least(f"{regime}, bfloat16 weights", threads, BFLOAT16_TARGET, min(narrow))

    def lowest(
        name: str, wanted: float, measured: Callable[[Entry], float], of: Callable[[Case], bool]
    ) -> None:
        found = [measured(e) for e in entries if of(Case.read(e["case"]))]
        if found:
            verdicts.least(name, threads, wanted, min(found))

    lowest(
        "batch, share of the FMA peak, H ≥ 256",
        PEAK_TARGET,
        lambda e: rate(e) / float(limits["fma"]),
        lambda case: case.shape.regime == "batch" and case.shape.H >= 256,
    )
    lowest(
        "one row over time, share of the limit, H ≥ 256",
        LIMIT_TARGET,
        lambda e: share(e, limits),
        lambda case: case.shape.B == 1 and case.shape.T > 1 and case.shape.H >= 256,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of build/benchmarks")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="default docs")
    options = parser.parse_args()
    files = options.files or sorted((ROOT / "build" / "benchmarks").glob("*.json"))
    write_report(read_parts(files), options.to)


if __name__ == "__main__":
    main()
