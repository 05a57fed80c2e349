"""GRU layers of OpenVINO's models replaced by onegru's: the bits of the function, in bodies too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset8 as ops
from openvino import opset15, opset16

import onegru
import onegru.runtimes.openvino_replace as openvino_replace
from onegru import SpecError, SpecWarning
from tests.support.cases import Case, openvino_cases
from tests.support.comparison import same_bits
from tests.support.files import openvino_models as models
from tests.support.machine.processes import run_python
from tests.support.suite.selection import examples

T, B, I, H = 5, 2, 3, 4
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
RNG = np.random.default_rng(11)


def draw(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def run(model: Any, feeds: Mapping[str, Any]) -> list[Any]:
    compiled = openvino.Core().compile_model(model, "CPU", SETTINGS)
    request = compiled.create_infer_request()
    request.infer(dict(feeds))
    if lost := onegru.openvino.errors():  # on one CPU
        raise RuntimeError(lost[0])
    return [np.array(request.get_tensor(output).data) for output in compiled.outputs]


@pytest.fixture(params=["C++", "Python"])
def operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two operators stands in the place of a layer."""
    if request.param == "Python":
        monkeypatch.setattr(openvino_replace, "_factory", lambda: None)
    else:
        assert openvino_replace._factory() is not None, "built where OpenVINO's wheel is there for the build"
    return str(request.param)


def test_an_operator_of_another_release_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_replace, "RELEASE", (9999, 99))
    with pytest.warns(
        RuntimeWarning, match="GRU layers in OpenVINO run through Python.*, but OpenVINO is 9999.99;"
    ):
        assert openvino_replace._factory.__wrapped__() is None


NODES: Mapping[str, Callable[..., Any]] = {"gru_cell": ops.gru_cell, "gru_sequence": ops.gru_sequence}


@pytest.mark.filterwarnings("ignore::onegru.SpecWarning")
@pytest.mark.parametrize("native", [True, False])
@examples(60)
@given(openvino_cases(), st.booleans())
def test_one_layer_has_the_bits_of_the_function(native: bool, case: Case, is_constant: bool) -> None:
    if case.dtype.name != "float32":
        return  # OpenVINO's Python makes no constants of the others in one way
    if is_constant and any(a is not None and a.size == 0 for a in case.inputs.values()):
        return  # nor empty ones
    classes = {cls.operator.name.lower(): cls for cls in onegru.openvino.extensions()}
    cls = classes[case.function.replace("_", "")]
    inputs, parameters, feeds = [], [], {}
    for port in cls.operator.inputs:
        array = case.inputs.get(port.name)
        if array is None:
            continue
        if is_constant and port.role in ("W", "R", "B"):
            inputs.append(ops.constant(array))
        else:
            parameter = ops.parameter(array.shape, array.dtype, name=port.name)
            parameter.output(0).get_tensor().set_names({port.name})
            inputs.append(parameter)
            parameters.append(parameter)
            feeds[port.name] = array
    node = cls(inputs, **case.attributes)
    model = openvino.Model([ops.result(output) for output in node.outputs()], parameters, "m")
    factory = openvino_replace._factory
    if not native:
        openvino_replace._factory = lambda: None  # type: ignore[assignment]
    try:
        if feeds["X"].shape[0] == 0:
            with pytest.raises(SpecError, match="fixed batch size 0"):
                onegru.openvino.replace_grus(model)
            return
        assert onegru.openvino.replace_grus(model) == 1
    finally:
        openvino_replace._factory = factory
    wanted = getattr(onegru, case.function)(**case.arguments)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    if any(array.size == 0 for array in (*feeds.values(), *wanted)):
        return  # OpenVINO does not run nodes whose outputs are empty
    for got, want in zip(run(model, feeds), wanted, strict=True):
        assert same_bits(got, want), case


# --- bodies


WEIGHTS: dict[str, Any] = {"W": draw(3 * H, I), "R": draw(3 * H, H), "B": draw(3 * H)}


