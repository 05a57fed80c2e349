"""Write files atomically: each is complete or unchanged."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO


def write_files(files: Sequence[tuple[Path, Callable[[IO[bytes]], object] | Path]]) -> None:
    """Write files under temporary names, then rename them in order; a path is linked instead of written."""
    # After an error or an interrupt, nothing has changed. (On a file system without hard links, renames that
    # succeeded stay.) If the process dies or the machine halts, each target has its old content or all of its
    # new content. Symbolic links stay, and the files that they point to are replaced. A replaced file keeps
    # its permissions. New files get those of the umask. Files that a killed process leaves are called
    # `.NAME.….tmp`. On Windows, an open or read-only file cannot be replaced and permissions are those of the
    # folder.
    renames: list[tuple[Path, Path, Path]] = []  # the caller's path, the temporary file, the target
    try:
        for path, write in files:
            with naming(path):
                target, before = _target(path)
                renames.append((path, _temporary_path(target), target))
                if isinstance(write, Path):
                    _link(write, renames[-1][1])
                else:
                    _write(renames[-1][1], write, before)
        _rename(renames)
    finally:
        for _, temporary, _ in renames:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _rename(renames: Sequence[tuple[Path, Path, Path]]) -> None:
    """Rename all files; after an error, undo the renames that succeeded."""
    targets = {target for _, _, target in renames}
    old = {target for target in targets if target.exists()}
    # A second name for each old file. Some file systems have no links; then new files stay.
    backups = {target: _temporary_path(target) for target in old if len(renames) > 1}
    try:
        for target, backup in backups.items():
            with suppress(OSError):
                os.link(target, backup)
        for path, temporary, target in renames:
            with naming(path):
                temporary.replace(target)
    except BaseException as error:
        renamed = [target for _, temporary, target in renames if not temporary.exists()]
        for target in renamed if len(renames) > 1 else ():
            with suppress(OSError, KeyboardInterrupt):
                if target not in old:
                    target.unlink(missing_ok=True)
                elif backups[target].exists():
                    backups[target].replace(target)
            if target in backups and backups[target].exists():
                error.add_note(f"the previous {target} is in {backups.pop(target)}")
        raise
    finally:
        for backup in backups.values():
            with suppress(OSError):
                backup.unlink(missing_ok=True)


def _target(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the path after links are followed, and the status of an existing file there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    except ValueError as error:  # a null character, or a name that the file system cannot encode
        raise OSError(errno.EINVAL, str(error)) from error
    if status is not None and not S_ISREG(status.st_mode):
        if S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "not a regular file")
    return Path(os.path.realpath(path)), status


def _temporary_path(target: Path) -> Path:
    """Return an unused name in the same folder, short enough for every file system."""
    name = os.fsencode(target.name)[:200].decode(errors="ignore")
    return target.with_name(f".{name}.{secrets.token_hex(8)}.tmp")


def _write(name: Path, write: Callable[[IO[bytes]], object], before: os.stat_result | None) -> None:
    """Write a new file and flush it to the disk; it gets the permissions of the previous file."""
    mode = 0o666 if before is None else before.st_mode & 0o777  # the kernel applies the umask
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        if before is not None and sys.platform != "win32":
            os.fchmod(handle, mode)
        write(file)
        file.flush()
        os.fsync(handle)


def _link(source: Path, name: Path) -> None:
    """Link a file to a second name, or copy it if the file system has no links."""
    try:
        os.link(source, name)
    except OSError:
        with source.open("rb") as content:
            _write(name, lambda file: shutil.copyfileobj(content, file), source.stat())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors name this file instead of the temporary file that replaces it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
