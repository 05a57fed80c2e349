"""What errors show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import onegru


def test_notebooks_show_the_callers_frames() -> None:
    """IPython asks the error, and would show every frame of onegru with the lines around it."""
    with pytest.raises(onegru.SpecError) as caught:
        onegru.load(3)  # type: ignore[arg-type]
    first, *lines = caught.value._render_traceback_()
    assert first == "Traceback (most recent call last):"
    assert [line for line in lines if line.startswith("  File")] == [
        line for line in lines if f'File "{__file__}", line ' in line
    ]
    assert lines[-1].startswith("onegru.SpecError: path: 3; must be ") and len(lines) == 2


def test_programs_show_every_frame(tmp_path: Path) -> None:
    """Outside of notebooks nothing is hidden, as a report of a fault needs it."""
    program = tmp_path / "program.py"
    program.write_text("import onegru\nonegru.load(3)\n")
    said = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False).stderr
    assert said.count("  File ") > 2 and said.splitlines()[-1].startswith("onegru.SpecError: path: 3; ")
