"""The reading half of `keras_archive`: what a saved Keras 3 model says of its GRUs, sent as plain data.

It runs in a process of its own, as the HDF5 library can be brought to crash by a broken file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onegru.bounded import parse_json
from onegru.child_process import READING, write_answer
from onegru.dtypes import Array, bfloat16
from onegru.errors import FormatError, OneGRUError, SpecError
from onegru.files.zip_file import open_zip, read_member
from onegru.frameworks.keras_config import is_gru, is_own
from onegru.tensors import is_mapping

__all__ = ["main"]

_MODELS = ("Functional", "Sequential", "Model")
_DEPTH = 16


@dataclass(frozen=True, slots=True)
class _Found:
    """A layer of the configuration: the names of the models that it lies in and its own, and what it is."""

    path: tuple[str, ...]
    kind: str
    config: Mapping[str, Any]


Collected = list[tuple[str, _Found, list[Array]]]


def main(arguments: Sequence[str]) -> None:
    """Answer what a file holds: its GRUs, each as its name, class, configuration and number of arrays.

    Arguments: the file, what to call it in messages, and the layer's name as JSON, null for all. What is
    wrong is answered as {"error": class, "message": text}.
    """
    file, shown, name = arguments
    try:
        collected = _collect(Path(file), Path(shown), json.loads(name))
        arrays = [array for _, _, own in collected for array in own]
        if sum(array.nbytes for array in arrays) > Path(file).stat().st_size:
            raise FormatError(f"{shown}: layers that share their arrays; must have each its own")
        head = [(key, found.kind, found.config, len(own)) for key, found, own in collected]
        write_answer({"layers": head}, arrays)
    except MemoryError:
        write_answer(
            {"error": "FormatError", "message": f"{shown}: takes over {READING.memory} bytes to read"}
        )
    except OneGRUError as error:
        write_answer({"error": type(error).__name__, "message": str(error)})


def _collect(file_path: Path, path: Path, name: str | None) -> Collected:
    """The GRUs of a saved model, or the one called `name`: name, configuration, arrays."""
    import h5py

    with _naming(path):
        if zipfile.is_zipfile(file_path):
            with open_zip(file_path) as archive:
                version = _json(path, read_member(path, archive, "metadata.json")).get("keras_version")
                model = _json(path, read_member(path, archive, "config.json"))
                info = archive.getinfo("model.weights.h5")
                if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                    raise FormatError(f"{path}: model.weights.h5 is packed; must be stored as it is")
                with archive.open(info) as stream, h5py.File(stream, "r") as weights:
                    reader = _Weights(path, h5py)
                    return _read(path, version, model, lambda found: reader.of_archive(weights, found), name)
        with h5py.File(file_path, "r") as file:
            config = file.attrs.get("model_config")
            if config is None:
                raise FormatError(
                    f"{path}: weights alone, which do not tell activations; must be a whole model, or give "
                    "from_keras the layer or its arrays"
                )
            reader = _Weights(path, h5py)
            model, version = _json(path, config), file.attrs.get("keras_version")
            return _read(path, version, model, lambda found: reader.of_legacy(file, found), name)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Whatever zipfile, json and h5py raise for bad bytes is a FormatError."""
    try:
        yield
    except (OneGRUError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise FormatError(f"{path}: not a model that Keras saved ({reason})") from None


def _json(path: Path, text: bytes | str) -> Mapping[str, Any]:
    content = parse_json(text)
    if not is_mapping(content):
        raise FormatError(f"{path}: a configuration that is no mapping")
    return content


def _read(
    path: Path,
    version: object,
    model: Mapping[str, Any],
    arrays_of: Callable[[_Found], list[Array]],
    name: str | None,
) -> Collected:
    if not isinstance(version, str) or not version.startswith("3."):
        raise FormatError(f"{path}: keras_version {version!r}; must be 3, whose activations are known")
    layers: dict[str, _Found] = {}
    for found in _layers(model, (), _DEPTH):
        if layers.setdefault("/".join(found.path), found) is not found:
            raise FormatError(f"{path}: two layers called {'/'.join(found.path)!r}")
    if name is not None:
        if name not in layers:
            there = ", ".join(map(repr, layers)) or "none"
            raise SpecError(f"name: {name!r}, which {path} does not hold; it holds {there}")
        layers = {name: layers[name]}
    return [(key, found, arrays_of(found)) for key, found in layers.items()]


def _layers(model: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[_Found]:
    """The layers of GRUs within a model's configuration."""
    config = model.get("config")
    entries = config.get("layers") if is_mapping(config) else None
    for entry in entries if isinstance(entries, list) else ():
        if not is_mapping(entry) or not is_mapping(entry.get("config")):
            continue
        kind, own = entry.get("class_name"), entry["config"]
        inner = (*path, str(own.get("name")))
        if kind in _MODELS and depth:
            yield from _layers(entry, inner, depth - 1)
        elif isinstance(kind, str) and is_own(entry) and is_gru(kind, own):
            yield _Found(inner, kind, own)


class _Weights:
    """Arrays out of an HDF5 file, along links that stay within it."""

    def __init__(self, path: Path, h5py: Any) -> None:
        self._path = path
        self._h5py = h5py

    def of_archive(self, file: Any, found: _Found) -> list[Array]:
        """A layer's arrays in a `.keras` archive, whose groups go by class and say the name they have."""
        group = file
        for name in found.path:
            group = self._named(self._child(group, "layers"), name)
        return list(self._of_layer(group, found.kind))

    def _named(self, layers: Any, name: str) -> Any:
        matching = [
            group
            for group in (self._child(layers, key) for key in layers)
            if "vars" in group and self._child(group, "vars").attrs.get("name") == name
        ]
        if len(matching) != 1:
            raise FormatError(f"{self._path}: weights of {len(matching)} layers called {name!r}; must be one")
        return matching[0]

    def _of_layer(self, group: Any, kind: str) -> Iterator[Array]:
        if kind == "Bidirectional":
            for half in ("forward_layer", "backward_layer"):
                yield from self._of_layer(self._child(group, half), "RNN")
        elif kind == "GRUCell":
            variables = self._child(group, "vars")
            for index in range(len(variables)):
                yield self._array(self._child(variables, str(index)))
        else:
            cell = self._child(group, "cell")
            if "cells" not in cell:
                yield from self._of_layer(cell, "GRUCell")
                return
            cells = self._child(cell, "cells")
            for index in range(len(cells)):
                yield from self._of_layer(
                    self._child(cells, f"gru_cell_{index}" if index else "gru_cell"), "GRUCell"
                )

    def of_legacy(self, file: Any, found: _Found) -> list[Array]:
        """A layer's arrays in an `.h5` file, whose top layers list their arrays' paths in order."""
        group = self._child(self._child(file, "model_weights"), found.path[0])
        inner = f"/{'/'.join(found.path)}/" if len(found.path) > 1 else ""
        arrays = []
        for name in group.attrs.get("weight_names", ()):
            name = name.decode() if isinstance(name, bytes) else str(name)
            if inner in f"/{name}":
                node = group
                for part in name.split("/"):
                    node = self._child(node, part)
                arrays.append(self._array(node))
        return arrays

    def _child(self, group: Any, name: str) -> Any:
        link = group.get(name, getlink=True) if isinstance(group, self._h5py.Group) else None
        if not isinstance(link, self._h5py.HardLink):
            raise FormatError(
                f"{self._path}: {getattr(group, 'name', '')}/{name}: not there, or a link; must be there"
            )
        return group[name]

    def _array(self, node: Any) -> Array:
        """A dataset's numbers, if the file itself holds each of them."""
        plain = isinstance(node, self._h5py.Dataset) and not node.is_virtual and not node.external
        if not plain or node.id.get_storage_size() < node.nbytes or node.chunks is not None:
            raise FormatError(f"{self._path}: {node.name}: not a plain array within the file")
        array = np.asarray(node[()])
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if node.attrs.get("dtype") == "bfloat16" and array.dtype.itemsize == 2:
            return array.view(bfloat16())
        if array.dtype.kind != "f":
            raise FormatError(f"{self._path}: {node.name}: type {array.dtype}; must be a floating-point type")
        return array
