"""Make the files of tests/cli/files, which exporters write: python -m tests.cli.make_files.

Made by torch 2.13.0 with onnxscript 0.7.2, Keras 3.15.1 on TensorFlow 2.21.0 with tf2onnx 1.17.0, OpenVINO
2026.4.1. All hold the GRU of `arrays`, those of Keras with its two biases apart.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "files"
T, B, I, H = 6, 2, 3, 4
LARGEST = 30_000


def arrays() -> dict[str, Any]:
    """The GRU that the files hold, by PyTorch's names."""
    rng = np.random.default_rng(5)
    shapes = {"weight_ih": (3 * H, I), "weight_hh": (3 * H, H), "bias_ih": (3 * H,), "bias_hh": (3 * H,)}
    return {f"{name}_l0": rng.normal(0, 0.5, shape).astype("f") for name, shape in shapes.items()}


def torch_modules() -> dict[str, Any]:
    """PyTorch's modules, batch first."""
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.first, self.gru = nn.Linear(5, I), nn.GRU(I, H, batch_first=True, **options)
            self.last = nn.Linear(H * (1 + self.gru.bidirectional), 2)

        def forward(self, x: Any) -> Any:
            return torch.sigmoid(self.last(self.gru(torch.relu(self.first(x)))[0]))

    class Cells(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(I, H)

        def forward(self, x: Any) -> Any:
            h, states = torch.zeros(x.shape[0], H), []
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
                states.append(h)
            return torch.stack(states, 1)

    torch.manual_seed(5)
    modules = {"layer": nn.GRU(I, H, batch_first=True), "net": Net(), "both": Net(bidirectional=True)}
    modules["cells"] = Cells()
    for module in modules.values():
        own = {key: torch.from_numpy(array) for key, array in arrays().items()}
        for child in module.modules():
            if isinstance(child, nn.GRU):
                child.load_state_dict(own, strict=False)
            elif isinstance(child, nn.GRUCell):
                child.load_state_dict({key.removesuffix("_l0"): item for key, item in own.items()})
        module.eval()
    return modules


def make_torch() -> None:
    """What PyTorch writes, and what OpenVINO makes of its modules."""
    import openvino
    import torch

    # In separate processes, because a second export in one process may unroll the steps.
    for name in torch_modules():
        subprocess.run([sys.executable, "-m", "tests.cli.make_files", "dynamo", name], check=True)
        _export("legacy", name, torch_modules()[name])
    for name, module in torch_modules().items():
        if name != "both":
            steps = 2 if name == "cells" else -1  # each takes 10 KB
            x = _example(name)[:, :2]
            shape = [-1, steps, x.shape[-1]]
            model = openvino.convert_model(module, example_input=x, input=(shape, openvino.Type.f32))
            _save_ir(model, f"torch_{name}.xml")
    net = torch_modules()["net"]
    torch.save(net.state_dict(), FOLDER / "state_dict.pt")
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, FOLDER / "lightning.ckpt")
    torch.save(torch.nn.Sequential(torch_modules()["layer"]), FOLDER / "module.pt")
    torch.jit.trace(torch_modules()["layer"], torch.zeros(B, T, I)).save(FOLDER / "torchscript.pt")
    torch.export.save(
        torch.export.export(torch_modules()["layer"], (torch.zeros(B, T, I),)), FOLDER / "e.pt2"
    )
    for name in ("torchscript.pt", "e.pt2"):
        _without_places(FOLDER / name)
    _save_ir(openvino.convert_model(FOLDER / "torch_legacy_net.onnx"), "onnx_net.xml")
    make_stateful()


