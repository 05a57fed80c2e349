"""Write a file of each supported kind with one GRU, or copy it from an exporter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onegru
from onegru import GRU
from tests.cli.make_files import FOLDER, LARGEST, arrays
from tests.formats.tflite.make_files import arrays as tflite_arrays
from tests.support.files.onnx_models import graph, gru, model, node, numpy_type, value

__all__ = ["FOLDER", "LARGEST", "MADE", "expected", "layer", "write"]

TFLITE = Path(__file__).parents[2] / "formats" / "tflite" / "files" / "lists.tflite"


def layer(**options: Any) -> GRU:
    """Return the GRU in the files."""
    made = onegru.from_torch(arrays())
    assert isinstance(made, GRU)
    weights = made.weights
    return GRU(weights.W, weights.R, weights.B, **options) if options else made


def _external(path: Path) -> None:
    whole = onnx.load(FOLDER / "torch_dynamo_net.onnx")
    onnx.save(whole, path, save_as_external_data=True, size_threshold=100, location=f"{path.name}.data")


def _shards(path: Path) -> None:
    from safetensors.numpy import save_file

    items = list(arrays().items())
    places: dict[str, str] = {}
    for number, part in enumerate((items[:2], items[2:]), 1):
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file(dict(part), path.parent / name)
        places |= dict.fromkeys(dict(part), name)
    path.write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({f"encoder.{key}": array for key, array in arrays().items()}, path)


def _quantized(path: Path) -> None:
    """Write int8 weights with a scale for each row, like other quantizers."""
    made = layer()
    constants: dict[str, Any] = {"B": made.weights.B}
    nodes = []
    for name, array in (("W", made.weights.W), ("R", made.weights.R)):
        scale = np.abs(array[0]).max(1) / np.float32(127)
        constants |= {f"{name}_q": np.round(array / scale[:, None]).astype(np.int8), f"{name}_scale": scale}
        nodes.append(node("DequantizeLinear", [f"{name}_q", f"{name}_scale"], [name], axis=1))
    nodes.append(
        gru("X", ["Y", "Y_h"], bias="B", name="gru", hidden_size=made.spec.hidden_size, linear_before_reset=1)
    )
    x = value("X", "float32", ["steps", "rows", made.spec.input_size])
    whole = model(graph(nodes, [x], [value("Y"), value("Y_h")], constants), opset=17)
    path.write_bytes(whole.SerializeToString())


def _saved_model(path: Path) -> None:
    path.mkdir()
    shutil.copy(FOLDER / "saved_model_start.pb", path / "saved_model.pb")


def _npz(path: Path) -> None:
    np.savez(path, **arrays())


def _saved(**options: Any) -> Callable[[Path], object]:
    attention = options.pop("attention", None)
    return lambda path: onegru.save_layers(layer(attention=True) if attention else layer(), path, **options)


def _rewritten(**options: Any) -> Callable[[Path], object]:
    return lambda path: onegru.rewrite(FOLDER / "torch_legacy_net.onnx", path, check=False, **options)


def _streaming(path: Path) -> None:
    onegru.make_streaming(FOLDER / "torch_legacy_net.onnx", path, check=False)


def _bfloat16(path: Path) -> None:
    weights = layer().weights
    arrays_of = (array.astype(numpy_type("bfloat16")) for array in (weights.W, weights.R, weights.B))
    onegru.save_layers(GRU(*arrays_of, linear_before_reset=True), path)


def _int8(path: Path) -> None:
    onegru.quantize(FOLDER / "torch_legacy_net.onnx", None, path, opset=17)


#: Writers of the kinds without a stored file from an exporter.
MADE: dict[str, Callable[[Path], object]] = {
    "external.onnx": _external,
    "quantized.onnx": _quantized,
    "saved.onnx": _saved(),
    "int8.onnx": _int8,
    "bfloat16.onnx": _bfloat16,
    "float16.onnx": _rewritten(dtype="float16"),
    "decomposed.onnx": _rewritten(decompose=True),
    "streaming.onnx": _streaming,
    "sequence.xml": _saved(),
    "cell.xml": _saved(cell=True),
    "augru.xml": _saved(attention=True),
    "saved.safetensors": _saved(),
    "named.safetensors": _safetensors,
    "model.safetensors.index.json": _shards,
    "arrays.npz": _npz,
    "saved_model": _saved_model,
    "model.tflite": lambda path: shutil.copy(TFLITE, path),
}


def write(name: str, folder: Path) -> Path:
    """Write the file of this name to a folder."""
    path = folder / name
    if name in MADE:
        MADE[name](path)
        return path
    for source in (FOLDER / name, (FOLDER / name).with_suffix(".bin")):
        if source.is_file():
            shutil.copy(source, folder)
    return path


def expected(name: str) -> GRU:
    """Return the layer that `onegru convert` reads from a file."""
    if name == "augru.xml":
        return layer(attention=True)
    if name == "model.tflite":
        (own,) = tflite_arrays("lists")
        made = onegru.from_keras(list(own), reset_after=True)
        assert isinstance(made, GRU)
        return made
    return layer()
