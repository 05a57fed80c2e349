"""Scores a data set of Parquet files, and measures the costs:  python -m benchmarks.scoring [--rows N]

The rows have lengths as skewed as those of logs, and run through two layers, 32 → 64 → 64. Contenders are
`onegru score`, the layers only, on prepared batches of similar rows, and ONNX Runtime in a simple script that
pads batches of rows in order to the longest. Calls are interleaved, each in a new process. The results are
checked first. The program writes scoring.json for `python -m benchmarks.report`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import onegru
from benchmarks.harness.peers import version
from benchmarks.harness.record import Record
from benchmarks.harness.turns import ROOT, TOLERANCE
from benchmarks.models.cases import Array
from benchmarks.page.figures import Entry, Parts, of_kind

__all__ = ["SCORING_TARGETS", "scored", "scored_figures"]

I, H = 32, 64
SHORTEST, MEDIAN, LONGEST, SPREAD = 5, 35, 200, 0.8  # lognormal lengths
FILE_ROWS, GROUP_ROWS = 50_000, 10_000
SAMPLE = 50_000  # rows that fit into memory, for the other contenders
PASSES = 3  # passes of the layers; the fastest counts
CHECKED = 200

#: The targets: at least this fraction of the layers' speed, in at most this many bytes of memory.
SCORING_TARGETS = (0.7, 1 << 30)


# ---- the data and the model


def make_stack(engine: str = "auto") -> onegru.Stack:
    rng = np.random.default_rng(0)

    def layer(inputs: int) -> onegru.GRU:
        shapes = ((1, 3 * H, inputs), (1, 3 * H, H), (1, 6 * H))
        W, R, B = (rng.uniform(-(H**-0.5), H**-0.5, shape).astype(np.float32) for shape in shapes)
        return onegru.GRU(W, R, B, linear_before_reset=True, engine=engine)

    return onegru.Stack([layer(I), layer(H)])


#: Column formats: their names, and whether a row is a list of lists, or of all its numbers.
COLUMNS = {"lists of lists": True, "lists of numbers, never null": False}


def write_data(folder: Path, rows: int, *, nested: bool) -> int:
    """Write the files, and return the number of all steps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, total = np.random.default_rng(1), 0
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - first)
        lengths = np.exp(rng.normal(np.log(MEDIAN), SPREAD, count)).clip(SHORTEST, LONGEST).astype(np.int32)
        total += int(lengths.sum())
        steps = rng.standard_normal((int(lengths.sum()), I), np.float32)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
        if nested:
            numbers = pa.FixedSizeListArray.from_arrays(steps.reshape(-1), I)
            events = pa.ListArray.from_arrays(offsets, numbers)
        else:
            kind = pa.list_(pa.field("element", pa.float32(), nullable=False))
            events = pa.ListArray.from_arrays(offsets * I, pa.array(steps.reshape(-1)), type=kind)
        table = pa.table({"id": np.arange(first, first + count), "X": events})
        path = folder / f"{number:05}.parquet"
        pq.write_table(table, path, row_group_size=GROUP_ROWS, use_dictionary=False, compression="none")
    return total


def read_sample(folder: Path) -> list[Array]:
    """Return the first rows, [T, I] each."""
    import pyarrow.parquet as pq

    found: list[Array] = []
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(GROUP_ROWS, columns=["X"]):
            found += rows_of(batch["X"])
            if len(found) >= SAMPLE:
                return found[:SAMPLE]
    return found


def rows_of(column: Any) -> list[Array]:
    lengths, steps = np.asarray(column.value_lengths()), column.flatten()
    if steps.type == "float":
        lengths = lengths // I
    else:
        steps = steps.flatten()
    return np.split(np.asarray(steps).reshape(-1, I), np.cumsum(lengths)[:-1])


# ---- the contenders, each a process that prints its results


