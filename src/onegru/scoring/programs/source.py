"""Open the model that scores, and identify it by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from onegru.core.errors import SpecError
from onegru.engines.interface import EngineOptions
from onegru.formats.format import format_of
from onegru.formats.opened import open_layers
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.layer_files.select import layers_of_model, read_source
from onegru.models.load import load
from onegru.models.model import Model
from onegru.scoring.programs.program import LayersProgram, Program
from onegru.timeline.unread import warn_of_unread


def open_program(
    model: str | GRU | Stack | Model,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str] | None,
    nodes: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    pad: bool,
    most_rows: int,
    options: EngineOptions,
) -> Program:
    """Return the program of a model or its file. Arguments and errors are as in `Scorer`."""
    source: GRU | Stack | Model
    if isinstance(model, str):
        file = open_layers("model", model)
        as_layers = bool(nodes) or file.kind.holds == "layers"
        if not as_layers:
            source = load(file, **options._asdict())
        else:
            source = read_source(file, nodes)
            if options.weight_storage is not None:
                source = source.with_storage(options.weight_storage, options.activation_storage)
    elif isinstance(model, Model):
        source = layers_of_model(model, nodes) if nodes else model
    else:
        if nodes:
            raise SpecError.of("nodes", "has no effect with layers; remove it")
        source = model
    if isinstance(source, Model):
        warn_of_unread(source.graph)
        from onegru.scoring.programs.model_program import ModelProgram

        return ModelProgram(source, inputs, outputs, axes, pad, most_rows)
    if axes:
        raise SpecError.of("axes", "has no effect with layers, because their axes are known; remove it")
    return LayersProgram(source, inputs, outputs)


def model_digest(model: str | GRU | Stack | Model) -> str:
    """Return the SHA-256 of a model's files, or of the weights and attributes of layers."""
    if isinstance(model, GRU | Stack):
        digest = hashlib.sha256()
        for layer in layers_of(model):
            digest.update(f"{layer.spec!r} {layer.weight_storage}{layer.activation_storage or ''}".encode())
            for array in (layer.weights.W, layer.weights.R, layer.weights.B):
                digest.update(b"" if array is None else array.tobytes())
        return digest.hexdigest()
    path = Path(model.path if isinstance(model, Model) else model)
    if not path.is_file():
        raise SpecError.of("model", f"{path}: must be a file, so that a later run can compare it")
    digest = hashlib.sha256()
    if isinstance(model, Model) and model.options.weight_storage is not None:
        digest.update(repr(model.options).encode())
    opened = open_layers("model", path)
    for item in format_of(opened).files(opened):
        with item.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
