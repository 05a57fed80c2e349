"""Reading what others wrote, in bounded memory: JSON and zip archives."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onegru.errors import FormatError

__all__ = ["LARGEST_TEXT", "open_zip", "parse_json", "read_member"]

#: The most bytes of JSON or of a pickle that are read: as objects they take twenty times as much memory.
LARGEST_TEXT = 16 << 20

# How deep JSON may be nested; that of a model within a model within a model is below 30.
_DEPTH = 64

# The most bytes that a zip archive is read by at once, so also those of its directory: 200,000 members.
_LARGEST_READ = 2 * LARGEST_TEXT

# A string, ended or not, or a bracket. Nothing is tried twice, so time is linear.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text that is neither long nor deep.

    Raises:
        ValueError: it is no JSON, longer than `LARGEST_TEXT`, or nested too deep.
    """
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"JSON of {len(text)} bytes; must have at most {LARGEST_TEXT}")
    if isinstance(text, bytes):
        text = text.decode()
    depth = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        if depth > _DEPTH:
            raise ValueError(f"JSON nested over {_DEPTH} deep")
    return json.loads(text)


class _InSmallReads(io.FileIO):
    """A file that gives no more at once than a directory may have, whatever an archive asks for."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _LARGEST_READ:
            raise zipfile.BadZipFile("too large a directory")
        return super().read(_LARGEST_READ if size is None or size < 0 else size) or b""


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose directory is not large.

    Raises:
        zipfile.BadZipFile: it is none, broken, or its directory is too large.
        OSError: it cannot be opened.
    """
    with _InSmallReads(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def read_member(path: Path, archive: zipfile.ZipFile, name: str, largest: int = LARGEST_TEXT) -> bytes:
    """The content of a member of an archive.

    Raises:
        FormatError: it has more than `largest` bytes, whatever the archive says.
        KeyError: there is none of this name.
        zipfile.BadZipFile: it is broken.
    """
    with archive.open(name) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise FormatError(f"{path}: {name} has over {largest} bytes; must have at most {largest}")
    return content
