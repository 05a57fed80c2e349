"""TensorFlow Lite's models as Keras' converter writes them (`make_files.py`), and others, refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.errors import FormatError, OneGRUError
from onegru.layers.gru import GRU
from onegru.models.layer_files.convert import convert_layers
from onegru.models.layer_files.select import read_source
from tests.formats.tflite.make_files import ACTIVATIONS, FOLDER, FORMS, INPUT, arrays

tflite = pytest.importorskip("tflite")
pytest.importorskip("onnx")

# The largest error over the files, but for int8: 1e-7.
BOUND = 5e-7


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.tflite"


def only(path: Path) -> GRU:
    (layer,) = onegru.load_layers(path).values()
    assert isinstance(layer, GRU)
    return layer


def wanted(name: str) -> list[GRU]:
    """The layers of a file's weights, of one direction each."""
    layers = [onegru.from_keras(item, reset_after=FORMS[name][1] == "after") for item in arrays(name)]
    return [layer for layer in layers if isinstance(layer, GRU)]


def vars_of(layer: GRU) -> tuple[Any, Any, Any]:
    weights = layer.weights
    return weights.W, weights.R, weights.B


def run(layer: GRU, X: Any) -> tuple[Any, Any]:
    Y, Y_h = layer(X)
    return np.asarray(Y), np.asarray(Y_h)


@pytest.mark.parametrize("name", ["states", "lists", "both", "casts"])
def test_layers_compute_what_keras_did(name: str) -> None:
    X = np.random.default_rng(1).standard_normal((5, 2, INPUT), np.float32)
    Y, Y_h = run(only(path_of(name)), X)
    for direction, layer in enumerate(wanted(name)):
        expected, last = run(layer, X[:: (1, -1)[direction]])
        np.testing.assert_allclose(Y[:, direction], expected[:: (1, -1)[direction], 0], atol=BOUND, rtol=0)
        np.testing.assert_allclose(Y_h[direction], last[0], atol=BOUND, rtol=0)


def test_activations_in_other_operators() -> None:
    X = np.random.default_rng(1).standard_normal((2, 2, INPUT), np.float32)
    found = [layer for layer in onegru.load_layers(path_of("activations")).values() if isinstance(layer, GRU)]
    names = dict(zip(("Elu", "LeakyRelu", "Softsign"), ACTIVATIONS, strict=True))
    left = dict(zip(names, arrays("activations"), strict=True))
    for layer in found:
        name = layer.spec.activations[0][1].name
        own = onegru.from_keras(left.pop(name), reset_after=True, activation=names[name])
        assert isinstance(own, GRU)
        np.testing.assert_allclose(run(layer, X)[1], run(own, X)[1], atol=BOUND, rtol=0)
    assert not left


def test_int8_weights_are_dequantized() -> None:
    layer, (exact,) = only(path_of("unrolled_int8")), wanted("unrolled_int8")
    assert not layer.spec.linear_before_reset
    np.testing.assert_array_equal(layer.weights.W, exact.weights.W)  # too small for the converter
    R, whole = layer.weights.R[0], exact.weights.R[0]
    assert not np.array_equal(R, whole)
    step = np.abs(whole).max() / 127
    assert np.abs(R - whole).max() <= step / 2 * 1.001
    gates = R[: 2 * layer.spec.hidden_size]  # in one matrix, of one scale a row or one for all
    scales = np.abs(gates).max(axis=1, keepdims=True) / 127
    if np.allclose(scales, scales[0]):
        scales = scales[:1]
    assert np.abs(gates / scales - np.rint(gates / scales)).max() < 1e-3


