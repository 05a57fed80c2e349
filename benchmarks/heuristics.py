"""Measure the thread pool without each of its heuristics (native/threads/heuristics.h), on an idle machine.

This builds libonegru with all of them and without each one, which takes about a minute each. It then times
interleaved calls on two threads with different pauses, and prints times relative to all heuristics.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import onegru

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/heuristics"
#: T, B, I, H: two with fewer FLOPs than wake workers at once, one with more, and one whose units are split.
SHAPES = ((6, 32, 24, 24), (12, 16, 32, 32), (40, 16, 64, 64), (10, 1, 128, 512))
#: Seconds of other work, or of sleep, between two calls.
PAUSES = {"back to back": (0.0, 0.0), "100 µs of work": (1e-4, 0.0), "1 ms of sleep": (0.0, 1e-3)}


def build(heuristic: str) -> ctypes.CDLL:
    """Build libonegru for float32 without a heuristic."""
    folder = BUILD / heuristic
    options = ("ONEGRU_PYTHON=OFF", "ONEGRU_STORAGES=float32", "ONEGRU_TARGETS=native")
    flags = f"CMAKE_CXX_FLAGS=-DONEGRU_WITHOUT={heuristic}"
    tool = Path(sys.executable).with_name("cmake")
    command = [
        tool,
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        *(f"-D{option}" for option in (*options, flags)),
    ]
    for step in (command, [tool, "--build", folder, "--target", "onegru"]):
        subprocess.run([*map(str, step)], check=True, stdout=subprocess.DEVNULL)
    library = ctypes.CDLL(str(folder / "libonegru.so"), mode=ctypes.RTLD_LOCAL)
    library.onegru_set_num_threads(ctypes.c_size_t(2))
    return library


def prepare(library: ctypes.CDLL, T: int, B: int, I: int, H: int) -> tuple[Callable[[], Any], Any]:
    """Return a function that runs a random layer, its output, and the arrays that must stay alive."""
    rng = np.random.default_rng(0)
    W, R = ((rng.standard_normal((1, 3 * H, K)) / np.sqrt(H)).astype(np.float32) for K in (I, H))
    path = BUILD / "layer.safetensors"
    onegru.save_layers(onegru.GRU(W, R, linear_before_reset=True), path)
    layer = ctypes.c_void_p()
    assert library.onegru_layer_open(str(path).encode(), ctypes.c_size_t(0), None, ctypes.byref(layer)) == 0
    X, Y = rng.standard_normal((T, B, I)).astype(np.float32), np.zeros((T, 1, B, H), np.float32)
    words = np.array([72, T, B, X.ctypes.data, 0, 0, 0, Y.ctypes.data, 0], np.uint64)  # an onegru_call
    call = ctypes.c_void_p(words.ctypes.data)
    run = library.onegru_layer_run
    return lambda: run(layer, call), (X, Y, words)


def measure(run: Callable[[], Any], work: float, sleep: float) -> float:
    """Return the mean time of a call in seconds, without the fastest and the slowest tenth."""
    times = []
    for _ in range(60 if sleep == 0 else 30):
        end = time.perf_counter() + work
        while time.perf_counter() < end:
            pass
        time.sleep(sleep)
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    tenth = len(times) // 10
    return float(np.mean(sorted(times)[tenth:-tenth]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    header = (ROOT / "native/threads/heuristics.h").read_text()
    names = re.findall(r"^  (k\w+),", header, re.MULTILINE)
    libraries = {}
    for name in names:
        print(f"building without {name}", flush=True)
        libraries[name] = build(name)
    for shape in SHAPES:
        runs = {name: prepare(library, *shape) for name, library in libraries.items()}
        results = {name: (run(), kept[1].tobytes())[1] for name, (run, kept) in runs.items()}
        assert len({*results.values()}) == 1, "the bits depend on a heuristic"
        for pause, (work, sleep) in PAUSES.items():
            times: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rounds):
                for name in random.sample(names, len(names)):
                    times[name].append(measure(runs[name][0], work, sleep))
            base = np.median(times[names[0]])
            ratios = "  ".join(f"{name} {np.median(times[name]) / base:.2f}" for name in names[1:])
            print(f"{','.join(map(str, shape))}  {pause}  {base * 1e6:.1f} µs  {ratios}", flush=True)


if __name__ == "__main__":
    main()
