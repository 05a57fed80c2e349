"""Read and write the states of a stream as `.npz` files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from onegru.core.arguments import file_path
from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError
from onegru.system.array_files import Header, read_npz
from onegru.system.atomic_write import write_files

_KEY = "state/"


def write_states(path: str | os.PathLike[str], states: Mapping[str, Array]) -> None:
    """Write states by name. bfloat16 is stored as uint16, because NumPy's format lacks it."""
    arrays = {
        _KEY + name: state.view(np.uint16) if state.dtype.name == "bfloat16" else state
        for name, state in states.items()
    }
    # The stub of savez mistakes the arrays for another argument.
    write_files([(file_path("path", path), lambda file: np.savez(file, **arrays))])  # type: ignore[arg-type]


def read_states(path: str | os.PathLike[str], expected: Callable[[str, Header], str]) -> dict[str, Array]:
    """Return the states from `write_states`, by name."""
    path = file_path("path", path)
    types: dict[str, str] = {}

    def choose(headers: Mapping[str, Header]) -> Mapping[str, Header]:
        for key, header in headers.items():
            if not key.startswith(_KEY):
                raise FormatError(f"{path}: not a file of states; it contains {key!r}")
            types[key] = expected(key.removeprefix(_KEY), header)
        return headers

    states = read_npz(path, choose, "a file of states")
    for key, array in states.items():
        if types[key] == "bfloat16" and array.dtype == np.uint16:
            states[key] = array.view(bfloat16())
    return {key.removeprefix(_KEY): array for key, array in states.items()}
