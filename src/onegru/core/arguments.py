"""Check arguments that are not arrays: integers, numbers, booleans, words, paths."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from onegru.core.errors import SpecError

_LONGEST = 100


def shown(value: object) -> str:
    """Return a value as short text on one line, for messages."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array, {value.dtype.name} {list(value.shape)}"
    try:
        text = repr(value)
    except Exception:  # from a custom __repr__, or for an integer of thousands of digits
        return f"an object of type {type(value).__name__}"
    is_short = len(text) <= _LONGEST and text.isprintable()
    return text if is_short else f"an object of type {type(value).__name__}"


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or (least is not None and value < least)
        or (most is not None and int(value) > most)
    ):
        must = "an integer" if least is None else f"an integer, at least {least}"
        if least is not None and most is not None:
            must = f"{least} or {most}" if most == least + 1 else f"an integer, {least}…{most}"
        raise SpecError.of(name, f"{shown(value)}; must be {must}")
    return int(value)


def flag(name: str, value: object) -> bool:
    """Return `value` as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise SpecError.of(name, f"{shown(value)}; must be True or False")
    return bool(value)


def number(name: str, value: object) -> float:
    """Return `value` as a float, which may be infinite."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise SpecError.of(name, f"{shown(value)}; must be a number")
    try:
        read = float(value)
    except OverflowError as error:
        raise SpecError.of(
            name, "too large for float64; must be in float32's range, because files store float32"
        ) from error
    if math.isnan(read):
        raise SpecError.of(name, "NaN; must be a number")
    return read


def choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value`. Raise SpecError unless it is one of `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise SpecError.of(name, f"{shown(value)}; must be one of {', '.join(choices)}")
    return str(value)


def file_path(name: str, value: object) -> Path:
    """Return `value` as a path."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str) or value == "":
        raise SpecError.of(name, f"{shown(value)}; must be the name of a file")
    return Path(value)


def node_names(name: str, value: object) -> bool | frozenset[str]:
    """Return `value` as names of GRU nodes, True for all and False for none."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str):
        raise SpecError.of(name, f"{value!r}; must be a list of names, not one name")
    if not isinstance(value, Collection) or not value or not all(isinstance(item, str) for item in value):
        raise SpecError.of(name, f"{shown(value)}; must be True, False or names of GRU nodes")
    return frozenset(value)


def check_function(name: str, value: object) -> None:
    """Raise SpecError unless `value` can be called, or is None."""
    if value is not None and not callable(value):
        raise SpecError.of(name, f"{shown(value)}; must be a function")
