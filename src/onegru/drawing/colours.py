"""Color maps for numbers, with evenly changing lightness, for light and dark backgrounds.

Each map is a path through Oklab, where equal distances look equal (B. Ottosson, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

#: The number of colors in a map.
COUNT = 256

# Oklab to linear sRGB, through the cubes of three responses.
_TO_RESPONSES = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)

# Points of a path: lightness, chroma, and hue in degrees. Values near zero have the background's lightness.
_PATHS: Mapping[tuple[str, str], Sequence[tuple[float, float, float]]] = {
    ("light", "sequential"): ((0.97, 0.010, 190), (0.80, 0.075, 200), (0.55, 0.110, 235), (0.28, 0.115, 275)),
    ("dark", "sequential"): ((0.22, 0.015, 275), (0.45, 0.105, 265), (0.68, 0.115, 225), (0.94, 0.060, 185)),
    ("light", "diverging"): (
        *((0.36, 0.125, 262), (0.66, 0.110, 245), (0.965, 0.004, 90)),
        *((0.68, 0.135, 50), (0.40, 0.130, 32)),
    ),
    ("dark", "diverging"): (
        *((0.84, 0.090, 225), (0.54, 0.125, 250), (0.23, 0.006, 270)),
        *((0.56, 0.135, 40), (0.86, 0.110, 75)),
    ),
}

THEMES = ("light", "dark")
KINDS = ("sequential", "diverging")


def colours(theme: str, kind: str) -> npt.NDArray[np.uint8]:
    """Return the colors of a map, [256, 3], from its lowest number to its highest."""
    points = np.array([_lab(*point) for point in _PATHS[theme, kind]])
    if kind == "diverging":
        middle = len(points) // 2
        lab = np.concatenate(
            [_evenly(points[: middle + 1], COUNT // 2), _evenly(points[middle:], COUNT // 2)]
        )
    else:
        lab = _evenly(points, COUNT)
    linear = np.clip((lab @ _TO_RESPONSES.T) ** 3 @ _TO_RGB.T, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    table: npt.NDArray[np.uint8] = np.round(255 * encoded).astype(np.uint8)
    return table


def _evenly(points: Numbers, count: int) -> Numbers:
    """Return points on a path in even steps of lightness, which is the first coordinate."""
    distances = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(points[:, 0])))])
    at = np.linspace(0, distances[-1], count)
    return np.stack([np.interp(at, distances, axis) for axis in points.T], axis=1)


def _lab(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    angle = np.deg2rad(hue)
    return lightness, float(chroma * np.cos(angle)), float(chroma * np.sin(angle))
