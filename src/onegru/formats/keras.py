"""Read a saved Keras model in a child process, because a broken file can crash the HDF5 library."""

from __future__ import annotations

import functools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError, OneGRUError, SpecError
from onegru.core.tensors import is_mapping
from onegru.formats.zip_file import open_zip, read_member
from onegru.frameworks.keras_config import generation_of, is_gru, is_own
from onegru.system.bounded import parse_json
from onegru.system.child_process import READING, write_answer

_MODELS = ("Functional", "Sequential", "Model")
_DEPTH = 16
_MOST_GROUPS = 100_000

# Groups with a model's layers in an archive.
_CONTAINERS = ("layers", "_layer_checkpoint_dependencies", "layer_checkpoint_dependencies")

# Groups at the root of Keras files.
_OWN_GROUPS = {*_CONTAINERS, "vars", "model_weights", "top_level_model_weights"}


@dataclass(frozen=True, slots=True)
class _Position:
    """The index of a layer among the layers of its class in a model, and their number."""

    kind: str
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class _KerasLayer:
    """A layer, its enclosing models, and its configuration, which is empty unless it is a GRU."""

    path: tuple[str, ...]
    positions: tuple[_Position, ...]
    kind: str
    config: Mapping[str, Any]
    is_gru: bool


@dataclass(frozen=True, slots=True)
class _Collected:
    """Description of the GRUs in a file."""

    version: str  # the version of Keras
    grus: list[tuple[str, _KerasLayer, list[Array]]]  # the GRUs, by name, with their arrays
    others: list[tuple[str, str]]  # the names and classes of all other layers except inputs
    is_chain: bool  # whether the model consists of its GRUs, called one after another


def main(arguments: Sequence[str]) -> None:
    """Write the GRUs of a file: the name, class, configuration and number of arrays of each.

    The answer also has the names and classes of the other layers, and whether the model is only a sequence of
    GRUs. Arguments: the file, its name for messages, and as JSON the layer's name and the version of Keras,
    which can both be null. Errors are written as {"error": class, "message": text}.
    """
    file, shown, name, version = arguments
    try:
        collected = _collect(Path(file), Path(shown), json.loads(name), json.loads(version))
        arrays = [array for _, _, own in collected.grus for array in own]
        if sum(array.nbytes for array in arrays) > Path(file).stat().st_size:
            raise FormatError(f"{shown}: layers share their arrays; each must have its own arrays")
        head = [(key, layer.kind, layer.config, len(own)) for key, layer, own in collected.grus]
        facts = {"layers": head, "others": collected.others, "is_chain": collected.is_chain}
        write_answer({"keras_version": collected.version, **facts}, arrays)
    except MemoryError:
        message = f"{shown}: needs more than {READING.memory} bytes to read"
        write_answer({"error": "FormatError", "message": message})
    except OneGRUError as error:
        write_answer({"error": type(error).__name__, "message": str(error)})


def _collect(file_path: Path, path: Path, name: str | None, given: str | None) -> _Collected:
    """Read a saved model, with all its GRUs or the one called `name`."""
    import h5py

    with _format_errors(path):
        if zipfile.is_zipfile(file_path):
            with open_zip(file_path) as archive:
                metadata = _json(path, read_member(path, archive, "metadata.json"))
                version = _version(path, metadata.get("keras_version"), given)
                model = _json(path, read_member(path, archive, "config.json"))
                info = archive.getinfo("model.weights.h5")
                if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                    raise FormatError(f"{path}: model.weights.h5 is compressed; must be uncompressed")
                with archive.open(info) as stream, h5py.File(stream, "r") as weights:
                    archived = _ArchivedWeights(path, h5py, weights)
                    return _read(path, version, model, archived.of_layer, name)
        with h5py.File(file_path, "r") as file:
            config = file.attrs.get("model_config")
            if config is None:
                if not ({"keras_version", "layer_names"} & file.attrs.keys() or _OWN_GROUPS & file.keys()):
                    raise FormatError(f"{path}: an HDF5 file, but not from Keras; must be a Keras model")
                raise FormatError(
                    f"{path}: weights only, without activations; must be a whole model. Otherwise pass the "
                    "layer or its arrays to from_keras"
                )
            version = _version(path, file.attrs.get("keras_version"), given)
            legacy = _LegacyWeights(path, h5py, file, joined=version.startswith("3"))
            return _read(path, version, _json(path, config), legacy.of_layer, name)


