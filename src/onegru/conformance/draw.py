"""Generate the inputs of a case from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onegru.conformance.attributes import Level, has_two_directions
from onegru.conformance.factors import SIZES
from onegru.core.dtypes import Array, numpy_dtype
from onegru.operators.schema import WEIGHTS, OpSchema, Port

# The largest and smallest generated magnitudes. Sums of some dozens of them stay within the type's range.
_HUGE = {"float16": 2e4, "bfloat16": 1e37, "float32": 1e37, "float64": 1e307}
_TINY = {"float16": 2.0**-20, "bfloat16": 1e-38, "float32": 1e-39, "float64": 1e-309}


def draw_inputs(operator: OpSchema, level: Level, seed: int, scale: float) -> dict[str, Array]:
    """Return the node's inputs, in the order and with the names of the specification."""
    random = np.random.default_rng(seed)
    layout = 1 if level("layout") == "1" else 0
    sizes = {axis: int(level(name) or 1) for axis, name in SIZES.items()}
    H = sizes["H"]
    after = operator.biases == "summed" and level("linear_before_reset") == "true"
    sizes |= {
        "D": 2 if has_two_directions(level) else 1,
        "G": 3 * H,
        "N": (6 if operator.biases == "separate" else 4 if after else 3) * H,
        "1": 1,
    }
    found: dict[str, Array] = {}
    for port in operator.ports(layout)[: len(operator.inputs)]:
        if level(port.name) == "none":
            continue
        shape = tuple(sizes[axis] for axis in port.axes)
        if port.role == "sequence_lens":
            found[port.name] = _lengths(level, port, sizes)
        else:
            numbers = _numbers(random, port, shape, level, sizes, scale)
            found[port.name] = numbers.astype(numpy_dtype(level("type")))
    return found


def _numbers(
    random: np.random.Generator,
    port: Port,
    shape: tuple[int, ...],
    level: Level,
    sizes: Mapping[str, int],
    scale: float,
) -> Array:
    """Return the values of one floating-point input, in float64."""
    # Rows of R are small, so that rounding errors of the state shrink from step to step.
    if port.role in WEIGHTS:
        width = {"W": sizes["I"] / 2, "R": sizes["H"] / 1.5, "B": 2.0}[port.role]
        return random.uniform(-1, 1, shape) * scale / max(1.0, width)
    if port.role == "A":
        return _scores(random, shape, level("A"))
    numbers = random.uniform(-2, 2, shape) if port.role == "X" else random.uniform(-1, 1, shape)
    return _extreme(numbers, port, level("values"), level("type"))


def _scores(random: np.random.Generator, shape: tuple[int, ...], level: str) -> Array:
    if level in ("0", "1"):
        return np.full(shape, float(level))
    return random.uniform(-1, 2, shape) if level == "beyond 0 and 1" else random.uniform(0, 1, shape)


def _extreme(numbers: Array, port: Port, values: str, dtype: str) -> Array:
    """Return values of X or of the initial state, made extreme as the case requires."""
    if values == "zero":
        return np.zeros_like(numbers)
    if values == "tiny":
        return numbers * _TINY[dtype]
    if port.role != "X":
        return numbers
    if values == "saturating":
        return numbers * 60.0
    if values == "huge":
        return numbers * _HUGE[dtype]
    if values in ("infinite", "NaN") and numbers.size:
        # One feature of the middle row, in its second step if it has one.
        at = {"T": 1 if numbers.shape[port.axes.index("T")] > 1 else 0} if "T" in port.axes else {}
        at |= {"B": numbers.shape[port.axes.index("B")] // 2, "I": 0}
        numbers[tuple(at[axis] for axis in port.axes)] = np.nan if values == "NaN" else np.inf
    return numbers


def _lengths(level: Level, port: Port, sizes: Mapping[str, int]) -> Array:
    T, B = sizes["T"], sizes["B"]
    kind = level("type of lengths") or "int32"
    lengths: dict[str, Any] = {
        "full": np.full(B, T),
        "mixed": np.maximum(1, T - np.arange(B)[::-1] * 2 % max(1, T)),
        "zero": np.where(np.arange(B) == B // 2, 0, T - np.arange(B) % max(1, T - 1)),
        "all zero": np.zeros(B),
    }
    found: Array = np.minimum(T, lengths[level(port.name)]).astype(kind)
    return found
