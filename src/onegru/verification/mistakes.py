"""Common mistakes with GRUs, as a table of those that may explain a wrong result.

Each turns a call into the call with that mistake, or returns None if the mistake would not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from onegru.core.activations import ACTIVATIONS, Activation
from onegru.operators.schema import Port
from onegru.verification.gru_call import Call
from onegru.verification.weight_mistakes import GATE_ORDERS, WEIGHT_MISTAKES, Mistake


@dataclass(frozen=True, slots=True)
class MistakenCall:
    """A mistake, in words that follow "as if", and the call with that mistake."""

    words: str
    call: Call


_Activations = tuple[tuple[Activation, Activation], ...]
_DEFAULT = (Activation("Sigmoid"), Activation("Tanh"))


def single_mistakes(call: Call) -> Iterator[MistakenCall]:
    """The single mistakes that change this call, the likeliest first."""
    return _made(call, _TABLE)


def pairs_of_mistakes(call: Call) -> Iterator[MistakenCall]:
    """Two mistakes at once, of those that occur together."""
    common = [(words, make) for words, make in _TABLE if words in _COMMON]
    for (first, make_first), (second, make_second) in combinations(common, 2):
        one = make_first(call)
        both = None if one is None else make_second(one)
        if both is not None and make_second(call) is not None:
            yield MistakenCall(f"{first} and {second}", both)


def gate_orders(call: Call) -> Iterator[MistakenCall]:
    """Every other order of the gates, in all weights or in some."""
    return _made(call, GATE_ORDERS)


def _made(call: Call, table: Iterable[tuple[str, Mistake]]) -> Iterator[MistakenCall]:
    for words, make in table:
        if (other := make(call)) is not None:
            yield MistakenCall(words, other)


# ---- of what is computed


def _with(call: Call, **changes: object) -> Call:
    return replace(call, spec=replace(call.spec, **changes))  # type: ignore[arg-type]


def _without_reset_after(call: Call) -> Call | None:
    return _with(call, linear_before_reset=False) if call.spec.linear_before_reset else None


def _with_reset_after(call: Call) -> Call | None:
    return None if call.spec.linear_before_reset else _with(call, linear_before_reset=True)


def _without_clip(call: Call) -> Call | None:
    return None if call.spec.clip is None else _with(call, clip=None)


def _other_direction(call: Call) -> Call | None:
    other = {"forward": "reverse", "reverse": "forward"}.get(call.spec.direction)
    return None if other is None else _with(call, direction=other)


def _activations(change: Callable[[_Activations], _Activations]) -> Mistake:
    def make(call: Call) -> Call | None:
        before = call.spec.activations
        after = change(before)
        return None if after == before else _with(call, activations=after)

    return make


def _parameters(value: Callable[[str, str], float | None]) -> Callable[[_Activations], _Activations]:
    """A change of every alpha and beta to `value(function's name, parameter's name)`, unless that is None."""

    def one(function: Activation) -> Activation:
        given = {name: value(function.name, name) for name in ACTIVATIONS[function.name].takes}
        changes: dict[str, Any] = {name: item for name, item in given.items() if item is not None}
        return replace(function, **changes)

    return lambda pairs: tuple((one(f), one(g)) for f, g in pairs)


def _zero(parameter: str) -> Callable[[str, str], float | None]:
    return lambda function, name: 0.0 if name == parameter else None


# ---- of the inputs


def _without(role: str) -> Mistake:
    def make(call: Call) -> Call | None:
        names = {port.name for port in call.ports if port.role == role}
        if not names & set(call.values):
            return None
        ports = tuple(replace(p, required=False) if p.name in names else p for p in call.ports)
        values = {name: array for name, array in call.values.items() if name not in names}
        return replace(_with(call, attention=False) if role == "A" else call, ports=ports, values=values)

    return make


def _layout(ignored: bool) -> Mistake:
    """The other layout, if the call has layout 1 (`ignored`) or 0."""

    def make(call: Call) -> Call | None:
        if "layout" not in call.operator.attributes:
            return None
        is_batch_first = call.ports == call.operator.ports(1)
        if is_batch_first != ignored:
            return None
        return replace(call, ports=call.operator.ports(0 if ignored else 1))

    return make


def _time_first(call: Call) -> Call | None:
    """T and B exchanged, for an operator without a layout."""
    if "layout" in call.operator.attributes or not any("T" in port.axes for port in call.ports):
        return None

    def turned(port: Port) -> Port:
        if "T" not in port.axes:
            return port
        return replace(port, axes=port.axes.translate(str.maketrans("TB", "BT")))

    return replace(call, ports=tuple(turned(port) for port in call.ports))


# ---- the table

_TABLE: tuple[tuple[str, Mistake], ...] = (
    ("linear_before_reset were 0", _without_reset_after),
    ("linear_before_reset were 1", _with_reset_after),
    ("clip were ignored", _without_clip),
    ("sequence_lens were ignored", _without("sequence_lens")),
    ("initial_h were ignored", _without("initial_h")),
    ("layout were ignored: 0 in place of 1", _layout(True)),
    ("layout were 1 in place of 0", _layout(False)),
    ("time and batch were exchanged", _time_first),
    ("attention were ignored", _without("A")),
    ("activations were ignored: Sigmoid and Tanh", _activations(lambda pairs: (_DEFAULT,) * len(pairs))),
    (
        "the forward direction's activations served both directions",
        _activations(lambda pairs: (pairs[0],) * len(pairs)),
    ),
    ("the activations f and g were exchanged", _activations(lambda pairs: tuple((g, f) for f, g in pairs))),
    (
        "activation_alpha and activation_beta were ignored",
        _activations(_parameters(lambda function, name: ACTIVATIONS[function].default(name))),
    ),
    ("alpha were 0", _activations(_parameters(_zero("alpha")))),
    ("beta were 0", _activations(_parameters(_zero("beta")))),
    ("the direction were reversed", _other_direction),
    *WEIGHT_MISTAKES,
)

_COMMON = frozenset(
    {
        "linear_before_reset were 0",
        "linear_before_reset were 1",
        "clip were ignored",
        "sequence_lens were ignored",
        "initial_h were ignored",
        "layout were ignored: 0 in place of 1",
        "activations were ignored: Sigmoid and Tanh",
        "B were ignored",
        "z and 1 - z were exchanged",
    }
)
