"""External data of a rewritten model: embedded in its file, or kept outside if too large.

Until the changed model is written, external data are read from the source's location.
"""

from __future__ import annotations

import os
from pathlib import Path

from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.dataflow.names import fresh_name
from onegru.formats.onnx.validate import (
    ModelProto,
    Source,
    all_tensors,
    external_bytes,
    external_location,
    external_tensors,
    serialized,
)
from onegru.system.atomic_write import write_files

_LARGEST_FILE = 2**31 - 1  # bytes; the limit of protobuf
_SMALL = 2**16  # bytes; sizes, axes and scales, which onnx's converter needs


def embed_external(source: Source, model: ModelProto, file_size: int) -> list[str]:
    """Embed a model's external data, or only small tensors if the file would be too large; return notes."""
    external = [(tensor, external_location(source, tensor)[2]) for tensor in external_tensors(model)]
    if file_size + sum(length for _, length in external) > _LARGEST_FILE:
        external = [(tensor, length) for tensor, length in external if length <= _SMALL]
    for tensor, _ in external:
        tensor.raw_data = external_bytes(source, tensor)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return [f"external data of {len(external)} tensors are now in the file"] if external else []


def external_notes(model: ModelProto) -> list[str]:
    """Return a note on the remaining external data of a changed model; empty without any."""
    tensors = external_tensors(model)
    return [f"external data of {count(len(tensors), 'tensor')} stay outside the file"] if tensors else []


def serialize_model(source: Source, model: ModelProto) -> bytes:
    """Serialize a changed model."""
    size = sum(len(tensor.raw_data) for tensor in all_tensors(model))
    if size > _LARGEST_FILE:
        raise source.error(f"would have {size} bytes after the rewrite; must have at most {_LARGEST_FILE}")
    return serialized(source, model, "cannot be written in one file")


def write_model(source: Source, model: ModelProto, data: bytes, target: Path) -> None:
    """Write a changed model, and the missing external-data files next to it."""
    # The files are hard links to the source's files, or copies if the file system has no links. Existing
    # files are never replaced.
    links: dict[Path, Path] = {}
    if tensors := external_tensors(model):
        if target.is_symlink():
            raise SpecError.of(
                "target", f"{str(target)!r} is a link; must be a regular file, because of its external data"
            )
        folder = Path(os.path.realpath(target.parent))
        paths: dict[Path, Path] = {}
        used = {target.name}
        for tensor in tensors:
            path = external_location(source, tensor)[0]
            (entry,) = (entry for entry in tensor.external_data if entry.key == "location")
            if path == folder / target.name:
                raise SpecError.of("target", f"{str(target)!r} contains external data; must be another file")
            if path not in paths:
                paths[path] = _target_path(folder, path, Path(entry.value).name, used)
            entry.value = paths[path].relative_to(folder).as_posix()
        links = {candidate: path for path, candidate in paths.items() if not candidate.exists()}
        data = serialize_model(source, model)
    write_files([*links.items(), (target, lambda file: file.write(data))])


def _target_path(folder: Path, path: Path, name: str, used: set[str]) -> Path:
    """Return the path in `folder` for an external-data file that is stored elsewhere."""
    if path.is_relative_to(folder):
        return path
    while True:
        candidate = folder / fresh_name(name, used)
        if not os.path.lexists(candidate) or (not candidate.is_symlink() and candidate.samefile(path)):
            return candidate
