"""The GRU of a PyTorch checkpoint, to ONNX and to OpenVINO; each runs in its own runtime and is compared."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import openvino

import onegru

HERE = Path(__file__).resolve().parent


def main() -> None:
    layers = onegru.load_layers(HERE / "denoiser.safetensors")  # or .pt; by the names of the state dict
    print(layers)
    layer = layers["gru"]
    assert isinstance(layer, onegru.GRU)

    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 1, 16)).astype(np.float32)  # [T, B, I]
    h = rng.standard_normal((1, 1, 48)).astype(np.float32)  # [D, B, H]
    ours, _ = layer(X, h)

    with tempfile.TemporaryDirectory() as folder:
        onegru.save_layers(layer, Path(folder, "gru.onnx"), opset=17)
        session = onnxruntime.InferenceSession(Path(folder, "gru.onnx"), providers=["CPUExecutionProvider"])
        theirs = np.asarray(session.run(["Y"], {"X": X, "initial_h": h})[0])
        print(f"ONNX Runtime: largest difference {np.abs(theirs - ours).max():.1e}")

        onegru.save_layers(layer, Path(folder, "gru.xml"), sequence_lens=False)
        model = openvino.compile_model(Path(folder, "gru.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        Y = model({"X": X.swapaxes(0, 1), "initial_hidden_state": h.swapaxes(0, 1)})["Y"]  # [B, D, T, H]
        print(f"OpenVINO: largest difference {np.abs(Y.transpose(2, 1, 0, 3) - ours).max():.1e}")


if __name__ == "__main__":
    main()
