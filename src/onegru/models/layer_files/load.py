"""Load GRU layers from models and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count

from onegru.core.errors import FormatError, SpecError
from onegru.engines.interface import DEFAULT_OPTIONS
from onegru.formats.format import format_of
from onegru.formats.graph import Graph
from onegru.formats.opened import Kind, Opened, open_layers
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.gru_node import GruNode, prepare_nodes
from onegru.models.load import load


def load_layers(
    path: str | os.PathLike[str], *, name: str | None = None, keras_version: str | None = None
) -> dict[str, GRU | Stack]:
    """Load the GRU layers of a file.

    The content determines the kind of file:

    - a PyTorch checkpoint: a state dict, or mappings and lists that contain state dicts. No code in the file
      is run.
    - a safetensors file with PyTorch's or onegru's tensor names
    - a saved Keras model (`.keras`, `.h5`)
    - a TensorFlow Lite, OpenVINO or ONNX model

    Args:
        path: the path of the file.
        name: the layer to load, by its name in the result. Default: None (all layers).
        keras_version: the version of Keras that saved the file, 2.0 to 3, such as "2.3", because defaults
            differ between versions. Needed only if the file does not contain it. Default: None (read from
            the file).

    Returns:
        the layers by name, in the file's order. The name is the prefix of the tensors in a PyTorch file (""
        if there is none), the layer's name in a Keras file ("encoder/gru" in a model "encoder"), or the name
        of a node with constant weights. A repeated name gets a number. Other layers are skipped, such as
        LSTMs and cells with tensors that a PyTorch GRU does not have.

    Raises:
        FormatError: the file is broken or contains no GRU. Layers from PyTorch's dynamic quantization cannot
            be read; pass the module to `from_torch`.
        SpecError: onegru does not support a GRU, no GRU is called `name`, or `keras_version` is missing or
            contradicts the file.
        MissingExtraError: the file needs a package that is not installed.
        OSError: the file cannot be opened.
    """
    for argument, value in (("name", name), ("keras_version", keras_version)):
        if value is not None and not isinstance(value, str):
            raise SpecError.of(argument, f"{value!r}; must be a string, or None")
    file = open_layers("path", path)
    form = format_of(file)
    if keras_version is not None and not form.has_versions:
        raise SpecError.of(
            "keras_version", f"{keras_version!r}; must be None, because {file} is {file.kind.words}"
        )
    if file.kind.holds == "model":
        layers = _layers_of(load(file).gru_nodes)
    elif file.kind is Kind.TFLITE:
        layers = _tflite_layers(file)
    else:
        layers = form.read_layers(file, name, keras_version)
    if name is not None:
        wanted = name if name in layers else name.removesuffix(".")
        if wanted not in layers:
            there = ", ".join(map(repr, layers)) or "none"
            raise SpecError.of("name", f"no GRU {name!r} in {file}; available: {there}")
        return {wanted: layers[wanted]}
    if not layers:
        raise FormatError(f"{file}: no GRU with its own weights")
    return layers


def left_out(file: Opened, grus: Collection[str] = (), keras_version: str | None = None) -> tuple[str, ...]:
    """Return the tensors of a checkpoint, or layers of a Keras model, that do not belong to its GRUs."""
    return format_of(file).left_out(file, grus, keras_version)


def distinct_layers(found: Mapping[str, GRU | Stack]) -> dict[str, GRU | Stack]:
    """Return the result of `load_layers` with only the first name of each layer."""
    first: dict[int, str] = {}
    for name, layer in found.items():
        first.setdefault(id(layer), name)
    return {name: found[name] for name in first.values()}


def named_layers(found: Mapping[str, GRU | Stack]) -> list[tuple[str, GRU]]:
    """Return each layer in the result of `load_layers` with a name; stacks are split, lowest layer first."""
    return [
        (f"{name or 'GRU'}, layer {index}" if len(layers) > 1 else name or "GRU", layer)
        for name, layer_or_stack in found.items()
        for layers in [layers_of(layer_or_stack)]
        for index, layer in enumerate(layers)
    ]


def gru_nodes(graph: Graph) -> list[GruNode]:
    """Return the GRU nodes of a graph, without preparing its other nodes."""
    constants = dict(graph.constants)
    for step in graph.prelude:
        step.run(constants)
    nodes = [GruNode(gru, f"{graph.path}: {gru}: ", DEFAULT_OPTIONS) for gru in graph.grus]
    prepare_nodes(nodes, constants, graph)
    return nodes


def _tflite_layers(file: Opened) -> dict[str, GRU | Stack]:
    """Return the decomposed GRUs of a TensorFlow Lite model."""
    from onegru.models.fusing import tflite_graph  # slow import

    graph, found = file.once(tflite_graph)
    # A cell in another loop may run in any order.
    graph = replace(graph, grus=tuple(gru for gru in graph.grus if not gru.bodies))
    layers = _layers_of(gru_nodes(graph))
    if masked := [item.place for item in found.fused if item.masked]:
        raise FormatError(f"{file}: {masked[0]!r} skips masked steps, which a layer cannot do; not supported")
    near = [f"{miss.place!r}: {miss.reason}" for miss in found.near_misses]
    if unread := left_out(file):
        near.append(f"unsupported operators: {', '.join(unread[:10])}")
    if near and not layers:
        raise FormatError(f"{file}: no GRU with its own weights; {near[0]}")
    return layers


def _layers_of(nodes: Iterable[GruNode]) -> dict[str, GRU | Stack]:
    layers: dict[str, GRU | Stack] = {}
    for node in nodes:
        if node.layer is None:
            continue
        name = node.name or node.operator
        names = chain([name], (f"{name}#{number}" for number in count(2)))
        layers[next(name for name in names if name not in layers)] = node.layer
    return layers