@contextmanager
def _format_errors(path: Path) -> Iterator[None]:
    """Turn all errors of zipfile, json and h5py into FormatError."""
    try:
        yield
    except (OneGRUError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise FormatError(f"{path}: not a model that Keras saved ({reason})") from error


def _json(path: Path, text: bytes | str) -> Mapping[str, Any]:
    content = parse_json(text)
    if not is_mapping(content):
        raise FormatError(f"{path}: the configuration is not a mapping")
    return content


def _version(path: Path, stored: object, given: str | None) -> str:
    """Return the version of Keras that wrote a file."""
    if stored is None or stored == "":
        if given is None:
            raise SpecError.of(
                "keras_version",
                f"missing; must be given, such as '2.3', because {path} does not contain it (with "
                "`onegru convert`: --keras-version)",
            )
        generation_of(given)
        return given
    version = _text(stored)
    try:
        generation_of(version)
    except SpecError as error:
        raise FormatError(f"{path}: keras_version {version!r:.40}; must be 2 or 3") from error.__cause__
    if given is not None and not f"{version}.".startswith(f"{given}."):
        raise SpecError.of("keras_version", f"{given!r}; must be {version!r}, as in {path}, or None")
    return version


def _text(value: object) -> str:
    """Return the text of an attribute, which can be bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _read(
    path: Path,
    version: str,
    model: Mapping[str, Any],
    arrays_of: Callable[[_KerasLayer], list[Array]],
    name: str | None,
) -> _Collected:
    layers: dict[str, _KerasLayer] = {}
    others: list[tuple[str, str]] = []
    for layer in _layers(model, (), (), _DEPTH):
        if not layer.is_gru:
            others.append(("/".join(layer.path), layer.kind))
        elif layers.setdefault("/".join(layer.path), layer) is not layer:
            raise FormatError(f"{path}: two layers called {'/'.join(layer.path)!r}")
    is_chain = not others and _is_chain(model, list(layers.values()))
    if name is not None:
        if name not in layers:
            there = ", ".join(map(repr, layers)) or "none"
            raise SpecError.of("name", f"no GRU {name!r} in {path}; available: {there}")
        layers = {name: layers[name]}
    grus = [(key, layer, arrays_of(layer)) for key, layer in layers.items()]
    return _Collected(version, grus, others, is_chain)


def _layers(
    model: Mapping[str, Any], path: tuple[str, ...], positions: tuple[_Position, ...], depth: int
) -> Iterator[_KerasLayer]:
    """Find the layers in a model's configuration, without inputs; for a custom class, the class itself."""
    entries = _entries(model)
    if entries is None:
        yield _KerasLayer(path, positions, str(model.get("class_name")), {}, is_gru=False)
        return
    kinds = Counter(str(entry.get("class_name")) for entry in entries)
    before: Counter[str] = Counter()
    for entry in entries:
        kind, own = str(entry.get("class_name")), entry.get("config")
        position = _Position(kind, before[kind], kinds[kind])
        before[kind] += 1
        # A configuration that is a list has no name; the entry can have one.
        inner = (*path, str(own.get("name") if is_mapping(own) else entry.get("name")))
        if kind in _MODELS and depth:
            yield from _layers(entry, inner, (*positions, position), depth - 1)
        elif is_mapping(own) and is_own(entry) and is_gru(kind, own):
            yield _KerasLayer(inner, (*positions, position), kind, own, is_gru=True)
        elif kind != "InputLayer":
            within = own.get("layer") if is_mapping(own) else None
            if is_mapping(within) and is_mapping(within.get("config")) and is_own(within):
                wrapped = str(within.get("class_name"))
                kind += f"({wrapped})" if is_gru(wrapped, within["config"]) else ""
            yield _KerasLayer(inner, (*positions, position), kind, {}, is_gru=False)


def _entries(model: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Return the layers in a model's configuration; None if it has no list of layers."""
    config = model.get("config")  # a list for Sequential before Keras 2.2.3
    entries = config.get("layers") if is_mapping(config) else config
    return [item for item in entries if is_mapping(item)] if isinstance(entries, list) else None


def _is_chain(model: Mapping[str, Any], grus: Sequence[_KerasLayer]) -> bool:
    """Whether a model of only GRUs and inputs calls these GRUs one after another."""
    kind = model.get("class_name")
    if model.get("registered_name") not in (None, kind) or any(len(layer.path) > 1 for layer in grus):
        return False  # custom classes and nested models may call layers in any order
    calls = [entry.get("inbound_nodes") for entry in _entries(model) or () if entry.get("inbound_nodes")]
    one_call = [isinstance(call, list) and len(call) == 1 for call in calls]
    return bool(grus) and (kind == "Sequential" or (kind in _MODELS and one_call == [True]))


class _KerasWeights:
    """Arrays of an HDF5 file. Soft and external links are not followed."""

    def __init__(self, path: Path, h5py: Any, file: Any) -> None:
        self._path = path
        self._h5py = h5py
        self._file = file

    def _child(self, group: Any, name: str) -> Any:
        if not self._has(group, name):
            raise FormatError(
                f"{self._path}: {getattr(group, 'name', '')}/{name}: not found (links are not followed)"
            )
        return group[name]

    def _has(self, group: Any, name: str) -> bool:
        link = group.get(name, getlink=True) if isinstance(group, self._h5py.Group) else None
        return isinstance(link, self._h5py.HardLink)

    def _array(self, node: Any) -> Array:
        """Return the values of a dataset that the file itself contains."""
        plain = isinstance(node, self._h5py.Dataset) and not node.is_virtual and not node.external
        if not plain or node.id.get_storage_size() < node.nbytes or node.chunks is not None:
            raise FormatError(f"{self._path}: {node.name}: must be a plain array inside the file")
        array = np.asarray(node[()])
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if node.attrs.get("dtype") == "bfloat16" and array.dtype.itemsize == 2:
            return array.view(bfloat16())
        if array.dtype.kind != "f":
            raise FormatError(f"{self._path}: {node.name}: type {array.dtype}; must be a floating-point type")
        return array


class _ArchivedWeights(_KerasWeights):
    """Arrays of a `.keras` archive: in groups with class names, each with `vars`."""

    def __init__(self, path: Path, h5py: Any, file: Any) -> None:
        super().__init__(path, h5py, file)
        self._groups: dict[str, Any] = {}
        self._collect(file, "", 2 * _DEPTH)

    def _collect(self, group: Any, prefix: str, depth: int) -> None:
        """Collect every group called `vars`, by the path of its owner."""
        for key in group:
            # Keras 2 on Windows wrote one name with backslashes.
            name = f"{prefix}/{key.replace(chr(92), '/')}"
            if not self._has(group, key) or not isinstance(child := group[key], self._h5py.Group):
                continue
            if len(self._groups) > _MOST_GROUPS or not depth:
                raise FormatError(
                    f"{self._path}: more than {_MOST_GROUPS} weight groups, or nested too deeply"
                )
            if name.endswith("/vars"):
                self._groups[name.removesuffix("/vars")] = child
            else:
                self._collect(child, name, depth - 1)

    def of_layer(self, layer: _KerasLayer) -> list[Array]:
        """Return a layer's arrays."""
        prefix = ""
        for name, position in zip(layer.path, layer.positions, strict=True):
            prefix = self._member(prefix, name, position)
        return list(self._of_kind(prefix, layer.kind))

    def _member(self, prefix: str, name: str, place: _Position) -> str:
        """Return the path of a layer, by the name that Keras 3 records or by its index in its class."""
        members = {
            f"{start}{path.removeprefix(start).partition('/')[0]}"
            for start in (f"{prefix}/{container}/" for container in _CONTAINERS)
            for path in self._groups
            if path.startswith(start)
        }
        named = {path: self._groups[path].attrs.get("name") for path in members if path in self._groups}
        if any(own is not None for own in named.values()):
            matching = [path for path, own in named.items() if own == name]
            if len(matching) == 1:
                return matching[0]
            raise FormatError(f"{self._path}: weights of {len(matching)} layers called {name!r}; must be 1")
        of_class = re.compile(rf"{re.escape(place.kind.lower())}(?:_([0-9]{{1,9}}))?")
        matches = [(path, of_class.fullmatch(path.rpartition("/")[2])) for path in members]
        ordered = sorted((int(match[1] or 0), path) for path, match in matches if match)
        if len(ordered) != place.count:
            raise FormatError(
                f"{self._path}: weights of {len(ordered)} layers of class {place.kind}; must be {place.count}"
            )
        return ordered[place.index][1]

    def _of_kind(self, prefix: str, kind: str) -> Iterator[Array]:
        if kind == "Bidirectional":
            for half in ("forward_layer", "backward_layer"):
                yield from self._of_kind(f"{prefix}/{half}", "RNN")
        elif kind == "GRUCell":
            variables = self._groups.get(prefix)
            if variables is None:
                raise FormatError(f"{self._path}: {prefix}/vars: not found (links are not followed)")
            for index in range(len(variables)):
                yield self._array(self._child(variables, str(index)))
        else:
            cells = f"{prefix}/cell/cells/gru_cell"
            if cells not in self._groups:
                yield from self._of_kind(f"{prefix}/cell", "GRUCell")
                return
            for index in count():
                cell = f"{cells}_{index}" if index else cells
                if cell not in self._groups:
                    return
                yield from self._of_kind(cell, "GRUCell")


class _LegacyWeights(_KerasWeights):
    """Arrays of an `.h5` file, whose top layers list their arrays' paths in order."""

    def __init__(self, path: Path, h5py: Any, file: Any, joined: bool) -> None:
        super().__init__(path, h5py, file)
        self._joined = joined

    def of_layer(self, layer: _KerasLayer) -> list[Array]:
        """Return a layer's arrays."""
        group = self._child(self._root(), layer.path[0])
        inner = f"/{'/'.join(layer.path if self._joined else layer.path[-1:])}/"
        names = [name for name in self._names(group) if len(layer.path) == 1 or inner in f"/{name}"]
        return [self._array(functools.reduce(self._child, name.split("/"), group)) for name in names]

    def _root(self) -> Any:
        return self._child(self._file, "model_weights") if "model_weights" in self._file else self._file

    def _names(self, group: Any) -> Iterator[str]:
        """Return the paths, which can be split over several attributes."""
        several = (f"weight_names{index}" for index in range(len(group.attrs)))
        for attribute in ("weight_names", *several):
            yield from map(_text, group.attrs.get(attribute, ()))
