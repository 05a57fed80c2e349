"""Read GRUs from saved Keras models: `.keras` and `.h5` files.

The configuration is read as data and the weights as arrays. Keras does not run, so a file cannot execute
code. `onegru.formats.keras` reads the file in a separate process.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, MissingExtraError, SpecError
from onegru.core.tensors import is_mapping
from onegru.formats.opened import Opened
from onegru.frameworks.keras_config import from_config, generation_of
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.system.child_process import KILLED, READING, child_folder, read_answer, run_child

_READER = "onegru.formats.keras"


@dataclass(frozen=True, slots=True)
class KerasModel:
    """Content of a saved model."""

    layers: Mapping[str, GRU | Stack]  # the GRUs, by name ("encoder/gru" within a model "encoder")
    others: Mapping[str, str]  # the classes of all other layers except inputs, by name
    is_chain: bool  # whether the model consists of its GRUs, called one after another


def read_keras(path: Opened, name: str | None = None, keras_version: str | None = None) -> KerasModel:
    """Read the GRUs of a saved Keras model, and its other content; a repeated call reads nothing."""
    return path.once(_Reading(name, keras_version))


@dataclass(frozen=True, slots=True)
class _Reading:
    """Call of `read_keras` with these arguments, for `Opened.once`."""

    name: str | None
    keras_version: str | None

    def __call__(self, path: Opened) -> KerasModel:
        return _model(path, self.name, self.keras_version)


def _model(path: Opened, name: str | None, keras_version: str | None) -> KerasModel:
    if importlib.util.find_spec("h5py") is None:
        raise MissingExtraError("h5py", "keras-files", str(path))
    head, arrays = _read(path, [json.dumps(name), json.dumps(keras_version)])
    error, message = head.get("error"), str(head.get("message"))
    if error == "MissingExtraError":
        raise MissingExtraError("ml_dtypes", "bfloat16", str(path))
    if error is not None:
        raise SpecError(message) if error == "SpecError" else FormatError(message)
    described = _layers(path, head, len(arrays))
    others = {str(key): str(kind) for key, kind in head["others"]}
    generation = generation_of(str(head.get("keras_version")))
    layers: dict[str, GRU | Stack] = {}
    rest = iter(arrays)
    for key, kind, config, count in described:
        own: list[object] = list(islice(rest, count))
        layers[key] = from_config(kind, config, own, generation=generation, where=f"{path}: {key}: ")
    return KerasModel(layers, others, head["is_chain"] is True)


def _read(path: Opened, arguments: list[str]) -> tuple[dict[str, Any], list[Array]]:
    """Return the answer of the reading process."""
    with child_folder() as folder:
        ended = run_child(_READER, [str(path.path.absolute()), str(path), *arguments], folder, READING)
        if ended.code is None or ended.code == KILLED:
            reason = f"not read within {READING.cpu_seconds} s of CPU time or {READING.seconds:g} s in total"
            raise FormatError(f"{path}: {reason}")
        try:
            return read_answer(folder)
        except FileNotFoundError:
            reason = f"the reading process ended with {ended.code}{': ' if ended.error else ''}{ended.error}"
        except ValueError as error:
            reason = f"the reading process returned {error}"
    raise FormatError(f"{path}: not a model that Keras saved ({reason})")


def _layers(
    path: Opened, head: Mapping[str, Any], available: int
) -> list[tuple[str, str, Mapping[str, Any], int]]:
    """Check and return the name, class, configuration and number of arrays of each layer."""
    try:
        found = [(key, kind, config, count) for key, kind, config, count in head["layers"]]
        _ = head["is_chain"], [(key, kind) for key, kind in head["others"]]
    except (KeyError, TypeError, ValueError):
        found = [("", None, None, -1)]
    if any(
        not (isinstance(key, str) and isinstance(kind, str) and is_mapping(config))
        or type(count) is not int
        or count < 0
        for key, kind, config, count in found
    ) or available != sum(count for *_, count in found):
        raise FormatError(f"{path}: not a model that Keras saved (invalid answer of the reading process)")
    return found
