"""A changed model against its source, on random inputs: nothing is written unless they agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.compare import difference, magnitude, signal_to_noise
from onegru.core.dtypes import ELEMENT_TYPES, Array
from onegru.core.errors import FormatError, OneGRUError
from onegru.formats.graph import Graph
from onegru.models.model import Model
from onegru.models.random_inputs import Dims, draw_inputs, size_plans
from onegru.rewriting.check import Check, OutputReport

_RUNTIME_FACTOR = 10.0  # other runtimes approximate the activations less closely
_CHECKS = 2  # on inputs of so many different sizes, if sizes are open


_Run = Callable[[dict[str, Any]], Mapping[str, Any]]
_Limit = Callable[[str, Array], float]


def check_result(
    source: Callable[[], Graph],
    made: Graph,
    target: Path,
    check: Check,
    tolerances: Mapping[str, float],
    dtypes: Collection[str] | None = None,
    other: tuple[str, bytes] | None = None,
) -> tuple[tuple[OutputReport, ...], tuple[str, ...]]:
    """Compare a changed model with its source.

    Args:
        source: reads the source.
        made: the changed model.
        target: the file that it is to become.
        check: what to check.
        tolerances: the largest differences to allow, by element types.
        dtypes: the element types that GRUs are computed in; None for those of the result's GRU nodes.
        other: another runtime to check the result in, and the ONNX model that it is given.

    Returns:
        how far the outputs lie apart, and what was not checked, in words.

    Raises:
        FormatError: they differ, or cannot be compared.
        OneGRUError: one of the models does not run.
    """
    if not check.is_wanted:
        return (), ()
    try:
        given = Model(source())
    except FormatError as error:
        raise FormatError(f"{error}; so the target cannot be checked, and is not written") from None
    result = Model(made)
    if dtypes is None:
        dtypes = {node.layer.spec.dtype for node in result.gru_nodes if node.layer is not None}
    runs: dict[str, _Run] = {"onegru": result.run}
    notes: tuple[str, ...] = ()
    if other is not None:
        runtime, model = other
        if any(info.dtype == "bfloat16" for info in (*given.inputs, *given.outputs)):
            notes = (f"not checked in {runtime}, which takes no bfloat16 arrays",)
        else:
            runs[runtime] = _other(runtime, model, target, [info.name for info in given.outputs])
    cases = [dict(check.inputs)] if check.inputs is not None else _cases(given, check.seed, check.dims)
    limit = functools.partial(_limit, tolerances, dtypes, check.tolerance)
    return _check(given, runs, cases, limit, target), notes


def _other(runtime: str, model: bytes, target: Path, names: list[str]) -> _Run:
    """The target in another runtime."""
    if runtime == "openvino":
        from onegru.formats.openvino.check import run_openvino

        return lambda feeds: dict(zip(names, run_openvino(model, str(target), feeds, names), strict=True))
    from onegru.formats.onnx.validate import Source, read_model
    from onegru.formats.onnx.whole.optimizers import harmful_optimizers
    from onegru.formats.onnx.whole.session import Session

    source = Source(str(target))
    session = Session(model, source, disabled=harmful_optimizers(read_model(source, model)))
    return lambda feeds: dict(zip(session.output_names, session.run(feeds), strict=True))


def _cases(model: Model, seed: int, dims: Dims | None) -> Iterator[dict[str, Array]]:
    """Random inputs, of different sizes where sizes are open."""
    seen: set[str] = set()
    for index, sizes in enumerate(size_plans()):
        case = draw_inputs(model, seed + index, sizes, dims)
        shapes = repr({name: array.shape for name, array in case.items()})
        if shapes not in seen:
            seen.add(shapes)
            yield case


def _limit(
    tolerances: Mapping[str, float],
    dtypes: Collection[str],
    tolerance: float | None,
    runtime: str,
    expected: Array,
) -> float:
    """The tolerance of a runtime's output, given the source's."""
    if expected.dtype.name not in tolerances:
        return 0.0
    base = max(tolerances.get(dtype, 0.0) for dtype in {expected.dtype.name, *dtypes})
    if tolerance is not None:
        base = tolerance
    elif runtime != "onegru":
        base *= _RUNTIME_FACTOR if base < 1e-3 else 1.0
    return base * magnitude(expected)


def _check(
    given: Model, runs: Mapping[str, _Run], cases: Any, limit: _Limit, target: Path
) -> tuple[OutputReport, ...]:
    """Run source and target.

    Raises:
        FormatError: they differ, or the source runs on none of the inputs.
    """
    found: dict[tuple[str, str], OutputReport] = {}
    first_error: OneGRUError | None = None
    count = 0
    for case in cases:
        try:
            wanted = given.run(case)
        except OneGRUError as error:
            first_error = first_error or error
            continue
        for runtime, run in runs.items():
            results = run(case)
            for name, expected in wanted.items():
                report = _compared(name, runtime, expected, results[name], limit, target)
                key = (runtime, name)
                if key not in found or report.max_abs > found[key].max_abs:
                    found[key] = report
        count += 1
        if count == _CHECKS:
            break
    if not count:
        if isinstance(cases, list):  # the caller's own
            assert first_error is not None
            raise first_error
        raise FormatError(
            f"{given.path}: does not run on random inputs ({first_error}); give inputs or dims to check with"
        )
    return tuple(found.values())


def _compared(
    name: str, runtime: str, expected: Any, result: Any, limit: _Limit, target: Path
) -> OutputReport:
    place = f"{target}: not written: output {name!r} in {runtime}"
    if not isinstance(expected, np.ndarray) or expected.dtype.kind in "OUS":
        if repr(expected) != repr(result):
            raise FormatError(f"{place} differs from the source's")
        return OutputReport(name, runtime, 0.0, 0, 0.0)
    result = np.asarray(result)
    if result.dtype != expected.dtype or result.shape != expected.shape:
        raise FormatError(
            f"{place} is {result.dtype} {list(result.shape)}; the source's is {expected.dtype} "
            f"{list(expected.shape)}"
        )
    apart, most = difference(expected, result), limit(runtime, expected)
    if not apart.max_abs <= most:
        raise FormatError(
            f"{place} differs from the source's by {apart.max_abs:.3g} at {list(apart.where or ())}; "
            f"at most {most:.3g} is allowed, unless tolerance says otherwise"
        )
    snr = signal_to_noise(expected, result) if expected.dtype.name in ELEMENT_TYPES else None
    return OutputReport(name, runtime, apart.max_abs, apart.max_ulp, most, snr)
