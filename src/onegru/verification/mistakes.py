"""Common mistakes with GRUs, as a table of possible explanations of a wrong result.

Each function turns a call into the call with one mistake, or returns None if the mistake has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from onegru.core.activations import ACTIVATIONS, DEFAULT_ACTIVATIONS, Activation
from onegru.verification.gru_call import GruCall
from onegru.verification.weight_mistakes import WEIGHT_MISTAKES, Change, Mistake

_Activations = tuple[tuple[Activation, Activation], ...]
_OPPOSITE = {"forward": "reverse", "reverse": "forward"}


# ---- mistakes in the computation


def _with(call: GruCall, **changes: object) -> GruCall:
    return replace(call, spec=replace(call.spec, **changes))  # type: ignore[arg-type]


def _changed(field: str, change: Callable[[Any], Any]) -> Change:
    """Return a change of one field of the spec."""

    def make(call: GruCall) -> GruCall | None:
        before = getattr(call.spec, field)
        after = change(before)
        return None if after == before else _with(call, **{field: after})

    return make


_activations = partial(_changed, "activations")


def _parameters(value: Callable[[str, str], float | None]) -> Callable[[_Activations], _Activations]:
    """Return a change of each alpha and beta to `value(function's name, parameter's name)`, if not None."""

    def one(function: Activation) -> Activation:
        given = {name: value(function.name, name) for name in ACTIVATIONS[function.name].parameters}
        changes: dict[str, Any] = {name: item for name, item in given.items() if item is not None}
        return replace(function, **changes)

    return lambda pairs: tuple((one(f), one(g)) for f, g in pairs)


# ---- mistakes in the inputs


def _without(role: str) -> Change:
    def make(call: GruCall) -> GruCall | None:
        names = {port.name for port in call.ports if port.role == role}
        if not names & set(call.values):
            return None
        ports = tuple(replace(p, required=False) if p.name in names else p for p in call.ports)
        values = {name: array for name, array in call.values.items() if name not in names}
        return replace(_with(call, attention=False) if role == "A" else call, ports=ports, values=values)

    return make


def _layout(other: int) -> Change:
    """Return a change to layout `other`, for calls with the other layout."""

    def make(call: GruCall) -> GruCall | None:
        if "layout" not in call.operator.attributes or call.ports != call.operator.ports(1 - other):
            return None
        return replace(call, ports=call.operator.ports(other))

    return make


def _time_first(call: GruCall) -> GruCall | None:
    """Swap T and B, for an operator without a layout."""
    if "layout" in call.operator.attributes or not any("T" in port.axes for port in call.ports):
        return None
    exchange = str.maketrans("TB", "BT")
    turned = (replace(p, axes=p.axes.translate(exchange)) if "T" in p.axes else p for p in call.ports)
    return replace(call, ports=tuple(turned))


def _both(first: Mistake, second: Mistake) -> Mistake:
    """Return a combination of two mistakes; both must change the call."""

    def make(call: GruCall) -> GruCall | None:
        one = first.make(call)
        both = None if one is None else second.make(one)
        return None if both is None or second.make(call) is None else both

    return Mistake(f"{first.words} and {second.words}", make)


# ---- the tables

#: Single mistakes, the most likely first.
SINGLE_MISTAKES: tuple[Mistake, ...] = (
    Mistake("linear_before_reset were 0", _changed("linear_before_reset", lambda _: False), is_common=True),
    Mistake("linear_before_reset were 1", _changed("linear_before_reset", lambda _: True), is_common=True),
    Mistake("clip were ignored", _changed("clip", lambda _: None), is_common=True),
    Mistake("sequence_lens were ignored", _without("sequence_lens"), is_common=True),
    Mistake("initial_h were ignored", _without("initial_h"), is_common=True),
    Mistake("layout were ignored: 0 instead of 1", _layout(0), is_common=True),
    Mistake("layout were 1 instead of 0", _layout(1)),
    Mistake("time and batch were swapped", _time_first),
    Mistake("attention were ignored", _without("A")),
    Mistake(
        "activations were ignored: Sigmoid and Tanh",
        _activations(lambda pairs: (DEFAULT_ACTIVATIONS,) * len(pairs)),
        is_common=True,
    ),
    Mistake(
        "the forward direction's activations served both directions",
        _activations(lambda pairs: (pairs[0],) * len(pairs)),
    ),
    Mistake(
        "the activations f and g were swapped", _activations(lambda pairs: tuple((g, f) for f, g in pairs))
    ),
    Mistake(
        "activation_alpha and activation_beta were ignored",
        _activations(_parameters(lambda function, name: ACTIVATIONS[function].default(name))),
    ),
    Mistake("alpha were 0", _activations(_parameters(lambda _, name: 0.0 if name == "alpha" else None))),
    Mistake("beta were 0", _activations(_parameters(lambda _, name: 0.0 if name == "beta" else None))),
    Mistake("the direction were reversed", _changed("direction", lambda way: _OPPOSITE.get(way, way))),
    *WEIGHT_MISTAKES,
)

#: Pairs of mistakes that occur together.
PAIRS_OF_MISTAKES = tuple(
    _both(*pair) for pair in combinations((mistake for mistake in SINGLE_MISTAKES if mistake.is_common), 2)
)
