"""Time a model in onegru and in ONNX Runtime or OpenVINO."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Annotated, Any

import numpy as np
from rich.console import Console

import onegru
from onegru.cli import options
from onegru.cli.commands.fuse import show_fusing_hint
from onegru.cli.inputs import explained, gather_inputs
from onegru.cli.options import Number, option
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, ruled_table, safe, say
from onegru.core.arguments import integer
from onegru.core.compare import compare, merged
from onegru.core.dtypes import Array, contiguous, is_int8
from onegru.core.errors import FormatError, OneGRUError, needs_extra
from onegru.core.wording import count, duration
from onegru.engines.native import MOST_THREADS, get_num_threads, set_num_threads
from onegru.formats.format import format_of
from onegru.formats.opened import Opened, open_model
from onegru.models.inspect import report
from onegru.models.model import Model
from onegru.system.turns import cpu_share, take_turns

_BUSY = 0.9  # with a smaller share of a CPU, times depend more on other processes

Rounds = Annotated[int, option("--rounds N", "Number of measurements of each runtime.", min=1, max=1000)]
BenchThreads = Annotated[
    Number, option("--threads N", "Number of threads of each runtime. Default: all cores.", min=1)
]


def bench_command(
    model: options.Model,
    inputs: options.Inputs = None,
    random: options.Seed = None,
    dims: options.Dims = None,
    default_dim: options.DefaultDim = None,
    rounds: Rounds = 7,
    threads: BenchThreads = None,
    weight_storage: options.WeightStorage = None,
    activation_storage: options.ActivationStorage = None,
    as_json: options.Json = False,
) -> None:
    """Time a model in onegru and in its own runtime, alternating between them.

    Example: onegru bench model.onnx --random 0 --dim batch=1
    """
    if threads is not None:
        set_num_threads(integer("--threads", threads, 1, MOST_THREADS))
    with ProgressBar(f"loading {model.name}"):
        file = open_model("path", model)
        loaded = onegru.load(file, weight_storage=weight_storage, activation_storage=activation_storage)
    values, random_names = gather_inputs(loaded, inputs or [], random, dims or [], default_dim)
    with explained(loaded, random_names), ProgressBar(f"timing {model.name}"):
        share = cpu_share()
        timings = measure(loaded, values, rounds)
        share = min(share, cpu_share())
    _show_timings(Screen(), timings, onegru.get_num_threads(), share, as_json=as_json)
    if not as_json:
        show_fusing_hint(Screen(), loaded)
        if weight_storage is None and _holds_int8(loaded):
            say(
                Screen(),
                "GRUs of this file store int8 weights; add --weight-storage int8 to compute with them",
            )


@dataclass(frozen=True, slots=True)
class Timing:
    """Run times of one runtime in seconds, or the reason why it was not timed."""

    runtime: str
    version: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    refuses: str | None = None


def measure(model: Model, inputs: Mapping[str, Array], rounds: int) -> list[Timing]:
    """Check onegru's outputs against the file's own runtime, then time both with equal threads."""
    ours = model.run(inputs)
    calls: dict[str, Callable[[], object]] = {"onegru": lambda: model.run(inputs)}
    differences: dict[str, float | None] = {}
    refuses: str | None = None
    file = model.graph.file
    runtime = format_of(file).runtime if file is not None else "onnxruntime"
    if any(array.size == 0 for array in inputs.values()):
        refuses = "not run, because it can crash on an empty input"
    elif file is not None:
        try:
            theirs = {runtime: (_openvino if runtime == "openvino" else _onnxruntime)(file, inputs)}
            if runtime == "onnxruntime" and _holds_int8(model):
                theirs[_IN_FLOAT32] = _onnxruntime(file, inputs, folded_weights=True)
            differences |= {name: _difference(ours, call()) for name, call in theirs.items()}
            calls |= theirs
        except OneGRUError as error:
            refuses = str(error)
    timings = [
        Timing(name, version(name.partition(",")[0]), median(s), min(s), max(s), differences.get(name))
        for name, s in take_turns(calls, rounds).items()
    ]
    if refuses is not None:
        timings.append(Timing(runtime, "", refuses=refuses))
    return timings


Call = Callable[[], Mapping[str, Array]]

#: ONNX Runtime is faster on a file with int8 weights if they are dequantized before.
_IN_FLOAT32 = "onnxruntime, float32 weights"


def _holds_int8(model: Model) -> bool:
    """Whether a model's file stores int8 weights of GRUs."""
    return any(is_int8(item.lossless_storage) for item in report(model))


