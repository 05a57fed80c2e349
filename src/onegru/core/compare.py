"""Compare arrays: differences, ULP, SNR and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from onegru.core.dtypes import ELEMENT_TYPES, Array, as_text, contiguous
from onegru.core.errors import SpecError
from onegru.core.wording import count

# Largest allowed differences between results that should be equal, by element type.

#: For layers converted from one file to another, in `largest_allowed`. It is eight times the distance from 1
#: to the next number, because biases may have been summed and outputs are rounded.
TOLERANCE_CONVERTED: Mapping[str, float] = {
    "float64": 2e-15,
    "float32": 1e-6,
    "float16": 8e-3,
    "bfloat16": 6.5e-2,
}

#: Names of quantized models in the tables below.
QUANTIZED = "quantized"

#: For models whose GRU nodes were rewritten, in `largest_allowed`.
#:
#: With int8 weights, the digits' logits differ by 0.015 and layers of random weights by 0.008. A larger
#: difference than 0.1 is no longer rounding.
TOLERANCE_REWRITTEN: Mapping[str, float] = {
    "float64": 1e-10,
    "float32": 1e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
    QUANTIZED: 0.1,
}

#: For models whose decomposed GRUs became GRU nodes, in `largest_allowed`: the source rounds after each of
#: its operators.
#:
#: Measured on 292 random models of up to six steps in float32: the largest difference was 7.5e-7.
TOLERANCE_FUSED: Mapping[str, float] = {
    "float64": 1e-9,
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 5e-2,
    QUANTIZED: 0.1,
}

#: For a runtime against the reference, element by element, relative to max(1, its absolute value).
#:
#: Measured on stacks of three GRUs (input and hidden sizes 3 to 256, 4 to 200 steps, both reset modes,
#: forward and bidirectional, weights as initialized for training): the largest error of any runtime against
#: the float64 reference was 8e-7 in float32, 2e-15 in float64, 2.4e-3 in float16 and 2.3e-2 in bfloat16 (the
#: last two in ONNX's evaluator, which rounds after every operation). These are 2 to 500 times that. A wrong
#: gate order or reset mode is off by 0.01 to 1.
TOLERANCE_ACROSS_RUNTIMES: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}

#: Error of rounding after each operation, in multiples of the effect of rounding the inputs once.
SENSITIVITY_FACTOR = 16.0

#: End of a message that begins with `why_inconclusive`.
INCONCLUSIVE = "so the comparison is inconclusive"

# Limit of that effect, relative to max(1, the absolute value). A larger effect of rounding cannot be
# distinguished from a fault.
_MOST_ROUNDING = {"float16": 0.1, "bfloat16": 0.5}
_MOST_ROUNDING_ELSE = 0.01
_LEAST_FINITE = 0.5  # fraction of finite values in an output that counts as compared

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def nudged(array: Array, dtypes: Collection[str] = ()) -> Array:
    """Move every value by about half a unit in the last place, up or down, as rounding may."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return array
    signs = np.random.default_rng(0).choice(np.array([-1.0, 1.0]), array.shape)
    epsilon = max(_EPSILON.get(dtype, 0.0) for dtype in (array.dtype.name, *dtypes))
    with np.errstate(all="ignore"):
        return (array.astype(np.float64) * (1.0 + epsilon * signs)).astype(array.dtype)


def rounding_effect(expected: Array, moved: Array) -> float:
    """Return how far rounding may move each element, relative to max(1, |element|)."""
    if expected.shape != moved.shape or not expected.size:
        return 0.0
    if expected.dtype.name not in ELEMENT_TYPES:
        return min(SENSITIVITY_FACTOR * float(np.mean(expected != moved)), _MOST_ROUNDING_ELSE)
    want, have = expected.astype(np.float64), moved.astype(np.float64)
    with np.errstate(all="ignore"):
        change = np.abs(have - want) / np.maximum(1.0, np.abs(want))
    largest = float(np.max(change, where=np.isfinite(change), initial=0.0))
    return min(SENSITIVITY_FACTOR * largest, _MOST_ROUNDING.get(expected.dtype.name, _MOST_ROUNDING_ELSE))


