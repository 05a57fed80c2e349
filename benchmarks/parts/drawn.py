"""Random shapes without tuning, from a seed; and every batch size in a range."""

from __future__ import annotations

import itertools
import statistics
from argparse import Namespace
from collections.abc import Iterable, Sequence

from benchmarks.harness.limits import least_seconds
from benchmarks.harness.record import Record
from benchmarks.harness.turns import Worker, compare, exact_results, shown, working
from benchmarks.models.cases import Case, Shape, draw_cases

__all__ = ["AGAINST", "measure_drawn", "measure_rows"]

AGAINST = "onnxruntime"
ROWS = range(1, 41)
ROWS_SIZES = (256, 64, 512)  # H and I
ROWS_STEPS = 20
SUSPECT = 0.92  # of the rate with one row fewer


def measure_drawn(record: Record, threads: int, peers: list[str], options: Namespace) -> None:
    """Measure onegru and the baselines on a number of random shapes."""
    count = min(12, options.count) if options.quick else options.count
    cases = [
        str(case) for case in itertools.islice(draw_cases(options.seed), count) if options.only in str(case)
    ]
    limits, workers = record.limits(threads), {name: Worker(name, threads) for name in peers}
    with working(workers):
        for key in record.left([{"kind": "drawn", "case": case, "threads": threads} for case in cases]):
            case = Case.read(key["case"])
            right = exact_results(case)
            results = compare({"case": key["case"]}, workers, right, options, ["onegru"], AGAINST)
            share = least_seconds(case.shape, limits) / results["onegru"].get("median", float("inf"))
            record.add({"peers": results}, f"{shown(results)}; {share:.0%} of the limit")


def measure_rows(record: Record, options: Namespace) -> None:
    """Measure FLOP/s on one thread for every batch size, for three sizes."""
    rows = ROWS[:9] if options.quick else ROWS
    sizes = ROWS_SIZES[:1] if options.quick else ROWS_SIZES
    keys = [{"kind": "rows", "case": f"H={H}", "H": H} for H in sizes if options.only in f"H={H}"]
    with working({"onegru": Worker("onegru", 1)}) as workers:
        for key in record.left(keys):
            rates = rates_by_rows(workers["onegru"], key["H"], rows, options.rounds, options.block / 2)
            record.add({"rates": rates}, " ".join(f"{rate / 1e9:.0f}" for rate in rates) + " GFLOP/s")


def rates_by_rows(worker: Worker, H: int, rows: Sequence[int], rounds: int, block: float) -> list[float]:
    """Time all batch sizes interleaved; then time apparent drops again, with the size before each."""
    cases = {B: Case(Shape(ROWS_STEPS, B, H, H, 1), linear_before_reset=True) for B in rows}
    seconds: dict[int, list[float]] = {B: [] for B in rows}

    def measure(some: Iterable[int]) -> None:
        for B in some:
            each = worker.ask(do="prepare", case=str(cases[B]))["each"]
            seconds[B].append(worker.ask(do="time", count=max(1, int(block / each)))["seconds"])

    def rate(B: int) -> float:
        return cases[B].shape.flops / statistics.median(seconds[B])

    for _ in range(rounds):
        measure(rows)
    for pair in [pair for pair in itertools.pairwise(rows) if rate(pair[1]) < SUSPECT * rate(pair[0])]:
        for _ in range(2 * rounds):
            measure(pair)
    return [rate(B) for B in rows]
