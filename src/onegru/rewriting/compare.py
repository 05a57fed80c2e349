"""Compare a changed model with its source on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onegru.core.compare import Comparison, compare_scaled, merged, why_inconclusive
from onegru.core.dtypes import ELEMENT_TYPES, Array
from onegru.core.errors import FormatError, OneGRUError, is_own_mistake
from onegru.formats.graph import Graph, kept_states
from onegru.models.inputs.lengths import count_steps
from onegru.models.inputs.random import Drawn, draw_twice
from onegru.models.inputs.sizes import size_plans
from onegru.models.model import Model
from onegru.models.rounding import Rounding
from onegru.models.stream import first_states
from onegru.peers.base import ModelUnderTest, Runtime
from onegru.peers.registry import chosen_runtimes
from onegru.rewriting.check import Check

if TYPE_CHECKING:
    from onegru.formats.onnx.validate import ModelProto, Source, Written

_RUNTIME_FACTOR = 10.0  # other runtimes approximate the activations less closely
_MOST_CASES = 2  # number of different input sizes to compare on, if sizes are dynamic
_INCONCLUSIVE = (
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
    written: Written | None = None,
    runtime: str | None = None,
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Raise FormatError if a changed model differs from its source; return reports on outputs, and notes."""
    if check is None:
        return (), ()
    graph = source()
    outputs = {info.name for info in graph.outputs}
    origins: dict[str, dict[str, str]] = {}
    changed: Source | None = None
    if written is not None and graph.file is not None:
        from onegru.formats.onnx.validate import Source, parse_file
        from onegru.rewriting.float_origins import find_float_origins, with_outputs

        changed = Source.of(graph.file).changed(target)
        if origins := find_float_origins(graph, made):
            values = {name: dtype for own in origins.values() for name, dtype in own.items()}
            graph, _ = with_outputs(graph.file.once(parse_file), Source.of(graph.file), values)
            made, written = with_outputs(written[1], changed, values)
    _check_interface(target, graph, made)
    try:
        before = Model(graph)
    except FormatError as error:
        raise FormatError(f"{error}; the target cannot be checked, and is not written") from error.__cause__
    after = Model(made)
    if dtypes is None:
        dtypes = {node.layer.spec.dtype for node in after.gru_nodes if node.layer is not None}
    runs: dict[str, _Run] = {"onegru": after.run}
    notes: tuple[str, ...] = ()
    if runtime is not None:
        assert written is not None and changed is not None
        if not (notes := _not_checked(runtime, before, written[1])):
            runs[runtime] = in_runtime(runtime, written, changed, [info.name for info in before.outputs])
    found: dict[tuple[str, str], list[Comparison]] = {}
    steps: dict[str, int] = {}
    for case in _cases(before, after, check):
        compare = OutputCheck(before, case, check, target, tolerances, dtypes, after, origins)
        for name, count in count_steps(before if before.gru_nodes else after, case.inputs).items():
            steps[name] = max(count, steps.get(name, 0))
        for runner, run in runs.items():
            if runner == "onnxruntime" and not all(map(np.size, case.inputs.values())):
                notes = ("not checked in onnxruntime on empty inputs, which can make it abort the process",)
                continue
            results = run(case.inputs)
            for name, expected in case.outputs.items():
                report = compare(name, runner, f"output {name!r} in {runner}", expected, results[name])
                found.setdefault((runner, name), []).append(report)
    reports = [merged(items) for items in found.values()]
    check_input_dependent(target, reports)
    if steps and not any(steps.values()):
        raise FormatError(f"{target}: not written: no GRU runs a step on these inputs, {_INCONCLUSIVE}")
    notes += tuple(f"GRU {name} did not run on these inputs" for name, count in steps.items() if not count)
    most = max(steps.values(), default=None)
    return tuple(replace(report, steps=most) for report in reports if report.name in outputs), notes


