"""Serialize layers as files of PyTorch and Keras."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from onegru.core.errors import needs_extra
from onegru.frameworks.keras import import_keras, to_keras
from onegru.frameworks.pytorch import to_torch
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of


def pytorch_bytes(source: GRU | Stack, path: Path) -> bytes:
    """Return the state dict of an `nn.GRU`, as written by `torch.save`."""
    module = to_torch(source)
    with needs_extra("torch", "torch", str(path)):
        import torch
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def keras_bytes(source: GRU | Stack, path: Path) -> bytes:
    """Return a Keras 3 model that contains only the layers."""
    first, last = layers_of(source)[0].spec, layers_of(source)[-1].spec
    made = to_keras(source, return_sequences=last.direction != "reverse")
    keras = import_keras(str(path))
    if isinstance(source, GRU):
        made = keras.Sequential([keras.Input((None, first.input_size), dtype=first.dtype), made])
    with tempfile.TemporaryDirectory(prefix="onegru-") as folder:
        written = Path(folder) / "model.keras"  # Keras requires this suffix
        made.save(written)
        return written.read_bytes()
