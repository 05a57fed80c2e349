"""What onegru raises, and the one thing that it warns of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["FormatError", "MissingExtraError", "OneGRUError", "SpecError", "SpecWarning", "needs_extra"]


class OneGRUError(Exception):
    """Base of every error that onegru raises on purpose."""


class SpecError(OneGRUError, ValueError):
    """An attribute, shape, type or value that the operator's text forbids.

    The message names the argument, says what it is, and what it must be.
    """


class FormatError(OneGRUError, ValueError):
    """A file that is broken, hostile or beyond what onegru reads.

    The message names the file and the place in it.
    """


class MissingExtraError(OneGRUError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'onegru[{extra}]'")
        self.package = package
        self.extra = extra


@contextmanager
def needs_extra(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Around an import: if `package` is not there, say which extra brings it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise MissingExtraError(package, extra, purpose) from None


class SpecWarning(UserWarning):
    """Something that is legal but has no effect."""
