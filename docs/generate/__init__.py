"""Writes the tables of README.md, docs/ and native/ from the package's own data, and builds the site.

    python -m docs.generate            rewrite what lies between the markers
    python -m docs.generate --check    exit with 1 if that would change a file
    python -m docs.generate.site       build the site: `make docs`

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a word after the name is its argument.
In C++ it stands between `// table: NAME` and `// end`, in Python after `#` likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.commands import commands
from docs.generate.conformance import coverage, factors, features, quantized, runtimes
from docs.generate.figures import figures
from docs.generate.files import files
from docs.generate.frameworks import frameworks
from docs.generate.names import names
from docs.generate.native import (
    native_activations,
    native_attributes,
    native_carriers,
    native_choices,
    native_digest,
    native_functions,
    native_inputs,
    native_interface,
    native_operators,
    native_threads,
)
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
        files,
        frameworks,
        issues,
        names,
        native_activations,
        native_attributes,
        native_carriers,
        native_choices,
        native_digest,
        native_functions,
        native_inputs,
        native_interface,
        native_operators,
        native_threads,
        operators,
        ports,
        quantized,
        runtimes,
        versions,
    )
}

_TABLE = re.compile(
    r"(?P<open><!--|//|#) table: (?P<name>[\w ]+?)(?P<close> -->)?\n.*?(?P<end><!-- end -->|(?://|#) end)",
    re.DOTALL,
)
_PLACES = ("README.md", "docs/**/*.md", "native/**/*.h", "native/**/*.cc", "src/onegru/engines/native.py")

#: The files that have tables, from the root of the repository.
FILES = tuple(
    str(path.relative_to(ROOT))
    for place in _PLACES
    for path in sorted(ROOT.glob(place))
    if _TABLE.search(path.read_text(encoding="utf-8"))
)


def update(text: str) -> str:
    """`text` with every table generated again."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = match["name"].split()
        first = f"{match['open']} table: {match['name']}{match['close'] or ''}"
        return f"{first}\n{TABLES[name](*arguments)}\n{match['end']}"

    return _TABLE.sub(fill, text)
