"""Saved Keras models, read without Keras: every layout there is, and files made to do harm."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from onegru.formats.opened import open_layers
from onegru.models.layer_files.load import left_out
from onegru.models.layer_files.select import read_source
from tests.support.files.keras_files import H, arrays, entry, keras_3, model, write_archive, write_h5
from tests.support.machine.systems import posix

HOSTILE_JSON = {
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep within a GRU": b'{"config":{"layers":[{"class_name":"GRU","config":{"name":"g","x":'
    + b"[" * 500
    + b"]" * 500
    + b"}}]}}",
    "Bidirectional without end": (
        b'{"config":{"layers":[{"class_name":"Bidirectional","config":{"name":"g","merge_mode":"concat","layer":'
        + b'{"class_name":"Bidirectional","config":{"merge_mode":"concat","layer":' * 300
        + b'{"class_name":"GRU","config":{}}'
        + b"}}" * 300
        + b"}}]}}"
    ),
    "an unended string": b'{"a": "' + b'\\"' * (7 << 20),
}


@pytest.mark.parametrize("what", HOSTILE_JSON)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_hostile_json(tmp_path: Path, what: str, suffix: str) -> None:
    path, text = tmp_path / f"x{suffix}", HOSTILE_JSON[what]
    if suffix == ".keras":
        write_archive(path, text, {}, "3.9.0")
    else:
        write_h5(path, text.decode(), {}, "3.9.0")
    began = time.monotonic()
    with pytest.raises(FormatError, match=f"x{suffix}"):
        onegru.load_layers(path)
    assert time.monotonic() - began < 20


@pytest.mark.long
@posix
def test_archives_that_expand(tmp_path: Path) -> None:
    """Neither this process nor the one that reads takes much memory."""
    import resource

    path = tmp_path / "x.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.9.0"}')
        archive.writestr("config.json", b"[" + b"[]," * (21 << 20) + b"1]")
    assert path.stat().st_size < 200_000
    with pytest.raises(FormatError, match=r"config\.json is too large; must have at most 16777216 bytes"):
        onegru.load_layers(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.9.0"}')
        text = b'{"config":{"layers":[{"class_name":"GRU","config":{"name":"g","x":[' + b"[]," * (5 << 20)
        archive.writestr("config.json", text + b"1]}}]}}")
        archive.writestr("model.weights.h5", b"")
    with pytest.raises(FormatError, match=r"x\.keras"):
        onegru.load_layers(path)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert children < 2 << 20, f"{children} KiB"


def test_arrays_that_layers_share_without_end(tmp_path: Path) -> None:
    gru = entry("gru", reset_after=True, recurrent_activation="sigmoid")
    kernel, recurrent, bias = arrays()
    names = [("kernel", kernel), ("recurrent_kernel", recurrent), ("bias", bias)]
    path = write_h5(tmp_path / "x.h5", model(gru), {"gru": names}, "3.9.0")
    import h5py

    with h5py.File(path, "a") as file:
        file["model_weights/gru"].attrs["weight_names"] = [b"kernel"] * 1500
    with pytest.raises(FormatError, match="share their arrays"):
        onegru.load_layers(path)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_3(tmp_path: Path, suffix: str) -> None:
    layer = onegru.load_layers(keras_3(tmp_path / f"x{suffix}"))["gru"]
    expected = onegru.from_keras(arrays())
    assert isinstance(layer, onegru.GRU) and isinstance(expected, onegru.GRU)
    assert layer.spec == expected.spec and (layer.weights.R == expected.weights.R).all()


FACTS: dict[str, Any] = {"reset_after": True, "recurrent_activation": "sigmoid"}


def saved(path: Path, *layers: dict[str, Any], kind: str = "Sequential", grus: Sequence[str] = ()) -> Path:
    """A model of these layers, with weights for these GRUs."""
    names = ("kernel", "recurrent_kernel", "bias")
    tensors = {
        gru.split("/")[0]: [(f"{gru}/{name}", array) for name, array in zip(names, arrays(), strict=True)]
        for gru in grus
    }
    return write_h5(path, model(*layers, kind=kind), tensors, "3.9.0")


def called(layer: dict[str, Any], *by: str) -> dict[str, Any]:
    """A layer of a functional model, called with the outputs of these."""
    calls = [{"args": [{"config": {"keras_history": [name, 0, 0]}}], "kwargs": {}} for name in by]
    return {**layer, "inbound_nodes": calls}


INPUT = entry("in", "InputLayer")
OTHERS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "dense": ("Sequential", [entry("gru", **FACTS), entry("out", "Dense")], "'out' is a Dense"),
    "wrapped": (
        "Sequential",
        [entry("td", "TimeDistributed", layer=entry("x", **FACTS)), entry("gru", **FACTS)],
        r"'td' is a TimeDistributed\(GRU\)",
    ),
    "masked": ("Sequential", [entry("m", "Masking"), entry("gru", **FACTS)], "'m' is a Masking"),
    "own": (
        "Functional",
        [
            INPUT,
            called({**entry("own"), "registered_name": "a>GRU"}, "in"),
            called(entry("gru", **FACTS), "own"),
        ],
        "'own' is a GRU",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_model_that_does_more_wants_names(tmp_path: Path, what: str) -> None:
    kind, layers, named = OTHERS[what]
    path = open_layers("path", saved(tmp_path / "x.h5", *layers, kind=kind, grus=["gru"]))
    with pytest.raises(SpecError, match=rf"its GRUs: {named}; select GRUs with nodes \(--node NAME\): 'gru'"):
        read_source(path)
    assert isinstance(read_source(path, ["gru"]), onegru.GRU)
    other = named.split("'")[1]
    assert left_out(path, ["gru"]) == left_out(path) == onegru.inspect(path.path).left_out == (other,)


def test_models_of_nothing_but_grus(tmp_path: Path) -> None:
    def read(kind: str, *layers: dict[str, Any]) -> onegru.GRU | onegru.Stack:
        return read_source(saved(tmp_path / "x.h5", *layers, kind=kind, grus=["a", "b", "inner/a"]))

    a, b = entry("a", **FACTS), entry("b", **FACTS)
    assert isinstance(read("Functional", INPUT, called(a, "in")), onegru.GRU)
    with pytest.raises(
        SpecError, match="is more than its GRU, or calls it more than once; select GRUs with nodes"
    ):  # its outputs are its inputs, too
        read("Functional", INPUT, called(a, "in", "a"))
    with pytest.raises(SpecError, match="contains 2 GRUs; select GRUs with nodes"):  # side by side, perhaps
        read("Functional", INPUT, called(a, "in"), called(b, "in"))
    with pytest.raises(
        SpecError, match="is more than its GRU, or calls it more than once; select GRUs with nodes"
    ):  # the inner model may be called twice
        read("Sequential", {**model(a, name="inner"), "name": "inner"})
    square = [np.zeros(shape, np.float32) for shape in ((H, 3 * H), (H, 3 * H), (2, 3 * H))]
    tensors = {
        name: [(f"{name}/{index}", array) for index, array in enumerate(each)]
        for name, each in (("a", arrays()), ("b", square))
    }
    path = write_h5(tmp_path / "x.h5", model(INPUT, a, b), tensors, "3.9.0")
    stack = read_source(path)
    assert isinstance(stack, onegru.Stack) and len(stack) == 2
    assert left_out(open_layers("path", path)) == ()
    assert left_out(open_layers("path", path), ["b"]) == ("a",)


def test_models_without_a_gru_that_can_be_read(tmp_path: Path) -> None:
    td = entry("td", "TimeDistributed", layer=entry("x", **FACTS))
    own = {"class_name": "Own", "config": {"name": "own"}, "registered_name": "a>Own"}
    remedy = r"; load the model with Keras .*: onegru.from_keras\(model.layers\[i\]\)$"
    for path, words in (
        (
            saved(tmp_path / "a.h5", td, entry("d", "Dense")),
            r": 'td', a TimeDistributed\(GRU\); 'd', a Dense",
        ),
        (
            write_h5(tmp_path / "b.h5", own, {}, "3.9.0"),
            ": a 'Own', whose layers are defined only in its program",
        ),
        (saved(tmp_path / "c.h5", entry("l", "LSTM")), ": 'l', a LSTM"),
        (saved(tmp_path / "d.h5"), ""),
    ):
        with pytest.raises(FormatError, match=f"no GRU with its own weights{words}{remedy}"):
            onegru.load_layers(path)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("actor/layers/1", "an HDF5 file, but not from Keras"),
        ("layers/gru/cell/vars", "weights only, without activations; must be a whole model"),
    ],
)
def test_hdf5_without_a_model(tmp_path: Path, group: str, message: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group(group).attrs["type"] = "gru"
    with pytest.raises(FormatError, match=rf"x\.h5: {message}"):
        onegru.load_layers(tmp_path / "x.h5")
