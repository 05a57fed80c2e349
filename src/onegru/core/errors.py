"""Define the exceptions and the warning of onegru.

All public classes set `__module__` to onegru, so that pickles survive a move.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self


class OneGRUError(Exception):
    """Base class of onegru's exceptions."""

    __module__ = "onegru"

    def _render_traceback_(self) -> list[str]:
        """Return the lines for notebooks: the caller's frames without onegru's own, and the message."""
        inner = (str(_PACKAGE), f"{os.sep}IPython{os.sep}")
        frames = [
            frame
            for frame in traceback.extract_tb(self.__traceback__)
            if not frame.filename.startswith(inner[0]) and inner[1] not in frame.filename
        ]
        lines = [*traceback.format_list(frames), *traceback.format_exception_only(self)]
        return ["Traceback (most recent call last):", *(line.rstrip("\n") for line in lines)]


class SpecError(OneGRUError, ValueError):
    """Invalid or unsupported argument.

    The message contains the argument, its value, and the rule.

    Args:
        message: the whole message.
        argument: the argument.

    Attributes:
        argument: the argument, or the option of a command; None for an error about no single argument, such
            as the tensors of a file.
    """

    __module__ = "onegru"

    def __init__(self, message: str = "", argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument

    @classmethod
    def of(cls, argument: str, words: str) -> Self:
        """Create an error about an argument: its value, and the rule."""
        return cls(f"{argument}: {words}", argument)


class FormatError(OneGRUError, ValueError):
    """Invalid or unsupported content of a file.

    The message contains the file and the location in it.
    """

    __module__ = "onegru"


#: Errors that contradictory or malformed parts of a file can raise. A lack of memory is independent of the
#: file, so MemoryError propagates.
BROKEN = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)


_MISTAKES = (*(kind for kind in BROKEN if kind is not RecursionError), NameError)
_PACKAGE = Path(__file__).parents[1]


def is_own_mistake(error: Exception) -> bool:
    """Whether onegru's own code raised a Python error, which is then a bug in onegru."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    file = Path("" if last is None else last.tb_frame.f_code.co_filename)
    is_mistake = isinstance(error, _MISTAKES) and not isinstance(error, OneGRUError | UnicodeError)
    return is_mistake and _PACKAGE in file.parents


class MissingExtraError(OneGRUError, ImportError):
    """Missing optional package; the message names the extra.

    Args:
        package: the missing package.
        extra: the extra of onegru that installs it.
        purpose: the feature that needs it.
    """

    __module__ = "onegru"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'onegru[{extra}]'")
        self.package = package
        self.extra = extra
        self.purpose = purpose

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.package, self.extra, self.purpose), *super().__reduce__()[2:])


@contextmanager
def needs_extra(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Raise MissingExtraError if an import in this context lacks `package`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise MissingExtraError(package, extra, purpose) from error


@contextmanager
def prefixed_errors(location: str) -> Iterator[None]:
    """Prepend the location in a file, such as a node, to the errors raised in this context."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{location}{error}", error.argument) from error.__cause__
    except MemoryError as error:
        raise FormatError(f"{location}out of memory ({error})") from error


class SpecWarning(UserWarning):
    """Valid input that has no effect, or is avoidably slow."""

    __module__ = "onegru"


def callers_level(*others: str) -> int:
    """Return the number of frames between the warning function and the first frame outside onegru."""
    packages = ("onegru", *others)
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] in packages:
        level, frame = level + 1, frame.f_back
    return level