def constants() -> list[Any]:
    return [ops.constant(array) for array in WEIGHTS.values()]


def cell(x: Any, h: Any) -> Any:
    return ops.gru_cell(x, h, *constants(), H)


def exact(X: Any, h: Any, reverse: bool = False) -> Any:
    for t in range(X.shape[1])[:: -1 if reverse else 1]:
        h = onegru.gru_cell(X[:, t], h, **WEIGHTS, hidden_size=H)
    return h


def iterated(reverse: bool, weights_outside: bool = False) -> Any:
    """A TensorIterator over steps of X: sliced inputs, a back edge."""
    x, h = ops.parameter([-1, -1, I], np.float32, name="x"), ops.parameter([-1, H], np.float32, name="h")
    inner_x, inner_h = ops.parameter([-1, 1, I], np.float32), ops.parameter([-1, H], np.float32)
    step = ops.squeeze(inner_x, ops.constant(np.array([1])))
    inner: list[Any] = []
    if weights_outside:
        inner = [ops.parameter(array.shape, np.float32) for array in WEIGHTS.values()]
        made = ops.gru_cell(step, inner_h, *inner, H)
    else:
        made = cell(step, inner_h)
    loop = ops.tensor_iterator()
    loop.set_body(openvino.Model([ops.result(made)], [inner_x, inner_h, *inner], "body"))
    if reverse:
        loop.set_sliced_input(inner_x, x.output(0), -1, -1, 1, 0, 1)
    else:
        loop.set_sliced_input(inner_x, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(inner_h, h.output(0), made.output(0))
    for parameter, constant in zip(inner, constants(), strict=False):
        loop.set_invariant_input(parameter, constant.output(0))
    last = loop.get_iter_value(made.output(0), -1)
    return openvino.Model([ops.result(last)], [x, h], "iterated")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("weights_outside", [False, True])
def test_a_cell_in_a_tensor_iterator(operator: str, reverse: bool, weights_outside: bool) -> None:
    model, X, h = iterated(reverse, weights_outside), draw(B, T, I), draw(B, H)
    assert onegru.openvino.replace_grus(model) == 1
    (got,) = run(model, {"x": X, "h": h})
    assert same_bits(got, exact(X, h, reverse))
    model.reshape({"x": [B, T, I], "h": [B, H]})
    assert same_bits(run(model, {"x": X, "h": h})[0], got)


def test_a_cell_in_a_loop(operator: str) -> None:
    x, h = ops.parameter([-1, I], np.float32, name="x"), ops.parameter([-1, H], np.float32, name="h")
    inner_x, inner_h = ops.parameter([-1, I], np.float32), ops.parameter([-1, H], np.float32)
    made = cell(inner_x, inner_h)
    going = ops.constant(np.array([True]))
    loop = ops.loop(ops.constant(np.array(T)), ops.constant(np.array(True)))
    loop.set_function(openvino.Model([ops.result(made), ops.result(going)], [inner_x, inner_h], "body"))
    loop.set_special_body_ports([-1, 1])
    loop.set_invariant_input(inner_x, x.output(0))
    loop.set_merged_input(inner_h, h.output(0), made.output(0))
    model = openvino.Model([ops.result(loop.get_iter_value(made.output(0), -1))], [x, h], "m")
    assert onegru.openvino.replace_grus(model) == 1
    X, state = draw(B, I), draw(B, H)
    wanted = exact(np.repeat(X[:, None], T, 1), state)
    assert same_bits(run(model, {"x": X, "h": state})[0], wanted)


def test_a_cell_in_an_if(operator: str) -> None:
    flag = ops.parameter([], bool, name="flag")
    x, h = ops.parameter([-1, I], np.float32, name="x"), ops.parameter([-1, H], np.float32, name="h")
    branch = ops.if_op(flag)
    bodies = []
    for make in (cell, lambda _, inner: ops.negative(inner)):
        inner_x, inner_h = ops.parameter([-1, I], np.float32), ops.parameter([-1, H], np.float32)
        result = ops.result(make(inner_x, inner_h))
        used = [inner_x, inner_h] if make is cell else [inner_h]
        bodies.append(
            (inner_x if make is cell else None, inner_h, result, openvino.Model([result], used, "b"))
        )
    branch.set_then_body(bodies[0][3])
    branch.set_else_body(bodies[1][3])
    branch.set_input(x.output(0), bodies[0][0], None)
    branch.set_input(h.output(0), bodies[0][1], bodies[1][1])
    out = branch.set_output(bodies[0][2], bodies[1][2])
    model = openvino.Model([ops.result(out)], [flag, x, h], "m")
    assert onegru.openvino.replace_grus(model) == 1
    X, state = draw(B, I), draw(B, H)
    for value, wanted in ((True, exact(X[:, None], state)), (False, -state)):
        assert same_bits(run(model, {"flag": np.array(value), "x": X, "h": state})[0], wanted)


def both_directions(*pairs: list[str]) -> Any:
    """A bidirectional layer for each list of activations, all over one x."""
    x = ops.parameter([B, T, I], np.float32, name="x")
    lengths, state = ops.constant(np.full(B, T)), ops.constant(draw(B, 2, H))
    results = []
    for place, names in enumerate(pairs):
        weights = (ops.constant(draw(*shape)) for shape in ((2, 3 * H, I), (2, 3 * H, H), (2, 3 * H)))
        layer = ops.gru_sequence(x, state, lengths, *weights, H, "bidirectional", activations=names)
        layer.set_friendly_name(f"gru {place}")
        results.append(ops.result(layer.output(0)))
    return openvino.Model(results, [x], "m")


def test_activations_of_both_directions(tmp_path: Path) -> None:
    """OpenVINO's converter copies four names from a bidirectional ONNX node, and runs the first two."""
    model = both_directions(["sigmoid", "tanh"], ["sigmoid", "relu", "sigmoid", "relu"])
    X = {"x": draw(B, T, I)}
    expected = run(model, X)
    openvino.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    assert onegru.openvino.replace_grus(model) == 2
    loaded = onegru.load(tmp_path / "m.xml").run(X)
    for found in (run(model, X), list(loaded.values())):
        for array, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-6)


