"""A runtime of one's own, judged by the cases of the kit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onegru.conformance.case import Case
from onegru.conformance.cases import kit_cases, select_cases
from onegru.conformance.judge import judge
from onegru.conformance.results import Outcome, RuntimeResults
from onegru.core.arguments import check_function, shown
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.wording import printable


def try_runtime(
    run: Callable[[Case], Mapping[str, Array]],
    cases: str | Case | Iterable[str | Case] = "*",
    *,
    name: str = "mine",
    version: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> RuntimeResults:
    """Judge a runtime of your own by the cases of the kit.

        results = onegru.conformance.try_runtime(my_gru, "gru_14__*")
        print(results.summary())  # 81 passed, 1 differed

    Args:
        run: takes a case, and gives its outputs by the specification's names. `case.operator` and
            `case.attributes` say what is computed, `case.inputs` has the arrays, weights included, and
            `case.outputs` the names wanted. `onegru.conformance.onnx_model(case)` is the case as an ONNX
            model. What it raises, any Exception, counts as a refusal.
        cases: patterns of names, with *, ? and [...], or cases; "*" for all, which takes minutes.
        name: what to call the runtime.
        version: its version.
        progress: called after each case with the number of those done and of all.

    Returns:
        what came of each case; where it differs, the number that is off by the most, what it should be, and
        how far it may be off.

    Raises:
        SpecError: an argument is not legal, or no case has such a name.
    """
    if not callable(run):
        raise SpecError.of("run", f"{shown(run)}; must be a function of a case")
    check_function("progress", progress)
    listed = [cases] if isinstance(cases, str | Case) else list(cases) if isinstance(cases, Iterable) else []
    if not listed or not all(isinstance(item, str | Case) for item in listed):
        raise SpecError.of("cases", f"{shown(cases)}; must be patterns of names, or cases, at least one")
    patterns = [item for item in listed if isinstance(item, str)]
    chosen = [item for item in listed if isinstance(item, Case)]
    if patterns:
        chosen += select_cases(kit_cases(), patterns)
    outcomes: dict[str, Outcome] = {}
    outputs: dict[str, Mapping[str, Array]] = {}
    for done, case in enumerate(chosen, start=1):
        try:
            found = run(case)
        except Exception as error:  # whatever the runtime raises
            outcomes[case.name] = Outcome("refuses", f"{type(error).__name__}: {_words(error)}".rstrip(": "))
        else:
            is_named = isinstance(found, Mapping)
            words = f"gives {shown(found)}; must give arrays by name"
            outcomes[case.name] = judge(case, found) if is_named else Outcome("differs", words)
            if is_named and outcomes[case.name].status == "differs":
                outputs[case.name] = found
        if progress is not None:
            progress(done, len(chosen))
    return RuntimeResults(name, version, {}, outcomes, outputs)


def _words(error: Exception) -> str:
    """What an error says, on one line."""
    try:
        return printable(" ".join(str(error).split()))
    except Exception:  # of its own __str__
        return ""
