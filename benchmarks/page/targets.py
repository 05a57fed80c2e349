"""Targets, and whether they are reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.models.cases import Case, Shape
from benchmarks.models.decomposed import FUSED_TARGETS
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
    mean_of,
    of_kind,
    rate,
    ratio,
    share,
    times,
    way_ratios,
    way_words,
    whole_times,
    whole_words,
)
from benchmarks.parts.busy import LOOPS
from benchmarks.parts.drawn import AGAINST
from benchmarks.parts.paced import PAUSES
from benchmarks.scoring import SCORING_TARGETS, scored_figures

__all__ = [
    "BUSY_TARGET",
    "FALL_TARGET",
    "LIMITS",
    "LOWEST",
    "Limit",
    "Verdict",
    "is_small_step",
    "verdicts",
]

LOWEST = 1.0  # the lowest ratio that any shape or model may have
TUNED_MEAN = 2.2  # geometric mean over the shapes of real models
DRAWN_MEANS = (2.2, 2.6)  # of random shapes, on one thread and on two
SMALL_STEPS, TINY = 5.0, 3.3  # the lowest ratio of single steps of H ≤ 64, and of tiny layers
FALL_TARGET, FALL_SIZE = 0.08, 256  # upper bound: the drop of GFLOP/s from B to B + 1, for this H
BUSY_TARGET = 1.3  # upper bound: the default's time over the better of one thread and ONNX Runtime
WHOLE_MEANS = {"onnx": (1.25, 1.2), "ir": (1.6, 1.8), "ir, reshaped": (1.6, 1.8)}
FROM_PEERS = 3e-4  # seconds on one thread from which calls after pauses must be as fast as the baseline's
HELPED, HELPED_FROM = 1.5, 1e-3  # the speed-up by two threads, from this many seconds on
IDLE = 0.002  # upper bound: the part of a CPU that idle workers use
LOADING = {"onegru.load": 2.5, "a session with the provider": 1.3}  # upper bounds, of the runtime's own time


def _is_large_batch(shape: Shape) -> bool:
    return shape.B >= 16 and shape.H >= 256


#: Targets of 16-bit numbers: the lowest ratio, onegru's name, the baselines, and the shapes.
IN_16_BITS: Mapping[str, tuple[float, str, Sequence[str], Callable[[Shape], bool]]] = {
    "16-bit weights, H ≥ 1024": (1.7, "onegru bfloat16", OTHERS, lambda shape: shape.H >= 1024),
    "16-bit weights compared with float32": (1.7, "onegru bfloat16", ["onegru"], lambda shape: shape.B == 1),
    "bfloat16 batches, B ≥ 16, H ≥ 256": (1.5, IN_BFLOAT16[0], IN_BFLOAT16[1:], _is_large_batch),
    "bfloat16 batches compared with float32": (3.0, IN_BFLOAT16[0], ["onegru"], _is_large_batch),
}


@dataclass(frozen=True)
class Limit:
    """A target as a fraction of what the machine can do.

    Attributes:
        name: the quantity, and the shapes.
        least: the lowest fraction that is required, on one thread and on two.
        of: the shapes.
        measure: the fraction of a case, from its entry and the machine's limits.
    """

    name: str
    least: tuple[float, float]
    of: Callable[[Shape], bool]
    measure: Callable[[Entry, Entry], float]

    def shares(self, parts: Parts, threads: str) -> list[float]:
        """Return the fractions of the measured cases."""
        limits = parts["tables"]["limits"][threads]
        entries = of_kind(parts, "tables", "case", threads)
        return [self.measure(e, limits) for e in entries if self.of(Case.read(e["case"]).shape)]


LIMITS = (
    Limit(
        "batches, H ≥ 256, of the peak of multiply-adds",
        (0.85, 0.8),
        lambda shape: shape.regime == "batch" and shape.H >= 256,
        lambda entry, limits: rate(entry) / float(limits["fma"]),
    ),
    Limit(
        "single steps, H ≥ 512, of the bandwidth of the level with the weights",
        (0.8, 0.8),
        lambda shape: shape.T == shape.B == 1 and shape.H >= 512,
        share,
    ),
    Limit(
        "one row over time, H ≥ 256, of the lower of the two limits",
        (0.75, 0.6),
        lambda shape: shape.B == 1 < shape.T and shape.H >= 256,
        share,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A target and its measurement.

    Attributes:
        what: the measured quantity.
        threads: the number of threads.
        wanted: the target.
        found: the measured value.
        most: whether the target is an upper bound, not a lower bound.
    """

    what: str
    threads: str
    wanted: float
    found: float
    most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.found <= self.wanted if self.most else self.found >= self.wanted

    @property
    def words(self) -> str:
        """The target as text."""
        return f"{'≤' if self.most else '≥'} {self.wanted:g}"


