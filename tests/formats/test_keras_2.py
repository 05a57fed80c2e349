"""What Keras 2 saved, in the layouts of its versions, against a plain loop of the layer's equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.core.dtypes import Array
from onegru.models.layer_files.select import read_source
from tests.support.files.keras_files import H, I, arrays, entry, model, write_archive, write_h5

Function = Callable[[Array], Array]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def hard_sigmoid(x: Array) -> Array:
    """Of Keras 2; that of Keras 3 is clip(x / 6 + 0.5, 0, 1)."""
    return np.clip(0.2 * x + 0.5, 0, 1)


def loop(weights: Sequence[Array], X: Array, f: Function, *, reset_after: bool) -> Array:
    """[B, T, H]: the equation of GRUCell.call."""
    kernel, recurrent, bias = (array.astype(np.float64) for array in (*weights, np.zeros((2, 3 * H)))[:3])
    h, outputs = np.zeros((len(X), H)), []
    input_bias, recurrent_bias = bias if bias.ndim == 2 else (bias, np.zeros(3 * H))
    for t in range(X.shape[1]):
        x_z, x_r, x_h = np.split(X[:, t] @ kernel + input_bias, 3, axis=1)
        h_z, h_r, h_h = np.split(h @ recurrent + recurrent_bias, 3, axis=1)
        z, r = f(x_z + h_z), f(x_r + h_r)
        candidate = np.tanh(x_h + (r * h_h if reset_after else (r * h) @ recurrent[:, 2 * H :]))
        h = z * h + (1 - z) * candidate
        outputs.append(h)
    return np.stack(outputs, 1)


X = np.random.default_rng(9).standard_normal((2, 7, I)).astype(np.float32) * 3


def expect(layer: object, *expected: Array) -> None:
    """The layer's directions compute this; the backward one's steps in the order of time."""
    assert isinstance(layer, onegru.GRU)
    Y, _ = layer(X, layout=1)
    assert Y.shape[2] == len(expected)
    for index, array in enumerate(expected):
        assert np.abs(Y[:, :, index] - array).max() < 2e-6


def named(path: str, weights: Sequence[Array]) -> list[tuple[str, Array]]:
    names = ("kernel", "recurrent_kernel", "bias")[: len(weights)]
    return [(f"{path}/{name}:0", array) for name, array in zip(names, weights, strict=True)]


@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("reset_after", [False, True])
def test_2_1(tmp_path: Path, reset_after: bool, as_bytes: bool) -> None:
    """A Sequential's configuration is a list, and texts are bytes."""
    weights = arrays(reset_after=reset_after)
    gru = entry(
        batch_input_shape=[None, 7, I],
        recurrent_activation="hard_sigmoid",
        implementation=1,
        reset_after=reset_after,
        stateful=False,
    )
    config = {"class_name": "Sequential", "config": [gru, entry("dense_1", "Dense", units=1)]}
    tensors = {"gru_1": named("gru_1", weights), "dense_1": []}
    path = write_h5(tmp_path / "x.h5", config, tensors, "2.1.6", as_bytes=as_bytes)
    expect(onegru.load_layers(path)["gru_1"], loop(weights, X, hard_sigmoid, reset_after=reset_after))


def test_2_1_without_its_defaults(tmp_path: Path) -> None:
    weights = arrays(reset_after=False, bias=False)
    path = write_h5(
        tmp_path / "x.h5", model(entry(use_bias=False)), {"gru_1": named("gru_1", weights)}, "2.1.6"
    )
    expect(onegru.load_layers(path)["gru_1"], loop(weights, X, hard_sigmoid, reset_after=False))


