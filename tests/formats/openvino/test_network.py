"""IRs with other layers than GRUs: cut at the GRU layers, the rest run by OpenVINO.

Everything is compared with OpenVINO itself, where it can read the file, and with the reference engine.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops
from openvino import opset15

import onegru
from tests.support.files import onnx_models
from tests.support.files.ir_files import IrWriter, write_case
from tests.support.files.openvino_models import B, H, I, T, check, draw, save, sequence, small, weights
from tests.support.machine.processes import run_python, run_threads
from tests.support.machine.systems import linux, posix

# Models of the kinds that there are


@pytest.mark.parametrize("half", [False, True])
def test_convolutions_before_a_gru_and_a_linear_head_after(tmp_path: Path, half: bool) -> None:
    x = ops.parameter([-1, I, -1], np.float32, name="audio")
    front = ops.convolution(x, ops.constant(draw(8, I, 3)), [1], [1], [1], [1])
    front = ops.relu(ops.add(front, ops.constant(draw(1, 8, 1, seed=7))))
    moved = ops.transpose(front, ops.constant(np.array([0, 2, 1])))
    gru = sequence(moved, 8)
    states = ops.squeeze(gru.output(0), ops.constant(np.array([1])))
    head = ops.add(ops.matmul(states, ops.constant(draw(H, 2)), False, False), ops.constant(draw(2)))
    outputs = {"logits": ops.softmax(head, 2).output(0), "last": gru.output(1)}
    path = save(tmp_path / "model.xml", outputs, [x], half=half)
    model = check(path, {"audio": draw(B, I, T)}, grus=1)
    for batch, steps in ((1, 1), (2, 11)):
        check(path, {"audio": draw(batch, I, steps)}, grus=1)
    assert model.gru_nodes[0].layer is not None  # its weights are constants: made once
    assert [(info.name, info.dtype, info.shape) for info in model.inputs] == [
        ("audio", "float32", (None, I, None))
    ]
    assert {info.name: info.shape for info in model.outputs} == {
        "logits": (None, None, 2),
        "last": (None, 1, H),
    }
    assert model.other_node_count > 10


def test_two_grus_with_layers_between(tmp_path: Path) -> None:
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    first = sequence(x, I, direction="bidirectional")
    merged = ops.reshape(
        ops.transpose(first.output(0), ops.constant(np.array([0, 2, 1, 3]))),
        ops.constant(np.array([0, 0, 2 * H])),
        True,
    )
    mixed = ops.concat([merged, ops.multiply(x, ops.constant(np.float32(0.5)))], 2)  # x goes around the GRU
    second = sequence(mixed, 2 * H + I, 3, "reverse", seed=20)
    summed = ops.reduce_mean(second.output(0), ops.constant(np.array([2])))
    both = ops.concat([summed, ops.reduce_max(first.output(1), ops.constant(np.array([1])), True)], 2)
    path = save(tmp_path / "two.xml", {"out": both.output(0)}, [x])
    model = check(path, {"x": draw(B, T, I)}, grus=2)
    assert [layer.layer.spec.direction for layer in model.gru_nodes if layer.layer is not None] == [
        "bidirectional",
        "reverse",
    ]


def test_an_unrolled_loop_of_cells(tmp_path: Path) -> None:
    x = ops.parameter([-1, 4, I], np.float32, name="x")
    state: Any = ops.parameter([-1, H], np.float32, name="h")
    inputs = [x, state]
    W, R, Bias = (ops.constant(draw(*shape, seed=9)) for shape in ((3 * H, I), (3 * H, H), (3 * H,)))
    steps = ops.split(x, ops.constant(np.int64(1)), 4)
    for place in range(4):
        step = ops.squeeze(steps.output(place), ops.constant(np.array([1])))
        state = ops.gru_cell(step, state, W, R, Bias, H)
    path = save(tmp_path / "loop.xml", {"out": ops.tanh(state).output(0)}, inputs)
    model = check(path, {"x": draw(B, 4, I), "h": draw(B, H)}, grus=4)
    assert len({id(layer.layer) for layer in model.gru_nodes}) == 1  # shared weights, a shared layer


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_what_openvino_makes_of_onnx_models(tmp_path: Path, opset: int, after: int, direction: str) -> None:
    """OpenVINO's own converter computes lengths and states from shapes, and weights through Split and Add."""
    D = 2 if direction == "bidirectional" else 1
    make = onnx_models.node
    arrays: dict[str, Any] = {
        "W": draw(D, 3 * H, I),
        "R": draw(D, 3 * H, H, seed=2),
        "B": draw(D, 6 * H, seed=5),
    }
    nodes = [
        make("Tanh", ["X"], ["x"]),
        make(
            "GRU",
            ["x", "W", "R", "B", "lens", "h"],
            ["Y", "Y_h"],
            hidden_size=H,
            direction=direction,
            linear_before_reset=after,
        ),
        make("Relu", ["Y"], ["out"]),
    ]
    inputs = [
        onnx_models.value("X", shape=["T", "B", I]),
        onnx_models.value("lens", "int32", ["B"]),
        onnx_models.value("h", shape=[D, "B", H]),
    ]
    graph = onnx_models.graph(nodes, inputs, ["out", "Y_h"], arrays)
    source = onnx_models.save(tmp_path, onnx_models.model(graph, opset=opset))
    path = tmp_path / "converted.xml"
    openvino.save_model(openvino.convert_model(source), path, compress_to_fp16=False)
    feeds = {"X": draw(T, B, I), "lens": np.array([T] * B, np.int32), "h": draw(D, B, H, seed=8)}
    model = check(path, feeds, grus=1)
    feeds["lens"] = np.array([T, 2, 4], np.int32)  # which OpenVINO ignores where X's shape is open
    check(path, feeds, grus=1, with_openvino=False)
    assert model.gru_nodes[0].layer is not None  # weights through other layers are computed once
    expected = onegru.load(source).run(feeds)
    for name, array in model.run(feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)


