"""Test that documents, docstrings and messages are plain: see `tests/support/suite/prose.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.machine.repository import ROOT
from tests.support.suite.prose import measures, page_findings, string_findings

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob(".github/*.md"),
    ]
)
SOURCES = sorted((ROOT / "src" / "onegru").rglob("*.py"))
LONGEST_FIRST_LINE = 20  # words of a module's first line


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_pages_are_plain(path: Path) -> None:
    found = page_findings(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_docstrings_and_messages_are_plain(path: Path) -> None:
    found = string_findings(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_module_says_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = docstring.partition("\n")[0]
    assert first.endswith((".", ":")) and len(first.split()) <= LONGEST_FIRST_LINE, first


def test_the_documents_as_a_whole() -> None:
    """The limits are typical of documentation that engineers praise."""
    found = measures("\n\n".join(path.read_text(encoding="utf-8") for path in PAGES))
    assert found.words > 10_000
    assert found.mean <= 16 and found.long <= 0.05
    assert found.you >= 8 and found.semicolons <= 5 and found.what <= 5


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("onegru beside ONNX Runtime", "'beside'"),
        (" ".join(["word"] * 31) + ".", "a sentence of 31 words"),
        ("| " + " ".join(["word"] * 21) + " |", "a table cell of 21 words"),
        ("```\ncode\n```", "a fence without a language"),
    ],
)
def test_faults_are_found(text: str, finding: str) -> None:
    assert any(finding in line for line in page_findings(text))
    assert not page_findings("`beside` and [a](beside.md)\n\n```python\nbeside = 1\n```\n")


@pytest.mark.parametrize("message", ["x: 3; must", "x: given; must be left out", "x is no number"])
def test_unclear_messages_are_found(message: str) -> None:
    assert string_findings(f"raise SpecError({message!r})")
    assert not string_findings("raise SpecError('x: 3; must be below 2')")