def score_turn(folder: Path, out: Path, threads: int) -> Entry:
    """Run the command, and return its seconds and its peak memory."""
    shutil.rmtree(out, ignore_errors=True)
    model = folder.parent / "stack.safetensors"
    command = [sys.executable, "-m", "onegru", "score", str(model), str(folder), "-o", str(out)]
    options = ["--keep", "id", "--json", "--threads", str(threads)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    cpu = usage.ru_utime + usage.ru_stime
    return {"rows": result["rows"], "seconds": result["seconds"], "memory": usage.ru_maxrss << 10, "cpu": cpu}


def stack_turn(folder: Path, out: Path, threads: int) -> Entry:
    """Run the layers on padded batches of rows of similar length, prepared in advance."""
    from onegru.scoring.batches import STEPS, batches
    from onegru.scoring.programs.program import LayersProgram

    onegru.set_num_threads(threads)
    rows = read_sample(folder)
    lengths = np.array([len(row) for row in rows])
    prepared = []
    for chosen in batches(lengths, STEPS, equal=False):
        prepared.append((padded([rows[index] for index in chosen]), lengths[chosen]))
    del rows
    program = LayersProgram(make_stack(), {}, None)
    passes = []
    used = time.process_time()
    for _ in range(PASSES):
        began = time.perf_counter()
        for X, own in prepared:
            program.run({"X": X}, own)
        passes.append(time.perf_counter() - began)
    cpu, batch = (time.process_time() - used) / PASSES, len(lengths) / len(prepared)
    return {"rows": len(lengths), "seconds": min(passes), "batch": batch, "cpu": cpu}


def memory_turn(folder: Path, out: Path, batch: int) -> Entry:
    """Run ONNX Runtime on rows in memory, padded batch by batch."""
    rows = read_sample(folder)
    threads, run = best_session(rows, batch)
    np.save(out.with_suffix(".npy"), run(rows[:CHECKED]))
    began = time.perf_counter()
    for first in range(0, len(rows), batch):
        run(rows[first : first + batch])
    return {"rows": len(rows), "seconds": time.perf_counter() - began, "threads": threads}


def files_turn(folder: Path, out: Path, batch: int) -> Entry:
    """Run ONNX Runtime from file to file: read, pad, run and write batches of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    threads, run = best_session(read_sample(folder), batch)
    count, began = 0, time.perf_counter()
    schema = pa.schema([("id", pa.int64()), ("Y_h", pa.list_(pa.float32(), H))])
    with pq.ParquetWriter(out.with_suffix(".parquet"), schema) as writer:
        for path in sorted(folder.glob("*.parquet")):
            for rows in pq.ParquetFile(path).iter_batches(batch):
                states = pa.FixedSizeListArray.from_arrays(run(rows_of(rows["X"])).reshape(-1), H)
                writer.write_batch(pa.record_batch([rows["id"], states], schema=schema))
                count += len(rows)
            if count >= SAMPLE:
                break
    return {"rows": count, "seconds": time.perf_counter() - began, "threads": threads}


def best_session(rows: list[Array], batch: int) -> tuple[int, Callable[[list[Array]], Array]]:
    """Return ONNX Runtime with the fastest number of threads, 0 for its default."""
    found: dict[int, tuple[float, Callable[[list[Array]], Array]]] = {}
    for threads in {0, 1, len(os.sched_getaffinity(0))}:
        run = session_of(threads)
        run(rows[:batch])
        began = time.perf_counter()
        for first in range(0, min(len(rows), 20 * batch), batch):
            run(rows[first : first + batch])
        found[threads] = (time.perf_counter() - began, run)
    best = min(found, key=lambda threads: found[threads][0])
    return best, found[best][1]


def session_of(threads: int) -> Callable[[list[Array]], Array]:
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, constants = [], [numpy_helper.from_array(np.array([1]), "one")]
    name = "X"
    for index, layer in enumerate(make_stack().layers):
        weights = {"W": layer.weights.W, "R": layer.weights.R, "B": layer.weights.B}
        constants += [numpy_helper.from_array(array, f"{key}{index}") for key, array in weights.items()]
        inputs = [name, *(f"{key}{index}" for key in weights), "lengths"]
        outputs = [f"Y{index}" if index == 0 else "", f"last{index}"]
        nodes.append(helper.make_node("GRU", inputs, outputs, hidden_size=H, linear_before_reset=1))
        if index == 0:
            nodes.append(helper.make_node("Squeeze", ["Y0", "one"], ["above"]))
            name = "above"
    graph = helper.make_graph(
        nodes,
        "stack",
        [
            helper.make_tensor_value_info("X", 1, ["T", "B", I]),
            helper.make_tensor_value_info("lengths", 6, ["B"]),
        ],
        [helper.make_tensor_value_info("last1", 1, [1, "B", H])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run(rows: list[Array]) -> Array:
        lengths = np.array([len(row) for row in rows], np.int32)
        found: Array = session.run(["last1"], {"X": padded(rows), "lengths": lengths})[0][0]
        return found

    return run


def padded(rows: list[Array]) -> Array:
    X = np.zeros((max(map(len, rows)), len(rows), I), np.float32)
    for index, row in enumerate(rows):
        X[: len(row), index] = row
    return X


TURNS: dict[str, Callable[[Path, Path, int], Entry]] = {
    "onegru score": score_turn,
    "layers only": stack_turn,
    "onnxruntime, in memory": memory_turn,
    "onnxruntime, files": files_turn,
}


def turn(name: str, folder: Path, out: Path, number: int) -> Entry:
    command = [sys.executable, "-m", "benchmarks.scoring", "--turn", name, str(folder), str(out), str(number)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ---- the measurement


def check(folder: Path, out: Path) -> float:
    """Return the largest error of the first results against the float64 reference, also for ONNX Runtime."""
    import pyarrow.parquet as pq

    exact = []
    layers = make_stack("reference").layers
    for row in read_sample(folder)[:CHECKED]:
        below, _ = layers[0](row[:, None])
        exact.append(layers[1](below[:, 0])[1][0, 0])
    first = pq.ParquetFile(sorted(out.glob("part-*.parquet"))[0]).read()
    ours = np.array(first["Y_h"].slice(0, CHECKED).to_pylist())
    theirs = np.load(out.with_suffix(".npy"))
    error = max(float(np.abs(found - np.array(exact)).max()) for found in (ours, theirs))
    assert error <= TOLERANCE, f"wrong by {error:.2g}"
    return error


def measure(folder: Path, rows: int, threads: int, rounds: int) -> Iterator[tuple[str, Entry]]:
    """Yield each turn's name and result; contenders are interleaved."""
    data, out = folder / "in", folder / "out"
    stacked = turn("layers only", data, out, threads)
    numbers = dict.fromkeys(TURNS, round(stacked["batch"])) | dict.fromkeys(
        ("onegru score", "layers only"), threads
    )
    for name in ("onegru score", "onnxruntime, in memory"):
        turn(name, data, out, numbers[name])
    print(
        f"largest error of {CHECKED} rows: {check(data, out):.1e}; batches of {round(stacked['batch'])} rows"
    )
    for _ in range(rounds):
        for name in TURNS:
            yield name, turn(name, data, out, numbers[name])


def main() -> None:
    if sys.argv[1:2] == ["--turn"]:
        who, data, out, number = sys.argv[2:]
        print(json.dumps(TURNS[who](Path(data), Path(out), int(number))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns; default 3")
    parser.add_argument(
        "--folder", type=Path, help="where the data lie meanwhile; default: that of temporary files"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks", help="folder for results")
    options = parser.parse_args()
    from benchmarks.run import machine

    here = machine()
    here["versions"]["pyarrow"] = version("pyarrow")
    print(json.dumps(here))
    record = Record(options.out / "scoring.json", {"rounds": options.rounds}, here, False)
    keys: list[Entry] = [
        {"kind": "scoring", "case": f"{options.rows} rows, {name}", "threads": options.threads}
        for name in COLUMNS
    ]
    for key in record.left(keys):
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="onegru-scoring-") as place:
            folder = Path(place)
            (folder / "in").mkdir()
            onegru.save_layers(make_stack(), folder / "stack.safetensors")
            steps = write_data(folder / "in", options.rows, nested=COLUMNS[key["case"].split(", ", 1)[1]])
            size = sum(path.stat().st_size for path in (folder / "in").iterdir())
            print(f"{key['case']}: {steps} steps, {size / 1e9:.2f} GB")
            found: dict[str, list[Entry]] = {}
            for who, entry in measure(folder, options.rows, options.threads, options.rounds):
                found.setdefault(who, []).append(entry)
                print(f"{who}: {entry['rows'] / entry['seconds']:,.0f} rows/s {entry}", flush=True)
            # Use the fastest, because other load on the machine only slows calls down.
            rates = {who: max(e["rows"] / e["seconds"] for e in all_) for who, all_ in found.items()}
            memory = max(entry["memory"] for entry in found["onegru score"])
            figures = {"steps": steps, "bytes": size, "rates": rates, "memory": memory}
            record.add(figures, "; ".join(scored_words(key | figures)))


# ---- the page


def scored_words(entry: Entry) -> list[str]:
    share, times, memory = scored_figures(entry)
    return [
        f"{share:.0%} of the layers' own speed",
        f"{times:.2f} times ONNX Runtime's",
        f"{memory / (1 << 20):.0f} MiB",
    ]


def scored_figures(entry: Entry) -> tuple[float, float, float]:
    """Return the fraction of the layers' speed, the speed-up over ONNX Runtime, and bytes of memory."""
    rates = entry["rates"]
    ours = rates["onegru score"]
    return ours / rates["layers only"], ours / rates["onnxruntime, in memory"], entry["memory"]


def scored(parts: Parts) -> list[str]:
    """Return the section of the raw data."""
    entries = of_kind(parts, "scoring", "scoring")
    if not entries:
        return []
    lines = [
        "### Data sets",
        "",
        f"The Parquet files have rows of {SHORTEST} to {LONGEST} steps. Lengths are lognormal with a median "
        f"of {MEDIAN}. `onegru score` runs two layers, {I} → {H} → {H}, from file to file. *Only the layers* "
        "runs batches of similar rows, prepared beforehand. ONNX Runtime gets batches of onegru's mean "
        "size, in the order of the file, padded to the longest row, with the fastest number of threads.",
        "",
        "Half of the processor time beyond the layers is Arrow's decoding of Parquet: 5.5 µs per row for "
        "lists of lists and 2.9 µs for lists of numbers. The layers take 20.5 µs. The rest copies rows, "
        "reads files and pads. These did not help: batches of 4,096 to 32,768 steps, whole row groups, "
        "Arrow's other memory pools, Python's switch interval.",
        "",
        "| rows | column | GB | threads | `onegru score`, rows/s | only the layers, rows/s "
        "| ONNX Runtime, in memory, rows/s | ONNX Runtime, files, rows/s | peak memory |",
        "| ---: | --- |" + " ---: |" * 7,
    ]
    for entry in entries:
        rates = [f"{entry['rates'][name]:,.0f}" for name in TURNS]
        size, memory = f"{entry['bytes'] / 1e9:.1f}", f"{entry['memory'] / (1 << 20):.0f} MiB"
        count, column = entry["case"].split(" rows, ")
        cells = [count, column, size, str(entry["threads"]), *rates, memory]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
