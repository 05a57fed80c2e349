"""Test that public docstrings begin with a verb or a noun phrase, and agree with their signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import onegru
from docs.generate.names import GROUPS

LONGEST = 16  # words of a first line
VERBS = set(
    re.findall(
        r"\w+",
        "Build Compare Compute Convert Count Create Describe Fuse Load Locate Make Pad Put Raise Read "
        "Release Replace Restore Return Rewrite Run Score Set Store Summarize Use Write",
    )
)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function, class and method, except those that need PyTorch."""
    for name in (name for _, group in GROUPS.values() for name in group if not name.startswith("torch.")):
        found: Any = onegru
        for part in name.split("."):
            found = getattr(found, part)
        if inspect.isclass(found):
            for key, member in vars(found).items():
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and not key.startswith("_"):
                    yield f"{name}.{key}", function
        if callable(found):
            yield name, found


PUBLIC = dict(public())


def documented(docstring: str) -> list[str]:
    """Return the names in the section Args."""
    found = re.search(r"^Args:\n((?:    .*\n|\n)*)", inspect.cleandoc(docstring) + "\n", re.MULTILINE)
    return [] if found is None else re.findall(r"^    \*{0,2}(\w+):", found[1], re.MULTILINE)


@pytest.mark.parametrize("name", PUBLIC)
def test_first_lines(name: str) -> None:
    first = inspect.cleandoc(PUBLIC[name].__doc__ or "").partition("\n")[0]
    assert first.endswith((".", ":")) and len(first.split()) <= LONGEST, first
    assert inspect.isclass(PUBLIC[name]) or first.split()[0] in VERBS, first


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_are_those_of_the_signature(name: str) -> None:
    docstring = PUBLIC[name].__doc__ or ""
    try:
        parameters = [
            item for item in inspect.signature(PUBLIC[name]).parameters if item not in ("self", "cls")
        ]
    except ValueError:
        pytest.skip("has no signature")
    found, parameters = documented(docstring), [item for item in parameters if item not in ("self", "cls")]
    if found or (len(parameters) > 2 and not inspect.isclass(PUBLIC[name])):
        assert found == parameters
