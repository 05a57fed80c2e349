"""Other runtimes' int8 GRUs, each made from a layer that resets after the product, on one thread.

ncnn and NNCF are not in the project's extras: `pip install ncnn nncf`. Without them, their columns are empty.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import onegru
from onegru.core.dtypes import Array

#: X [T, B, I] → Y [T, B, H].
Run = Callable[[Array], Array]


def pytorch(module: nn.GRU) -> Run:
    """PyTorch's `quantize_dynamic`, with a scale for each weight tensor and each input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.ao.quantization.quantize_dynamic(module, {nn.GRU}, dtype=torch.qint8)

    def run(X: Array) -> Array:
        found: Array = made(torch.from_numpy(X))[0].detach().numpy()
        return found

    return run


def onnx_runtime(layer: onegru.GRU) -> Run:
    """ONNX Runtime's GRU in float32, because it has none in int8."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onegru.save_layers(layer, path, initial_h=False)
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda X: np.asarray(session.run(["Y"], {"X": X})[0])[:, 0]


def ncnn(layer: onegru.GRU, rows: int) -> Run | None:
    """ncnn's GRU, which takes one row. It has a scale for each output channel, and for each step's inputs."""
    if rows != 1 or find_spec("ncnn") is None:
        return None
    runtime: Any = import_module("ncnn")

    def in_its_order(matrix: Array) -> Array:
        z, r, n = np.split(matrix[0], 3)
        return np.concatenate([r, z, n])

    def quantized(matrix: Array) -> tuple[bytes, bytes]:
        factor = 127 / np.abs(matrix).max(1)
        integers = np.rint(matrix * factor[:, None]).astype(np.int8).tobytes()
        return in_8_bits + integers + bytes(-len(integers) % 4), factor.astype("<f4").tobytes()

    in_8_bits, as_it_is = (word.to_bytes(4, "little") for word in (0x000D4B38, 0))
    weights = layer.weights
    (W, of_W), (R, of_R) = (quantized(in_its_order(matrix)) for matrix in (weights.W, weights.R))
    Wbz, Wbr, Wbn, Rbz, Rbr, Rbn = np.split(weights.B[0], 6)
    biases = as_it_is + np.stack([Wbr + Rbr, Wbz + Rbz, Wbn, Rbn]).astype("<f4").tobytes()
    H, I = layer.hidden_size, layer.input_size
    lines = ("7767517", "2 2", "Input X 0 1 X", f"GRU gru 1 1 X Y 0={H} 1={3 * H * I} 2=0 8=2", "")
    net = runtime.Net()
    net.opt.num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        param, data = Path(folder) / "gru.param", Path(folder) / "gru.bin"
        param.write_text("\n".join(lines))
        data.write_bytes(W + biases + R + of_W + of_R)
        if net.load_param(str(param)) or net.load_model(str(data)):
            raise RuntimeError("ncnn does not read the layer")

    def run(X: Array) -> Array:
        extractor = net.create_extractor()
        extractor.input("X", runtime.Mat(X[:, 0]))
        return np.array(extractor.extract("Y")[1])[:, None]

    return run


def nncf(layer: onegru.GRU, steps: int, rows: int) -> Run | None:
    """OpenVINO's GRU after `nncf.quantize`."""
    if find_spec("nncf") is None:
        return None
    import openvino

    quantizer: Any = import_module("nncf")
    core = openvino.Core()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.xml"
        onegru.save_layers(layer, path, batch_size=rows, seq_length=steps)
        model = core.read_model(path)

        def feed(X: Array) -> dict[str, Any]:
            return {
                "X": np.ascontiguousarray(X.transpose(1, 0, 2)),
                "initial_hidden_state": np.zeros((rows, 1, layer.hidden_size), np.float32),
                "sequence_lengths": np.full(rows, steps, np.int32),
            }

        samples = [feed(rng.standard_normal((steps, rows, layer.input_size), np.float32)) for _ in range(8)]
        made = quantizer.quantize(model, quantizer.Dataset(samples), subset_size=len(samples))
        compiled = core.compile_model(made, "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
        request = compiled.create_infer_request()
    return lambda X: np.asarray(request.infer(feed(X))[0])[:, 0].transpose(1, 0, 2)


#: The baselines by name, each made from PyTorch's module, onegru's layer, and a call's steps and rows.
PEERS: dict[str, Callable[[nn.GRU, onegru.GRU, int, int], Run | None]] = {
    "PyTorch int8": lambda module, layer, steps, rows: pytorch(module),
    "ncnn int8": lambda module, layer, steps, rows: ncnn(layer, rows),
    "OpenVINO by NNCF": lambda module, layer, steps, rows: nncf(layer, steps, rows),
    "ONNX Runtime": lambda module, layer, steps, rows: onnx_runtime(layer),
}
