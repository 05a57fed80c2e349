"""Compare a changed model with its source on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onegru.core.compare import (
    agreement,
    count_finite,
    difference,
    largest_allowed,
    largest_by_rounding,
    nothing_compared,
    signal_to_noise,
)
from onegru.core.dtypes import ELEMENT_TYPES, Array, as_text
from onegru.core.errors import FormatError, OneGRUError, is_own_mistake
from onegru.formats.graph import Graph, kept_states
from onegru.models.lengths import count_steps
from onegru.models.model import Model
from onegru.models.random_inputs import draw_twice, size_plans
from onegru.models.rounding import Rounding
from onegru.models.stream import first_states
from onegru.peers.base import ModelUnderTest, Runtime
from onegru.peers.registry import chosen_runtimes
from onegru.rewriting.check import Check, OutputReport

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import Source

_RUNTIME_FACTOR = 10.0  # other runtimes approximate the activations less closely
_CHECKS = 2  # number of different input sizes to compare on, if sizes are dynamic
#: The end of a message.
PROVES_NOTHING = (
    "so the check is inconclusive; pass realistic inputs (inputs, -i), or skip the check (check=False, "
    "--no-check)"
)


_Run = Callable[[dict[str, Any]], Mapping[str, Any]]


def check_result(
    source: Callable[[], Graph],
    made: Graph,
    target: Path,
    check: Check | None,
    tolerances: Mapping[str, float],
    dtypes: Collection[str] | None = None,
    data: bytes | None = None,
    runtime: str | None = None,
) -> tuple[tuple[OutputReport, ...], tuple[str, ...]]:
    """Compare a changed model with its source."""
    if check is None:
        return (), ()
    graph = source()
    wanted = {info.name for info in graph.outputs}
    fronts: dict[str, dict[str, str]] = {}
    changed: Source | None = None
    if data is not None and graph.file is not None:
        # Imported here, because an IR does not need onnx.
        from onegru.formats.onnx.validate import Source
        from onegru.rewriting.in_front import values_in_front, with_outputs

        changed = Source.of(graph.file).changed(target)
        if fronts := values_in_front(graph, made):
            values = {name: dtype for front in fronts.values() for name, dtype in front.items()}
            graph, _ = with_outputs(graph.file.data, Source.of(graph.file), values)
            made, data = with_outputs(data, changed, values)
    _check_interface(target, graph, made)
    try:
        given = Model(graph)
    except FormatError as error:
        raise FormatError(f"{error}; the target cannot be checked, and is not written") from error.__cause__
    result = Model(made)
    if dtypes is None:
        dtypes = {node.layer.spec.dtype for node in result.gru_nodes if node.layer is not None}
    runs: dict[str, _Run] = {"onegru": result.run}
    notes: tuple[str, ...] = ()
    if runtime is not None:
        assert data is not None and changed is not None
        notes = _not_checked(runtime, given, changed, data)
        if not notes:
            runs[runtime] = in_runtime(runtime, data, changed, [info.name for info in given.outputs])
    found: dict[tuple[str, str], OutputReport] = {}
    steps: dict[str, int] = {}
    for case in _cases(given, result, check):
        judge = Judge(given, case, check, target, tolerances, dtypes, result, fronts)
        for name, count in count_steps(given if given.gru_nodes else result, case.inputs).items():
            steps[name] = max(count, steps.get(name, 0))
        for place, run in runs.items():
            results = run(case.inputs)
            for name, expected in case.outputs.items():
                report = judge(name, place, f"output {name!r} in {place}", expected, results[name])
                key = (place, name)
                found[key] = report if key not in found else _both(found[key], report)
    check_moved(target, found.values())
    if steps and not any(steps.values()):
        raise FormatError(f"{target}: not written: no GRU takes a step on these inputs, {PROVES_NOTHING}")
    notes += tuple(f"GRU {name} did not run on these inputs" for name, count in steps.items() if not count)
    most = max(steps.values(), default=None)
    reports = (replace(report, steps=most) for report in found.values() if report.name in wanted)
    return tuple(reports), notes


def _check_interface(target: Path, source: Graph, made: Graph) -> None:
    """Raise FormatError unless a changed model has the inputs, the outputs and the states of its source."""
    inputs, outputs = ([info.name for info in infos] for infos in (source.inputs, source.outputs))
    for words, wanted, found in (
        ("inputs", inputs, [info.name for info in made.inputs]),
        ("outputs", outputs, [info.name for info in made.outputs]),
        ("states that it keeps", kept_states(source) or "none", kept_states(made) or "none"),
        ("first states", _first_states(source), _first_states(made)),
    ):
        if wanted != found:
            raise FormatError(
                f"{target}: not written: its {words} would be {found}; must be {wanted}, as in the source. "
                "This is a bug in onegru: please report it"
            )


def _first_states(graph: Graph) -> dict[str, object]:
    """Return the initial value, or else the shape, of each internal state."""
    if not graph.keeps:
        return {}
    return {**graph.starts, **{name: array.tolist() for name, array in graph.initial.items()}}


def check_moved(target: Path, reports: Iterable[OutputReport]) -> None:
    """Raise FormatError if no output depends on the random inputs."""
    moved = [report.input_dependent for report in reports]
    if moved and None not in moved and not any(moved):
        why = "no output depends on the random inputs"
        raise FormatError(f"{target}: not written: {why}, {PROVES_NOTHING}")


def _both(one: OutputReport, other: OutputReport) -> OutputReport:
    """Join two reports on an output: the larger difference, and the sum of the counts."""
    worse = other if other.max_abs > one.max_abs else one
    return replace(
        worse,
        compared=one.compared + other.compared,
        left_out=one.left_out + other.left_out,
        input_dependent=None
        if one.input_dependent is None or other.input_dependent is None
        else one.input_dependent + other.input_dependent,
    )


def _not_checked(runtime: str, given: Model, source: Source, model: bytes) -> tuple[str, ...]:
    """Return why the target is not checked in a runtime; empty if it is checked."""
    from onegru.formats.onnx.validate import external_tensors, read_model

    if any(info.dtype == "bfloat16" for info in (*given.inputs, *given.outputs)):
        return (f"not checked in {runtime}, which does not accept bfloat16 arrays",)
    if runtime == "openvino" and external_tensors(read_model(source, model)):
        return ("not checked in openvino, which cannot read external data of a model in memory",)
    return ()


def in_runtime(runtime: str, model: bytes, source: Source, names: list[str]) -> _Run:
    """Return a function that runs the target in another runtime."""
    if runtime == "openvino":
        (openvino,) = chosen_runtimes((runtime,))
        subject = ModelUnderTest(source.name, model, {name: () for name in names})
        return lambda feeds: _run_or_refuse(openvino, subject, feeds)
    from onegru.formats.onnx.validate import read_model
    from onegru.formats.onnx.whole.optimizers import crashing_optimizers
    from onegru.formats.onnx.whole.session import Session

    # Other optimizers stay enabled, as in programs that run the target.
    session = Session(model, source, disabled=crashing_optimizers(read_model(source, model)))
    return lambda feeds: dict(zip(session.output_names, session.run(feeds), strict=True))


def _run_or_refuse(runtime: Runtime, subject: ModelUnderTest, feeds: dict[str, Any]) -> Mapping[str, Any]:
    try:
        return runtime.run(subject, feeds)
    except Exception as error:  # any error of the runtime means rejection, but not an error of onegru
        if isinstance(error, MemoryError) or is_own_mistake(error):
            raise
        raise FormatError(f"{subject.path}: OpenVINO refuses it ({' '.join(str(error).split())})") from error


class Case(NamedTuple):
    """Inputs to compare on.

    Attributes:
        inputs: the arrays, by name.
        outputs: the source's outputs for these inputs.
        moved: the number of values of each output that change with other random inputs; None for given
            inputs, and for a model without inputs.
    """

    inputs: dict[str, Any]
    outputs: Mapping[str, Any]
    moved: Mapping[str, int] | None


def _cases(given: Model, result: Model, check: Check) -> Iterator[Case]:
    """Yield the given inputs, or random inputs with different sizes for dynamic dimensions."""
    if check.inputs is not None:
        inputs = {**first_states(given.graph, check.inputs), **check.inputs}
        yield Case(inputs, given.run(inputs), None)
        return
    seen: set[str] = set()
    first: OneGRUError | None = None
    count = 0
    for index, sizes in enumerate(size_plans(given)):
        drawn, moved = draw_twice(given, check.seed + index, sizes, check.dims, [result])
        shapes = repr({name: array.shape for name, array in drawn.inputs.items()})
        if shapes in seen:
            continue
        seen.add(shapes)
        if drawn.error is not None:
            first = first or drawn.error
            continue
        yield Case(drawn.inputs, drawn.outputs, moved)
        count += 1
        if count == _CHECKS:
            return
    if not count:
        raise FormatError(
            f"{given.path}: does not run on random inputs ({first}); pass inputs or dims for the check"
        )


def _is_same(expected: Any, found: Any) -> bool:
    """Whether two strings, string arrays or other non-numeric values are equal."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return type(expected) is type(found) and repr(expected) == repr(found)
    return expected.shape == found.shape and bool(np.all(as_text(expected) == as_text(found)))


