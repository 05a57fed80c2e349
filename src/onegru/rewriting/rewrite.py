"""Rewriting the GRU nodes of a whole ONNX model, checked on random inputs before anything is written."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onegru.core.arguments import file_path, flag, number
from onegru.core.compare import TOLERANCE_REWRITTEN, difference, magnitude
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, OneGRUError, SpecError, needs_extra
from onegru.models.model import Model
from onegru.models.random_inputs import Dims, check_random_inputs, draw_inputs, size_plans
from onegru.system.atomic_write import write_files
from onegru.system.bounded import check_regular

_RUNTIME_FACTOR = 10.0  # other runtimes approximate the activations less closely
_RUNTIMES = ("onnxruntime", "openvino")
_CHECKS = 2  # on inputs of so many different sizes, if sizes are open


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One GRU node of the source.

    Attributes:
        name: its name; that of an output where it has none.
        done: descriptions of what was done to it; empty if it stayed as it was.
        reasons: what the target runtime is known to do to the node as it was.
    """

    name: str
    done: tuple[str, ...]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputReport:
    """How far an output of the target lies from that of the source, which onegru ran.

    Attributes:
        name: the output.
        runtime: what ran the target: "onegru", "onnxruntime" or "openvino".
        max_abs: the largest absolute difference.
        max_ulp: the largest number of representable numbers in between.
        tolerance: the largest absolute difference that was allowed.
    """

    name: str
    runtime: str
    max_abs: float
    max_ulp: int
    tolerance: float


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What was done to a model.

    Attributes:
        source: the file that was read.
        target: the file that was written.
        opsets: the source's opset and the target's.
        nodes: its GRU nodes, in the order of the file.
        others: descriptions of the other nodes that the new opset changed.
        notes: what else there is to know.
        outputs: the results of the check; empty if it was not asked for.
    """

    __module__ = "onegru"

    source: str
    target: str
    opsets: tuple[int, int]
    nodes: tuple[NodeReport, ...]
    others: tuple[str, ...]
    notes: tuple[str, ...]
    outputs: tuple[OutputReport, ...]


def rewrite(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    opset: int | None = None,
    layout: int | None = None,
    dtype: Literal["float16"] | None = None,
    split: bool = False,
    decompose: bool = False,
    runtime: Literal["onnxruntime", "openvino"] | None = None,
    inputs: Mapping[str, object] | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    check: bool = True,
) -> Rewriting:
    """Rewrite the GRU nodes of an ONNX model; the rest of the model stays as it is.

    The nodes' hidden_size, direction and activation parameters are written out, as runtimes differ in their
    defaults. With `runtime` alone, a node that this runtime runs correctly stays as it was.

    Args:
        source: an ONNX model.
        target: the file to write, which may be the source; it is replaced only once the result has passed
            the check.
        opset: the version of ONNX's operators that the target uses, 1 to onnx's newest; other nodes are
            converted where their operators changed in between. The source's by default.
        layout: 0 or 1, for the GRU nodes, with Transposes around those that had the other.
        dtype: "float16" for GRU nodes in float16, with Casts around them. The model's inputs and outputs
            keep their types.
        split: whether a bidirectional node becomes a forward and a reverse one.
        decompose: whether GRU nodes are expressed with other operators, from opset 11 on: a product over all
            steps, and a Scan. There must then be at least one step.
        runtime: "onnxruntime" or "openvino": make the least change to each node that the runtime is known
            to refuse or to miscompute, and check the target in it.
        inputs: an array for each of the model's inputs, to check with; random by default.
        dims: sizes of open dimensions of random inputs, by name ("X.0" for one without), and whole shapes of
            inputs, by their names.
        seed: of the random inputs.
        tolerance: the largest absolute difference to allow, times the largest number of the output if that is
            above 1. By default 1e-6 for float32, 1e-10 for float64, 2e-3 for float16 and 2e-2 for
            bfloat16, of the output or of a GRU node; ten times that in another runtime.
        check: whether to check the target against the source. The source need not run without it.

    Returns:
        what was done, and how far the outputs lie apart.

    Raises:
        SpecError: an argument or a GRU node is not legal, or the target's opset cannot express a node.
        FormatError: the file is broken or holds what cannot be rewritten, or the target differs from the
            source; nothing is written then.
        MissingExtraError: a package that this needs is not installed.
        OSError: a file cannot be read or written.
    """
    source, target = file_path("source", source), file_path("target", target)
    _check_arguments(target, layout, dtype, split, decompose, runtime)
    dims = _check_check(inputs, dims, seed, tolerance, flag("check", check))
    with needs_extra("onnx", "onnx", str(source)):
        from onegru.formats.onnx.read import Source
        from onegru.formats.onnx.reader import parse_onnx
        from onegru.rewriting.model_pass import rewrite_model
        from onegru.rewriting.plan import Changes, check_opset
    if opset is not None:
        check_opset(opset)
    check_regular(source)
    data = source.read_bytes()
    place = Source(str(source), source.parent)
    changes = Changes(opset, layout, dtype == "float16", split, decompose, runtime)
    rewritten = rewrite_model(place, data, changes)
    result = rewritten.serialized(place)
    notes = list(rewritten.notes)
    outputs: tuple[OutputReport, ...] = ()
    if check:
        try:
            given = Model(parse_onnx(data, place))
        except FormatError as error:
            raise FormatError(f"{error}; so the target cannot be checked, and is not written") from None
        made = Model(parse_onnx(result, Source(str(target))))
        runs: dict[str, _Run] = {"onegru": made.run}
        if runtime is not None:
            if any(info.dtype == "bfloat16" for info in (*given.inputs, *given.outputs)):
                notes.append(f"not checked in {runtime}, which takes no bfloat16 arrays")
            else:
                runs[runtime] = _other(runtime, result, target, [info.name for info in given.outputs])
        cases = [dict(inputs)] if inputs is not None else _cases(given, seed, dims)
        limit = functools.partial(_limit, rewritten.dtypes, tolerance)
        outputs = _check(given, runs, cases, limit, target)
    write_files([(target, lambda file: file.write(result))])
    return Rewriting(
        source=str(source),
        target=str(target),
        opsets=rewritten.opsets,
        nodes=tuple(NodeReport(*node) for node in rewritten.nodes),
        others=tuple(rewritten.others),
        notes=tuple(notes),
        outputs=outputs,
    )


def _check_arguments(
    target: Path, layout: int | None, dtype: str | None, split: bool, decompose: bool, runtime: str | None
) -> None:
    if layout not in (None, 0, 1) or isinstance(layout, bool):
        raise SpecError(f"layout: {layout!r}; must be 0 or 1")
    if dtype not in (None, "float16"):
        raise SpecError(f"dtype: {dtype!r}; must be 'float16'")
    if runtime not in (None, *_RUNTIMES):
        raise SpecError(f"runtime: {runtime!r}; must be {' or '.join(map(repr, _RUNTIMES))}")
    for name, is_given in (("layout", layout is not None), ("split", flag("split", split))):
        if flag("decompose", decompose) and is_given:
            raise SpecError(f"{name}: given with decompose, which leaves no GRU node; must be left out")
    if layout == 1 and runtime is not None:
        raise SpecError(f"layout: 1; must be 0 for {runtime}, which does not run it")
    if target.suffix.lower() != ".onnx":
        raise SpecError(f"target: {str(target)!r}; must end in .onnx")
    if target.is_dir():
        raise SpecError(f"target: {str(target)!r} is a folder; must be a file")
    if not target.parent.is_dir():
        raise SpecError(f"target: folder {str(target.parent)!r} does not exist; must exist")


def _check_check(
    inputs: object, dims: Dims | None, seed: object, tolerance: object, check: bool
) -> Dims | None:
    """Raise SpecError unless the arguments of the check are legal, and have an effect; `dims` as integers."""
    dims = check_random_inputs(inputs, dims, seed)
    if tolerance is not None and not 0 <= number("tolerance", tolerance) < float("inf"):
        raise SpecError(f"tolerance: {tolerance}; must be at least 0 and finite")
    for name, value in (("inputs", inputs), ("dims", dims or None), ("tolerance", tolerance)):
        if value is not None and not check:
            raise SpecError(f"{name}: given with check=False, where it has no effect; must be left out")
    return dims


# The check

_Run = Callable[[dict[str, Any]], Mapping[str, Any]]
_Limit = Callable[[str, Array], float]


def _other(runtime: str, model: bytes, target: Path, names: list[str]) -> _Run:
    """The target in another runtime."""
    if runtime == "openvino":
        from onegru.formats.openvino.check import run_openvino

        return lambda feeds: dict(zip(names, run_openvino(model, str(target), feeds, names), strict=True))
    from onegru.formats.onnx.read import Source
    from onegru.formats.onnx.whole.session import Session

    session = Session(model, Source(str(target)))
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


def _limit(dtypes: Collection[str], tolerance: float | None, runtime: str, expected: Array) -> float:
    """The tolerance of a runtime's output, given the source's."""
    if expected.dtype.name not in TOLERANCE_REWRITTEN:
        return 0.0
    base = max(TOLERANCE_REWRITTEN.get(dtype, 0.0) for dtype in {expected.dtype.name, *dtypes})
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
            f"at most {most:.3g} is let pass, unless tolerance says otherwise"
        )
    return OutputReport(name, runtime, apart.max_abs, apart.max_ulp, most)
