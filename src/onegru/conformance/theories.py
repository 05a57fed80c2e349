"""Mistakes that are made with GRUs, as a table: which of them would explain a wrong result?

Each theory turns a call into the call that someone who made the mistake would make, or gives None where the
mistake would change nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from onegru.activations import ACTIVATIONS, Activation
from onegru.conformance.call import Call
from onegru.dialects.schema import Port
from onegru.dtypes import Array
from onegru.spec import Spec, Weights

__all__ = ["Theory", "theories"]


@dataclass(frozen=True, slots=True)
class Theory:
    """A mistake, in words that follow "as if", and the call of someone who made it."""

    words: str
    call: Call


_Activations = tuple[tuple[Activation, Activation], ...]
_GATES = ("z", "r", "h")
_DEFAULT = (Activation("Sigmoid"), Activation("Tanh"))


def theories(call: Call) -> Iterator[Theory]:
    """The theories that say something about this call, the likeliest first."""
    for words, make in _TABLE:
        other = make(call)
        if other is not None:
            yield Theory(words, other)
    yield from _gate_orders(call)


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
    others = {"forward": "reverse", "reverse": "forward"}
    other = others.get(call.spec.direction)
    return None if other is None else _with(call, direction=other)


def _activations(change: Callable[[_Activations], _Activations]) -> Callable[[Call], Call | None]:
    def make(call: Call) -> Call | None:
        before = call.spec.activations
        after = change(before)
        return None if after == before else _with(call, activations=after)

    return make


def _all_default(pairs: _Activations) -> _Activations:
    return (_DEFAULT,) * len(pairs)


def _forward_for_both(pairs: _Activations) -> _Activations:
    return (pairs[0],) * len(pairs)


def _swapped(pairs: _Activations) -> _Activations:
    return tuple((g, f) for f, g in pairs)


def _parameters(value: Callable[[str, str], float | None]) -> Callable[[_Activations], _Activations]:
    """A change of every alpha and beta to what `value` says for a function's name and the parameter's."""

    def one(function: Activation) -> Activation:
        taken = ACTIVATIONS[function.name].takes
        if not taken:
            return function
        given = {name: value(function.name, name) for name in taken}
        kept = {name: getattr(function, name) if item is None else item for name, item in given.items()}
        return Activation(function.name, **kept)

    return lambda pairs: tuple((one(f), one(g)) for f, g in pairs)


def _default_parameter(function: str, parameter: str) -> float | None:
    return ACTIVATIONS[function].default(parameter)


def _zero(parameter: str) -> Callable[[str, str], float | None]:
    return lambda function, name: 0.0 if name == parameter else None


# ---- of the inputs


def _without(role: str) -> Callable[[Call], Call | None]:
    def make(call: Call) -> Call | None:
        names = {port.name for port in call.ports if port.role == role}
        if not names & set(call.values):
            return None
        ports = tuple(replace(p, required=False) if p.name in names else p for p in call.ports)
        values = {name: array for name, array in call.values.items() if name not in names}
        if role == "A":
            return replace(_with(call, attention=False), ports=ports, values=values)
        return replace(call, ports=ports, values=values)

    return make


def _layout(ignored: bool) -> Callable[[Call], Call | None]:
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
    """T and B exchanged, of an operator that has no layout."""
    if "layout" in call.operator.attributes or not any("T" in port.axes for port in call.ports):
        return None

    def turned(port: Port) -> Port:
        if "T" not in port.axes:
            return port
        return replace(port, axes=port.axes.translate(str.maketrans("TB", "BT")))

    return replace(call, ports=tuple(turned(port) for port in call.ports))


# ---- of the weights

_Change = Callable[[Spec, Array, Array, Array], tuple[Array, Array, Array] | None]


def _weights(change: _Change) -> Callable[[Call], Call | None]:
    def make(call: Call) -> Call | None:
        weights = call.weights
        changed = change(call.spec, weights.W, weights.R, weights.B)
        if changed is None or all(
            np.array_equal(new, old, equal_nan=True)
            for new, old in zip(changed, (weights.W, weights.R, weights.B), strict=True)
        ):
            return None
        return replace(call, weights=Weights(*changed))

    return make


def _halves(B: Array) -> tuple[Array, Array]:
    middle = B.shape[1] // 2
    return B[:, :middle], B[:, middle:]


def _no_Wb(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    Wb, Rb = _halves(B)
    return W, R, np.concatenate([np.zeros_like(Wb), Rb], axis=1)


def _no_Rb(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    Wb, Rb = _halves(B)
    return W, R, np.concatenate([Wb, np.zeros_like(Rb)], axis=1)


def _swapped_biases(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    Wb, Rb = _halves(B)
    return W, R, np.concatenate([Rb, Wb], axis=1)


def _summed_biases(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    """Rbh within Wbh: right if the reset gate acts before the product, wrong after it."""
    Wb, Rb = _halves(B)
    return W, R, np.concatenate([Wb + Rb, np.zeros_like(Rb)], axis=1)


def _no_B(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    return W, R, np.zeros_like(B)


def _complement(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array] | None:
    """As sigmoid(-x) = 1 - sigmoid(x), this exchanges z and 1 - z."""
    if any(f.name != "Sigmoid" for f, _ in spec.activations) or spec.attention:
        return None
    H = spec.hidden_size
    W, R, B = W.copy(), R.copy(), B.copy()
    for array in (W, R, B):
        array[:, :H] = -array[:, :H]
    B[:, 3 * H : 4 * H] = -B[:, 3 * H : 4 * H]
    return W, R, B


def _transposed_R(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    D, H = spec.num_directions, spec.hidden_size
    return W, R.reshape(D, 3, H, H).swapaxes(2, 3).reshape(D, 3 * H, H), B


def _transposed_W(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array] | None:
    D, H = spec.num_directions, spec.hidden_size
    if spec.input_size != H:
        return None
    return W.reshape(D, 3, H, H).swapaxes(2, 3).reshape(D, 3 * H, H), R, B


def _other_way_round(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
    return W[::-1], R[::-1], B[::-1]


# ---- the table

_TABLE: tuple[tuple[str, Callable[[Call], Call | None]], ...] = (
    ("linear_before_reset were 0", _without_reset_after),
    ("linear_before_reset were 1", _with_reset_after),
    ("clip were ignored", _without_clip),
    ("sequence_lens were ignored", _without("sequence_lens")),
    ("initial_h were ignored", _without("initial_h")),
    ("layout were ignored: 0 in place of 1", _layout(True)),
    ("layout were 1 in place of 0", _layout(False)),
    ("time and batch were exchanged", _time_first),
    ("attention were ignored", _without("A")),
    ("activations were ignored: Sigmoid and Tanh", _activations(_all_default)),
    ("the forward direction's activations served both directions", _activations(_forward_for_both)),
    ("the activations f and g were exchanged", _activations(_swapped)),
    (
        "activation_alpha and activation_beta were ignored",
        _activations(_parameters(_default_parameter)),
    ),
    ("alpha were 0", _activations(_parameters(_zero("alpha")))),
    ("beta were 0", _activations(_parameters(_zero("beta")))),
    ("the direction were reversed", _other_direction),
    ("the weights of the two directions were exchanged", _weights(_other_way_round)),
    ("B were ignored", _weights(_no_B)),
    ("Wb were ignored", _weights(_no_Wb)),
    ("Rb were ignored", _weights(_no_Rb)),
    ("Wb and Rb were exchanged", _weights(_swapped_biases)),
    ("Rb were added to Wb", _weights(_summed_biases)),
    ("z and 1 - z were exchanged", _weights(_complement)),
    ("R were transposed", _weights(_transposed_R)),
    ("W were transposed", _weights(_transposed_W)),
)

_PARTS = (("", "WRB"), (" in W and R alone", "WR"), (" in W alone", "W"), (" in R alone", "R"))
_MORE_PARTS = ((" in B alone", "B"), (" in W and B alone", "WB"), (" in R and B alone", "RB"))


def _gate_orders(call: Call) -> Iterator[Theory]:
    """Every other order of the gates, in all weights or in some."""
    orders = [order for order in permutations(range(3)) if order != (0, 1, 2)]
    # The likeliest are the exchanges, above all of z and r, as PyTorch's order is r, z, n.
    orders.sort(key=lambda order: (sum(i == gate for i, gate in enumerate(order)) != 1, order[2] != 2))
    for where, parts in (*_PARTS, *_MORE_PARTS):
        for order in orders:
            made = _weights(_reordered(order, parts))(call)
            if made is not None:
                yield Theory(_order_words(order) + where, made)


def _order_words(order: tuple[int, ...]) -> str:
    moved = [_GATES[place] for place, gate in enumerate(order) if place != gate]
    if len(moved) == 2:
        return f"the gates {moved[0]} and {moved[1]} were swapped"
    return f"the weights for z, r, h were those of {', '.join(_GATES[gate] for gate in order)}"


def _reordered(order: tuple[int, ...], parts: str) -> _Change:
    def change(spec: Spec, W: Array, R: Array, B: Array) -> tuple[Array, Array, Array]:
        D, H = spec.num_directions, spec.hidden_size

        def turn(array: Array) -> Array:
            blocks = array.reshape(D, -1, 3, H, *array.shape[2:])
            return blocks[:, :, list(order)].reshape(array.shape)

        changed = {"W": W, "R": R, "B": B}
        changed.update({name: turn(changed[name]) for name in parts})
        return changed["W"], changed["R"], changed["B"]

    return change