def count_finite(array: Array) -> int:
    """Count the values that can be compared: all except NaN and infinity."""
    if array.dtype.name not in ELEMENT_TYPES:
        return int(array.size)
    return int(np.isfinite(array.astype(np.float64, copy=False)).sum())


def arrays_in(output: Any) -> list[Array]:
    """Return the arrays of an output, which may be a list of arrays."""
    items = output if isinstance(output, list) else [output]
    return [item for item in items if isinstance(item, np.ndarray)]


def why_inconclusive(*runs: Mapping[str, Any], moved: int | None = None) -> str:
    """Return why a comparison with these outputs is inconclusive; empty if it is conclusive."""
    # NaN equals any other NaN, so at least half of an output's values must be finite. `moved` counts the
    # values that depend on the random inputs; None if no input is random.
    if moved == 0:
        return "no output depends on the random inputs"
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for outputs in runs:
        for name, value in outputs.items():
            for array in arrays_in(value):
                sizes[name] = sizes.get(name, 0) + array.size
                counts[name] = counts.get(name, 0) + count_finite(array)
    for name, size in sizes.items():
        if counts[name] < _LEAST_FINITE * size:
            return f"only {counts[name]} of {size} values of output {name!r} are finite"
    return "all outputs are empty" if any(runs) and not any(sizes.values()) else ""


def signal_to_noise(expected: Array, found: Array) -> float | None:
    """Return 10·log10(Σ expected² / Σ (expected - found)²) in dB; None if it is undefined or infinite."""
    signal = expected.astype(np.float64)
    with np.errstate(all="ignore"):
        ratio = np.sum(signal**2) / np.sum((signal - found.astype(np.float64)) ** 2)
    return 10 * float(np.log10(ratio)) if np.isfinite(ratio) and ratio > 0 else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Difference of one output between two runs on the same inputs.

    Attributes:
        name: the output.
        runtime: the runtime that computed the output: "onegru", "onnxruntime", "openvino" or "onnx".
        agrees: whether the difference is allowed.
        max_abs: the largest absolute difference; infinite if NaN or infinity meets another value, or if types
            or shapes differ.
        max_ulp: the largest difference in ULP (units in the last place); for integers, the difference itself.
        tolerance: the largest allowed absolute difference; in `verify`, relative to max(1, |value|). For
            integers and booleans, it is the largest allowed fraction of different values.
        where: the index of the largest difference; None if nothing differs.
        expected: the value expected there.
        got: the value found there.
        reason: why values were not compared, or why the tolerance is larger; empty otherwise.
        snr: the signal-to-noise ratio in dB; None if nothing differs.
        compared: the number of compared values: those with a finite expected value.
        left_out: the number of values that were not compared, because they are not finite.
        input_dependent: the number of compared values that depend on the random inputs; None if it was not
            counted, as for given inputs.
        steps: the number of steps of the longest row of a GRU; None if it was not counted.
    """

    name: str = ""
    runtime: str = "onegru"
    agrees: bool = True
    max_abs: float = 0.0
    max_ulp: int = 0
    tolerance: float = 0.0
    where: tuple[int, ...] | None = None
    expected: Any = None
    got: Any = None
    reason: str = ""
    snr: float | None = None
    compared: int = 0
    left_out: int = 0
    input_dependent: int | None = None
    steps: int | None = None


Comparison.__module__ = "onegru.reports"


def difference(a: object, b: object) -> Comparison:
    """Return the difference of two arrays; NaN equals NaN, and -0 equals 0."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        raise SpecError(f"b: {b.dtype} {list(b.shape)}; must be {a.dtype} {list(a.shape)}, like a")
    is_float = a.dtype.name in ELEMENT_TYPES
    if not is_float and a.dtype.kind not in "biu":
        names = ", ".join(ELEMENT_TYPES)
        raise SpecError(f"a: type {a.dtype.name}; must be booleans, integers or one of {names}")
    ulps = _ulps(a, b) if is_float else _distances(a, b)
    max_ulp = int(ulps.max(initial=0))
    if max_ulp == 0:
        return Comparison()
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64)) if is_float else ulps.astype(np.float64)
    # Infinities or NaNs differ by NaN. Replace it: 0 where they are equal, else infinity.
    apart = np.where(ulps == 0, 0.0, np.where(np.isnan(apart), np.inf, apart))
    where = _index_of_max(apart)
    return Comparison(max_abs=float(apart[where]), max_ulp=max_ulp, where=where)


