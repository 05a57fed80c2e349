"""How GRUs of whole models keep their weights: by every way in, the bits of the layer that keeps them so."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onegru
from onegru import SpecError
from onegru.core.dtypes import WEIGHT_STORAGES, Array
from tests.support.comparison import assert_bits
from tests.support.files import onnx_models as m
from tests.support.layers import make_gru

STORAGES = [
    ("bfloat16", None),
    ("float16", None),
    ("int8", None),
    ("int8_g32", None),
    ("int8", "int16"),
    ("int8", "int8"),
    ("bfloat16", "bfloat16"),
]
LAYER = make_gru(hidden=20, direction="bidirectional", linear_before_reset=True)
ATTRIBUTES: dict[str, Any] = {"hidden_size": 20, "direction": "bidirectional", "linear_before_reset": 1}
X = np.random.default_rng(5).standard_normal((7, 3, 5)).astype(np.float32)


def feed(names: Iterable[str], x: Array = X) -> dict[str, Array]:
    """Inputs of a file, without an initial state."""
    B = x.shape[1]
    D, H = LAYER.spec.num_directions, LAYER.spec.hidden_size
    given = {
        "initial_h": np.zeros((D, B, H), x.dtype),
        "initial_hidden_state": np.zeros((B, D, H), x.dtype),
    }
    names = list(names)
    given["X"] = x.swapaxes(0, 1).copy() if "initial_hidden_state" in names else x
    return {name: given[name] for name in names}


def of_openvino(path: Path, options: dict[str, Any]) -> list[Array]:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    model = core.read_model(path)
    assert onegru.openvino.replace_grus(model, **options) == 1
    request = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    request.infer(feed(port.any_name for port in model.inputs))
    return [np.array(request.get_output_tensor(place).data) for place in range(len(model.outputs))]


def of_session(path: Path, options: dict[str, Any]) -> list[Array]:
    session = onegru.InferenceSession(path, **options)
    inputs = feed(port.name for port in session.get_inputs())
    outputs: list[Array] = session.run(None, inputs)
    for array, same in zip(outputs, pickle.loads(pickle.dumps(session)).run(None, inputs), strict=True):
        assert_bits(array, same)
    return outputs


def of_model(path: Path, options: dict[str, Any]) -> list[Array]:
    model = onegru.load(path, **options)
    inputs = feed(port.name for port in model.inputs)
    outputs = [*model.run(inputs).values()]
    for array, same in zip(outputs, pickle.loads(pickle.dumps(model)).run(inputs).values(), strict=True):
        assert_bits(array, same)
    return outputs


WAYS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], list[Array]]]] = {
    "load ONNX": ("m.onnx", of_model),
    "load an IR": ("m.xml", of_model),
    "InferenceSession": ("m.onnx", of_session),
    "openvino.replace_grus": ("m.xml", of_openvino),
}


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in(tmp_path: Path, way: str, storage: tuple[str, str | None]) -> None:
    name, run = WAYS[way]
    onegru.save_layers(LAYER, tmp_path / name)
    Y, Y_h = LAYER.with_storage(*storage)(X)
    found = run(tmp_path / name, dict(zip(("weight_storage", "activation_storage"), storage, strict=True)))
    wanted = {array.size: array for array in (Y, Y_h)}
    assert sorted(array.size for array in found) == sorted(wanted)
    for array in found:
        like = wanted[array.size]
        if array.shape != like.shape:  # batch first
            like = like.transpose(2, 1, 0, 3) if like.ndim == 4 else like.swapaxes(0, 1)
        assert_bits(array, like.reshape(array.shape))


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_the_reference_engine(tmp_path: Path, storage: tuple[str, str | None]) -> None:
    onegru.save_layers(LAYER, tmp_path / "m.onnx")
    options: Any = dict(zip(("weight_storage", "activation_storage"), storage, strict=True))
    model = onegru.load(tmp_path / "m.onnx", engine="reference", **options)
    wanted = onegru.GRU.from_canonical(LAYER.spec, LAYER.weights, engine="reference", **options)(X)[0]
    assert_bits(next(iter(model.run(feed(port.name for port in model.inputs)).values())), wanted)


@pytest.mark.parametrize("storage", [None, *WEIGHT_STORAGES])
def test_reports_name_the_storage_of_a_file(tmp_path: Path, storage: str | None) -> None:
    layer = make_gru(inputs=150, hidden=140)
    onegru.save_layers(layer.with_storage(storage), tmp_path / "m.onnx")
    (found,) = onegru.inspect(tmp_path / "m.onnx").grus
    assert found.lossless_storage == storage
    onegru.save_layers(layer.with_storage(storage), tmp_path / "m.safetensors")
    (found,) = onegru.inspect(tmp_path / "m.safetensors").grus
    assert found.lossless_storage == storage


@pytest.mark.parametrize("name", ["m.onnx", "m.xml"])
def test_other_types_keep_their_own(tmp_path: Path, name: str) -> None:
    layer = make_gru(hidden=20, direction="bidirectional", dtype="float64" if name == "m.onnx" else "float16")
    onegru.save_layers(layer, tmp_path / name)
    x = X.astype(layer.spec.dtype)
    stored, plain = (onegru.load(tmp_path / name, weight_storage=storage) for storage in ("int8", None))
    inputs = feed((port.name for port in plain.inputs), x)
    for array, same in zip(stored.run(inputs).values(), plain.run(inputs).values(), strict=True):
        assert_bits(array, same)


@pytest.mark.parametrize("way", WAYS)
def test_a_type_for_each_node(tmp_path: Path, way: str) -> None:
    name, run = WAYS[way]
    onegru.save_layers(LAYER, tmp_path / name)
    (node,) = (gru.name for gru in onegru.load(tmp_path / name).gru_nodes)
    for weights, activations in [*STORAGES, (None, None)]:
        options: dict[str, Any] = {"weight_storage": {node: weights} if weights else {}}
        if activations:
            options["activation_storage"] = {node: activations}
        plain: Any = {"weight_storage": weights, "activation_storage": activations}
        for array, same in zip(run(tmp_path / name, options), run(tmp_path / name, plain), strict=True):
            assert_bits(array, same)
    for option in ("weight_storage", "activation_storage"):
        wrong = {"weight_storage": {node: "int8"}, option: {"x=y": "int8"}}
        with pytest.raises(SpecError, match=rf"^{option}: .*(no GRU node is called 'x=y'|must be None)"):
            run(tmp_path / name, wrong)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_two_nodes_of_two_types(other: bool, named: bool) -> None:
    """Each node has its own type by every way; nodes without a name are known by their first output."""
    nodes = [m.gru("X", [f"Y{i}", ""], bias="B", name=f"gru={i}" * named, **ATTRIBUTES) for i in range(3)]
    keys = [f"gru={i}" if named else f"Y{i}" for i in range(3)]
    infos = [m.value("X", shape=["T", "N", 5])], [m.value(f"Y{i}", shape=[None] * 4) for i in range(3)]
    if other:
        nodes.append(helper.make_node("Neg", ["X"], ["-X"]))
        infos[1].append(m.value("-X", shape=["T", "N", 5]))
    data = m.model(
        m.graph(nodes, *infos, {name: getattr(LAYER.weights, name) for name in "WRB"})
    ).SerializeToString()
    weights = {keys[0]: "int8", keys[2]: "bfloat16"}
    kept = [("int8", "int8"), (None, None), ("bfloat16", None)]
    wanted = [LAYER.with_storage(*item)(X)[0] for item in kept]
    options: Any = {"weight_storage": weights, "activation_storage": {keys[0]: "int8"}}
    text: dict[Any, Any] = {
        "weight_storage": f"{keys[0]}=int8\n{keys[2]}=bfloat16",
        "activation_storage": f"{keys[0]}=int8",
    }
    own = ["OnegruExecutionProvider"]
    for outputs in (
        onegru.load(data, **options).run({"X": X}).values(),
        onegru.InferenceSession(data, **options).run(None, {"X": X}),
        onegru.InferenceSession(data, providers=own, provider_options=[text]).run(None, {"X": X}),
    ):
        for array, same in zip(outputs, [*wanted, *[-X] * other], strict=True):
            assert_bits(array, same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_storage": {"a": "int9"}}, "weight_storage: 'int9'; must be"),
        ({"weight_storage": {"a": None}}, "weight_storage: 'a': None; must map names"),
        ({"weight_storage": {"a\nb": "int8"}}, "weight_storage: 'a.*must map names"),
        ({"weight_storage": "a=int8\nint8"}, "weight_storage: must be one type, or NODE=TYPE"),
        ({"weight_storage": "a=int8\na=int8"}, "weight_storage: must be one type, or NODE=TYPE"),
        ({"activation_storage": {"a": "int8"}}, "activation_storage: 'int8'; must be None, unless"),
        (
            {"weight_storage": {"a": "float16"}, "activation_storage": "int8"},
            "activation_storage: 'int8'; must be None, unless",
        ),
        ({"activation_storage": {"a": "bfloat16"}}, "activation_storage: 'bfloat16'; must be None, unless"),
        (
            {"weight_storage": {"a": "float16", "b": "int8"}, "activation_storage": "bfloat16"},
            "activation_storage: 'bfloat16'; must be None, unless",
        ),
        (
            {"weight_storage": {"a": "bfloat16", "b": "int8"}, "activation_storage": {"b": "bfloat16"}},
            "activation_storage: 'bfloat16'; must be int16, int8 or None with weight_storage 'int8'",
        ),
        (
            {"weight_storage": "bfloat16", "activation_storage": {"a": "int8"}},
            "activation_storage: 'int8'; must be bfloat16 or None with weight_storage 'bfloat16'",
        ),
        (
            {"weight_storage": {"a": "bfloat16"}, "activation_storage": "int8"},
            "activation_storage: 'int8'; must be None, unless",
        ),
    ],
)
def test_refused_mappings(tmp_path: Path, options: Any, message: str) -> None:
    onegru.save_layers(LAYER, tmp_path / "m.onnx")
    for call in (onegru.load, onegru.InferenceSession):
        with pytest.raises(SpecError, match=f"^{message}"):
            call(tmp_path / "m.onnx", **options)


def test_options_of_the_provider_and_arguments_are_one(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onegru.save_layers(LAYER, path, initial_h=False)
    wanted = LAYER.with_storage("int8", "int8")(X)[0]

    def made(options: dict[Any, Any], **asked: Any) -> onegru.InferenceSession:
        own = ["OnegruExecutionProvider"]
        return onegru.InferenceSession(path, providers=own, provider_options=[options], **asked)

    both: Any = {"weight_storage": "int8", "activation_storage": "int8"}
    for name, value in both.items():
        (other,) = both.keys() - {name}
        assert_bits(made({name: value}, **{other: both[other]}).run(None, {"X": X})[0], wanted)
        with pytest.raises(
            SpecError, match=f"^{name}: '.*'; must be '{value}', as in the provider's options$"
        ):
            made(both, **{**both, name: {"weight_storage": "float16"}.get(name, "int16")})
    with pytest.raises(SpecError, match=r"^activation_storage: 'int8'; must be None, unless"):
        made({"activation_storage": "int8"})


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onegru.save_layers(LAYER, path)
    calls: list[Callable[..., Any]] = [
        lambda **options: onegru.load(path, **options),
        lambda **options: onegru.InferenceSession(path, **options),
        lambda **options: onegru.openvino.replace_grus(object(), **options),
    ]
    for call in calls:
        with pytest.raises(
            SpecError,
            match=r"^weight_storage: 'int4'; must be float16, bfloat16, int8, int8_g32, ",
        ):
            call(weight_storage="int4")
        with pytest.raises(
            SpecError,
            match=r"^activation_storage: 'int8'; must be None, unless weight_storage is an int8 type or",
        ):
            call(activation_storage="int8")
    wide = onegru.GRU(np.zeros((1, 3, 131073), np.float32), np.zeros((1, 3, 1), np.float32))
    onegru.save_layers(wide, tmp_path / "wide.onnx", initial_h=False)
    with pytest.raises(Exception, match=r"W: shape \[1, 3, 131073\]; its last axis must be at most 131072"):
        onegru.InferenceSession(tmp_path / "wide.onnx", weight_storage="int8")
    W = LAYER.weights.W.copy()
    W[0, 0, 0] = np.nan
    onegru.save_layers(onegru.GRU(W, LAYER.weights.R, direction="bidirectional"), path)
    for call in calls[:2]:
        with pytest.raises(Exception, match="W: contains NaN or infinity; must be finite for int8"):
            loaded = call(weight_storage="int8")
            loaded.run(None, feed(port.name for port in loaded.get_inputs()))


def with_weight(size: float, place: int = 3, others: float = 1.0) -> onegru.GRU:
    """LAYER with one weight of this size in W, or in R, among others of its row."""
    W, R, B = LAYER.weights.W.copy(), LAYER.weights.R.copy(), LAYER.weights.B
    matrix = W if place < W.shape[2] else R
    matrix[1, 7] *= np.float32(others)
    matrix[1, 7, place] = size
    return onegru.GRU(W, R, B, direction="bidirectional", linear_before_reset=True)


def by_the_provider(path: Path, options: dict[str, Any]) -> list[Array]:
    runtime = pytest.importorskip("onnxruntime")
    onegru.execution_provider.register()
    providers: Any = [("OnegruExecutionProvider", options), "CPUExecutionProvider"]
    session = runtime.InferenceSession(path, providers=providers, enable_fallback=0)
    outputs: list[Array] = session.run(None, feed(port.name for port in session.get_inputs()))
    return outputs


DOORS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], Any]]] = {
    **WAYS,
    "load by the reference": (
        "m.onnx",
        lambda path, options: of_model(path, {**options, "engine": "reference"}),
    ),
    "the provider": ("m.onnx", by_the_provider),
    "layers": ("m.safetensors", lambda path, options: onegru.load_layers(path)[""].with_storage(**options)),
}


@pytest.mark.parametrize("way", DOORS)
def test_weights_that_a_type_would_destroy(tmp_path: Path, way: str) -> None:
    name, run = DOORS[way]

    def attempt(layer: onegru.GRU, storage: str, message: str) -> None:
        onegru.save_layers(layer, tmp_path / name)
        if not message:
            run(tmp_path / name, {"weight_storage": storage})
            return
        with pytest.raises(Exception, match=message):
            run(tmp_path / name, {"weight_storage": storage})

    infinite = r"{}: contains {}, which is infinite in {}; must be stored as {}float32"
    attempt(with_weight(-1e30), "float16", infinite.format("W", r"-1e\+30", "float16", "bfloat16 or "))
    attempt(with_weight(65520, 9), "float16", infinite.format("R", r"6\.55e\+04", "float16", "bfloat16 or "))
    attempt(with_weight(3.4e38), "bfloat16", infinite.format("W", r"3\.4e\+38", "bfloat16", ""))
    attempt(with_weight(np.inf), "float16", "")  # which it was before
    attempt(with_weight(65519), "float16", "")
    attempt(with_weight(1e30), "bfloat16", "")
    switch = r"{}: contains {}, a weight so large .* must be stored as bfloat16 or float32"
    attempt(with_weight(1e30), "int8", switch.format("W", r"1e\+30"))
    attempt(with_weight(-2000, 9), "int8_g32", switch.format("R", r"2e\+03"))
    attempt(with_weight(1e30, others=0), "int8", "")  # which has no others in its row
    attempt(with_weight(2e3, others=1e3), "int8", "")  # large as all of its row are
    attempt(with_weight(3, others=1e-12), "int8", "")  # a row of units that count for nothing


def test_python_and_the_provider_refuse_the_same_weights() -> None:
    """Drawn rows around the limits, in groups of any size."""
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(200):
        inputs, storage = int(rng.integers(1, 80)), str(rng.choice(list(WEIGHT_STORAGES)))
        matrix = rng.standard_normal((1, 3, inputs)) * 10.0 ** rng.integers(-2, 4)
        matrix = np.where(rng.random(matrix.shape) < 0.1, matrix * 10.0 ** rng.integers(0, 8), matrix)
        matrix = matrix.astype(np.float32)
        if rng.random() < 0.2:
            matrix[0, 1, rng.integers(inputs)] = 10.0 ** rng.integers(20, 39)
        nodes = [m.gru("X", ["Y", ""], hidden_size=1)]
        given: dict[str, Array] = {"W": matrix, "R": np.zeros((1, 3, 1), np.float32)}
        infos = [m.value("X", shape=["T", "N", inputs])], [m.value("Y", shape=[None] * 4)]
        data = m.model(m.graph(nodes, *infos, given)).SerializeToString()
        found = []
        calls: list[Callable[..., object]] = [
            partial(onegru.GRU, given["W"], given["R"]),
            partial(onegru.InferenceSession, data),
        ]
        for call in calls:
            try:
                call(weight_storage=storage)
                found.append("")
            except Exception as error:
                found.append(str(error)[str(error).index("W: ") :])
        assert found[0] == found[1]
        refused += found[0] != ""
    assert 40 < refused < 160
