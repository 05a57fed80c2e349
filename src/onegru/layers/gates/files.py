"""Read and write gate values as `.npz` files with metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from onegru.core.activations import Activation
from onegru.core.dtypes import bfloat16
from onegru.core.errors import FormatError, SpecError
from onegru.core.machine import memory_size
from onegru.core.spec import Spec
from onegru.layers.gates.data import GATES, Gates
from onegru.system.array_files import Header, read_npz
from onegru.system.bounded import parse_json

_ARRAYS = (*GATES, "initial_h", "lengths")
_ABOUT = "about"


def writer(gates: Gates) -> Callable[[IO[bytes]], None]:
    """Return a function that writes a file of gates. bfloat16, which NumPy's format lacks, becomes uint16."""
    names = _ARRAYS if gates.raw_z is None else (*_ARRAYS, "raw_z")
    arrays = {name: getattr(gates, name) for name in names}
    for name, array in arrays.items():
        arrays[name] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    about = {"name": gates.name, "source": gates.source, "spec": dataclasses.asdict(gates.spec)}
    arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return lambda file: np.savez(file, **arrays)


Kind = TypeVar("Kind", bound=Gates)


def read(path: Path, kind: type[Kind]) -> Kind:
    """Return the gates in a file, as an object of class `kind`."""

    def choose(headers: Mapping[str, Header]) -> Mapping[str, Header]:
        unknown = headers.keys() - {*_ARRAYS, "raw_z", _ABOUT}
        missing = {*_ARRAYS, _ABOUT} - headers.keys()
        if unknown or missing:
            word = f"it contains {min(unknown)!r}" if unknown else f"it lacks {min(missing)!r}"
            raise FormatError(f"{path}: not a file of gate values; {word}")
        size = sum(header.bytes for header in headers.values())
        if size > memory_size():
            raise FormatError(f"{path}: contains {size} bytes; must fit into this machine's memory")
        return headers

    arrays: dict[str, Any] = read_npz(path, choose, "a file of gate values")
    try:
        text = arrays.pop(_ABOUT)
        if text.dtype != np.uint8:
            raise ValueError
        about = parse_json(text.tobytes())
        spec = _spec(about["spec"])
        if spec.dtype == "bfloat16":
            for name, array in arrays.items():
                arrays[name] = array.view(bfloat16()) if array.dtype == np.uint16 else array
        return kind(spec=spec, **arrays, name=about["name"], source=about["source"])
    except (KeyError, TypeError, ValueError) as error:  # SpecError is a ValueError
        words = error if isinstance(error, SpecError) else "its metadata is broken"
        raise FormatError(f"{path}: not a file of gate values; {words}") from error


def _spec(fields: Mapping[str, Any]) -> Spec:
    pairs = tuple(tuple(Activation(**function) for function in pair) for pair in fields["activations"])
    return Spec(**{**fields, "activations": pairs})
