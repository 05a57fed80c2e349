"""GRUs in models that Keras 3 saved: `.keras` archives and legacy `.h5` files.

The configuration is read as data and the weights as arrays: nothing of Keras runs, so nothing that a file
says can make it run code. `keras_reader` reads the file in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onegru.dtypes import Array, numpy_dtype
from onegru.errors import FormatError, MissingExtraError, SpecError
from onegru.frameworks.keras_config import from_config
from onegru.layer import GRU
from onegru.stack import Stack

__all__ = ["read_keras"]

_COMMAND = "from onegru.files.keras_reader import main; main()"

# Seconds after which a file is taken for one that is made to take forever.
_PATIENCE = 300


def read_keras(path: Path, name: str | None = None) -> dict[str, GRU | Stack]:
    """The GRUs of a saved Keras 3 model, by name ("encoder/gru" within a model "encoder").

    Args:
        path: a `.keras` or `.h5` file.
        name: the only one to read; None for all.

    Raises:
        FormatError: the file is broken, of another version of Keras, or has weights alone.
        SpecError: a GRU does what onegru does not.
        MissingExtraError: h5py is not installed, or ml_dtypes where weights are bfloat16.
    """
    if importlib.util.find_spec("h5py") is None:
        raise MissingExtraError("h5py", "keras", str(path))
    header, data = _read(path, name)
    if "error" in header:
        if header["error"] == "MissingExtraError":
            raise MissingExtraError("ml_dtypes", "bfloat16", str(path))
        kind = SpecError if header["error"] == "SpecError" else FormatError
        raise kind(header["message"])
    arrays = _arrays(header, data)
    return {
        layer["key"]: from_config(
            layer["kind"],
            layer["config"],
            [next(arrays) for _ in layer["arrays"]],
            where=f"{path}: {layer['key']}: ",
        )
        for layer in header["layers"]
    }


def _read(path: Path, name: str | None) -> tuple[dict[str, Any], bytes]:
    """What the reading process sends."""
    command = [sys.executable, "-c", _COMMAND, str(path), json.dumps(name)]
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=search, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise FormatError(f"{path}: not read within {_PATIENCE} seconds") from None
    line, _, data = result.stdout.partition(b"\n")
    if result.returncode != 0 or not line:
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        reason = (
            f"the reading process ended with {result.returncode}{': ' if last else ''}{''.join(last)[:200]}"
        )
        raise FormatError(f"{path}: not a model that Keras saved ({reason})")
    header: dict[str, Any] = json.loads(line)
    return header, data


def _arrays(header: dict[str, Any], data: bytes) -> Iterator[Array]:
    start = 0
    for layer in header["layers"]:
        for name, shape in layer["arrays"]:
            dtype = numpy_dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            yield np.frombuffer(data, dtype, count, start).reshape(shape)
            start += count * dtype.itemsize
