"""The site: each page is in its navigation, each public name in its reference; it builds without warnings."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

import onegru
from docs.generate import site
from docs.generate.names import GROUPS
from tests.support.machine.repository import ROOT

DOCS = ROOT / "docs"
SETTINGS = tomllib.loads((DOCS / "assets" / "zensical.toml").read_text(encoding="utf-8"))["project"]

needs_zensical = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="zensical is not installed: make docs"
)


def listed(items: list[Any]) -> list[str]:
    """The pages of the navigation."""
    values = [value for item in items for value in item.values()]
    return [page for value in values for page in (listed(value) if isinstance(value, list) else [value])]


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    made = {f"reference/{group}.md" for group in GROUPS}
    found = listed(SETTINGS["nav"])
    assert len(found) == len(set(found))
    assert set(found) == pages | made, "docs/assets/zensical.toml has to list them"


def test_the_navigation_calls_a_page_of_the_reference_by_its_title() -> None:
    (reference,) = (item["Reference"] for item in SETTINGS["nav"] if "Reference" in item)
    titles = {page: title for item in reference for title, page in item.items()}
    assert {f"reference/{group}.md": title for group, (title, _) in GROUPS.items()}.items() <= titles.items()


MODULES = ("conformance", "openvino", "reports")


def test_every_public_name_is_in_the_reference() -> None:
    names = [name for _, group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    modules = {name for name in dir(onegru) if name[0] != "_" and inspect.ismodule(getattr(onegru, name))}
    public = {name for name in modules if name in onegru._MODULES}
    source = (Path(onegru.__file__).parent / "torch" / "__init__.py").read_text(encoding="utf-8")
    (listed,) = (node.value for node in ast.parse(source).body if isinstance(node, ast.Assign))
    torch = {f"torch.{name}" for name in ast.literal_eval(listed)}
    inside = {f"{name}.{item}" for name in MODULES for item in getattr(onegru, name).__all__}
    public = {*onegru.__all__, "__version__", *public} - {*MODULES}
    assert set(names) == {*public, *inside, *torch}, "docs/generate/names.py has to list them"


def test_a_page_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names lead to the reference, files to the repository, pages to pages; code and headings stay."""
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    (tmp_path / "docs" / "a.svg").write_text("<svg>\n\n<path/>\n</svg>\n")
    page.write_text(
        "# `onegru.gru`\n\n`onegru.gru` and `onegru.load(path)`, "
        "[`onegru.gru`](other.md#x), `onegru.grus`\n\n"
        "```python\nonegru.gru  # `onegru.gru`\n```\n\n"
        "[read](../README.md#install) ![p](a.png)\n\n![A](a.svg)\n"
    )
    assert site.page(page) == (
        "# `onegru.gru`\n\n[`onegru.gru`][onegru.gru] and [`onegru.load(path)`][onegru.load], "
        "[`onegru.gru`](other.md#x), `onegru.grus`\n\n"
        "```python\nonegru.gru  # `onegru.gru`\n```\n\n"
        "[read](https://github.com/onegru/onegru/blob/main/README.md#install) ![p](a.png)\n\n"
        '<figure class="drawing" role="img" aria-label="A"><svg> <path/> </svg></figure>\n'
    )


@needs_zensical
def test_it_builds_and_asks_nobody_for_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = tmp_path / "build"
    build.mkdir()
    (tmp_path / "src").symlink_to(ROOT / "src")
    monkeypatch.setattr(site, "BUILD", build)
    site.prepare()
    assert site.build() == 0
    pages = [*(build / "site").rglob("*.html")]
    assert len(pages) == len(listed(SETTINGS["nav"])) + 1  # that for an address that there is not
    for path in pages:
        text = path.read_text(encoding="utf-8")
        for request in ('src="http', "fonts.googleapis", 'data-md-component="source"'):
            assert request not in text, path
    text = (build / "site" / "reference" / "functions.html").read_text(encoding="utf-8")
    for name in GROUPS["functions"][1]:
        assert f'id="onegru.{name}"' in text


@needs_zensical
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("[no](nowhere.md)", "page does not exist"),
        ("[no](other.md#nowhere)", "anchor does not exist"),
        ("[no][package.nothing]", "unresolved autoref"),
        ("::: package.nothing", "package.nothing could not be found"),
        ("::: package.function", "Parameter 'b' does not appear in the function signature"),
    ],
)
def test_a_warning_is_a_failure(
    fault: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "docs/index.md": f"# Page\n\n{fault}\n",
        "docs/other.md": "# Other\n",
        "package.py": 'def function(a: int) -> None:\n    """Do.\n\n    Args:\n        b: no.\n    """\n',
        "zensical.toml": '[project]\nsite_name = "x"\n'
        '[project.plugins.mkdocstrings.handlers.python]\npaths = ["."]\n',
    }
    (tmp_path / "docs").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(site, "BUILD", tmp_path)
    assert site.build() == 1
    assert message in capsys.readouterr().err
