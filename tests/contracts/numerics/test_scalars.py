"""Test that arrays without axes keep rank 0, as inputs and outputs, in every runtime and type."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import onegru
from onegru.core.dtypes import contiguous
from tests.support.files import openvino_models
from tests.support.files.onnx_models import (
    PLAIN,
    WEIGHTS,
    X_INFO,
    X,
    graph,
    model,
    node,
    numpy_type,
    save,
    value,
)
from tests.support.machine.repository import ROOT

TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "bool", "str")
# For OpenVINO.
NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i32": "int32"}
NAMES |= {"i64": "int64", "boolean": "bool"}


def scalar(dtype: str) -> np.ndarray[Any, Any]:
    return np.array("word", object) if dtype == "str" else np.array(1).astype(numpy_type(dtype))


def check(found: Mapping[str, Any], expected: np.ndarray[Any, Any]) -> None:
    array = found["t"]
    assert isinstance(array, np.ndarray)
    assert array.shape == () and array.dtype == expected.dtype and array == expected


@pytest.mark.parametrize("dtype", TYPES)
def test_in_an_onnx_model(dtype: str, tmp_path: Path) -> None:
    infos = [X_INFO, value("s", dtype, [])]
    nodes = [PLAIN, node("Identity", ["s"], ["t"]), node("Relu", ["Y"], ["Z"])]  # for ONNX Runtime
    path = save(tmp_path, model(graph(nodes, infos, ["Z", value("t", dtype, [])], WEIGHTS)))
    feeds = {"X": X, "s": scalar(dtype)}
    session = onegru.InferenceSession(path)
    runs: list[Callable[[Any], Mapping[str, Any]]] = [onegru.load(path).run]
    runs.append(onegru.load(path, engine="reference").run)
    if dtype != "bfloat16":  # ONNX Runtime does not accept its arrays directly
        runs.append(session.model.run)
        runs.append(lambda feeds: dict(zip(("Z", "t"), session.run(["Z", "t"], feeds), strict=True)))
    for run in runs:
        check(run(feeds), feeds["s"])


@pytest.mark.parametrize("is_fixed", (False, True))
@pytest.mark.parametrize("name", NAMES)
def test_in_an_ir(name: str, is_fixed: bool, tmp_path: Path) -> None:
    kind = getattr(openvino.Type, name)
    x = ops.parameter([2, 3, 4] if is_fixed else [-1, -1, 4], np.float32, name="x")
    s = ops.parameter([], kind, name="s")
    t = ops.logical_not(ops.logical_not(s)) if name == "boolean" else ops.relu(s)
    outputs = {"Y": openvino_models.sequence(x, 4).output(0), "t": t.output(0)}
    path = openvino_models.save(tmp_path / "model.xml", outputs, [x, s])
    feeds = {"x": openvino_models.draw(2, 3, 4), "s": scalar(NAMES[name])}
    for options in ({}, {"engine": "reference"}):
        check(onegru.load(path, **options).run(feeds), feeds["s"])  # type: ignore[arg-type]
    core = openvino.Core()
    replaced = core.read_model(path)
    onegru.openvino.replace_grus(replaced)
    given = feeds["s"]
    if name == "bf16":  # OpenVINO does not accept its arrays directly
        given = openvino.Tensor(given.view(np.uint16), openvino.Shape([]), kind)
    found = np.array(core.compile_model(replaced, "CPU")({"x": feeds["x"], "s": given})["t"])
    check({"t": found.view(numpy_type("bfloat16")) if name == "bf16" else found}, feeds["s"])


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_other_runtimes_are_given_them(dtype: str, tmp_path: Path) -> None:
    infos = [X_INFO, value("s", dtype, [])]
    nodes = [PLAIN, node("Identity", ["s"], ["t"])]
    path = save(tmp_path, model(graph(nodes, infos, ["Y", value("t", dtype, [])], WEIGHTS)))
    found = str(onegru.verify(path, inputs={"X": X, "s": scalar(dtype)}))
    assert all(re.search(rf"^{name} .* agrees ", found, re.MULTILINE) for name in ("openvino", "onnxruntime"))


def test_contiguous_keeps_the_shape() -> None:
    assert contiguous(np.float32(3)).shape == () and contiguous(3.0, np.float16).dtype == np.float16
    turned = np.ones((2, 3)).T
    assert contiguous(turned).flags.c_contiguous and contiguous(turned).shape == (3, 2)
    assert contiguous(X) is X


def test_numpys_own_is_not_used() -> None:
    """`onegru.core.dtypes.contiguous` replaces it."""
    users = set()
    for path in (ROOT / "src").rglob("*.py"):
        with path.open("rb") as file:
            if any(token.string == "ascontiguousarray" for token in tokenize.tokenize(file.readline)):
                users.add(path.name)
    assert not users