def test_weights_computed_from_constants(tmp_path: Path) -> None:
    """Reshape, Transpose and FakeQuantize of constants: once, ahead of every run."""
    x = ops.parameter([-1, -1, I], np.float32, name="x")
    h = ops.parameter([-1, 1, H], np.float32, name="h")
    lens = ops.parameter([-1], np.int64, name="lens")
    low, high = ops.constant(np.float32(-0.5)), ops.constant(np.float32(0.5))
    W = ops.transpose(ops.constant(draw(1, I, 3 * H)), ops.constant(np.array([0, 2, 1])))
    R = ops.fake_quantize(ops.constant(draw(1, 3 * H, H)), low, high, low, high, 256)
    Bias = ops.reshape(ops.constant(draw(3, H)), ops.constant(np.array([1, -1])), False)
    gru = ops.gru_sequence(x, h, lens, W, R, Bias, H, "forward")
    path = tmp_path / "x.xml"
    # OpenVINO would fold them itself: keep them as they are.
    model = openvino.Model([ops.result(gru.output(0))], [x, h, lens], "test")
    openvino.serialize(model, path)
    assert "FakeQuantize" in path.read_text()
    gru.output(0).set_names({"out"})
    openvino.serialize(model, path)
    feeds = {"x": draw(B, T, I), "h": draw(B, 1, H), "lens": np.array([T] * B)}
    loaded = check(path, feeds, grus=1)
    layer = loaded.gru_nodes[0].layer
    assert layer is not None
    assert len(np.unique(layer.weights.R)) <= 256
    np.testing.assert_array_equal(layer.weights.W[0], draw(1, I, 3 * H)[0].T)
    assert loaded.other_node_count == 0  # nothing is left for the run


