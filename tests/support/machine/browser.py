"""Load pages in a headless browser: results of scripts, requests and screenshots."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
_SECONDS = 60.0

# The browser reads commands from descriptor 3 and writes answers to 4.
_START = """
import os, sys
os.dup2(int(sys.argv[1]), 61), os.dup2(int(sys.argv[2]), 62)
os.dup2(61, 3), os.dup2(62, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


@dataclass(frozen=True)
class Dom:
    """Page after a script: its text, the script's result, errors and warnings, and requests."""

    text: str
    value: Any
    console: list[str]
    requests: list[str]


def find_browser() -> str:
    """Return the browser's program; skip the test if there is none."""
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
        width: the width of the window.
        height: the height of the window.
        script: the body of an asynchronous function, whose result is the answer's `value`.
        fragment: what follows # in the address.
        dark: whether dark colors are preferred.
    """
    with opened(_address(path, fragment), width, height, dark) as page:
        value = page.evaluate(f"(async () => {{ {script} }})()")
        return Dom(page.evaluate("document.documentElement.outerHTML"), value, page.console, page.requests)


def screenshot(
    path: Path, picture: Path, width: int = 1280, height: int = 1000, fragment: str = "", dark: bool = False
) -> None:
    """Write a PNG of a page."""
    with opened(_address(path, fragment), width, height, dark) as page:
        picture.write_bytes(base64.b64decode(page.call("Page.captureScreenshot")["data"]))


def _address(path: Path, fragment: str) -> str:
    address = path.resolve().as_uri()
    return f"{address}#{fragment}" if fragment else address


class Page:
    """Page, by the DevTools protocol: JSON with a null character after each message."""

    def __init__(self, commands: int, answers: int) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._commands, self._answers, self._read = commands, answers, b""
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._loaded: set[str] = set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command, and return the browser's answer."""
        message = {"id": next(self._numbers), "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, address: str) -> None:
        """Open an address, and wait until it is loaded and drawn."""
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        loader = self.call("Page.navigate", url=address)["loaderId"]
        while loader not in self._loaded:
            self._next()
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        """Return the next message; record events."""
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._read += part
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, given = message.get("method"), message.get("params", {})
        if method == "Page.lifecycleEvent" and given["name"] == "load":
            self._loaded.add(given["loaderId"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.console.append(json.dumps(given["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(given["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        return message


@contextmanager
def opened(address: str, width: int = 1280, height: int = 1000, dark: bool = False) -> Iterator[Page]:
    """Open a page for the duration of the context; see `dump_dom`."""
    program = find_browser()
    commands, write = os.pipe()
    read, answers = os.pipe()
    command = [sys.executable, "-c", _START, str(commands), str(answers), program, *_OPTIONS]
    browser = subprocess.Popen(command, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
    try:
        os.close(commands)
        os.close(answers)
        page = Page(write, read)
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.open(address)
        page.requests.remove(address.partition("#")[0])  # the page itself
        yield page
    finally:
        browser.kill()
        browser.wait()
        os.close(write)
        os.close(read)
