"""Reading the attributes of an operator: names, kinds, ranges and defaults, as its data say.

alpha, beta and clip are float32 in a file, so they are rounded to float32 here: function and file then
agree in float64 too.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from onegru.core.arguments import integer, number, shown
from onegru.core.dtypes import to_float32
from onegru.core.errors import SpecError
from onegru.operators.schema import Attribute, Operator


def read_attributes(operator: Operator, given: Mapping[str, object]) -> dict[str, Any]:
    """The value of every attribute of `operator`: as given, else its default.

    Args:
        operator: whose attributes they are.
        given: those that are present.

    Raises:
        SpecError: an attribute is unknown, of another version, missing, or of a wrong kind or value.
    """
    for name in given:
        if name not in operator.attributes:
            raise SpecError(_unknown(operator, name))
    values: dict[str, Any] = {}
    for name, attribute in operator.attributes.items():
        if name in given:
            values[name] = _checked(attribute, given[name])
        elif attribute.required:
            raise SpecError(f"{name}: missing; {operator} requires it")
        else:
            values[name] = attribute.default
    if values.get("direction") == "foward":
        values["direction"] = "forward"
    return values


def _unknown(operator: Operator, name: str) -> str:
    if (opset := operator.later.get(name)) is not None:
        return f"{name}: not an attribute of {operator}; {name} needs opset {opset}"
    if (opset := operator.earlier.get(name)) is not None:
        return f"{name}: not an attribute of {operator}; {name} was removed in opset {opset}"
    return f"{name}: not an attribute of {operator}; must be one of {', '.join(operator.attributes)}"


def _checked(attribute: Attribute, value: object) -> Any:
    read = _READERS[attribute.kind](attribute.name, value)
    if attribute.choices is not None and read not in attribute.choices:
        *most, last = ["empty" if choice == () else repr(choice) for choice in attribute.choices]
        must = f"{', '.join(most)} or {last}" if most else last
        raise SpecError(f"{attribute.name}: {read!r}; must be {must}")
    if attribute.name == "hidden_size" and read < 1:
        raise SpecError(f"hidden_size: {read}; must be at least 1")
    return read


def _int(name: str, value: object) -> int:
    return integer(name, _scalar(value))


def _flag(name: str, value: object) -> bool:
    value = _scalar(value)
    if isinstance(value, bool | np.bool_ | numbers.Integral):
        return bool(value)
    raise SpecError(f"{name}: {shown(value)}; must be a boolean or an integer")


def _float(name: str, value: object) -> float:
    value = _scalar(value)
    read = number(name, value)
    rounded = to_float32(read)
    if math.isinf(rounded) and not math.isinf(read):
        raise SpecError(f"{name}: {value!r}; must be within float32, in which files hold it")
    return rounded


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{name}: {shown(value)}; must be a string")
    return str(value)


def _sequence(name: str, value: object, read: Callable[[str, object], Any]) -> tuple[Any, ...]:
    is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    if not is_list or getattr(value, "ndim", 1) != 1:
        raise SpecError(f"{name}: {shown(value)}; must be a list")
    return tuple(read(name, item) for item in cast(Iterable[object], value))


def _floats(name: str, value: object) -> tuple[float, ...]:
    return _sequence(name, value, _float)


def _strings(name: str, value: object) -> tuple[str, ...]:
    return _sequence(name, value, _string)


def _scalar(value: object) -> object:
    """The item of an array of rank 0, anything else as it is."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "int": _int,
    "flag": _flag,
    "float": _float,
    "floats": _floats,
    "string": _string,
    "strings": _strings,
}