def test_a_refusal_names_the_layer_and_leaves_the_model_as_it_is() -> None:
    model = both_directions(["sigmoid", "tanh"], ["sigmoid", "tanh", "sigmoid", "relu"])
    with pytest.raises(SpecError, match=r"GRUSequence layer 'gru 1': activations: two different pairs, si"):
        onegru.openvino.replace_grus(model)
    kinds = [node.get_type_name() for node in model.get_ordered_ops()]
    assert kinds.count("GRUSequence") == 2


def test_a_fixed_batch_of_0_is_refused() -> None:
    """OpenVINO leaves the states unwritten, in a shape with a batch of 1."""
    x, h = ops.parameter([0, 5, I], np.float32), ops.parameter([0, 1, H], np.float32)
    lengths = ops.parameter([0], np.int32)
    arrays = [ops.constant(array[None]) for array in WEIGHTS.values()]
    made = ops.gru_sequence(x, h, lengths, *arrays, H, "forward")
    model = openvino.Model([ops.result(output) for output in made.outputs()], [x, h, lengths], "m")
    with pytest.raises(SpecError, match="fixed batch size 0; must be dynamic or at least 1"):
        onegru.openvino.replace_grus(model)


@pytest.mark.parametrize("writer", ["save_model", "export_model"])
def test_what_reads_a_written_model_says_to_save_it_before(
    operator: str, writer: str, tmp_path: Path
) -> None:
    """OpenVINO writes the layers as any other; the reader's error is the only place for a remedy."""
    model = sequence_with_lengths([5, 5])
    onegru.openvino.replace_grus(model)
    path, core = tmp_path / "m.xml", openvino.Core()
    with pytest.raises(RuntimeError, match=r"save the model before onegru\.openvino\.replace_grus"):
        if writer == "save_model":
            openvino.save_model(model, path)
            core.read_model(path)
        core.import_model(core.compile_model(model, "CPU").export_model(), "CPU")
    if writer == "save_model":
        with pytest.raises(onegru.FormatError, match="save the model before"):
            onegru.load(path)