class Judge:
    """Compares outputs of a changed model with its source's outputs, on the same inputs."""

    def __init__(
        self,
        source: Model,
        case: Case,
        check: Check,
        target: Path,
        tolerances: Mapping[str, float],
        dtypes: Collection[str],
        result: Model,
        fronts: Collection[str] = (),
    ) -> None:
        self._fronts = fronts
        self._case, self._check, self._target = case, check, target
        self._tolerances, self._dtypes = tolerances, dtypes
        floats = {name for name in dtypes if name in ELEMENT_TYPES}
        self._rounding = Rounding(source, case.inputs, None, floats, result)
        if why := nothing_compared(case.outputs):
            drawn = "" if check.inputs is not None else " on random inputs"
            raise FormatError(f"{target}: not written: {why}{drawn}, {PROVES_NOTHING}")

    def __call__(self, name: str, runtime: str, words: str, expected: Any, found: Any) -> OutputReport:
        """Compare an output, and return a report."""
        place = f"{self._target}: not written: {words}"
        if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
            report = OutputReport(name, runtime, 0.0, 0, 0.0)
            for index, pair in enumerate(zip(expected, found, strict=True)):
                report = _both(report, self(name, runtime, f"item {index} of {words}", *pair))
            return report
        if not isinstance(expected, np.ndarray) or expected.dtype.kind in "OUS":
            if not _is_same(expected, found):
                raise FormatError(f"{place} differs from the source")
            return OutputReport(name, runtime, 0.0, 0, 0.0)
        found = np.asarray(found)
        if found.dtype != expected.dtype or found.shape != expected.shape:
            raise FormatError(
                f"{place} is {found.dtype} {list(found.shape)}; must be {expected.dtype} "
                f"{list(expected.shape)}, as in the source"
            )
        apart, base = difference(expected, found), self._base(name, runtime, expected)
        is_float = expected.dtype.name in ELEMENT_TYPES
        share = 0.0 if is_float or not expected.size else float(np.mean(expected != found))
        is_given = self._check.tolerance is not None
        most = largest_allowed(expected, base, is_given) if is_float else base
        if not (apart.max_abs if is_float else share) <= most and self._check.tolerance is None:
            effect = self._rounding.effect(name)
            if agreement(expected, found, effect, effect).agrees:
                most = max(most, largest_by_rounding(expected, effect) if is_float else effect)
        if not (apart.max_abs if is_float else share) <= most:
            what = f"by {apart.max_abs:.3g} at {list(apart.where or ())}; at most {most:.3g} is allowed"
            if not is_float:
                what = f"at {list(apart.where or ())} and in {share:.2%} of it; at most {most:.2%} is allowed"
            raise FormatError(
                f"{place} differs from the source {what}; set tolerance to allow more{self._hint()}"
            )
        count = count_finite(expected)
        moved = None if self._case.moved is None else self._case.moved.get(name, 0)
        snr = signal_to_noise(expected, found) if is_float else None
        return OutputReport(
            *(name, runtime, apart.max_abs, apart.max_ulp, most, snr),
            compared=count,
            left_out=expected.size - count,
            input_dependent=moved,
        )

    def _base(self, name: str, runtime: str, expected: Array) -> float:
        """Return the tolerance of an output in a runtime, without the model's rounding effects."""
        own = expected.dtype.name
        if name in self._fronts:
            return 1.0
        is_whole = expected.dtype.kind in "biu"
        if own not in self._tolerances and not is_whole:
            return 0.0
        given = self._check.tolerance
        if given is not None and (given < 1.0 or not is_whole):
            return given
        base = max((self._tolerances.get(dtype, 0.0) for dtype in {own, *self._dtypes}), default=0.0)
        return base * (_RUNTIME_FACTOR if runtime != "onegru" and base < 1e-3 else 1.0)

    def _hint(self) -> str:
        return (
            ""
            if self._check.inputs is not None
            else "; these inputs are random: pass realistic ones (inputs, -i)"
        )
