"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import onegru
from onegru.rewriting.rewrite import rewrite as rewrite_model
from onegru.system.atomic_write import write_files
from tests.support.machine.kill_points import kill_points
from tests.support.machine.processes import run_python
from tests.support.machine.systems import posix


def put(*files: tuple[Path, bytes]) -> None:
    write_files([(path, lambda file, data=data: file.write(data)) for path, data in files])  # type: ignore[misc]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@posix
def test_killed_at_each_call(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    old, new = {"a": b"old a", "b": b"old b"}, {"a": b"new a" * 9999, "b": b"new b", "c": b"new c"}
    seen = []

    def write() -> None:
        put(*((folder / name, data) for name, data in new.items()))

    def start() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in old.items():
            (folder / name).write_bytes(data)

    start()
    for _ in kill_points(write):
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in new}
        assert all(data in (old.get(name), new[name]) for name, data in found.items())
        assert found.keys() >= old.keys()
        others = names(folder) - new.keys()
        assert all(name.startswith((".a.", ".b.", ".c.")) and name.endswith(".tmp") for name in others)
        seen.append(sum(found.get(name) == new[name] for name in new))
        start() if seen[-1] < 3 or others else None
    assert set(seen) == {0, 1, 2, 3} and seen == sorted(seen)
    assert seen.count(0) == 11  # before each open and fsync, fchmod and link of old files, and first rename


@posix
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_failure_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Each call that can fail fails once: nothing new is there, nothing else is left, the place is named."""
    places = [tmp_path / name for name in "abc"[:count]]
    places[0].write_bytes(b"old")
    for call in ("open", "fsync", "fchmod", "replace"):
        for n in range(1, 2 * count + 1):
            calls = 0
            original = getattr(os, call)

            def fail(*arguments: object, original=original, n=n, **keywords: object) -> object:  # type: ignore[no-untyped-def]
                nonlocal calls
                calls += 1
                if calls == n:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), ".temporary")
                return original(*arguments, **keywords)

            with monkeypatch.context() as patch:
                patch.setattr(os, call, fail)
                try:
                    put(*((place, b"new") for place in places))
                except OSError as error:
                    assert error.errno == errno.ENOSPC and error.filename in map(str, places)
                    assert places[0].read_bytes() == b"old" and names(tmp_path) == {"a"}
                else:
                    assert all(place.read_bytes() == b"new" for place in places)
                    assert names(tmp_path) == {place.name for place in places}
            for place in places[1:]:
                place.unlink(missing_ok=True)
            places[0].write_bytes(b"old")


def test_an_interrupt_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace
    for name in "bc":
        (tmp_path / name).write_bytes(b"old")

    def interrupt(source: Path, target: Path) -> None:
        replace(source, target)
        if target.name == "b":
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        put(*((tmp_path / name, b"new") for name in "abc"))
    assert names(tmp_path) == {"b", "c"}
    assert all((tmp_path / name).read_bytes() == b"old" for name in "bc")


def test_an_error_while_old_files_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others come back, and a note names the file that holds the lost one."""
    replace, seen = os.replace, set[str]()
    for name in "abc":
        (tmp_path / name).write_bytes(b"old")

    def fail(source: Path, target: Path) -> None:
        if target.name == "c" or (target.name in seen and target.name == "b"):  # b fails as it comes back
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        seen.add(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="/c'") as info:
        put(*((tmp_path / name, b"new") for name in "abc"))
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"old", b"new", b"old"]
    (note,) = info.value.__notes__
    target, backup = map(Path, note.removeprefix("the previous ").split(" is in "))
    assert target.name == "b" and backup.read_bytes() == b"old"
    assert names(tmp_path) == {*"abc", backup.name}


@posix
def test_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", fail)
    for data in (b"first", b"second"):
        put(*((tmp_path / name, data) for name in "ab"))
        assert all((tmp_path / name).read_bytes() == data for name in "ab") and names(tmp_path) == {*"ab"}


@posix
def test_two_paths_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for data in (b"first", b"second"):
        put((tmp_path / "link", b"early"), (tmp_path / "file", data))
        assert (tmp_path / "file").read_bytes() == data and names(tmp_path) == {"link", "file"}


def test_a_writer_that_fails(tmp_path: Path) -> None:
    def fail(file: IO[bytes]) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_files([(tmp_path / "a", lambda file: file.write(b"new")), (tmp_path / "b", fail)])
    assert names(tmp_path) == {"b"} and (tmp_path / "b").read_bytes() == b"old"


@posix
def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for mask, wanted in ((0o022, 0o644), (0o077, 0o600), (0, 0o666)):
        before = os.umask(mask)
        try:
            put((path, b"new"))
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == wanted
        path.unlink()
    for mode in (0o600, 0o640, 0o666, 0o444):
        path.write_bytes(b"old")
        path.chmod(mode)
        put((path, b"new"))
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)
        path.unlink()


