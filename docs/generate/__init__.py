"""Writes the tables of README.md and docs/ from the package's own data, and builds the site.

    python -m docs.generate            rewrite what lies between the markers
    python -m docs.generate --check    exit with 1 if that would change a file
    python -m docs.generate.site       build the site: `make docs`

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a word after the name is its argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.commands import commands
from docs.generate.conformance import coverage, factors, features, runtimes
from docs.generate.figures import figures
from docs.generate.frameworks import frameworks
from docs.generate.names import names
from docs.generate.operators import activations, attributes, equations, issues, operators, ports, versions

ROOT = Path(__file__).resolve().parents[2]

TABLES: Mapping[str, Callable[..., str]] = {
    item.__name__: item
    for item in (
        activations,
        attributes,
        commands,
        coverage,
        equations,
        factors,
        features,
        figures,
        frameworks,
        issues,
        names,
        operators,
        ports,
        runtimes,
        versions,
    )
}

#: The files that have tables, from the root of the repository.
FILES = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- table: " in path.read_text(encoding="utf-8")
)


def update(text: str) -> str:
    """`text` with every table made anew."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = match[1].split()
        return f"<!-- table: {match[1]} -->\n{TABLES[name](*arguments)}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w ]+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)
