"""Test the documents: tables are up to date, examples run, links and paths exist."""

from __future__ import annotations

import ast
import io
import math
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.generate import FILES, TABLES, update
from docs.generate.native import native_attributes
from onegru.operators.onnx import GRU_VERSIONS, NEWEST
from onegru.operators.schema import Attribute, by_name
from tests.support.machine.cli import script
from tests.support.machine.repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = sorted([*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")])


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", FILES)
def test_tables_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert update(text) == text, "run: python -m docs.generate"


def test_every_table_is_used() -> None:
    texts = "".join((ROOT / name).read_text(encoding="utf-8") for name in FILES)
    assert set(re.findall(r"(?:<!--|//|#|/\*) table: (\w+)", texts)) == set(TABLES)


def test_native_checks_know_the_attributes_that_augru_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = replace(NEWEST, attributes={**NEWEST.attributes, **by_name(Attribute("scale", "float"))})
    monkeypatch.setitem(GRU_VERSIONS, 30, newest)
    assert 'kAttributesOnlyOfGru[] = {"output_sequence", "scale"};' in native_attributes()


# ---- examples


@pytest.fixture
def in_a_folder_with_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with only the examples, so that nothing is written to the sources."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def having(language: str) -> list[Path]:
    return [path for path in (ROOT / "README.md", *PAGES) if blocks(path, language)]


@pytest.mark.usefixtures("in_a_folder_with_examples")
@pytest.mark.parametrize("path", having("python"), ids=named)
def test_python_examples(path: Path) -> None:
    """The blocks of a page run sequentially; each print writes the documented output.

    The output follows the print as a comment, or, for several lines, the code as a text block.
    """
    names: dict[str, Any] = {}
    text = path.read_text(encoding="utf-8")
    for block, shown in re.findall(
        r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE
    ):
        ast.parse(block)  # shows syntax errors clearly
        said = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, path.name, "exec"), names)
        lines = printed.getvalue().splitlines()
        rest = lines[len(said) :]
        assert lines[: len(said)] == said
        assert len(rest) == len(shown.splitlines()) and is_shown(shown, "\n".join(rest))


@pytest.mark.usefixtures("in_a_folder_with_examples")
@pytest.mark.parametrize("path", having("console"), ids=named)
def test_console_examples(path: Path) -> None:
    commands = 0
    for block in blocks(path, "console"):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = session.partition("\n")
            program, *arguments = command.split()
            assert program == "onegru"
            result = script(*arguments, COLUMNS="80")
            assert (result.code, result.err) == (0, "")
            for part in shown.split("…\n"):
                assert is_shown(part, result.out), (part, result.out)
            commands += 1
    assert commands >= 1


#: A version, a time, a number, or other text.
_PARTS = re.compile(
    r"(?P<version>\b\d+(?:\.\d+){2,}\S*)|(?P<time>\b[\d.]+ (?:[mµ]?s|min)\b)"
    r"|(?P<figure>-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)|(?P<word>[^\s\d-]+|-)"
)


def parts(text: str) -> list[str | float]:
    """Split words and numbers; parts that differ between runs and machines get a name only."""
    found: list[str | float] = []
    for match in _PARTS.finditer(text):
        if match["figure"] is None:
            found.append(match["word"] or match.lastgroup or "")
        elif abs(value := float(match["figure"].replace(",", ""))) < 1e-4 and value:
            found.append("rounding")
        elif found[-1:] == ["rounding"] and value == int(value):
            found.append("ULP")  # after an error
        else:
            found.append(value)
    return found


def is_shown(shown: str, printed: str) -> bool:
    """Whether a program printed the text in a document, with numbers within 2 %."""
    wanted, found = parts(shown), parts(printed)

    def fits(one: str | float, other: str | float) -> bool:
        if isinstance(one, str) or isinstance(other, str):
            return one == other
        return math.isclose(one, other, rel_tol=0.02, abs_tol=2e-3)

    starts = range(len(found) - len(wanted) + 1)
    return any(all(map(fits, wanted, found[start:])) for start in starts)


