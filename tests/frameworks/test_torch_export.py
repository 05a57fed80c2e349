"""Models that torch exports, by both exporters: they load, agree with torch and ONNX Runtime, and stream."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onegru  # noqa: E402

I, H, T, B = 5, 6, 7, 3


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A GRU with a linear head; with or without an initial state as an input."""

    def __init__(self, layers: int, bidirectional: bool, batch_first: bool, with_state: bool) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(I, H, layers, bidirectional=bidirectional, batch_first=batch_first)
        self.head = torch.nn.Linear(H * (1 + bidirectional), 2)
        self.with_state = with_state

    def forward(self, x: Any, h: Any = None) -> Any:
        y, last = self.gru(x, h) if self.with_state else self.gru(x)
        return self.head(y), last


class Packed(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A GRU over sequences of different lengths."""

    def __init__(self, layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(I, H, layers, bidirectional=bidirectional)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=True)
        y, last = self.gru(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(y)[0], last


def export(
    net: Any, inputs: dict[str, Any], path: Path, dynamo: bool, dynamic: dict[str, dict[int, str]]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = {
                name: {axis: torch.export.Dim.AUTO for axis in dynamic.get(name, {})} for name in inputs
            }
            torch.onnx.export(
                net,
                tuple(inputs.values()),
                str(path),
                dynamo=True,
                input_names=list(inputs),
                output_names=["y", "last"],
                dynamic_shapes=tuple(shapes.values()),
                verbose=False,
            )
        else:
            torch.onnx.export(
                net,
                tuple(inputs.values()),
                str(path),
                dynamo=False,
                input_names=list(inputs),
                output_names=["y", "last"],
                dynamic_axes=dynamic,
            )


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time-first", "batch-first"])
@pytest.mark.parametrize("with_state", [False, True], ids=["no-state", "state"])
def test_exports(
    tmp_path: Path, dynamo: bool, layers: int, bidirectional: bool, batch_first: bool, with_state: bool
) -> None:
    torch.manual_seed(layers)
    net = Net(layers, bidirectional, batch_first, with_state).eval()
    D = 1 + bidirectional
    x = torch.randn((B, T, I) if batch_first else (T, B, I))
    inputs = {"x": x}
    if with_state:
        inputs["h"] = torch.randn(layers * D, B, H)
    path = tmp_path / "m.onnx"
    time = 1 if batch_first else 0
    export(net, inputs, path, dynamo, {"x": {time: "time"}})

    with torch.no_grad():
        want = [array.numpy() for array in net(*inputs.values())]
    feed = {name: array.numpy() for name, array in inputs.items()}
    model = onegru.load(path)
    assert len(model.gru_nodes) == layers, "every GRU is run by onegru"
    got = model.run(feed)
    theirs = onnxruntime.InferenceSession(str(path)).run(None, feed)
    for name, ours, torchs, runtimes in zip(("y", "last"), got.values(), want, theirs, strict=True):
        np.testing.assert_allclose(ours, torchs, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(ours, runtimes, atol=1e-6, err_msg=name)

    if with_state and not bidirectional:
        if dynamo:  # it may fix the number of steps: one frame is what such a model is fed
            export(net, {**inputs, "x": x[:, :1] if batch_first else x[:1]}, path, dynamo, {})
            model = onegru.load(path)
        stream = model.stream()
        assert stream.pairs == {"last": "h"}
        stream.state = {"h": feed["h"]}
        whole = feed["x"]
        frames = [whole[:, t : t + 1] if batch_first else whole[t : t + 1] for t in range(T)]
        parts = [stream.step({"x": frame})["y"] for frame in frames]
        np.testing.assert_allclose(np.concatenate(parts, axis=time), want[0], atol=1e-6)
        np.testing.assert_allclose(stream.state["h"], want[1], atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "bidirectional"])
def test_packed_lengths(tmp_path: Path, layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    net = Packed(layers, bidirectional).eval()
    x, lengths = torch.randn(T, B, I), torch.tensor([T, 4, 1])
    path = tmp_path / "m.onnx"
    export(
        net,
        {"x": x, "lengths": lengths},
        path,
        False,
        {"x": {0: "time", 1: "batch"}, "lengths": {0: "batch"}},
    )
    model = onegru.load(path)
    for some in (lengths, torch.tensor([T, T, 2])):
        with torch.no_grad():
            want = [array.numpy() for array in net(x, some)]
        got = model.run({"x": x.numpy(), "lengths": some.numpy()})
        for ours, torchs in zip(got.values(), want, strict=True):
            np.testing.assert_allclose(ours, torchs, atol=1e-6)
