"""Compare a model with a reference for the same function, as a whole and GRU by GRU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onegru.core.compare import Comparison
from onegru.core.errors import OneGRUError, SpecError
from onegru.core.wording import count
from onegru.formats.opened import open_layers
from onegru.models.layer_files.load import distinct_layers, load_layers, named_layers
from onegru.models.load import load
from onegru.models.model import Model
from onegru.verification.compare_grus import compare_calls, is_alike, of_layer, on_random_inputs, trace_pair
from onegru.verification.compare_runtimes import Tolerances, compare_outputs
from onegru.verification.gru_call import GruCall, call_of
from onegru.verification.results import LayerResult, ReferenceComparison
from onegru.verification.trace import traced_run

#: GRUs by name, in execution order, with a node's operator or as layers.
Named = Sequence[tuple[str, GruCall]]


def compare_with(
    model: Model,
    path: Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    nodes: Sequence[str] = (),
    tolerance: float | None = None,
) -> ReferenceComparison:
    """Compare the GRUs of two models, paired in execution order, on random and on the models' inputs."""
    notes: list[str] = []
    outputs: tuple[Comparison, ...] = ()
    calls: list[tuple[GruCall, GruCall]] = []
    strict = ""
    file = open_layers("against", path)
    if file.kind.holds == "layers":
        found = load_layers(file)
        names = [*(found if nodes else distinct_layers(found))]
        layers_there = named_layers({name: found[name] for name in _selected_names(path, names, nodes)})
        theirs = [(name, of_layer(layer)) for name, layer in layers_there]
    else:
        reference = load(file, engine="reference")
        theirs = _model_calls(reference)
        names = [name for name, _ in theirs]
        theirs = (
            [theirs[names.index(name)] for name in _selected_names(path, names, nodes)] if nodes else theirs
        )
        outputs, calls, strict = _compare_models(model, reference, inputs, tolerance, notes)
    ours = _model_calls(model)
    layers = _compare_layers(ours, theirs, calls, notes)
    if len(theirs) > len(ours) > 0:
        notes[-1] += f"; select GRUs with nodes (--node NAME): {', '.join(map(repr, names))}"
    if not outputs and not layers:
        raise SpecError(f"{path}: it has no part that can be compared with {model.path}: {'; '.join(notes)}")
    first = next((index for index, item in enumerate(layers) if not item.agrees), None)
    same_outputs = all(item.agrees for item in outputs)
    if not same_outputs and first is None:
        notes.append(strict or "all compared GRUs agree, so the difference arises outside them")
    agrees = same_outputs and first is None
    return ReferenceComparison(str(path), agrees, outputs, tuple(layers), first, tuple(notes))


# ---- GRUs


def _selected_names(path: Path, names: Sequence[str], nodes: Sequence[str]) -> Sequence[str]:
    """Return the GRUs of a reference to compare with: those in `nodes`, or all."""
    for name in nodes:
        if names.count(name) != 1:
            listed = ", ".join(map(repr, names))
            raise SpecError.of("nodes", f"{name!r}; no such GRU in {path}; must be one of {listed}")
    return nodes or names


def _model_calls(model: Model) -> list[tuple[str, GruCall]]:
    """Return the GRUs of a model; none if any GRU has weights that are computed in each run."""
    if any(gru.layer is None for gru in model.gru_nodes):
        return []
    return [(gru.name, call_of(gru, None)) for gru in model.gru_nodes]


def _compare_layers(
    ours: Named, theirs: Named, calls: Sequence[tuple[GruCall, GruCall]], notes: list[str]
) -> list[LayerResult]:
    """Compare each pair on random inputs, then on its inputs in its model."""
    if not ours or not theirs:
        if not calls:
            notes.append("the GRUs cannot be compared one by one: their weights are computed in each run")
        results = [trace_pair(f"GRU {index}", f"GRU {index}", *pair) for index, pair in enumerate(calls)]
        return [item for item in results if item is not None]
    if len(ours) != len(theirs):
        notes.append(
            f"{count(len(ours), 'GRU')}, and {len(theirs)} in the reference: they are not compared one by one"
        )
        return []
    found: list[LayerResult] = []
    apart = False
    for index, ((node, call), (name, other)) in enumerate(zip(ours, theirs, strict=True)):
        if is_alike(call, other):
            call, other = on_random_inputs(call), on_random_inputs(other)
        result = compare_calls(node, name, call, other)
        if index < len(calls) and not apart:
            direct = trace_pair(node, name, *calls[index])
            if direct is None:
                notes.append(f"{node} has other inputs than in the reference: an operator before it differs")
                apart = True
            elif result.agrees:
                result = direct
        apart = apart or not result.agrees
        found.append(result)
    return found


# ---- whole models


def _compare_models(
    model: Model,
    reference: Model,
    inputs: Mapping[str, Any] | None,
    tolerance: float | None,
    notes: list[str],
) -> tuple[tuple[Comparison, ...], list[tuple[GruCall, GruCall]], str]:
    """Compare the outputs of both models on the same inputs, and their GRUs' calls in these runs."""
    # The third item says whether outputs differ only because the tolerance is below rounding.
    if inputs is None:
        return (), [], ""
    input_names = _match([info.name for info in model.inputs], [info.name for info in reference.inputs])
    if len(model.inputs) != len(reference.inputs):
        notes.append("only the GRUs are compared, because the models have different numbers of inputs")
        return (), [], ""
    output_names = _match([info.name for info in model.outputs], [info.name for info in reference.outputs])
    matched = {*output_names, *output_names.values()}
    if rest := [info.name for info in (*model.outputs, *reference.outputs) if info.name not in matched]:
        notes.append(f"outputs that only one of the models has are not compared: {rest}")
    for side, names in (("inputs", input_names), ("outputs", output_names)):
        if any(own != other for own, other in names.items()):
            pairs = ", ".join(f"{own!r} is {other!r}" for own, other in names.items())
            notes.append(f"{side} are matched by their order: {pairs}")
    ours = traced_run(model, inputs, "reference")
    try:
        theirs = traced_run(
            reference, {input_names[name]: value for name, value in inputs.items()}, "reference"
        )
    except OneGRUError as error:
        notes.append(f"the reference refuses the inputs: {error}")
        return (), [], ""
    expected = {name: theirs.outputs[other] for name, other in output_names.items()}
    allowed = Tolerances(model, inputs, ours.outputs, tolerance)
    outputs = compare_outputs(expected, ours.outputs, allowed.allowed)
    calls: list[tuple[GruCall, GruCall]] = []
    if len(model.gru_nodes) == len(reference.gru_nodes):
        calls = [
            (call_of(one, ours.values), call_of(other, theirs.values))
            for one, other in zip(model.gru_nodes, reference.gru_nodes, strict=True)
        ]
    agrees = all(item.agrees for item in outputs)
    return outputs, calls, "" if agrees else allowed.why_strict(expected, ours.outputs)


def _match(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """Return the reference's name for each name: by order if only the names differ, else the same name."""
    if len(ours) == len(theirs) and set(ours) != set(theirs):
        return dict(zip(ours, theirs, strict=True))
    return {name: name for name in ours if name in theirs}
