"""Test the length of functions and classes."""

from __future__ import annotations

import ast
from pathlib import Path

import onegru

ROOT = Path(onegru.__file__).parent
MOST_LINES = {ast.FunctionDef: 60, ast.ClassDef: 300}  # without docstrings


def lines_of(item: ast.FunctionDef | ast.ClassDef) -> int:
    docstrings = (
        part.body[0]
        for part in ast.walk(item)
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) is not None
    )
    own = (item.end_lineno or 0) - item.lineno + 1
    return own - sum((text.end_lineno or 0) - text.lineno + 1 for text in docstrings)


def test_functions_and_classes_are_short() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{item.name}"
        for path in ROOT.rglob("*.py")
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(item, ast.FunctionDef | ast.ClassDef) and lines_of(item) > MOST_LINES[type(item)]
    }
    assert not found