@posix
def test_the_umask_is_not_touched(tmp_path: Path) -> None:
    """Files that another thread makes at the same time have its permissions."""
    before = os.umask(0o077)
    modes, done = set(), threading.Event()

    def others() -> None:
        path = tmp_path / "other"
        while not done.is_set():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            modes.add(stat.S_IMODE(path.stat().st_mode))
            path.unlink()

    try:
        thread = threading.Thread(target=others)
        thread.start()
        for _ in range(100):
            put((tmp_path / "m", b"new"))
        done.set()
        thread.join()
    finally:
        done.set()
        os.umask(before)
    assert modes == {0o600}


@posix
def test_links(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for target in ("there/m", "m"):
        link = tmp_path / "link"
        link.symlink_to(target)
        for data in (b"first", b"second"):  # where nothing is yet, and where something is
            put((link, data))
            assert link.is_symlink() and (tmp_path / target).read_bytes() == data
        link.unlink()


def loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (loop, errno.ELOOP),
        (lambda folder: loop(folder) / "m", errno.ELOOP),
        (lambda folder: folder / "no" / "m", errno.ENOENT),
        (lambda folder: folder / ("m" * 300), errno.ENAMETOOLONG),
        (lambda folder: folder / "a\0b", errno.EINVAL),
        (lambda folder: folder, errno.EISDIR),
        (lambda _: Path(os.devnull), errno.EINVAL),
    ],
)
def test_targets_that_cannot_be(tmp_path: Path, make, number: int) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path)
    before = names(tmp_path)
    with pytest.raises(OSError) as info:
        put((tmp_path / "a", b"new"), (path, b"new"))
    assert (info.value.errno, info.value.filename) == (number, str(path))
    assert names(tmp_path) == before


def test_long_names(tmp_path: Path) -> None:
    for name in ("m" * 255, "ü" * 127):
        put((tmp_path / name, b"new"))
        assert names(tmp_path) == {name}
        (tmp_path / name).unlink()


# ---- every writer


def layer() -> onegru.GRU:
    ones = np.ones((1, 6, 2), "f")
    return onegru.GRU(ones, ones)


def rewrite(path: Path) -> None:
    onegru.save_layers(layer(), path.parent / "source.onnx")
    rewrite_model(path.parent / "source.onnx", path, opset=14)


def save_states(path: Path) -> None:
    onegru.save_layers(layer(), path.parent / "source.onnx")
    onegru.load(path.parent / "source.onnx").stream(state={"Y_h": "initial_h"}).save(path)


def command(*arguments: object) -> None:
    """The command line, whose errors are its own."""
    result = run_python("from onegru.cli import main; main()", *arguments, status=None)
    if result.returncode:
        assert result.returncode == 2 and result.stderr.count("\n") == 1
        raise OSError(0, result.stderr, arguments[-1])


def convert(path: Path) -> None:
    onegru.save_layers(layer(), path.parent / "source.onnx")
    name = "rewrite" if path.suffix == ".onnx" else "convert"
    command(name, path.parent / "source.onnx", "--overwrite", path)


def run(path: Path) -> None:
    onegru.save_layers(layer(), path.parent / "source.onnx", batch_size=1, seq_length=1)
    out = path.parent / "o.npz"
    command("run", path.parent / "source.onnx", "--random", "0", "-o", f"Y={path}", "-o", out)


WRITERS = {
    "save to ONNX": (lambda path: onegru.save_layers(layer(), path), ".onnx"),
    "save to IR": (lambda path: onegru.save_layers(layer(), path), ".xml"),
    "save to safetensors": (lambda path: onegru.save_layers(layer(), path), ".safetensors"),
    "rewrite": (rewrite, ".onnx"),
    "states": (save_states, ".npz"),
    "convert": (convert, ".xml"),
    "rewrite by the command": (convert, ".onnx"),
    "run": (run, ".npy"),
}


@posix
@pytest.mark.parametrize(("write", "suffix"), WRITERS.values(), ids=WRITERS)
def test_every_writer(tmp_path: Path, write: Callable[[Path], object], suffix: str) -> None:
    """Links and permissions stay, a loop of links is an error that names it, nothing else is left."""
    others = {"source.onnx", "o.npz"}
    path = tmp_path / f"m{suffix}"
    before = os.umask(0o027)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
        link = tmp_path / f"link{suffix}"
        link.symlink_to(path)
        if suffix == ".xml":  # an IR is two files
            link.with_suffix(".bin").symlink_to(path.with_suffix(".bin"))
        content = path.read_bytes()
        path.write_bytes(b"")
        write(link)
        assert link.is_symlink() and len(path.read_bytes()) == len(content)
    finally:
        os.umask(before)
    link.unlink()
    link.symlink_to(link)
    found = names(tmp_path)
    with pytest.raises(OSError) as info:
        write(link)
    assert str(link) in str(info.value) and ".tmp" not in str(info.value)
    assert info.value.errno == errno.ELOOP or "symbolic links" in str(info.value)
    assert names(tmp_path) - others == found - others
