"""Tables and paragraphs for 80 columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from onegru.cli.outputs import print_json
from onegru.cli.screen import fits, ruled_table, safe, say
from onegru.core.compare import Comparison
from onegru.core.dtypes import Array
from onegru.core.wording import count, duration, shape_words
from onegru.engines.native import Targets
from onegru.formats.graph import TensorInfo
from onegru.formats.opened import Kind
from onegru.models.inputs.check import words_of
from onegru.models.inspect import Inspection
from onegru.models.model import Model
from onegru.models.report import GruReport
from onegru.runtimes.openvino import OpenvinoOperator

_NOISELESS = 100.0  # an SNR above this value, in dB, is only rounding
_MANY = 10**6  # a larger difference in ULP is shown as "many"; it occurs between tiny numbers
_MOST_LEFT_OUT = 20  # names of tensors


def show_run(
    console: Console,
    model: Model,
    values: Mapping[str, Array],
    results: Mapping[str, Array],
    seconds: float,
    written: Sequence[Path],
) -> None:
    """Print one or two lines for each input and output, then the time."""
    rows = [
        (kind, safe(name), *_array_cells(array))
        for kind, arrays in (("in", values), ("out", results))
        for name, array in arrays.items()
    ]
    table = ruled_table(["", "name", "type", "shape"], ["min", "max", "mean"])
    for row in rows:
        table.add_row(*row)
    if not fits(console, table):
        table = _grid(3)
        for kind, name, dtype, shape, least, most, mean in rows:
            figures = f"\n{least} … {most}, mean {mean}" if mean else ""
            table.add_row(kind, name, f"{dtype} {shape}{figures}")
        table.add_row()
    console.print(table)
    nodes = _nodes(len(model.gru_nodes), model.other_node_count)
    console.print(f"{nodes} ran in {duration(seconds)}", highlight=False)
    say(console, *(f"wrote {safe(str(path))}" for path in written))


def show_report(console: Console, report: Inspection, *, as_json: bool) -> None:
    """Print a paragraph for each GRU."""
    is_model = report.other_nodes is not None
    if as_json:
        document: dict[str, Any] = {"model": report.path, "kind": report.kind}
        if is_model:
            document |= {
                "inputs": [_tensor_json(info) for info in report.inputs],
                "outputs": [_tensor_json(info) for info in report.outputs],
                "other_nodes": report.other_nodes,
                "nested_grus": report.nested_grus,
                "decomposed": [dataclasses.asdict(item) for item in report.decomposed],
                "near_misses": [dataclasses.asdict(item) for item in report.near_misses],
                "fused_nodes": report.fused_nodes,
                "streaming": report.streaming,
            }
        else:
            document["left_out"] = report.left_out
        grus = [dataclasses.asdict(item) for item in report.grus]
        print_json({**document, "gru_nodes" if is_model else "gru_layers": grus})
        return
    if report.other_nodes is None:
        what = f"{report.kind} with {count(len(report.grus), 'GRU layer')}"
    else:
        what = _nodes(len(report.grus), report.other_nodes)
    say(console, f"[bold]{safe(report.path)}[/]: {what}")
    if is_model:
        table = _grid(3)
        for kind, infos in (("in", report.inputs), ("out", report.outputs)):
            for info in infos:
                optional = " (optional)" if info.optional else ""
                table.add_row(kind, safe(info.name), f"{safe(words_of(info))}{optional}")
        console.print(table)
    for item in report.grus:
        console.print()
        _show_gru(console, item)
    if report.streaming:
        console.print()
        console.print(f"streaming: {safe(report.streaming)}".replace("; ", "\n  "), highlight=False)
    for words in report.unread:
        console.print(safe(words), highlight=False)
    if report.left_out:
        console.print()
        say(console, left_out_words(report.left_out))
        if report.kind == Kind.KERAS.words:
            say(console, Kind.KERAS.remedy)


def show_next_steps(console: Console, steps: Iterable[tuple[str, str]]) -> None:
    """Print the command for each possible action."""
    if steps := list(steps):
        width = max(len(what) for what, _ in steps)
        say(console, "", *(f"{what.ljust(width)}  {safe(command)}" for what, command in steps))


def show_targets(console: Console, targets: Targets, operator: OpenvinoOperator, *, as_json: bool) -> None:
    """Print the targets, with the current one marked, and the implementation of GRU layers in OpenVINO."""
    if as_json:
        print_json({**dataclasses.asdict(targets), "openvino": dataclasses.asdict(operator)})
        return
    for name in targets.available:
        console.print(f"{name}{'  in use' if name == targets.chosen else ''}", highlight=False)
    console.print(f"int8 instructions: {targets.int8.upper()}", highlight=False)
    scope = "one target; `pip install .` builds all" if targets.is_native else "every target"
    console.print(f"built for: {scope}", highlight=False)
    words = "not installed"
    if operator.version is not None:
        way = "the C++ operator" if operator.is_native else "Python"
        words = f"{operator.version}, GRU layers run by {way}"
    say(console, f"OpenVINO: {words}{f': {safe(operator.problem)}' if operator.problem else ''}")


#: The name of a run, its outputs, and the text for a run without outputs.
Run = tuple[str, Sequence[Comparison], str]


def show_comparisons(console: Console, runs: Sequence[Run], *, with_tolerance: bool = False) -> None:
    """Print a table of the differences between outputs of runs and expected outputs."""
    items = [item for _, outputs, _ in runs for item in outputs]
    is_noisy = any(item.agrees and item.snr is not None and item.snr < _NOISELESS for item in items)
    more = [*["SNR"] * is_noisy, *["allowed"] * with_tolerance]
    table = ruled_table(["run by", "output"], ["max abs", "max ULP", *more])
    table.columns[0].no_wrap, table.columns[1].overflow = True, "fold"
    table.add_column("")
    for name, outputs, status in runs:
        for index, item in enumerate(outputs):
            figures = [f"{item.max_abs:.3g}", f"{item.max_ulp:,}" if item.max_ulp < _MANY else "many"]
            figures += ["" if item.snr is None else f"{item.snr:.1f} dB"] * is_noisy
            figures += [f"{item.tolerance:.3g}"] * with_tolerance
            words = f"[red]differs[/]{f' at {list(item.where)}' if item.where else ''}"
            if item.agrees:
                words = "[green]agrees[/]" if item.compared else "not compared"
            is_known = item.compared or not item.reason
            table.add_row(
                "" if index else name, safe(item.name), *(figures if is_known else [""] * len(figures)), words
            )
        if not outputs:
            table.add_row(name, "", *[""] * (2 + len(more)), status)
    console.print(table)


def left_out_words(names: Sequence[str]) -> str:
    """List the tensors or layers of a file that do not belong to its GRUs, in one line."""
    more = len(names) - _MOST_LEFT_OUT
    listed = ", ".join(map(safe, names[:_MOST_LEFT_OUT])) + (f" and {more} more" if more > 0 else "")
    return f"not part of a GRU: {listed}"


def _show_gru(console: Console, item: GruReport) -> None:
    console.print(f"[bold]{safe(item.name)}[/]  {item.operator}".rstrip(), highlight=False)
    if item.parameters is None or item.bytes is None:
        size = "unknown before a run, because its weights are computed"
    else:
        size = f"{item.parameters:,} ({item.bytes:,} bytes)"
    table = _grid(2)
    table.add_row(
        "input → hidden", f"{_size(item.input_size)} → {_size(item.hidden_size)}, {item.dtype or 'any type'}"
    )
    if item.bodies:
        table.add_row("inside", safe(", in ".join(reversed(item.bodies))))
    table.add_row("direction", item.direction)
    table.add_row("reset gate", f"{item.reset} the recurrent product")
    table.add_row("activations", " | ".join(f"{f}, {g}" for f, g in item.activations))
    table.add_row("clip", "none" if item.clip is None else f"{item.clip:g}")
    if item.operator:
        table.add_row("lengths", "yes" if item.lengths else "none")
    if item.attention:
        kinds = {"openvino": "z = (1 - a)·z, as in OpenVINO", "dien": "z = 1 - a·(1 - z), as in DIEN"}
        table.add_row("attention", kinds[item.attention])
    table.add_row("parameters", size)
    if item.lossless_storage is not None:
        table.add_row("lossless", f"--weight-storage {item.lossless_storage}")
    if item.flops_per_step is not None:
        table.add_row("FLOPs per step", f"{item.flops_per_step:,} for each row")
    for verdict in item.others:
        words = f"[yellow]{verdict.runtime} {verdict.version} {verdict.effect} it[/]: {safe(verdict.reason)}"
        table.add_row("other runtimes", words)
    if item.operator and not item.others:
        table.add_row("other runtimes", "no known problems")
    console.print(table)


def _grid(columns: int) -> Table:
    """Return a table without lines. Its first column holds labels, and long cells are wrapped."""
    table = Table.grid(padding=(0, 2))
    table.add_column("", no_wrap=True)
    for _ in range(columns - 1):
        table.add_column("", overflow="fold")
    return table


def _array_cells(value: Any) -> tuple[str, str, str, str, str]:
    if not isinstance(value, np.ndarray):
        kind = "map" if isinstance(value, Mapping) else "sequence"
        return kind, f"of {len(value)}" if isinstance(value, Sized) else "", "", "", ""
    shape = shape_words(value.shape)
    if value.dtype.kind in "OUS":
        return "str", shape, "", "", ""
    if value.size == 0:
        return value.dtype.name, shape, "", "", ""
    numbers = value.astype(np.float64)
    with np.errstate(all="ignore"):
        figures = (numbers.min(), numbers.max(), numbers.mean())
    return value.dtype.name, shape, *(f"{figure:.4g}" for figure in figures)


def _tensor_json(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": info.shape, "optional": info.optional}


def _nodes(grus: int, others: int) -> str:
    return f"{count(grus, 'GRU node')} and {count(others, 'other node')}"


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)