def test_2_3(tmp_path: Path) -> None:
    """Both directions in a Model, and sigmoid where nothing is said."""
    forward, backward = arrays(0, reset_after=False), arrays(1, reset_after=False)
    both = entry("bidirectional_1", "Bidirectional", layer=entry("gru_1", implementation=2))
    tensors = named("bidirectional_1/forward_gru_1", forward) + named(
        "bidirectional_1/backward_gru_1", backward
    )
    config = model(entry("input_1", "InputLayer"), both, kind="Model")
    path = write_h5(
        tmp_path / "x.h5", config, {"input_1": [], "bidirectional_1": tensors}, "2.3.1", as_bytes=True
    )
    expect(
        onegru.load_layers(path)["bidirectional_1"],
        loop(forward, X, sigmoid, reset_after=False),
        loop(backward, X[:, ::-1], sigmoid, reset_after=False)[:, ::-1],
    )


def cudnn_loop(weights: Sequence[Array], X: Array) -> Array:
    """What cuDNN computes of the buffer that CuDNNGRU hands it: matrices [H, I] and [H, H], row after row."""
    kernel, recurrent, bias = (array.astype(np.float64) for array in weights)
    W = [np.ascontiguousarray(part).ravel().reshape(H, I) for part in np.split(kernel, 3, axis=1)]
    R = [np.ascontiguousarray(part).ravel().reshape(H, H) for part in np.split(recurrent, 3, axis=1)]
    b = np.split(bias, 6)
    h, outputs = np.zeros((len(X), H)), []
    for t in range(X.shape[1]):
        x = [X[:, t] @ W[k].T + b[k] for k in range(3)]
        y = [h @ R[k].T + b[3 + k] for k in range(3)]
        z, r = sigmoid(x[0] + y[0]), sigmoid(x[1] + y[1])
        h = z * h + (1 - z) * np.tanh(x[2] + r * y[2])
        outputs.append(h)
    return np.stack(outputs, 1)


def test_cudnn(tmp_path: Path) -> None:
    kernel, recurrent, bias = arrays()
    weights = [kernel, recurrent, bias.ravel()]
    gru = entry("cu_dnngru_1", "CuDNNGRU")
    config, tensors = model(gru), {"cu_dnngru_1": named("cu_dnngru_1", weights)}
    path = write_h5(tmp_path / "x.h5", config, tensors, "2.2.4-tf")
    expect(onegru.load_layers(path)["cu_dnngru_1"], cudnn_loop(weights, X))
    for wrong in ([kernel, recurrent, bias.ravel()[:-1]], [kernel.T, recurrent, bias.ravel()]):
        path = write_h5(tmp_path / "x.h5", config, {"cu_dnngru_1": named("cu_dnngru_1", wrong)}, "2.2.4-tf")
        with pytest.raises(SpecError, match="cu_dnngru_1: "):
            onegru.load_layers(path)


@pytest.mark.parametrize("version", ["2.2.4-tf", "2.4.0", "2.11.0", "2.13.1"])
def test_tensorflow_2(tmp_path: Path, version: str) -> None:
    """Time may come first, which is the caller's to know; the names of weights may be many."""
    weights = arrays()
    gru = entry("gru", recurrent_activation="sigmoid", reset_after=True, time_major=True)
    path = write_h5(
        tmp_path / "x.h5",
        model(gru, kind="Functional"),
        {"gru": named("gru/gru_cell", weights)},
        version,
        chunks=2,
    )
    expect(onegru.load_layers(path)["gru"], loop(weights, X, sigmoid, reset_after=True))


def test_2_11_nested(tmp_path: Path) -> None:
    """A model's group lists the weights of all its layers, whose names do not hold the model's."""
    outer, first, second = arrays(0), arrays(1), arrays(2)
    facts: dict[str, Any] = {"recurrent_activation": "hard_sigmoid", "reset_after": True}
    inner = {
        **model(entry("a", **facts), entry("b", **facts), kind="Functional", name="inner"),
        "name": "inner",
    }
    config = model(entry("gru", **facts), inner, kind="Functional")
    tensors = {
        "gru": named("gru/gru_cell", outer),
        "inner": named("a/gru_cell_1", first) + named("b/gru_cell_2", second),
    }
    layers = onegru.load_layers(write_h5(tmp_path / "x.h5", config, tensors, "2.11.0"))
    assert list(layers) == ["gru", "inner/a", "inner/b"]
    for layer, weights in zip(layers.values(), (outer, first, second), strict=True):
        expect(layer, loop(weights, X, hard_sigmoid, reset_after=True))


