"""Networks in the shapes of published ones, exported by PyTorch, that stream once they are rewritten."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onegru
from onegru import OneGRUError, SpecError
from onegru.core.dtypes import Array
from onegru.formats.graph import STREAM_KEY

torch = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

T = 24


class Deep(nn.Module):  # type: ignore[misc, unused-ignore]
    """DeepFilterNet's encoder: two causal inputs, grouped convolutions over bands, a GRU, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.erb = nn.Conv2d(1, 8, (3, 3), padding=(0, 1))
        self.erb2 = nn.Conv2d(8, 8, (1, 3), stride=(1, 2), padding=(0, 1), groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.df = nn.Conv2d(2, 8, (3, 3), padding=(0, 1), groups=2)
        self.df2 = nn.Conv2d(8, 8, (1, 3), stride=(1, 2), padding=(0, 1))
        self.mix = nn.Linear(8 * 4, 8 * 4)
        self.gru = nn.GRU(8 * 4, 16, batch_first=True)
        self.snr = nn.Linear(16, 1)
        self.pad = nn.ConstantPad2d((0, 0, 2, 0), 0.0)

    def forward(self, erb: Any, spec: Any) -> Any:  # [B, 1, T, 8], [B, 2, T, 8]
        e = torch.relu(self.norm(self.erb(self.pad(erb))))
        e = torch.relu(self.erb2(e))
        c = torch.relu(self.df2(torch.relu(self.df(self.pad(spec)))))
        y = e.permute(0, 2, 1, 3).flatten(2) + torch.relu(self.mix(c.permute(0, 2, 1, 3).flatten(2)))
        h, _ = self.gru(y)
        return h, torch.sigmoid(self.snr(h)), e


class DualPath(nn.Module):  # type: ignore[misc, unused-ignore]
    """GTCRN: convolutions along bands, a GRU over bands both ways, one over time, a deconvolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, (1, 5), stride=(1, 2), padding=(0, 2))
        self.depth = nn.Conv2d(8, 8, (3, 3), padding=(0, 1), dilation=(2, 1), groups=8)
        self.act = nn.PReLU()
        self.intra = nn.GRU(8, 4, batch_first=True, bidirectional=True)
        self.intra_norm = nn.LayerNorm((4, 8))
        self.inter = nn.GRU(8, 8, batch_first=True)
        self.up = nn.ConvTranspose2d(8, 2, (1, 5), stride=(1, 2), padding=(0, 2), output_padding=(0, 1))

    def forward(self, x: Any) -> Any:  # [B, 3, T, 8]
        y = self.act(self.down(x))
        y = y + self.depth(F.pad(y, (0, 0, 4, 0)))
        B, C, steps, bands = y.shape
        z = y.permute(0, 2, 3, 1)
        a, _ = self.intra(z.reshape(B * steps, bands, C))
        z = z + self.intra_norm(a.reshape(B, steps, bands, C))
        b, _ = self.inter(z.permute(0, 2, 1, 3).reshape(B * bands, steps, C))
        z = z + b.reshape(B, bands, steps, C).permute(0, 2, 1, 3)
        return torch.tanh(self.up(z.permute(0, 3, 1, 2)))


class Nsnet(nn.Module):  # type: ignore[misc, unused-ignore]
    """NSNet2: fully connected, two GRUs, fully connected."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gru = nn.Linear(20, 24), nn.GRU(24, 24, num_layers=2, batch_first=True)
        self.second, self.last = nn.Linear(24, 30), nn.Linear(30, 20)

    def forward(self, x: Any) -> Any:  # [B, T, 20]
        h, _ = self.gru(self.first(x))
        return torch.sigmoid(self.last(torch.relu(self.second(h))))


class Rnnoise(nn.Module):  # type: ignore[misc, unused-ignore]
    """RNNoise: three GRUs that hear each other and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(12, 8)
        self.vad, self.noise = nn.GRU(8, 8, batch_first=True), nn.GRU(28, 10, batch_first=True)
        self.denoise = nn.GRU(30, 14, batch_first=True)
        self.gains, self.voice = nn.Linear(14, 6), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:  # [B, T, 12]
        d = torch.tanh(self.dense(x))
        v, _ = self.vad(d)
        n, _ = self.noise(torch.cat([d, v, x], -1))
        g, _ = self.denoise(torch.cat([v, n, x], -1))
        return torch.sigmoid(self.gains(g)), torch.sigmoid(self.voice(v))


class Keywords(nn.Module):  # type: ignore[misc, unused-ignore]
    """A keyword spotter: dilated causal convolutions, a GRU, the scores of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(10, 10, 3, dilation=2**i, padding=2 * 2**i) for i in range(3))
        self.gru, self.scores = nn.GRU(10, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:  # [B, T, 10]
        y = x.transpose(1, 2)
        for conv in self.convs:
            y = y + torch.relu(conv(y)[..., : -conv.padding[0]])
        h, _ = self.gru(y.transpose(1, 2))
        return torch.log_softmax(self.scores(h[:, -1]), -1)


class Crnn(nn.Module):  # type: ignore[misc, unused-ignore]
    """A CRNN for sound events: blocks of convolution, norm and pooling over bands, an LSTM, looking ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(6), nn.MaxPool2d((1, 2))
        self.lstm, self.out = nn.LSTM(6 * 4, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:  # [B, T, 16]
        y = self.pool(torch.relu(self.norm(self.one(x.unsqueeze(1)))))
        y = self.pool(torch.relu(self.two(y)))
        h, _ = self.lstm(y.transpose(1, 2).flatten(2))
        return torch.sigmoid(self.out(h))


class Decoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """A convolutional recurrent network: deconvolutions with their tail cut, a resize, a shifted skip."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, 4, (2, 3), (1, 2), (1, 0))
        self.two = nn.Conv2d(4, 8, (2, 3), (1, 2), (1, 0))
        self.gru = nn.GRU(8 * 3, 24, batch_first=True)
        self.three = nn.ConvTranspose2d(16, 4, (2, 3), (1, 2))
        self.four = nn.ConvTranspose2d(8, 1, (3, 1), dilation=(2, 1))

    def forward(self, x: Any) -> Any:  # [B, 1, T, 15]
        a = torch.relu(self.one(x)[:, :, :-1])
        b = torch.relu(self.two(a)[:, :, :-1])
        B, C, steps, bands = b.shape
        h, _ = self.gru(b.permute(0, 2, 1, 3).reshape(B, steps, C * bands))
        h = h.reshape(B, steps, C, bands).permute(0, 2, 1, 3)
        y = torch.relu(self.three(torch.cat([h, F.pad(b, (0, 0, 1, -1))], 1))[:, :, :-1])
        y = F.interpolate(torch.cat([y, a], 1), size=(y.shape[2], x.shape[3]), mode="nearest")
        return torch.sigmoid(self.four(y)[:, :, :-4])


NETWORKS: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, ...]], list[str], int]] = {
    "DeepFilterNet": (Deep, {"erb": (2, 1, T, 8), "spec": (2, 2, T, 8)}, ["emb", "lsnr", "e"], 0),
    "GTCRN": (DualPath, {"x": (2, 3, T, 8)}, ["y"], 0),
    "NSNet2": (Nsnet, {"x": (2, T, 20)}, ["gain"], 0),
    "RNNoise": (Rnnoise, {"x": (2, T, 12)}, ["gains", "voice"], 0),
    "keywords": (Keywords, {"x": (2, T, 10)}, ["scores"], 0),
    "CRNN": (Crnn, {"x": (2, T, 16)}, ["events"], 2),
    "CRN": (Decoder, {"x": (2, 1, T, 15)}, ["mask"], 0),
}