def is_small_step(shape: Shape) -> bool:
    """Whether a call is a single step of a small layer."""
    return shape.T == shape.B == 1 and shape.H <= 64


def verdicts(parts: Parts) -> list[Verdict]:
    """Return all targets for which these results have the needed data."""
    kinds = (_tuned_mean, _tables, _drawn, _whole, _ways, _scoring, _paced, _busy)
    return [verdict for kind in kinds for verdict in kind(parts)]


def _tables(parts: Parts) -> Iterator[Verdict]:
    for threads in parts.get("tables", {"limits": {}})["limits"]:
        by_shape = [(Case.read(e["case"]).shape, e) for e in of_kind(parts, "tables", "case", threads)]
        ratios = [ratio(e) for _, e in by_shape]
        if not ratios:
            continue
        yield Verdict("shapes of real models, lowest", threads, LOWEST, min(ratios))
        groups: Mapping[str, tuple[float, Callable[[Shape], bool]]] = {
            "single steps, H ≤ 64, lowest": (SMALL_STEPS, is_small_step),
            "tiny layers, H ≤ 20, lowest": (TINY, lambda shape: shape.regime == "tiny"),
        }
        for name, (wanted, of) in groups.items():
            if found := [ratio(e) for shape, e in by_shape if of(shape)]:
                yield Verdict(name, threads, wanted, min(found))
        for name, (wanted, mine, others, of) in IN_16_BITS.items():
            if found := [ratio(e, others, [mine]) for shape, e in by_shape if of(shape) and times(e, [mine])]:
                yield Verdict(f"{name}, lowest", threads, wanted, min(found))
        for limit in LIMITS:
            if shares := limit.shares(parts, threads):
                yield Verdict(
                    f"share of the limit: {limit.name}", threads, limit.least[int(threads) > 1], min(shares)
                )


def _tuned_mean(parts: Parts) -> Iterator[Verdict]:
    if ratios := [ratio(e) for e in of_kind(parts, "tables", "case")]:
        yield Verdict("shapes of real models, geometric mean", "all", TUNED_MEAN, mean_of(ratios))


def _drawn(parts: Parts) -> Iterator[Verdict]:
    for threads in drawn_threads(parts):
        if found := drawn_summary(parts, threads):
            name = f"{found['shapes']:g} random shapes"
            yield Verdict(f"{name}, lowest", threads, LOWEST, found["lowest"])
            yield Verdict(f"{name}, geometric mean", threads, DRAWN_MEANS[int(threads) > 1], found["mean"])
    for entry in of_kind(parts, "drawn", "rows"):
        if entry["H"] == FALL_SIZE:
            fall = max(falls(entry["rates"]))
            yield Verdict(
                f"fall of GFLOP/s from B to B + 1, H = {FALL_SIZE}", "1", FALL_TARGET, fall, most=True
            )


