"""Write the outputs of a run to files, or print them as JSON."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from onegru.cli.inputs import input_files, split_name
from onegru.core.dtypes import Array, as_text
from onegru.core.errors import SpecError
from onegru.formats.format import format_of
from onegru.formats.opened import Opened
from onegru.models.model import Model
from onegru.system.atomic_write import write_files


def check_targets(texts: Sequence[str], model: Model, inputs: Sequence[str]) -> dict[Path, tuple[str, ...]]:
    """Return the files for outputs and the content of each, from [NAME=]FILE, checked before any run."""
    names = tuple(info.name for info in model.outputs)
    targets: dict[Path, tuple[str, ...]] = {}
    for text in texts:
        name, file = split_name(text, names)
        path = Path(file)
        if name is not None and name not in names:
            raise SpecError(
                f"-o {text}: {name!r} is not an output; must be one of {', '.join(map(repr, names))}"
            )
        wanted = names if name is None else (name,)
        check_target(f"-o {text}", path, [".npz", ".npy"], targets)
        if path.suffix.lower() == ".npy" and len(wanted) != 1:
            raise SpecError(
                f"-o {text}: a .npy file contains one array, but the model has {len(names)} outputs; use "
                "NAME=FILE or .npz"
            )
        check_not_read(f"-o {text}", path, model.graph.file, inputs=input_files(inputs, model))
        targets[path] = wanted
    return targets


def check_target(given: str, path: Path, suffixes: Sequence[str], others: Iterable[Path] = ()) -> None:
    """Raise SpecError unless a file can be written and differs from others."""
    if path.suffix.lower() not in suffixes:
        raise SpecError(f"{given}: must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise SpecError(f"{given}: folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise SpecError(f"{given}: is a folder; must be a file")
    if path.exists() and not path.is_file():
        raise SpecError(f"{given}: is not a regular file; must be a regular file or not exist")
    if os.path.realpath(path) in map(os.path.realpath, others):
        raise SpecError(f"{given}: named twice; must be different files")


def check_not_read(
    given: str, path: Path, model: Opened | None, called: str = "the model", inputs: Iterable[Path] = ()
) -> None:
    """Raise SpecError if a file to write is one of the files that are read, under any name."""
    if not path.exists():
        return
    parts = [] if model is None else format_of(model).files(model)
    for what, files in ((f"{called}, or a part of it", parts), ("an input", inputs)):
        if any(file.exists() and path.samefile(file) for file in files):
            raise SpecError(f"{given}: is {what}; must be another file")


def model_files(model: Path) -> list[Path]:
    """Return the files of a model: an IR stores its weights in a second file."""
    return [model.with_suffix(".bin"), model] if model.suffix.lower() == ".xml" else [model]


def write_outputs(targets: Mapping[Path, Sequence[str]], results: Mapping[str, Array]) -> None:
    """Write all files under temporary names, then rename them, so that each file is complete or unchanged."""
    files: list[tuple[Path, Callable[[IO[bytes]], None]]] = []
    for path, names in targets.items():
        arrays = {name: _storable(name, results[name]) for name in names}
        if path.suffix.lower() == ".npy":
            files.append((path, partial(np.save, arr=arrays[names[0]], allow_pickle=False)))
        else:
            files.append((path, partial(_write_npz, arrays=arrays)))
    write_files(files)


def _write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write like `numpy.savez`, which accepts no array called "file"."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def print_run(
    model: Model, values: Mapping[str, Array], results: Mapping[str, Array], seconds: float
) -> None:
    """Print as JSON the types and shapes of inputs and outputs, and the outputs' values."""
    print_json(
        {
            "model": model.path,
            "seconds": seconds,
            "inputs": {name: _outline(array) for name, array in values.items()},
            "outputs": {name: {**_outline(value), "data": value} for name, value in results.items()},
        }
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document as JSON, with NaN and infinities as strings, because JSON lacks them."""
    print(json.dumps(_plain(document), allow_nan=False))


def _storable(name: str, value: Array) -> Array:
    """Return an output in a type that NumPy files support: bfloat16 becomes float32, with the same values."""
    if not isinstance(value, np.ndarray):
        raise SpecError(f"output {name!r}: not a tensor, so it cannot be written")
    if value.dtype.name == "bfloat16":
        return value.astype(np.float32)
    return as_text(value) if value.dtype.kind == "O" else value


def _outline(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        return {"dtype": type(value).__name__, "shape": None}
    return {"dtype": value.dtype.name if value.dtype.kind not in "OUS" else "str", "shape": list(value.shape)}


def _plain(value: Any) -> Any:
    """Return a value in types that JSON supports."""
    if isinstance(value, np.ndarray | np.generic):
        known = value.dtype.kind in "biufOUS"  # bfloat16 has another kind
        return _plain((value if known else value.astype(np.float32)).tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value.decode(errors="replace") if isinstance(value, bytes) else value