def test_it_must_be_a_model() -> None:
    with pytest.raises(SpecError, match=r"model: 3; must be an openvino\.Model"):
        onegru.openvino.replace_grus(3)


def sequence_with_lengths(lengths: list[int], dtype: Any = np.int32) -> Any:
    x = ops.parameter([2, -1, I], np.float32, name="x")
    h = ops.constant(np.zeros((2, 1, H), np.float32))
    arrays = [ops.constant(array[None]) for array in WEIGHTS.values()]
    made = ops.gru_sequence(x, h, ops.constant(np.array(lengths, dtype)), *arrays, H, "forward")
    return openvino.Model([ops.result(made.output(0))], [x], "m")


def test_lengths_hold_when_a_model_is_reshaped_again(operator: str) -> None:
    model = sequence_with_lengths([5, 5])
    model.reshape([2, 5, I])
    onegru.openvino.replace_grus(model)
    model.reshape([2, 7, I])
    X = draw(2, 7, I)
    (got,) = run(model, {0: X})  # type: ignore[dict-item]
    arrays = {name: array[None] for name, array in WEIGHTS.items()}
    wanted: Any = onegru.gru_sequence(X, np.zeros((2, 1, H), np.float32), [5, 5], **arrays, hidden_size=H)
    assert same_bits(got, wanted[0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, np.float32, np.float64])
def test_lengths_of_any_type(operator: str, dtype: Any) -> None:
    model = sequence_with_lengths([5, 3], dtype)
    onegru.openvino.replace_grus(model)
    X = draw(2, 5, I)
    (got,) = run(model, {0: X})  # type: ignore[dict-item]
    arrays = {name: array[None] for name, array in WEIGHTS.items()}
    wanted: Any = onegru.gru_sequence(X, np.zeros((2, 1, H), np.float32), [5, 3], **arrays, hidden_size=H)
    assert same_bits(got, wanted[0])


@pytest.mark.parametrize("known", ["lengths", "state"])
def test_a_batch_that_x_leaves_open(known: str, operator: str) -> None:
    """What follows may need the batch size, as a Squeeze without axes drops it where it is 1."""
    x = ops.parameter([-1, 5, I], np.float32, name="x")
    h = ops.parameter([1 if known == "state" else -1, 1, H], np.float32, name="h")
    lengths = ops.parameter([1 if known == "lengths" else -1], np.int32, name="lengths")
    arrays = [ops.constant(array[None]) for array in WEIGHTS.values()]
    last = ops.gru_sequence(x, h, lengths, *arrays, H, "forward").output(1)
    model = openvino.Model([ops.result(ops.relu(opset15.squeeze(last)))], [x, h, lengths], "m")
    onegru.openvino.replace_grus(model)
    assert model.outputs[0].get_partial_shape() == openvino.PartialShape([H])
    X, state, named = draw(1, 5, I), draw(1, 1, H), {name: array[None] for name, array in WEIGHTS.items()}
    (got,) = run(model, {0: X, 1: state, 2: np.array([4], np.int32)})  # type: ignore[dict-item]
    wanted: Any = onegru.gru_sequence(X, state, [4], **named, hidden_size=H)
    assert same_bits(got, np.maximum(wanted[1][0, 0], 0))


def test_a_batch_of_a_cell_that_x_leaves_open(operator: str) -> None:
    x, h = ops.parameter([-1, I], np.float32, name="x"), ops.parameter([1, H], np.float32, name="h")
    cell = ops.gru_cell(x, h, *map(ops.constant, WEIGHTS.values()), H)
    model = openvino.Model([ops.result(opset15.squeeze(cell))], [x, h], "m")
    onegru.openvino.replace_grus(model)
    assert model.outputs[0].get_partial_shape() == openvino.PartialShape([H])
    X, state = draw(1, I), draw(1, H)
    (got,) = run(model, {0: X, 1: state})  # type: ignore[dict-item]
    assert same_bits(got, onegru.gru_cell(X, state, **WEIGHTS, hidden_size=H)[0])


