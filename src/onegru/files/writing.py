"""What the writers of files share: a model's inputs, and files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from onegru.spec import Spec, Weights

__all__ = ["Interface", "Layers", "move_files", "replace_files", "suffixes"]

#: Layers in canonical form, the lowest first.
Layers = Sequence[tuple[Spec, Weights]]

Write = Callable[[IO[bytes]], object]


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs of a written model.

    Attributes:
        initial_h: whether it takes initial states; else they are zeros.
        sequence_lens: whether it takes lengths; else all rows are as long as X.
        batch_size: the only batch size that it takes; None for any.
        seq_length: the only number of steps that it takes; None for any.
    """

    initial_h: bool = True
    sequence_lens: bool = False
    batch_size: int | None = None
    seq_length: int | None = None


def suffixes(layers: Layers) -> list[str]:
    """What to put behind the names of each layer's values: its number, if there are several."""
    return [f"_{index}" for index in range(len(layers))] if len(layers) > 1 else [""]


def replace_files(files: Sequence[tuple[Path, Write]]) -> None:
    """Write files under other names beside their places, then move all of them there, or none.

    Args:
        files: for each, its place and what writes it.

    Raises:
        OSError: one cannot be written; it names the file. All places are then as they were before.
    """
    temporary: list[tuple[Path, Path]] = []
    try:
        for path, write in files:
            with _naming(path):
                place = path.resolve()  # a link stays, what it leads to is written
                handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:50]}.")
                temporary.append((Path(name), path))
                with os.fdopen(handle, "wb") as file:
                    write(file)
                Path(name).chmod(0o666 & ~_umask())  # a temporary file's own mode is private
        move_files(temporary)
    finally:
        for written, _ in temporary:
            written.unlink(missing_ok=True)


def move_files(moves: Sequence[tuple[Path, Path]]) -> None:
    """Move files to their places, all of them or none.

    Args:
        moves: for each, where it is and where it goes, on the same file system.

    Raises:
        OSError: one cannot be moved; it names the place. All places are then as they were before.
    """
    done: list[tuple[Path, Path | None]] = []
    try:
        for index, (path, target) in enumerate(moves):
            place = target.resolve()
            with _naming(target):
                if index < len(moves) - 1:  # the last is replaced at once, or stays as it is
                    done.append((place, _set_aside(place)))
                path.replace(place)
    except BaseException:
        for place, before in done:
            with suppress(OSError):
                if before is None:
                    place.unlink(missing_ok=True)
                else:
                    before.replace(place)
        raise
    for _, before in done:
        if before is not None:
            before.unlink(missing_ok=True)


def _set_aside(place: Path) -> Path | None:
    """Move what is in a place to another name; None where there is nothing."""
    if place.is_dir():
        raise IsADirectoryError(21, os.strerror(21))
    if not place.exists():
        return None
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:50]}.")
    os.close(handle)
    try:
        return place.replace(name)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors, and not the temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
