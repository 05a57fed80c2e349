"""Mark tests that need features of an operating system."""

from __future__ import annotations

import os
import sys

import pytest

posix = pytest.mark.skipif(
    os.name != "posix", reason="needs links, permissions, named pipes, signals or forks as POSIX has them"
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, or limits memory as Linux does")
