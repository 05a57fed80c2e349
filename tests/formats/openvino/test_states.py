# ruff: noqa: E501 - messages and changes stand whole, on one line
"""IRs that keep states from run to run: read as streams, and compared with OpenVINO's own runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops
from openvino import passes
from openvino.op.util import Variable, VariableInfo

import onegru
from onegru import SpecError
from tests.support.files.ir_files import edit, refuse
from tests.support.files.openvino_models import H, I, draw, weights


def write(path: Path, model: Any, *transformations: Any) -> Path:
    manager = passes.Manager()
    for item in transformations:
        manager.register_pass(item)
    manager.run_passes(model)
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def made_stateful(folder: Path) -> Path:
    """A GRUSequence whose state MakeStateful hides."""
    x, h = ops.parameter([1, 1, I], np.float32, name="x"), ops.parameter([1, 1, H], np.float32, name="h")
    gru = ops.gru_sequence(x, h, ops.constant(np.array([1])), *weights(I), H, "forward")
    y, last = ops.result(ops.squeeze(gru.output(0), ops.constant([1]))), ops.result(gru.output(1))
    for port, name in ((y.output(0), "y"), (last.output(0), "hn"), (h.output(0), "h")):
        port.get_tensor().set_names({name})
    model = openvino.Model([y, last], [x, h], "test")
    return write(folder / "made.xml", model, passes.MakeStateful({"h": "hn"}))


def low_latency(folder: Path, constant: bool = True) -> Path:
    """A loop over steps: LowLatency2 leaves one, and makes its state the model's own."""
    x, h = ops.parameter([1, 3, I], np.float32, name="x"), ops.parameter([1, H], np.float32, name="h")
    step, state = ops.parameter([1, 1, I], np.float32), ops.parameter([1, H], np.float32)
    arrays = [ops.constant(item.get_data()[0]) for item in weights(I)]
    cell = ops.gru_cell(ops.squeeze(step, ops.constant([1])), state, *arrays, H)
    new, given = ops.result(cell), ops.result(ops.unsqueeze(cell, ops.constant([1])))
    loop = ops.tensor_iterator()
    loop.set_body(openvino.Model([new, given], [step, state]))
    loop.set_sliced_input(step, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(state, h.output(0), new.output(0))
    y = ops.result(loop.get_concatenated_slices(given.output(0), 0, 1, 1, -1, 1))
    y.output(0).get_tensor().set_names({"y"})
    model = openvino.Model([y], [x, h], "test")
    model.reshape({x.output(0): [1, 1, I], h.output(0): [1, H]})
    return write(folder / "low.xml", model, passes.LowLatency2(constant))


def variable(name: str, kind: openvino.Type, *shape: int) -> Variable:
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = openvino.PartialShape(shape), kind, name
    return Variable(info)


def of_three(folder: Path) -> Path:
    """Three states that start from numbers; one is an output as it was before the run."""

    h, past = (
        variable("h", openvino.Type.f32, 1, 1, H),
        variable("past", openvino.Type.f32, 1, 1, I),
    )
    count = variable("count", openvino.Type.i32, 1)
    x = ops.parameter([1, 1, I], np.float32, name="x")
    before = ops.read_value(ops.convert(ops.constant(draw(1, 1, I).astype(np.float16)), "f32"), past)
    state, number = (
        ops.read_value(ops.constant(draw(1, 1, H)), h),
        ops.read_value(ops.constant(np.array([3], np.int32)), count),
    )
    gru = ops.gru_sequence(ops.add(x, before), state, ops.constant(np.array([1])), *weights(I), H, "forward")
    more = ops.add(number, ops.constant(np.array([1], np.int32)))
    y = ops.result(ops.multiply(ops.squeeze(gru.output(0), ops.constant([1])), ops.convert(more, "f32")))
    delayed = ops.result(before)
    for port, name in ((y.output(0), "y"), (delayed.output(0), "delayed")):
        port.get_tensor().set_names({name})
    sinks = [
        ops.assign(ops.relu(x), past),
        ops.assign(more, count),
        ops.assign(ops.multiply(gru.output(1), ops.constant(np.float32(0.5))), h),
    ]
    return write(folder / "three.xml", openvino.Model([y, delayed], sinks, [x], "test"))


def decomposed(folder: Path) -> Path:
    """A GRU in other operators, whose state MakeStateful hides."""
    x, h = ops.parameter([1, I], np.float32, name="x"), ops.parameter([1, H], np.float32, name="h")
    axis = ops.constant(1)
    ours, own = (
        ops.split(ops.matmul(item, ops.constant(draw(size, 3 * H)), False, False), axis, 3)
        for item, size in ((x, I), (h, H))
    )
    z, r = (ops.sigmoid(ops.add(ours.output(place), own.output(place))) for place in (0, 1))
    n = ops.tanh(ops.add(ours.output(2), ops.multiply(r, own.output(2))))
    new = ops.add(ops.multiply(z, h), ops.multiply(ops.subtract(ops.constant(np.float32(1)), z), n))
    y, last = ops.result(ops.relu(new)), ops.result(new)
    for port, name in ((y.output(0), "y"), (last.output(0), "hn"), (h.output(0), "h")):
        port.get_tensor().set_names({name})
    model = openvino.Model([y, last], [x, h], "test")
    return write(folder / "decomposed.xml", model, passes.MakeStateful({"h": "hn"}))


def open_rows(folder: Path) -> Path:
    """A cell whose variable has any number of rows; a constant says that it starts from one row of zeros."""
    x, state = ops.parameter([1, I], np.float32, name="x"), variable("h", openvino.Type.f32, -1, H)
    before = ops.read_value(ops.constant(np.zeros((1, H), np.float32)), state)
    new = ops.gru_cell(x, before, *[ops.constant(item.get_data()[0]) for item in weights(I)], H)
    y = ops.result(ops.relu(new))
    for port, name in ((x.output(0), "x"), (y.output(0), "y")):
        port.get_tensor().set_names({name})
    return write(folder / "open.xml", openvino.Model([y], [ops.assign(new, state)], [x], "test"))


MODELS: dict[str, Callable[[Path], Path]] = {
    "made stateful": made_stateful,
    "low latency": low_latency,
    "three states": of_three,
    "decomposed": decomposed,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("fuse", [False, True])
def test_steps_are_those_of_openvino(tmp_path: Path, kind: str, fuse: bool) -> None:
    path = MODELS[kind](tmp_path)
    model = onegru.load(path, fuse=fuse)
    stream = pickle.loads(pickle.dumps(model)).stream()
    core = openvino.Core()
    compiled = core.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    states = {state.name: state for state in request.query_state()}
    assert stream.pairs == {name: name for name in states}
    for seed in range(2):
        stream.reset()
        request.reset_state()
        for step in range(5):
            given = {
                port.get_any_name(): draw(*port.shape, seed=9 * seed + step + 1) for port in compiled.inputs
            }
            known = {info.name: array for info in model.inputs for key, array in given.items()
                     if key in (info.name, *info.aliases)}  # fmt: skip
            found, expected = stream.step(known), request.infer(given)
            for port in compiled.outputs:
                array = next(found[name] for name in port.names if name in found)
                np.testing.assert_allclose(array, expected[port], rtol=0, atol=1e-5)
            for name, state in states.items():
                np.testing.assert_allclose(stream.state[name], state.state.data, rtol=0, atol=1e-6)
            if step == 0:  # a run starts anew
                once = model.run(known)
                assert all(np.array_equal(once[name], array) for name, array in found.items())


def test_a_gru_that_starts_over_is_warned_of(tmp_path: Path) -> None:
    """A variable for one of two layers: OpenVINO's next run starts the other from zeros."""
    x = ops.parameter([1, -1, I], np.float32, name="x")
    steps = ops.gather(ops.shape_of(x), ops.constant([1]), ops.constant(0))

    def layer(inputs: Any, size: int, h: Any) -> Any:
        return ops.gru_sequence(inputs, h, steps, *weights(size), H, "forward")

    below = layer(x, I, ops.constant(np.zeros((1, 1, H), np.float32)))
    h = variable("h", openvino.Type.f32, 1, 1, H)
    above = layer(
        ops.squeeze(below.output(0), ops.constant([1])), H, ops.read_value(ops.constant(draw(1, 1, H)), h)
    )
    sink = ops.assign(ops.relu(above.output(1)), h)
    model = openvino.Model([ops.result(above.output(0))], [sink], [x], "test")
    path = write(tmp_path / "model.xml", model)
    with pytest.warns(onegru.SpecWarning, match="chunks may change the results, because GRUSequence node"):
        onegru.load(path).stream()
    assert "starts from its initial state in each run" in onegru.inspect(path).streaming


def test_what_commands_make_of_it(tmp_path: Path) -> None:
    path = made_stateful(tmp_path)
    found = onegru.inspect(path)
    assert found.streaming == (
        "yes, with its internal states (hhn → hhn), which are inputs and outputs in onegru"
    )
    (layer,) = onegru.load_layers(path).values()
    assert isinstance(layer, onegru.GRU)
    assert (layer.spec.input_size, layer.spec.hidden_size) == (I, H)
    with pytest.raises(SpecError, match=r"already keeps its states \(hhn → hhn\); use stream\(\)"):
        onegru.make_streaming(path, tmp_path / "out.xml")
    with pytest.raises(SpecError, match=r"'x': missing"):
        onegru.load(path).run({})


@pytest.mark.parametrize("kind", ["made stateful", "three states"])
def test_openvino_is_given_the_states(tmp_path: Path, kind: str) -> None:
    """`verify` draws them, as R has no effect where they are zeros."""
    path = MODELS[kind](tmp_path)
    for inputs in (None, {"x": draw(1, 1, I)}):
        result = onegru.verify(path, inputs, runtimes=["openvino"])
        assert result.agrees, str(result)
        peer = next(item for item in result.runtimes if item.runtime == "openvino")
        names = {"hhn", "y"} if kind == "made stateful" else {"h", "past", "count", "y", "delayed"}
        assert {item.name for item in peer.outputs} == names


def request(path: Path) -> tuple[Any, Any]:
    model = openvino.Core().read_model(str(path))
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return model, compiled.create_infer_request()


@pytest.mark.parametrize(
    ("make", "command"),
    [
        (made_stateful, "quantize"),
        (of_three, "quantize"),
        (decomposed, "fuse"),
        (open_rows, "quantize"),
    ],
)
def test_what_is_written_keeps_its_states(tmp_path: Path, make: Callable[[Path], Path], command: str) -> None:
    path, target = make(tmp_path), tmp_path / "target.xml"
    if command == "fuse":
        onegru.fuse(path, target)
    else:
        onegru.quantize(path, None, target)
    (source, before), (model, after) = request(path), request(target)
    assert not model.has_rt_info(["onegru", "stream"])
    for side in ("inputs", "outputs"):
        ports, others = getattr(model, side), getattr(source, side)
        assert [port.get_names() for port in ports] == [port.get_names() for port in others]
    variables, others = (
        {item.get_info().variable_id: str(item.get_info().data_shape) for item in one.get_variables()}
        for one in (source, model)
    )
    assert variables == others != {}
    for seed in range(3):
        given = {port.get_any_name(): draw(*port.shape, seed=seed + 1) for port in source.inputs}
        expected, found = before.infer(given), after.infer(given)
        tolerance = 1e-6 if command == "fuse" else 0.05  # far below what a lost state costs, 0.2
        for place in range(len(source.outputs)):
            np.testing.assert_allclose(found[place], expected[place], rtol=tolerance, atol=tolerance)
    stream, other_stream = onegru.load(target).stream(), onegru.load(path).stream()
    assert stream.pairs == other_stream.pairs
    assert {name: array.tolist() for name, array in stream.state.items()} == {
        name: array.tolist() for name, array in other_stream.state.items()
    }


def test_a_file_without_its_states_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is read from what would be written, so that a lost state is seen."""
    path, target = decomposed(tmp_path), tmp_path / "target.xml"
    monkeypatch.setattr("onegru.formats.openvino.document.hide_states", lambda root, weights: weights)
    with pytest.raises(onegru.FormatError, match="its kept states would be none; must be hhn → hhn"):
        onegru.fuse(path, target)
    assert not target.exists()
    onegru.fuse(path, target, check=False)  # as a file of an earlier version
    assert onegru.inspect(target).streaming == "yes; the file specifies which output feeds which input"
    with pytest.raises(SpecError, match="'hhn': missing"):
        onegru.load(target).run({"x": draw(1, I)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace('type="Assign"', 'type="Relu"'), "ReadValue layer .*: no Assign layer of its variable"),
        (lambda t: t.replace('type="ReadValue"', 'type="Relu"'), "Assign layer .*: no ReadValue layer of its"),
        (lambda t: t.replace('type="Squeeze" version="opset1">', 'type="ReadValue" version="opset6"><data variable_id="hhn"/>'), "ReadValue layer .*: second layer of variable 'hhn'"),
        (lambda t: t.replace('"hhn"', '"x"'), "ReadValue layer .*: variable_id 'x' is also the name of another input or output"),
        (lambda t: t.replace('variable_shape="1,1,5"', 'variable_shape="?,1,5"'), r"ReadValue layer .*: its variable_shape, \[\?, 1, 5\], is dynamic, and it has"),
        (lambda t: t.replace('variable_shape="1,1,5"', 'variable_shape="..."'), "ReadValue layer .*: the type or rank of its variable is dynamic"),
        (lambda t: t.replace('variable_type="f32"', 'variable_type="f4"'), "variable_type 'f4'; must be one of"),
        (lambda t: t.replace('variable_id="hhn" variable', "variable"), "ReadValue layer .*: its <data> has no 'variable_id'"),
        (lambda t: t.replace('type="ReadValue" version="opset6"', 'type="ReadValue" version="opset99"'), "version 'opset99'; must be opset3 or opset6"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = edit(made_stateful(tmp_path), change)
    refuse(path, message)


def test_first_values_that_are_refused(tmp_path: Path) -> None:
    refuse(
        low_latency(tmp_path, constant=False), "ReadValue layer .*: its initial value is computed in each run"
    )
    path = of_three(tmp_path)
    edit(path, lambda t: t.replace(f'variable_shape="1,1,{H}"', f'variable_shape="1,2,{H}"'))
    refuse(path, rf"ReadValue layer .*: starts from float32 \[1, 1, {H}\]; must be float32 \[1, 2, {H}\]")
    path = of_three(tmp_path)
    numbers = bytearray(path.with_suffix(".bin").read_bytes())
    place = numbers.index(draw(1, 1, H).tobytes())
    numbers[place : place + 4] = np.float32(np.nan).tobytes()
    path.with_suffix(".bin").write_bytes(numbers)
    refuse(path, "ReadValue layer .*: its initial value is not finite in float64")
    path.with_suffix(".bin").unlink()
    refuse(path, r"Const layer .*: 'three.bin' cannot be read")