def _onnxruntime(file: Opened, inputs: Mapping[str, Array], *, folded_weights: bool = False) -> Call:
    """Return a call that runs the file in ONNX Runtime without onegru."""
    # This import is local, because an IR does not need onnx.
    from onegru.formats.onnx.validate import Source, parse_file
    from onegru.formats.onnx.whole.optimizers import harmful_optimizers
    from onegru.formats.onnx.whole.session import Session

    disabled = harmful_optimizers(file.once(parse_file))
    session = Session(file.data, Source.of(file), disabled=disabled, folded_weights=folded_weights)
    return lambda: dict(zip(session.output_names, session.run(inputs), strict=True))


def _openvino(file: Opened, inputs: Mapping[str, Array]) -> Call:
    """Return a call that runs the file in OpenVINO without onegru, in float32, with the inputs' sizes."""
    os.environ.setdefault("OPENVINO_TELEMETRY", "0")
    with needs_extra("openvino", "openvino", str(file)):
        import openvino
    try:
        core = openvino.Core()
        model = core.read_model(str(file.path))
        if model.get_sinks():
            raise FormatError(
                f"{file}: not timed: OpenVINO keeps the states of this model, so repeated runs differ"
            )
        ports = {port: next(inputs[name] for name in _names(port) if name in inputs) for port in model.inputs}
        model.reshape({port: list(array.shape) for port, array in ports.items()})
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": get_num_threads()}
        compiled = core.compile_model(model, "CPU", options | {"PERFORMANCE_HINT": "LATENCY"})
    except FormatError:
        raise
    except Exception as error:  # OpenVINO's errors have many classes
        raise FormatError(
            f"{file}: OpenVINO cannot load it ({' '.join(str(error).split())[:200]})"
        ) from error
    feeds = [contiguous(ports[port]) for port in model.inputs]
    outputs = [(port, name) for port in compiled.outputs for name in _names(port)]

    def run() -> dict[str, Array]:
        found = compiled(feeds)
        return {name: found[port] for port, name in outputs}

    return run


def _names(port: Any) -> list[str]:
    """Return the names of an OpenVINO port."""
    return [*port.get_names(), port.get_node().get_friendly_name()]


def _difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float | None:
    """Return the largest difference; None if no number is finite."""
    items = [
        compare(array, theirs[name], 0.0)
        for name, array in ours.items()
        if isinstance(array, np.ndarray) and array.dtype.kind == "f"
    ]
    return merged(items).max_abs if any(item.compared for item in items) else None


def _show_timings(
    console: Console, timings: Sequence[Timing], threads: int, cpu_share: float, *, as_json: bool
) -> None:
    """Print a line for each runtime."""
    if as_json:
        found = {"threads": threads, "cpu_share": cpu_share}
        print_json({**found, "runtimes": [dataclasses.asdict(item) for item in timings]})
        return
    table = ruled_table(["runtime"], ["median", "low", "high", "difference"])
    for item in timings:
        if item.median is None or item.low is None or item.high is None:
            say(console, f"{item.runtime}: {safe(item.refuses or '')}")
            continue
        difference = "" if item.difference is None else f"{item.difference:.2g}"
        times = map(duration, (item.median, item.low, item.high))
        name, separator, way = item.runtime.partition(",")
        table.add_row(f"{name} {item.version}{separator}{way}", *times, difference)
    console.print(table)
    first = timings[0].median
    for item in timings[1:]:
        if item.median is not None and first:
            name, _, way = item.runtime.partition(",")
            subject = f"{name}'s time{' with' * bool(way)}{way}"
            say(console, f"{subject} is {item.median / first:.2f} times onegru's")
    if cpu_share < _BUSY:
        words = f"this process had the CPU for only {cpu_share:.0%} of the time, so the times are too long"
        say(console, f"[yellow]{words}[/]; repeat it on an idle machine")
    say(console, f"each runtime can use {count(threads, 'thread')}")
