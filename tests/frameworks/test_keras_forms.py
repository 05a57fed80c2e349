"""Every form of layer to files that Keras writes, and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("torch")
pytest.importorskip("keras")
pytest.importorskip("h5py")

from tests.support.forms import KERAS_TARGETS, check_every_form


@pytest.mark.filterwarnings("ignore")  # Keras's, of its older format
@pytest.mark.parametrize("name", KERAS_TARGETS)
def test_every_form(name: str, tmp_path: Path) -> None:
    check_every_form(KERAS_TARGETS[name], tmp_path)
