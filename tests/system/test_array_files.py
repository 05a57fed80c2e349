"""NumPy's files: headers are judged before any data are read."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru.core.errors import FormatError, SpecError
from onegru.system.array_files import Header, read_npy, read_npz
from tests.support.layers import H, I, make_gru


def everything(headers: Any) -> Any:
    return headers


def npy(array: object, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def npz(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{name}.npy", data)
    return content.getvalue()


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    np.array(["ab", "c"]),
    np.zeros((0, 3), np.float16),
    np.array(True),
]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "a"
    for array in ARRAYS:
        path.write_bytes(npy(array, version))
        seen: list[Header] = []
        found = read_npy(path, seen.append)
        assert np.array_equal(found, array) and seen == [(array.dtype, array.shape)]
        path.write_bytes(npz(x=npy(array, version), y=npy([1])))
        both = read_npz(path, everything)
        assert np.array_equal(both["x"], array) and both.keys() == {"x", "y"}
        assert read_npz(path, lambda _: ["y"]).keys() == {"y"}


def with_offset(content: bytes, offset: int) -> bytes:
    """A zip whose only entry lies elsewhere."""
    place = content.index(b"PK\x01\x02") + 42
    return content[:place] + struct.pack("<I", offset % 2**32) + content[place + 4 :]


def moved(content: bytes) -> bytes:
    """A zip whose directory begins before the file does."""
    place = content.index(b"PK\x05\x06") + 16
    (begin,) = struct.unpack("<I", content[place : place + 4])
    return content[:place] + struct.pack("<I", begin + 10**6) + content[place + 4 :]


LONG = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 2**20
BROKEN: dict[str, Callable[[], bytes]] = {
    "a long header": lambda: npz(x=LONG),
    "less than it says": lambda: npz(x=npy(np.zeros(10))[:-8]),
    "more than it says": lambda: npz(x=npy(np.zeros(10)) + bytes(8)),
    "Python objects": lambda: npz(x=b"\x93NUMPY\x01\x00" + npy([1])[8:].replace(b"<i8", b"|O ")),
    "negative": lambda: npz(x=npy(np.zeros((1, 2))).replace(b"(1, 2)", b"(-1,2)")),
    "version 3": lambda: npz(x=npy([1]).replace(b"NUMPY\x01", b"NUMPY\x03")),
    "an offset beyond the file": lambda: with_offset(npz(x=npy([1])), 10**6),
    "a negative offset": lambda: moved(npz(x=npy([1]))),
    "no zip": lambda: b"PK",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(BROKEN[name]())
    onegru.save_layers(make_gru(), tmp_path / "m.onnx")
    stream = onegru.load(tmp_path / "m.onnx").stream()
    with pytest.raises(FormatError, match=r"a\.npz: not an \.npz file, or truncated \(.+\)"):
        read_npz(path, everything)
    with pytest.raises(FormatError, match=r"a\.npz: not a file of states, or truncated \(.+\)"):
        stream.load(path)


def test_data_that_are_not_wanted_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("is read")

    monkeypatch.setattr(np.lib.format, "read_array", read)
    onegru.save_layers(make_gru(), tmp_path / "m.onnx")
    stream = onegru.load(tmp_path / "m.onnx").stream()
    for shape in ((1, 2), (2, 7, H), (1, 7, H + 1)):
        with (tmp_path / "s.npz").open("wb") as file:
            np.savez(file, **{"state/initial_h": np.zeros(shape, np.float32)})  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"'initial_h' is float32 \[.*\]; must be float32 \[1, "):
            stream.load(tmp_path / "s.npz")
    for name, dtype in (("state/initial_h", "f8"), ("state/other", "f4"), ("other", "f4")):
        with (tmp_path / "s.npz").open("wb") as file:
            np.savez(file, **{name: np.zeros((1, 7, H), dtype)})  # type: ignore[arg-type]
        with pytest.raises((SpecError, FormatError)):
            stream.load(tmp_path / "s.npz")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_inputs_of_other_shapes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    from onegru.cli import inputs

    onegru.save_layers(make_gru(), tmp_path / "m.onnx", initial_h=False)
    model = onegru.load(tmp_path / "m.onnx")
    path = tmp_path / f"x.{suffix}"

    def put(array: object) -> None:
        path.write_bytes(npy(array) if suffix == "npy" else npz(X=npy(array)))

    put(np.ones((2, 1, I), np.float32))
    assert inputs._read(f"X={path}", model, {"X": model.inputs[0]})["X"].shape == (2, 1, I)
    monkeypatch.setattr(np.lib.format, "read_array", None)
    for array in (np.ones((2, 1, I)), np.ones((2, I), np.float32), np.ones((1, 2, I + 1), np.float32)):
        put(array)
        with pytest.raises(SpecError, match=r"'X': (type|shape) .*; must be float32"):
            inputs._read(f"X={path}", model, {"X": model.inputs[0]})


def test_numbers_of_no_size_are_not_counted_one_by_one(tmp_path: Path) -> None:
    """A type without bytes lets a file of 100 bytes claim any number of them: copying those never ended."""
    from onegru.cli import inputs

    onegru.save_layers(make_gru(), tmp_path / "m.onnx", initial_h=False)
    model = onegru.load(tmp_path / "m.onnx")
    for descr in ("'|V0'", "'|S0'", "[]"):
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4294967295, 255, {I}), }}\n".encode()
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        with pytest.raises(SpecError, match=r"'X': type .*; must be float32"):
            inputs._read(f"X={tmp_path / 'x.npy'}", model, {"X": model.inputs[0]})
