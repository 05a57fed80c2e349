"""`onegru trace`: the gate values of a GRU node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Annotated

import numpy as np
from rich.console import Console

import onegru
from onegru.cli import options
from onegru.cli.inputs import explained, gather_inputs, input_files
from onegru.cli.options import Number, Text, Texts, option
from onegru.cli.outputs import check_not_read, check_target, print_json
from onegru.cli.screen import ProgressBar, Screen, ruled_table, safe, say
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.drawing.page import page
from onegru.formats.graph import initial_states
from onegru.formats.opened import open_model
from onegru.layers.gates import files
from onegru.layers.gates.pictures import picture
from onegru.layers.gates.summary import DirectionSummary, largest_differences
from onegru.models.fusing import fusing_hint
from onegru.models.model import Model
from onegru.system.atomic_write import write_files

TraceNode = Annotated[Text, option("--node NAME", "GRU node. Required if the model has several.")]
Row = Annotated[
    Number,
    option(
        "--row N", "Row of the batch. Default: the page shows row 0, and statistics cover all rows.", min=0
    ),
]
Direction = Annotated[Text, option("--direction", "forward or reverse. Default: all directions.")]
OtherTrace = Annotated[Path | None, option("--against FILE.npz", "Trace of another run to compare with.")]
TraceOutputs = Annotated[
    Texts,
    option("-o, --output FILE", "File to write: .npz with the values, or .html, a page that shows them."),
]


_MOST_UNITS = 12


def trace_command(
    model: options.Model,
    inputs: options.Inputs = None,
    random: options.Seed = None,
    dims: options.Dims = None,
    default_dim: options.DefaultDim = None,
    node: TraceNode = None,
    row: Row = None,
    direction: Direction = None,
    against: OtherTrace = None,
    outputs: TraceOutputs = None,
    weight_storage: options.WeightStorage = None,
    activation_storage: options.ActivationStorage = None,
    as_json: options.Json = False,
) -> None:
    """Compute the gates z, r, n and the state h of a GRU node at each step.

    Example: onegru trace model.onnx -i x.npy -o gates.npz -o gates.html
    """
    targets = _check_targets(outputs or [], against)
    with ProgressBar(f"loading {model.name}"):
        file = open_model("path", model)
        loaded = onegru.load(file, weight_storage=weight_storage, activation_storage=activation_storage)
        other = None if against is None else onegru.reports.GateTrace.load(against)
    name = _node(loaded, node)
    for path in targets:
        check_not_read(f"-o {path}", path, loaded.graph.file, inputs=input_files(inputs or [], loaded))
    values, random_names = gather_inputs(loaded, inputs or [], random, dims or [], default_dim)
    for name_of_state in initial_states(loaded.graph).intersection(random_names):
        values[name_of_state] = np.tanh(values[name_of_state])  # as states are, or the scale of h is off
    with explained(loaded, random_names), ProgressBar(f"running {model.name}"):
        trace = loaded.trace(values, name)
    found = [item for item in trace.summary(row) if direction in (None, item.direction)]
    if direction is not None:
        trace.direction_index(direction)
    differences: dict[str, dict[str, float]] = {}
    if other is not None:
        largest = zip(trace.directions, largest_differences(trace, row or 0, other), strict=True)
        differences = {way: gates for way, gates in largest if direction in (None, way)}
    their_row = (row or 0) if other is not None and len(other.lengths) > 1 else 0
    with ProgressBar("drawing"):
        write_files([(path, _writer(path, trace, row or 0, direction, other)) for path in targets])
    if as_json:
        _print(loaded, trace, found, row, against, their_row, differences)
        return
    console = Screen()
    _show(console, trace, found, row)
    for way, gates in differences.items():
        words = ", ".join(f"{gate} {number:.3g}" for gate, number in gates.items())
        say(console, f"against {safe(str(against))}, row {their_row}, {way}: largest difference {words}")
    say(console, *(f"wrote {safe(str(path))}" for path in targets))


def _check_targets(texts: Sequence[str], against: Path | None) -> list[Path]:
    """Return the files to write, checked before anything runs."""
    targets: list[Path] = []
    for text in texts:
        path = Path(text)
        check_target(f"-o {text}", path, [".npz", ".html"], [*targets, *filter(None, [against])])
        targets.append(path)
    return targets


def _node(model: Model, given: str | None) -> str | int:
    """Return the node's name, or its index if names do not identify it."""
    names = [gru.name for gru in model.gru_nodes]
    if given is None:
        if len(names) == 1:
            return 0
        if not names and (hint := fusing_hint(model.graph.file or model.path)):
            raise SpecError(f"{model.path}: has no GRU node; {hint}")
        listed = ", ".join(map(repr, names)) or "none"
        raise SpecError.of("--node", f"missing; {model.path} has {count(len(names), 'GRU node')}: {listed}")
    return int(given) if given not in names and given.isascii() and given.isdigit() else given


def _writer(
    path: Path,
    trace: onegru.reports.GateTrace,
    row: int,
    direction: str | None,
    other: onegru.reports.GateTrace | None,
) -> Callable[[IO[bytes]], object]:
    """Return a function that writes a file."""
    if path.suffix.lower() == ".npz":
        return files.writer(trace)
    text = page(picture(trace, row, direction, other)).encode()
    return lambda file: file.write(text)


def _print(
    model: Model,
    trace: onegru.reports.GateTrace,
    found: Sequence[DirectionSummary],
    row: int | None,
    against: Path | None,
    their_row: int,
    differences: dict[str, dict[str, float]],
) -> None:
    document = {
        "model": model.path,
        "node": trace.name,
        "dtype": trace.spec.dtype,
        "hidden_size": trace.spec.hidden_size,
        "lengths": trace.lengths,
        "row": row,
        "directions": [dataclasses.asdict(item) for item in found],
        "against": None
        if against is None
        else {"file": str(against), "row": their_row, "largest_difference": differences},
    }
    print_json(document)


def _show(
    console: Console, trace: onegru.reports.GateTrace, found: Sequence[DirectionSummary], row: int | None
) -> None:
    """Print a table for each direction, then the notable units."""
    units = trace.spec.hidden_size
    rows = count(len(trace.lengths), "row") if row is None else f"row {row}"
    words = f"{count(len(trace.h), 'step')}, {rows}, {count(units, 'unit')}, {trace.spec.dtype}"
    say(console, f"[bold]{safe(trace.name)}[/] of {safe(trace.source)}: {words}")
    for item in found:
        table = ruled_table([item.direction], ["min", "mean", "max", "near low end", "near high end"])
        for gate in item.gates:
            figures = (
                "" if number is None else f"{number:.3g}" for number in (gate.least, gate.mean, gate.most)
            )
            shares = ("" if share is None else f"{share:.1%}" for share in (gate.low, gate.high))
            table.add_row(_NAMES[gate.gate], *figures, *shares)
        console.print(table)
        if not item.steps:
            continue
        listed = ", ".join(map(str, item.dead[:_MOST_UNITS])) + (
            ", …" if len(item.dead) > _MOST_UNITS else ""
        )
        say(console, f"dead units: {len(item.dead)} of {units}" + (f": {listed}" if item.dead else ""))
        active = ", ".join(f"{unit} ({mean:.3g})" for unit, mean in item.active)
        say(console, f"most active units, by the mean |change of h| per step: {active}")


_NAMES = {"z": "update gate z", "r": "reset gate r", "n": "candidate n", "h": "state h"}
