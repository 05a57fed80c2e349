"""Run a Python function as a runtime: a function object, or the name "module:function"."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from onegru.conformance.case import Case
from onegru.conformance.comparison import compare
from onegru.conformance.runtimes.torch import CaseSubject
from onegru.core.arguments import shown
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.wording import printable
from onegru.peers.base import MisfitError, ModelUnderTest, Runtime

#: Function from a case to its outputs, by the specification's names.
Function = Callable[[Case], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class FunctionRuntime(Runtime):
    """Function as a runtime; see `onegru.peers.base.Runtime`."""

    # the function, or its location for a new process, from `find_function`
    function: Function | str = ""
    number: str = ""  # its version

    def version(self) -> str | None:
        """Return the version."""
        return self.number

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Return the reason why this model is not tried; None if it is."""
        return None if isinstance(subject, CaseSubject) else "runs only the suite's cases"

    def start(self) -> None:
        """Import the function."""
        self._called()

    def _called(self) -> Function:
        return _imported(self.function) if isinstance(self.function, str) else self.function

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs."""
        assert isinstance(subject, CaseSubject) and subject.case is not None, "refused before"
        case = subject.case
        try:
            found: object = self._called()(case)
        except Exception as error:  # a function may raise any exception
            raise RuntimeError(f"{type(error).__name__}: {_words(error)}".rstrip(": ")) from error
        if not isinstance(found, Mapping):
            raise MisfitError(f"returned {shown(found)}; must return a mapping from names to arrays")
        outcome = compare(case, found)
        if outcome.output is not None and outcome.where is None:  # another shape, of any size
            raise MisfitError(outcome.reason)
        return {str(name): np.asarray(value) for name, value in found.items()}


def find_function(text: str) -> str:
    """Return the location of a function "module:function" or "file.py:function" for a new process."""
    module, _, name = text.rpartition(":")
    if module.endswith(".py"):
        is_there, module = Path(module).is_file(), str(Path(module).absolute())
    else:
        try:
            is_there = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):  # of a parent package
            is_there = False
    if not is_there or not name:
        hint = "module:function of an importable module, or FILE.py:function"
        raise SpecError.of("runtime", f"{text!r}: no such function; must be {hint}")
    return f"{module}:{name}"


@cache
def _imported(text: str) -> Function:
    module, _, name = text.rpartition(":")
    if not module.endswith(".py"):
        return attrgetter(name)(importlib.import_module(module))  # type: ignore[no-any-return]
    path = Path(module)
    sys.path.append(str(path.parent))  # last, so that its files do not replace other modules
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[path.stem] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return attrgetter(name)(made)  # type: ignore[no-any-return]


def _words(error: Exception) -> str:
    """Return the message of an error, on one line."""
    try:
        return printable(" ".join(str(error).split()))
    except Exception:  # from the __str__ of a custom error
        return ""
