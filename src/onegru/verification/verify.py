"""`verify`: compare a model in all runtimes, or with its source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onegru.core.arguments import check_function, file_path, number, shown
from onegru.core.compare import INCONCLUSIVE, why_inconclusive
from onegru.core.errors import FormatError, SpecError
from onegru.formats.graph import by_name
from onegru.formats.opened import Kind, Opened, open_model
from onegru.models.inputs.random import Drawn, check_random_inputs, count_moved, pick_inputs
from onegru.models.inputs.sizes import Dims
from onegru.models.load import load
from onegru.models.model import Model
from onegru.models.stream import first_states
from onegru.peers.base import ModelUnderTest, Runtime
from onegru.peers.registry import chosen_runtimes
from onegru.timeline.unread import warn_of_unread
from onegru.verification.compare_models import compare_with
from onegru.verification.compare_runtimes import Progress, compare_runtimes
from onegru.verification.results import Verification


def verify(
    model: Model | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    *,
    against: str | os.PathLike[str] | None = None,
    nodes: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    precision: str = "f32",
    dims: Dims | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Verification:
    """Compare a model in all runtimes, and locate the first wrong GRU node.

    `verify` compares every output with onegru's float64 reference on the same inputs. If an output differs,
    it names the first GRU node whose result differs on equal inputs, and the mistake that explains it.

    Args:
        model: the model, or its file. If it is a model, its file must still exist.
        inputs: the inputs by name, as arrays. Default: None (random inputs).
        against: another model or a checkpoint that should give the same results. Default: None (no other
            model).
        nodes: the names of the GRUs in `against` to compare with, in the model's order. Default: all.
        runtimes: the runtimes, some of "onnxruntime", "openvino" and "onnx". Default: all installed ones.
        precision: OpenVINO's inference precision: "f32", or "default" for its default.
        dims: sizes of dynamic dimensions of random inputs, by name ("X.0" for a dimension without a name),
            and shapes of inputs, by input name.
        seed: the seed of random inputs.
        tolerance: the largest difference of an element, relative to max(1, its absolute value). Default: None
            (1e-12 for float64, 1e-5 for float32, 1e-2 for float16 and 5e-2 for bfloat16, or 16 times the
            effect of one rounding of the model's inputs, if that is larger).
        timeout: the time limit of one runtime, including its start, in seconds.
        progress: a function, called with the number of finished runtimes and the number of all.

    Returns:
        The result of each runtime. `agrees` is False if anything differs.

    Raises:
        SpecError: an argument is invalid, or an input does not fit the model.
        FormatError: a file is broken, the model cannot be run, or no output changes with random inputs.
        MissingExtraError: a requested runtime, or a package that a file needs, is not installed.
    """
    if not isinstance(runtimes, list | tuple) or not all(isinstance(name, str) for name in runtimes):
        raise SpecError.of("runtimes", f"{shown(runtimes)}; must be a list of names")
    if not isinstance(nodes, list | tuple) or not all(isinstance(name, str) for name in nodes):
        raise SpecError.of("nodes", f"{shown(nodes)}; must be a list of names")
    if nodes and against is None:
        raise SpecError.of("nodes", "has no effect without against; remove it")
    chosen = chosen_runtimes(runtimes, precision)
    dims = check_random_inputs(inputs, dims, seed)
    if tolerance is not None and not 0 <= number("tolerance", tolerance) < float("inf"):
        raise SpecError.of("tolerance", f"{tolerance}; must be at least 0 and finite")
    timeout = number("timeout", timeout)
    if not 0 < timeout < float("inf"):
        raise SpecError.of("timeout", f"{timeout}; must be above 0 and finite")
    check_function("progress", progress)
    if not isinstance(model, Model):
        model = load(open_model("path", file_path("model", model)))
    file = model.graph.file
    if file is None or not file.path.is_file():
        raise SpecError.of("model", f"{model.path}; must come from a file, which other runtimes read")
    warn_of_unread(model.graph)
    must_read(file, chosen if runtimes else ())
    drawn: Collection[str] = ()
    if inputs is None:
        inputs = pick_inputs(model, {}, seed, dims or {})[0]
        drawn = inputs.keys()
    elif model.graph.keeps:  # another runtime also keeps states between runs
        known = by_name(model.inputs)
        inputs = {known[name].name if name in known else name: array for name, array in inputs.items()}
        inputs = {**first_states(model.graph, inputs), **inputs}
    compared = None
    if against is not None:
        other = file_path("against", against)
        compared = compare_with(model, other, inputs, nodes=nodes, tolerance=tolerance)
    found = compare_runtimes(
        model, inputs, runtimes=chosen, tolerance=tolerance, timeout=timeout, progress=progress
    )
    found = replace(found, against=compared)
    if found.agrees and found.steps == 0:
        raise FormatError(f"{model.path}: no GRU runs a step, {INCONCLUSIVE}; pass other inputs (inputs, -i)")
    return replace(found, input_dependent=must_move(model, inputs, drawn, seed))


def must_read(file: Opened, runtimes: Sequence[Runtime]) -> None:
    """Raise SpecError if one of the runtimes, which the caller named, does not read a file."""
    for runtime in runtimes if file.kind is Kind.OPENVINO else ():
        if reason := runtime.refuses(ModelUnderTest(str(file), None, {})):
            raise SpecError.of("runtimes", f"{runtime.name} {reason}; {file} is not one")


def must_move(model: Model, inputs: Mapping[str, Any], drawn: Collection[str], seed: int) -> int | None:
    """Call `count_moved`. Raise FormatError if all inputs are random and no output depends on them."""
    if not drawn:
        return None
    moved = sum((count_moved(model, Drawn(dict(inputs), model.run(inputs)), drawn, seed) or {}).values())
    if len(drawn) == len(inputs) and (why := why_inconclusive(moved=moved)):
        raise FormatError(f"{model.path}: {why}, {INCONCLUSIVE}; pass realistic inputs (inputs, -i)")
    return moved
