"""A wrong export, found: a model whose gates are left in PyTorch's order, verified against the checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).resolve().parent
WRONG = HERE.parents[1] / "build" / "wrong.onnx"


def main() -> None:
    model = onnx.load(HERE / "denoiser.onnx")
    gru = next(node for node in model.graph.node if node.op_type == "GRU")
    for tensor in model.graph.initializer:
        if tensor.name in gru.input[1:3]:
            z, r, n = np.split(numpy_helper.to_array(tensor)[0], 3)
            tensor.CopyFrom(numpy_helper.from_array(np.concatenate([r, z, n])[None], tensor.name))
    WRONG.parent.mkdir(exist_ok=True)
    onnx.save(model, WRONG)
    command = [sys.executable, "-m", "onegru", "verify"]
    for path in (HERE / "denoiser.onnx", WRONG):
        against = ["--against", str(HERE / "denoiser.safetensors")]
        code = subprocess.call([*command, str(path), *against, "--dim", "frames=20"])
        print(f"exit code {code}\n")


if __name__ == "__main__":
    main()
