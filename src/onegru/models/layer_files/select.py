"""Select the layer or stack in a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import OneGRUError, SpecError, SpecWarning
from onegru.core.shapes import arrange, side_by_side
from onegru.core.wording import count
from onegru.formats.format import format_of
from onegru.formats.opened import Opened, open_layers
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.fusing import fusing_hint
from onegru.models.gru_node import GruNode
from onegru.models.inputs.random import draw_inputs
from onegru.models.layer_files.load import distinct_layers, load_layers
from onegru.models.load import load
from onegru.models.model import Model
from onegru.operators.schema import CANONICAL_AXES, WEIGHTS

_OPEN_SIZES = (3, 3, 3)  # sizes of all dynamic dimensions, equal so that they fit each other


def read_source(
    path: str | os.PathLike[str], nodes: Sequence[str] = (), keras_version: str | None = None
) -> GRU | Stack:
    """Return the layer or stack in a file."""
    file = open_layers("path", path)
    if file.kind.holds == "layers" or keras_version is not None:
        return _layers_of_checkpoint(file, nodes, keras_version)
    return layers_of_model(load(file), nodes)


def _layers_of_checkpoint(path: Opened, nodes: Sequence[str], keras_version: str | None) -> GRU | Stack:
    layers = load_layers(path, keras_version=keras_version)
    listed = ", ".join(map(repr, layers))
    if not nodes:
        layers = distinct_layers(layers)
        is_chain, obstacle = format_of(path).layer_chain(path, keras_version)
        if is_chain:
            return joined([*layers.values()])
        if obstacle:
            raise SpecError(f"{path}: {obstacle}; select GRUs with nodes (--node NAME): {listed}")
        if len(layers) > 1:
            words = f"{path}: contains {count(len(layers), 'GRU')}"
            raise SpecError(f"{words}; select GRUs with nodes (--node NAME): {listed}")
        return next(iter(layers.values()))
    for name in nodes:
        if name not in layers:
            raise SpecError.of("nodes", f"{name!r}; no such GRU in {path}; must be one of {listed}")
    return joined([layers[name] for name in nodes])


def joined(parts: Sequence[GRU | Stack]) -> GRU | Stack:
    """Join layers and stacks, the lowest first, into one layer or stack."""
    layers = [layer for part in parts for layer in layers_of(part)]
    return layers[0] if len(layers) == 1 else Stack(layers)


def layers_of_model(model: Model, nodes: Sequence[str] = ()) -> GRU | Stack:
    """Return the layers of these nodes, or of all nodes of a model with only GRUs."""
    names = [gru.name for gru in model.gru_nodes]
    if not names:
        hint = fusing_hint(model.graph.file or model.path)
        raise SpecError(f"{model.path}: has no GRU node" + (f"; {hint}" if hint else ""))
    if nodes:
        found = [_find(model, name) for name in nodes]
        for gru in found:
            if gru.has_own_state:
                warnings.warn(
                    f"{model.path}: the initial state of {gru.name!r} is ignored, because a layer has none",
                    SpecWarning,
                    stacklevel=2,
                )
    else:
        found = list(model.gru_nodes)
        if all(gru.layer is None for gru in found):  # a run could need much memory for the weights
            _layer(model, found[0])
        if reason := _why_no_chain(model):
            listed = ", ".join(map(repr, names))
            words = f"{model.path}: {reason}"
            raise SpecError(f"{words}; select GRUs with nodes (--node NAME): {listed}")
    return joined([_layer(model, gru) for gru in found])


def _find(model: Model, name: str) -> GruNode:
    found = [gru for gru in model.gru_nodes if gru.name == name]
    if len(found) != 1:
        listed = ", ".join(repr(gru.name) for gru in model.gru_nodes)
        count = "two nodes have this name" if found else "no such GRU node"
        raise SpecError.of("nodes", f"{name!r}; {count} in {model.path}; must be one of {listed}")
    return found[0]


def _layer(model: Model, gru: GruNode) -> GRU:
    if gru.layer is None:
        raise SpecError(f"{model.path}: the weights of {gru.name!r} are computed; must be constants")
    return gru.layer


# A run on random inputs shows whether a model is a chain: each GRU's outputs must equal the next GRU's
# inputs, independent of the nodes between them. Only axes before the last may have another order, as in
# layouts, and a state may be part of an array of all states.


def _why_no_chain(model: Model) -> str:
    """Return why a model is not only a chain of GRUs; empty if it is."""
    if model.nested_grus:
        return "has GRUs in subgraphs of other nodes"
    if _is_bare(model):
        return ""
    try:
        inputs = draw_inputs(model, 0, _OPEN_SIZES).inputs
        raw = model.trace(inputs)
        traces = [_canonical(gru, trace) for gru, trace in zip(model.gru_nodes, raw, strict=True)]
        outputs = model.run(inputs)
    except OneGRUError as error:
        return f"cannot be run on random inputs ({error})"
    given = {name: array for name, array in inputs.items() if array.dtype.kind not in "biu"}
    fed = {name for name, array in given.items() if _same(traces[0]["X"], array)}
    if not fed:
        return "changes its input before the first GRU"
    for below, above in pairwise(traces):
        T, B = above["X"].shape[:2]
        if not np.array_equal(above["X"], side_by_side(below["Y"])):
            return "its GRUs are not a chain"
        if not np.array_equal(_lengths(above, T, B), _lengths(below, T, B)):
            return "its GRUs have different lengths"
    T, B = traces[0]["X"].shape[:2]
    integers = [array for array in inputs.values() if array.dtype.kind in "iu"]
    lengths = _lengths(traces[0], T, B)
    if not np.all(lengths == T) and not any(np.array_equal(lengths, array.ravel()) for array in integers):
        return "has its own lengths"
    offset = 0
    for trace in traces:
        h = trace.get("initial_h")
        if h is not None and h.any():
            holders = {name for name, array in given.items() if _same(h, array) or _holds(array, h, offset)}
            if not holders:
                return "has its own initial state"
            fed |= holders
            offset += len(h)
    handed = {
        name
        for name, array in given.items()
        if any(_same(value, array) for trace in raw for value in trace.values())
    }
    if unused := given.keys() - fed - handed:
        return f"does not pass its input {min(unused)!r} to a GRU"
    if not all(any(_same(array, known) for known in _known(traces)) for array in outputs.values()):
        return "computes its outputs from its GRUs' outputs"
    return ""


def _is_bare(model: Model) -> bool:
    """Whether a model is only one GRU. Then it need not run, which would require known shapes."""
    if len(model.gru_nodes) != 1 or model.other_node_count:
        return False
    node = model.gru_nodes[0].step
    given = {info.value for info in model.inputs}
    used = {value for name, value in node.inputs.items() if name not in WEIGHTS}
    results = {info.value for info in model.outputs}
    return used <= given and results <= set(node.outputs.values())


def _known(traces: Sequence[Mapping[str, Array]]) -> list[Array]:
    """Return the possible outputs of a chain: the last Y, the states, and all states in one array."""
    last = traces[-1]["Y"]
    states = [trace["Y_h"] for trace in traces]
    known = [last, *states, *(side_by_side(state[None])[0] for state in states)]
    if last.size:
        known.append(side_by_side(last))
    if len({state.shape[1:] for state in states}) == 1:
        known.append(np.concatenate(states))
    return known


def _same(array: Array, other: Array) -> bool:
    """Whether two arrays are equal except for the order of the axes before the last."""
    if array.size != other.size or array.shape[-1:] != other.shape[-1:]:
        return False
    wanted, found = _without_ones(array), _without_ones(other)
    return any(
        np.array_equal(wanted, found.transpose(*order, found.ndim - 1))
        for order in permutations(range(found.ndim - 1))
    )


def _holds(array: Array, h: Array, offset: int) -> bool:
    """Whether `array` [L·D, B, H] contains h [D, B, H] at index `offset`."""
    return array.ndim == 3 and np.array_equal(array[offset : offset + len(h)], h)


def _without_ones(array: Array) -> Array:
    """Return the array without axes of size 1, except the last axis."""
    sizes = [size for size in array.shape[:-1] if size != 1]
    return array.reshape(*sizes, *array.shape[-1:])


def _canonical(gru: GruNode, trace: Mapping[str, Array]) -> dict[str, Array]:
    """Return a node's inputs and outputs, by role, with canonical axes; a cell's Y is its new state."""
    found = {
        str(port.role): arrange(trace[port.name], port.axes, CANONICAL_AXES[port.role])
        for port in gru.step.ports
        if port.name in trace and port.role in CANONICAL_AXES
    }
    if all(port.role != "Y" for port in gru.step.operator.outputs):
        found["Y"] = found["Y_h"][None]
    # Unused outputs may be missing.
    return {"Y": np.empty((0, 0, 0, 0)), "Y_h": np.empty((0, 0, 0)), **found}


def _lengths(trace: Mapping[str, Array], T: int, B: int) -> Array:
    return trace.get("sequence_lens", np.full(B, T)).astype(np.int64)
