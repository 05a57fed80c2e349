"""Score the visits to a shop, from Parquet to Parquet; draw what batches and padding do to the speed.

Exits with 1 if the command and Python give different files, or a row differs from that of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

import onegru
from onegru.scoring import Scorer, score

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "build" / "scoring.png"
FEATURES, STATE = 16, 64
SHORTEST, MEDIAN, LONGEST = 2, 12, 200  # events of a visit
TRIES = 4
BATCHES = tuple(4**power for power in range(6))  # rows: 1 to 1024
LARGEST_DIFFERENCE = 1e-5

Visits = list[np.ndarray]
Run = Callable[[Any], Any]


def make_visits(count: int) -> Visits:
    """Visits as logs have them: most are short, some are very long; an event is a vector."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(MEDIAN), 1.0, count)).clip(SHORTEST, LONGEST).astype(int)
    return [rng.standard_normal((length, FEATURES), np.float32) for length in lengths]


def make_model() -> onegru.Stack:
    """Two layers; a real model comes from `onegru.load_layers("model.pt")`."""
    rng = np.random.default_rng(1)
    layers = []
    for inputs in (FEATURES, STATE):
        shapes = ((1, 3 * STATE, inputs), (1, 3 * STATE, STATE), (1, 6 * STATE))
        W, R, B = (rng.uniform(-0.125, 0.125, shape).astype(np.float32) for shape in shapes)
        layers.append(onegru.GRU(W, R, B, linear_before_reset=True))
    return onegru.Stack(layers)


def as_table(visits: Visits) -> pa.Table:
    events = pa.array([visit.tolist() for visit in visits], pa.list_(pa.list_(pa.float32(), FEATURES)))
    return pa.table({"visit": range(len(visits)), "events": events})


def rate(run: Run, visits: Any, batch: int) -> float:
    """Rows a second, the best of some tries on a part of the rows."""
    some = visits[: max(256, 2 * batch)]
    seconds = []
    for _ in range(TRIES):
        began = time.perf_counter()
        for first in range(0, len(some), batch):
            run(some[first : first + batch])
        seconds.append(time.perf_counter() - began)
    return len(some) / min(seconds)


def draw(rates: dict[str, list[float]], padding: dict[str, list[float]], lengths: list[int]) -> None:
    """Three panels: the lengths, rows a second, steps that are computed for each step that is there."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.5, 1.2])
    colours = dict(zip(rates, ("tab:red", "tab:blue", "0.35"), strict=True))
    left.hist(lengths, bins=np.arange(0, LONGEST + 9, 8).tolist(), color="0.6")
    left.set(xlabel="events of a visit", ylabel="visits", title="Most visits are short")
    for name, found in rates.items():
        middle.plot(BATCHES, found, "o-", color=colours[name], label=name)
    middle.set(ylabel="rows a second", title="Speed", yscale="log")
    for name, found in padding.items():
        right.plot(BATCHES, found, "o-", color=colours[name])
    right.set(ylabel="steps of a batch for each real one", title="Padding", ylim=(0, None))
    for axes in (middle, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.set_xlabel("rows of a batch")
        axes.grid(color="0.9")
    middle.yaxis.set_major_formatter("{x:,.0f}")
    left.yaxis.set_major_formatter("{x:,.0f}")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000, help="visits; default 20000")
    visits = make_visits(parser.parse_args().rows)
    stack = make_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        pq.write_table(as_table(visits), folder / "logs" / "visits.parquet", row_group_size=5000)
        onegru.save_layers(stack, folder / "model.safetensors")
        onegru.save_layers(stack, folder / "model.onnx", initial_h=False, sequence_lens=True)
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])

        # From Python, and by the command: the same files.
        scorer = Scorer(folder / "model.safetensors", inputs={"X": "events"}, keep=["visit"])
        done = score(scorer, [folder / "logs"], folder / "scores")
        command = [sys.executable, "-m", "onegru", "score", "model.safetensors", "logs", "-o", "again"]
        subprocess.run([*command, "-i", "X=events", "--keep", "visit"], check=True, cwd=folder)
        parts = sorted(path.name for path in (folder / "scores").glob("part-*.parquet"))
        same = not any(filecmp.cmpfiles(folder / "scores", folder / "again", parts, shallow=False)[1:])
        found = pq.read_table(folder / "scores" / parts[0])

    def by_onegru(some: Visits) -> Any:
        X, lengths = onegru.pad(some)
        return stack(X, sequence_lens=lengths)

    def by_onnxruntime(some: Visits) -> Any:
        X, lengths = onegru.pad(some)
        return session.run(["Y_h_1"], {"X": X, "sequence_lens": lengths})[0]

    theirs = np.concatenate([by_onnxruntime([visit])[0] for visit in visits[:50]])
    difference = float(np.abs(np.array(found["Y_h"].slice(0, 50).to_pylist()) - theirs).max())
    print(f"scored {done.rows} rows, {done.rows / done.seconds:,.0f} a second, from file to file")
    print(f"the command gives the same files: {same}")
    print(f"largest difference from ONNX Runtime, row by row: {difference:.1e}")

    # Batches of so many rows: sorted within the table, or padded as they come.
    table, mean = as_table(visits), sum(map(len, visits)) / len(visits)
    ours = "sorted by onegru.scoring"
    runs: dict[str, Run] = {
        "padded as they come, onegru": by_onegru,
        "padded as they come, ONNX Runtime": by_onnxruntime,
    }
    rates: dict[str, list[float]] = {ours: [], **{name: [] for name in runs}}
    padding: dict[str, list[float]] = {ours: [], next(iter(runs)): []}
    for batch in BATCHES:
        some = table.slice(0, max(2000, 20 * batch))
        sized = Scorer(stack, inputs={"X": "events"}, batch=max(1, round(batch * mean)))
        rates[ours].append(rate(sized, some, len(some)))
        result = sized.run(some)
        padding[ours].append(1 + result.padding / result.steps)
        groups = [visits[first : first + batch] for first in range(0, len(visits), batch)]
        computed = sum(len(group) * max(map(len, group)) for group in groups)
        padding[next(iter(runs))].append(computed / sum(map(len, visits)))
        for who, run in runs.items():
            rates[who].append(rate(run, visits, batch))
        print(f"batches of {batch} rows: " + ", ".join(f"{who} {rates[who][-1]:,.0f}/s" for who in rates))
    draw(rates, padding, [len(visit) for visit in visits])
    print(f"picture: {PICTURE}")
    return 0 if same and difference <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
