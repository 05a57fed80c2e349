"""Create the HTML report of the suite, as one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from onegru.conformance.case import Case
from onegru.conformance.report.data import page_data
from onegru.conformance.results import RuntimeResults
from onegru.core.arguments import file_path
from onegru.system.atomic_write import write_files

_HERE = Path(__file__).parent
_PARTS = ("page.html", "page.css", "matrix.js", "panel.js", "start.js")


def write_report(
    path: str | os.PathLike[str], results: Sequence[RuntimeResults], cases: Sequence[Case]
) -> None:
    """Write the page."""
    page = page_of(results, cases).encode()

    def write(file: IO[bytes]) -> None:
        file.write(page)

    write_files([(file_path("path", path), write)])


def page_of(results: Sequence[RuntimeResults], cases: Sequence[Case]) -> str:
    """Return the text of the page."""
    page, style, *scripts = ((_HERE / name).read_text(encoding="utf-8") for name in _PARTS)
    data = json.dumps(page_data(results, cases), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = page.replace("/* style */", style).replace("/* script */", "\n".join(scripts))
    return page.replace("/* data */", data.replace("<", "\\u003c"))  # no text in it can end its element
