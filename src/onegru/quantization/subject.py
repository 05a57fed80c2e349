"""Run a model or layers in any quantization mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onegru.core.arguments import shown
from onegru.core.dtypes import Array, in_groups
from onegru.core.errors import SpecError, prefixed_errors
from onegru.engines.interface import EngineOptions
from onegru.engines.select import model_options
from onegru.engines.storage import check_storage
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of, through
from onegru.models.gru_node import repeat
from onegru.models.inputs.lengths import steps_in
from onegru.models.inputs.random import pick_inputs, random_call
from onegru.models.inputs.sizes import Dims
from onegru.models.model import Model, runs_of_nodes
from onegru.models.stream import first_states

if TYPE_CHECKING:
    from onegru.layers.gates.trace import GateTrace

#: The modes of GRUs: weight_storage and activation_storage, in order of decreasing noise.
MODES: Mapping[str, tuple[str | None, str | None]] = {
    "W8A8": ("int8", "int8"),
    "W8A16": ("int8", "int16"),
    "W16A16": ("bfloat16", "bfloat16"),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "float32": (None, None),
}
EXACT = "float32"

#: The steps and rows of random inputs. Noise grows with the number of steps.
_RANDOM_STEPS, _RANDOM_ROWS = 100, 4


def storages_of(mode: str, group: int) -> tuple[str | None, str | None]:
    """Return weight_storage and activation_storage of a mode; `group` weights share a scale (0: a row)."""
    weights, activations = MODES[mode]
    return in_groups(weights, group), activations


Repeat = Callable[[GRU], Callable[[], Mapping[str, Array]]]


@dataclass(frozen=True)
class QuantizationTarget:
    """A model, or layers, to quantize."""

    source: GRU | Stack | Model  # the model or the layers
    names: Sequence[str]  # the names of all GRUs
    described: Sequence[str]  # the description of each GRU
    layers: Mapping[str, GRU]  # the float32 layers that can be quantized, by name
    reasons: Mapping[str, str]  # why the other GRUs cannot be quantized, by name
    samples: Sequence[Any]  # the inputs of each run
    make: Callable[[Mapping[str, str]], Any]  # creates the model or layers with the named GRUs in other modes
    run: Callable[[Any, Any], Mapping[str, Array]]  # the outputs of a run
    # for each time that the float32 source runs a layer on the samples: a function that takes a layer, and
    # returns a function that runs it so and returns its outputs
    calls: Mapping[str, Sequence[Repeat]]
    trace: Callable[[Any, Any, int], GateTrace]  # the gates of the GRU with an index
    group: int  # how many int8 weights of a row share a scale; 0 for all
    steps: int | None  # the step count of the longest row of a GRU in a sample; None without GRUs


def quantization_target(
    source: GRU | Stack | Model,
    samples: object,
    dims: Dims,
    seed: int,
    group: int,
    wanted: bool | frozenset[str] = True,
) -> QuantizationTarget:
    """Prepare the source of `quantize` with its samples; None for random samples."""
    if isinstance(source, Model):
        found = _of_model(source, samples, dims, seed, group)
    elif dims:
        raise SpecError.of("dims", "has no effect with a layer, because its inputs have no names; remove it")
    else:
        found = _of_layers(source, samples, seed, group)
    if isinstance(wanted, bool):
        return found
    if unknown := sorted(wanted - set(found.names)):
        raise SpecError.of("nodes", f"{unknown[0]!r}; must be one of {', '.join(map(repr, found.names))}")
    layers = {name: layer for name, layer in found.layers.items() if name in wanted}
    left = {name: "is not among nodes" for name in found.layers if name not in wanted}
    return replace(found, layers=layers, reasons={**found.reasons, **left})


def _listed(samples: object, single: Callable[[object], bool]) -> list[Any]:
    if isinstance(samples, str | os.PathLike):
        raise SpecError.of(
            "samples",
            f"{shown(samples)}; must be inputs of a run, or a list of at least one; to write a file, pass "
            "target=…",
        )
    found = [samples] if single(samples) else samples
    if not isinstance(found, Iterable) or not (found := list(found)):
        raise SpecError.of("samples", f"{shown(samples)}; must be inputs of a run, or a list of at least one")
    return found


def _reason(layer: GRU | None) -> str:
    """Return why a GRU cannot be quantized; empty if it can."""
    if layer is None:
        return "computes its weights"
    if layer.spec.dtype != EXACT:
        return f"has type {layer.spec.dtype}"
    try:
        for kept, _ in MODES.values():  # a report measures all modes
            check_storage(layer.weights, kept)
    except SpecError as error:
        return str(error)
    return ""


def _of_layers(source: GRU | Stack, samples: object, seed: int, group: int) -> QuantizationTarget:
    exact = [layer.with_storage(None) for layer in layers_of(source)]
    names = [f"layer {index}" for index in range(len(exact))]
    reasons = {name: text for name, layer in zip(names, exact, strict=True) if (text := _reason(layer))}
    if samples is None:
        spec = exact[0].spec
        drawn = random_call(spec, _RANDOM_STEPS, _RANDOM_ROWS, np.random.default_rng(seed))
        samples = {"X": drawn["X"], "layout": 0, **({"attention": drawn["A"]} if spec.attention else {})}
    found = _listed(samples, lambda given: isinstance(given, Mapping | np.ndarray))
    calls = [dict(item) if isinstance(item, Mapping) else {"X": item} for item in found]

    def make(modes: Mapping[str, str]) -> GRU | Stack:
        made = [
            layer.with_storage(*storages_of(modes[name], group)) if name in modes else layer
            for name, layer in zip(names, exact, strict=True)
        ]
        return made[0] if isinstance(source, GRU) else Stack(made, layout=source.layout)

    repeated: dict[str, list[Repeat]] = {name: [] for name in names}
    steps = 0
    for call in calls:
        Y = _run_layers(make({}), call)["Y"]  # rejects invalid samples
        layout, lengths = call.get("layout"), call.get("sequence_lens")
        axis = source.layout if layout is None else layout
        steps = max(steps, Y.shape[axis] if lengths is None else int(np.max(lengths, initial=0)))
        if isinstance(source, GRU):
            repeated[names[0]].append(lambda layer, call=call: partial(_run_layers, layer, call))  # type: ignore[misc]
            continue

        def see(layer: GRU, Y: Any, **arguments: Any) -> Array:
            repeated[names[exact.index(layer)]].append(lambda other: lambda: {"Y": other(Y, **arguments)[0]})
            return layer(Y, **arguments)[0]

        arguments = {"initial_h": None, "sequence_lens": None, "layout": None, **call}
        through(Stack(exact, layout=source.layout), see, **arguments)

    def trace(layers: GRU | Stack, call: Mapping[str, Any], index: int) -> GateTrace:
        found = layers.trace(**call)
        return found[index] if isinstance(found, tuple) else found

    return QuantizationTarget(
        source=source,
        names=names,
        described=[repr(layer) for layer in exact],
        layers={name: layer for name, layer in zip(names, exact, strict=True) if name not in reasons},
        reasons=reasons,
        samples=calls,
        make=make,
        run=_run_layers,
        calls=repeated,
        trace=trace,
        group=group,
        steps=steps,
    )


def _run_layers(layers: GRU | Stack, call: Mapping[str, Any]) -> dict[str, Array]:
    try:
        Y, Y_h = layers(**call)
    except TypeError as error:
        raise SpecError.of("samples", f"{error}") from error
    last = [Y_h] if isinstance(Y_h, np.ndarray) else Y_h
    return {"Y": Y, **{f"Y_h {index}": h for index, h in enumerate(last)}}


def _of_model(model: Model, samples: object, dims: Dims, seed: int, group: int) -> QuantizationTarget:
    engine = model.options.engine
    if engine == "reference":
        raise SpecError.of(
            "source", "uses the reference engine, which cannot quantize weights; load it with another engine"
        )
    exact = Model(model.graph, EngineOptions(engine))
    nodes = exact.gru_nodes
    names = [node.name for node in nodes]
    reasons = {node.name: text for node in nodes if (text := _reason(node.layer))}
    reasons |= {name: "shares its name with others" for name in names if names.count(name) > 1}
    reasons |= {name: "has a line break in its name" for name in names if "\n" in name}
    if samples is not None and dims:
        raise SpecError.of("dims", "has no effect with samples; remove it")
    found: list[Any] = (
        [pick_inputs(exact, {}, seed, dims, sizes=(_RANDOM_STEPS, _RANDOM_ROWS, _RANDOM_ROWS))[0]]
        if samples is None
        else _listed(samples, lambda given: isinstance(given, Mapping))
    )
    layers = {node.name: node.layer for node in nodes if node.layer is not None and node.name not in reasons}

    def make(modes: Mapping[str, str]) -> Model:
        storages = {name: storages_of(mode, group) for name, mode in modes.items()}
        weights, activations = (
            {name: kept for name, item in storages.items() if (kept := item[index]) is not None}
            for index in (0, 1)
        )
        return Model(model.graph, model_options(engine, weights, activations))

    calls: dict[str, list[Repeat]] = {name: [] for name in layers}
    steps: list[int] = []
    for index, sample in enumerate(found):
        with prefixed_errors(f"samples[{index}]: "):
            if isinstance(sample, Mapping) and model.graph.starts:  # states in the file's metadata
                with suppress(SpecError):  # the run reports missing inputs
                    found[index] = sample = {**first_states(model.graph, sample), **sample}
            runs = runs_of_nodes(exact, sample)
        steps += steps_in(exact, runs).values()
        for node, seen in zip(nodes, runs, strict=True):
            if node.name in layers:
                calls[node.name] += [
                    lambda layer, node=node, arrays=arrays: repeat(node, layer, arrays)  # type: ignore[misc]
                    for arrays in seen
                ]
    if nodes and not any(steps):
        raise SpecError.of("samples", "no GRU runs a step; pass inputs with at least one step (-i)")
    return QuantizationTarget(
        source=model,
        names=names,
        described=[repr(node.layer) for node in nodes],
        layers=layers,
        reasons=reasons,
        samples=found,
        make=make,
        run=lambda made, sample: made.run(sample),
        calls=calls,
        trace=lambda made, sample, index: made.trace(sample, index),
        group=group,
        steps=max(steps, default=None),
    )
