"""Test the extras: their packages, the errors that name them, and the table in docs/install.md."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import onegru
from tests.support.machine.repository import ROOT

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def brings(extra: str) -> set[str]:
    """Return the packages that an extra installs, including those of other extras."""
    packages: set[str] = set()
    for item in EXTRAS[extra]:
        name = re.match(r"[\w-]+", item)
        assert name is not None
        inner = re.fullmatch(r"onegru\[(.*)\]", item)
        packages |= {found for part in inner[1].split(",") for found in brings(part)} if inner else {name[0]}
    return packages


def asked_for() -> set[tuple[str, str]]:
    """Return every (package, extra) that an error in the sources names."""
    found = set()
    for path in Path(onegru.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id in ("needs_extra", "MissingExtraError"):  # type: ignore[attr-defined]
                values = [item.value for item in node.args[:2] if isinstance(item, ast.Constant)]  # type: ignore[attr-defined]
                if len(values) == 2:
                    found.add((str(values[0]).split()[0], str(values[1])))
    return found


def test_errors_name_an_extra_that_brings_the_package() -> None:
    found = asked_for()
    assert ("h5py", "keras-files") in found and len(found) >= 8
    for package, extra in found:
        assert package in brings(extra), f"{extra} does not bring {package}"


def test_all_reads_every_file_and_brings_no_framework() -> None:
    packages = brings("all")
    assert {
        "onnx",
        "onnxruntime",
        "openvino",
        "h5py",
        "tflite",
        "safetensors",
        "ml_dtypes",
        "pyarrow",
        "typer",
        "rich",
    } == packages


def test_examples_bring_what_pictures_need() -> None:
    assert "matplotlib" in brings("examples")


def test_the_documents_list_every_extra() -> None:
    table = (ROOT / "docs" / "install.md").read_text().split("| extra | brings | for |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == sorted(EXTRAS)


def test_extras_bring_versions_that_are_supported() -> None:
    """The oldest version that the sources require is the oldest that the extra installs."""
    for extra, module in (
        ("onnxruntime", "runtimes/execution_provider.py"),
        ("openvino", "runtimes/openvino_op.py"),
    ):
        text = (Path(onegru.__file__).parent / module).read_text()
        oldest = re.search(r"^_OLDEST = \((\d+), (\d+)\)", text, re.MULTILINE)
        assert oldest is not None and f"{extra}>={oldest[1]}.{oldest[2]}" in EXTRAS[extra]
