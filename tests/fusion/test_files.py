"""Small files as exporters write them (`make_files.py`): each becomes GRU nodes, and computes what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.models.fusing import GRUS, LOOPS, Array, check_fused, directions, kinds

pytest.importorskip("onnxruntime")

FILES = sorted((Path(__file__).parent / "files").glob("*.onnx"))

# The largest error over the files: 4e-7 for each of ONNX Runtime and onegru.
BOUND = 2e-6

#: How many GRUs of one direction a file has, where it is not one.
COUNTS = dict.fromkeys(
    ("keras_bidirectional", "keras_bidirectional_last", "keras_masked_bidirectional", "keras_two"), 2
)
#: How many nodes there are at most, each GRU with what leads to it and away from it.
MOST_NODES = 30


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in model.graph.input:
        shape = [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        found[value.name] = array
    return found


def test_there_are_files_of_each_exporter() -> None:
    names = {path.stem for path in FILES}
    assert len(names) > 30
    assert {name.partition("_")[0] for name in names} == {"keras", "torch"}
    assert all(path.stat().st_size < 20_000 for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_are_fused(path: Path) -> None:
    model = onnx.load(path)
    assert path.stem.startswith("torch_interest") or not set(kinds(model)) & set(GRUS)
    given = feeds(model, len(path.stem))
    if path.stem.startswith("keras_masked"):
        name = model.graph.input[0].name
        given[name][np.random.default_rng(1).random(given[name].shape[:2]) < 0.3] = 0.0
    found, search = check_fused(model, given, BOUND)
    assert not search.near_misses
    assert directions(found) == COUNTS.get(path.stem, 2 if "interest" in path.stem else 1)
    assert not set(kinds(found)) & set(LOOPS)
    wanted = 1 if path.stem.startswith(("torch_attention", "torch_interest")) else 0
    assert kinds(found).count("AUGRU") == wanted
    assert len(found.graph.node) < min(MOST_NODES, len(kinds(model)))
