"""Run the command line in this process or a child process, and models for its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

import onegru
from tests.support.files.onnx_models import (
    WEIGHTS,
    Arrays,
    I,
    graph,
    gru,
    model,
    numbers,
    numpy_type,
    save,
    value,
)

SCRIPT = Path(sys.executable).with_name("onegru")


class Result(NamedTuple):
    """Result of a command: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    def refused(self, message: str) -> None:
        """Assert that stderr is one line that contains `message`, and stdout is empty."""
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("onegru: ") and self.err.count("\n") == 1 and self.err.endswith("\n")
        assert message in self.err

    def document(self) -> Any:
        """Return stdout, which must be standard JSON."""

        def refuse(word: str) -> NoReturn:
            raise AssertionError(f"{word} is not JSON")

        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=refuse)


Cli = Callable[..., Result]


def script(*arguments: object, **environment: str) -> Result:
    """Run the installed command in a separate process."""
    result = subprocess.run(
        [SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return Result(result.returncode, result.stdout, result.stderr)


def write_gru(name: str = "gru.onnx", *, dtype: str = "float32", opset: int = 22, **attributes: Any) -> str:
    """Write a single GRU: X [seq, batch, I] and, if `lens` is given, lens [batch], to Y and Y_h."""
    constants = {key: array.astype(numpy_type(dtype)) for key, array in WEIGHTS.items()}
    inputs = [value("X", dtype, ["seq", "batch", I])]
    if "lens" in attributes:
        inputs.append(value("lens", "int32", ["batch"]))
    outputs = [value("Y", dtype), value("Y_h", dtype)]
    nodes = [gru("X", ["Y", "Y_h"], bias="B", name="the GRU", **attributes)]
    save(Path(), model(graph(nodes, inputs, outputs, constants), opset=opset), name)
    return name


X = numbers(1, 4, 2, I)


def expected(x: Any = X, **arguments: Any) -> Arrays:
    constants = {name: array.astype(x.dtype) for name, array in WEIGHTS.items()}
    Y, Y_h = onegru.gru(x, constants["W"], constants["R"], constants["B"], **arguments)
    return {"Y": Y, "Y_h": Y_h}


def same(path: str | Path, arrays: Arrays) -> None:
    with np.load(path) as loaded:
        assert list(loaded) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}
