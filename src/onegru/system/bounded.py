"""What others wrote, read in bounded memory and time."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from onegru.core.errors import FormatError

#: The most bytes of JSON or of a pickle that are read: as objects they take twenty times as much memory.
LARGEST_TEXT = 16 << 20

# How deep JSON may be nested; that of a model within a model within a model is below 30.
_DEPTH = 64

# A string, ended or not, or a bracket. Nothing is tried twice, so time is linear.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)


def check_regular(path: Path) -> None:
    """Refuse what is there and is no file, such as a pipe, which might never end.

    What is not there, or is a folder, is for whoever opens it to say.

    Raises:
        FormatError: it is no regular file, or its name is none that a file can have.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    except ValueError as error:  # a null character, or what the file system cannot encode
        raise FormatError(f"{str(path)!r}: {error}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise FormatError(f"{path}: not a regular file")


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
