"""Generate tables in docs/, native/ and src/ from the package, and build the site.

    python -m docs.generate            rewrite the tables
    python -m docs.generate --check    exit with code 1 if a table is out of date
    python -m docs.generate.site       build the site: `make docs`

Each table is between two markers. Words after the name are arguments of its function.

- Markdown: `<!-- table: NAME -->` and `<!-- end -->`
- C++: `// table: NAME` and `// end`
- Python: `# table: NAME` and `# end`
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
    c_functions,
    c_types,
    javascript_functions,
    javascript_types,
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
    native_types,
    typescript_functions,
)
from docs.generate.operators import activations, attributes, equations, issues, operators, ports, versions

ROOT = Path(__file__).resolve().parents[2]

TABLES: Mapping[str, Callable[..., str]] = {
    item.__name__: item
    for item in (
        activations,
        attributes,
        commands,
        c_functions,
        c_types,
        coverage,
        equations,
        factors,
        features,
        figures,
        files,
        frameworks,
        issues,
        javascript_functions,
        javascript_types,
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
        native_types,
        operators,
        ports,
        quantized,
        runtimes,
        typescript_functions,
        versions,
    )
}

_TABLE = re.compile(
    r"(?P<open><!--|//|#|/\*) table: (?P<name>[\w ]+?)(?P<close> -->| \*/)?\n.*?"
    r"(?P<end><!-- end -->|/\* end \*/|(?://|#) end)",
    re.DOTALL,
)
_PLACES = (
    "README.md",
    "docs/**/*.md",
    *(f"native/**/*.{suffix}" for suffix in ("h", "cc", "js", "ts")),
    "src/onegru/engines/native.py",
)

#: The files with tables, relative to the root of the repository.
FILES = tuple(
    str(path.relative_to(ROOT))
    for place in _PLACES
    for path in sorted(ROOT.glob(place))
    if _TABLE.search(path.read_text(encoding="utf-8"))
)


def update(text: str) -> str:
    """Return `text` with new tables."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = match["name"].split()
        first = f"{match['open']} table: {match['name']}{match['close'] or ''}"
        return f"{first}\n{TABLES[name](*arguments)}\n{match['end']}"

    return _TABLE.sub(fill, text)