@pytest.mark.parametrize("group", ["model_weights", "/"])
def test_where_weights_lie(tmp_path: Path, group: str) -> None:
    weights = arrays(reset_after=False)
    path = write_h5(
        tmp_path / "x.h5", model(entry()), {"gru_1": named("gru_1", weights)}, "2.3.0", group=group
    )
    expect(onegru.load_layers(path)["gru_1"], loop(weights, X, sigmoid, reset_after=False))


@pytest.mark.parametrize("separator", ["/", "\\"])
@pytest.mark.parametrize("container", ["_layer_checkpoint_dependencies", "layers"])
def test_2_13_archives(tmp_path: Path, container: str, separator: str) -> None:
    """Groups go by class, and are numbered with gaps; those of Windows are one name each."""
    facts: dict[str, Any] = {"recurrent_activation": "sigmoid", "reset_after": True}
    each = [arrays(seed) for seed in range(5)]
    inner = model(entry("deep", **facts), kind="Functional", name="inner")
    both = entry("both", "Bidirectional", layer=entry("x", **facts))
    config = model(entry("late", **facts), entry("early", **facts), both, inner, kind="Functional")
    groups = {
        "gru": [],
        "gru/cell": each[0],
        "gru_2": [],
        "gru_2/cell": each[1],
        "bidirectional/forward_layer/cell": each[2],
        "bidirectional/backward_layer/cell": each[3],
        f"functional/{container}/gru/cell": each[4],
    }
    groups = {f"{container}/{path}".replace("/", separator): items for path, items in groups.items()}
    layers = onegru.load_layers(write_archive(tmp_path / "x.keras", config, groups, "2.13.1"))
    assert list(layers) == ["late", "early", "both", "inner/deep"]
    expected = [loop(weights, X, sigmoid, reset_after=True) for weights in each]
    expect(layers["late"], expected[0])
    expect(layers["early"], expected[1])
    expect(layers["both"], expected[2], loop(each[3], X[:, ::-1], sigmoid, reset_after=True)[:, ::-1])
    expect(layers["inner/deep"], expected[4])
    del groups[next(iter(groups))], groups[f"{container}/gru/cell".replace("/", separator)]
    with pytest.raises(FormatError, match="weights of 1 layers of class GRU; must be 2"):
        onegru.load_layers(write_archive(tmp_path / "x.keras", config, groups, "2.13.1"))


def test_hard_sigmoid_is_another_in_keras_3(tmp_path: Path) -> None:
    weights = arrays()
    gru = entry("gru", recurrent_activation="hard_sigmoid", reset_after=True)
    path = write_h5(tmp_path / "x.h5", model(gru), {"gru": named("gru/gru_cell", weights)}, "3.0.5")

    def three(x: Array) -> Array:
        return np.clip(x / 6 + 0.5, 0, 1)

    expect(onegru.load_layers(path)["gru"], loop(weights, X, three, reset_after=True))


@pytest.mark.parametrize("alpha", [0.3, 0.25])
def test_activation_layers(tmp_path: Path, alpha: float) -> None:
    leaky = {"class_name": "LeakyReLU", "config": {"name": "leaky", "alpha": alpha}}
    gru = entry(activation=leaky, recurrent_activation="sigmoid", reset_after=True)
    path = write_h5(tmp_path / "x.h5", model(gru), {"gru_1": named("gru/gru_cell", arrays())}, "2.9.0")
    layer = onegru.load_layers(path)["gru_1"]
    assert isinstance(layer, onegru.GRU)
    assert str(layer.spec.activations[0][1]) == f"LeakyRelu({alpha:g})"


# ---- versions


def untold(tmp_path: Path) -> tuple[Path, list[Array]]:
    weights = arrays(reset_after=False)
    path = write_h5(
        tmp_path / "x.h5",
        model(entry(recurrent_activation="hard_sigmoid")),
        {"gru_1": named("g", weights)},
        None,
    )
    return path, weights