def test_augru_between_other_layers(tmp_path: Path) -> None:
    """A file that OpenVINO cannot read at all."""
    arrays: dict[str, Any] = {"W": draw(1, 3 * H, I), "R": draw(1, 3 * H, H), "B": draw(1, 3 * H)}
    x, lengths = draw(B, T, I, seed=4), np.array([T, 1, 4], np.int32)

    def write(version: str) -> Path:
        ir = IrWriter()
        value = ir.parameter("x", "float32", "?,?,4")
        lens = ir.parameter("lens", "int32", "?")
        zeros = ir.const("h", np.zeros((B, 1, H), np.float32))
        moved = ir.layer("Tanh", "tanh", {}, [value])[0]
        score = ir.layer(
            "ReduceMean", "mean", {"keep_dims": "true"}, [moved, ir.const("last", np.array([2]))]
        )[0]
        score = ir.layer("Sigmoid", "score", {}, [score])[0]
        inputs = [moved, zeros, lens, *(ir.const(name, array) for name, array in arrays.items()), score]
        y, ho = ir.gru("augru_sequence", "augru", {"hidden_size": H}, inputs)
        ir.result("y", ir.layer("Relu", "relu", {}, [y], names=["y"])[0])
        ir.result("ho", ho)
        path = ir.write(tmp_path / "augru.xml")
        path.write_text(path.read_text().replace("ie_internal_opset", version))
        return path

    tanh = np.tanh(x)
    score = 1 / (1 + np.exp(-tanh.mean(2, keepdims=True)))
    Y, Ho = onegru.augru_sequence(
        tanh, np.zeros((B, 1, H), np.float32), lengths, **arrays, A=score, hidden_size=H, engine="reference"
    )
    for version in ("ie_internal_opset", "extension"):
        path = write(version)
        found = onegru.load(path).run({"x": x, "lens": lengths})
        np.testing.assert_allclose(found["y"], np.maximum(Y, 0), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found["augru.Ho"], Ho, rtol=0, atol=1e-6)
        with pytest.raises(RuntimeError):
            openvino.Core().read_model(path)


def test_augru_cells_against_openvinos_own(tmp_path: Path) -> None:
    """Core.read_model reads no AUGRU layer, but compile_model reads an AUGRUCell straight from a file."""
    arrays: dict[str, Any] = {"X": draw(B, I), "H_t": draw(B, H, seed=2)}
    arrays |= {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H), "A": draw(B, 1, seed=5)}
    path = write_case(
        tmp_path / "x.xml", "augru_cell", arrays, {"hidden_size": H, "activations": "sigmoid,tanh"}
    )
    feeds = {name: arrays[name] for name in ("X", "H_t", "A")}
    check(path, feeds, grus=1)


def test_grus_in_onegrus_own_version(tmp_path: Path) -> None:
    ir = IrWriter()
    arrays: dict[str, Any] = {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H)}
    values = [ir.parameter("X", "float32", "?,4"), ir.parameter("h", "float32", "?,5")]
    values += [ir.const(name, array) for name, array in arrays.items()]
    ir.result("out", ir.gru("gru_cell", "gru", {"hidden_size": H}, values)[0])
    path = ir.write(tmp_path / "x.xml")
    path.write_text(path.read_text().replace('version="opset3"', 'version="extension"'))
    X, h = draw(B, I), draw(B, H)
    found = onegru.load(path).run({"X": X, "h": h})["gru.Ho"]
    np.testing.assert_array_equal(found, onegru.gru_cell(X, h, **arrays, hidden_size=H))


# Types and values


