"""The tables of the page, one for each kind of results."""

from __future__ import annotations

import math

from benchmarks.beside import CONTENDERS
from benchmarks.drawn import AGAINST, ROWS_STEPS
from benchmarks.models.cases import MOST_FLOPS, SIZES
from benchmarks.page.figures import (
    OTHERS,
    Entry,
    Parts,
    beside_ratio,
    drawn_summary,
    drawn_threads,
    falls,
    of_kind,
    rate,
    ratio,
    summary_of,
    threads_of,
    times,
    way_ratios,
    way_words,
    whole_times,
    whole_words,
)
from benchmarks.page.targets import BESIDE_TARGET, FALL_TARGET, LOWEST, verdicts
from benchmarks.turns import AGAIN

__all__ = ["beside", "drawn", "paced", "rows", "table", "targets", "ways", "whole"]

_SUMMARY = "lowest | 5 % | median | geometric mean"


def targets(parts: Parts) -> list[str]:
    """All targets, and what was measured."""
    lines = [
        "| what | threads | target | measured | |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for verdict in verdicts(parts):
        reached = "reached" if verdict.reached else "missed"
        lines.append(
            f"| {verdict.what} | {verdict.threads} | {verdict.words} | {verdict.found:.4g} | {reached} |"
        )
    return [*lines, ""]


def table(entries: list[Entry], threads: str, limits: Entry) -> list[str]:
    said = ", ".join(
        f"{name} {rate / 1e9:.0f} GB/s" + (f" ({size >> 10} KB a core)" if size else "")
        for name, size, rate in limits["levels"]
    )
    names = ("onegru", "onegru step", "onegru alloc", "onegru bfloat16", *OTHERS)
    lines = [
        f"### {threads_of(threads)}",
        "",
        f"FMA peak {limits['fma'] / 1e9:.0f} GFLOP/s; reading: {said}.",
        "",
        f"| T,B,I,H,D reset | {' | '.join(names)} | ratio | spread | GFLOP/s | of peak |",
        "| --- |" + " ---: |" * (len(names) + 4),
    ]
    for entry in entries:
        cells = [f"{found[n] * 1e6:.1f}" if n in (found := times(entry, names)) else "" for n in names]
        mine = entry["peers"]["onegru"]
        spread = f"{(mine['high'] - mine['low']) / mine['median']:.0%}" if "high" in mine else ""
        flops = rate(entry)
        lines.append(
            f"| {entry['case']} | {' | '.join(cells)} | {ratio(entry):.2f} | {spread} | {flops / 1e9:.0f} "
            f"| {flops / limits['fma']:.0%} |"
        )
    return [*lines, ""] if entries else []


def whole(parts: Parts) -> list[str]:
    entries = of_kind(parts, "whole", "whole")
    lines = [
        "### Whole models",
        "",
        "Models of the kinds that people run, made and exported by PyTorch with fixed seeds "
        "(`benchmarks/models/real.py`); µs a call. onegru by `onegru.load`, and by "
        "`onegru.execution_provider` in ONNX Runtime's own session; the runtime by itself. An IR as the "
        "file is, with open sizes, and reshaped by OpenVINO to the sizes that arrive, which `onegru.load` "
        "does by itself. Fused: a file whose GRU is decomposed into other operators "
        "(`benchmarks/models/decomposed.py`), which the runtime runs as it is, and onegru with "
        "`fuse=True`. Last, milliseconds to load.",
        "",
        "| model | frames | form | threads | onegru | provider | the runtime | ratio | loads | the runtime |",
        "| --- | ---: | --- | --- |" + " ---: |" * 6,
    ]
    for entry in entries:
        model, frames, form = whole_words(entry)
        mine, provider, other = whole_times(entry)
        loads = [f"{1e3 * seconds:.1f}" for seconds in whole_times(entry, "opening")]
        own = "" if math.isnan(provider) else f"{provider * 1e6:.1f}"
        cells = [model, frames, form, entry["threads"], f"{mine * 1e6:.1f}", own, f"{other * 1e6:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} | {other / mine:.2f} | {loads[0]} | {loads[2]} |")
    return [*lines, ""] if entries else []


def ways(parts: Parts) -> list[str]:
    """Models by the ways in which they carry weights; those of them that are slower by name."""
    lines = [
        "### Ways of carrying weights",
        "",
        "A GRU and a dense layer in files drawn from a seed (`benchmarks/models/ways.py`): matrices behind "
        "other operators, in float16, int8 and int4, as defaults of inputs, in bodies and functions, by "
        "PyTorch's exporters, ONNX Runtime's quantisers and OpenVINO's converter, sizes fixed and open. The "
        "time of the runtime alone on the same file over onegru's; 0 where onegru refuses it or is wrong.",
        "",
        f"| what | threads | models | {_SUMMARY} | below 1 |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    slower: list[str] = []
    for threads in ("1", "2"):
        for key, pairs in way_ratios(parts, threads).items():
            lines.append(f"| {way_words(*key)} | {threads} {_summary([ratio for ratio, _ in pairs])} |")
            for value, entry in pairs:
                if value < LOWEST:
                    refusal = entry["peers"][key[1]].get("refuses", "")
                    words = (
                        f"{way_words(*key)}, {threads_of(threads)}: `{entry['case']}`, {value:.2f} {refusal}"
                    )
                    slower.append(f"- {words.rstrip()}")
    known = of_kind(parts, "ways", "way")
    return [*lines, "", *(["Below 1:", "", *slower, ""] if slower else [])] if known else []


def _summary(ratios: list[float]) -> str:
    found = summary_of(ratios)
    cells = " | ".join(f"{found[kind]:.2f}" for kind in ("lowest", "low", "median", "mean"))
    return f"| {found['shapes']:g} | {cells} | {found['below']:g}"


def paced(parts: Parts) -> list[str]:
    names = ("onegru", *OTHERS)
    entries = of_kind(parts, "paced", "paced")
    lines = [
        "### Calls with pauses",
        "",
        "Median of a call in µs, reset after, asleep before each for so long, as where frames or requests "
        "come; then the fastest peer's time over onegru's, and how much of a CPU a runtime's other threads "
        "use in the last half of the pauses.",
        "",
        f"| T,B,I,H,D | calls | threads | {' | '.join(names)} | ratio | onegru's helpers | ONNX Runtime's |",
        "| --- | --- | --- |" + " ---: |" * (len(names) + 3),
    ]
    for entry in entries:
        cells = [f"{found[n] * 1e6:.0f}" if n in (found := times(entry, names)) else "" for n in names]
        cells.append(f"{ratio(entry):.2f}")
        idle = times(entry, ["onegru", AGAINST], "idle")
        cells += [f"{idle[name]:.1%}" if name in idle else "–" for name in ("onegru", AGAINST)]
        first = f"| {entry['case'].split()[0]} | {entry['pace']} | {entry['threads']}"
        lines.append(f"{first} | {' | '.join(cells)} |")
    return [*lines, ""] if entries else []


def beside(parts: Parts) -> list[str]:
    names = " | ".join(f"{name} median | mean" for name in CONTENDERS)
    entries = of_kind(parts, "beside", "beside")
    lines = [
        "### Beside other processes",
        "",
        "Median and mean of single calls in µs, with as many threads as onegru and ONNX Runtime choose by "
        "themselves, and of onegru with one; reset after, nothing pinned. Beside busy loops, which are "
        "processes of the same priority; and in turns with calls of an ONNX Runtime session in the same "
        "process, whose threads go on spinning. Last, the default's time over the better of the other two.",
        "",
        f"| T,B,I,H,D | beside | {names} | median | mean | |",
        "| --- | --- |" + " ---: |" * (2 * len(CONTENDERS) + 2) + " --- |",
    ]
    for entry in entries:
        cells = [
            f"{times(entry, [name], kind).get(name, math.nan) * 1e6:.1f}"
            for name in CONTENDERS
            for kind in ("median", "mean")
        ]
        found = [beside_ratio(entry, kind) for kind in ("median", "mean")]
        verdict = "reached" if max(found) <= BESIDE_TARGET else "missed"
        lines.append(
            f"| {entry['case'].split()[0]} | {entry['beside']} | {' | '.join(cells)} | {found[0]:.2f} "
            f"| {found[1]:.2f} | {verdict} |"
        )
    return [*lines, ""] if entries else []


def drawn(parts: Parts, picture: str = "") -> list[str]:
    """The drawn shapes; `picture` is the file of their curves."""
    if not drawn_threads(parts):
        return []
    sizes = ", ".join(f"{name} {low}…{high}" for name, (low, high) in SIZES.items())
    lines = [
        "### Random shapes",
        "",
        f"Drawn from seed {parts['drawn']['settings']['seed']}: {sizes}, each uniform on a logarithmic "
        f"scale; one and both directions, both places of the reset gate; a call of more than "
        f"{MOST_FLOPS / 1e9:g} GFLOP is drawn again. A peer's time over onegru's; whatever came out below "
        f"{AGAIN} was measured again, longer, and that counts.",
        "",
        *([f"![random shapes]({picture})", ""] if picture else []),
        f"| threads | shapes | {_SUMMARY} | below 1 |",
        "| --- |" + " ---: |" * 6,
    ]
    slower: list[str] = []
    for threads in drawn_threads(parts):
        entries, found = of_kind(parts, "drawn", "drawn", threads), drawn_summary(parts, threads)
        cells = " | ".join(f"{found[kind]:.2f}" for kind in ("lowest", "low", "median", "mean"))
        lines.append(f"| {threads} | {found['shapes']:g} | {cells} | {found['below']:g} |")
        for value, entry in sorted(((ratio(e, [AGAINST]), e) for e in entries), key=lambda pair: pair[0]):
            if value < LOWEST:
                refusal = entry["peers"]["onegru"].get("refuses", "")
                slower.append(f"- {threads_of(threads)}: {entry['case']}, {value:.3f} {refusal}".rstrip())
    return [*lines, "", *(["Below 1, as T,B,I,H,D reset:", "", *slower, ""] if slower else [])]


def rows(parts: Parts) -> list[str]:
    entries = of_kind(parts, "drawn", "rows")
    if not entries:
        return []
    lines = [
        "### Every number of rows",
        "",
        f"GFLOP/s on one thread, I = H, T = {ROWS_STEPS}, reset after; in bold what is more than "
        f"{FALL_TARGET:.0%} below the row before.",
        "",
        f"| B | {' | '.join(e['case'] for e in entries)} |",
        "| --- |" + " ---: |" * len(entries),
    ]
    for index in range(max(len(e["rates"]) for e in entries)):
        cells = []
        for rates in (e["rates"] for e in entries):
            cell = f"{rates[index] / 1e9:.0f}" if index < len(rates) else ""
            cells.append(f"**{cell}**" if cell and falls(rates)[index] > FALL_TARGET else cell)
        lines.append(f"| {index + 1} | {' | '.join(cells)} |")
    return [*lines, ""]
