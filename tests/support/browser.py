"""Pages in a browser without a window: what becomes of them, and how they look."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "google-chrome")

# What a script returns, or what it raises, stands in the page for us to read.
_SCRIPT = """<script>(async () => {
const answer = {};
try { answer.value = await (async () => { %s })(); } catch (error) { answer.error = String(error.stack); }
const found = document.createElement("script");
found.type = "application/json";
found.id = "answer";
found.textContent = JSON.stringify(answer).replaceAll("<", "\\\\u003c");
document.body.append(found);
})();</script>"""


@dataclass(frozen=True)
class Dom:
    """A page after its scripts have run: its text, what they returned, and what the console says."""

    text: str
    value: Any
    console: list[str]


def find_browser() -> str:
    """The browser's program; skips the test if there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium")
    return found


def dump_dom(
    path: Path,
    width: int = 1280,
    height: int = 1000,
    script: str = "",
    fragment: str = "",
    dark: bool = False,
) -> Dom:
    """Open a page and run a script in it.

    Args:
        path: the page.
        width: of the window.
        height: of the window.
        script: the body of an asynchronous function, whose result is the answer's `value`.
        fragment: what follows # in the address.
        dark: whether dark colours are preferred.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        text = path.read_text(encoding="utf-8")
        copy.write_text(text.replace("</body>", _SCRIPT % script + "</body>"), encoding="utf-8")
        done = _run(copy, fragment, width, height, dark, "--dump-dom")
    answer = re.search(r'<script type="application/json" id="answer">(.*?)</script>', done.stdout, re.DOTALL)
    assert answer is not None, done.stderr
    told = json.loads(answer[1])
    assert "error" not in told, told["error"]
    return Dom(done.stdout, told.get("value"), re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr))


def screenshot(
    path: Path, picture: Path, width: int = 1280, height: int = 1000, fragment: str = "", dark: bool = False
) -> None:
    """Write a PNG of a page."""
    _run(path, fragment, width, height, dark, f"--screenshot={picture}", "--hide-scrollbars")


def _run(
    page: Path, fragment: str, width: int, height: int, dark: bool, *options: str
) -> subprocess.CompletedProcess[str]:
    address = page.resolve().as_uri() + (f"#{fragment}" if fragment else "")
    settings = [f"--window-size={width},{height}", "--virtual-time-budget=5000", "--enable-logging=stderr"]
    if dark:
        settings.append("--blink-settings=preferredColorScheme=0")
    return subprocess.run(
        [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", *settings, *options, address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
