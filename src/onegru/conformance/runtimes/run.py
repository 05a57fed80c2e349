"""Run the suite's cases in a runtime that can crash or hang."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from onegru.conformance.case import Case
from onegru.conformance.comparison import compare
from onegru.conformance.files import case_files, fed_inputs, kind_of_case
from onegru.conformance.results import Outcome, RuntimeResults
from onegru.conformance.runtimes.function import FunctionRuntime
from onegru.conformance.runtimes.registry import RuntimeConfig
from onegru.conformance.runtimes.torch import CaseSubject, TorchGru
from onegru.core.dtypes import Array
from onegru.peers.base import ModelUnderTest
from onegru.peers.child import WORKER, end_words, read_result
from onegru.peers.worker import answer_from
from onegru.system.child_process import ChildResult, Limits, child_folder, run_child, run_forked, run_limits

#: Called with the number of finished cases and of all cases.
Progress = Callable[[int, int], None]

#: Time limit for a case, in seconds.
SECONDS = 20.0

#: Bytes of address space for a process. With its libraries, no runtime needs half of it.
MEMORY = 8 << 30

# Cases for one process, unless it ends early.
_BATCH = 250

# Time limit for the start of a process, the runtime's import included, in seconds.
_START_SECONDS = 120.0

# Words in the error of a process without memory.
_NO_MEMORY = re.compile(r"bad_alloc|bad allocation|MemoryError|[Uu]nable to allocate|[Oo]ut of memory")

_LONGEST_REASON = 400

# Called with a case, its outcome, and the runtime's outputs.
_Take = Callable[[Case, Outcome, Mapping[str, Array]], None]
# A model and its inputs.
_Part = tuple[ModelUnderTest, Mapping[str, Array]]


class StopWorker(Exception):
    """Raised to end a process, with the reason."""


def run_cases(
    config: RuntimeConfig,
    cases: Sequence[Case],
    *,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> RuntimeResults:
    """Run cases in a separate process, which is replaced if it ends, hangs or runs out of memory."""
    own = [case for case in cases if kind_of_case(case) in config.kinds]
    outcomes: dict[str, Outcome] = {}
    outputs: dict[str, Mapping[str, Array]] = {}

    def take(case: Case, outcome: Outcome, given: Mapping[str, Array]) -> None:
        outcomes[case.name] = outcome
        if outcome.status == "differs":
            outputs[case.name] = given
        if progress is not None:
            progress(len(outcomes), len(own))

    limits = run_limits(_START_SECONDS + seconds * _BATCH)
    if not config.reserves_memory:
        limits = replace(limits, memory=memory)
    for first in range(0, len(own), _BATCH):
        with child_folder() as folder:
            _Batch(config, own[first : first + _BATCH], folder, seconds, take).run(limits)
    runtime = config.runtime
    return RuntimeResults(runtime.name, runtime.version() or "", config.options, outcomes, outputs)


class _Batch:
    """Cases for one process, or for several if it ends early."""

    def __init__(
        self, config: RuntimeConfig, cases: Sequence[Case], folder: Path, seconds: float, take: _Take
    ) -> None:
        self._cases, self._folder, self._seconds, self._take = cases, folder, seconds, take
        self._done = 0
        self._first = 0  # the first case of the process
        self._since = 0.0  # the time of the start of the process, or of its last result
        self._output_invalid = False  # whether it wrote invalid output
        self._start: Callable[[Limits], ChildResult] = self._start_new
        runtime = config.runtime
        if isinstance(runtime, FunctionRuntime):
            parts: list[_Part] = [(_as_case(case), {}) for case in cases]
            if not isinstance(runtime.function, str):
                self._start = partial(self._start_copy, runtime, parts)
                return
        else:
            is_torch = isinstance(runtime, TorchGru)
            parts = [
                (_as_case(case), case.inputs) if is_torch else _as_file(case, folder / str(number))
                for number, case in enumerate(cases)
            ]
        (folder / "request").write_bytes(pickle.dumps((runtime, parts)))

    def _start_new(self, limits: Limits) -> ChildResult:
        return run_child(WORKER, [str(self._done)], self._folder, limits, self._watch)

    def _start_copy(self, runtime: FunctionRuntime, parts: Sequence[_Part], limits: Limits) -> ChildResult:
        """Run a copy of this process, which needs no request and has no limit on its address space."""
        work = partial(answer_from, runtime, parts, self._done)
        return run_forked(work, self._folder, replace(limits, memory=None), self._watch)

    def run(self, limits: Limits) -> None:
        """Run all cases."""
        while self._done < len(self._cases):
            reason = self._run_process(limits)
            died_of = self._cases[self._done : self._done + 1] if reason else []
            if not self._is_ready:
                died_of, reason = self._cases[self._done :], f"at its start: {reason}"
            for case in died_of:
                self._give(case, Outcome("crashes", reason))

    def _run_process(self, limits: Limits) -> str:
        """Run a process until it ends."""
        self._first, self._since, self._output_invalid = self._done, time.monotonic(), False
        try:
            ended = self._start(limits)
        except StopWorker as stop:
            return "" if self._collect() or self._output_invalid else str(stop)
        except OSError as error:  # an earlier process removed the folder
            return str(error)
        self._collect()
        if self._output_invalid:
            return ""
        if _NO_MEMORY.search(ended.error):
            return "out of memory"
        words = "" if self._is_ready else f", {ended.error}"
        return f"{end_words(ended.code or 0)}{words}".removesuffix(", ")

    @property
    def _is_ready(self) -> bool:
        """Whether the process has started with the cases."""
        return os.path.lexists(self._folder / f"ready-{self._first}")

    def _watch(self) -> None:
        """Collect results, and end a process that takes too long or writes invalid output."""
        if self._collect():
            self._since = time.monotonic()
        seconds = self._seconds if self._is_ready else _START_SECONDS
        if self._output_invalid or time.monotonic() - self._since > seconds:
            raise StopWorker(f"took longer than {seconds:g} s")

    def _collect(self) -> bool:
        """Collect the results of the process; return whether there were any."""
        before = self._done
        while self._done < len(self._cases) and not self._output_invalid:
            case = self._cases[self._done]
            try:
                answer = read_result(self._folder, f"answer-{self._done}")
            except FileNotFoundError:
                break
            except Exception as error:  # a faulty process may have written anything
                self._output_invalid = True
                self._give(case, Outcome("crashes", f"left no readable answer ({error})"))
                break
            if answer.status == "ran":
                self._give(case, compare(case, answer.outputs), answer.outputs)
            elif answer.status == "differs":
                self._give(case, Outcome("differs", answer.reason))
            elif _NO_MEMORY.search(answer.reason):
                self._give(case, Outcome("crashes", "out of memory"))
            else:
                reason = answer.reason.replace(f"{self._folder / str(self._done)}/", "")
                self._give(case, Outcome("refuses", reason[:_LONGEST_REASON]))
        return self._done > before

    def _give(self, case: Case, outcome: Outcome, outputs: Mapping[str, Array] | None = None) -> None:
        self._done += 1
        self._take(case, outcome, outputs or {})


def _as_case(case: Case) -> CaseSubject:
    """Return a case for a runtime that reads no files, without its expected outputs."""
    return CaseSubject(case.name, None, _names(case), case=Case(case.operator, case.choices))


def _as_file(case: Case, folder: Path) -> _Part:
    """Return a case as a file, and write it to the folder if necessary."""
    files = case_files(case)
    if (model := files.get("model.onnx")) is not None:
        subject = ModelUnderTest(case.name, model, _names(case), has_others=bool(case.stored or case.rounded))
        return subject, fed_inputs(case)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return ModelUnderTest(str(folder / "model.xml"), None, _names(case)), fed_inputs(case)


def _names(case: Case) -> dict[str, tuple[str, ...]]:
    return {name: () for name in case.outputs}
