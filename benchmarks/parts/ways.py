"""Whole models with different encodings of weights, interleaved with the other runtime, until time is up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from benchmarks.harness.record import Record
from benchmarks.harness.turns import Worker, compare, shown, working
from benchmarks.models.ways import Way, draw_way

__all__ = ["WAYS", "measure_ways"]

#: By form of file: the other runtime, then onegru's ways to run it.
WAYS: Mapping[str, tuple[str, ...]] = {
    "onnx": ("onnxruntime", "onegru provider", "onegru"),
    "ir": ("openvino", "onegru replace_grus", "onegru"),
}
MOST = 1000  # models of each form


def measure_ways(record: Record, threads: int, minutes: float, options: Namespace) -> None:
    """Check and time models of both forms, alternately. A runtime whose process ends starts again."""
    names = [str(draw_way(form, options.seed, number)) for number in range(MOST) for form in WAYS]
    keys = [{"kind": "way", "case": name, "threads": threads} for name in names if options.only in name]
    workers = {name: Worker(name, threads) for name in set().union(*WAYS.values())}
    with working(workers):
        for key in record.left(keys, minutes):
            way = Way.read(key["case"])
            try:
                way.write()
                right = way.right
            except Exception as error:  # a writer that is not installed, or cannot write this model
                record.add({"peers": {}}, f"not written: {' '.join(str(error).split())[-200:]}")
                continue
            workers |= {name: Worker(name, threads) for name, worker in workers.items() if worker.has_ended()}
            peer, *ours = WAYS[way.form]
            order = {"whole": key["case"], "tolerance": way.tolerance}
            able = {name: workers[name] for name in (peer, *ours)}
            results = compare(order, able, (right, right), options, ours, peer)
            refusals = [
                f"; {name}: {found['refuses']}" for name, found in results.items() if "refuses" in found
            ]
            record.add({"peers": results}, shown(results) + "".join(refusals))