def _check_interface(target: Path, source: Graph, made: Graph) -> None:
    """Raise FormatError unless a changed model has the inputs, the outputs and the states of its source."""
    inputs, outputs = ([info.name for info in infos] for infos in (source.inputs, source.outputs))
    for words, wanted, found in (
        ("inputs", inputs, [info.name for info in made.inputs]),
        ("outputs", outputs, [info.name for info in made.outputs]),
        ("kept states", kept_states(source) or "none", kept_states(made) or "none"),
        ("initial states", _first_states(source), _first_states(made)),
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


def check_input_dependent(target: Path, reports: Sequence[Comparison]) -> None:
    """Raise FormatError if no output depends on the random inputs."""
    if reports and (why := why_inconclusive(moved=merged(reports).input_dependent)):
        raise FormatError(f"{target}: not written: {why}, {_INCONCLUSIVE}")


def _not_checked(runtime: str, before: Model, model: ModelProto) -> tuple[str, ...]:
    """Return why the target is not checked in a runtime; empty if it is checked."""
    from onegru.formats.onnx.validate import external_tensors

    if any(info.dtype == "bfloat16" for info in (*before.inputs, *before.outputs)):
        return (f"not checked in {runtime}, which does not accept bfloat16 arrays",)
    if runtime == "openvino" and external_tensors(model):
        return ("not checked in openvino, which cannot read external data of a model in memory",)
    return ()


def in_runtime(runtime: str, written: Written, source: Source, names: list[str]) -> _Run:
    """Return a function that runs the target in another runtime."""
    if runtime == "openvino":
        (openvino,) = chosen_runtimes((runtime,))
        subject = ModelUnderTest(source.name, written[0], {name: () for name in names})
        return lambda feeds: _run_or_refuse(openvino, subject, feeds)
    from onegru.formats.onnx.whole.optimizers import crashing_optimizers
    from onegru.formats.onnx.whole.session import Session

    # Other optimizers stay enabled, as in programs that run the target.
    session = Session(written[0], source, disabled=crashing_optimizers(written[1]))
    return lambda feeds: dict(zip(session.output_names, session.run(feeds), strict=True))


def _run_or_refuse(runtime: Runtime, subject: ModelUnderTest, feeds: dict[str, Any]) -> Mapping[str, Any]:
    try:
        return runtime.run(subject, feeds)
    except Exception as error:  # any error of the runtime means rejection, but not an error of onegru
        if isinstance(error, MemoryError) or is_own_mistake(error):
            raise
        raise FormatError(f"{subject.path}: OpenVINO refuses it ({' '.join(str(error).split())})") from error


def _cases(before: Model, after: Model, check: Check) -> Iterator[Drawn]:
    """Yield the given inputs, or random inputs with different sizes for dynamic dimensions."""
    if check.inputs is not None:
        inputs = {**first_states(before.graph, check.inputs), **check.inputs}
        yield Drawn(inputs, before.run(inputs))
        return
    seen: set[str] = set()
    first_error: OneGRUError | None = None
    count = 0
    for index, sizes in enumerate(size_plans(before)):
        drawn = draw_twice(before, check.seed + index, sizes, check.dims, [after])
        shapes = repr({name: array.shape for name, array in drawn.inputs.items()})
        if shapes in seen:
            continue
        seen.add(shapes)
        if drawn.error is not None:
            first_error = first_error or drawn.error
            continue
        yield drawn
        count += 1
        if count == _MOST_CASES:
            return
    if not count:
        raise FormatError(
            f"{before.path}: does not run on random inputs ({first_error}); pass inputs or dims for the check"
        )


@dataclass
class OutputCheck:
    """Compares outputs of a changed model with its source's outputs, on the same inputs."""

    before: Model
    case: Drawn
    check: Check
    target: Path
    tolerances: Mapping[str, float]
    dtypes: Collection[str]
    after: Model
    origins: Collection[str] = ()  # the outputs whose floating-point origins are compared as well

    def __post_init__(self) -> None:
        floats = {name for name in self.dtypes if name in ELEMENT_TYPES}
        self._rounding = Rounding(self.before, self.case.inputs, None, floats, self.after)
        if why := why_inconclusive(self.case.outputs):
            drawn = "" if self.check.inputs is not None else " on random inputs"
            raise FormatError(f"{self.target}: not written: {why}{drawn}, {_INCONCLUSIVE}")

    def __call__(self, name: str, runtime: str, words: str, expected: Any, found: Any) -> Comparison:
        """Compare an output; raise FormatError if it differs."""
        if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
            pairs = enumerate(zip(expected, found, strict=True))
            items = [self(name, runtime, f"item {index} of {words}", *pair) for index, pair in pairs]
            return merged([Comparison(name, runtime), *items])
        message = f"{self.target}: not written: {words} differs from the source"
        if not isinstance(expected, np.ndarray):
            if type(expected) is not type(found) or repr(expected) != repr(found):
                raise FormatError(message)
            return Comparison(name, runtime)
        rounding = None if self.check.tolerance is not None else partial(self._rounding.effect, name)
        base = self._base_tolerance(name, runtime, expected.dtype)
        item = compare_scaled(expected, np.asarray(found), base, name, runtime, rounding=rounding)
        if not item.agrees:
            hint = "; these inputs are random: pass realistic ones (inputs, -i)" * (self.check.inputs is None)
            raise FormatError(f"{message}{_difference_words(item, expected, found)}{hint}")
        moved = None if self.case.moved is None else self.case.moved.get(name, 0)
        return replace(item, input_dependent=moved)

    def _base_tolerance(self, name: str, runtime: str, dtype: np.dtype[Any]) -> float:
        """Return the tolerance of an output in a runtime, without the model's rounding effects."""
        own, is_whole = dtype.name, dtype.kind in "biu"
        if name in self.origins:
            return 1.0
        if own not in self.tolerances and not is_whole:
            return 0.0
        given = self.check.tolerance
        if given is not None and (given < 1.0 or not is_whole):
            return given
        base = max((self.tolerances.get(dtype, 0.0) for dtype in {own, *self.dtypes}), default=0.0)
        return base * (_RUNTIME_FACTOR if runtime != "onegru" and base < 1e-3 else 1.0)


def _difference_words(item: Comparison, expected: Array, found: Array) -> str:
    """Describe a difference that is not allowed."""
    if item.reason or not item.max_ulp:
        return f": {item.reason}" if item.reason else ""
    words = f" by {item.max_abs:.3g} at {list(item.where or ())}; at most {item.tolerance:.3g}"
    if expected.dtype.name not in ELEMENT_TYPES:
        share = np.mean(expected != found)
        words = f" at {list(item.where or ())} and in {share:.2%} of it; at most {item.tolerance:.2%}"
    return f"{words} is allowed; set tolerance to allow more"