@pytest.mark.parametrize("name", FORMS)
def test_litert_agrees(name: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    if name == "lists":
        pytest.skip("it has operators of TensorFlow's own")
    other = interpreter.Interpreter(str(path_of(name)))
    other.allocate_tensors()
    (given,), (result,) = other.get_input_details(), other.get_output_details()
    x = np.random.default_rng(2).standard_normal(given["shape"], np.float32)
    other.set_tensor(given["index"], x)
    other.invoke()
    Y, Y_h = run(only(path_of(name)), x.swapaxes(0, 1))
    ours = Y[:, 0].swapaxes(0, 1) if name == "states" else np.concatenate([*Y_h], -1)
    # It rounds the state to int8, too: the largest error was 3e-3.
    bound = 1e-2 if "int8" in name else BOUND
    np.testing.assert_allclose(ours, other.get_tensor(result["index"]), atol=bound, rtol=0)


def test_inspect_describes_them() -> None:
    found = onegru.inspect(path_of("lists"))
    assert found.kind == "a TensorFlow Lite model"
    assert [(item.input_size, item.hidden_size, item.reset) for item in found.grus] == [(INPUT, 3, "after")]
    assert found.left_out == ("FlexTensorListReserve",)
    assert onegru.inspect(path_of("both")).grus[0].direction == "bidirectional"


@pytest.mark.parametrize("end", [".onnx", ".xml", ".safetensors"])
def test_convert(tmp_path: Path, end: str) -> None:
    if end == ".safetensors":
        pytest.importorskip("safetensors")
    target = tmp_path / f"gru{end}"
    checks, _ = convert_layers(read_source(path_of("states")), target, {})
    assert checks and all(item.agrees for item in checks)
    X = np.ones((3, 1, INPUT), np.float32)
    np.testing.assert_array_equal(run(only(target), X)[0], run(only(path_of("states")), X)[0])


def test_models_are_not_run() -> None:
    with pytest.raises(
        FormatError, match="a TensorFlow Lite model, which contains layers, not a runnable model"
    ):
        onegru.load(path_of("states"))


# ---- changed files


class Places:
    """Where a file has what, to be overwritten."""

    def __init__(self, name: str) -> None:
        self.data = bytearray(path_of(name).read_bytes())
        self.model = tflite.Model.GetRootAs(self.data, 0)

    def put(self, place: int, number: int, form: str = "<i") -> None:
        struct.pack_into(form, self.data, place, number)

    def buffer(self, graph: int, tensor: int) -> int:
        """Where the numbers of a constant begin."""
        table = self.model.Buffers(self.model.Subgraphs(graph).Tensors(tensor).Buffer())._tab
        return int(table.Vector(table.Offset(4)))

    def operator(self, graph: int, kind: int) -> Any:
        """The first operator of a kind."""
        operators = self.model.Subgraphs(graph)
        for index in range(operators.OperatorsLength()):
            op = operators.Operators(index)
            code = self.model.OperatorCodes(op.OpcodeIndex())
            if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) == kind:
                return op
        raise AssertionError(kind)


BODY, COND = 3, 2
KINDS = tflite.BuiltinOperator


def starts_at_one(places: Places) -> None:
    loop = places.operator(0, KINDS.WHILE)
    places.put(places.buffer(0, loop.Inputs(0)), 1)


def one_counter_starts_late(places: Places) -> None:
    """The one that the body does not read: there is no iteration then."""
    loop, graph = places.operator(0, KINDS.WHILE), places.model.Subgraphs(0)
    buffers = [places.model.Buffers(graph.Tensors(n).Buffer()) for n in range(graph.TensorsLength())]
    five = [item.DataLength() == 4 and bytes(item.DataAsNumpy()) == b"\5\0\0\0" for item in buffers]
    places.put(loop._tab.Vector(loop._tab.Offset(6)), five.index(True))


def ends_early(places: Places) -> None:
    places.put(places.buffer(COND, places.operator(COND, KINDS.LESS).Inputs(1)), 4)


def counts_by_two(places: Places) -> None:
    places.put(places.buffer(BODY, places.operator(BODY, KINDS.ADD).Inputs(1)), 2)


def slices_after_begin_late(places: Places) -> None:
    """Rows are lost after the one that an iteration writes."""
    op = places.operator(BODY, KINDS.CONCATENATION)
    places.put(places.buffer(BODY, op.Inputs(1)) + 4, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (starts_at_one, "unsupported operators: WHILE"),
        (one_counter_starts_late, "unsupported operators: WHILE"),
        (counts_by_two, "unsupported operators: WHILE"),
        (ends_early, "only its cell was replaced"),
        (slices_after_begin_late, "only its cell was replaced"),
    ],
)
def test_other_loops_are_no_layers(tmp_path: Path, change: Callable[[Places], None], words: str) -> None:
    places = Places("states")
    change(places)
    path = tmp_path / "x.tflite"
    path.write_bytes(places.data)
    for read in (onegru.load_layers, onegru.inspect):
        with pytest.raises(FormatError, match=f"no GRU with its own weights; .*{words}"):
            read(path)


