"""Text of docs/performance.md: the first table, the method, and where onegru is not faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.models.cases import Case, Shape
from benchmarks.page.figures import (
    IN_BFLOAT16,
    OTHERS,
    Parts,
    drawn_ratios,
    drawn_summary,
    mean_of,
    of_kind,
    ratio,
    times,
    way_ratios,
    whole_times,
    whole_words,
)
from benchmarks.page.machines import Machines, labels, machine_of
from benchmarks.page.targets import LIMITS, is_small_step

__all__ = ["ROWS", "rows_of", "story"]

_COUNTS = ("1", "2")
#: The IRs of the rows. OpenVINO gets fixed sizes, because it is slower with dynamic shapes.
_IR = "ir, reshaped"


def _tables(of: Callable[[Shape], bool] = lambda shape: True) -> Callable[[Parts, str], list[float]]:
    def ratios(parts: Parts, threads: str) -> list[float]:
        entries = of_kind(parts, "tables", "case", threads)
        return [ratio(entry) for entry in entries if of(Case.read(entry["case"]).shape)]

    return ratios


def _whole(form: str) -> Callable[[Parts, str], list[float]]:
    def ratios(parts: Parts, threads: str) -> list[float]:
        entries = [e for e in of_kind(parts, "whole", "whole", threads) if whole_words(e)[2] == form]
        return [found[2] / found[0] for found in map(whole_times, entries)]

    return ratios


def _opening(form: str) -> Callable[[Parts, str], list[float]]:
    """Return a function: onegru's time to open a file, divided by the time of the file's own runtime."""

    def ratios(parts: Parts, threads: str) -> list[float]:
        entries = [e for e in of_kind(parts, "whole", "whole", threads) if whole_words(e)[2] == form]
        return [found[0] / found[2] for found in (whole_times(entry, "opening") for entry in entries)]

    return ratios


def _paced(parts: Parts, threads: str) -> list[float]:
    entries = of_kind(parts, "paced", "paced", threads)
    return [ratio(entry) for entry in entries if entry["pace"] == "every 10 ms"]


def _in_bfloat16(parts: Parts, threads: str) -> list[float]:
    found = [times(entry, IN_BFLOAT16) for entry in of_kind(parts, "tables", "case", threads)]
    return [pair[IN_BFLOAT16[1]] / pair[IN_BFLOAT16[0]] for pair in found if len(pair) == 2]


_FASTEST = "fastest other runtime"
#: The rows of the first table and of the picture: the baseline, and all ratios.
ROWS: Mapping[str, tuple[str, Callable[[Parts, str], list[float]]]] = {
    "one step of a small layer": (_FASTEST, _tables(is_small_step)),
    "GRUs of real models": (_FASTEST, _tables()),
    "GRUs of random shapes": ("ONNX Runtime", drawn_ratios),
    "batches in bfloat16 (AMX)": ("OpenVINO at its default precision", _in_bfloat16),
    "whole ONNX models": ("ONNX Runtime", _whole("onnx")),
    "whole OpenVINO models": ("OpenVINO", _whole(_IR)),
    "a call every 10 ms": (_FASTEST, _paced),
}


def rows_of(parts: Parts, threads: str) -> dict[str, list[float]]:
    """Return the ratios of each measured row, the lowest first."""
    return {row: sorted(found) for row, (_, of) in ROWS.items() if (found := of(parts, threads))}


def _mean(parts: Parts, row: str, threads: str) -> float:
    found = ROWS[row][1](parts, threads)
    if not found and row == "GRUs of random shapes" and "drawn" in parts:
        return float(drawn_summary(parts, threads).get("mean", 0.0))
    return mean_of(found)


def story(machines: Machines) -> list[str]:
    """Return the lines of the page."""
    return [
        "# Performance",
        "",
        "Read this page to decide whether onegru makes your model faster. The table shows the geometric mean "
        "of the speed-up on one thread / on two threads. Both sides of a ratio come from the same run on the "
        "same CPU.",
        "",
        *_first_table(machines),
        "",
        "![Speed of onegru relative to other runtimes](performance.png)",
        "",
        "Bars show the geometric mean on two threads, and lines show the range over all cases. Below 1, "
        "onegru is slower: [Where it is not faster](#where-it-is-not-faster) explains these cases.",
        "",
        "## How it was measured",
        "",
        "- **Baselines**: ONNX Runtime, OpenVINO and PyTorch with constant weights, fixed shapes, bound "
        "outputs and inference mode. All runtimes use the same number of pinned threads.",
        "- **Order**: the runtimes alternate in seven rounds, each for a tenth of a second. The table uses "
        "medians. Results are checked against float64 first.",
        "- **Cases**: GRUs of real models, which the kernels were tuned for, and 300 random shapes, which "
        "they were not tuned for. Both reset modes are measured. Real models are compared with the fastest "
        "other runtime in each case, and random shapes with ONNX Runtime.",
        "- **bfloat16**: OpenVINO computes in bfloat16 by default on CPUs with AMX. The row compares it with "
        "onegru's bfloat16 weights and activations in all cases with several rows.",
        "- **Second measurement**: random shapes with a ratio below 1.05 were measured again for longer. Low "
        "ratios are therefore more reliable, and biased slightly upwards.",
        "- **Whole models**: `onegru.load` is compared with the file's own runtime. OpenVINO gets fixed "
        "sizes (`reshape`), because it is usually faster with them.",
        "- **Your machine**: run `make bench`. The [raw data](../benchmarks/results/performance.md) have all "
        "times and spreads.",
        "",
        "## Where it is not faster",
        "",
        *_limits(machines),
        "",
        "## Whole models",
        "",
        "The table shows the speed-up of models that were exported by PyTorch, on one thread: the ONNX file "
        "compared with ONNX Runtime / the IR compared with OpenVINO.",
        "",
        *_table("model, frames in a call", machines, _models),
        "",
        "## Machines",
        "",
        *_machines(machines),
        "",
        "All machines are virtual, with two cores and other tenants. Compare ratios, not times.",
    ]


def _columns(machines: Machines) -> dict[str, str]:
    return labels(machines)


def _first_table(machines: Machines) -> list[str]:
    found = {
        name: {row: [_mean(parts, row, count) for count in _COUNTS] for row in ROWS}
        for name, parts in machines.items()
    }
    heads = " | ".join(_columns(machines).values())
    lines = [f"| | baseline | {heads} |", "| --- | --- |" + " ---: |" * len(machines)]
    for row, (baseline, _) in ROWS.items():
        cells = [
            " / ".join(f"{mean:.1f}×" if mean else "–" for mean in rows[row]) if any(rows[row]) else "–"
            for rows in found.values()
        ]
        lines.append(f"| {row} | {baseline} | {' | '.join(cells)} |")
    return lines


#: The cells of a machine on one thread: pairs of a row's name and a text.
Cells = Callable[[Parts], Iterator[tuple[str, str]]]


def _table(first: str, machines: Machines, cells: Cells) -> list[str]:
    """Return a table with a column for each machine."""
    found: dict[str, dict[str, str]] = {}
    known = {name: dict(cells(parts)) for name, parts in machines.items()}
    called = {name: label for name, label in _columns(machines).items() if known[name]}
    for name in called:
        for what, words in known[name].items():
            found.setdefault(what, {})[name] = words
    lines = [f"| {first} | {' | '.join(called.values())} |", "| --- |" + " ---: |" * len(called)]
    lines += [
        f"| {what} | {' | '.join(row.get(name, '–') for name in called)} |" for what, row in found.items()
    ]
    return lines


#: Names of the models of `benchmarks/models/real.py`.
_MODELS = {
    "gtcrn": "GTCRN",
    "ulunas": "UL-UNAS",
    "nsnet2": "NSNet2",
    "dfn3": "DeepFilterNet 3",
    "wake word": "wake word",
    "classifier": "classifier",
}


def _models(parts: Parts) -> Iterator[tuple[str, str]]:
    cells: dict[str, dict[str, str]] = {}
    for entry in of_kind(parts, "whole", "whole", "1"):
        model, frames, form = whole_words(entry)
        if form in ("onnx", _IR):
            mine, _, other = whole_times(entry)
            cells.setdefault(f"{_MODELS.get(model, model)}, {frames}", {})[form] = f"{other / mine:.2f}×"
    for what, found in cells.items():
        yield what, " / ".join(found.get(form, "–") for form in ("onnx", _IR))


# ---- cases where onegru is not faster


def _limits(machines: Machines) -> list[str]:
    """Return a table of speed-ups on all machines, and a list of reasons."""
    batches = _all(machines, _tables(lambda shape: shape.regime == "batch" and shape.H >= 256))
    steps = _all(machines, _tables(lambda shape: shape.T == shape.B == 1 and shape.H >= 512))
    shares = _all(machines, _of_peak)
    drawn, real = _all(machines, drawn_ratios), _all(machines, _tables())
    opening = {form: _all(machines, _opening(form)) for form in ("onnx", _IR)}
    singly = [label for name, label in labels(machines).items() if drawn_ratios(machines[name], "1")]
    ways = {
        form: [
            value for parts in machines.values() for count in _COUNTS for value in _ways(parts, count, form)
        ]
        for form in ("onnx", "ir")
    }
    rows = (
        ("batches, H ≥ 256", _FASTEST, batches, "onegru is near the peak of multiply-adds"),
        ("single steps, H ≥ 512", _FASTEST, steps, "reading the weights is the limit"),
        (
            "whole IRs",
            "OpenVINO",
            _all(machines, _whole(_IR)),
            "OpenVINO splits a single step between threads that are awake",
        ),
        (
            "whole IRs, dynamic shapes",
            "OpenVINO",
            _all(machines, _whole("ir")),
            "the same, but onegru specializes the shapes",
        ),
        (
            "random weight encodings, ONNX",
            "ONNX Runtime",
            ways["onnx"],
            "small single steps, or weights computed in each run",
        ),
        ("random weight encodings, IR", "OpenVINO", ways["ir"], "small single steps, and short loops"),
    )
    return [
        "| case | baseline | range of the speed-up | mean | reason for the lowest |",
        "| --- | --- | ---: | ---: | --- |",
        *(f"| {case} | {baseline} | {_range(found)} | {why} |" for case, baseline, found, why in rows),
        "",
        f"- **Large layers** are near the limit of the machine. In batches with H ≥ 256, onegru reaches "
        f"{_percent(shares)} of the peak of multiply-adds.",
        f"- **Small layers** gain most, because other runtimes have more overhead. {_small(machines)} In a "
        f"model with many operators, this gain is small.",
        "- **Training of large layers** is only 1.05 to 1.3 times as fast, because PyTorch uses oneDNN's "
        "kernels. Small layers gain several times. See the [raw data](../benchmarks/results/training.md).",
        f"- **Single shapes**: of the GRUs of real models, {_slower(real)} are slower than the fastest other "
        f"runtime. Of the random shapes, {_slower(drawn)} are slower than ONNX Runtime. Times of "
        f"single random shapes are kept for these machines: {', '.join(singly)}.",
        f"- **Loading a file** usually takes longer, because onegru checks the file and packs weights. It "
        f"takes {_span(opening['onnx'])} times as long for ONNX, and {_span(opening[_IR])} times for IRs.",
        "- **Two threads after a pause**: waking a thread takes 50 to 100 µs on these machines. A call of "
        "0.3 ms therefore gains little from a second thread. Other runtimes keep a whole CPU busy instead.",
    ]


def _all(machines: Machines, of: Callable[[Parts, str], list[float]]) -> list[float]:
    return [value for parts in machines.values() for count in _COUNTS for value in of(parts, count)]


def _of_peak(parts: Parts, threads: str) -> list[float]:
    """Return the fraction of the multiply-add peak that each batch reaches, if the peak was measured."""
    is_known = threads in parts.get("tables", {"limits": {}})["limits"]
    return LIMITS[0].shares(parts, threads) if is_known else []


def _percent(shares: Sequence[float]) -> str:
    return f"{min(shares):.0%} to {max(shares):.0%}" if shares else "–"


def _ways(parts: Parts, count: str, form: str) -> list[float]:
    return [value for key, pairs in way_ratios(parts, count).items() if key[0] == form for value, _ in pairs]


def _slower(ratios: Sequence[float]) -> str:
    """Return the number of ratios below 1, and the lowest."""
    return f"{sum(value < 1 for value in ratios)} of {len(ratios)} (the lowest {min(ratios, default=0):.2f})"


def _span(ratios: Sequence[float]) -> str:
    """Return the range and the mean."""
    if not ratios:
        return "–"
    return f"{min(ratios):.2f} to {max(ratios):.1f} (mean {mean_of(ratios):.2f})"


def _range(ratios: Sequence[float]) -> str:
    """Return the range and the mean, as two cells."""
    if not ratios:
        return "– | –"
    return f"{min(ratios):.2f}× to {max(ratios):.1f}× | {mean_of(ratios):.2f}×"


def _small(machines: Machines) -> str:
    """Return the time of one step of the smallest layer in each runtime, in µs."""
    found: dict[str, list[float]] = {}
    for parts in machines.values():
        for entry in of_kind(parts, "tables", "case", "1"):
            shape = Case.read(entry["case"]).shape
            if is_small_step(shape) and shape.H <= 16:
                for name, seconds in times(entry, ("onegru", *OTHERS)).items():
                    found.setdefault(name, []).append(seconds * 1e6)
    if "onegru" not in found:
        return ""
    called = {"onegru": "onegru", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}
    words = [f"{called[name]} {statistics.median(times):.2g} µs" for name, times in found.items()]
    return f"One step of H = 16 takes, as the median of the machines: {', '.join(words)}."


# ---- machines


def _machines(machines: Machines) -> list[str]:
    lines = [
        "| processor | caches: L1, L2, L3 | GFLOP/s | reading L2, L3, memory: GB/s | ONNX Runtime, OpenVINO, "
        "PyTorch | measured |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for name, label in _columns(machines).items():
        parts = machines[name]
        machine = machine_of(parts)
        sizes = ", ".join(_size(size) for size in machine.get("caches", {}).values()) or "–"
        limits = parts.get("tables", {"limits": {}})["limits"].get("1")
        peak = f"{limits['fma'] / 1e9:.0f}" if limits else "–"
        rates = [f"{rate / 1e9:.0f}" for name, _, rate in limits["levels"] if name != "L1"] if limits else []
        dates = sorted({str(document["machine"]["date"]) for document in parts.values()})
        found = [_versions(document["machine"]) for document in parts.values()]
        versions = " / ".join(dict.fromkeys(words for words in found if words)) or "–"
        days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        speeds = f"{peak} | {', '.join(rates) or '–'}"
        lines.append(f"| {label} | {sizes} | {speeds} | {versions} | {days} |")
    return lines


def _versions(machine: Mapping[str, Any]) -> str:
    """Return the versions of the other runtimes of a part; empty if one is missing."""
    known = [machine["versions"].get(name) for name in OTHERS]
    return ", ".join(version.partition("+")[0] for version in known) if all(known) else ""


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
