"""`python -m docs.generate.site` builds the site from docs/: `make docs`.

The pages of docs/ are written for the repository. `prepare` copies them to build/docs/ with these changes:

- links to files outside docs/ point to the repository
- drawings become part of the page, so that they use its colours
- public names link to the reference
- each group of public names gets a page

The site is written to build/site/. Any warning is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import onegru
from docs.generate import ROOT, update
from docs.generate.names import GROUPS

DOCS = ROOT / "docs"
BUILD = ROOT / "build"
REPOSITORY = "https://github.com/onegru/onegru/blob/main"

_PUBLIC = "|".join([*onegru.__all__, "__version__", "backend"])

#: Code blocks, headings and links, which stay unchanged, or a public name as code.
_NAMES = re.compile(
    r"^```.*?^```$|^#.*?$|\[[^\]]*\]\([^)]*\)"
    rf"|`onegru\.((?:{_PUBLIC})\b(?:\.[A-Za-z]\w*)?)(?:\([^`]*\))?`",
    re.DOTALL | re.MULTILINE,
)


def prepare() -> None:
    """Write the pages and their files to build/docs/."""
    pages = BUILD / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    for path in sorted(DOCS.rglob("*")):
        target = pages / path.relative_to(DOCS)
        if path.suffix == ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page(path), encoding="utf-8")
        elif path.suffix in (".css", ".svg", ".png"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for group, (title, names) in GROUPS.items():
        text = "\n\n".join([f"# {title}", *(f"::: onegru.{name}" for name in names)])
        (pages / "reference" / f"{group}.md").write_text(f"{text}\n", encoding="utf-8")
    shutil.copyfile(DOCS / "assets" / "zensical.toml", BUILD / "zensical.toml")


def page(path: Path) -> str:
    """Convert a page of docs/ to a page of the site."""
    text = re.sub(r"^<!-- .*? -->$", "", update(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    text = re.sub(
        r"^!\[([^\]]*)\]\((\S+\.svg)\)$", lambda match: _drawing(path, *match.groups()), text, flags=re.M
    )
    text = _NAMES.sub(_linked, text)
    return re.sub(r"\]\((?!https?:|#)([^)#\s]+)", lambda match: f"]({_address(path, match[1])}", text)


def _drawing(path: Path, title: str, name: str) -> str:
    """Return a drawing as HTML on one line, because an empty line would end it."""
    drawing = " ".join((path.parent / name).read_text(encoding="utf-8").split())
    return f'<figure class="drawing" role="img" aria-label="{title}">{drawing}</figure>'


def _linked(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f"[{match[0]}][onegru.{match[1]}]"


def _address(path: Path, link: str) -> str:
    """Return the address of a link: another page, or a file in the repository."""
    target = (path.parent / link).resolve()
    if target.is_relative_to(DOCS) and target.suffix in (".md", ".png"):
        return link
    return f"{REPOSITORY}/{target.relative_to(ROOT)}"


def build() -> int:
    """Build the site. Return 0 if there were no warnings."""
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--clean",
        "--strict",
        "--config-file",
        "zensical.toml",
    ]
    result = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[\d;]*m", "", result.stderr).replace("No issues found\n", "")
    if result.returncode or said:
        print(said, file=sys.stderr)
        return 1
    print(f"wrote {BUILD / 'site' / 'index.html'}")
    return 0


def main() -> int:
    """Prepare the pages and build the site."""
    prepare()
    return build()


if __name__ == "__main__":
    sys.exit(main())