def largest_allowed(expected: Array, tolerance: float, is_given: bool = False) -> float:
    """Return the largest allowed absolute difference: the tolerance times max(1, the largest value)."""
    # If no tolerance is given and zeros would pass, the result is the largest value times its square root.
    # A fault exceeds it. So does rounding if large values cancel, and the check then refuses the output.
    numbers = np.abs(expected.astype(np.float64))
    size = float(np.max(numbers, initial=0.0, where=np.isfinite(numbers)))
    most = tolerance * max(1.0, size)
    return most if size > most or not size or is_given else size * min(1.0, tolerance) ** 0.5


def _ulps(a: Array, b: Array) -> Array:
    """Return the number of steps between adjacent floating-point values from a to b, for each pair."""
    bits = 8 * a.dtype.itemsize
    sign = np.uint64(1 << (bits - 1))
    raw = [contiguous(x).view(f"u{a.dtype.itemsize}").astype(np.uint64) for x in (a, b)]
    size_a, size_b = (x & (sign - np.uint64(1)) for x in raw)
    same_sign = (raw[0] & sign) == (raw[1] & sign)
    steps = np.where(same_sign, np.maximum(size_a, size_b) - np.minimum(size_a, size_b), size_a + size_b)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    most = np.uint64((1 << bits) - 1)
    steps = np.where(nan_a | nan_b, np.where(nan_a & nan_b, np.uint64(0), most), steps)
    return cast(Array, steps.reshape(a.shape))


def _distances(a: Array, b: Array) -> Array:
    """Return |a - b| of integers or booleans, which always fits uint64."""
    if a.dtype.kind == "b":
        return cast(Array, (a != b).astype(np.uint64))
    high: Array = np.maximum(a, b).astype(np.uint64)
    low: Array = np.minimum(a, b).astype(np.uint64)
    return high - low  # modulo 2**64, which is also correct for negative numbers


def tolerance_of(dtype: str) -> float:
    """Return the default tolerance for an element type; 0 for exact types."""
    return TOLERANCE_ACROSS_RUNTIMES.get(dtype, 0.0)


def compare(
    expected: Any,
    found: Any,
    tolerance: float,
    name: str = "",
    runtime: str = "onegru",
    *,
    is_absolute: bool = False,
) -> Comparison:
    """Compare each element of an output; the tolerance is relative to max(1, its absolute value)."""
    item = Comparison(name, runtime, tolerance=tolerance)
    if len(arrays_in(expected)) != (len(expected) if isinstance(expected, list) else 1):
        return replace(item, reason="not a tensor; not compared")
    if found is None:
        return replace(item, agrees=False, max_abs=np.inf, reason="is missing")
    if _kind(expected) != _kind(found):
        words = f"{_kind(found)}; must be {_kind(expected)}"
        return replace(item, agrees=False, max_abs=np.inf, reason=words)
    if isinstance(expected, list):
        pairs = zip(expected, found, strict=True)
        items = [compare(*pair, tolerance, name, runtime, is_absolute=is_absolute) for pair in pairs]
        return merged(items or [item])
    if expected.shape != found.shape:
        words = f"shape {list(found.shape)}; must be {list(expected.shape)}"
        return replace(item, agrees=False, max_abs=np.inf, reason=words)
    if expected.dtype != found.dtype and not {expected.dtype.kind, found.dtype.kind} <= {*"OUST"}:
        words = f"type {found.dtype.name}; must be {expected.dtype.name}"
        return replace(item, agrees=False, max_abs=np.inf, reason=words)
    finite = count_finite(expected)
    item = replace(item, compared=finite, left_out=expected.size - finite)
    is_float, is_whole = expected.dtype.name in ELEMENT_TYPES, expected.dtype.kind in "biu"
    if is_float or is_whole:
        apart, wrong = difference(expected, found), beyond(expected, found, tolerance, is_absolute)
        item = replace(item, max_abs=apart.max_abs, max_ulp=apart.max_ulp)
        where = apart.where
    else:
        expected, found = as_text(expected), as_text(found)
        wrong = np.asarray(expected != found)
        where = _index_of_max(wrong) if wrong.any() else None
    share = tolerance if is_whole and (is_absolute or tolerance < 1.0) else 0.0
    return replace(
        item,
        agrees=not wrong.size or float(np.mean(wrong)) <= share,
        where=where,
        expected=None if where is None else expected[where].item(),
        got=None if where is None else found[where].item(),
        snr=signal_to_noise(expected, found) if is_float else None,
    )


