"""Sizes beside time that are open: of states, and of Reshapes that have the number of steps written down."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import SpecError
from tests.support.files.onnx_models import save, value
from tests.timeline.test_bent import Bent, C, T


def flat(net: Bent) -> str:
    """A linear layer over all steps of all rows, as PyTorch's default exporter writes it."""
    merged = net.add("Tanh", net.merged())
    return net.back(net.add("Reshape", merged, net.ints(-1, T, C)))


def resized(net: Bent, x: str, *sizes: int, is_computed: bool) -> str:
    """[batch·bands, T, 8], or [batch, …] of other sizes, of which the first is written as -1 or computed."""
    first = net.ints(-1)
    if is_computed:
        first = net.add("Gather", net.add("Shape", "X"), net.ints(0))
        first = net.add("Mul", first, net.ints(C)) if sizes == (T, 8) else first
    return net.add("Reshape", x, net.add("Concat", first, *map(net.ints, sizes), axis=0))


def with_bands(net: Bent, is_computed: bool = False) -> str:
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


def computed(net: Bent) -> str:
    return with_bands(net, is_computed=True)


@pytest.mark.parametrize("make", [flat, with_bands, computed])
def test_a_fixed_number_of_steps_beside_an_open_batch(make: Callable[[Bent], str], tmp_path: Path) -> None:
    net = Bent(np.random.default_rng(1), fixed=True)
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
    """Of which either may be 1, so that none of them is certainly the size."""
    net = Bent(np.random.default_rng(1), fixed=True)
    net.inputs.append(value("other", shape=["rows", C, T]))
    net.last = net.add("Add", net.last, "other")
    net.last = flat(net)
    net.last = net.gru()
    with pytest.raises(SpecError, match="steps written down, beside an open one that no input has"):
        onegru.load(save(tmp_path, net.whole("batch", 17))).stream(rewrite=True, time={"X": 2, "other": 2})
