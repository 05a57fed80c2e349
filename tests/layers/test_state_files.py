"""States of streams in files: what is written comes back, and nothing that does not fit is read."""

from __future__ import annotations

import copy
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onegru
from onegru import FormatError, SpecError
from tests.support.layers import make_gru, make_stack
from tests.support.machine.systems import posix

B, I = 3, 5
RNG = np.random.default_rng(5)


def draw(steps: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal((steps, B, I)).astype(dtype)


def make(kind: str, dtype: str = "float32") -> Any:
    source = make_stack(2, dtype=dtype) if kind == "stack" else make_gru(dtype=dtype)
    return source.stream(B)


KINDS = pytest.mark.parametrize("kind", ["layer", "stack"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@KINDS
def test_a_stream_goes_on_in_another_process(kind: str, dtype: str, tmp_path: Path) -> None:
    stream, other = make(kind, dtype), make(kind, dtype)
    X = draw(7).astype(make_gru(dtype=dtype).weights.W.dtype)
    stream.run(X[:3])
    stream.save(tmp_path / "state.npz")
    other.load(str(tmp_path / "state.npz"))
    np.testing.assert_array_equal(other.run(X[3:]), stream.run(X[3:]))


@KINDS
def test_a_copy_has_a_state_of_its_own(kind: str) -> None:
    stream = make(kind)
    X = draw(6)
    stream.run(X[:3])
    twins = [copy.copy(stream), copy.deepcopy(stream)]
    wanted = stream.run(X[3:])
    stream.reset()
    for twin in twins:
        np.testing.assert_array_equal(twin.run(X[3:]), wanted)


def npz(path: Path, compression: int = zipfile.ZIP_STORED, **arrays: Any) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"state/{name.removeprefix('_')}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array))
    return path


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    stack, layer = make("stack"), make("layer")
    layer.step(draw(1)[0])
    before = layer.state
    H = layer.hidden_size
    fits = np.ones((B, H), np.float32)
    path = tmp_path / "state.npz"
    cases: list[tuple[str, dict[str, Any]]] = [
        (f"state '0' is float64 [3, {H}]; must be float32 [3, {H}]", {"_0": fits.astype(float)}),
        (f"state '0' is float32 [2, {H}]; must be float32 [3, {H}]", {"_0": fits[1:]}),
        ("contains state '1'; must be 1, one for each layer", {"_0": fits, "_1": fits}),
        ("lacks state '0'; must have 1", {}),
    ]
    for message, arrays in cases:
        with pytest.raises(SpecError) as caught:
            layer.load(npz(path, **arrays))
        assert str(caught.value).startswith(f"{path}: {message}")
        np.testing.assert_array_equal(layer.state, before)
    states = stack.state
    with pytest.raises(SpecError, match="lacks state '1'"):
        stack.load(npz(path, _0=states[0] + 1))
    assert not any(state.any() for state in stack.state)
    for data in (b"", b"PK\3\4", b"x" * 100):
        path.write_bytes(data)
        with pytest.raises(FormatError, match="not a file of states"):
            layer.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.npy", b"")
    with pytest.raises(FormatError, match="not a file of states"):
        layer.load(path)
    np.testing.assert_array_equal(layer.state, before)


def test_a_large_state_is_refused_unread(tmp_path: Path) -> None:
    """Zeros that take a thousand times the file's size: only the header is read."""
    path = npz(tmp_path / "state.npz", zipfile.ZIP_DEFLATED, _0=np.zeros((1 << 20, 8), np.float32))
    read: list[int] = []
    original = zipfile.ZipExtFile.read

    def counted(self: Any, n: int | None = -1) -> bytes:
        data = original(self, n)
        read.append(len(data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile.ZipExtFile, "read", counted)
        with pytest.raises(SpecError, match="state '0' is float32"):
            make("layer").load(path)
    assert 0 < sum(read) < 1000


@posix
@KINDS
def test_paths(kind: str, tmp_path: Path) -> None:
    stream = make(kind)
    wrong: list[Any] = [None, 3, b"state.npz", [], np.array([])]
    for path in wrong:
        for method in (stream.save, stream.load):
            with pytest.raises(SpecError, match=r"path: .*; must be the name of a file"):
                method(path)
    with pytest.raises(FileNotFoundError):
        stream.load(tmp_path / "none.npz")
    with pytest.raises(OSError, match="folder"):
        stream.save(tmp_path / "folder" / "state.npz")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FormatError, match="not a regular file"):
        stream.load(tmp_path / "fifo")
    assert onegru.reports.Stream.load.__doc__ and onegru.reports.StackStream.load.__doc__
