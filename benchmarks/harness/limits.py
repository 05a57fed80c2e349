"""The measured peaks of the cores, and the least time of a case at these peaks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.models.cases import Shape

__all__ = ["least_seconds", "limits"]

CACHES = Path("/sys/devices/system/cpu")
USUAL = {"L1": 32 << 10, "L2": 512 << 10, "L3": 16 << 20}  # if the system does not give them
ROWS_OF_SWEEP = 8  # rows of X that are multiplied with W together


def cache_shares(cores: Sequence[int], folder: Path = CACHES) -> dict[str, int]:
    """Return the bytes of each data cache that each of these cores has when all are busy."""
    found = {}
    for cache in sorted(folder.glob(f"cpu{cores[0]}/cache/index*")):
        level, kind, size, sharers = (
            (cache / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_map")
        )
        if kind != "Instruction":
            mask = int(sharers.replace(",", ""), 16)
            found[f"L{level}"] = int(size.removesuffix("K")) * 1024 // sum(mask >> core & 1 for core in cores)
    return found or USUAL


def _measure(core: int, size: int | None) -> float:
    from onegru import _native

    os.sched_setaffinity(0, {core})
    return _native.fma_peak(0.3) if size is None else _native.read_bandwidth(size, 0.3)


def limits(threads: int) -> dict[str, Any]:
    """Measure the peaks of this number of cores, all at the same time.

    "fma" is in FLOP/s. "levels" lists the caches, the nearest first: the name, the bytes per core (None for
    unlimited), and the bytes/s at which all cores read half of that size.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    shares = cache_shares(cores)
    beyond = min(8 * max(shares.values()), 1 << 30)
    with multiprocessing.get_context("spawn").Pool(len(cores)) as pool:

        def together(size: int | None) -> float:
            return sum(pool.starmap(_measure, [(core, size) for core in cores], chunksize=1))

        return {
            "fma": together(None),
            "levels": [
                *((name, size, together(size // 2)) for name, size in shares.items()),
                ("memory", None, together(beyond)),
            ],
            "threads": len(cores),
        }


def least_seconds(shape: Shape, limits: dict[str, Any]) -> float:
    """Return max(bytes / bandwidth of the cache that holds them, FLOPs / FMA peak) of a float32 call.

    R is read once per step. W is read once per eight rows of X, or once per step with more rows. A core holds
    the matrices of one direction, or its part of their units if there are more cores than directions.
    """
    T, B, I, H, D = shape.T, shape.B, shape.I, shape.H, shape.D
    R, W = 12 * H * H, 12 * H * I
    splits = max(1.0, limits["threads"] / D)

    def seconds(read: int, held: int) -> float:
        rates = (rate for _, size, rate in limits["levels"] if size is None or held / splits <= size)
        return read / float(next(rates))

    sweeps = -(-T * B // max(B, ROWS_OF_SWEEP))
    reading = T * seconds(R, R if T > 1 else R + W) + sweeps * seconds(W, R + W)
    return max(shape.flops / float(limits["fma"]), D * reading)