def test_lengths_beyond_the_steps_are_refused(operator: str) -> None:
    model = sequence_with_lengths([5, 9])
    onegru.openvino.replace_grus(model)
    with pytest.raises(RuntimeError, match=r"OneGRU node '.*': sequence_lengths"):
        run(model, {0: draw(2, 5, I)})  # type: ignore[dict-item]


CACHED = """
import os, sys
import numpy as np, openvino, onegru
core = openvino.Core()
core.set_property({"CACHE_DIR": sys.argv[1]})
x = np.ones((2, 5, 3), np.float32)
for _ in range(2):
    found = []
    for path in sys.argv[2:]:
        model = core.read_model(path)
        assert onegru.openvino.replace_grus(model) == 1
        found.append(float(core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0].sum()))
print(found, len(os.listdir(sys.argv[1])))
"""


def test_the_cache_has_one_file_for_each_model(tmp_path: Path) -> None:
    """And gives no model's results for those of another, which differs only in its weights."""
    paths = []
    for scale in (1, 2):
        model = sequence_with_lengths([5, 5])
        model.reshape([2, 5, I])
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Constant" and node.get_element_type() == openvino.Type.f32:
                node.get_tensor_view().data[...] *= scale
        paths.append(tmp_path / f"{scale}.xml")
        openvino.save_model(model, paths[-1], compress_to_fp16=False)
    x = np.ones((2, 5, I), np.float32)
    wanted = [float(next(iter(onegru.load(path).run({"x": x}).values())).sum()) for path in paths]
    assert wanted[0] != wanted[1]
    for order in (paths, paths, paths[::-1]):  # in a process each
        said = run_python(CACHED, tmp_path / "cache", *order).stdout
        assert said == f"{wanted if order is paths else wanted[::-1]} 2\n"


def _whole(array: Any) -> Any:
    return ops.constant(array)


def _unsqueezed(array: Any) -> Any:
    zero = ops.constant(np.array([0]))
    return ops.concat([ops.unsqueeze(ops.constant(part), zero) for part in array], 0)


def _halved(array: Any) -> Any:
    return ops.convert(ops.constant(array.astype(np.float16)), "f32")


def _turned(array: Any) -> Any:
    turned = np.ascontiguousarray(np.moveaxis(array, -1, 0))
    order = np.roll(np.arange(array.ndim), -1)
    return ops.transpose(ops.constant(turned), ops.constant(order))


def _rounded(array: Any) -> Any:
    bounds = [ops.constant(np.float32(sign)) for sign in (-1, 1, -1, 1)]
    return ops.fake_quantize(ops.constant(array), *bounds, 255)


def _cut(array: Any) -> Any:
    """Each row by itself, and all of them put together again."""
    whole = ops.constant(array)
    axis, rows = ops.constant(np.array([1])), array.shape[1]
    number = [ops.constant(np.array([row])) for row in range(rows + 1)]
    step = ops.constant(np.array([1]))
    return ops.concat([ops.slice(whole, number[i], number[i + 1], step, axis) for i in range(rows)], 1)


def _times(array: Any) -> Any:
    """Each number 80 times doubled and halved: more layers than any exporter writes."""
    value = ops.constant(array)
    for factor in (2, 0.5) * 80:
        value = ops.multiply(value, ops.constant(np.float32(factor)))
    return value


def _same(array: Any) -> Any:
    """After an operator that only OpenVINO's CPU can compute, in newer releases."""
    same = opset16.identity(ops.constant(array))
    try:
        openvino.Core().compile_model(openvino.Model([ops.result(same)], [], "identity"), "CPU")
    except RuntimeError:
        pytest.skip("this OpenVINO has no Identity")
    return same


