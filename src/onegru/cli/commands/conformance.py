"""The commands of the conformance suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onegru.cli import options
from onegru.cli.options import PRECISION, Text, Texts, argument, option, path, timeout
from onegru.cli.outputs import check_target, print_json
from onegru.cli.screen import ProgressBar, Screen, fits, ruled_table, safe, say
from onegru.conformance.case import Case
from onegru.conformance.cases import kit_cases, select_cases
from onegru.conformance.export import export_cases, summary
from onegru.conformance.files import kind_of_case
from onegru.conformance.report.data import features_of, only_level
from onegru.conformance.results import (
    PAST,
    STATUSES,
    Outcome,
    RuntimeResults,
    Status,
    document,
    write_results,
)
from onegru.conformance.runtimes import registry as kit
from onegru.conformance.runtimes.registry import configs
from onegru.conformance.runtimes.run import SECONDS, run_cases
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.peers.registry import PRECISIONS

conformance = typer.Typer(
    help="List, run and export the conformance suite.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Cases = Annotated[
    Texts, option("--case PATTERN", "Only cases with this name; can contain *, ? and [...]. Repeat for more.")
]
Operators = Annotated[
    Texts, option("--operator NAME", "Only cases of this operator, such as GRU-14, or GRU for all versions.")
]
KitRuntimes = Annotated[
    Texts,
    option(
        "--runtime NAME",
        f"Runtime to test: {', '.join(kit.RUNTIMES)}, or module:function or FILE.py:function for your "
        "function. Repeat for several. Default: all installed runtimes.",
    ),
]
Providers = Annotated[
    Texts,
    option(
        "--provider NAME",
        "Execution provider of ONNX Runtime, without the CPU provider as a fallback. Repeat for several. "
        "Default: the CPU provider.",
    ),
]
KitEngines = Annotated[
    Texts,
    option(f"--engine {' or '.join(kit.ENGINES)}", "Engine of onegru. Repeat for several. Default: native."),
]
KitPrecision = Annotated[
    Text, option(PRECISION, f"Inference precision of OpenVINO. Default: {PRECISIONS[0]}.")
]
KitTimeout = Annotated[float, timeout("Time limit for a case, in seconds.")]
NoRefusals = Annotated[bool, option("--no-refusals", "Exit with code 1 if a runtime rejects a case.")]
KitOutput = Annotated[Path | None, option("-o, --output FILE", "File for all results, as JSON.", parser=path)]
KitHtml = Annotated[Path | None, option("--html FILE", "File for all results, as an HTML page.", parser=path)]
KitFolder = Annotated[Path, argument("DIR", "Target folder; must be new or empty.", parser=path)]


# Factor and level of cases without an unusual level, and of cases with several.
_USUAL, _SEVERAL = ("no unusual feature", ""), ("several unusual features", "")

# The number of reasons to print for each runtime.
_MOST_REASONS = 8


@conformance.callback(invoke_without_command=True)
def _main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@conformance.command("list", short_help="List the cases.")
def list_command(cases: Cases = None, operators: Operators = None, as_json: options.Json = False) -> None:
    """List the cases with the feature that each one checks and its source in the specification.

    Example: onegru conformance list --operator GRU-14 --case "*lengths*"
    """
    chosen = chosen_cases(cases or (), operators or ())
    if as_json:
        print_json({"cases": [_case_json(case) for case in chosen]})
        return
    screen = Screen()
    for case in chosen:
        say(screen, f"[bold]{case.name}[/]", f"  {safe(case.checks)}", f"  {safe(case.source)}")
    say(screen, count(len(chosen), "case"))


def _case_json(case: Case) -> dict[str, object]:
    return {**summary(case), "file": kind_of_case(case), "checks": case.checks, "source": case.source}


@conformance.command("run", short_help="Run the cases in runtimes.")
def run_command(
    cases: Cases = None,
    operators: Operators = None,
    runtimes: KitRuntimes = None,
    providers: Providers = None,
    engines: KitEngines = None,
    precision: KitPrecision = None,
    timeout: KitTimeout = SECONDS,
    no_refusals: NoRefusals = False,
    output: KitOutput = None,
    html: KitHtml = None,
    as_json: options.Json = False,
) -> None:
    """Run the cases in each runtime, and report the features that it supports correctly.

    Each runtime runs in separate processes. A case passes, differs, is refused (the runtime raises an error)
    or crashes (signal, exit, timeout or out of memory).

    The exit code is 1 if a case differs or crashes, else 0, because a runtime can reject what it does not
    support.

    Example: onegru conformance run --runtime onnxruntime --operator GRU-14 --html report.html
    """
    chosen = chosen_cases(cases or (), operators or ())
    for name, file, suffix, other in (("-o", output, ".json", html), ("--html", html, ".html", output)):
        if file is not None:
            check_target(f"{name} {file}", file, [suffix], filter(None, [other]))
    runners = configs(runtimes or (), providers or (), engines or (), precision)
    counts = [sum(kind_of_case(case) in item.kinds for case in chosen) for item in runners]
    if not any(counts):
        names = ", ".join(dict.fromkeys(item.runtime.name for item in runners))
        raise SpecError.of("--runtime", f"{names}; must support one of the chosen cases")
    with ProgressBar(f"running {count(len(chosen), 'case')}") as watch:
        results = [
            run_cases(
                runner,
                chosen,
                seconds=timeout,
                progress=_in_total(watch.progress, sum(counts[:number]), sum(counts)),
            )
            for number, runner in enumerate(runners)
        ]
    if output is not None:
        write_results(output, results)
    if html is not None:
        from onegru.conformance.report import write_report  # needed only here

        write_report(html, results, chosen)
    if as_json:
        print_json(document(results))
    else:
        show_results(Screen(), results, chosen)
        say(Screen(), *(f"wrote {safe(str(path))}" for path in (output, html) if path is not None))
    bad = {"differs", "crashes", *(["refuses"] if no_refusals else [])}
    if any(outcome.status in bad for result in results for outcome in result.outcomes.values()):
        raise typer.Exit(1)


@conformance.command("export", short_help="Write the cases as files.")
def export_command(folder: KitFolder, cases: Cases = None, operators: Operators = None) -> None:
    """Write the cases as files: ONNX backend tests and OpenVINO IRs.

    Each case has its inputs, its outputs in float64, and a tolerance for each value. Read case.json first.

    Example: onegru conformance export kit --operator GRU-22
    """
    with ProgressBar("writing cases") as watch:
        chosen = chosen_cases(cases or (), operators or ())
        export_cases(folder, chosen, watch.progress)
    say(Screen(), f"wrote {count(len(chosen), 'case')} to {safe(str(folder))}")


def chosen_cases(patterns: Sequence[str], operators: Sequence[str]) -> list[Case]:
    """Return the cases that match a pattern and have one of the operators; empty lists match all."""
    found = list(kit_cases())
    known = {name.lower() for case in found for name in (str(case.operator), case.operator.name)}
    for name in operators:
        if name.lower() not in known:
            names = ", ".join(dict.fromkeys(str(case.operator) for case in found))
            raise SpecError.of("--operator", f"{name!r}; must be one of {names}")
    wanted = {name.lower() for name in operators} or known
    found = [case for case in found if wanted & {str(case.operator).lower(), case.operator.name.lower()}]
    return select_cases(found, patterns, "--case")


def _in_total(progress: Callable[[int, int], None], before: int, total: int) -> Callable[[int, int], None]:
    """Return the progress function for one of several runs."""
    return lambda done, _: progress(before + done, total)


# ---- text output


def show_results(console: Console, results: Sequence[RuntimeResults], cases: Sequence[Case]) -> None:
    """Print a table of features and runtimes, then the most frequent reasons."""
    left = results
    while left:  # runtimes that do not fit into the width get another table
        shown = next(n for n in range(len(left), 0, -1) if n == 1 or fits(console, _table(left[:n], cases)))
        console.print(_table(left[:shown], cases))
        left = left[shown:]
    say(console, "Number of cases: passed, [red]d[/]iffered, [yellow]r[/]efused, [red]c[/]rashed.")
    for result in results:
        say(console, "", f"[bold]{safe(result.label)}[/]: {result.summary()}", *_reasons(result))


def _table(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> Table:
    table = ruled_table(["feature", ""], [_heading(result) for result in results])
    table.columns[0].min_width = table.columns[1].min_width = 15
    before = ""
    for (factor, level), names in features(cases).items():
        cells = [
            _cell(result.outcomes[name] for name in names if name in result.outcomes) for result in results
        ]
        if any(cells):
            table.add_row("" if factor == before else factor, level, *cells)
            before = factor
    table.add_section()
    table.add_row("all cases", "", *(_cell(result.outcomes.values()) for result in results))
    return table


def features(cases: Sequence[Case]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the cases with exactly one unusual level, by its factor and level.

    The other cases come last. Features are in the factors' order.
    """
    found: dict[tuple[str, str], list[str]] = {_USUAL: []}
    found |= {feature: [] for feature in features_of(cases)} | {_SEVERAL: []}
    for case in cases:
        found[only_level(case) or (_SEVERAL if case.choices else _USUAL)].append(case.name)
    return {feature: names for feature, names in found.items() if names}


def _heading(result: RuntimeResults) -> str:
    options = (text.removesuffix("ExecutionProvider") for text in result.options.values())
    return "\n".join(map(safe, [result.runtime, *options]))


_MARKS: Mapping[str, str] = {
    "passes": "{}",
    "differs": "[red]{}d[/]",
    "refuses": "[yellow]{}r[/]",
    "crashes": "[red]{}c[/]",
}


def _cell(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    return " ".join(_MARKS[status].format(counts[status]) for status in STATUSES if counts[status])


def _reasons(result: RuntimeResults) -> list[str]:
    """Return the most frequent reasons, each with its number of cases and one of the cases."""
    by_reason: dict[tuple[Status, str], list[str]] = {}
    for name, outcome in result.outcomes.items():
        if outcome.status != "passes":
            by_reason.setdefault((outcome.status, outcome.reason), []).append(name)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    lines = [
        f"  {len(names)} {PAST[status]}: {safe(reason)} [dim]({names[0]})[/]"
        for (status, reason), names in ranked[:_MOST_REASONS]
    ]
    return (
        [*lines, f"  and {count(len(ranked) - _MOST_REASONS, 'other reason')}"]
        if ranked[_MOST_REASONS:]
        else lines
    )
