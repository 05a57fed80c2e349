"""Measures onegru and its baselines, interleaved, and reports:  python -m benchmarks.run [--tables --drawn …]

Each contender is a separate process. Results are first compared with float64. Then calls are interleaved,
each for a fraction of a second, and the medians count. Every part has a separate file in the folder of
--out, written after each case. `python -m benchmarks.report` makes docs/performance.md from these files.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.limits import cache_shares, least_seconds
from benchmarks.harness.peers import PEERS, version
from benchmarks.harness.processors import microarchitecture
from benchmarks.harness.record import Record
from benchmarks.harness.turns import ROOT, Worker, exact_results, shown, take_turns, working
from benchmarks.models.cases import CASES, Case
from benchmarks.page.figures import OTHERS, mean_of, way_ratios, way_words
from benchmarks.page.machines import read_machines
from benchmarks.parts.busy import measure_busy
from benchmarks.parts.drawn import AGAINST, measure_drawn, measure_rows
from benchmarks.parts.paced import measure_paced
from benchmarks.parts.ways import measure_ways
from benchmarks.parts.whole import WHOLE, WHOLE_CASES, exact
from benchmarks.report import write_report

#: Whether OpenVINO's default precision is bfloat16.
HAS_AMX = "amx_bf16" in Path("/proc/cpuinfo").read_text()
PARTS = ("tables", "whole", "ways", "paced", "busy", "drawn")


def applies(name: str, case: Case) -> bool:
    shape = case.shape
    if name == "onegru step":
        return shape.T == 1 and shape.D == 1 and shape.B == 1
    if name == "onegru alloc":
        return shape.T == 1
    if name == "onegru bfloat16":
        return shape.B == 1 and shape.H >= 512
    if name in ("onegru W16A16", "openvino default"):
        return shape.B > 1 and HAS_AMX
    if name == "torch":
        return case.linear_before_reset
    return True


def measure_tables(record: Record, threads: int, peers: list[str], options: argparse.Namespace) -> None:
    """Measure every contender on the cases."""
    cases = [
        str(case)
        for case in CASES[:: 3 if options.quick and not options.only else 1]
        if options.only in str(case)
    ]
    limits = record.limits(threads)
    with working({name: Worker(name, threads) for name in peers}) as workers:
        for key in record.left([{"kind": "case", "case": case, "threads": threads} for case in cases]):
            case = Case.read(key["case"])
            able = {name: worker for name, worker in workers.items() if applies(name, case)}
            right = exact_results(case)
            results = take_turns({"case": key["case"]}, able, right, options.rounds, options.block)
            share = least_seconds(case.shape, limits) / results["onegru"].get("median", float("inf"))
            record.add({"peers": results}, f"{shown(results)}; {share:.0%} of the limit")


def measure_whole(record: Record, threads: int, options: argparse.Namespace) -> None:
    """Measure whole models in onegru and in the other runtimes."""
    models = {str(case): case for case in WHOLE_CASES if options.only in str(case)}
    with working({name: Worker(name, threads) for name in WHOLE}) as workers:
        for key in record.left([{"kind": "whole", "case": case, "threads": threads} for case in models]):
            case = models[key["case"]]
            provider = [] if case.form.startswith("ir") else ["onegru provider"]
            names = ["onegru", case.peer, *provider]
            able, first = {name: workers[name] for name in names}, exact(case)
            results = take_turns({"whole": key["case"]}, able, (first, first), options.rounds, options.block)
            record.add({"peers": results}, shown(results))


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
    import onegru

    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    info = {name.strip(): value.strip() for name, _, value in lines}
    cores = sorted(os.sched_getaffinity(0))
    versions = {}
    for name in ("onegru", "onnxruntime", "openvino", "torch", "numpy"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = version(name)
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "vendor": info.get("vendor_id", ""),
        "microarchitecture": microarchitecture(info),
        "cores": len(cores),
        "caches": cache_shares(cores[:1]),
        "target": onegru.targets().chosen,
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", action="store_true", help="only the shapes of real models")
    parser.add_argument("--whole", action="store_true", help="only whole models, which PyTorch makes")
    parser.add_argument("--ways", action="store_true", help="only whole models by ways of carrying weights")
    parser.add_argument("--paced", action="store_true", help="only calls with a pause before each")
    parser.add_argument(
        "--busy", action="store_true", help="only calls under load from busy processes, unpinned"
    )
    parser.add_argument("--drawn", action="store_true", help="only drawn shapes, and every number of rows")
    parser.add_argument("--count", type=int, default=300, help="of drawn shapes; default 300")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn; default 0")
    parser.add_argument("--minutes", type=float, default=3.0, help="of --ways; default 3")
    parser.add_argument("--threads", default="1,2", help="of tables and drawn shapes; default 1,2")
    parser.add_argument(
        "--peers", default="", help=f"compared with onegru; default: all, on drawn shapes {AGAINST}"
    )
    parser.add_argument("--rounds", type=int, help="turns; default 7")
    parser.add_argument(
        "--block", type=float, help="seconds of a turn; default 0.12, half of it on drawn shapes"
    )
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="short turns of few cases, for a look")
    parser.add_argument("--resume", action="store_true", help="keep what the files have, measure the rest")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks", help="folder for results")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.block = options.block or (0.03 if options.quick else 0.12)
    settings = {name: getattr(options, name) for name in ("rounds", "block", "seed", "quick")}
    found = [name for name in PEERS if importlib.util.find_spec(name.split()[0]) is not None]
    wanted = ["onegru", *options.peers.split(",")] if options.peers else []
    if strange := [name for name in wanted if name not in found]:
        parser.error(f"--peers: {', '.join(strange)}; there are {', '.join(found)}")
    # Otherwise OpenVINO sends telemetry from forked processes, which may hang with NumPy's threads.
    os.environ["CI"] = "true"
    counts = [int(part) for part in options.threads.split(",")]
    here = machine()
    print(json.dumps(here))
    for part in [part for part in PARTS if getattr(options, part)] or PARTS:
        record = Record(options.out / f"{part}.json", settings, here, options.resume)
        if part == "busy":
            measure_busy(record, options)
            continue
        for threads in counts:
            if part == "tables":
                measure_tables(record, threads, wanted or found, options)
            elif part == "whole":
                measure_whole(record, threads, options)
            elif part == "ways":
                measure_ways(record, threads, options.minutes / len(counts), options)
                for key, pairs in way_ratios({"ways": record.document}, str(threads)).items():
                    ratios = [ratio for ratio, _ in pairs]
                    summary = f"lowest {ratios[0]:.2f}, geometric mean {mean_of(ratios):.2f}"
                    print(f"{way_words(*key)}, threads {threads}, {len(ratios)} models: {summary}")
            elif part == "paced":
                measure_paced(
                    record, threads, ["onegru", *(p for p in wanted or found if p in OTHERS)], options
                )
            else:
                measure_drawn(record, threads, wanted or ["onegru", AGAINST], options)
        if part == "drawn":
            measure_rows(record, options)
    if options.only:
        print(f"The measurements are in {options.out}; a report needs all cases.")
    else:
        write_report(read_machines(sorted(options.out.glob("*.json"))), options.out)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped; with --resume it goes on from here") from None
