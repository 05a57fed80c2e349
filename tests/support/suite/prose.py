"""Find unclear prose: dialect words, long sentences, paragraphs and table cells.

    python -m tests.support.suite.prose README.md src/onegru/layers/gru.py

prints the findings and the measures of each file.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

LONGEST_SENTENCE = 30  # words
LONGEST_PARAGRAPH = 80  # words
LONGEST_CELL = 20  # words

WORDS = [
    (re.compile(pattern, re.IGNORECASE), instead)
    for line in (Path(__file__).parent / "words.tsv").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
    for pattern, instead in [line.split("\t")]
]
#: Endings and phrases that do not say what a user must do.
UNCLEAR_MESSAGES = [
    (re.compile(r"; must( be( it| there| so| with it)?)?[.\"']*$"), "after 'must': a verb with an object"),
    (re.compile(r"\bmust be left out\b"), "has no effect here; remove it"),
    (re.compile(r"(?<!there )\bis no\b(?! longer| more)"), "is not a ..."),
]


_SECTION = re.compile(r"^ *(Args|Attributes|Returns|Raises):$", re.MULTILINE)


def prose(text: str) -> str:
    """Return the text without code blocks, generated tables and comments; line numbers are kept."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"<!-- table:.*?<!-- end -->", blank, text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", blank, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)


def _plain(line: str) -> str:
    return re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", line))


def _sentences(paragraph: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:;])\s+", paragraph) if part.split()]


def page_findings(text: str) -> list[str]:
    """Return the unclear places of a Markdown page, each with its line."""
    found = []
    for number, line in enumerate(prose(text).splitlines(), 1):
        plain = _plain(line)
        found += [
            f"{number}: {match[0]!r}; use: {instead}"
            for pattern, instead in WORDS
            for match in pattern.finditer(plain)
        ]
        if plain.lstrip().startswith("|"):
            found += [
                f"{number}: a table cell of {len(cell.split())} words; at most {LONGEST_CELL}"
                for cell in plain.strip().strip("|").split("|")
                if len(cell.split()) > LONGEST_CELL
            ]
            continue
        if len(plain.split()) > LONGEST_PARAGRAPH:
            found.append(f"{number}: a paragraph of {len(plain.split())} words; at most {LONGEST_PARAGRAPH}")
        found += [
            f"{number}: a sentence of {len(sentence.split())} words; at most {LONGEST_SENTENCE}"
            for sentence in _sentences(plain)
            if len(sentence.split()) > LONGEST_SENTENCE
        ]
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if not inside and line.strip() == "```":
                found.append(f"{number}: a fence without a language")
            inside = not inside
    return found


def string_findings(text: str) -> list[str]:
    """Return the unclear places in the messages, public docstrings and first line of a Python file.

    Public docstrings have sections such as Args; those of internal names have one line.
    """
    found, tree = [], ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value):
            continue
        words = node.value
        if id(node) in docstrings and not _SECTION.search(words):
            words = words.partition("\n")[0] if node.lineno == 1 else ""
        found += [
            f"{node.lineno}: {match[0]!r}; use: {instead}"
            for pattern, instead in [*WORDS, *UNCLEAR_MESSAGES]
            for match in pattern.finditer(_plain(words))
        ]
    return found


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a page: words, mean sentence length, and shares."""

    words: int
    mean: float  # words per sentence
    long: float  # share of sentences over LONGEST_SENTENCE
    you: float  # per 1,000 words
    semicolons: float  # per 1,000 words
    what: float  # noun clauses with "what", per 1,000 words


def measures(text: str) -> Measures:
    """Measure the sentences of one or more Markdown pages; tables and headings do not count."""
    lines = [_plain(line) for line in prose(text).splitlines() if not re.match(r"\s*(\||#)", line)]
    items = [re.sub(r"^\s*(?:[-*>]|\d+\.)\s+", "", line) for line in lines]
    sentences = [s.split() for line in items for s in re.split(r"(?<=[.!?])\s+", line) if len(s.split()) > 1]
    flat = " ".join(items)
    words = max(1, sum(map(len, sentences)))
    per_thousand = 1000 / words
    return Measures(
        words,
        words / max(1, len(sentences)),
        sum(len(s) > LONGEST_SENTENCE for s in sentences) / max(1, len(sentences)),
        len(re.findall(r"\b(?:you|your|yours)\b", flat, re.I)) * per_thousand,
        flat.count(";") * per_thousand,
        len(re.findall(r"(?<!\w)what\b(?![^.]*\?)", flat, re.I)) * per_thousand,
    )


def main(names: list[str]) -> int:
    """Print the findings and measures of files."""
    count = 0
    for name in names:
        text = Path(name).read_text(encoding="utf-8")
        found = string_findings(text) if name.endswith(".py") else page_findings(text)
        count += len(found)
        for finding in found:
            print(f"{name}:{finding}")
        if name.endswith(".md"):
            m = measures(text)
            print(
                f"{name}: {m.words} words, {m.mean:.1f} per sentence, {m.long:.0%} over {LONGEST_SENTENCE}, "
                f"per 1,000: {m.you:.1f} you, {m.semicolons:.1f} semicolons, {m.what:.1f} what"
            )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
