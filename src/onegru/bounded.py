"""JSON that others wrote, read in bounded memory and time."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["LARGEST_TEXT", "parse_json"]

#: The most bytes of JSON or of a pickle that are read: as objects they take twenty times as much memory.
LARGEST_TEXT = 16 << 20

# How deep JSON may be nested; that of a model within a model within a model is below 30.
_DEPTH = 64

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
