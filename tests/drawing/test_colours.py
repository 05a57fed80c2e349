"""Maps of colours: even in lightness, from one end to the other."""

from __future__ import annotations

import numpy as np
import pytest

from onegru.core.dtypes import Array
from onegru.drawing.colours import KINDS, THEMES, colours


def lightness(table: Array) -> Array:
    """CIE L* of colours, 0 to 100: another measure than the one that the maps are made with."""
    encoded = table / 255.0
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    Y = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.asarray(np.where(Y > 0.008856, 116 * np.cbrt(Y) - 16, 903.3 * Y))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theme", THEMES)
def test_lightness_changes_evenly(theme: str, kind: str) -> None:
    table = colours(theme, kind)
    assert table.shape == (256, 3) and table.dtype == np.uint8
    levels = lightness(table)
    sides = [levels] if kind == "sequential" else [levels[127::-1], levels[128:]]
    background = 100.0 if theme == "light" else 8.0
    for side in sides:
        away = np.abs(side - background)
        assert away[0] < 16 < 55 < away[-1]  # what is least recedes, what is most stands out
        steps = np.diff(away[::8])
        assert steps.min() > 0 and steps.max() < 2.2 * steps.mean()
