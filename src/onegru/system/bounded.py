"""Read untrusted input in bounded memory and time."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from onegru.core.errors import FormatError

#: The most bytes of JSON or of a pickle to read: their objects take twenty times as much memory.
LARGEST_TEXT = 16 << 20

# The greatest nesting depth of JSON. A model within a model within a model needs less than 30.
_DEPTH = 64

# A string, terminated or not, or a bracket. There is no backtracking, so time is linear.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def check_regular(path: Path) -> None:
    """Raise FormatError for an existing path that is not a regular file, such as a pipe without an end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    except ValueError as error:  # a null character, or a name that the file system cannot encode
        raise FormatError(f"{str(path)!r}: {error}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FormatError(f"{path}: not a regular file")


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text."""
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"JSON of {len(text)} bytes; must have at most {LARGEST_TEXT}")
    if isinstance(text, bytes):
        text = text.decode()
    depth = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        if depth > _DEPTH:
            raise ValueError(f"JSON nested more than {_DEPTH} levels deep")
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these names and values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        last = {name: index for index, (name, _) in enumerate(pairs)}
        twice = next(name for index, (name, _) in enumerate(pairs) if last[name] != index)
        raise ValueError(f"JSON object with a duplicate key, {twice[:80]!r}")
    return found


def file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes whenever the file is written."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