@pytest.mark.long
def test_a_version_that_is_not_stored(tmp_path: Path) -> None:
    path, weights = untold(tmp_path)
    with pytest.raises(SpecError, match=r"keras_version: missing; must be given, such as '2\.3', .*x\.h5"):
        onegru.load_layers(path)
    for version in ("2.3", "2.1.6", "2"):
        layer = onegru.load_layers(path, keras_version=version)["gru_1"]
        expect(layer, loop(weights, X, hard_sigmoid, reset_after=False))
        expect(read_source(path, (), version), loop(weights, X, hard_sigmoid, reset_after=False))
    for wrong in ("1.2", "4", "", "two", "2.x"):
        with pytest.raises(SpecError, match=f"keras_version: {wrong!r}; must be Keras 2 or 3"):
            onegru.load_layers(path, keras_version=wrong)
    with pytest.raises(SpecError, match=r"keras_version: 2\.3; must be a string"):
        onegru.load_layers(path, keras_version=2.3)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_version_that_is_stored_otherwise(tmp_path: Path) -> None:
    weights = arrays(reset_after=False)
    path = write_h5(tmp_path / "x.h5", model(entry()), {"gru_1": named("gru_1", weights)}, "2.3.1")
    for version in ("2", "2.3", "2.3.1"):
        assert onegru.load_layers(path, keras_version=version)
    for version in ("3", "2.30", "2.1"):
        with pytest.raises(SpecError, match=rf"keras_version: '{version}'; must be '2\.3\.1', as "):
            onegru.load_layers(path, keras_version=version)
    onegru.save_layers(onegru.load_layers(path)["gru_1"], tmp_path / "x.onnx")
    with pytest.raises(
        SpecError, match=r"keras_version: '2'; must be None, because .*x\.onnx is an ONNX model"
    ):
        onegru.load_layers(tmp_path / "x.onnx", keras_version="2")


@pytest.mark.parametrize("version", ["1.2.2", "0.3", "4.0", "two", "2x"])
def test_versions_that_are_not_known(tmp_path: Path, version: str) -> None:
    path = write_h5(tmp_path / "x.h5", model(entry()), {"gru_1": named("gru_1", arrays())}, version)
    with pytest.raises(FormatError, match=f"keras_version {version!r}; must be 2 or 3"):
        onegru.load_layers(path)


def test_what_tensorflow_leaves_unsaid(tmp_path: Path) -> None:
    """The version 2.2.4-tf is of TensorFlow 1 and of 2, with other defaults."""
    for reset_after in (False, True):
        weights, gru = arrays(reset_after=reset_after), entry(recurrent_activation="sigmoid")
        path = write_h5(tmp_path / "x.h5", model(gru), {"gru_1": named("gru_1", weights)}, "2.2.4-tf")
        expect(onegru.load_layers(path)["gru_1"], loop(weights, X, sigmoid, reset_after=reset_after))
        path = write_h5(tmp_path / "x.h5", model(entry()), {"gru_1": named("gru_1", weights)}, "2.2.4-tf")
        with pytest.raises(SpecError, match="recurrent_activation: missing"):
            onegru.load_layers(path)
    gru = entry(recurrent_activation="sigmoid", use_bias=False)
    path = write_h5(tmp_path / "x.h5", model(gru), {"gru_1": named("gru_1", arrays(bias=False))}, "2.2.4-tf")
    with pytest.raises(
        SpecError, match="reset_after: missing; it cannot be inferred from arrays without biases"
    ):
        onegru.load_layers(path)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = pytest.importorskip("onegru.cli.app")
    path, _ = untold(tmp_path)
    target = tmp_path / "x.onnx"
    monkeypatch.setattr(
        "sys.argv", ["onegru", "convert", str(path), str(target), "--keras-version", "2.1", "--json"]
    )
    assert app.run() == 0 and onegru.load_layers(target)
    monkeypatch.setattr("sys.argv", ["onegru", "convert", str(target), str(path), "--keras-version", "2.1"])
    assert app.run() == 2
