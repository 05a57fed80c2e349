"""Test the released packages: one version, and the content of the wheels and the sdist."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import version

import onnxruntime

import onegru
from onegru import execution_provider
from tests.support.machine.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_there_is_one_version() -> None:
    wanted = PROJECT["project"]["version"]
    assert wanted == version("onegru") == onegru.__version__
    heading = re.search(r"^## \[(.*?)\] – (unreleased|\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.MULTILINE)
    assert heading is not None and heading[1] == wanted
    name = execution_provider.register()
    (device,) = (device for device in onnxruntime.get_ep_devices() if device.ep_name == name)
    assert device.ep_metadata["version"] == ".".join(re.findall(r"\d+", wanted)[:3])


def test_wheels_have_an_operator_for_openvino_from_the_oldest_release_on() -> None:
    releases = runpy.run_path(str(ROOT / ".ci" / "openvino-headers"))["RELEASES"]
    (oldest,) = PROJECT["project"]["optional-dependencies"]["openvino"]
    assert oldest == f"openvino>={releases[0]}"
    assert f'"{oldest}"' in read("native/build_backend.py")


def test_the_workflow_expects_what_cibuildwheel_makes() -> None:
    """Three for each system: for 3.11, for the stable ABI of 3.12 and newer, for free-threaded 3.14."""
    assert PROJECT["tool"]["cibuildwheel"]["build"] == [
        *("cp311-*", "cp312-*", "cp313-*", "cp314-*"),
        "cp314t-*",
    ]
    workflow = read(".github/workflows/wheels.yml")
    systems = re.findall(r"system: \[(.*)\]", workflow)[0].split(",")
    assert re.findall(r"-eq (\d+)$", workflow, re.MULTILINE) == [
        "3",
        str(3 * len(systems)),
        str(3 * len(systems) + 1),
    ]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
