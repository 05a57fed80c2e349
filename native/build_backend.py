"""scikit-build-core as it is, which also gets OpenVINO's headers where its operator can be built.

They are in OpenVINO's wheel (some 50 MB) and nowhere else. An isolated build does not see what is installed,
so without this it would leave the operator out, and IRs would take several times as long. A marker in
pyproject.toml cannot tell musl from glibc, nor whether the environment that the wheel is for has them already
(CMakeLists.txt looks there, too): a build that could do without must not fail for them.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, str | list[str]]

# The oldest glibc that the newest of its wheels for this processor takes.
_GLIBC = {"x86_64": (2, 28), "aarch64": (2, 35)}


def _openvino() -> list[str]:
    libc, version = platform.libc_ver()
    oldest = _GLIBC.get(platform.machine())
    if sys.platform != "linux" or libc != "glibc" or oldest is None:
        return []
    if tuple(map(int, version.split("."))) < oldest:
        return []
    if "ONEGRU_WHEEL" in os.environ:  # with the headers of every release (.ci/openvino-headers)
        return []
    installed = Path(sysconfig.get_path("platlib"), "openvino", "include", "openvino", "openvino.hpp")
    return [] if installed.exists() else ["openvino>=2025.0"]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    """What scikit-build-core needs, and OpenVINO."""
    return [*build.get_requires_for_build_wheel(config_settings), *_openvino()]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    """The same for an editable install."""
    return [*build.get_requires_for_build_editable(config_settings), *_openvino()]
