"""GRUs that exporters write out, made on the spot: fused, and in agreement with the framework itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.decomposed.keras import CASES as KERAS
from tests.support.machine.processes import run_python
from tests.support.models.fusing import (
    GRUS,
    LOOPS,
    all_nodes,
    by_onegru,
    by_onnxruntime,
    directions,
    error,
    fused,
)

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from tests.support.decomposed.torch import CASES, EXPORTS, export  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
T, B = 5, 3

# The largest error of the exports, all of float32: 4e-7 by onegru, 5e-7 by ONNX Runtime.
BOUND = 2e-6

#: Keras' exporter on torch makes one step of an open number of them.
NOT_BY_TORCH = {"open"}


def check(path: Path, feeds: Mapping[str, Any], expected: list[Any], count: int) -> onnx.ModelProto:
    """A file is fused as a whole, and gives what the framework gave."""
    model, search = fused(onnx.load(path))
    onnx.checker.check_model(model, full_check=True)
    assert not search.near_misses
    assert directions(model) == count
    assert not {node.op_type for node in all_nodes(model.graph)} & set(LOOPS)
    wanted = {output.name: array for output, array in zip(model.graph.output, expected, strict=True)}
    assert error(by_onnxruntime(model, feeds), wanted) <= BOUND
    assert error(by_onegru(model, feeds), wanted) <= BOUND
    return model


@pytest.mark.parametrize(("name", "how"), EXPORTS)
def test_what_torch_exports(name: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    module, inputs = export(name, how, path, T, B)
    with torch.no_grad():
        results = module(*inputs.values())
    expected = [item.numpy() for item in (results if isinstance(results, tuple) else (results,))]
    feeds = {item: value.numpy() for item, value in inputs.items()}
    model = check(path, feeds, expected, len(CASES[name].nodes))
    assert sorted(node.op_type for node in model.graph.node if node.op_type in GRUS) == CASES[name].nodes


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def keras_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder of files that Keras on this backend has exported."""
    backend = str(request.param)
    for package in ("keras", "tensorflow", "tf2onnx") if backend == "tensorflow" else ("keras",):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    folder = tmp_path_factory.mktemp(backend)
    run_python(
        "from tests.support.decomposed.keras import main; main()",
        folder,
        T,
        B,
        environment={
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.fspath(REPOSITORY),
        },
        timeout=600,
    )
    return backend, folder


@pytest.mark.parametrize("name", KERAS)
def test_what_keras_exports(name: str, keras_files: tuple[str, Path]) -> None:
    backend, folder = keras_files
    if backend == "torch" and name in NOT_BY_TORCH:
        pytest.skip("Keras' exporter makes one step of it")
    path = folder / f"{name}.onnx"
    arrays = np.load(path.with_suffix(".npz"))
    inputs = [arrays[item] for item in arrays.files if item.startswith("input")]
    expected = [arrays[item] for item in arrays.files if item.startswith("output")]
    names = [item.name for item in onnx.load(path).graph.input]
    check(path, dict(zip(names, inputs, strict=True)), expected, KERAS[name])