NUMBERS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64"]
NUMBERS += ["uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("dtype", [*NUMBERS, "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_every_element_type_goes_in_and_out(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    x = ops.parameter([-1, 3], openvino.Type.bf16 if dtype == "bfloat16" else np.dtype(dtype), name="x")
    doubled = ops.concat([x, x], 0)
    path = save(tmp_path / "x.xml", {"out": doubled.output(0)}, [x])
    given = np.arange(shape[0] * 3).reshape(shape).astype(onnx_models.numpy_type(dtype))
    given.flags.writeable = False
    model = onegru.load(path)
    assert model.inputs[0].dtype == model.outputs[0].dtype == dtype
    out = model.run({"x": given})["out"]
    assert out.dtype == given.dtype
    np.testing.assert_array_equal(out, np.concatenate([given, given]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_grus_of_other_types_between_other_layers(tmp_path: Path, dtype: str) -> None:
    numpy_type = onnx_models.numpy_type(dtype)
    ir = IrWriter()
    arrays: dict[str, Any] = {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H)}
    arrays = {name: array.astype(numpy_type) for name, array in arrays.items()}
    x, h = ir.parameter("x", dtype, "?,4"), ir.parameter("h", dtype, "?,5")
    moved = ir.layer("Relu", "before", {}, [x], dtype=dtype)[0]
    gru = ir.gru(
        "gru_cell", "gru", {"hidden_size": H}, [moved, h, *(ir.const(n, a) for n, a in arrays.items())]
    )[0]
    ir.result("out", ir.layer("Relu", "after", {}, [gru], dtype=dtype, names=["out"])[0])
    X, state = draw(B, I).astype(numpy_type), draw(B, H).astype(numpy_type)
    found = onegru.load(ir.write(tmp_path / "x.xml")).run({"x": X, "h": state})["out"]
    expected = onegru.gru_cell(np.maximum(X, 0), state, **arrays, hidden_size=H)
    assert found.dtype == numpy_type
    tolerance = 1e-7 if dtype == "float64" else 0  # OpenVINO's CPU computes float64 layers in float32
    np.testing.assert_allclose(
        found.astype(np.float64), np.maximum(expected, 0).astype(np.float64), rtol=0, atol=tolerance
    )


def test_inputs_that_are_not_contiguous(tmp_path: Path) -> None:
    x = ops.parameter([-1, 3], np.float32, name="x")
    path = save(tmp_path / "x.xml", {"out": ops.negative(x).output(0)}, [x])
    given = draw(3, 4).T
    np.testing.assert_array_equal(onegru.load(path).run({"x": given})["out"], -given)


def test_packed_constants_are_openvinos_to_unpack(tmp_path: Path) -> None:
    """Four-bit weights of a MatMul, as weight compression writes them."""
    ir = IrWriter()
    x = ir.parameter("x", "float32", "?,4")
    data = {"element_type": "u4", "shape": "4, 2", "offset": "0", "size": "4"}
    ir.weights += bytes([0x10, 0x32, 0x54, 0x76])
    packed = ir.layer("Const", "packed", data)[0]
    wide = ir.convert("wide", packed, "float32")
    transposes = {"transpose_a": "false", "transpose_b": "false"}
    ir.result("r", ir.layer("MatMul", "matmul", transposes, [x, wide], names=["out"])[0])
    path = ir.write(tmp_path / "x.xml")
    path.write_text(path.read_text().replace('precision="FP32" />', 'precision="U4" />', 2))
    X = draw(B, 4)
    numbers = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_allclose(onegru.load(path).run({"x": X})["out"], X @ numbers, rtol=0, atol=1e-6)


def test_constants_as_outputs(tmp_path: Path) -> None:
    ir = IrWriter()
    constant = ir.const("c", draw(2, 3))
    ir.result("plain", constant)
    ir.result("changed", ir.layer("Relu", "relu", {}, [constant], names=["relu"])[0])
    model = onegru.load(ir.write(tmp_path / "x.xml"))
    names = [info.name for info in model.outputs]
    first = model.run({})
    first[names[0]][...] = 9  # the caller's own: the next run does not see it
    first[names[1]][...] = 9
    second = model.run({})
    np.testing.assert_array_equal(second[names[0]], draw(2, 3))
    np.testing.assert_array_equal(second["relu"], np.maximum(draw(2, 3), 0))


def test_models_pickle(tmp_path: Path) -> None:
    model = onegru.load(small(tmp_path))
    text = pickle.dumps(model)
    for path in tmp_path.iterdir():
        path.unlink()  # the twin needs the files no more
    twin = pickle.loads(text)
    x = draw(B, T, I)
    np.testing.assert_array_equal(twin.run({"x": x})["out"], model.run({"x": x})["out"])


def test_threads_may_share_a_model(tmp_path: Path) -> None:
    model = onegru.load(small(tmp_path))
    inputs = [draw(1 + seed, T, I, seed=seed) for seed in range(6)]
    expected = [model.run({"x": x})["out"] for x in inputs]
    wrong: list[int] = []

    def work(place: int) -> None:
        for _ in range(20):
            if not np.array_equal(model.run({"x": inputs[place]})["out"], expected[place]):
                wrong.append(place)

    run_threads(work, range(len(inputs)))
    assert not wrong


def test_outputs_are_the_callers_own(tmp_path: Path) -> None:
    model = onegru.load(small(tmp_path))
    first = model.run({"x": draw(B, T, I)})["out"]
    kept = first.copy()
    model.run({"x": draw(B, T, I, seed=8)})
    np.testing.assert_array_equal(first, kept)


def test_without_openvino(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["openvino"] = None
        import onegru
        try:
            onegru.load(sys.argv[1])
        except onegru.MissingExtraError as error:
            print(error.package, error.extra, error)
    """
    path = small(tmp_path)
    result = run_python(code, path, status=None)
    assert re.fullmatch(
        rf"openvino openvino {re.escape(str(path))}: \w+ layer '\w+' needs openvino: "
        r"pip install 'onegru\[openvino\]'\n",
        result.stdout,
    ), result.stdout + result.stderr


@pytest.mark.long
@linux
def test_models_are_freed(tmp_path: Path) -> None:
    """OpenVINO keeps Python's operators for ever; what they took goes with the model."""
    hidden = 512
    x = ops.parameter([2, 3, I], np.float32, name="x")
    first = ops.squeeze(sequence(x, I, hidden).output(0), ops.constant(np.int64(1)))
    path = save(tmp_path / "m.xml", {"y": sequence(first, hidden, hidden).output(0)}, [x])
    program = """
        import gc, os, sys
        import onegru
        held = []
        for turn in range(30):
            onegru.load(sys.argv[1])
            gc.collect()
            held.append(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE"))
        print(held[-1] - held[9])
    """
    grown = int(run_python(program, path).stdout)
    assert grown < 2 * path.with_suffix(".bin").stat().st_size


def test_a_rank_that_only_known_sizes_tell(tmp_path: Path) -> None:
    """A Squeeze without axes: OpenVINO compiles it only for known sizes."""

    def written(name: str, squeezed: bool) -> Path:
        x = ops.parameter([-1, -1, I], np.float32, name="x")
        Y = sequence(x, I).output(0)
        return save(tmp_path / name, {"out": opset15.squeeze(Y).output(0) if squeezed else Y}, [x])

    model, plain = onegru.load(written("squeeze.xml", True)), onegru.load(written("plain.xml", False))
    for steps in (3, 5, 3, 7, 9, 11, 13, 3):
        feeds = {"x": draw(B, steps, I, seed=steps)}
        np.testing.assert_array_equal(model.run(feeds)["out"], plain.run(feeds)["out"][:, 0])


@posix
def test_in_a_child_that_was_forked(tmp_path: Path) -> None:
    """OpenVINO's own threads are not there."""
    result = run_python(
        """
        import os, signal, sys
        import numpy as np, onegru
        model = onegru.load(sys.argv[1])
        good = {"x": np.ones((2, 3, 4), np.float32)}
        wanted = model.run(good)["out"]
        for _ in range(40):  # for any sizes, then for these; without a pause before it, 1 fork of 30 hangs
            if (child := os.fork()) == 0:
                signal.alarm(30)
                os._exit(0 if np.array_equal(model.run(good)["out"], wanted) else 1)
            assert os.waitpid(child, 0)[1] == 0
            model.run(good)
        print("fine")
        """,
        small(tmp_path),
        options=["-W", "ignore"],
    )
    assert result.stdout == "fine\n", result.stderr


def test_what_was_fused_is_called_by_its_file(tmp_path: Path) -> None:
    x = ops.parameter([B, -1, I], np.float32, name="x")
    state = ops.constant(np.zeros((B, 1, H), np.float32))
    gru = ops.gru_sequence(x, state, ops.constant(np.full(B, T + 1, np.int32)), *weights(I), H, "forward")
    path = save(tmp_path / "long.xml", {"out": ops.relu(gru.output(0)).output(0)}, [x])
    model = onegru.load(path, fuse=True)
    with pytest.raises(onegru.SpecError, match=rf"^{re.escape(str(path))}: GRUSequence node .*lengths"):
        model.run({"x": draw(B, T, I)})


def test_inputs_that_are_outputs_as_they_are(tmp_path: Path) -> None:
    """OpenVINO mixes such arrays up where it is given memory for both ends."""
    x, z = (ops.parameter([1, I], np.float32, name=name) for name in "xz")
    outputs = {"sum": ops.relu(ops.add(x, z)).output(0)}
    path = save(tmp_path / "passed.xml", outputs | {"x": x.output(0), "z": z.output(0)}, [x, z])
    model = onegru.load(path)
    for seed in range(2):
        feeds = {"x": draw(1, I, seed=seed), "z": draw(1, I, seed=seed + 2)}
        found = model.run(feeds)
        for name, array in (feeds | {"sum": np.maximum(feeds["x"] + feeds["z"], 0)}).items():
            np.testing.assert_array_equal(found[name], array)


def _in_a_row(values: Any) -> Any:
    return ops.reshape(values, ops.constant(np.array([-1, 1])), False)


def _largest(values: Any, axes: Any) -> Any:
    return ops.reduce_max(values, ops.constant(np.array(axes)), False)


def _moved(values: Any) -> Any:
    return ops.transpose(values, ops.constant(np.array([0, 2, 1])))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    ("sizes", "build", "expected"),
    [
        ((2, 1, 4, 1), lambda x: _moved(_largest(x, [1])), lambda x: x.max(1).swapaxes(1, 2)),
        ((2, 3, 4, 1), lambda x: _moved(_largest(x, [1])), lambda x: x.max(1).swapaxes(1, 2)),
        ((2, 3, 4), lambda x: _in_a_row(_largest(x, [1])), lambda x: x.max(1).reshape(-1, 1)),
        ((2, 3, 4), lambda x: _in_a_row(_largest(x, [-2])), lambda x: x.max(1).reshape(-1, 1)),
        ((2, 3, 4), lambda x: _in_a_row(_largest(x, 1)), lambda x: x.max(1).reshape(-1, 1)),
    ],
    ids=["axis of one", "moved axis of one", "in a row", "negative axis", "scalar axis"],
)
def test_what_follows_a_reduction(
    tmp_path: Path, sizes: tuple[int, ...], build: Any, expected: Any, is_open: bool
) -> None:
    """OpenVINO drops a Transpose or a Reshape after a reduction that removes its axes."""
    x = ops.parameter([-1] * len(sizes) if is_open else sizes, np.float32, name="x")
    model = onegru.load(save(tmp_path / "reduced.xml", {"y": build(x).output(0)}, [x]))
    for seed in range(3):  # from the second run on, the model is compiled for these sizes
        x = draw(*sizes, seed=seed)
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected(x), strict=True)


def _twisted(x: Any, *layers: Callable[[Any], Any], before: Any = lambda x: x) -> Any:
    """A convolution, and layers between two Transposes of what it gives."""
    kernel = ops.constant(draw(5, 5, 2, seed=9))
    moved = _moved(before(ops.convolution(x, kernel, [1], [0], [0], [1])))
    for layer in layers:
        moved = layer(moved)
    return _moved(moved)


def _numbers(*sizes: int) -> Any:
    return ops.constant(draw(*sizes, seed=5))


TWISTED: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: _twisted(x, ops.relu),
    "gelu": lambda x: _twisted(x, lambda y: ops.gelu(y, "erf")),
    "a number": lambda x: _twisted(x, lambda y: ops.multiply(_numbers(1), y)),
    "two": lambda x: _twisted(x, ops.relu, ops.tanh),
    "bias": lambda x: _twisted(x, ops.relu, before=lambda y: ops.add(y, _numbers(1, 5, 1))),
    "activation before": lambda x: _twisted(x, ops.sigmoid, before=ops.abs),
    "bias between": lambda x: _twisted(x, lambda y: ops.add(y, _numbers(5)), ops.relu),
    "scale and bias between": lambda x: _twisted(
        x, lambda y: ops.multiply(y, _numbers(5)), lambda y: ops.add(y, _numbers(5)), ops.tanh
    ),
    "two users": lambda x: _twisted(x, lambda y: ops.add(y, ops.sigmoid(y)), ops.relu),
    "product with a gate": lambda x: _twisted(x, lambda y: ops.multiply(y, ops.sigmoid(y))),
    "exp": lambda x: _twisted(x, ops.exp),
}


@pytest.mark.parametrize("name", TWISTED)
def test_layers_between_transposes_of_a_convolution(tmp_path: Path, name: str) -> None:
    """OpenVINO computes some of them on the wrong elements where all sizes are fixed."""
    X = draw(2, 5, 7)
    x = ops.parameter([-1, 5, -1], np.float32, name="x")
    build = TWISTED[name]
    network = openvino.Model([build(x)], [x])
    wanted = openvino.Core().compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([X])[0]
    fixed = ops.parameter(X.shape, np.float32, name="x")
    model = onegru.load(save(tmp_path / "fixed.xml", {"y": build(fixed).output(0)}, [fixed]))
    np.testing.assert_allclose(model.run({"x": X})["y"], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def test_results_that_differ_for_fixed_sizes_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onegru.formats.openvino.network.work_around_faults", lambda network: None)
    x = ops.parameter([-1, 5, -1], np.float32, name="x")
    model = onegru.load(save(tmp_path / "open.xml", {"y": TWISTED["relu"](x).output(0)}, [x]))
    first, *others = (model.run({"x": draw(2, 5, 7)})["y"] for _ in range(4))
    for result in others:
        np.testing.assert_array_equal(result, first)
