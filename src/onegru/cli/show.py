"""What a person reads: tables and short paragraphs, that fit 80 columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onegru.dtypes import Array
from onegru.files.graph import TensorInfo
from onegru.native import Targets
from onegru.report import GruReport
from onegru.session import Model

__all__ = ["show_model", "show_run", "show_targets"]


def show_run(
    console: Console,
    model: Model,
    values: Mapping[str, Array],
    results: Mapping[str, Array],
    seconds: float,
    written: Sequence[Path],
) -> None:
    """A line for each input and output, then the time."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "name", "type", "shape"):
        table.add_column(heading, overflow="fold")
    for heading in ("min", "max", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, arrays in (("in", values), ("out", results)):
        for name, array in arrays.items():
            table.add_row(kind, escape(name), *_outline(array))
    console.print(table)
    console.print(
        f"{_count(len(model.gru_layers), 'GRU node')}, {_count(model.other_node_count, 'other node')}, "
        f"{_duration(seconds)}",
        highlight=False,
    )
    for path in written:
        console.print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)


def show_model(console: Console, model: Model, reports: Sequence[GruReport], *, as_json: bool) -> None:
    """A paragraph for each GRU node."""
    if as_json:
        document = {
            "model": model.path,
            "inputs": [_tensor_json(info) for info in model.inputs],
            "outputs": [_tensor_json(info) for info in model.outputs],
            "other_nodes": model.other_node_count,
            "gru_nodes": [dataclasses.asdict(item) for item in reports],
        }
        print(json.dumps(document))
        return
    console.print(
        f"[bold]{escape(model.path)}[/]: {_count(len(reports), 'GRU node')}, "
        f"{_count(model.other_node_count, 'other node')}",
        highlight=False,
        soft_wrap=True,
    )
    for kind, infos in (("in ", model.inputs), ("out", model.outputs)):
        for info in infos:
            console.print(f"  {kind} {escape(info.name)}  {escape(_tensor_words(info))}", highlight=False)
    for item in reports:
        console.print()
        _show_gru(console, item)


def show_targets(console: Console, targets: Targets, *, as_json: bool) -> None:
    """The targets, the one in use marked."""
    if as_json:
        print(json.dumps(dataclasses.asdict(targets)))
        return
    for name in targets.available:
        console.print(f"{name}{'  in use' if name == targets.chosen else ''}", highlight=False)


def _show_gru(console: Console, item: GruReport) -> None:
    def say(text: str) -> None:
        console.print(f"  {text}", highlight=False)

    console.print(f"[bold]{escape(item.name)}[/]  {item.operator}", highlight=False)
    sizes = f"{_or(item.input_size)} → {_or(item.hidden_size)}"
    say(f"input → hidden   {sizes}, {item.dtype or 'type not known before a run'}")
    say(f"direction        {item.direction}")
    say(f"reset gate       {item.reset} the recurrent product")
    if item.activations is None:
        say("activations      not known before a run")
    else:
        say(f"activations      {' | '.join(f'{f}, {g}' for f, g in item.activations)}")
    say(f"clip             {'none' if item.clip is None else f'{item.clip:g}'}")
    say(f"lengths          {'yes' if item.lengths else 'none'}")
    if item.attention:
        say("attention        yes")
    if item.parameters is None or item.bytes is None or item.flops_per_step is None:
        say("parameters       computed in each run")
    else:
        say(f"parameters       {item.parameters:,} ({item.bytes:,} bytes)")
        say(f"FLOPs a step     {item.flops_per_step:,} for each row")
    for verdict in item.others:
        say(f"[yellow]{verdict.runtime} {verdict.version} {verdict.effect} it[/]: {escape(verdict.reason)}")
    if not item.others:
        say("other runtimes   none is known to fail on it")


def _outline(value: Any) -> tuple[str, str, str, str, str]:
    if not isinstance(value, np.ndarray):
        return type(value).__name__, "", "", "", ""
    shape = "[" + ", ".join(map(str, value.shape)) + "]"
    if value.dtype.kind in "OUS":
        return "str", shape, "", "", ""
    if value.size == 0:
        return value.dtype.name, shape, "", "", ""
    numbers = value.astype(np.float64)
    with np.errstate(all="ignore"):
        figures = (numbers.min(), numbers.max(), numbers.mean())
    return value.dtype.name, shape, *(f"{figure:.4g}" for figure in figures)


def _tensor_words(info: TensorInfo) -> str:
    shape = (
        "of any rank" if info.shape is None else str(["?" if size is None else size for size in info.shape])
    )
    return f"{info.dtype} {shape.replace(chr(39), '')}{' (optional)' if info.optional else ''}"


def _tensor_json(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": info.shape, "optional": info.optional}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _or(size: int | None) -> str:
    return "?" if size is None else str(size)