WAYS = (_whole, _unsqueezed, _halved, _turned, _rounded, _cut, _times, _same)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever weights are packed."""
    packed: list[object] = []
    make = onegru.GRU.from_canonical

    def from_canonical(*arguments: Any, **options: Any) -> Any:
        packed.append(arguments)
        return make(*arguments, **options)

    monkeypatch.setattr(onegru.GRU, "from_canonical", from_canonical)
    return packed


def sequence(way: Callable[[Any], Any], inputs: int = I) -> tuple[Any, dict[str, Any]]:
    """A bidirectional layer that has its weights in some way, and what those are."""
    shapes = {"W": (2, 3 * H, inputs), "R": (2, 3 * H, H), "B": (2, 3 * H)}
    arrays = {name: np.round(draw(*shape) * 127) / np.float32(128) for name, shape in shapes.items()}
    x, h = ops.parameter([B, T, inputs], np.float32), ops.constant(np.zeros((B, 2, H), np.float32))
    lengths, weights = ops.constant(np.full(B, T)), [way(array) for array in arrays.values()]
    made = ops.gru_sequence(x, h, lengths, *weights, H, "bidirectional")
    return openvino.Model([ops.result(made.output(0))], [x], "m"), arrays


@pytest.mark.parametrize("way", WAYS)
def test_constant_weights_are_packed_once(way: Any, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they pass on their way; the layer takes none of them in a run."""
    model, arrays = sequence(way)
    packed = counted(monkeypatch)
    onegru.openvino.replace_grus(model)
    layer = model.get_results()[0].input_value(0).get_node()
    assert layer.get_input_size() == 3  # X, the state, lengths
    X = draw(B, T, I)
    for _ in range(2):
        run(model, {0: X})  # type: ignore[dict-item]
    (got,) = run(model, {0: X})  # type: ignore[dict-item]
    assert len(packed) == 1
    if way is not _rounded:
        state = np.zeros((B, 2, H), np.float32)
        attributes: Any = {"hidden_size": H, "direction": "bidirectional"}
        wanted = onegru.gru_sequence(X, state, np.full(B, T), **arrays, **attributes)
        assert same_bits(got, wanted[0])


