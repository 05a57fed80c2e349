"""Layers to the frameworks' own files."""

from __future__ import annotations

from pathlib import Path

from onegru.core.errors import needs_extra
from onegru.frameworks.keras import import_keras, to_keras
from onegru.frameworks.pytorch import to_torch
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.system.atomic_write import write_files


def write_pytorch(source: GRU | Stack, path: Path) -> None:
    """Write the state dict of an `nn.GRU`, as `torch.save` does.

    Raises:
        SpecError: `nn.GRU` can't express it; the message says why.
        MissingExtraError: torch is not installed.
        OSError: the file cannot be written.
    """
    module = to_torch(source)
    with needs_extra("torch", "torch", str(path)):
        import torch
    write_files([(path, lambda file: torch.save(module.state_dict(), file))])


def write_keras(source: GRU | Stack, path: Path) -> None:
    """Write a Keras 3 model of the layers and nothing else.

    Raises:
        SpecError: Keras can't express it; the message says why.
        MissingExtraError: Keras is not installed.
        OSError: the file cannot be written.
    """
    first, last = layers_of(source)[0].spec, layers_of(source)[-1].spec
    made = to_keras(source, return_sequences=last.direction != "reverse")
    keras = import_keras(str(path))
    if isinstance(source, GRU):
        made = keras.Sequential([keras.Input((None, first.input_size), dtype=first.dtype), made])
    made.save(path)
