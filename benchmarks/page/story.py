"""The page that a reader sees first: figures, a picture, machines, and which targets are missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.models.cases import Case
from benchmarks.paced import PAUSES
from benchmarks.page.figures import (
    Parts,
    drawn_summary,
    drawn_threads,
    mean_of,
    of_kind,
    ratio,
    threads_of,
    way_ratios,
    whole_times,
    whole_words,
)
from benchmarks.page.machines import Machines, labels, machine_of
from benchmarks.page.targets import LIMITS, Verdict, is_small_step, verdicts
from benchmarks.scoring import scored_figures

__all__ = ["HEADLINE", "story"]

#: The heading of the first table, which docs/index.md shows, too.
HEADLINE = "How many times as fast"
_COUNTS = ("1", "2")

#: A row's name, the number of threads, and the words of a cell.
Cells = Callable[[Parts], Iterator[tuple[str, str, str]]]


def story(machines: Machines) -> list[str]:
    """The lines of the page."""
    return [
        "# Performance",
        "",
        "onegru against ONNX Runtime, OpenVINO and PyTorch on the same CPU: single GRU calls, whole models "
        "and data sets. Every peer runs at its best: constant weights, fixed shapes, bound outputs, "
        "inference mode, pinned threads. Results are checked against float64 first; then all take turns, "
        "and medians count.",
        "",
        f"## {HEADLINE}",
        "",
        *_table("onegru's speed over that of", machines, _speeds),
        "",
        "Geometric mean, and the lowest case in parentheses: below 1, onegru is slower there.",
        "",
        "![How many times as fast as the fastest peer, by shape](performance.png)",
        "",
        "The fastest peer's time over onegru's, float32, in the slower of the two reset modes: single "
        "steps, and the GRUs of models that people run. [The tables](performance-tables.md) have every case.",
        "",
        "## Whole models",
        "",
        "Models of the kinds that people run, made and exported by PyTorch: the ONNX file against ONNX "
        "Runtime, and the IR against OpenVINO.",
        "",
        *_table("model, frames in a call: ONNX / IR", machines, _models),
        "",
        "## How close to the limit",
        "",
        "A large layer is limited by the machine: a batch by its multiply-adds, a single row by the "
        "bandwidth of the cache or memory that holds the weights. A peer that is near that limit as well "
        "cannot be beaten by much, so these are the shares of the limit, lowest to highest, both measured "
        "in the same run.",
        "",
        *_table("share of the limit", machines, _shares),
        "",
        "More than 100 % means that a part of the weights stays in a nearer cache.",
        "",
        "## Targets that are missed",
        "",
        *_missed(machines),
        "",
        "## Machines",
        "",
        *_machines(machines),
        "",
        "All are virtual machines with neighbours: ratios count, not times. `make bench` measures yours.",
    ]


def _table(first: str, machines: Machines, cells: Cells) -> list[str]:
    """Rows by what was measured, columns by machine and number of threads."""
    columns = [(name, count) for name in machines for count in _COUNTS]
    found: dict[str, dict[tuple[str, str], str]] = {}
    for name, parts in machines.items():
        for what, count, words in cells(parts):
            found.setdefault(what, {})[name, count] = words
    called = labels(machines)
    heads = [f"{called[name]}, {threads_of(count)}" for name, count in columns]
    lines = [f"| {first} | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [
        f"| {what} | {' | '.join(row.get(column, '–') for column in columns)} |"
        for what, row in found.items()
    ]
    return lines


def _times(ratios: Sequence[float]) -> str:
    return f"{mean_of(ratios):.2f}× ({min(ratios):.2f}×)"


def _speeds(parts: Parts) -> Iterator[tuple[str, str, str]]:
    for count in drawn_threads(parts):
        if found := drawn_summary(parts, count):
            what = f"ONNX Runtime, {found['shapes']:g} random GRU shapes"
            yield what, count, f"{found['mean']:.2f}× ({found['lowest']:.2f}×)"
    for count in _COUNTS:
        if ratios := [ratio(entry) for entry in of_kind(parts, "tables", "case", count)]:
            yield "the fastest peer, GRU shapes of real models", count, _times(ratios)
    for count in _COUNTS:
        entries = of_kind(parts, "tables", "case", count)
        if ratios := [ratio(entry) for entry in entries if is_small_step(Case.read(entry["case"]).shape)]:
            yield "the fastest peer, single steps of small layers (H ≤ 64)", count, _times(ratios)
    for form, words in (("onnx", "ONNX Runtime, whole ONNX models"), ("ir", "OpenVINO, whole IRs")):
        for count in _COUNTS:
            entries = [e for e in of_kind(parts, "whole", "whole", count) if whole_words(e)[2] == form]
            if ratios := [found[2] / found[0] for found in map(whole_times, entries)]:
                yield words, count, _times(ratios)
    for form, words in (("onnx", "ONNX Runtime, ONNX files"), ("ir", "OpenVINO, IRs")):
        for count in _COUNTS:
            known = way_ratios(parts, count).items()
            if ratios := [ratio for key, pairs in known if key[0] == form for ratio, _ in pairs]:
                yield f"{words} with weights behind other operators and in other types", count, _times(ratios)
    for pace in [pace for pace, (pause, _) in PAUSES.items() if pause]:
        for count in _COUNTS:
            entries = [e for e in of_kind(parts, "paced", "paced", count) if e["pace"] == pace]
            if ratios := [ratio(entry) for entry in entries]:
                yield f"the fastest peer, calls {pace}", count, _times(ratios)
    by_count: dict[str, list[float]] = {}
    for entry in of_kind(parts, "scoring", "scoring"):
        by_count.setdefault(str(entry["threads"]), []).append(scored_figures(entry)[1])
    for count, ratios in by_count.items():
        yield "padded batches in ONNX Runtime, `onegru score` from file to file", count, _times(ratios)


#: How the models of `benchmarks/models/real.py` are called.
_MODELS = {
    "gtcrn": "GTCRN",
    "ulunas": "UL-UNAS",
    "nsnet2": "NSNet2",
    "dfn3": "DeepFilterNet 3",
    "wake word": "wake word",
    "classifier": "classifier",
}


def _models(parts: Parts) -> Iterator[tuple[str, str, str]]:
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for entry in of_kind(parts, "whole", "whole"):
        model, frames, form = whole_words(entry)
        if form in ("onnx", "ir"):
            mine, _, other = whole_times(entry)
            what = f"{_MODELS.get(model, model)}, {frames}"
            cells.setdefault((what, str(entry["threads"])), {})[form] = f"{other / mine:.2f}×"
    for (what, count), found in cells.items():
        yield what, count, " / ".join(found.get(form, "–") for form in ("onnx", "ir"))


def _shares(parts: Parts) -> Iterator[tuple[str, str, str]]:
    for limit in LIMITS:
        for count in parts.get("tables", {"limits": {}})["limits"]:
            if shares := limit.shares(parts, count):
                yield limit.name, count, f"{min(shares):.0%} … {max(shares):.0%}"


def _missed(machines: Machines) -> list[str]:
    called = labels(machines)
    found = {name: verdicts(parts) for name, parts in machines.items()}
    total = sum(map(len, found.values()))
    missed: dict[tuple[str, str], list[Verdict]] = {}
    for name, all_ in found.items():
        for verdict in all_:
            if not verdict.reached:
                missed.setdefault((verdict.what, called[name]), []).append(verdict)
    reached = total - sum(map(len, missed.values()))
    lines = [
        f"Of {total} targets {reached} are reached: [all of them](performance-tables.md#targets). The "
        f"others, as ratios of onegru's speed to a peer's where nothing else is said:",
        "",
        "| what | machine | threads | target | measured |",
        "| --- | --- | --- | --- | ---: |",
    ]
    for (what, machine), members in missed.items():
        cells = zip(*((v.threads, v.words, f"{v.found:.3g}") for v in members), strict=True)
        words = " | ".join(", ".join(dict.fromkeys(cell)) for cell in cells)
        lines.append(f"| {what} | {machine} | {words} |")
    return [*lines, "", "[What holds them back](performance-tables.md#what-holds-the-missed-ones-back)."]


def _machines(machines: Machines) -> list[str]:
    columns = [_machine(label, machines[name]) for name, label in labels(machines).items()]
    lines = [f"| {' | '.join([name, *(column[name] for column in columns)])} |" for name in columns[0]]
    return [lines[0], "| --- |" + " --- |" * len(columns), *lines[1:]]


def _machine(label: str, parts: Parts) -> dict[str, str]:
    """A machine's column, by the names of the rows; the first is the heading."""
    machine = machine_of(parts)
    found = {
        "": label,
        "vendor": str(machine.get("vendor", "–")),
        "cores": str(machine["cores"]),
        "SIMD target": str(machine["target"]),
        "caches a core": ", ".join(
            f"{name} {size >> 10} KiB" for name, size in machine.get("caches", {}).items()
        ),
        "measured": ", ".join(dict.fromkeys(str(document["machine"]["date"]) for document in parts.values())),
    }
    for count in _COUNTS:
        limits = parts.get("tables", {"limits": {}})["limits"].get(count)
        found[f"multiply-adds, {threads_of(count)}"] = f"{limits['fma'] / 1e9:.0f} GFLOP/s" if limits else "–"
        reading = (f"{name} {rate / 1e9:.0f}" for name, _, rate in limits["levels"]) if limits else ()
        found[f"reading, {threads_of(count)}, GB/s"] = ", ".join(reading) or "–"
    return found
