"""Figures computed from the files of results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.limits import least_seconds
from benchmarks.models.cases import Case
from benchmarks.parts.busy import CONTENDERS, SPINNING
from benchmarks.parts.drawn import AGAINST
from benchmarks.parts.ways import WAYS

__all__ = [
    "IN_BFLOAT16",
    "OTHERS",
    "Entry",
    "Parts",
    "busy_ratio",
    "drawn_ratios",
    "drawn_summary",
    "drawn_threads",
    "falls",
    "load_words",
    "mean_of",
    "of_kind",
    "rate",
    "ratio",
    "share",
    "summary_of",
    "threads_of",
    "times",
    "way_ratios",
    "way_words",
    "whole_times",
    "whole_words",
]

Entry = dict[str, Any]
Parts = dict[str, Entry]

OURS = ("onegru", "onegru step")
OTHERS = ("onnxruntime", "openvino", "torch")
#: Contenders that compute in bfloat16.
IN_BFLOAT16 = ("onegru W16A16", "openvino default")


def times(entry: Entry, names: Sequence[str], kind: str = "median") -> dict[str, float]:
    """Return the seconds of a call of each measured contender."""
    return {name: entry["peers"][name][kind] for name in names if kind in entry["peers"].get(name, {})}


def ratio(entry: Entry, others: Sequence[str] = OTHERS, ours: Sequence[str] = OURS) -> float:
    """Return the time of the fastest baseline divided by onegru's, for a single step that of its stream.

    The result is 0 if onegru has no result or a wrong one, and NaN if no baseline has a result.
    """
    mine, peer = times(entry, ours).values(), times(entry, others).values()
    return min(peer, default=math.nan) / min(mine) if mine else 0.0


def whole_words(entry: Entry) -> tuple[str, str, str]:
    """Return the model of a whole case, its frames and its form."""
    words = str(entry["case"])
    form = next(form for form in ("ir, reshaped", "ir", "onnx", "fused") if words.endswith(f" {form}"))
    *model, frames = words.removesuffix(form).split()
    return " ".join(model), frames, form


def whole_times(entry: Entry, kind: str = "median") -> tuple[float, float, float]:
    """Return seconds of onegru, its provider and the runtime; NaN for contenders that were not measured."""
    found = times(entry, ["onegru", "onegru provider", *OTHERS], kind)
    other = next((found[name] for name in OTHERS if name in found), math.nan)
    return found.get("onegru", math.nan), found.get("onegru provider", math.nan), other


def way_ratios(parts: Parts, threads: str) -> dict[tuple[str, str], list[tuple[float, Entry]]]:
    """Return the runtime's times divided by onegru's, by file form and onegru's way to run it, sorted."""
    found: dict[tuple[str, str], list[tuple[float, Entry]]] = {}
    for entry in of_kind(parts, "ways", "way", threads):
        form = entry["case"].split()[0]
        peer, *ours = WAYS[form]
        if other := times(entry, [peer]):
            for name in ours:
                mine = times(entry, [name])
                pair = (other[peer] / mine[name] if mine else 0.0, entry)
                found.setdefault((form, name), []).append(pair)
    return {key: sorted(pairs, key=lambda pair: pair[0]) for key, pairs in found.items()}


def load_words(name: str) -> str:
    """Return the name of a load on the pages."""
    return {"nothing": "none", SPINNING: "a spinning session"}.get(name, name)


def way_words(form: str, name: str) -> str:
    """Return the name of a comparison, such as "ONNX files, onegru.load"."""
    ways = {"onegru provider": "a session with the provider", "onegru replace_grus": "openvino.replace_grus"}
    return f"{'ONNX files' if form == 'onnx' else 'IRs'}, {ways.get(name, 'onegru.load')}"


def share(entry: Entry, limits: Entry) -> float:
    """Return the least possible time divided by the measured time."""
    mine = times(entry, OURS).values()
    return least_seconds(Case.read(entry["case"]).shape, limits) / min(mine, default=math.inf)


def mean_of(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios)) if ratios and min(ratios) > 0 else 0.0


def of_kind(parts: Parts, part: str, kind: str, threads: str = "") -> list[Entry]:
    entries = parts[part]["entries"] if part in parts else []
    return [e for e in entries if e["kind"] == kind and (not threads or str(e["threads"]) == threads)]


def busy_ratio(entry: Entry, kind: str) -> float:
    """Return the default's median or mean divided by the best of the others; infinity without a result."""
    found = times(entry, list(CONTENDERS), kind)
    mine = found.pop("default", math.inf)
    return mine / min(found.values(), default=math.nan)


def drawn_threads(parts: Parts) -> list[str]:
    """Return the thread counts with which random shapes were measured."""
    found = {str(e["threads"]) for e in of_kind(parts, "drawn", "drawn")}
    return sorted(found | set(parts.get("drawn", {}).get("summary", {})), key=int)


def drawn_ratios(parts: Parts, threads: str, against: str = AGAINST) -> list[float]:
    found = (ratio(e, [against]) for e in of_kind(parts, "drawn", "drawn", threads))
    return sorted(r for r in found if not math.isnan(r))


def summary_of(ratios: Sequence[float]) -> dict[str, float]:
    """Return the number of ratios, the lowest, two quantiles, the geometric mean, and the number below 1."""
    low, median = np.quantile(ratios, (0.05, 0.5))
    return {
        "shapes": len(ratios),
        "lowest": min(ratios),
        "low": float(low),
        "median": float(median),
        "mean": mean_of(ratios),
        "below": sum(ratio < 1 for ratio in ratios),
    }


def drawn_summary(parts: Parts, threads: str) -> dict[str, float]:
    """Return `summary_of` the random shapes' ratios, or the stored summary if the ratios were not kept."""
    ratios = drawn_ratios(parts, threads)
    kept: dict[str, float] = parts["drawn"].get("summary", {}).get(threads, {})
    return summary_of(ratios) if ratios else kept


def falls(rates: Sequence[float]) -> list[float]:
    """Return the drop of each rate from the previous rate; 0 for the first."""
    return [0.0, *(1 - after / before for before, after in itertools.pairwise(rates))]


def rate(entry: Entry) -> float:
    """Return FLOP/s."""
    return Case.read(entry["case"]).shape.flops / min(times(entry, OURS).values(), default=math.inf)


def threads_of(count: str) -> str:
    return f"{count} thread{'s' if count != '1' else ''}"
