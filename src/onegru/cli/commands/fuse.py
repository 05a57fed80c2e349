"""`onegru fuse`, and the lines about decomposed GRUs that `inspect` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from onegru.cli import options
from onegru.cli.model_changes import check_of, open_source, show_outputs
from onegru.cli.outputs import print_json
from onegru.cli.screen import ProgressBar, Screen, safe, say
from onegru.core.wording import count
from onegru.models.fusing import fusing_hint
from onegru.models.inspect import Inspection
from onegru.models.model import Model
from onegru.rewriting.fuse import Fusion, fuse

if TYPE_CHECKING:
    from onegru.fusion.search import Fused, NearMiss


def fuse_command(
    source: options.Source,
    target: options.Target,
    inputs: options.CheckInputs = None,
    dims: options.CheckDims = None,
    default_dim: options.CheckDefaultDim = None,
    tolerance: options.CheckTolerance = None,
    no_check: options.NoCheck = False,
    overwrite: options.Overwrite = False,
    as_json: options.TargetJson = False,
) -> None:
    """Fuse GRUs that an exporter has decomposed into other operators into GRU nodes.

    onegru proves each match, and compares TARGET with SOURCE. It writes TARGET only if they agree up to
    rounding.

    Example: onegru fuse model.onnx fused.onnx

    Example: onegru fuse model.xml fused.xml --dim batch=4
    """
    file = open_source(source, target, [".onnx", ".xml"], overwrite)
    check = check_of(file, inputs, dims, default_dim, tolerance, no_check)
    with ProgressBar(f"fusing {source.name}") as watch:
        report = fuse(file, target, check=check, progress=watch.progress)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _show(Screen(), report)


def _show(console: Console, report: Fusion) -> None:
    """Print lines for each GRU that was found, then a table of the outputs' differences."""
    say(console, f"wrote {safe(report.target or '')}, {saving_words(report.nodes, report.fused)}")
    say(console, *decomposed_words(report.fused), *near_miss_words(report.near_misses))
    say(console, *map(safe, report.notes))
    show_outputs(console, report.outputs)


def decomposed_words(found: Iterable[Fused]) -> Iterator[str]:
    """Yield two lines for each recurrence: its location and notation, and its GRU."""
    for item in found:
        yield f"[bold]{safe(item.place)}[/]  {_form_words(item)}"
        reset = "after" if item.linear_before_reset else "before"
        words = [
            f"{item.operator} {item.input_size} → {item.hidden_size}",
            item.direction,
            f"reset gate {reset} the recurrent product",
            ", ".join(item.activations),
            *(["steps can be masked"] if item.masked else []),
            f"checked with inputs that change {item.input_dependent:,} of {count(item.outputs, 'output')}",
        ]
        yield f"  {'; '.join(words)}"


def near_miss_words(missed: Iterable[NearMiss]) -> Iterator[str]:
    """Yield a line for each near miss: its location, and the part that does not fit."""
    for item in missed:
        yield f"[bold]{safe(item.place)}[/]  not fused: {safe(item.reason)}"


def saving_words(nodes: tuple[int, int], found: Iterable[Fused]) -> str:
    """Return what fusing saves: nodes, and loops, which run their nodes in every iteration."""
    old, new = nodes
    loops = len({item.place for item in found if item.form == "loop"})
    words = f"{old:,} nodes become {new:,}"
    return f"{words}, with {count(loops, 'loop')} fewer" if loops else words


def show_decomposed(console: Console, found: Inspection) -> None:
    """Print decomposed GRUs of an inspection; nothing without any."""
    if found.decomposed or found.near_misses:
        console.print()
    if found.fused_nodes is not None:
        grus = count(len(found.decomposed), "GRU")
        saving = saving_words(found.fused_nodes, found.decomposed)
        say(console, f"{grus} decomposed into other operators; after fusion, {saving}")
        say(console, *decomposed_words(found.decomposed))
    say(console, *near_miss_words(found.near_misses))


def show_fusing_hint(console: Console, model: Model) -> None:
    """Print that a model without GRU nodes has decomposed GRUs."""
    file = model.graph.file or model.path
    if not model.gru_nodes and not model.nested_grus and (hint := fusing_hint(file)):
        say(console, hint)


def _form_words(item: Fused) -> str:
    nodes = count(item.nodes, "node")
    if item.form == "loop":
        steps = "every step" if item.steps is None else count(item.steps, "iteration")
        return f"a loop, {nodes} in {'' if item.steps is None else 'each of '}{steps}"
    if item.form == "chain" and item.steps is not None:
        return f"{count(item.steps, 'step')} in a row, {nodes}"
    return f"one step, {nodes}"
