"""Read untrusted zip archives in bounded memory."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from onegru.core.errors import FormatError
from onegru.system.bounded import LARGEST_TEXT

# Limit of bytes in one read, which also limits the directory: about 200,000 members.
_LARGEST_READ = 2 * LARGEST_TEXT


class _InSmallReads(io.FileIO):
    """File that limits the size of each read and rejects positions before its start."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _LARGEST_READ:
            raise zipfile.BadZipFile("the directory is too large")
        return super().read(_LARGEST_READ if size is None or size < 0 else size) or b""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if whence == 0 and offset < 0:
            raise zipfile.BadZipFile("a position before the start of the file")
        return super().seek(offset, whence)


@contextmanager
def open_zip(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive whose directory has a limited size."""
    with _InSmallReads(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def read_member(path: object, archive: zipfile.ZipFile, name: str, largest: int = LARGEST_TEXT) -> bytes:
    """Return the content of a member of an archive."""
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{name} is compressed with an unsupported method")
    with archive.open(name) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise FormatError(f"{path}: {name} is too large; must have at most {largest} bytes")
    return content