def _without_places(path: Path) -> None:
    """Remove the source files and lines of operators from an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".debug_pkl")}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, re.sub(rb'("stack_trace": )"(?:[^"\\]|\\.)*"', rb'\1""', data))


def _example(name: str) -> Any:
    import torch

    return torch.zeros(B, T, 5 if name in ("net", "both") else I)


def _export(how: str, name: str, module: Any) -> None:
    """Export a module; rows are open, and steps but of cells."""
    import torch

    options: dict[str, Any] = {"dynamic_axes": {"x": {0: "rows", 1: "steps"}}, "dynamo": False}
    if how == "dynamo":
        sizes = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("steps", min=2, max=4096)}
        options = {"dynamic_shapes": (sizes,), "dynamo": True, "external_data": False}
    if name == "cells":
        del (options["dynamic_shapes"][0] if how == "dynamo" else options["dynamic_axes"]["x"])[1]
    path = FOLDER / f"torch_{how}_{name}.onnx"
    outputs = ["y", "h"] if name == "layer" else ["y"]
    torch.onnx.export(
        module,
        (_example(name),),
        str(path),
        input_names=["x"],
        output_names=outputs,
        verbose=False,
        **options,
    )
    _shorten(path)


def make_stateful() -> None:
    """An IR whose state OpenVINO has made its own."""
    import openvino
    from openvino import passes

    import onegru

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "layer.xml"
        onegru.save_layers(onegru.from_torch(arrays()), path, batch_size=1)
        model = openvino.Core().read_model(path)
        manager = passes.Manager()
        manager.register_pass(passes.MakeStateful({"initial_hidden_state": "Ho"}))
        manager.run_passes(model)
        _save_ir(model, "stateful.xml")


def _shorten(path: Path) -> None:
    """Leave out what the exporter says of its model, which takes most of the file."""
    import onnx

    from tests.fusion.make_files import shorten

    model = onnx.load(path)
    shorten(model)
    path.write_bytes(model.SerializeToString())


def _save_ir(model: Any, name: str) -> None:
    """Write an IR, but for which layers each was made of, which takes half of the file."""
    import openvino

    path = FOLDER / name
    openvino.save_model(model, path, compress_to_fp16=False)
    text = re.sub(
        r'\s*<rt_info>\s*(<attribute name="fused_names"[^>]*/>\s*)?</rt_info>', "", path.read_text()
    )
    path.write_text(re.sub(r">\s+<", "><", text))


def keras_models() -> dict[str, Any]:
    """Keras' models."""
    import keras

    L, state = keras.layers, arrays()
    keras.utils.set_random_seed(5)

    def swapped(array: Any) -> Any:
        r, z, n = np.split(array, 3, -1)
        return np.concatenate([z, r, n], -1)

    gru = [swapped(state[f"weight_{key}_l0"].T) for key in ("ih", "hh")]
    gru.append(swapped(np.stack([state[f"bias_{key}_l0"] for key in ("ih", "hh")])))

    def built(*layers: Any, rows: int | None = None, steps: int | None = None) -> Any:
        model = keras.Sequential([keras.Input((steps, I), batch_size=rows), *layers])
        for layer in model.layers:
            if isinstance(layer, L.GRU):
                layer.set_weights([*gru, *layer.get_weights()[3:]])
            elif isinstance(layer, L.Bidirectional):
                layer.set_weights([*gru, *gru])
        return model

    every: dict[str, Any] = {"return_sequences": True, "name": "gru"}
    return {
        "layer": built(L.GRU(H, **every)),
        "masked": built(L.Masking(0.0), L.GRU(H, **every)),
        "both": built(L.Bidirectional(L.GRU(H, **every), name="both")),
        "distributed": built(L.GRU(H, **every), L.TimeDistributed(L.Dense(2), name="scores"), steps=T),
        "distributed_open": built(L.GRU(H, **every), L.TimeDistributed(L.Dense(2), name="scores")),
        "stateful": built(L.GRU(H, stateful=True, **every), rows=1, steps=T),
    }


def make_keras() -> None:
    """What Keras writes, and what tf2onnx makes of its models."""
    tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")

    for name, model in keras_models().items():
        signature = [tf.TensorSpec(model.inputs[0].shape, tf.float32, name="x")]
        path = FOLDER / f"keras_{name}.onnx"
        try:
            tf2onnx.convert.from_function(
                tf.function(lambda x, model=model: model(x)), signature, opset=15, output_path=str(path)
            )
        except Exception as error:  # of any class
            print(f"{name}: {type(error).__name__}: {error}"[:300])
        _shorten(path)
    model = keras_models()["distributed"]
    model.save(FOLDER / "model.keras")
    model.save(FOLDER / "model.h5")
    model.save_weights(FOLDER / "model.weights.h5")
    with tempfile.TemporaryDirectory() as place:
        model.export(place)
        start = (Path(place) / "saved_model.pb").read_bytes()[:2000]  # all that is looked at
    (FOLDER / "saved_model_start.pb").write_bytes(start)


def main() -> None:
    """Make them all."""
    FOLDER.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "dynamo" in sys.argv:
            _export("dynamo", sys.argv[-1], torch_modules()[sys.argv[-1]])
            return
        if "keras" not in sys.argv:
            make_torch()
        if "torch" not in sys.argv:
            os.environ["KERAS_BACKEND"] = "tensorflow"
            make_keras()
    for path in FOLDER.iterdir():
        if path.stat().st_size > LARGEST:
            print(f"{path.name} has {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
