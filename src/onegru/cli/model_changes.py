"""Arguments and result tables of rewrite, fuse, stream and quantize."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from onegru.cli.inputs import gather_inputs, open_sizes
from onegru.cli.outputs import check_not_read, check_target, model_files, print_json
from onegru.cli.screen import Screen, safe, say
from onegru.cli.tables import show_comparisons
from onegru.core.compare import Comparison, compared_words, merged
from onegru.core.errors import SpecError
from onegru.formats.opened import Kind, Opened, open_layers
from onegru.models.load import load
from onegru.rewriting.check import Check
from onegru.rewriting.rewrite import Rewriting


def open_source(source: Path, target: Path, suffixes: Sequence[str], overwrite: bool) -> Opened:
    """Open the source, after a check that the target is a file that may be written."""
    check_target(f"TARGET {target}", target, suffixes)
    file = open_layers("SOURCE", source)
    for path in model_files(target):
        check_not_read(f"TARGET {path}", path, file, "the source")
        if path.exists() and not overwrite:
            raise SpecError(f"TARGET {path}: exists; replace it with --overwrite")
    suffix = target.suffix.lower()
    if len(suffixes) <= 2 and (suffix == ".xml") != (file.kind is Kind.OPENVINO):
        wanted = "an OpenVINO IR" if suffix == ".xml" else "an ONNX model"
        raise SpecError.of("SOURCE", f"{str(source)!r} is {file.kind.words}; must be {wanted}, like TARGET")
    return file


def check_of(
    source: Opened,
    inputs: Sequence[str] | None,
    dims: Sequence[str] | None,
    default_dim: int | None,
    tolerance: float | None,
    no_check: bool,
) -> bool | Check:
    """Return the `check` argument that the options of the check specify."""
    given = {"--input": inputs, "--dim": dims, "--dims": default_dim, "--tolerance": tolerance}
    if no_check:
        refuse(given, "with --no-check")
        return False
    if all(value in (None, []) for value in given.values()):
        return True
    values = None
    if inputs:
        values, _ = gather_inputs(load(source), inputs, None, dims or [], default_dim, draws=False)
    return Check(inputs=values, dims=open_sizes(source, dims or [], default_dim), tolerance=tolerance)


def refuse(options: Mapping[str, object], when: str) -> None:
    """Raise SpecError if options are given that have no effect."""
    given = [name for name, value in options.items() if value not in (None, [], False)]
    if given:
        raise SpecError(
            f"{' and '.join(given)}: {'has' if len(given) == 1 else 'have'} no effect {when}; remove it"
        )


def show_rewriting(report: Rewriting, *, as_json: bool) -> None:
    """Print lines for each change, then a table of the outputs' differences; or JSON."""
    if as_json:
        print_json(dataclasses.asdict(report))
        return
    console = Screen()
    opsets = [str(opset) for opset in dict.fromkeys(report.opsets)]
    opset = f", opset {' became '.join(opsets)}" if opsets else ""
    say(console, f"wrote {safe(report.target or '')}{opset}")
    lines: list[str] = []
    for node in report.nodes:
        lines.append(f"[bold]{safe(node.name)}[/]")
        lines += (f"  {safe(words)}" for words in node.done or ("unchanged",))
        lines += (f"  because the runtime {safe(words)}" for words in node.reasons)
    lines += (f"{safe(words)}: converted" for words in report.others)
    say(console, *lines, *map(safe, report.notes))
    show_outputs(console, report.outputs)


def show_outputs(console: Console, outputs: Sequence[Comparison]) -> None:
    """Print a table of the differences between outputs of target and source."""
    if not outputs:
        console.print("not checked", highlight=False)
        return
    runs = [(name, list(items), "") for name, items in groupby(outputs, key=lambda item: item.runtime)]
    show_comparisons(console, runs)
    console.print("differences from the source, run in onegru on the same inputs", highlight=False)
    say(console, compared_words(merged(runs[0][1])))


class PlainHelp(typer.core.TyperCommand):
    """A command that lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by group, in the order of the function's parameters."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                name = "Arguments" if param.param_type_name == "argument" else "Options"
                name = getattr(param, "rich_help_panel", None) or name
                term, words = record
                groups.setdefault(name, []).append((re.sub(r" <.*>", "", term), words))  # no Python types
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
