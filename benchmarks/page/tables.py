"""Tables of the raw data, one for each kind of results."""

from __future__ import annotations

import math

from benchmarks.harness.turns import AGAIN
from benchmarks.models.cases import MOST_FLOPS, SIZES
from benchmarks.page.figures import (
    IN_BFLOAT16,
    OTHERS,
    Entry,
    Parts,
    busy_ratio,
    drawn_summary,
    drawn_threads,
    falls,
    load_words,
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
from benchmarks.page.targets import BUSY_TARGET, FALL_TARGET, LOWEST, verdicts
from benchmarks.parts.busy import CONTENDERS
from benchmarks.parts.drawn import AGAINST, ROWS_STEPS

__all__ = ["busy", "drawn", "paced", "rows", "table", "targets", "ways", "whole"]

_SUMMARY = "lowest | 5 % | median | geometric mean"


def targets(parts: Parts) -> list[str]:
    """Return all targets, with the measured values."""
    lines = [
        "| case | threads | target | measured | result |",
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
        f"{name} {rate / 1e9:.0f} GB/s" + (f" ({size >> 10} KB per core)" if size else "")
        for name, size, rate in limits["levels"]
    )
    names = ["onegru", "onegru step", "onegru alloc", "onegru bfloat16", *OTHERS]
    names += [name for name in IN_BFLOAT16 if any(times(entry, [name]) for entry in entries)]
    lines = [
        f"### {threads_of(threads)}",
        "",
        f"Peak of multiply-adds: {limits['fma'] / 1e9:.0f} GFLOP/s. Read bandwidth: {said}.",
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
        "The models are common kinds, built and exported by PyTorch with fixed seeds "
        "(`benchmarks/models/real.py`). Times are in µs per call.",
        "",
        "- *onegru* is `onegru.load`.",
        "- *provider* is `onegru.execution_provider` in a session of ONNX Runtime.",
        "- *runtime* is the file's own runtime without onegru.",
        "- *ir* is the file with dynamic shapes.",
        "- *ir, reshaped* is the file after OpenVINO's `reshape`, which `onegru.load` does automatically.",
        "- *fused* is a file with a decomposed GRU (`benchmarks/models/decomposed.py`). The runtime runs it "
        "unchanged, and onegru runs it with `fuse=True`.",
        "",
        "| model | frames | file | threads | onegru | provider | runtime | ratio | onegru loads, ms "
        "| runtime loads, ms |",
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
    """Return models with different weight encodings, and a list of the slower ones."""
    lines = [
        "### Weight encodings",
        "",
        "Each file has a GRU and a dense layer, and is generated from a seed (`benchmarks/models/ways.py`). "
        "Weights pass through other operators, are float16, int8 or int4, are defaults of inputs, or are in "
        "subgraphs and functions. PyTorch's exporters, ONNX Runtime's quantizers and OpenVINO's converter "
        "write the files, with fixed and dynamic shapes.",
        "",
        "A ratio is the time of the runtime without onegru, divided by onegru's. It is 0 if onegru rejects "
        "the file or is wrong.",
        "",
        f"| case | threads | models | {_SUMMARY} | below 1 |",
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
        "The table shows the median time of a call in µs, with the reset gate after the matmul. The program "
        "sleeps before each call, like a program that waits for frames or requests. A ratio is the fastest "
        "other runtime's time divided by onegru's. The last two columns show the CPU use of each runtime's "
        "other threads in the last half of the pauses.",
        "",
        f"| T,B,I,H,D | calls | threads | {' | '.join(names)} | ratio | onegru's threads "
        "| ONNX Runtime's threads |",
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


def busy(parts: Parts) -> list[str]:
    names = " | ".join(f"{name} median | mean" for name in CONTENDERS)
    entries = of_kind(parts, "busy", "busy")
    lines = [
        "### Busy machine",
        "",
        "The table shows the median and mean time of single calls in µs, with the reset gate after the "
        "matmul. onegru and ONNX Runtime use their default number of threads, and onegru also one thread. "
        "No thread is pinned.",
        "",
        "Busy loops are processes with the same priority. The spinning session is an ONNX Runtime session in "
        "the same process. Its calls alternate with the measured calls, and its threads keep spinning. The "
        "columns median and mean show the default's time divided by the better of the other two.",
        "",
        f"| T,B,I,H,D | load | {names} | median | mean | target |",
        "| --- | --- |" + " ---: |" * (2 * len(CONTENDERS) + 2) + " --- |",
    ]
    for entry in entries:
        cells = [
            f"{times(entry, [name], kind).get(name, math.nan) * 1e6:.1f}"
            for name in CONTENDERS
            for kind in ("median", "mean")
        ]
        found = [busy_ratio(entry, kind) for kind in ("median", "mean")]
        verdict = "reached" if max(found) <= BUSY_TARGET else "missed"
        lines.append(
            f"| {entry['case'].split()[0]} | {load_words(entry['load'])} | {' | '.join(cells)} "
            f"| {found[0]:.2f} | {found[1]:.2f} | {verdict} |"
        )
    return [*lines, ""] if entries else []


def drawn(parts: Parts, picture: str = "") -> list[str]:
    """Return random shapes. `picture` is the file with their curves."""
    if not drawn_threads(parts):
        return []
    sizes = ", ".join(f"{name} {low}…{high}" for name, (low, high) in SIZES.items())
    lines = [
        "### Random shapes",
        "",
        f"The shapes are generated from seed {parts['drawn']['settings']['seed']}: {sizes}, each uniform on "
        f"a logarithmic scale. They have one or two directions, and both reset modes. A call with more than "
        f"{MOST_FLOPS / 1e9:g} GFLOP is replaced. A ratio is ONNX Runtime's time divided by onegru's. Ratios "
        f"below {AGAIN} were measured again for longer, and the second result counts.",
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
        "### Each batch size",
        "",
        f"The table shows GFLOP/s on one thread, with I = H, T = {ROWS_STEPS} and the reset gate after the "
        f"matmul. A bold value is more than {FALL_TARGET:.0%} below the value for the previous batch size.",
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
