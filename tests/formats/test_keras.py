"""Saved Keras models, read without Keras: every layout there is, and files made to do harm."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest

import onegru
from onegru import FormatError
from tests.support.files.keras_files import arrays, entry, keras_3, model, write_archive, write_h5
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


@pytest.mark.long(every=3)
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
    with pytest.raises(FormatError, match=r"config\.json has over 16777216 bytes"):
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