def exported(name: str, path: Path, *, dynamo: bool, is_open: bool) -> None:
    make, shapes, outputs, _ = NETWORKS[name]
    torch.manual_seed(3)
    module = make().eval()
    inputs = tuple(torch.randn(shape) for shape in shapes.values())
    options: dict[str, Any] = {"opset_version": 17} if not dynamo else {"external_data": False}
    places = {key: shape.index(T) for key, shape in shapes.items()}
    if is_open and dynamo:
        steps, rows = torch.export.Dim("frames", min=2, max=4096), torch.export.Dim("rows", min=2, max=64)
        options["dynamic_shapes"] = tuple({0: rows, place: steps} for place in places.values())
    elif is_open:
        options["dynamic_axes"] = {key: {0: "rows", place: "frames"} for key, place in places.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            str(path),
            dynamo=dynamo,
            input_names=list(shapes),
            output_names=outputs,
            verbose=False,
            **options,
        )


def in_chunks(
    path: Path, inputs: dict[str, Array], time: dict[str, int], sizes: list[int]
) -> dict[str, list[Array]]:
    """Each output of each chunk, by ONNX Runtime and only the file's metadata."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    document = json.loads(session.get_modelmeta().custom_metadata_map[STREAM_KEY])
    states = {
        state["input"]: np.zeros(
            [2 if isinstance(size, str) else size for size in state["shape"]], np.float32
        )
        for state in document["states"]
    }
    names = [output.name for output in session.get_outputs()]
    parts: dict[str, list[Array]] = {}
    start = 0
    for size in sizes:
        chunk = {key: np.take(array, range(start, start + size), time[key]) for key, array in inputs.items()}
        found = dict(zip(names, session.run(None, {**chunk, **states}), strict=True))
        for state in document["states"]:
            states[state["input"]] = found.pop(state["output"])
        for key, array in found.items():
            parts.setdefault(key, []).append(array)
        start += size
    return parts


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "fixed"])
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_stream(name: str, dynamo: bool, is_open: bool, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    _, shapes, outputs, delay = NETWORKS[name]
    source, target = tmp_path / "whole.onnx", tmp_path / "streaming.onnx"
    exported(name, source, dynamo=dynamo, is_open=is_open)
    time = {key: shape.index(T) for key, shape in shapes.items()}
    if delay:
        with pytest.raises(SpecError, match="ahead: its output comes 1 step later"):
            onegru.make_streaming(source, target, time=time)
    try:
        onegru.make_streaming(source, target, time=time, delay=delay > 0)
    except SpecError as error:
        # PyTorch's exporter may write the number of steps down, depending on what it exported before.
        assert dynamo and is_open and "a fixed number of steps" in str(error)
        fewer = {
            key: np.zeros([T - 5 if size == T else size for size in shape], np.float32)
            for key, shape in shapes.items()
        }
        with pytest.raises(OneGRUError):
            onegru.load(source).run(fewer)
        return
    onnx.checker.check_model(onnx.load(target))
    rng = np.random.default_rng(5)
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    whole = onegru.load(source).run(inputs)
    for _ in range(4):
        sizes = [delay + 1 + int(rng.integers(3))]
        while sum(sizes) < T:
            sizes.append(min(int(rng.integers(1, 8)), T - sum(sizes)))
        for key, parts in in_chunks(target, inputs, time, sizes).items():
            expected = whole[key]
            axes = [axis for axis, size in enumerate(expected.shape) if size == T]
            found = np.concatenate(parts, axes[0]) if axes else parts[-1]
            if axes:
                expected = np.take(expected, range(T - delay), axes[0])
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{key} in {sizes}")
    assert {*outputs} <= {info.name for info in onegru.load(target).outputs}
