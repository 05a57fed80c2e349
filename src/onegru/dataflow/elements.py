"""What operators do with the elements of what they take, where they compute nothing.

The one list of ONNX's operators that only move elements; whoever follows values through them asks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class Elements(Enum):
    """What becomes of the elements of an operator's first input, or of all where they are joined."""

    KEPT = auto()  # all of them, in their order, in another shape at most
    PERMUTED = auto()  # all of them, in another order
    CUT = auto()  # some of them
    JOINED = auto()  # behind those of others
    REPEATED = auto()


_MOVERS: Mapping[str, Elements] = {
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten"), Elements.KEPT),
    "Transpose": Elements.PERMUTED,
    **dict.fromkeys(("Slice", "Split", "Gather"), Elements.CUT),
    "Concat": Elements.JOINED,
    **dict.fromkeys(("Expand", "Tile"), Elements.REPEATED),
}


def movers(*what: Elements, casts: bool = False, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The operators that do nothing but that.

    Args:
        what: what they do with elements.
        casts: whether a change of their type counts as nothing: it rounds.
        without: operators that the asker does not follow.
    """
    found = [kind for kind, elements in _MOVERS.items() if elements in what and kind not in without]
    return (*found, "Cast") if casts else tuple(found)


#: Of `movers`: Transpose, Squeeze, Unsqueeze and Identity, which know axes by themselves and no sizes.
AXIS_MOVES = movers(Elements.KEPT, Elements.PERMUTED, without=("Reshape", "Flatten"))
