"""The command as a fixture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import onegru
import onegru.cli.app
from tests.support.machine.cli import Cli, Result


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command, in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["onegru", *map(str, arguments)])
        capfd.readouterr()
        code = onegru.cli.app.run()
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return run
