"""A model as a person holds it: what it says of itself, what it takes, how it runs."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, ValueInfoProto

import onegru
from onegru import FormatError, Model, SpecError, SpecWarning
from onegru.core.dtypes import Array
from onegru.models.inputs.check import Inputs
from onegru.models.load import graph_of
from tests.support.files.onnx_models import (
    WEIGHTS,
    B,
    H,
    I,
    T,
    X,
    graph,
    gru,
    loaded,
    model,
    node,
    numbers,
    save,
    tensor,
    value,
)
from tests.support.machine.processes import run_threads
from tests.support.machine.repository import DIGITS
from tests.support.machine.systems import posix

LENS = np.array([4, 2], np.int32)
H0 = numbers(3, 1, B, H)
INPUTS = [
    value("X", "float32", ["time", "batch", I]),
    value("lens", "int32", ["batch"]),
    value("h", "float32", [1, None, H]),
    value("gain", "float32", []),
]
NODES = [
    gru("X", ["Y", "Y_h"], bias="B", lens="lens", initial_h="h", name="g"),
    node("Mul", ["Y_h", "gain"], ["Z"], name="scale"),
]
FEEDS: dict[str, Any] = {"X": X, "lens": LENS, "h": H0, "gain": np.array(2, np.float32)}


@pytest.fixture
def ours(tmp_path: Path) -> Model:
    """A model with inputs of several kinds, two of them with defaults."""
    constants = {**WEIGHTS, "h": np.zeros((1, B, H), np.float32), "gain": np.array(3, np.float32)}
    outputs = [value("Z", "float32", [1, "batch", H]), value("Y")]
    return loaded(tmp_path, model(graph(NODES, INPUTS, outputs, constants)))


def expected(**options: Any) -> tuple[Array, Array]:
    return onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"], WEIGHTS["B"], LENS, **options)


# ---- what it says of itself ----


def test_what_a_model_says_of_itself(ours: Model, tmp_path: Path) -> None:
    assert ours.path == str(tmp_path / "model.onnx")
    got = {info.name: (info.dtype, info.shape, info.optional, info.is_tensor) for info in ours.inputs}
    assert got == {
        "X": ("float32", ("time", "batch", I), False, True),
        "lens": ("int32", ("batch",), False, True),
        "h": ("float32", (1, None, H), True, True),
        "gain": ("float32", (), True, True),
    }
    assert [(info.name, info.shape) for info in ours.outputs] == [("Z", (1, "batch", H)), ("Y", None)]
    assert repr(ours) == f"Model({ours.path!r}, 1 GRU node, 1 other)"
    layer = ours.gru_nodes[0]
    assert (layer.name, layer.operator) == ("g", "GRU-14")
    assert repr(layer).startswith("GruNode('g', GRU-14, GRU(5 → 3, float32, ")
    assert [array.shape for array in layer.weights] == [(1, 9, 5), (1, 9, 3), (1, 18)]
    assert layer.layer is not None
    assert layer.layer.spec.hidden_size == H


def test_types_of_every_kind(tmp_path: Path) -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("s", TensorProto.INT64, None)
    kinds = [
        value("a", "bfloat16", [1]),
        value("b", "str", [None]),
        value("c", "bool", []),
        sequence,
        ValueInfoProto(name="u"),
        onnx.helper.make_tensor_value_info("f", TensorProto.UNDEFINED, [2]),
        onnx.helper.make_tensor_value_info("n", TensorProto.FLOAT, [-3, 2]),
    ]
    names = [kind.name for kind in kinds]
    got = loaded(tmp_path, model(graph([], kinds, kinds))).inputs
    assert [(info.name, info.dtype, info.shape) for info in got] == [
        ("a", "bfloat16", (1,)),
        ("b", "str", (None,)),
        ("c", "bool", ()),
        ("s", "seq(tensor(int64))", None),
        ("u", "unknown", None),
        ("f", "unknown", (2,)),
        ("n", "float32", (None, 2)),
    ]
    assert [info.is_tensor for info in got] == [name not in "su" for name in names]


def test_path_and_engine(tmp_path: Path) -> None:
    path = save(tmp_path, model(graph(NODES, INPUTS, ["Z"], WEIGHTS)), "a model without a suffix")
    assert onegru.load(str(path), engine="reference").path == str(path)
    with pytest.raises(SpecError, match="engine: 'none'; must be one of auto"):
        onegru.load(path, engine="none")


# ---- what it takes ----


def test_defaults_and_values(ours: Model) -> None:
    Y, Y_h = expected()
    got = ours.run({"X": X, "lens": LENS})
    assert list(got) == ["Z", "Y"]
    np.testing.assert_array_equal(got["Y"], Y)
    np.testing.assert_array_equal(got["Z"], Y_h * np.float32(3))
    Y, Y_h = expected(initial_h=H0)
    got = ours.run(FEEDS)
    np.testing.assert_array_equal(got["Y"], Y)
    np.testing.assert_array_equal(got["Z"], Y_h * np.float32(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": None}, r"^'X': missing; .*model\.onnx requires it, float32 \[time, batch, 5\]$"),
        (
            {"lens": None},
            r"^'lens': missing; .*model\.onnx requires it, int32 \[batch\]: "
            "the number of steps of each row, 4 for a full row$",
        ),
        ({"x": X}, r"^'x': not an input of .*model\.onnx; its inputs: 'X', 'lens', 'h', 'gain'$"),
        ({"W": WEIGHTS["W"]}, r"^'W': not an input of .*; its inputs: 'X', 'lens', 'h', 'gain'$"),
        ({"X": X.astype(np.float64)}, r"^'X': type float64; must be float32$"),
        ({"X": X.tolist()}, r"^'X': type float64; must be float32$"),
        ({"X": "abc"}, r"^'X': type str; must be float32$"),
        ({"X": [[1.0], [1.0, 2.0]]}, r"^'X': not an array \(.*\); must be float32 \[time, batch, 5\]$"),
        ({"X": np.ma.masked_array(X, X > 0)}, r"^'X': a masked array; must be a plain array"),
        ({"X": X[0]}, r"^'X': shape \[2, 5\]; must be float32 \[time, batch, 5\]$"),
        ({"X": X[None]}, r"^'X': shape \[1, 4, 2, 5\]; must be float32 \[time, batch, 5\]$"),
        ({"X": X[..., :4]}, r"^'X': shape \[4, 2, 4\]; must be float32 \[time, batch, 5\]$"),
        ({"h": H0[:, :, :2]}, r"^'h': shape \[1, 2, 2\]; must be float32 \[1, \?, 3\]$"),
        ({"gain": np.ones(1, np.float32)}, r"^'gain': shape \[1\]; must be float32 \[\]$"),
        ({"lens": LENS.astype(np.int64)}, r"^'lens': type int64; must be int32$"),
        ({"lens": LENS.astype(bool)}, r"^'lens': type bool; must be int32$"),
        # what only the node itself can tell
        (
            {"lens": LENS[:1]},
            r"model\.onnx: GRU node 'g': sequence_lens: shape \[1\]; must be \[batch_size\] = \[2\]$",
        ),
        ({"lens": LENS + 1}, r"model\.onnx: GRU node 'g': sequence_lens: 5; must be in 0…seq_length = 0…4$"),
        ({"lens": -LENS}, r"model\.onnx: GRU node 'g': sequence_lens: -4; must be in 0…seq_length = 0…4$"),
        (
            {"h": H0[:, :1]},
            r"model\.onnx: GRU node 'g': initial_h: shape \[1, 1, 3\]; must be \[.*\] = \[1, 2, 3\]$",
        ),
    ],
)
def test_inputs_that_do_not_fit(ours: Model, change: dict[str, Any], message: str) -> None:
    feeds = {name: item for name, item in {**FEEDS, **change}.items() if item is not None}
    with pytest.raises(SpecError, match=message) as caught:
        ours.run(feeds)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(ours.run(FEEDS)["Y"], expected(initial_h=H0)[0])


def test_a_model_without_inputs(tmp_path: Path) -> None:
    ours = loaded(tmp_path, model(graph([gru("X", ["Y"])], [], ["Y"], {**WEIGHTS, "X": X})))
    with pytest.raises(SpecError, match=r"'X': not an input of .*model\.onnx; its inputs: none"):
        ours.run({"X": X})


def test_any_strides_and_byte_order(ours: Model) -> None:
    backwards = np.ascontiguousarray(X[::-1])[::-1]
    for x in (np.asfortranarray(X), backwards, X.astype(">f4"), X.astype("<f4")):
        np.testing.assert_array_equal(ours.run({**FEEDS, "X": x})["Y"], expected(initial_h=H0)[0])
    assert ours.run({**FEEDS, "gain": np.float32(2)})["Z"].shape == (1, B, H)


def test_any_strides_into_other_nodes(tmp_path: Path) -> None:
    nodes = [node("Neg", ["X"], ["N"]), gru("N", ["Y"])]
    ours = loaded(tmp_path, model(graph(nodes, [value("X", "float32", [T, B, I])], ["Y", "N"], WEIGHTS)))
    for x in (np.asfortranarray(X), X.transpose(2, 1, 0).copy().transpose(2, 1, 0), X.astype(">f4")):
        np.testing.assert_array_equal(ours.run({"X": x})["N"], -X)


def test_read_only_inputs_stay_as_they_are(ours: Model) -> None:
    feeds = {name: item.copy() for name, item in FEEDS.items()}
    for array in feeds.values():
        array.flags.writeable = False
    ours.run(feeds)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, FEEDS[name])


def test_strings(tmp_path: Path) -> None:
    """Lists, arrays of fixed width, and arrays of objects."""
    inputs = [value("X", "float32", [T, B, I]), value("names", "str", [2])]
    nodes = [gru("X", ["Y"]), node("Identity", ["names"], ["same"])]
    ours = loaded(tmp_path, model(graph(nodes, inputs, ["Y", value("same", "str")], WEIGHTS)))
    for names in (["a", "ü"], np.array(["a", "ü"]), np.array(["a", "ü"], object)):
        assert ours.run({"X": X, "names": names})["same"].tolist() == ["a", "ü"]
    with pytest.raises(SpecError, match="'names': type int64; must be str"):
        ours.run({"X": X, "names": [1, 2]})


def test_an_input_that_is_no_tensor(tmp_path: Path) -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [node("SequenceAt", ["s", "at"], ["X"]), gru("X", ["Y"])]
    ours = loaded(tmp_path, model(graph(nodes, [sequence], ["Y"], {**WEIGHTS, "at": np.array(1)})))
    want, _ = onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"])
    np.testing.assert_array_equal(ours.run({"s": [X[:1], X]})["Y"], want)
    with pytest.raises(FormatError, match=r"ONNX Runtime fails .*running SequenceAt node"):
        ours.run({"s": [X]})
    with pytest.raises(SpecError, match=r"'s': missing; .* requires it, seq\(tensor\(float\)\)"):
        ours.run({})


def test_what_is_legal_and_empty(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y", "Y_h"], bias="B"), node("Relu", ["Y_h"], ["Z"])]
    ours = loaded(
        tmp_path, model(graph(nodes, [value("X", "float32", [None, None, I])], ["Y", "Z"], WEIGHTS))
    )
    for steps, rows in ((0, 2), (4, 0), (0, 0)):
        got = ours.run({"X": np.zeros((steps, rows, I), np.float32)})
        assert got["Y"].shape == (steps, 1, rows, H)
        np.testing.assert_array_equal(got["Z"], np.zeros((1, rows, H)))


# ---- how it runs ----


def test_progress_that_cannot_be_called(ours: Model) -> None:
    with pytest.raises(SpecError, match="progress: 3; must be a function"):
        ours.run(FEEDS, progress=3)  # type: ignore[arg-type]


def test_progress(ours: Model) -> None:
    seen: list[tuple[int, int]] = []
    ours.run(FEEDS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 1), (1, 1)]


def test_two_threads_at_once(ours: Model) -> None:
    """Each with its own inputs; every result belongs to its own inputs."""
    feeds = [
        {**FEEDS, "X": numbers(seed, 50, B, I), "lens": np.array([50, 20], np.int32)} for seed in range(4)
    ]
    want = [ours.run(item) for item in feeds]
    wrong: list[str] = []
    gate = threading.Barrier(4)

    def work(which: int) -> None:
        gate.wait()
        for _ in range(10):
            got = ours.run(feeds[which])
            wrong.extend(name for name in got if not np.array_equal(got[name], want[which][name]))

    run_threads(work, range(4))
    assert wrong == []


def test_results_are_the_callers(ours: Model) -> None:
    """What a run gives may be written to; the next run does not mind."""
    first = ours.run(FEEDS)
    kept = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        array[...] = 7
    for name, array in ours.run(FEEDS).items():
        np.testing.assert_array_equal(array, kept[name])


def test_constants_among_the_results_are_the_callers_too(tmp_path: Path) -> None:
    nodes = [
        gru("X", ["Y"], R="R2"),
        node("Constant", [], ["C"], value=tensor("", H0)),
        node("Neg", ["N"], ["M"]),
        node("Identity", ["R"], ["R2"]),
    ]
    proto = model(
        graph(nodes, [value("X", "float32", [T, B, I])], ["Y", "W", "C", "M", "R2"], {**WEIGHTS, "N": H0})
    )
    ours = loaded(tmp_path, proto)
    kept = {name: array.copy() for name, array in ours.run({"X": X}).items()}
    for array in ours.run({"X": X}).values():
        array[...] = 7
    for name, array in ours.run({"X": X}).items():
        np.testing.assert_array_equal(array, kept[name], err_msg=name)


def test_warnings_come_at_load_and_name_the_node(tmp_path: Path) -> None:
    nodes = [gru("X", ["Y"], name=name, activation_beta=[0.5]) for name in ("one",)]
    nodes += [gru("X", ["Z"], W="V", name="two", activation_alpha=[0.5], activations=["Tanh", "Relu"])]
    inputs = [value("X", "float32", [T, B, I]), value("V", "float32", [1, 3 * H, I])]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loaded(tmp_path, model(graph(nodes, inputs, ["Y", "Z"], WEIGHTS)))
    messages = [str(item.message) for item in seen]
    assert all(item.category is SpecWarning for item in seen)
    assert len(messages) == 2
    start = f"{tmp_path / 'model.onnx'}: GRU node "
    assert messages[0].startswith(start + "'one': activation_beta: 1 value too many")
    assert messages[1].startswith(start + "'two': activation_alpha: 1 value too many")


def test_attributes_are_checked_at_load_even_where_weights_are_not_known(tmp_path: Path) -> None:
    inputs = [value("X", "float32", [T, B, I]), value("W", "float32", [1, 3 * H, I])]
    for attributes, message in (
        ({"activations": ["Tanh"]}, "activations: 1 names; must be 2"),
        ({"activations": ["Tanh", "ScaledTanh"]}, "no value for ScaledTanh"),
        ({"clip": 0.0}, "clip: 0; must be > 0"),
        ({"direction": "up"}, "direction: 'up'; must be"),
    ):
        proto = model(graph([gru("X", ["Y"], name="g", **attributes)], inputs, ["Y"], {"R": WEIGHTS["R"]}))
        with pytest.raises(SpecError, match=r"model\.onnx: GRU node 'g': ") as caught:
            loaded(tmp_path, proto)
        assert message in str(caught.value)


def test_nodes_that_share_weights_share_the_layer(tmp_path: Path) -> None:
    nodes = [
        gru("X", ["A", "A_h"], name="a"),
        gru("X", ["C", "C_h"], name="c", initial_h="A_h"),
        gru("X", ["D"], name="d", direction="reverse"),
        gru("X", ["E"], name="e", bias="B"),
    ]
    ours = loaded(tmp_path, model(graph(nodes, [value("X", "float32", [T, B, I])], ["C", "D", "E"], WEIGHTS)))
    layers = {item.name: item.layer for item in ours.gru_nodes}
    assert layers["a"] is layers["c"]
    assert len({id(layer) for layer in layers.values()}) == 3


def test_a_failing_import_of_onnxruntime_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        onegru.MissingExtraError, match=r"needs onnxruntime: pip install 'onegru\[onnxruntime\]'"
    ):
        loaded(tmp_path, model(graph(NODES, INPUTS, ["Z"], WEIGHTS)))


def test_models_pickle_and_copy(ours: Model) -> None:
    for twin in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        for name, wanted in ours.run(FEEDS).items():
            np.testing.assert_array_equal(twin.run(FEEDS)[name], wanted)


def test_inputs_that_are_no_mapping(ours: Model) -> None:
    for inputs in (None, [X]):
        with pytest.raises(SpecError, match=r"inputs: .*; must be a mapping from names to arrays"):
            ours.run(inputs)  # type: ignore[arg-type]


def test_newer_ir_versions_than_onnx_runtime_knows(tmp_path: Path) -> None:
    proto = model(
        graph([gru("X", ["Y", ""]), node("Relu", ["Y"], ["Z"])], [value("X")], [value("Z")], WEIGHTS)
    )
    proto.ir_version = 99
    Y = onegru.gru(X, WEIGHTS["W"], WEIGHTS["R"])[0]
    np.testing.assert_array_equal(loaded(tmp_path, proto).run({"X": X})["Z"], np.maximum(Y, 0))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_lstms_with_grus_in_every_type(tmp_path: Path, dtype: str) -> None:
    arrays = {name: array.astype(dtype) for name, array in WEIGHTS.items()}
    arrays |= {"LW": numbers(5, 1, 4 * H, I).astype(dtype), "LR": numbers(6, 1, 4 * H, H).astype(dtype)}
    nodes = [gru("X", ["Y", ""]), node("LSTM", ["X", "LW", "LR"], ["L"], hidden_size=H)]
    proto = model(graph(nodes, [value("X", dtype)], [value("Y", dtype), value("L", dtype)], arrays))
    assert loaded(tmp_path, proto).run({"X": X.astype(dtype)})["L"].shape == (T, 1, B, H)


@posix
def test_special_files_are_no_models(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="not a regular file"):
        onegru.load(pipe)


# ---- models in memory


def test_models_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onegru.save_layers(onegru.GRU(np.ones((1, 6, 3), "f"), np.ones((1, 6, 2), "f")), path)
    data = path.read_bytes()
    feeds = {"X": np.ones((2, 1, 3), np.float32)}
    wanted = onegru.load(path).run(feeds)["Y"]
    for given in (data, bytearray(data), memoryview(data), onnx.load(path), str(path)):
        assert np.array_equal(onegru.load(given).run(feeds)["Y"], wanted)
    assert onegru.load(data, engine="reference").gru_nodes[0].layer is not None
    assert repr(onegru.load(data)).startswith("Model('model in memory'")
    onegru.save_layers(onegru.GRU(np.ones((1, 6, 3), "f"), np.ones((1, 6, 2), "f")), tmp_path / "m.xml")
    for text in ((tmp_path / "m.xml").read_bytes(), b"\xef\xbb\xbf\n <net/>"):
        with pytest.raises(FormatError, match="an OpenVINO IR; must be loaded by its path"):
            onegru.load(text)
    with pytest.raises(FormatError, match="model in memory: contains no graph"):
        onegru.load(b"")
    nothing: tuple[Any, ...] = (None, 3, [data], onnx.NodeProto(), open)
    for wrong in nothing:
        with pytest.raises(SpecError, match=r"path: .*; must be "):
            onegru.load(wrong)


def test_a_model_in_memory_has_no_folder(tmp_path: Path) -> None:
    """Its external data are nowhere, not in the current folder."""
    path = tmp_path / "m.onnx"
    onegru.save_layers(onegru.GRU(np.ones((1, 6, 3), "f"), np.ones((1, 6, 2), "f")), path)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    with pytest.raises(FormatError, match="but the model has no folder; load it from its file"):
        onegru.load(path.read_bytes())
    with pytest.raises(FormatError, match="but the model has no folder; load it from its file"):
        onegru.load(onnx.load(path, load_external_data=False))
    onegru.load(onnx.load(path))


def test_arrays_of_another_process_take_the_fast_path() -> None:
    """What was pickled has a type that equals the model's, and is another object."""
    inputs = Inputs(onegru.load(DIGITS).inputs)
    x = np.ones((2, 8, 8), np.float32)
    sent = pickle.loads(pickle.dumps(x))
    assert sent.dtype is not x.dtype
    assert inputs.plain({"rows": sent}) is not None
    assert inputs.plain({"rows": x.astype(">f4")}) is None


def test_each_state_that_is_left_out_has_the_rows_of_its_gru(tmp_path: Path) -> None:
    layers = [gru(f"x{i}", ["", f"Y{i}"], name=f"gru{i}", initial_h=f"h{i}") for i in (1, 2)]
    ends = [node("Tanh", [f"Y{i}"], [f"y{i}"]) for i in (1, 2)]
    sizes: dict[str, list[int | str | None]] = {
        "x1": ["T", "a", I],
        "x2": ["T", "b", I],
        "h1": [1, "a", H],
        "h2": [1, "b", H],
    }
    infos = [value(name, shape=shape) for name, shape in sizes.items()]
    path = save(tmp_path, model(graph([*layers, *ends], infos, ["y1", "y2"], WEIGHTS)))
    whole = graph_of(path)
    found = Model(replace(whole, zero_inputs=frozenset({"h1", "h2"})))
    x1, x2 = (np.ones((4, rows, I), np.float32) for rows in (2, 3))
    given = {"x1": x1, "x2": x2, "h1": np.zeros((1, 2, H), np.float32), "h2": np.zeros((1, 3, H), np.float32)}
    expected = Model(whole).run(given)
    got = found.run({"x1": x1, "x2": x2})
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
