"""Open sizes other than time: of states, and of Reshapes that have the number of steps written down."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import FormatError, SpecError
from tests.support.files.onnx_models import save, value
from tests.timeline.test_perturbed import B, C, PerturbedModel, T


def flat(net: PerturbedModel) -> str:
    """A linear layer over all steps of all rows, as PyTorch's default exporter writes it."""
    merged = net.add("Tanh", net.merged())
    return net.back(net.add("Reshape", merged, net.ints(-1, T, C)))


def resized(net: PerturbedModel, x: str, *sizes: int, is_computed: bool) -> str:
    """[batch·bands, T, 8], or [batch, …] of other sizes; the first is written as -1 or computed."""
    first = net.ints(-1)
    if is_computed:
        first = net.add("Gather", net.add("Shape", "X"), net.ints(0))
        first = net.add("Mul", first, net.ints(C)) if sizes == (T, 8) else first
    return net.add("Reshape", x, net.add("Concat", first, *map(net.ints, sizes), axis=0))


def with_bands(net: PerturbedModel, is_computed: bool = False) -> str:
    """A GRU over features both ways, and one over time for each of them; some go with the others' sizes."""
    to = functools.partial(resized, net, is_computed=is_computed)
    x = net.add("Unsqueeze", net.rows(), net.ints(3))  # [batch, time, bands, 1]
    rows = net.add("Transpose", net.add("Reshape", x, net.ints(-1, C, 1)), perm=[1, 0, 2])
    y = net.add(
        "GRU", rows, net.weights(2, 12, 1), net.weights(2, 12, 4), hidden_size=4, direction="bidirectional"
    )
    y = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]), net.ints(C, -1, 8))
    y = to(net.add("Transpose", y, perm=[1, 0, 2]), T, C, 8)
    y = to(net.add("Transpose", y, perm=[0, 2, 1, 3]), T, 8)
    y = net.add(
        "GRU",
        net.add("Transpose", y, perm=[1, 0, 2]),
        net.weights(1, 24, 8),
        net.weights(1, 24, 8),
        hidden_size=8,
    )
    y = net.add("Transpose", net.add("Squeeze", y, net.ints(1)), perm=[1, 0, 2])
    y = net.add("Transpose", to(y, C, T, 8), perm=[0, 2, 1, 3])
    y = to(to(y, T, C, 4, 2), T, C * 8)
    y = net.add("Slice", y, net.ints(0), net.ints(2**62), net.ints(2), net.ints(8))  # one number of each band
    return net.add("Mul", net.last, net.back(y))


def computed(net: PerturbedModel) -> str:
    return with_bands(net, is_computed=True)


@pytest.mark.parametrize("make", [flat, with_bands, computed])
def test_a_fixed_number_of_steps_with_an_open_batch(
    make: Callable[[PerturbedModel], str], tmp_path: Path
) -> None:
    net = PerturbedModel(np.random.default_rng(1), fixed=True)
    net.last = make(net)
    net.last = net.gru()
    source, target = save(tmp_path, net.whole("batch", 17)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, time={"X": 2})
    onnx.checker.check_model(onnx.load(target), full_check=True)
    model = onegru.load(target)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    for rows in (1, 3):
        X = np.random.default_rng(rows).standard_normal((rows, C, T)).astype(np.float32)
        (whole,) = session.run(["Z"], {"X": X})
        for size in (1, 2, 7):
            stream = model.stream(dims={"batch": rows})
            parts = [stream.step({"X": X[..., start : start + size]})["Z"] for start in range(0, T, size)]
            np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)


def test_a_batch_that_may_go_with_another(tmp_path: Path) -> None:
    """Either may be 1, so that none of them is certainly the size."""
    net = PerturbedModel(np.random.default_rng(1), fixed=True)
    net.inputs.append(value("other", shape=["rows", C, T]))
    net.last = net.add("Add", net.last, "other")
    net.last = flat(net)
    net.last = net.gru()
    with pytest.raises(SpecError, match="fixed number of steps, and a dynamic size that no input has"):
        onegru.load(save(tmp_path, net.whole("batch", 17))).stream(rewrite=True, time={"X": 2, "other": 2})


