"""Write saved Keras models of each layout by hand with h5py, as each version of Keras does."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from onegru.core.dtypes import Array

H, I = 4, 3


def arrays(seed: int = 0, reset_after: bool = True, bias: bool = True) -> list[Array]:
    """Return kernel, recurrent_kernel and bias of a GRU."""
    rng = np.random.default_rng(seed)
    shapes = [(I, 3 * H), (H, 3 * H), *([(2, 3 * H) if reset_after else (3 * H,)] if bias else [])]
    return [rng.standard_normal(shape).astype(np.float32) * np.float32(0.6) for shape in shapes]


def entry(name: str = "gru_1", kind: str = "GRU", **config: Any) -> dict[str, Any]:
    """Return a layer in a model's configuration."""
    facts = {"units": H, "activation": "tanh", "use_bias": True, "return_sequences": True}
    if kind == "Bidirectional":
        facts = {"merge_mode": "concat"}
    if kind == "CuDNNGRU":
        facts = {"units": H, "return_sequences": True}
    return {"class_name": kind, "config": {"name": name, **facts, **config}}


def model(*layers: dict[str, Any], kind: str = "Sequential", name: str = "model") -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "layers": list(layers)}}


Weights = Mapping[str, Sequence[tuple[str, Array]]]


def write_h5(
    path: Path,
    config: Any,
    weights: Weights,
    version: str | None,
    *,
    group: str = "model_weights",
    as_bytes: bool = False,
    chunks: int = 0,
) -> Path:
    """Write a legacy file.

    Args:
        path: the file to write.
        config: the model's configuration, or its text.
        weights: the names and arrays of the weights of each top layer.
        version: the version of Keras; None to omit it.
        group: the group that contains the weights.
        as_bytes: whether texts are of fixed length, as h5py 2 wrote them.
        chunks: the number of attributes that share the names of weights; 0 for one attribute.
    """

    def text(value: str) -> Any:
        return np.bytes_(value.encode()) if as_bytes else value

    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = text(config if isinstance(config, str) else json.dumps(config))
        if version is not None:
            file.attrs["keras_version"] = text(version)
        file.attrs["backend"] = text("tensorflow")
        root = file.require_group(group)
        root.attrs["layer_names"] = np.array([name.encode() for name in weights])
        for layer, items in weights.items():
            place = root.create_group(layer)
            names = np.array([name.encode() for name, _ in items], "S")
            if chunks:
                for index, part in enumerate(np.array_split(names, chunks)):
                    place.attrs[f"weight_names{index}"] = part
            else:
                place.attrs["weight_names"] = names
            for name, array in items:
                place.create_dataset(name, data=array)
    return path


def write_archive(path: Path, config: Any, groups: Mapping[str, Sequence[Array]], version: str) -> Path:
    """Write a `.keras` archive, whose groups contain the weights as vars/0, vars/1 and so on.

    A group's name may be a pair of the path and of Keras 3's description of the layer's name.
    """
    weights = io.BytesIO()
    with h5py.File(weights, "w") as file:
        for place, items in groups.items():
            layer, _, name = place.partition("@")
            if name:
                file.require_group(f"{layer.split('/cell')[0]}/vars").attrs["name"] = name
            variables = file.require_group(f"{layer}/vars")
            for index, array in enumerate(items):
                variables.create_dataset(str(index), data=array)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version, "date_saved": "today"}))
        archive.writestr("config.json", config if isinstance(config, str | bytes) else json.dumps(config))
        archive.writestr("model.weights.h5", weights.getvalue())
    return path


def keras_3(path: Path) -> Path:
    """Write a model of one GRU, as saved by Keras 3."""
    gru = entry("gru", reset_after=True, recurrent_activation="sigmoid")
    config = model({**gru, "module": "keras.layers", "registered_name": None})
    if path.suffix == ".keras":
        return write_archive(path, config, {"layers/gru/cell@gru": arrays()}, "3.9.0")
    names = ("kernel", "recurrent_kernel", "bias")
    weights = {"gru": [(f"gru/gru_cell/{name}", array) for name, array in zip(names, arrays(), strict=True)]}
    return write_h5(path, config, weights, "3.9.0")
