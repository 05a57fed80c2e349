"""`python -m benchmarks.streaming_files`: time one frame of models that `onegru stream` converted.

The converted file runs in onegru and in ONNX Runtime. The baseline is the original model, which runs again on
the last frames for each new frame. Results are compared with a whole run first. One thread.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import onegru
from benchmarks.training import best, machine, write_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "results" / "streaming_files.md"
WINDOW, FRAMES = 100, 30

INTRODUCTION = f"""# Streaming: raw data

These are the measurements of [Make a model stream](../../docs/guides/streaming.md), written by
`python -m benchmarks.streaming_files --page`. The table shows the time of one frame in µs, on one thread. `onegru stream`
converted each model. The converted file runs in onegru, or in ONNX Runtime without onegru.

The last two columns show the alternative: the original model runs again on the last {WINDOW} frames for each new
frame. The networks have the structure of published ones, but are smaller (`examples/streaming` and
`tests/frameworks/test_streaming_exports.py`)."""  # noqa: E501


def sessions(path: Path) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime without onegru."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def ways(source: Path, x: dict[str, Any], time: dict[str, int]) -> dict[str, Callable[[], object]]:
    """Return functions that run one frame in each way, after a check."""
    target = source.with_suffix(".streaming.onnx")
    report = onegru.make_streaming(source, target, time=time, delay=True)
    is_late = any("later" in words for words in report.notes)

    def part(start: int, count: int) -> dict[str, Any]:
        return {name: np.take(array, range(start, start + count), time[name]) for name, array in x.items()}

    window = part(0, WINDOW)
    whole, stream = onegru.load(source), onegru.load(target).stream()
    again, theirs = sessions(source), sessions(target)
    stream.step(part(0, FRAMES))
    outputs = [output.name for output in theirs.get_outputs()]
    pairs = stream.pairs
    states = {name: array for name, array in stream.state.items()}
    frame = part(FRAMES, 1)
    expected = whole.run(part(0, FRAMES + 1))

    def by_itself() -> dict[str, Any]:
        return dict(zip(outputs, theirs.run(outputs, {**frame, **states}), strict=True))

    found, other = by_itself(), stream.step(frame)
    for name in expected.keys() - pairs.keys():
        axes = [axis for axis, size in enumerate(expected[name].shape) if size == FRAMES + 1]
        last = np.take(expected[name], [-1], axes[0]) if axes else expected[name]
        for array in (found[name], other[name]):
            assert array.shape == last.shape and (is_late or np.abs(array - last).max() < 1e-4), (
                source,
                name,
            )
    return {
        "onegru": lambda: stream.step(frame),
        "ONNX Runtime": by_itself,
        "window, onegru": lambda: whole.run(window),
        "window, ONNX Runtime": lambda: again.run(None, window),
    }


def networks(folder: Path) -> dict[str, tuple[Path, dict[str, Any], dict[str, int]]]:
    """Return the models, their inputs, and the time axes."""
    rng = np.random.default_rng(0)
    found = {}
    example = ROOT / "examples" / "streaming" / "enhancer.onnx"
    copy = folder / example.name
    copy.write_bytes(example.read_bytes())
    found["enhancer (example)"] = copy, {"x": rng.standard_normal((1, WINDOW, 129), np.float32)}, {"x": 1}
    try:
        from tests.frameworks.test_streaming_exports import NETWORKS, T, exported
    except BaseException as error:  # pytest skips without PyTorch
        print(f"only the example: {error}")
        return found
    for name, (_, shapes, _, _) in NETWORKS.items():
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings(action="ignore"):
            exported(name, path, dynamo=False, is_open=True)
        places = {key: shape.index(T) for key, shape in shapes.items()}
        inputs = {
            key: rng.standard_normal([WINDOW if size == T else size for size in shape]).astype(np.float32)
            for key, shape in shapes.items()
        }
        found[name] = path, inputs, places
    return found


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for each model")
    parser.add_argument("--page", action="store_true", help=f"write benchmarks/results/{PAGE.name}")
    options = parser.parse_args()
    onegru.set_num_threads(1)
    place = machine()
    lines = [
        f"## {place}",
        "",
        f"onegru {onegru.__version__}, ONNX Runtime {onnxruntime.__version__}.",
        "",
        "| model | onegru | ONNX Runtime | window again, onegru | window again, ONNX Runtime |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, (path, inputs, time) in networks(Path(folder)).items():
            times = best([*ways(path, inputs, time).values()], options.seconds)
            lines.append(f"| {name} | " + " | ".join(f"{1e3 * each:.0f}" for each in times) + " |")
            print(lines[-1], flush=True)
    if options.page:
        write_page(PAGE, INTRODUCTION, place, "\n".join(lines), "")


if __name__ == "__main__":
    main()