def _whole(parts: Parts) -> Iterator[Verdict]:
    entries = of_kind(parts, "whole", "whole")
    for form in dict.fromkeys(whole_words(entry)[2] for entry in entries):
        for threads in dict.fromkeys(str(entry["threads"]) for entry in entries):
            members = [e for e in entries if whole_words(e)[2] == form and str(e["threads"]) == threads]
            yield from _fused(members) if form == "fused" else _models(members, form, threads)


def _fused(entries: list[Entry]) -> Iterator[Verdict]:
    for entry in entries:
        model, found = whole_words(entry)[0], whole_times(entry)
        if str(entry["threads"]) == "1":
            yield Verdict(f"fused: {model}", "1", FUSED_TARGETS[model], found[2] / found[0])


def _models(entries: list[Entry], form: str, threads: str) -> Iterator[Verdict]:
    for place, (who, most) in enumerate(LOADING.items()):
        ratios = [found[2] / found[place] for e in entries if (found := whole_times(e))[place] > 0]
        name = f"whole models, {form.replace('ir', 'IR').replace('onnx', 'ONNX')}, {who}"
        if ratios:
            yield Verdict(f"{name}, lowest", threads, LOWEST, min(ratios))
            yield Verdict(
                f"{name}, geometric mean", threads, WHOLE_MEANS[form][int(threads) > 1], mean_of(ratios)
            )
        if loads := [f[place] / f[2] for e in entries if (f := whole_times(e, "opening"))[place] > 0]:
            yield Verdict(f"{name}, loading, highest", threads, most, max(loads), most=True)


def _ways(parts: Parts) -> Iterator[Verdict]:
    for threads in ("1", "2"):
        for key, pairs in way_ratios(parts, threads).items():
            name = f"weight encodings, {way_words(*key)}, lowest"
            yield Verdict(name, threads, LOWEST, pairs[0][0])


def _paced(parts: Parts) -> Iterator[Verdict]:
    for pace in [pace for pace, (pause, _) in PAUSES.items() if pause]:
        single, helped = (
            {e["case"]: e for e in of_kind(parts, "paced", "paced", threads) if e["pace"] == pace}
            for threads in ("1", "2")
        )
        against, gains = [], []
        for case in single.keys() & helped.keys():
            one, two = (times(found[case], ["onegru"]).get("onegru", math.inf) for found in (single, helped))
            against += [ratio(helped[case], [AGAINST])] if one >= FROM_PEERS else []
            gains += [one / two] if HELPED_FROM <= one < math.inf else []
        name = f"calls {pace}"
        if against:
            yield Verdict(
                f"{name}, from 0.3 ms on, lowest compared with ONNX Runtime", "2", LOWEST, min(against)
            )
        if gains:
            yield Verdict(f"{name}, from 1 ms on, lowest compared with one thread", "2", HELPED, min(gains))
        if idle := [seconds for e in helped.values() for seconds in times(e, ["onegru"], "idle").values()]:
            yield Verdict(f"{name}, CPU use of idle worker threads, highest", "2", IDLE, max(idle), most=True)


def _scoring(parts: Parts) -> Iterator[Verdict]:
    for entry in of_kind(parts, "scoring", "scoring"):
        name, threads = f"`onegru score`, {entry['case']}", str(entry["threads"])
        of_layers, _, memory = scored_figures(entry)
        yield Verdict(f"{name}, fraction of the layers' speed", threads, SCORING_TARGETS[0], of_layers)
        yield Verdict(
            f"{name}, MiB of memory", threads, SCORING_TARGETS[1] >> 20, memory / (1 << 20), most=True
        )


def _busy(parts: Parts) -> Iterator[Verdict]:
    for load in LOOPS:
        members = [e for e in of_kind(parts, "busy", "busy") if e["load"] == load]
        for kind in ("median", "mean") if members else ():
            highest = max(busy_ratio(e, kind) for e in members)
            yield Verdict(
                f"load: {load_words(load)}, highest {kind}",
                "default",
                BUSY_TARGET,
                highest,
                most=True,
            )