def with_heads(net: PerturbedModel, declared: int = 0) -> onnx.ModelProto:
    """Heads of what a GRU gives, by sizes with the number of steps, which the file may declare, too."""
    net.last = net.gru()
    rows = net.rows()
    y = net.add("ReduceMax", net.add("Reshape", rows, net.ints(-1, T, 2, 3)), axes=[3], keepdims=0)
    net.last = net.back(y)
    proto = net.whole("batch", 17)
    proto.graph.output[0].type.tensor_type.shape.ClearField("dim")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    if declared:
        proto.graph.value_info.append(value(rows, shape=["batch", declared, C]))
    return proto


@pytest.mark.parametrize("declared", [0, T])
def test_a_number_of_steps_that_inputs_leave_open(declared: int, tmp_path: Path) -> None:
    """PyTorch's exporter writes one down where it has followed a GRU; only a caller knows which."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    source = save(tmp_path, with_heads(net, declared))
    target = tmp_path / "streaming.onnx"
    refusal = r"splits the time axis into several axes; .* --dim time=N, or check="
    for check in (True, False):
        with pytest.raises(SpecError, match=refusal):
            onegru.make_streaming(source, target, check=check)
    with pytest.raises(SpecError, match=refusal):
        onegru.load(source).stream(rewrite=True)
    report = onegru.make_streaming(source, target, check=onegru.Check(dims={"time": T}))
    assert report.notes[0] == f"the source needs {T} steps in each run, although its time axis is dynamic"
    model, rng = onegru.load(target), np.random.default_rng(2)
    for rows in (1, 3):
        X = rng.standard_normal((rows, C, T)).astype(np.float32)
        for size in (1, 2, 7):
            stream = model.stream(dims={"batch": rows})
            parts = [stream.step({"X": X[..., start : start + size]})["Z"] for start in range(0, T, size)]
            np.testing.assert_allclose(
                np.concatenate(parts, 2), onegru.load(source).run({"X": X})["Z"], atol=1e-5
            )


def test_blocks_of_time_are_no_number_of_steps(tmp_path: Path) -> None:
    """A GRU that begins afresh in each block gives as much for one block; the source takes several."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    net.last = net.gru()
    rows, whole = net.rows(), net.last
    net.last = net.back(net.add("Reshape", rows, net.ints(-1, T, C)))
    net.last = net.back(net.add("Reshape", net.swapped(net.gru(), (0, 2, 1)), net.add("Shape", rows)))
    net.last = net.add("Add", net.last, whole)
    source = save(tmp_path, net.whole("batch", 17))
    with pytest.raises(
        FormatError, match=f"the source accepts {2 * T} steps, although its file specifies {T}"
    ):
        onegru.make_streaming(source, tmp_path / "t.onnx", check=onegru.Check(dims={"time": T}))


def test_sizes_that_are_declared_for_one_number_of_steps(tmp_path: Path) -> None:
    """By which ONNX Runtime fails on others; the output's own are tried, or those that a caller says."""
    net = PerturbedModel(np.random.default_rng(1), fixed=False)
    net.last = net.gru()
    rows = net.rows()
    net.last = net.back(net.add("Add", net.add("MatMul", rows, net.weights(C, C)), net.weights(C)))
    proto = net.whole(B, 17)
    proto.graph.value_info.append(value(rows, shape=[B, T, C]))
    (dim,) = proto.graph.output[0].type.tensor_type.shape.dim[2:]
    with pytest.raises(FormatError, match=r"if the number of steps is fixed, pass it \(dims, --dim time=N\)"):
        onegru.make_streaming(save(tmp_path, proto), tmp_path / "t.onnx")
    check = onegru.Check(dims={"time": T})
    (report,) = onegru.make_streaming(tmp_path / "model.onnx", tmp_path / "t.onnx", check=check).outputs
    assert report.steps == T
    dim.dim_value = T
    (report,) = onegru.make_streaming(save(tmp_path, proto), tmp_path / "t.onnx").outputs
    assert report.steps == T
