"""What onegru raises, and the one thing that it warns of."""

from __future__ import annotations

__all__ = ["FormatError", "MissingExtraError", "OneGRUError", "SpecError", "SpecWarning"]


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


class SpecWarning(UserWarning):
    """Something that is legal but has no effect."""
