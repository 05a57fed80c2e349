"""Keras's forms against Keras itself."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, MissingExtraError, SpecError
from tests.support.framework_cases import (
    TOLERANCES,
    H,
    I,
    draw,
    largest_difference,
    layer,
    run,
    same_weights,
    stack,
)

os.environ.setdefault("KERAS_BACKEND", "torch")
torch = pytest.importorskip("torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("needs Keras with torch as its backend", allow_module_level=True)


def build(made: Any, dtype: str = "float32", seed: int = 0) -> Any:
    """A layer with random weights."""
    made.build((None, None, I) if not isinstance(made, keras.layers.GRUCell) else (None, I))
    for index, variable in enumerate(made.weights):
        variable.assign(draw(variable.shape, dtype, seed + index) * 0.6)
    return made


def gru(units: int = H, **options: Any) -> Any:
    return keras.layers.GRU(units, **{"return_sequences": True, **options})


def outputs(model: Any, X: Any) -> Any:
    with torch.no_grad():
        return keras.ops.convert_to_numpy(model(torch.from_numpy(X)))  # NumPy's would be made float32


def train(model: Any, dtype: str) -> None:
    """A few steps towards outputs that follow the input's running mean."""
    x = torch.from_numpy(draw((8, 6, I), dtype))
    optimizer = torch.optim.Adam([variable.value for variable in model.trainable_variables], lr=0.05)
    for _ in range(12):
        optimizer.zero_grad()
        y = model(x)
        ((y - torch.cumsum(x, 1).mean(-1, keepdim=True) / 6) ** 2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("trained", [False, True], ids=["random", "trained"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("reset_after", [True, False], ids=["after", "before"])
def test_there_and_back(
    reset_after: bool, bidirectional: bool, use_bias: bool, dtype: str, trained: bool
) -> None:
    made = gru(reset_after=reset_after, use_bias=use_bias, dtype=dtype)
    if bidirectional:
        made = keras.layers.Bidirectional(made, dtype=dtype)
    build(made, dtype)
    if trained:
        before = [np.copy(keras.ops.convert_to_numpy(variable)) for variable in made.weights]
        train(made, dtype)
        after = [keras.ops.convert_to_numpy(variable) for variable in made.weights]
        assert all(np.abs(a - b).max() > 0.05 for a, b in zip(before, after, strict=True))
    X = draw((2, 7, I), dtype, 5)
    expected = outputs(made, X)
    source = onegru.from_keras(made)
    assert isinstance(source, onegru.GRU)
    assert (source.spec.linear_before_reset, source.spec.dtype) == (reset_after, dtype)
    # Only what Keras hands to torch whole is computed in float64 throughout; its own loop rounds to float32.
    tolerance = TOLERANCES[dtype if reset_after and use_bias and not bidirectional else "float32"]
    assert largest_difference(run(source, X), expected) <= tolerance
    back = onegru.to_keras(source)
    assert type(back) is type(made) and back.variable_dtype == dtype
    assert largest_difference(outputs(back, X), expected) <= tolerance
    arrays = made.get_weights()
    again = onegru.from_keras(arrays, reset_after=reset_after, bidirectional=bidirectional)
    assert isinstance(again, onegru.GRU) and same_weights(again, source)


@pytest.mark.parametrize("linear_before_reset", [True, False])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_stacks(direction: str, count: int, linear_before_reset: bool) -> None:
    source = stack(direction, count, linear_before_reset)
    model = onegru.to_keras(source)
    assert isinstance(model, keras.Sequential) and len(model.layers) == count
    X = draw((2, 7, I), seed=5)
    assert largest_difference(run(source, X), outputs(model, X)) <= 1e-6
    assert largest_difference(run(onegru.from_keras(model), X), outputs(model, X)) <= 1e-6
    last = onegru.to_keras(source, return_sequences=False)
    Y_h = source(X, layout=1)[1][-1].reshape(2, -1)
    assert largest_difference(Y_h, outputs(last, X)) <= 1e-6


NAMES = (
    "celu",
    "elu",
    "hard_sigmoid",
    "leaky_relu",
    "linear",
    "relu",
    "sigmoid",
    "softplus",
    "softsign",
    "sparse_sigmoid",
    "tanh",
)

ACTIVATIONS: dict[str, Callable[[], Any]] = {
    **{name: partial(str, name) for name in NAMES},
    "None": lambda: None,
    "LeakyReLU(0.3)": lambda: keras.layers.LeakyReLU(0.3),
    "ELU(0.7)": lambda: keras.layers.ELU(0.7),
    "ReLU": lambda: keras.layers.ReLU(),
    "ReLU(slope)": lambda: keras.layers.ReLU(negative_slope=0.1),
}


@pytest.mark.parametrize("argument", ["activation", "recurrent_activation"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, argument: str) -> None:
    made = build(gru(**{argument: ACTIVATIONS[name]()}))
    X = draw((2, 7, I), seed=5) * np.float32(0.5)
    expected = outputs(made, X)
    scale = max(1.0, float(np.abs(expected).max()))  # some functions are not bounded
    source = onegru.from_keras(made)
    assert largest_difference(run(source, X), expected) <= 2e-6 * scale
    assert largest_difference(outputs(onegru.to_keras(source), X), expected) <= 2e-6 * scale


def own_tanh(x: Any) -> Any:
    return keras.ops.tanh(x) * 2


def test_activations_that_onegru_does_not_have() -> None:
    for name in ("gelu", "relu6", "silu", "selu", "hard_tanh", "softmax", "exponential"):
        with pytest.raises(SpecError, match=f"activation: '{name}'; not supported as Keras computes it"):
            onegru.from_keras(build(gru(activation=name)))
    own_tanh.__name__ = "tanh"  # goes by a name that means another function
    with pytest.raises(SpecError, match="'tanh', a custom function"):
        onegru.from_keras(build(gru(activation=own_tanh)))
    with pytest.raises(SpecError, match=r"ReLU with max_value 2"):
        onegru.from_keras(build(gru(activation=keras.layers.ReLU(max_value=2.0))))
    with pytest.raises(SpecError, match="'Softmax'; must be an activation that onegru supports"):
        onegru.from_keras(build(gru(activation=keras.layers.Softmax())))


def test_cells() -> None:
    X = draw((2, 7, I), seed=5)
    cell = build(keras.layers.GRUCell(H, reset_after=False))
    made = onegru.from_keras(cell)
    assert isinstance(made, onegru.GRU)
    h = draw((2, H), seed=1)
    expected = keras.ops.convert_to_numpy(cell(X[:, 0], h)[0].detach())
    assert largest_difference(made(X[:, :1], h[:, None], layout=1)[1][:, 0], expected) <= 1e-6

    rnn = build(keras.layers.RNN(keras.layers.GRUCell(H), return_sequences=True))
    assert largest_difference(run(onegru.from_keras(rnn), X), outputs(rnn, X)) <= 1e-6

    both = keras.layers.Bidirectional(keras.layers.RNN(keras.layers.GRUCell(H), return_sequences=True))
    build(both)
    assert largest_difference(run(onegru.from_keras(both), X), outputs(both, X)) <= 1e-6

    cells = [keras.layers.GRUCell(5), keras.layers.GRUCell(2, reset_after=False, use_bias=False)]
    rnn = build(keras.layers.RNN(cells, return_sequences=True))
    made = onegru.from_keras(rnn)
    assert isinstance(made, onegru.Stack) and len(made) == 2
    assert largest_difference(run(made, X), outputs(rnn, X)) <= 1e-6


def test_go_backwards() -> None:
    X = draw((2, 7, I), seed=5)
    made = build(gru(go_backwards=True, return_sequences=False))
    source = onegru.from_keras(made)
    assert isinstance(source, onegru.GRU) and source.spec.direction == "reverse"
    expected = outputs(made, X)
    assert largest_difference(source(X, layout=1)[1][:, 0], expected) <= 1e-6
    back = onegru.to_keras(source, return_sequences=False)
    assert back.go_backwards and largest_difference(outputs(back, X), expected) <= 1e-6
    with pytest.raises(SpecError, match="go_backwards: True, with return_sequences"):
        onegru.from_keras(build(gru(go_backwards=True)))
    with pytest.raises(SpecError, match="direction: 'reverse'"):
        onegru.to_keras(source)


def test_dropout_is_for_training() -> None:
    X = draw((2, 7, I), seed=5)
    made = build(gru(dropout=0.5, recurrent_dropout=0.5))
    assert largest_difference(run(onegru.from_keras(made), X), outputs(made, X)) <= 1e-6


def test_return_state() -> None:
    source = layer("bidirectional")
    X = draw((2, 7, I), seed=5)
    y, *states = onegru.to_keras(source, return_state=True)(torch.from_numpy(X))
    Y, Y_h = source(X, layout=1)
    assert largest_difference(Y.reshape(2, 7, -1), y.detach().numpy()) <= 1e-6
    for index, state in enumerate(states):
        assert largest_difference(Y_h[:, index], state.detach().numpy()) <= 1e-6
    with pytest.raises(SpecError, match="return_state"):
        onegru.to_keras(stack("forward", 2), return_state=True)


def test_bidirectional_that_is_another_function() -> None:
    for mode in ("sum", "mul", "ave", None):
        with pytest.raises(SpecError, match="merge_mode"):
            onegru.from_keras(build(keras.layers.Bidirectional(gru(), merge_mode=mode)))
    mixed = keras.layers.Bidirectional(gru(), backward_layer=gru(go_backwards=True, reset_after=False))
    with pytest.raises(SpecError, match="reset_after: True in one direction"):
        onegru.from_keras(build(mixed))
    turned = keras.layers.Bidirectional(gru(go_backwards=True), backward_layer=gru())
    with pytest.raises(SpecError, match="go_backwards"):
        onegru.from_keras(build(turned))
    unlike = keras.layers.Bidirectional(gru(), backward_layer=gru(H + 1, go_backwards=True))
    with pytest.raises(SpecError, match="must be the same in both directions"):
        onegru.from_keras(build(unlike))
    cells = [keras.layers.GRUCell(4), keras.layers.GRUCell(4)]
    deep = keras.layers.Bidirectional(keras.layers.RNN(cells, return_sequences=True))
    with pytest.raises(SpecError, match="several cells in one direction"):
        onegru.from_keras(build(deep))


def test_directions_with_activations_of_their_own() -> None:
    made = keras.layers.Bidirectional(gru(), backward_layer=gru(go_backwards=True, activation="softsign"))
    build(made)
    X = draw((2, 7, I), seed=5)
    source = onegru.from_keras(made)
    assert largest_difference(run(source, X), outputs(made, X)) <= 1e-6
    assert largest_difference(outputs(onegru.to_keras(source), X), outputs(made, X)) <= 1e-6


def test_other_layers() -> None:
    base = keras.layers.GRU
    own = type("Own", (base,), {"call": lambda self, x, **options: 2 * base.call(self, x, **options)})
    with pytest.raises(SpecError, match="a layer of class 'Own'"):
        onegru.from_keras(build(own(H)))
    with pytest.raises(SpecError, match="a layer of class 'LSTM'"):
        onegru.from_keras(build(keras.layers.LSTM(H)))
    with pytest.raises(SpecError, match="a LSTMCell; must be a GRUCell"):
        onegru.from_keras(build(keras.layers.RNN(keras.layers.LSTMCell(H))))
    with pytest.raises(SpecError, match="not built, so it has no weights"):
        onegru.from_keras(keras.layers.GRU(H))
    with pytest.raises(SpecError, match="source: int; must be a Keras layer"):
        onegru.from_keras(3)
    with pytest.raises(SpecError, match="reset_after: True; must be None for a layer, which specifies"):
        onegru.from_keras(build(gru()), reset_after=True)


def model_of_many() -> Any:
    x = keras.Input((None, I))
    encoded = gru(name="encoder")(x)
    both = keras.layers.Bidirectional(gru(5, reset_after=False, return_sequences=False), name="both")(encoded)
    cells = [keras.layers.GRUCell(4), keras.layers.GRUCell(2)]
    stacked = keras.layers.RNN(keras.layers.StackedRNNCells(cells), name="stacked")(x)
    inner = keras.Sequential([gru(3, return_sequences=False, name="deep")], name="inner")(x)
    lstm = keras.layers.LSTM(3, name="lstm")(x)
    head = keras.layers.Dense(2, name="head")(both)
    model = keras.Model(x, [both, stacked, inner, lstm, head])
    for index, variable in enumerate(model.weights):
        variable.assign(draw(variable.shape, seed=index) * 0.5)
    return model


def expect_many(layers: dict[str, Any], model: Any) -> None:
    X = draw((2, 7, I), seed=5)
    both, stacked, inner, *_ = (keras.ops.convert_to_numpy(y.detach()) for y in model(X))
    encoded = run(layers["encoder"], X)
    assert largest_difference(layers["both"](encoded, layout=1)[1].reshape(2, -1), both) <= 1e-6
    assert largest_difference(layers["stacked"](X, layout=1)[1][-1][:, 0], stacked) <= 1e-6
    assert largest_difference(layers["inner/deep"](X, layout=1)[1][:, 0], inner) <= 1e-6


def test_model_of_many() -> None:
    model = model_of_many()
    with pytest.raises(SpecError, match=r"name: missing; .*'encoder', 'both', 'stacked', 'deep'$"):
        onegru.from_keras(model)
    with pytest.raises(SpecError, match="name: 0 layers are called 'lstm'"):
        onegru.from_keras(model, name="lstm")
    names = {"encoder": "encoder", "both": "both", "stacked": "stacked", "inner/deep": "deep"}
    expect_many({key: onegru.from_keras(model, name=name) for key, name in names.items()}, model)


class Wrapped(keras.layers.Layer):  # type: ignore[misc,name-defined]
    """A custom layer with a GRU inside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = gru(I)

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], I)


class Derived(keras.layers.GRU):  # type: ignore[misc,name-defined]
    """A custom class, which may compute anything."""


@pytest.mark.parametrize(
    ("holder", "shape"),
    [
        (lambda: keras.layers.TimeDistributed(gru(3, return_sequences=False), name="holder"), (4, 7, I)),
        (lambda: Wrapped(name="holder"), (7, I)),
        (lambda: Derived(3, return_sequences=True, name="holder"), (7, I)),
    ],
    ids=["TimeDistributed", "Wrapped", "Derived"],
)
def test_a_model_whose_other_grus_are_not_read(holder: Callable[[], Any], shape: tuple[int, ...]) -> None:
    model = keras.Sequential([keras.Input(shape), holder(), gru(H, name="own")])
    with pytest.raises(SpecError, match=r"name: missing; must be .* 'own', because GRUs inside 'holder' \("):
        onegru.from_keras(model)
    assert isinstance(onegru.from_keras(model, name="own"), onegru.GRU)
    with pytest.raises(SpecError, match=r"contains no layer of .*; GRUs inside 'holder' \(.*pass such a GRU"):
        onegru.from_keras(keras.Sequential([keras.Input(shape), holder()]))


@pytest.mark.parametrize("file", ["model.keras", "model.h5"])
def test_saved_models(tmp_path: Path, file: str) -> None:
    pytest.importorskip("h5py")
    model = model_of_many()
    model.save(tmp_path / file)
    layers = onegru.load_layers(tmp_path / file)
    assert list(layers) == ["encoder", "both", "stacked", "inner/deep"]
    expect_many(layers, model)
    (single,) = onegru.load_layers(tmp_path / file, name="both").values()
    source = onegru.from_keras(model, name="both")
    assert isinstance(single, onegru.GRU) and isinstance(source, onegru.GRU) and same_weights(single, source)
    with pytest.raises(SpecError, match="name: 'head'"):
        onegru.load_layers(tmp_path / file, name="head")


def test_saved_bfloat16(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = (draw(shape).astype(ml_dtypes.bfloat16) for shape in ((1, 12, 3), (1, 12, 4), (1, 24)))
    source = onegru.GRU(*weights, linear_before_reset=True)
    model = keras.Sequential([keras.Input((None, I), dtype="bfloat16"), onegru.to_keras(source)])
    model.save(tmp_path / "x.keras")
    (read,) = onegru.load_layers(tmp_path / "x.keras").values()
    assert isinstance(read, onegru.GRU) and same_weights(read, source)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None], name: str = "config.json") -> Path:
    """A copy of an archive with one of its JSON texts changed."""
    new = path.with_name("changed.keras")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w") as archive:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == name:
                content = json.loads(data)
                change(content)
                data = json.dumps(content).encode()
            archive.writestr(info, data)
    return new


def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.keras"
    keras.Sequential([keras.Input((None, I)), gru(name="gru")]).save(path)
    return path


def test_saved_models_that_are_broken(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = small(tmp_path)
    whole = path.read_bytes()
    for file in ("bad.keras", "bad.h5"):
        for data in (b"", b"nonsense", b"PK\3\4", whole[: len(whole) // 2]):
            (tmp_path / file).write_bytes(data)
            with pytest.raises(FormatError, match=file):
                onegru.load_layers(tmp_path / file)

    def set_version(metadata: dict[str, Any]) -> None:
        metadata["keras_version"] = "1.2.0"

    with pytest.raises(FormatError, match=r"keras_version '1.2.0'; must be 2 or 3"):
        onegru.load_layers(rewritten(path, set_version, "metadata.json"))

    def set_gru(**changes: Any) -> Callable[[dict[str, Any]], None]:
        def change(model: dict[str, Any]) -> None:
            model["config"]["layers"][1]["config"] |= changes

        return change

    for changes, message in (
        ({"units": 9}, "units: 9; must be 4"),
        ({"units": None}, "units: None"),
        ({"reset_after": False}, "reset_after: False; must be True"),
        ({"use_bias": False}, "1 array too many"),
        ({"use_bias": "no"}, "use_bias: 'no'; must be True or False"),
        ({"activation": {"class_name": "Lambda", "config": "code"}}, "'Lambda'; must be an activation"),
        ({"activation": ["tanh"]}, "not supported as Keras computes it"),
        ({"name": "other"}, "weights of 0 layers called 'other'"),
    ):
        with pytest.raises((SpecError, FormatError), match=message):
            onegru.load_layers(rewritten(path, set_gru(**changes)))

    def set_class(model: dict[str, Any]) -> None:
        model["config"]["layers"][1] |= {"module": "__main__", "registered_name": "GRU"}

    with pytest.raises(FormatError, match="no GRU"):
        onegru.load_layers(rewritten(path, set_class))

    keras.Sequential([keras.Input((None, I)), gru()]).save_weights(tmp_path / "only.weights.h5")
    with pytest.raises(FormatError, match="weights only"):
        onegru.load_layers(tmp_path / "only.weights.h5")
    keras.Sequential([keras.Input((I,)), keras.layers.Dense(2)]).save(tmp_path / "none.keras")
    with pytest.raises(FormatError, match="no GRU"):
        onegru.load_layers(tmp_path / "none.keras")
    assert h5py


def test_saved_models_read_nothing_beyond_the_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    keras.Sequential([keras.Input((None, I)), gru(name="gru")]).save(path)
    with h5py.File(path) as file:
        kernel = f"model_weights/gru/{file['model_weights/gru'].attrs['weight_names'][0]}"
    assert kernel.endswith("gru_cell/kernel")
    whole = path.read_bytes()
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = draw((I, 3 * H))

    def link(file: Any) -> None:
        file[kernel] = h5py.ExternalLink("secret.h5", "/secret")

    def soft(file: Any) -> None:
        file[kernel] = h5py.SoftLink("/" + kernel.replace("kernel", "recurrent_kernel"))

    def external(file: Any) -> None:
        where = [(str(tmp_path / "secret.h5"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset(kernel, (I, 3 * H), "f4", external=where)

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((I, 3 * H), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "secret", (I, 3 * H))
        file.create_virtual_dataset(kernel, layout)

    def huge(file: Any) -> None:
        file.create_dataset(kernel, (1 << 24, 1 << 24), "f4", chunks=(1, 1 << 10))

    for change in (link, soft, external, virtual, huge):
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            del file[kernel]
            change(file)
        with pytest.raises(FormatError, match=r"kernel: (not|missing)"):
            onegru.load_layers(path)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keras", None)
    with pytest.raises(MissingExtraError, match=r"onegru\[keras\]"):
        onegru.to_keras(layer())
    with pytest.raises(MissingExtraError, match=r"onegru\[keras\]"):
        onegru.from_keras(layer())
