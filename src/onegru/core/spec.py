"""Define the canonical form of a GRU, independent of frameworks and files.

A `Spec` and its `Weights` exist only if they are valid, so lower layers do not check them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from onegru.core.activations import DEFAULT_ACTIVATIONS, Activation
from onegru.core.arguments import choice, flag, integer, number, shown
from onegru.core.dtypes import ELEMENT_TYPES, Array, as_float_array, to_float32
from onegru.core.errors import SpecError
from onegru.core.wording import count

Direction = Literal["forward", "reverse", "bidirectional"]
Attention = Literal["openvino", "dien"]

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)

_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def reversed_directions(direction: object) -> tuple[bool, ...]:
    """Return whether each direction is reverse; unknown names count as forward, as in GRU-1's schema."""
    return _REVERSED.get(str(direction), (False,))


def attention_of(value: object) -> Attention | None:
    """Return the kind of attention of an argument: its name, the first for True, or None."""
    if value is None or isinstance(value, bool | np.bool_):
        return ATTENTIONS[0] if value else None
    return cast(Attention, choice("attention", value, ATTENTIONS))


def attended(attention: Attention | bool | None, z: Any, a: Any) -> Any:
    """Return the update gate with attention; see `Spec`. Arguments can be arrays or other numbers."""
    return 1 - a * (1 - z) if attention == "dien" else (1 - a) * z


@dataclass(frozen=True, slots=True)
class Spec:
    """Specification of a GRU, without its weights.

    One step, in each direction, for an input row `x [I]` and a state row `h [H]`:

        z = f(clip(x·Wzᵀ + h·Rzᵀ + Wbz + Rbz))
        r = f(clip(x·Wrᵀ + h·Rrᵀ + Wbr + Rbr))
        n = g(clip(x·Whᵀ + (r∘h)·Rhᵀ + Wbh + Rbh))       linear_before_reset = False
        n = g(clip(x·Whᵀ + r∘(h·Rhᵀ + Rbh) + Wbh))       linear_before_reset = True
        z = (1 - a)·z                                     with attention a, "openvino"
        z = 1 - a·(1 - z)                                 with attention a, "dien"
        h = (1 - z)∘n + z∘h

    Attributes:
        input_size: I, at least 0.
        hidden_size: H, at least 1.
        dtype: the element type of all tensors: float16, bfloat16, float32 or float64.
        direction: forward, reverse or bidirectional (then D = 2, else 1).
        linear_before_reset: whether the reset gate acts after the recurrent product.
        clip: clip value > 0 for the activations' inputs, rounded to float32. Default: None (no clipping).
        activations: (f, g) for each direction.
        attention: the equation for an attention score a: "openvino" (or True) as in OpenVINO's AUGRUCell, or
            "dien" as in equation 16 of the paper on DIEN, where 1 - z is the update gate. None or False: no
            attention.
    """

    __module__ = "onegru"

    input_size: int
    hidden_size: int
    dtype: str
    direction: Direction = "forward"
    linear_before_reset: bool = False
    clip: float | None = None
    activations: tuple[tuple[Activation, Activation], ...] = (DEFAULT_ACTIVATIONS,)
    attention: Attention | bool | None = None

    def __post_init__(self) -> None:
        checked = {
            "input_size": integer("input_size", self.input_size),
            "hidden_size": integer("hidden_size", self.hidden_size),
            "dtype": choice("dtype", self.dtype, ELEMENT_TYPES),
            "direction": choice("direction", self.direction, DIRECTIONS),
            "linear_before_reset": flag("linear_before_reset", self.linear_before_reset),
            "clip": None if self.clip is None else number("clip", self.clip),
            "attention": attention_of(self.attention),
        }
        if self.input_size < 0:
            raise SpecError.of("input_size", f"{self.input_size}; must be at least 0")
        if self.hidden_size < 1:
            raise SpecError.of("hidden_size", f"{self.hidden_size}; must be at least 1")
        clip = cast(float | None, checked["clip"])
        if clip is not None and not 0 < (rounded := to_float32(clip)) < float("inf"):
            raise SpecError.of("clip", f"{self.clip}; must be > 0 and finite in float32, or None")
        checked["clip"] = None if clip is None else rounded
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        pairs = self.activations
        if not isinstance(pairs, tuple) or not all(_is_pair(pair) for pair in pairs):
            raise SpecError.of("activations", f"{shown(pairs)}; must be a tuple of pairs of Activation")
        if len(self.activations) != self.num_directions:
            raise SpecError.of(
                "activations",
                f"{count(len(self.activations), 'pair')}; must be one for each direction, "
                f"{self.num_directions} for direction {self.direction!r}",
            )

    @property
    def num_directions(self) -> int:
        """The number of directions D: 2 if bidirectional, else 1."""
        return len(self.reversed_directions)

    @property
    def reversed_directions(self) -> tuple[bool, ...]:
        """Whether each of the D directions runs backwards in time."""
        return reversed_directions(self.direction)

    @property
    def parameter_count(self) -> int:
        """The number of values in W, R and B, with B in canonical form."""
        return self.num_directions * 3 * self.hidden_size * (self.input_size + self.hidden_size + 2)

    @property
    def flops_per_step(self) -> int:
        """The floating-point operations of the matrix products, for one row and step, in all directions."""
        return self.num_directions * 6 * self.hidden_size * (self.input_size + self.hidden_size)


def _is_pair(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(item, Activation) for item in pair)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Weights:
    """Weights of a `Spec`, as read-only copies in the gate order z, r, h.

    Attributes:
        W: input weights, [D, 3H, I].
        R: recurrence weights, [D, 3H, H].
        B: biases, [D, 6H]: Wb of z, r, h, then Rb of z, r, h.
    """

    __module__ = "onegru"

    W: Array
    R: Array
    B: Array

    def __post_init__(self) -> None:
        for name in ("W", "R", "B"):
            array = np.array(as_float_array(name, getattr(self, name)), order="C")
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(getattr(self, name).shape)}" for name in ("W", "R", "B"))
        return f"Weights({shapes}, {self.W.dtype.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.W, self.R, self.B))  # copies are read-only too

    def check(self, spec: Spec) -> None:
        """Raise SpecError unless shapes and types agree with `spec`."""
        if not isinstance(spec, Spec):
            raise SpecError.of("spec", f"{shown(spec)}; must be a Spec")
        D, H, I = spec.num_directions, spec.hidden_size, spec.input_size
        for name, shape in (("W", (D, 3 * H, I)), ("R", (D, 3 * H, H)), ("B", (D, 6 * H))):
            array: Array = getattr(self, name)
            if array.shape != shape or array.dtype.name != spec.dtype:
                raise SpecError.of(
                    name, f"{array.dtype.name} {list(array.shape)}; must be {spec.dtype} {list(shape)}"
                )