@pytest.mark.parametrize("name", ["states", "both", "casts"])
def test_operators_by_the_newer_field_of_their_code(tmp_path: Path, name: str) -> None:
    """Files of ai-edge-quantizer have the code of an operator below 127 in the newer field only."""
    places = Places(name)
    for index in range(places.model.OperatorCodesLength()):
        table = places.model.OperatorCodes(index)._tab
        if table.Offset(4):
            places.put(table.Pos + table.Offset(4), 0, "<b")
    path = tmp_path / "x.tflite"
    path.write_bytes(places.data)
    found, expected = only(path), only(path_of(name))
    assert found.spec == expected.spec
    assert all(map(np.array_equal, vars_of(found), vars_of(expected)))


def test_int4_is_named(tmp_path: Path) -> None:
    places = Places("unrolled_int8")
    graph = places.model.Subgraphs(0)
    for tensor in map(graph.Tensors, range(graph.TensorsLength())):
        if tensor.Type() == tflite.TensorType.INT8:
            places.put(tensor._tab.Pos + tensor._tab.Offset(6), tflite.TensorType.INT4, "<b")
    path = tmp_path / "x.tflite"
    path.write_bytes(places.data)
    with pytest.raises(FormatError, match="constant of type int4"):
        onegru.load_layers(path)


def test_masked_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from onegru.models import fusing

    def masked(file: Any) -> Any:
        graph, found = original(file)
        return graph, replace(found, fused=tuple(replace(item, masked=True) for item in found.fused))

    original = fusing.tflite_graph
    monkeypatch.setattr(fusing, "tflite_graph", masked)
    with pytest.raises(FormatError, match="skips masked steps, which a layer cannot do"):
        onegru.load_layers(path_of("states"))


def test_a_masked_layer_is_no_other() -> None:
    """Keras computes its first step once more in front of the loop, for the shape of it."""
    for read in (onegru.load_layers, onegru.inspect):
        with pytest.raises(FormatError, match="skips masked steps, which a layer cannot do"):
            read(path_of("masked"))


def test_tensors_are_as_large_as_they_say(tmp_path: Path) -> None:
    places = Places("states")
    weights = places.model.Subgraphs(BODY).Tensors(places.operator(BODY, KINDS.FULLY_CONNECTED).Inputs(1))
    places.put(weights._tab.Vector(weights._tab.Offset(4)), 1000)
    path = tmp_path / "x.tflite"
    path.write_bytes(places.data)
    with pytest.raises(
        FormatError, match=r"x\.tflite: tensor '.*': \d+ bytes; must be \d+ for shape \[1000, "
    ):
        onegru.load_layers(path)


def test_bodies_end_somewhere() -> None:
    from onegru.formats.tflite.reader import Subgraph
    from onegru.formats.tflite.translate import OnnxWriter, Translation

    empty = Subgraph((), (), (), ())
    with pytest.raises(FormatError, match="subgraphs are nested too deeply"):
        OnnxWriter(Translation([empty], {}), empty, 9)
    whole = Translation([empty], {}, operators_left=1)
    OnnxWriter(whole, empty)
    with pytest.raises(FormatError, match="operators, including subgraphs"):
        OnnxWriter(whole, empty)


@pytest.mark.parametrize("name", FORMS)
def test_broken_files(tmp_path: Path, name: str) -> None:
    data, rng = path_of(name).read_bytes(), random.Random(name)
    path = tmp_path / "x.tflite"
    for _ in range(25):
        out = bytearray(data[: rng.choice((len(data), rng.randrange(8, len(data))))])
        for _ in range(rng.randrange(4)):
            out[rng.randrange(8, len(out))] = rng.randrange(256)
        path.write_bytes(out)
        try:
            onegru.load_layers(path)
        except OneGRUError as error:
            assert str(error).startswith(str(path))
