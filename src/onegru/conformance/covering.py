"""Covering arrays: few rows in which every pair of levels of any two factors occurs.

Written here because the rows name the cases of the kit, which have to stay the same whatever is installed.

Source: the greedy algorithm of D. M. Cohen et al., The AETG System, IEEE Transactions on Software Engineering
23(7), 1997: each row is the best of some that are put together level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

# How many rows are put together for each one that is kept.
_TRIES = 4

Row = dict[str, str]


def pairwise(
    levels: Mapping[str, Sequence[str]], allowed: Callable[[Mapping[str, str]], bool], seed: int = 0
) -> list[Row]:
    """Rows in which every pair of levels occurs that may occur.

    Args:
        levels: those of each factor.
        allowed: whether the levels of some factors may go together, and others can be found for the rest.
        seed: of the choices among equals.
    """
    random = np.random.default_rng(seed)
    items = [(name, level) for name in levels for level in levels[name]]
    of_factor = {name: np.array([[i] for i, item in enumerate(items) if item[0] == name]) for name in levels}
    together = np.zeros((len(items), len(items)), bool)
    for (i, a), (j, b) in combinations(enumerate(items), 2):
        together[i, j] = together[j, i] = a[0] != b[0] and allowed(dict([a, b]))
    missing = together.copy()
    rows: list[Row] = []
    while missing.any():
        found = [_row(items, of_factor, allowed, missing, together, random) for _ in range(_TRIES)]
        gains = [int(missing[np.ix_(row, row)].sum()) for row in found]
        best = found[int(np.argmax(gains))]
        missing[np.ix_(best, best)] = False
        rows.append(dict(items[i] for i in sorted(best)))
    return rows


def _row(
    items: Sequence[tuple[str, str]],
    of_factor: Mapping[str, npt.NDArray[np.int_]],
    allowed: Callable[[Mapping[str, str]], bool],
    missing: npt.NDArray[np.bool_],
    together: npt.NDArray[np.bool_],
    random: np.random.Generator,
) -> list[int]:
    """A row that begins with a missing pair; each further factor gets the level that adds most of them.

    Returns:
        the places of its levels in `items`.
    """
    pairs = np.argwhere(missing)
    row = [int(i) for i in pairs[random.integers(len(pairs))]]
    begun = {items[i][0] for i in row}
    for name in random.permutation([name for name in of_factor if name not in begun]):
        own = random.permutation(of_factor[name])
        gains = np.where(together[own, row].all(axis=1), missing[own, row].sum(axis=1), -1)
        by_gain = own[np.argsort(-gains, kind="stable"), 0][: np.count_nonzero(gains >= 0)]
        so_far = [items[i] for i in row]
        row.append(next(int(i) for i in by_gain if allowed(dict([*so_far, items[i]]))))
    return row
