"""Compare the outputs of a runtime with those of a case."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onegru.conformance.case import Case
from onegru.conformance.results import Outcome
from onegru.core.arguments import shown
from onegru.core.dtypes import LARGEST, Array
from onegru.core.errors import SpecError
from onegru.core.wording import printable


def compare(case: Case, outputs: Mapping[str, Array]) -> Outcome:
    """Compare the outputs of a runtime with the expected outputs of a case.

    A value passes if its error is at most its tolerance. NaN equals NaN, and an infinity equals itself. If a
    correct value may overflow the type, the infinity of its sign passes too.

    Args:
        case: the case.
        outputs: the outputs of the runtime, by the specification's names.

    Returns:
        an outcome "passes", or "differs" with the value that has the largest ratio of error to tolerance.

    Raises:
        SpecError: `outputs` is not a mapping.
    """
    if not isinstance(outputs, Mapping):
        raise SpecError.of("outputs", f"{shown(outputs)}; must be a mapping from names to arrays")
    if set(outputs) != set(case.outputs):
        names = printable(", ".join(sorted(map(str, outputs)))) or "nothing"
        return Outcome("differs", f"returned {names}; must return {', '.join(case.outputs)}")
    dtype, arrays = case.output_dtype(), {}
    for name, expected in case.expected.items():
        try:
            got = np.asarray(outputs[name])
        except Exception:  # array classes of a runtime can raise anything
            return Outcome("differs", f"{name}: {_shown(outputs, name)}; must be an array", name)
        if got.dtype.newbyteorder("=") != dtype:
            return Outcome("differs", f"{name}: type {got.dtype.name}; must be {dtype.name}", name)
        if got.shape != expected.shape:
            words = f"{name}: shape {list(got.shape)}; must be {list(expected.shape)}"
            return Outcome("differs", words, name)
        arrays[name] = got.astype(got.dtype.newbyteorder("="))
    ratios = {
        name: _off(expected, arrays[name], case.tolerance[name], LARGEST[case.dtype])
        for name, expected in case.expected.items()
    }
    wrong = [name for name, ratio in ratios.items() if np.any(ratio > 1)]
    if not wrong:
        return Outcome("passes")
    worst = max(ratios, key=lambda name: float(ratios[name].max(initial=0)))
    where = tuple(int(i) for i in np.unravel_index(int(ratios[worst].argmax()), ratios[worst].shape))
    return Outcome(
        "differs",
        f"{', '.join(wrong)} beyond the tolerance",  # without numbers, which depend on the processor
        worst,
        where,
        float(case.expected[worst][where]),
        float(arrays[worst][where]),
        float(case.tolerance[worst][where]),
    )


def _shown(outputs: Mapping[str, Array], name: str) -> str:
    try:
        return shown(outputs[name])
    except Exception as error:  # a mapping with a name but no value
        return f"nothing ({type(error).__name__})"


def _off(expected: Array, got: Array, tolerance: Array, largest: float) -> Array:
    """Return the ratio of error to tolerance of each value: at most 1 if it is correct."""
    have = got.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(have - expected)
        ratio = np.where(apart <= tolerance, 0.0, apart / tolerance)
        may_overflow = np.isfinite(expected) & (np.abs(expected) + tolerance > largest)
        right = (have == expected) | (np.isnan(have) & np.isnan(expected))
        right |= may_overflow & np.isinf(have) & (np.sign(have) == np.sign(expected))
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return np.asarray(np.where(right, 0.0, ratio))
