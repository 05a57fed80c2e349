"""scikit-build-core as it is, which also gets OpenVINO's headers where its operator can be built.

They are in OpenVINO's wheel (some 50 MB) and nowhere else. An isolated build does not see what is installed, so
without this it would leave the operator out, and IRs would take several times as long. A marker in pyproject.toml
cannot tell musl from glibc, nor whether the environment that the wheel is for has them already (CMakeLists.txt looks
there, too): a build that could do without must not fail for them.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from pathlib import Path

from scikit_build_core import build as _scikit_build_core
from scikit_build_core.build import *  # noqa: F403 - every hook

# The oldest glibc that the newest of its wheels for this processor takes.
_GLIBC = {"x86_64": (2, 28), "aarch64": (2, 35)}


def _openvino() -> list[str]:
    libc, version = platform.libc_ver()
    oldest = _GLIBC.get(platform.machine())
    is_possible = sys.platform == "linux" and libc == "glibc" and oldest is not None
    if not is_possible or tuple(map(int, version.split("."))) < oldest:
        return []
    if "ONEGRU_WHEEL" in os.environ:  # with the headers of every release (.ci/openvino-headers)
        return []
    installed = Path(sysconfig.get_path("platlib"), "openvino", "include", "openvino", "openvino.hpp")
    return [] if installed.exists() else ["openvino>=2025.0"]


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    return [*_scikit_build_core.get_requires_for_build_wheel(config_settings), *_openvino()]


def get_requires_for_build_editable(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    return [*_scikit_build_core.get_requires_for_build_editable(config_settings), *_openvino()]
