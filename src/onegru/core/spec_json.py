"""Convert a `Spec` to JSON, and untrusted JSON to a `Spec`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onegru.core.activations import Activation
from onegru.core.errors import SpecError
from onegru.core.spec import Spec

# The type of each field of a layer in JSON, for messages and in Python.
_FIELDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "input_size": ("an integer", (int,)),
    "hidden_size": ("an integer", (int,)),
    "dtype": ("a string", (str,)),
    "direction": ("a string", (str,)),
    "linear_before_reset": ("true or false", (bool,)),
    "clip": ("a number or null", (int, float, type(None))),
    "activations": ("a list", (list,)),
    "attention": ('true, false or "dien"', (bool, str)),
}


def spec_to_json(spec: Spec) -> dict[str, object]:
    """Return the fields of a `Spec` for JSON."""
    for function in (function for pair in spec.activations for function in pair):
        if not all(map(math.isfinite, function.parameters)):
            raise SpecError.of(
                "activations",
                f"{function}; alpha and beta must be finite, because JSON has no infinity or NaN",
            )
    document: dict[str, object] = {name: getattr(spec, name) for name in _FIELDS}
    # "openvino" is stored as true, the older value.
    document["attention"] = spec.attention if spec.attention == "dien" else bool(spec.attention)
    document["activations"] = [
        [[function.name, function.alpha, function.beta] for function in pair] for pair in spec.activations
    ]
    return document


def spec_from_json(item: object) -> Spec:
    """Return the `Spec` for such fields."""
    if not isinstance(item, dict) or item.keys() != _FIELDS.keys():
        raise SpecError(f"must be an object with {', '.join(_FIELDS)}")
    for name, (words, types) in _FIELDS.items():
        value = item[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise SpecError.of(name, f"{value!r}; must be {words}")
    fields = dict(item)
    fields["clip"] = None if item["clip"] is None else _float("clip", item["clip"])
    fields["activations"] = tuple(_read_pair(pair) for pair in item["activations"])
    if max(item["input_size"], item["hidden_size"]) > 2**31:
        raise SpecError("input_size, hidden_size: must be at most 2^31")
    return Spec(**fields)


def _read_pair(pair: object) -> tuple[Activation, Activation]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise SpecError.of("activations", "must be pairs of functions, one for each direction")
    return _read_function(pair[0]), _read_function(pair[1])


def _read_function(function: object) -> Activation:
    if not isinstance(function, list) or len(function) != 3 or not isinstance(function[0], str):
        raise SpecError.of("activations", "a function must be a list of its name, alpha and beta")
    alpha, beta = (None if value is None else _float("activations", value) for value in function[1:])
    return Activation(function[0], alpha, beta)


def _float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError.of(name, f"{value!r}; must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError.of(name, "too large for float64; must be finite")
    return number