@pytest.mark.parametrize("storage", [None, "float16"])
@pytest.mark.parametrize("is_sized", [False, True])
def test_weights_that_are_constant_only_at_compile(
    storage: Any, is_sized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They depend on a size: packed once after `replace_grus`, and no warning is given."""
    x = ops.parameter([B if is_sized else -1, I], np.float32, name="x")
    h = ops.constant(np.ones((B, H), np.float32))
    size = ops.gather(ops.shape_of(x), ops.constant(np.array([0])), ops.constant(0))
    weights = [ops.multiply(c, ops.convert(ops.divide(size, size), "f32")) for c in constants()]
    model = openvino.Model([ops.result(ops.gru_cell(x, h, *weights, H))], [x], "m")
    packed = counted(monkeypatch)
    onegru.openvino.replace_grus(model, weight_storage=storage)
    compiled = openvino.Core().compile_model(model, "CPU", SETTINGS)
    X = draw(B, I)
    for _ in range(3):
        compiled({0: X})
    (got,) = compiled({0: X}).values()
    assert len(packed) <= 1  # equal weights may be in use already
    if storage is None:
        assert same_bits(got, exact(X[:, None], np.ones((B, H), np.float32)))


@pytest.mark.parametrize("storage", [None, "float16"])
def test_weights_that_change_are_reported_once_by_name(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = ops.parameter([B, I], np.float32, name="x"), ops.parameter([3 * H, I], np.float32, name="w")
    h = ops.constant(np.zeros((B, H), np.float32))
    layer = ops.gru_cell(x, h, w, *constants()[1:], H)
    layer.set_friendly_name("decoder")
    model = openvino.Model([ops.result(layer)], [x, w], "m")
    packed = counted(monkeypatch)
    onegru.openvino.replace_grus(model, weight_storage=storage)
    compiled = openvino.Core().compile_model(model, "CPU", SETTINGS)
    first, second, X = draw(3 * H, I), draw(3 * H, I), draw(B, I)
    compiled([X, first])
    compiled([X, first])
    assert len(packed) == 1
    message = r"GRU layer 'decoder': W, R, B: are not the same in each run; their \d+ bytes"
    with pytest.warns(SpecWarning, match=message):
        compiled([X, second])
    compiled([X, first])  # and does not warn again
    compiled([X, first])
    assert len(packed) >= 2


def test_weights_in_a_body_that_come_from_around_it(operator: str) -> None:
    """Constant there, after another layer in the body."""
    x, h = ops.parameter([-1, I], np.float32, name="x"), ops.parameter([-1, H], np.float32, name="h")
    flag = ops.parameter([], bool, name="flag")
    branch = ops.if_op(flag)
    inner: list[Any] = [ops.parameter([-1, I], np.float32), ops.parameter([-1, H], np.float32)]
    inner += [ops.parameter([1, *array.shape], np.float32) for array in WEIGHTS.values()]
    weights = [ops.squeeze(item, ops.constant(np.array([0]))) for item in inner[2:]]
    made = ops.result(ops.gru_cell(*inner[:2], *weights, H))
    branch.set_then_body(openvino.Model([made], inner, "then"))
    other = ops.parameter([-1, H], np.float32)
    passed = ops.result(ops.negative(other))
    branch.set_else_body(openvino.Model([passed], [other], "else"))
    branch.set_input(x.output(0), inner[0], None)
    branch.set_input(h.output(0), inner[1], other)
    for item, array in zip(inner[2:], WEIGHTS.values(), strict=True):
        outer = ops.unsqueeze(ops.constant(array), ops.constant(np.array([0])))
        branch.set_input(outer.output(0), item, None)
    model = openvino.Model([ops.result(branch.set_output(made, passed))], [flag, x, h], "m")
    onegru.openvino.replace_grus(model)
    layer = branch.get_then_body().get_results()[0].input_value(0).get_node()
    assert layer.get_input_size() == 2
    X, state = draw(B, I), draw(B, H)
    (got,) = run(model, {"flag": np.array(True), "x": X, "h": state})
    assert same_bits(got, exact(X[:, None], state))


@pytest.mark.parametrize("has_zero", [False, True])
@pytest.mark.parametrize("storage", [None, "int8"])
def test_weights_in_integers(has_zero: bool, storage: Any, operator: str, tmp_path: Path) -> None:
    """i8 or u8, Convert, Subtract, Multiply, as compressed IRs have them: packed once."""
    rng = np.random.default_rng(4)
    given: dict[str, Any] = {}
    inputs: list[Any] = []
    for name, columns in (("W", I), ("R", H)):
        q = rng.integers(0, 256, (1, 3 * H, columns)).astype(np.uint8)
        q = q if has_zero else (q.astype(np.int16) - 128).clip(-127).astype(np.int8)
        scale = rng.uniform(0.5, 1, (1, 3 * H, 1)).astype(np.float32) / 127
        zero = rng.integers(100, 150, (1, 3 * H, 1)).astype(np.float32) * has_zero
        value = ops.convert(ops.constant(q), "f32")
        value = ops.subtract(value, ops.constant(zero)) if has_zero else value
        inputs.append(ops.multiply(value, ops.constant(scale)))
        given[name] = (q.astype(np.float32) - zero) * scale
    B_ = draw(1, 3 * H)
    X = ops.parameter([2, 5, I], np.float32, name="X")
    h = ops.constant(np.zeros((2, 1, H), np.float32))
    sequence = ops.gru_sequence(
        X,
        h,
        ops.constant(np.array([5, 5])),
        *inputs,
        ops.constant(B_),
        H,
        "forward",
        linear_before_reset=False,
    )
    path = tmp_path / "m.xml"
    openvino.save_model(openvino.Model([sequence.output(0)], [X], "m"), path, compress_to_fp16=False)
    model = openvino.Core().read_model(path)
    assert onegru.openvino.replace_grus(model, weight_storage=storage) == 1
    x = draw(2, 5, I)
    found = run(model, {"X": x})[0]
    bias = np.concatenate([B_, np.zeros_like(B_)], 1)
    layer = onegru.GRU(given["W"], given["R"], bias, weight_storage=storage)
    assert same_bits(found, np.asarray(layer(x.swapaxes(0, 1).copy())[0].transpose(2, 1, 0, 3)))
    loaded = onegru.load(path, weight_storage=storage)
    assert same_bits(next(iter(loaded.run({"X": x}).values())), found)
    (gru_node,) = loaded.gru_nodes
    assert gru_node.layer is not None


class GraphCall(ctypes.Structure):
    """As native/runtimes/graph_layers.h has it."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("batch", "steps", "inputs", "D", "hidden", "element_size")),
        *((name, ctypes.c_void_p) for name in ("X", "H", "lengths")),
        ("length_size", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("A", "Y", "Ho", "run_tasks", "pool")),
        ("threads", ctypes.c_size_t),
    )