def test_figures_are_compared() -> None:
    assert is_shown("loss 0.412, 1.3 ms", "first\nloss 0.4121, 9 ms\nlast")
    assert not is_shown("loss 0.412, 1.3 ms", "loss 0.312, 1.3 ms")
    assert is_shown("error 1.2e-07  3", "error 3e-06  41") and not is_shown("8 → 32", "8 → 31")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/install.md"])
def test_packages_are_installed_into_an_environment(page: str) -> None:
    """Debian and Ubuntu do not allow installation into the system's Python."""
    text = (ROOT / page).read_text()
    assert text.index("python3 -m venv .venv\n. .venv/bin/activate\npip install '.[all]'") > 0


def test_the_digits_example(tmp_path: Path) -> None:
    """The output of `make run` agrees with the README."""
    shown = re.search(r"<!-- output of: (\S+) -->\n```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    result = subprocess.run(
        [sys.executable, ROOT / shown[1], "--picture", tmp_path / "digits.png", "--turns", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
    )
    assert result.returncode == 0, result.stderr
    assert is_shown(shown[2], result.stdout)
    assert "misread digits first: 3 of the 3 among 450" in result.stdout
    assert (tmp_path / "digits.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("stream", ["the same bits as one call over all frames: True", "states: {'h_out': 'h'}"]),
        ("convert", ["ONNX Runtime: largest difference", "OpenVINO: largest difference"]),
        ("verify", ["exit code 0", "as if the gates z and r were swapped in W and R only", "exit code 1"]),
    ],
)
def test_the_denoiser_examples(name: str, shown: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "denoiser" / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "300", "PYTHONUNBUFFERED": "1"},
    )
    assert result.returncode == 0, result.stderr
    for words in shown:
        assert words in result.stdout


# ---- links and paths


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links(path: Path) -> None:
    """A link's file exists, and has the heading."""
    for link, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            target = path.parent / link if link else path
            assert target.exists(), link
            assert not heading or heading in headings(target), f"{link}#{heading}"


def headings(path: Path) -> set[str]:
    """Return the anchors of a file's headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=named)
def test_named_files_exist(path: Path) -> None:
    """Code that looks like a path in the repository names a file, such as `src/onegru/core/spec.py`."""
    text = path.read_text(encoding="utf-8")
    pattern = r"`((?:src|native|tests|docs|examples|benchmarks)/[\w./*<>-]*)`"
    for name in re.findall(pattern, text):
        if "<" not in name:
            assert list(ROOT.glob(name)), name


def test_the_data_paths_name_functions_that_exist() -> None:
    page = (ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_/]+\.py)` \| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    assert len(rows) > 30
    for module, names in rows:
        tree = ast.parse((ROOT / "src" / "onegru" / module).read_text(encoding="utf-8"))
        defined = {item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.ClassDef)}
        assert defined.issuperset(re.findall(r"\w+", names)), module


def test_code_names_exist() -> None:
    """Files, functions, classes and constants in the developers' documents exist, such as `Model.stream`."""
    folders = ("src", "native", "tests", "benchmarks", "docs/generate")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    code = "\n".join(path.read_text("utf-8") for path in files if path.suffix in (".py", ".h", ".cc"))
    code = re.sub(r'""".*?"""|(?:#|//) [^\n]*', "", code, flags=re.DOTALL)
    known = {"x_in", *re.findall(r"\w+", code), *(path.name for path in (*files, *ROOT.iterdir()))}
    for path in sorted((ROOT / "docs" / "development").rglob("*.md")):
        for name in re.findall(r"`(\w[\w-]*(?:(?:\.|::)\w+)*)`", path.read_text("utf-8")):
            is_file = re.search(r"\.(py|h|cc|md|toml|txt)$", name)
            assert known.issuperset([name] if is_file else re.split(r"\W+", name)), f"{path.name}: {name}"
