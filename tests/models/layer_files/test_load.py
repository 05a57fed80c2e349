"""`load_layers` on files that need none of the frameworks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import onegru
from onegru import FormatError, MissingExtraError, SpecError
from tests.support.files.ir_files import write_case
from tests.support.files.onnx_models import H, I, graph, gru, model, save, value, weights
from tests.support.machine.processes import run_python


def onnx_model(tmp_path: Path, names: tuple[str, ...], weight: str = "W") -> Path:
    """GRUs side by side, all on one input."""
    nodes = []
    for index, name in enumerate(names):
        node = gru("X", [f"Y{index}"], W=weight)
        node.name = name
        nodes.append(node)
    inputs = [value("X", shape=[2, 1, I])]
    if weight != "W":
        inputs.append(value(weight, shape=[1, 3 * H, I]))
    outputs = [f"Y{index}" for index in range(len(names))]
    return save(tmp_path, model(graph(nodes, inputs, outputs, weights())))


def test_onnx(tmp_path: Path) -> None:
    path = onnx_model(tmp_path, ("first", "second"))
    layers = onegru.load_layers(path)
    assert list(layers) == ["first", "second"]
    X = np.ones((2, 1, I), np.float32)
    expected = onegru.load(path).run({"X": X})
    for index, layer in enumerate(layers.values()):
        assert isinstance(layer, onegru.GRU)
        np.testing.assert_array_equal(layer(X)[0], expected[f"Y{index}"])
    assert list(onegru.load_layers(path, name="second")) == ["second"]
    with pytest.raises(SpecError, match=r"name: no GRU 'third' in .*; available: 'first', 'second'"):
        onegru.load_layers(path, name="third")
    with pytest.raises(SpecError, match="name: 3; must be a string, or None"):
        onegru.load_layers(path, name=3)  # type: ignore[arg-type]


def test_nodes_of_one_name(tmp_path: Path) -> None:
    path = onnx_model(tmp_path, ("twin", "twin", "twin"))
    assert list(onegru.load_layers(path)) == ["twin", "twin#2", "twin#3"]
    assert len(set(onegru.load_layers(onnx_model(tmp_path, ("", ""))))) == 2


def test_weights_that_are_computed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no GRU with its own weights"):
        onegru.load_layers(onnx_model(tmp_path, ("first",), weight="V"))
    node = gru("X", ["Y"])
    node.op_type = "Identity"
    del node.input[1:], node.attribute[:]
    path = save(tmp_path, model(graph([node], [value("X", shape=[2])], ["Y"], {})))
    with pytest.raises(FormatError, match="no GRU"):
        onegru.load_layers(path)


def test_openvino(tmp_path: Path) -> None:
    inputs = {
        "X": np.ones((1, I), np.float32),
        "initial_hidden_state": np.zeros((1, H), np.float32),
        **{name: array[0] for name, array in weights().items() if name != "B"},
    }
    path = write_case(tmp_path / "cell.xml", "gru_cell", dict(inputs), {"hidden_size": H})
    (layer,) = onegru.load_layers(path).values()
    assert isinstance(layer, onegru.GRU)
    np.testing.assert_array_equal(layer.weights.W, weights()["W"])


@pytest.mark.parametrize("file", ["x.onnx", "x.pt", "x.safetensors", "x.keras", "x.h5"])
def test_files_that_cannot_be_opened(tmp_path: Path, file: str) -> None:
    with pytest.raises(FileNotFoundError):
        onegru.load_layers(tmp_path / file)
    (tmp_path / file).mkdir()
    with pytest.raises(IsADirectoryError):
        onegru.load_layers(tmp_path / file)


@pytest.mark.parametrize(
    ("file", "package", "extra"),
    [
        ("x.safetensors", "safetensors", "safetensors"),
        ("x.keras", "h5py", "keras-files"),
        ("x.h5", "h5py", "keras-files"),
    ],
)
def test_missing_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / file).write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'onegru\[{extra}\]'"):
        onegru.load_layers(tmp_path / file)


def test_import_takes_no_framework() -> None:
    code = (
        "import sys, onegru; print({'torch', 'keras', 'flax', 'jax', 'h5py', 'zipfile'} & sys.modules.keys())"
    )
    assert run_python(code).stdout.strip() == "set()"
