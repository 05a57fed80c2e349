"""Covering arrays: few rows in which every pair of levels of any two factors occurs.

`python -m tests.conformance.covering` writes them to the suite, whose cases are the same in every release.

Source: the greedy algorithm of D. M. Cohen et al., The AETG System, IEEE Transactions on Software Engineering
23(7), 1997: each row is the best of some that are put together level by level.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from onegru.conformance.cases import COVERING, KIT_OPERATORS, may_be
from onegru.conformance.factors import APART, AT_THRESHOLD, factors_of
from onegru.operators.schema import OpSchema

# How many rows are put together for each one that is kept.
_TRIES = 4

# Levels that are left out: a runtime that ends its process on them would do nothing else.
_NOT_COVERED = frozenset({"0", "1000"})

Row = dict[str, str]


def pairwise(
    levels: Mapping[str, Sequence[str]], allowed: Callable[[Mapping[str, str]], bool], seed: int = 0
) -> list[Row]:
    """Rows in which every pair of levels occurs that may occur."""
    random = np.random.default_rng(seed)
    items = [(name, level) for name in levels for level in levels[name]]
    of_factor = {name: np.array([i for i, item in enumerate(items) if item[0] == name]) for name in levels}
    together = np.zeros((len(items), len(items)), bool)
    for (i, a), (j, b) in combinations(enumerate(items), 2):
        together[i, j] = together[j, i] = a[0] != b[0] and allowed(dict([a, b]))
    gain = np.where(together, 1, -len(levels))  # a pair that is missing counts, one that may not be forbids
    rows: list[Row] = []
    while (gain > 0).any():
        found = [_row(items, of_factor, allowed, gain, random) for _ in range(_TRIES)]
        best = max(found, key=lambda row: np.count_nonzero(gain[np.ix_(row, row)] > 0))
        gain[np.ix_(best, best)] = np.minimum(gain[np.ix_(best, best)], 0)
        rows.append(dict(items[i] for i in sorted(best)))
    return rows


def _row(
    items: Sequence[tuple[str, str]],
    of_factor: Mapping[str, npt.NDArray[np.int_]],
    allowed: Callable[[Mapping[str, str]], bool],
    gain: npt.NDArray[np.int_],
    random: np.random.Generator,
) -> list[int]:
    """A row that begins with a missing pair; each further factor gets the level that adds most of them.

    The `gain` of a pair of items is 1 where it is missing, 0 where it is there, below where it may not be.
    """
    pairs = np.argwhere(gain > 0)
    row = [int(i) for i in pairs[random.integers(len(pairs))]]
    chosen = dict(items[i] for i in row)
    gains = gain[row].sum(axis=0)  # of each item, with all that are chosen
    for name in random.permutation([name for name in of_factor if name not in chosen]):
        own = random.permutation(of_factor[name])
        by_gain = own[np.argsort(-gains[own], kind="stable")]
        best = next(int(i) for i in by_gain if allowed({**chosen, name: items[i][1]}))
        row.append(best)
        chosen[name] = items[best][1]
        gains += gain[best]
    return row


def array_of(operator: OpSchema) -> dict[str, object]:
    """The levels of each factor of an operator, and rows of their places as hexadecimal digits."""
    levels = {
        name: [
            level
            for level in factor.levels
            if level != AT_THRESHOLD and (level not in _NOT_COVERED or name not in APART)
        ]
        for name, factor in factors_of(operator).items()
        if name != "values"
    }
    rows = pairwise(levels, lambda row: may_be(operator, row))
    return {
        "levels": levels,
        "rows": ["".join(f"{levels[name].index(row[name]):x}" for name in levels) for row in rows],
    }


if __name__ == "__main__":
    arrays = {str(operator): array_of(operator) for operator in KIT_OPERATORS}
    COVERING.write_text(json.dumps(arrays, indent=1) + "\n", encoding="utf-8")
