"""Outputs of a run: written to files whole or not at all, or printed as JSON."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onegru.dtypes import Array
from onegru.errors import SpecError
from onegru.session import Model

__all__ = ["Target", "check_targets", "print_json", "write_outputs"]


@dataclass(frozen=True, slots=True)
class Target:
    """A file, and the outputs that go into it."""

    path: Path
    names: tuple[str, ...]


def check_targets(texts: Sequence[str], model: Model) -> list[Target]:
    """Where outputs go, from [NAME=]FILE, checked before anything runs.

    Raises:
        SpecError: a text is not of that form, or does not fit the model.
    """
    names = tuple(info.name for info in model.outputs)
    targets: list[Target] = []
    for text in texts:
        name, separator, file = text.rpartition("=")
        path = Path(file)
        if separator and name not in names:
            raise SpecError(
                f"-o {text}: {name!r} is not an output; must be one of {', '.join(map(repr, names))}"
            )
        wanted = (name,) if name else names
        if path.suffix.lower() not in (".npz", ".npy"):
            raise SpecError(f"-o {text}: must end in .npz or .npy")
        if path.suffix.lower() == ".npy" and len(wanted) != 1:
            raise SpecError(
                f"-o {text}: a .npy file holds one array, the model has {len(names)}; use NAME=FILE or .npz"
            )
        if not path.parent.is_dir():
            raise SpecError(f"-o {text}: folder {str(path.parent)!r} does not exist")
        if path in (target.path for target in targets):
            raise SpecError(f"-o {text}: the file is named twice")
        targets.append(Target(path, wanted))
    return targets


def write_outputs(targets: Sequence[Target], results: Mapping[str, Array]) -> None:
    """Write each file under another name and rename it, so that a file is whole or not there.

    Raises:
        SpecError: an output is not a tensor.
        OSError: a file cannot be written.
    """
    for target in targets:
        arrays = {name: _storable(name, results[name]) for name in target.names}
        handle, temporary = tempfile.mkstemp(dir=target.path.parent, prefix=f".{target.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                if target.path.suffix.lower() == ".npy":
                    np.save(file, arrays[target.names[0]], allow_pickle=False)
                else:
                    np.savez(file, allow_pickle=False, **arrays)
            os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101 - a temporary file's own mode is private
            Path(temporary).replace(target.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def print_json(
    model: Model, values: Mapping[str, Array], results: Mapping[str, Array], seconds: float
) -> None:
    """Print inputs in outline and outputs in full; NaN and infinities as strings, as JSON has none."""
    document = {
        "model": model.path,
        "seconds": seconds,
        "inputs": {name: _outline(array) for name, array in values.items()},
        "outputs": {
            name: {**_outline(array), "data": _plain(_listed(array))} for name, array in results.items()
        },
    }
    print(json.dumps(document, allow_nan=False))


def _storable(name: str, value: Array) -> Array:
    """What a NumPy file can hold of an output: bfloat16 as float32, which has the same values."""
    if not isinstance(value, np.ndarray):
        raise SpecError(f"output {name!r}: not a tensor; cannot be written")
    if value.dtype.name == "bfloat16":
        return value.astype(np.float32)
    return value.astype(np.str_) if value.dtype.kind == "O" else value


def _outline(value: Array) -> dict[str, Any]:
    array = np.asarray(value)
    return {"dtype": array.dtype.name if array.dtype.kind != "O" else "str", "shape": list(array.shape)}


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.astype(np.float32) if value.dtype.name == "bfloat16" else value).tolist()
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
