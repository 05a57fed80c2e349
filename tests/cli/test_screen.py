"""The progress bar, and what is seen of it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time

import pytest

from onegru.cli.screen import Screen, ruled_table, safe
from tests.support.machine.processes import run_python

SLOW = """
import sys, time
from onegru.cli import screen
screen._PATIENCE = float(sys.argv[1])
with screen.ProgressBar("running [a] model") as watch:
    for done in range(8):
        watch.progress(done, 8)
        time.sleep(0.05)
    watch.progress(8, 8)
print("done")
"""


def in_terminal(code: str, *arguments: str) -> str:
    """What a program writes to a terminal of 80 columns."""
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal", exc_type=ImportError)
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=child, stderr=child, env=environment) as process:
        os.close(child)
        written = b""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            if select.select([parent], [], [], 1)[0]:
                try:
                    written += os.read(parent, 65536)
                except OSError:  # the other end is closed
                    break
    os.close(parent)
    assert process.returncode == 0
    return written.decode()


def test_bar_after_some_patience_that_leaves_nothing() -> None:
    written = in_terminal(SLOW, "0.1")
    assert "running [a] model" in written
    *_, residue = written.split("\x1b[2K")  # each redrawing erases the line first
    assert re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", residue) == "done\n"
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again


def test_no_bar_for_what_is_quick() -> None:
    assert in_terminal(SLOW, "30").replace("\r", "") == "done\n"


def test_no_bar_outside_a_terminal() -> None:
    for environment in (None, {"FORCE_COLOR": "1"}):
        result = run_python(SLOW, "0.1", environment=environment)
        assert (result.stdout, result.stderr) == ("done\n", "")


def test_long_names_are_cut_in_front(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of PyTorch's layers through OpenVINO or its exporters differ only at their ends."""
    table = ruled_table(["GRU"], ["W8A8", "W8A16"])
    for index in range(2):
        table.add_row(safe(f"/encoder/recurrent/layers.{index}/rnn[a]/GRU"), "41.2 dB", "42.0 dB")
    table.add_row("no name but words that fold", "", "")
    Screen(width=40).print(table)
    rows = [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows[:2] == ["…yers.0/rnn[a]/GRU", "…yers.1/rnn[a]/GRU"] and "…" not in "".join(rows[2:])
