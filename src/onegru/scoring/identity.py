"""What makes two runs the same run: the model's content, and the arguments that results depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from onegru.core.errors import SpecError, needs_extra
from onegru.formats.recognise import Kind, layers_kind
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack, layers_of
from onegru.models.model import Model


def model_digest(model: str | GRU | Stack | Model) -> str:
    """The SHA-256 of a model's files, or of the weights and attributes of layers.

    Raises:
        SpecError: the model was loaded from memory.
        OSError: a file cannot be read.
    """
    if isinstance(model, GRU | Stack):
        digest = hashlib.sha256()
        for layer in layers_of(model):
            digest.update(f"{layer.spec!r} {layer.weight_storage}".encode())
            for array in (layer.weights.W, layer.weights.R, layer.weights.B):
                digest.update(b"" if array is None else array.tobytes())
        return digest.hexdigest()
    path = Path(model.path if isinstance(model, Model) else model)
    if not path.is_file():
        raise SpecError(f"model: {path}: not a file; must be one, which a later run can compare")
    digest = hashlib.sha256()
    for item in _files(path):
        with item.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _files(path: Path) -> Iterable[Path]:
    """The files of a model, itself first."""
    yield path
    kind = layers_kind(path)
    if kind is Kind.OPENVINO and path.with_suffix(".bin").is_file():
        yield path.with_suffix(".bin")
    if kind is Kind.ONNX:
        with needs_extra("onnx", "onnx", str(path)):
            from onegru.formats.onnx.read import Source, external_files, external_tensors, read_model
        source = Source(str(path), path.parent)
        yield from sorted(external_files(source, external_tensors(read_model(source, path.read_bytes()))))
