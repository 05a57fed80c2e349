"""Read the attributes of an operator: names, kinds, ranges and defaults, from its data.

Files store alpha, beta and clip as float32, so they are rounded to float32 here. A function and a file then
also agree in float64.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from onegru.core.arguments import integer, number, shown
from onegru.core.dtypes import to_float32
from onegru.core.errors import SpecError
from onegru.operators.schema import Attribute, OpSchema


def read_attributes(operator: OpSchema, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every attribute of `operator`: the given value, else its default."""
    check_names(operator, given)
    values: dict[str, Any] = {}
    for name, attribute in operator.attributes.items():
        if name in given:
            values[name] = _checked(attribute, given[name])
        elif attribute.required:
            raise SpecError.of(name, f"missing; {operator} requires it")
        else:
            values[name] = attribute.default
    if operator.clip_zero_is_none and values.get("clip") == 0 and given.get("clip"):
        raise SpecError.of(
            "clip", f"{given['clip']!r}; must not round to 0 in float32, because files store float32"
        )
    if values.get("direction") == "foward":
        values["direction"] = "forward"
    return values


def check_names(operator: OpSchema, names: Iterable[str]) -> None:
    """Raise SpecError for the first name that is not an attribute of `operator`."""
    for name in names:
        if name not in operator.attributes:
            must = f"must be one of {', '.join(operator.attributes)}"
            if (opset := operator.later.get(name)) is not None:
                must = f"{name} needs opset {opset}"
            elif (opset := operator.earlier.get(name)) is not None:
                must = f"{name} was removed in opset {opset}"
            raise SpecError.of(name, f"not an attribute of {operator}; {must}")


def _checked(attribute: Attribute, value: object) -> Any:
    read = _READERS[attribute.kind](attribute.name, value)
    if attribute.choices is not None and read not in attribute.choices:
        *most, last = ["empty" if choice == () else repr(choice) for choice in attribute.choices]
        must = f"{', '.join(most)} or {last}" if most else last
        raise SpecError.of(attribute.name, f"{read!r}; must be {must}")
    if attribute.name == "hidden_size" and read < 1:
        raise SpecError.of("hidden_size", f"{read}; must be at least 1")
    return read


def _flag(name: str, value: object) -> bool:
    value = _scalar(value)
    if isinstance(value, bool | np.bool_ | numbers.Integral):
        return bool(value)
    raise SpecError.of(name, f"{shown(value)}; must be a boolean or an integer")


def _float(name: str, value: object) -> float:
    value = _scalar(value)
    read = number(name, value)
    rounded = to_float32(read)
    if math.isinf(rounded) and not math.isinf(read):
        raise SpecError.of(name, f"{value!r}; must be in float32's range, because files store float32")
    return rounded


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError.of(name, f"{shown(value)}; must be a string")
    return str(value)


def _sequence(read: Callable[[str, object], Any], name: str, value: object) -> tuple[Any, ...]:
    is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    if not is_list or getattr(value, "ndim", 1) != 1:
        raise SpecError.of(name, f"{shown(value)}; must be a list")
    return tuple(read(name, item) for item in cast(Iterable[object], value))


def _scalar(value: object) -> object:
    """Return the item of an array of rank 0; other values unchanged."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "int": lambda name, value: integer(name, _scalar(value)),
    "flag": _flag,
    "float": _float,
    "floats": partial(_sequence, _float),
    "string": _string,
    "strings": partial(_sequence, _string),
}
