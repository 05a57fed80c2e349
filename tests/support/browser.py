"""A browser without a window, where there is one: what a page becomes when a script has used it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")

# What a script may use; what it returns, errors and refused requests are handed out as text.
_FRAME = """
<script>
const wrong = [];
window.requestAnimationFrame = (draw) => setTimeout(draw, 0);  // a page that nobody sees has no frames
addEventListener("error", (event) => wrong.push(event.message));
addEventListener("securitypolicyviolation", (event) => wrong.push(event.blockedURI));
addEventListener("load", async () => {
  const pause = () => new Promise((done) => setTimeout(done, 60));
  const find = (selector, index = 0) => document.querySelectorAll(selector)[index];
  const text = (selector) => [...document.querySelectorAll(selector)].map((item) => item.textContent);
  const pick = async (selector, value) => {
    find(selector).value = value;
    find(selector).dispatchEvent(new Event("change"));
    await pause();
  };
  const press = async (selector) => (find(selector).click(), await pause());
  const key = async (name) => (dispatchEvent(new KeyboardEvent("keydown", { key: name })), await pause());
  const mouse = async (kind, canvas, x, y) => {
    const box = canvas.getBoundingClientRect();
    canvas.setPointerCapture = () => {};
    canvas.dispatchEvent(new PointerEvent(kind, { clientX: box.left + x, clientY: box.top + y }));
    await pause();
  };
  const colour = (canvas, x, y) => {
    const ratio = canvas.width / canvas.getBoundingClientRect().width;
    const copy = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
    copy.drawImage(canvas, -Math.floor(x * ratio), -Math.floor(y * ratio));
    return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const pixels = (canvas) => canvas.toDataURL().length + canvas.toDataURL().slice(-4000, -100);
  await pause();
  let result = null;
  try {
    result = await (async () => { %s })();
  } catch (error) {
    wrong.push(String(error));
  }
  const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  const requests = loaded.filter((name) => !name.startsWith("data:"));
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({ result, wrong, requests });
  document.body.append(found);
});
</script>
"""


def use_page(page: str, script: str, folder: Path, size: tuple[int, int] = (1280, 1300)) -> Any:
    """What a script returns that uses a page; nothing may go wrong, and nothing may be loaded."""
    assert BROWSER is not None
    path = folder / "used.html"
    path.write_text(page.replace("<head>", "<head>" + _FRAME.replace("%s", script), 1), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    options = [
        f"--window-size={size[0]},{size[1]}",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'user'}",
    ]
    done = subprocess.run(
        [*command, *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text is not None, done.stdout[-2000:] + done.stderr
    found = json.loads(unescape(text[1]))
    assert (found["wrong"], found["requests"]) == ([], [])
    return found["result"]
