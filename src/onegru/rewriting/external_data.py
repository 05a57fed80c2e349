"""External data of a rewritten model: embedded in its file, or kept outside if too large.

Until a changed model is written, its external data are looked up where its source has them.
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
    external_place,
    external_tensors,
    serialized,
)
from onegru.system.atomic_write import write_files

_LARGEST_FILE = 2**31 - 1  # bytes; protobuf writes no more
_SMALL = 2**16  # bytes; sizes, axes and scales, which onnx's converter has to see


def embed_external(source: Source, model: ModelProto, size: int) -> list[str]:
    """Put a model's external data into it, of so many bytes without them; returns what was done, as text.

    Where these would be too many for one file, only small tensors come into it.
    """
    external = [(tensor, external_place(source, tensor)[2]) for tensor in external_tensors(model)]
    if size + sum(length for _, length in external) > _LARGEST_FILE:
        external = [(tensor, length) for tensor, length in external if length <= _SMALL]
    for tensor, _ in external:
        tensor.raw_data = external_bytes(source, tensor)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return [f"external data of {len(external)} tensors are now within the file"] if external else []


def left_external(model: ModelProto) -> list[str]:
    """What a changed model still has outside of its file, as text; empty if there is none."""
    tensors = external_tensors(model)
    return [f"external data of {count(len(tensors), 'tensor')} stay outside of the file"] if tensors else []


def one_file(source: Source, model: ModelProto) -> bytes:
    """A changed model as a file holds it."""
    size = sum(len(tensor.raw_data) for tensor in all_tensors(model))
    if size > _LARGEST_FILE:
        raise source.error(f"comes to {size} bytes rewritten; must be at most {_LARGEST_FILE}")
    return serialized(source, model, "cannot be written in one file")


def write_model(source: Source, model: ModelProto, data: bytes, target: Path) -> None:
    """Write a changed model, and beside it the files of its external data that its folder lacks.

    These become second names of the source's files, or copies where the file system has no links. What
    lies there already is never replaced.
    """
    links: dict[Path, Path] = {}
    if tensors := external_tensors(model):
        if target.is_symlink():
            raise SpecError.of(
                "target", f"{str(target)!r} is a link; must be a regular file, because of its external data"
            )
        folder = Path(os.path.realpath(target.parent))
        places: dict[Path, Path] = {}
        used = {target.name}
        for tensor in tensors:
            path = external_place(source, tensor)[0]
            (entry,) = (entry for entry in tensor.external_data if entry.key == "location")
            if path == folder / target.name:
                raise SpecError.of("target", f"{str(target)!r} holds external data; must be another file")
            if path not in places:
                places[path] = _place(folder, path, Path(entry.value).name, used)
            entry.value = places[path].relative_to(folder).as_posix()
        links = {place: path for path, place in places.items() if not place.exists()}
        data = one_file(source, model)
    write_files([*links.items(), (target, lambda file: file.write(data))])


def _place(folder: Path, path: Path, name: str, used: set[str]) -> Path:
    """Where a folder has, or is to have, a file of external data that is called so elsewhere."""
    if path.is_relative_to(folder):
        return path
    while True:
        place = folder / fresh_name(name, used)
        if not os.path.lexists(place) or (not place.is_symlink() and place.samefile(path)):
            return place
