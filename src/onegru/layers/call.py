"""A call of a layer: bind the arguments to an operator's ports, run the engine, and shape the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from onegru.core.dtypes import Array, as_array_of, as_float_array, as_lengths, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.shapes import arrange, check_shape, output, overlap
from onegru.core.spec import Spec
from onegru.engines.interface import Engine, EngineOptions, Problem
from onegru.operators.schema import CANONICAL_AXES, Port


class CallableLayer(Protocol):
    """The interface of a layer that a call and a stream need."""

    engine_options: EngineOptions
    prepared_engine: Engine

    @property
    def spec(self) -> Spec:
        """The specification of the layer."""


def attention_ports(spec: Spec, attention: object, axes: str) -> list[Port]:
    """Return the port of attention scores, with or without a last axis of size 1; none without attention."""
    if spec.attention:
        rank = 0 if attention is None else as_float_array("attention", attention).ndim
        return [Port("attention", "A", f"{axes}1" if rank == len(axes) + 1 else axes)]
    if attention is not None:
        raise SpecError.of("attention", "must be None, because the layer has no attention")
    return []


def bind(
    spec: Spec,
    ports: Sequence[Port],
    values: Mapping[str, object],
    *,
    strict_types: bool = False,
    batch_size: int | None = None,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return the inputs of a call in canonical form, by role, and the sizes of all axes."""
    sizes = {"D": spec.num_directions, "H": spec.hidden_size, "I": spec.input_size}
    if batch_size is not None:
        sizes["B"] = batch_size
    if not any("T" in port.axes for port in ports if port.role == "X"):
        sizes["T"] = 1
    inputs: dict[str, Array] = {}
    for port in ports:
        if port.role not in ("X", "initial_h", "sequence_lens", "A"):
            continue
        if (value := values.get(port.name)) is None:
            if port.required:
                raise SpecError.of(port.name, "missing; must be given")
            continue
        if port.role == "sequence_lens":
            array = as_lengths(port.name, value, port.types if strict_types else None)
        else:
            array = as_array_of(spec.dtype, port.name, value)
        check_shape(port.name, array.shape, port.axes, sizes)
        if port.role == "sequence_lens":
            wrong = array[(array < 0) | (array > sizes["T"])]
            if wrong.size:
                raise SpecError.of(port.name, f"{wrong[0]}; must be in 0…seq_length = 0…{sizes['T']}")
            array = array.astype(np.intp)
        inputs[port.role] = arrange(array, port.axes, CANONICAL_AXES[port.role])
    return inputs, sizes


def execute(
    run: Callable[[Problem], None], inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Problem:
    """Run a call on arrays by role. If an output overlaps an input, run through a copy."""
    Y, Y_h = outputs.get("Y"), outputs.get("Y_h")
    if Y is not None and Y_h is not None and overlap(Y, Y_h):
        raise SpecError.of("out", "Y and Y_h overlap; must be separate arrays")
    # As plain arrays: engines only read memory, so memory maps need no special case.
    views = {role: np.asarray(array) for role, array in outputs.items()}
    copies = {
        role: np.empty(view.shape, view.dtype)
        for role, view in views.items()
        if any(np.may_share_memory(view, array) for array in inputs.values())
    }
    written = {**views, **copies}
    problem = Problem(
        X=inputs["X"],
        initial_h=inputs.get("initial_h"),
        sequence_lens=inputs.get("sequence_lens"),
        attention=inputs.get("A"),
        Y=written.get("Y"),
        Y_h=written.get("Y_h"),
    )
    run(problem)
    for role, array in copies.items():
        views[role][...] = array
    return problem


def apply(
    layer: CallableLayer,
    ports: Sequence[Port],
    values: Mapping[str, object],
    outputs: Mapping[str, Array | None],
    *,
    strict_types: bool = False,
) -> dict[str, Array]:
    """Run a layer through the ports of an operator, with its names and axes."""
    inputs, sizes = bind(layer.spec, ports, values, strict_types=strict_types)
    dtype = numpy_dtype(layer.spec.dtype)
    arrays: dict[str, Array] = {}
    views: dict[str, Array] = {}
    for port in ports:
        if port.role in ("Y", "Y_h") and port.name in outputs:
            shape = tuple(sizes[axis] for axis in port.axes)
            arrays[port.name] = output(outputs[port.name], shape, dtype, port.name)
            views[port.role] = arrange(arrays[port.name], port.axes, CANONICAL_AXES[port.role])
    execute(layer.prepared_engine.run, inputs, views)
    return arrays
