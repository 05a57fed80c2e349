"""Run the suite in a custom runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from onegru.conformance.case import Case
from onegru.conformance.cases import kit_cases, select_cases
from onegru.conformance.comparison import compare
from onegru.conformance.files import IR, ONNX
from onegru.conformance.results import Outcome, RuntimeResults
from onegru.conformance.runtimes.function import Function, FunctionRuntime, find_function
from onegru.conformance.runtimes.registry import RuntimeConfig
from onegru.conformance.runtimes.run import SECONDS, run_cases
from onegru.conformance.runtimes.torch import CaseSubject
from onegru.core.arguments import check_function, number, shown
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.peers.base import MisfitError


def try_runtime(
    run: Function | str,
    cases: str | Case | Iterable[str | Case] = "*",
    *,
    name: str = "mine",
    version: str = "",
    timeout: float | None = SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> RuntimeResults:
    """Run your runtime on the suite's cases, in processes that can crash or hang.

        results = onegru.conformance.try_runtime(my_gru, "gru_14__*")
        print(results.summary())  # 81 passed, 1 differed

    Args:
        run: a function from a case to its outputs, by the specification's names. `case.operator` and
            `case.attributes` define the computation, `case.inputs` has the arrays, including weights, and
            `case.outputs` the wanted names. `onegru.conformance.onnx_model(case)` returns the case as an ONNX
            model. An Exception counts as "refuses". A function runs in copies of this process (`os.fork`),
            without the threads of libraries. Load such a library in the function, or pass the name
            "module:function", which new processes import.
        cases: patterns of names, with *, ? and [...], or cases. Default: "*" (all, which takes minutes).
        name: the name of the runtime.
        version: its version.
        timeout: time limit for a case, in seconds. With None, the function runs in this process, so you can
            debug it, but a crash ends the process. Functions on Windows, which has no fork, also run so.
        progress: called after each case with the number of finished cases and of all cases.

    Returns:
        the result of each case; if it differs, with the worst value, the expected value and the tolerance.

    Raises:
        SpecError: an argument is invalid, or no case has such a name.
    """
    if not (callable(run) or isinstance(run, str)):
        raise SpecError.of("run", f"{shown(run)}; must be a function of a case, or 'module:function'")
    check_function("progress", progress)
    listed = [cases] if isinstance(cases, str | Case) else list(cases) if isinstance(cases, Iterable) else []
    if not listed or not all(isinstance(item, str | Case) for item in listed):
        raise SpecError.of("cases", f"{shown(cases)}; must be at least one name pattern or case")
    patterns = [item for item in listed if isinstance(item, str)]
    chosen = [item for item in listed if isinstance(item, Case)]
    if patterns:
        chosen += select_cases(kit_cases(), patterns)
    runtime = FunctionRuntime(
        name, function=find_function(run) if isinstance(run, str) else run, number=version
    )
    if timeout is None or not (isinstance(run, str) or hasattr(os, "fork")):
        return _run_here(runtime, chosen, progress)
    if not 0 < (seconds := number("timeout", timeout)) < float("inf"):
        raise SpecError.of("timeout", f"{timeout}; must be above 0 and finite, or None")
    return run_cases(RuntimeConfig(runtime, kinds=(ONNX, IR)), chosen, seconds=seconds, progress=progress)


def _run_here(
    runtime: FunctionRuntime, cases: Sequence[Case], progress: Callable[[int, int], None] | None
) -> RuntimeResults:
    """Compare a runtime in this process, which a crash of the runtime ends."""
    outcomes: dict[str, Outcome] = {}
    outputs: dict[str, Mapping[str, Array]] = {}
    for done, case in enumerate(cases, start=1):
        try:
            found = runtime.run(CaseSubject(case.name, None, {}, case=case), {})
        except MisfitError as error:
            outcomes[case.name] = Outcome("differs", str(error))
        except RuntimeError as error:
            outcomes[case.name] = Outcome("refuses", str(error))
        else:
            outcomes[case.name] = compare(case, found)
            if outcomes[case.name].status == "differs":
                outputs[case.name] = found
        if progress is not None:
            progress(done, len(cases))
    return RuntimeResults(runtime.name, runtime.number, {}, outcomes, outputs)