def run_in_pool(rows: int, hidden: int, threads: int) -> list[int]:
    """One call in a pool that says how large it is, and runs its tasks in turn; how many it was given."""
    counts: list[int] = []

    def run_tasks(_pool: int, count: int, task: int, data: int) -> None:
        counts.append(count)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(task)
        for index in range(count):
            function(data, index)

    callback = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_size_t] * 2)(run_tasks)
    layer = onegru.GRU(*(draw(1, 3 * hidden, size) for size in (4, hidden)))
    native = layer.prepared_engine.native
    assert native is not None
    native.set_name("large pool")
    functions = ctypes.cast(onegru._native.graph_api(), ctypes.POINTER(ctypes.c_void_p))
    opened = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(functions[0] or 0)
    closed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions[1] or 0)
    run_layer = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)(functions[2] or 0)
    X, state = draw(rows, 2, 4), np.zeros((rows, 1, hidden), np.float32)
    Y, Ho = np.empty((rows, 1, 2, hidden), np.float32), np.empty((rows, 1, hidden), np.float32)
    x, h, y, ho = (array.ctypes.data for array in (X, state, Y, Ho))
    pool = ctypes.cast(callback, ctypes.c_void_p)
    call = GraphCall(rows, 2, 4, 1, hidden, 4, x, h, None, 0, None, y, ho, pool, None, threads)
    handle = opened(b"large pool")
    assert run_layer(handle, ctypes.addressof(call)) is None
    closed(handle)
    assert same_bits(Y.transpose(2, 1, 0, 3), layer(X.swapaxes(0, 1))[0])
    return counts


@pytest.mark.parametrize("threads", [0, 65, 96, 128, 200])
@pytest.mark.parametrize(
    ("rows", "hidden", "most"),
    [(128_000, 16, 64), (800, 16, 5), (1, 1088, 10)],  # by rows, few of them, by units
)
def test_a_pool_of_more_threads_than_a_call_may_have(rows: int, hidden: int, most: int, threads: int) -> None:
    """As OpenVINO's own is on a machine of many cores. A small call uses few of them."""
    with ThreadPoolExecutor(1) as new:  # an old thread may have found that its pools do not help
        counts = new.submit(run_in_pool, rows, hidden, threads).result()
    assert counts == ([most] if threads else [])


def test_openvinos_pool_of_many_threads() -> None:
    x = ops.parameter([-1, -1, 4], np.float32, name="x")
    y = models.sequence(x, 4, 64)
    model = openvino.Model([ops.result(y.output(0))], [x], "m")
    X = draw(300, 3, 4)
    expected = run(model, {"x": X})
    onegru.openvino.replace_grus(model)
    many = {**SETTINGS, "INFERENCE_NUM_THREADS": 200}
    compiled = openvino.Core().compile_model(model, "CPU", many)
    found = compiled({0: X})[0]
    np.testing.assert_allclose(found, expected[0], rtol=0, atol=1e-5)
