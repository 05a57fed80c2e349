"""`onegru verify`: compare a model in all runtimes, or with a reference."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import onegru
from onegru.cli import options
from onegru.cli.inputs import explained, gather_inputs
from onegru.cli.options import PRECISION, Texts, option, timeout
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, safe, say
from onegru.cli.tables import Run, show_comparisons
from onegru.core.compare import compared_words, merged
from onegru.core.wording import count
from onegru.formats.opened import open_model
from onegru.peers.registry import RUNTIMES, chosen_runtimes
from onegru.verification.results import Fault, LayerResult, ReferenceComparison, RuntimeResult, Verification

VerifySeed = Annotated[
    int, option("--random SEED", "Seed for random values of the inputs that are not given.", min=0)
]
Reference = Annotated[
    Path | None,
    option("--against REFERENCE", "Model (.onnx, .xml) or checkpoint (.pt, .safetensors) to compare with."),
]
ReferenceNodes = Annotated[
    Texts,
    option("--node NAME", "GRU of REFERENCE to compare with. Repeat for several, in the model's order."),
]
VerifyTolerance = Annotated[
    float | None,
    option(
        "--tolerance X",
        "Largest difference of an output element to allow, relative to max(1, its absolute value). "
        "Default: 1e-5 for float32, 1e-12 for float64, 0.01 for float16, 0.05 for bfloat16; more if the "
        "model amplifies rounding errors of its inputs beyond that.",
        min=0.0,
    ),
]
VerifyTimeout = Annotated[float, timeout("Time limit for a runtime, in seconds.")]
VerifyRuntimes = Annotated[
    Texts,
    option(
        "--runtime NAME",
        f"Runtime to compare: {', '.join(item.name for item in RUNTIMES)}; repeat for several. Default: "
        "every installed runtime that reads the file.",
    ),
]
VerifyPrecision = Annotated[
    str,
    option(
        PRECISION, "Inference precision of OpenVINO: f32, or default, which is bfloat16 on some processors."
    ),
]


def verify_command(
    model: options.Model,
    inputs: options.Inputs = None,
    random: VerifySeed = 0,
    dims: options.Dims = None,
    default_dim: options.DefaultDim = None,
    against: Reference = None,
    nodes: ReferenceNodes = None,
    tolerance: VerifyTolerance = None,
    timeout: VerifyTimeout = 60.0,
    runtimes: VerifyRuntimes = None,
    precision: VerifyPrecision = "f32",
    as_json: options.Json = False,
) -> None:
    """Run a model in onegru and in every installed runtime, and report where they differ.

    onegru compares each runtime (ONNX Runtime, OpenVINO, ONNX's evaluator) with its float64 reference on the
    same inputs. If one differs, onegru names the first wrong GRU node, and the mistake that explains it.

    The exit code is 1 if something differs, else 0. A runtime that rejects the model, crashes or times out
    does not change the exit code.

    Example: onegru verify model.onnx --dim batch=2 --against checkpoint.pt
    """
    from onegru.verification.verify import must_move, must_read  # slow import

    chosen = chosen_runtimes(runtimes or (), precision)
    with ProgressBar(f"loading {model.name}"):
        file = open_model("path", model)
        must_read(file, chosen if runtimes else ())
        loaded = onegru.load(file)
    values, random_names = gather_inputs(loaded, inputs or [], random, dims or [], default_dim)
    with explained(loaded, random_names), ProgressBar(f"verifying {model.name}") as watch:
        found = onegru.verify(
            loaded,
            values,
            against=against,
            nodes=nodes or (),
            runtimes=runtimes or (),
            precision=precision,
            tolerance=tolerance,
            timeout=timeout,
            progress=watch.progress,
        )
        moved = must_move(loaded, values, random_names, random or 0)
    found = dataclasses.replace(found, input_dependent=moved)
    if as_json:
        print_json({**dataclasses.asdict(found), "agrees": found.agrees})
    else:
        show_verification(Screen(), found)
    if not found.agrees:
        raise typer.Exit(1)


def show_verification(console: Console, found: Verification) -> None:
    """Print a table of runtimes and outputs, then a paragraph for each runtime that does not agree."""
    runs: list[Run] = [
        (
            ", ".join(filter(None, [f"{item.runtime} {item.version}", item.precision])),
            item.outputs,
            item.status,
        )
        for item in found.runtimes
    ]
    if found.against is not None and found.against.outputs:
        runs.append((f"against {safe(Path(found.against.reference).name)}", found.against.outputs, ""))
    show_comparisons(console, runs)
    if outputs := next((item.outputs for item in found.runtimes if item.outputs), ()):
        total = merged(outputs)
        total = dataclasses.replace(total, steps=found.steps, input_dependent=found.input_dependent)
        say(console, compared_words(total))
    for item in found.runtimes:
        say(console, *_runtime_lines(item))
    if found.against is not None:
        say(console, *_against_lines(safe(Path(found.model).name), found.against))
    say(console, *(f"{name} is not installed" for name in found.absent))


# ---- text


def _runtime_lines(item: RuntimeResult) -> list[str]:
    name = f"[bold]{item.runtime}[/]"
    if item.status == "agrees":
        return []
    if item.status != "differs":
        reason = f"refuses: {safe(item.reason)}" if item.status == "refuses" else safe(item.reason)
        return ["; ".join([f"{name} {reason}", *(f"known: {safe(words)}" for words in item.known)])]
    lines: list[str] = []
    if item.fault is not None:
        lines.append(f"{name} differs first in {_fault_words(item.fault)}")
    if item.reason:
        lines.append(f"{name}: {safe(item.reason)}")
    return lines or [f"{name} differs; no GRU node explains it"]


def _fault_words(fault: Fault) -> str:
    words = f"GRU node {safe(repr(fault.node))} ({fault.operator}): "
    if fault.where is None:
        words += f"{fault.output}: {safe(fault.reason)}"
    else:
        axes = {"time step": fault.step, "row": fault.row, "direction": fault.direction, "unit": fault.unit}
        location = ", ".join(f"{axis} {index}" for axis, index in axes.items() if index is not None)
        words += f"{fault.output} at {location} is {_format_pair(fault.got, fault.expected)}"
        words += f"; largest difference {_figure(fault.max_abs)}"
    if fault.diagnosis is not None:
        words += f"; [bold]as if {safe(fault.diagnosis)}[/]"
    return words + "".join(f"; known: it {safe(known)}" for known in fault.known)


def _against_lines(model: str, found: ReferenceComparison) -> list[str]:
    name = safe(Path(found.reference).name)
    lines: list[str] = []
    if found.first is not None:
        words = _layer_words(found.layers[found.first])
        lines.append(f"[bold]{model}[/] differs from {name} first in {words}")
        more = [safe(repr(item.node)) for item in found.layers[found.first + 1 :] if not item.agrees]
        if more:
            lines.append(f"[bold]{model}[/] differs from {name} in {', '.join(more)} as well")
    elif found.layers:
        largest = max(item.max_abs or 0.0 for item in found.layers)
        agree = "the GRU agrees" if len(found.layers) == 1 else f"the {count(len(found.layers), 'GRU')} agree"
        lines.append(f"against [bold]{name}[/]: {agree}; largest difference {_figure(largest)}")
    lines += [f"against [bold]{name}[/]: {safe(note)}" for note in found.notes]
    return lines


def _layer_words(item: LayerResult) -> str:
    same = item.node == item.reference
    words = f"GRU {safe(repr(item.node))}{'' if same else f', {safe(repr(item.reference))} in the reference'}"
    if item.max_abs is not None:
        words += f": largest difference {_figure(item.max_abs)} on equal inputs"
    if item.diagnosis is not None:
        words += f"; [bold]as if {safe(item.diagnosis)}[/]"
    return words + "".join(f"; {safe(difference)}" for difference in item.differences)


def _figure(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


def _format_pair(got: float | None, expected: float | None) -> str:
    """Format two numbers that differ, with enough digits to show it."""
    if got is None or expected is None:
        return f"{_figure(got)}, not {_figure(expected)}"
    digits = next((n for n in range(3, 17) if f"{got:.{n}g}" != f"{expected:.{n}g}"), 17)
    return f"{got:.{digits}g}, not {expected:.{digits}g}"
