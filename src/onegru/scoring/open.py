"""A model opened for scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onegru.core.errors import SpecError
from onegru.formats.recognise import layers_kind
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.load import load
from onegru.models.model import Model
from onegru.models.select_layers import layers_of_model, read_source
from onegru.scoring.program import LayersProgram, Program


def open_program(
    model: str | GRU | Stack | Model,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str] | None,
    nodes: Sequence[str],
    axes: Mapping[str, Sequence[str]],
) -> Program:
    """A model, loaded where only its file is given. Arguments and errors as those of `Scorer`."""
    source: GRU | Stack | Model
    if isinstance(model, str):
        path = Path(model)
        as_layers = bool(nodes) or layers_kind(path).holds == "layers"
        source = read_source(path, nodes) if as_layers else load(path)
    elif isinstance(model, Model):
        source = layers_of_model(model, nodes) if nodes else model
    else:
        if nodes:
            raise SpecError("nodes: given with layers; must name GRUs of a file or a model")
        source = model
    if isinstance(source, Model):
        from onegru.scoring.model_program import ModelProgram

        return ModelProgram(source, inputs, outputs, axes)
    if axes:
        raise SpecError("axes: given with layers, whose axes are known; must be left out")
    return LayersProgram(source, inputs, outputs)
