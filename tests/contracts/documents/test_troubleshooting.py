"""Test that the page on troubleshooting quotes existing messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
_ANY = "\0"  # an interpolated value


def quotes() -> list[str]:
    """Return the messages in the first column of the tables with the header `Message`."""
    found, is_message = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            is_message = False
        elif line.startswith("| Message |"):
            is_message = True
        elif is_message and (quote := re.match(r"\| `([^`]+)`", line)) is not None:
            found.append(quote[1])
    return found


def text_of(item: ast.expr) -> str:
    """Return the text of a string expression, with marks for its values."""
    if isinstance(item, ast.Constant):
        return str(item.value)
    if isinstance(item, ast.JoinedStr):
        return "".join(map(text_of, item.values))
    if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Add):
        return text_of(item.left) + text_of(item.right)
    return _ANY


def messages() -> Iterator[str]:
    """Yield the strings in onegru's code, and `SpecError.of(argument, text)` as one string."""
    for path in (ROOT / "src" / "onegru").rglob("*.py"):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.Call) and len(item.args) >= 2:
                yield f"{text_of(item.args[0])}: {text_of(item.args[1])}"
            if isinstance(item, ast.expr):
                yield text_of(item)
    for path in (ROOT / "native").rglob("*"):
        if path.suffix in (".cc", ".h", ".hpp", ".js"):
            yield re.sub(r'"\s*\n\s*"', "", path.read_text(encoding="utf-8"))


ALL = "\n".join(dict.fromkeys(messages()))


@pytest.mark.parametrize("quote", quotes())
def test_the_message_exists(quote: str) -> None:
    pattern = r"[^\n]*?".join(re.escape(part.strip()) for part in quote.split("…"))
    assert re.search(pattern, ALL) is not None
