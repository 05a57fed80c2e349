"""Common mistakes with the weights of a GRU: missing, swapped, transposed or reordered parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.spec import Spec, Weights
from onegru.engines.storage import stored
from onegru.verification.gru_call import GruCall

#: Turns a call into the call with a mistake; None if the mistake does not change it.
Change = Callable[[GruCall], GruCall | None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A common mistake."""

    words: str  # the mistake, as text that follows "as if"
    make: Change  # returns the call with the mistake
    is_common: bool = False  # whether the mistake occurs together with others


_Arrays = tuple[Array, Array, Array]
_OfArrays = Callable[[Spec, Array, Array, Array], _Arrays]


def _weights(change: _OfArrays) -> Change:
    def make(call: GruCall) -> GruCall | None:
        before = call.weights.W, call.weights.R, call.weights.B
        after = change(call.spec, *before)
        if all(map(partial(np.array_equal, equal_nan=True), after, before)):
            return None
        return replace(call, weights=Weights(*after))

    return make


def _biases(change: Callable[[Array, Array], tuple[Array, Array]]) -> Change:
    """Return a change of Wb and Rb."""
    return _weights(lambda spec, W, R, B: (W, R, np.concatenate(change(*np.split(B, 2, axis=1)), axis=1)))


def _complement(spec: Spec, W: Array, R: Array, B: Array) -> _Arrays:
    """Swap z and 1 - z, because sigmoid(-x) = 1 - sigmoid(x)."""
    if any(f.name != "Sigmoid" for f, _ in spec.activations) or spec.attention:
        return W, R, B
    H = spec.hidden_size
    W, R, B = W.copy(), R.copy(), B.copy()
    for array in (W, R, B):
        array[:, :H] = -array[:, :H]
    B[:, 3 * H : 4 * H] = -B[:, 3 * H : 4 * H]
    return W, R, B


def _transposed(spec: Spec, gates: Array) -> Array:
    """Transpose each gate's matrix if it is square."""
    D, H = spec.num_directions, spec.hidden_size
    if gates.shape[2] != H:
        return gates
    return gates.reshape(D, 3, H, H).swapaxes(2, 3).reshape(D, 3 * H, H)


def _in_int8(spec: Spec, W: Array, R: Array, B: Array) -> _Arrays:
    """Round W and R as `onegru quantize` does."""
    if spec.dtype != "float32" or not (np.isfinite(W).all() and np.isfinite(R).all()):
        return W, R, B
    kept = stored(Weights(W, R, B), "int8")
    return kept.W, kept.R, B


_GATES = ("z", "r", "h")
_PARTS = (
    ("", "WRB"),
    (" in W and R only", "WR"),
    (" in W only", "W"),
    (" in R only", "R"),
    (" in B only", "B"),
    (" in W and B only", "WB"),
    (" in R and B only", "RB"),
)
# The most likely orders come first: z and r swapped, because PyTorch's order is r, z, n; then other swaps.
_ORDERS = sorted(
    (order for order in permutations(range(3)) if order != (0, 1, 2)),
    key=lambda order: (sum(index == gate for index, gate in enumerate(order)) != 1, order[2] != 2),
)


def _order_words(order: tuple[int, ...]) -> str:
    moved = [_GATES[index] for index, gate in enumerate(order) if index != gate]
    if len(moved) == 2:
        return f"the gates {moved[0]} and {moved[1]} were swapped"
    return f"the weights for z, r, h were those of {', '.join(_GATES[gate] for gate in order)}"


def _reordered(order: tuple[int, ...], parts: str) -> _OfArrays:
    def change(spec: Spec, W: Array, R: Array, B: Array) -> _Arrays:
        D, H = spec.num_directions, spec.hidden_size

        def turn(array: Array) -> Array:
            blocks = array.reshape(D, -1, 3, H, *array.shape[2:])
            return blocks[:, :, list(order)].reshape(array.shape)

        W, R, B = (
            turn(array) if name in parts else array for name, array in zip("WRB", (W, R, B), strict=True)
        )
        return W, R, B

    return change


#: Single mistakes with the weights.
WEIGHT_MISTAKES = (
    Mistake(
        "the weights of the two directions were swapped",
        _weights(lambda spec, W, R, B: (W[::-1], R[::-1], B[::-1])),
    ),
    Mistake("B were ignored", _weights(lambda spec, W, R, B: (W, R, np.zeros_like(B))), is_common=True),
    Mistake("Wb were ignored", _biases(lambda Wb, Rb: (np.zeros_like(Wb), Rb))),
    Mistake("Rb were ignored", _biases(lambda Wb, Rb: (Wb, np.zeros_like(Rb)))),
    Mistake("Wb and Rb were swapped", _biases(lambda Wb, Rb: (Rb, Wb))),
    # Correct if the reset gate is applied before the product, wrong otherwise.
    Mistake("Rb were added to Wb", _biases(lambda Wb, Rb: (Wb + Rb, np.zeros_like(Rb)))),
    Mistake("z and 1 - z were swapped", _weights(_complement), is_common=True),
    Mistake("R were transposed", _weights(lambda spec, W, R, B: (W, _transposed(spec, R), B))),
    Mistake("W were transposed", _weights(lambda spec, W, R, B: (_transposed(spec, W), R, B))),
    Mistake("W and R were rounded to int8, with a scale for each row", _weights(_in_int8)),
)

#: Each other order of the gates, in all weights or in some of them.
GATE_ORDERS = tuple(
    Mistake(_order_words(order) + where, _weights(_reordered(order, parts)))
    for where, parts in _PARTS
    for order in _ORDERS
)