def _kind(output: Any) -> str:
    """Describe the kind of an output."""
    if isinstance(output, list):
        return f"a sequence of {count(len(output), 'item')}"
    return "a tensor" if isinstance(output, np.ndarray) else type(output).__name__


def compare_scaled(
    expected: Any,
    found: Any,
    tolerance: float,
    name: str = "",
    runtime: str = "onegru",
    *,
    rounding: Callable[[], float] | None = None,
) -> Comparison:
    """Compare an output with one tolerance relative to max(1, its largest value), plus `rounding`."""
    is_float = isinstance(expected, np.ndarray) and expected.dtype.name in ELEMENT_TYPES
    most = largest_allowed(expected, tolerance, rounding is None) if is_float else tolerance
    item = compare(expected, found, most, name, runtime, is_absolute=True)
    if item.agrees or item.reason or rounding is None:
        return item
    effect = rounding()
    if not compare(expected, found, effect).agrees:
        return item
    return replace(
        item,
        agrees=True,
        tolerance=max(most, largest_allowed(expected, effect, True) if is_float else effect),
    )


def merged(items: Sequence[Comparison]) -> Comparison:
    """Combine comparisons into the worst one, with the sum of their counts."""
    moved = [item.input_dependent for item in items]
    return replace(
        max(items, key=lambda item: (not item.agrees, item.max_abs)),
        compared=sum(item.compared for item in items),
        left_out=sum(item.left_out for item in items),
        input_dependent=None if None in moved else sum(filter(None, moved)),
        steps=max((item.steps for item in items if item.steps is not None), default=None),
    )


def compared_words(total: Comparison) -> str:
    """Return the counts of compared values as text, for all outputs of a run, merged."""
    words = f"{total.compared:,} values compared"
    words += "" if total.steps is None else f", over {count(total.steps, 'step')}"
    if total.input_dependent is not None:
        words += f"; {total.input_dependent:,} change with the random inputs"
    return words + (f"; {total.left_out:,} skipped, because they are not finite" if total.left_out else "")


def beyond(expected: Array, found: Array, tolerance: float, is_absolute: bool = False) -> Array:
    """Whether each element differs by more than the tolerance."""
    if expected.dtype.kind in "biu":
        return np.asarray(expected != found)
    want, have = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(have - want) <= tolerance * (1.0 if is_absolute else np.maximum(1.0, np.abs(want)))
    # Infinity is close only to itself: its difference from other values is NaN or infinite.
    near &= np.isfinite(want)
    wrong: Array = ~(near | (want == have) | (np.isnan(want) & np.isnan(have)))
    return wrong


def _index_of_max(array: Array) -> tuple[int, ...]:
    """Return the index of the largest element, the first if there are several."""
    return tuple(int(index) for index in np.unravel_index(int(array.argmax()), array.shape))
