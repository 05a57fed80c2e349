"""Outputs of a run: written to files whole or not at all, or printed as JSON."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from onegru.cli.inputs import split_name
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.models.model import Model
from onegru.system.atomic_write import write_files


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
        name, file = split_name(text, names)
        path = Path(file)
        if name is not None and name not in names:
            raise SpecError(
                f"-o {text}: {name!r} is not an output; must be one of {', '.join(map(repr, names))}"
            )
        wanted = names if name is None else (name,)
        if path.suffix.lower() not in (".npz", ".npy"):
            raise SpecError(f"-o {text}: must end in .npz or .npy")
        if path.suffix.lower() == ".npy" and len(wanted) != 1:
            raise SpecError(
                f"-o {text}: a .npy file holds one array, the model has {len(names)}; use NAME=FILE or .npz"
            )
        if not path.parent.is_dir():
            raise SpecError(f"-o {text}: folder {str(path.parent)!r} does not exist")
        if path.is_dir():
            raise SpecError(f"-o {text}: is a folder; must be a file")
        if os.path.realpath(path) in (os.path.realpath(target.path) for target in targets):
            raise SpecError(f"-o {text}: the file is named twice")
        targets.append(Target(path, wanted))
    return targets


def write_outputs(targets: Sequence[Target], results: Mapping[str, Array]) -> None:
    """Write all files under other names, then rename them: each is whole or as it was before.

    Raises:
        SpecError: an output is not a tensor.
        OSError: a file cannot be written.
    """
    contents = [{name: _storable(name, results[name]) for name in target.names} for target in targets]
    files: list[tuple[Path, Callable[[IO[bytes]], None]]] = []
    for target, arrays in zip(targets, contents, strict=True):
        if target.path.suffix.lower() == ".npy":
            files.append((target.path, partial(np.save, arr=arrays[target.names[0]], allow_pickle=False)))
        else:
            files.append((target.path, partial(_write_npz, arrays=arrays)))
    write_files(files)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """What `numpy.savez` writes; that one takes no array called "file"."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def print_json(
    model: Model, values: Mapping[str, Array], results: Mapping[str, Array], seconds: float
) -> None:
    """Print inputs in outline and outputs in full; NaN and infinities as strings, as JSON has none."""
    document = {
        "model": model.path,
        "seconds": seconds,
        "inputs": {name: _outline(array) for name, array in values.items()},
        "outputs": {name: {**_outline(value), "data": _plain(value)} for name, value in results.items()},
    }
    print(json.dumps(document, allow_nan=False))


def _storable(name: str, value: Array) -> Array:
    """What a NumPy file can hold of an output: bfloat16 as float32, which has the same values."""
    if not isinstance(value, np.ndarray):
        raise SpecError(f"output {name!r}: not a tensor; cannot be written")
    if value.dtype.name == "bfloat16":
        return value.astype(np.float32)
    return value.astype(np.str_) if value.dtype.kind == "O" else value


def _outline(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        return {"dtype": type(value).__name__, "shape": None}
    return {"dtype": value.dtype.name if value.dtype.kind not in "OUS" else "str", "shape": list(value.shape)}


def _plain(value: Any) -> Any:
    """What JSON can hold of a tensor, sequence or map."""
    if isinstance(value, np.ndarray | np.generic):
        known = value.dtype.kind in "biufOUS"  # bfloat16 is a kind of its own
        return _plain((value if known else value.astype(np.float32)).tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value.decode(errors="replace") if isinstance(value, bytes) else value
