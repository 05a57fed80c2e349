"""Every form of layer to every kind of file and back: the same comes back, or the form is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forms import TARGETS, check_every_form

pytest.importorskip("safetensors")


@pytest.mark.parametrize("name", TARGETS)
def test_every_form(name: str, tmp_path: Path) -> None:
    check_every_form(TARGETS[name], tmp_path)
