"""The largest error of each activation, over all float32 numbers:  python -m benchmarks.accuracy [FUNCTION …]

Every one of the 2^32 bit patterns goes through the native activation, on every SIMD target with FMA that this
machine supports. The targets are compared bitwise, and the first target with float64. An error
is given in ULP: spacings of float32 at the exact value, so that 0.5 is correct rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onegru import _native
from onegru.core.activations import ACTIVATIONS, Activation
from onegru.engines import reference

__all__ = ["MEASURED", "Worst", "fma_targets", "native", "ulp_errors", "worst_error"]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

PATTERNS = 1 << 32
CHUNK = 1 << 17  # three float64 arrays of it fit the caches
SMALLEST_NORMAL = 2.0**-126
LARGEST = float(np.finfo(np.float32).max)


def _with(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    rounded = [None if value is None else float(np.float32(value)) for value in (alpha, beta)]
    return Activation(name, *rounded)


#: The measured functions: the defaults; for Affine and ScaledTanh, which lack useful defaults, other values.
MEASURED = (
    _with("Relu"),
    _with("Tanh"),
    _with("Sigmoid"),
    _with("Affine", 0.7, -0.3),
    _with("LeakyRelu", 0.01),
    _with("ThresholdedRelu", 1.0),
    _with("ScaledTanh", 1.7159, 2 / 3),
    _with("HardSigmoid", 0.2, 0.5),
    _with("Elu", 1.0),
    _with("Softsign"),
    _with("Softplus"),
)


@dataclass
class Worst:
    """The largest error so far, in ULP, and its location."""

    ulp: float = 0.0
    x: float = 0.0
    differing: int = 0  # patterns with different bits on two targets

    def add(self, x: Float32, errors: Float64) -> None:
        i = int(errors.argmax())
        if errors[i] > self.ulp:
            self.ulp, self.x = float(errors[i]), float(x[i])


def fma_targets() -> list[str]:
    """Return the available targets with fused multiply-add, with the current target first if it is one."""
    names = [name for name in _native.available_targets() if _native.target_traits(name)[0]]
    chosen = _native.chosen_target()
    return sorted(names, key=lambda name: name != chosen)


def native(activation: Activation, x: npt.NDArray[Any], target: str | None = None) -> npt.NDArray[Any]:
    """Return the native activation of x on a target. The size of x must be a multiple of 16."""
    before = _native.chosen_target()
    if target is not None:
        _native.select_target(target)
    try:
        y = np.empty_like(x)
        index = list(ACTIVATIONS).index(activation.name)
        _native.activate(index, activation.alpha or 0.0, activation.beta or 0.0, x, y)
        return y
    finally:
        _native.select_target(before)


def ulp_errors(y: Float32, exact: Float64) -> Float64:
    """Return |y - exact| in spacings of float32 at `exact`. NaN for NaN is 0, for other values infinity.

    Beyond the largest float32, infinity is correct if rounding to nearest gives it.
    """
    with np.errstate(all="ignore"):
        spacing = (exact.view(np.int64) & 0x7FF0_0000_0000_0000).view(np.float64)  # 2^exponent
        np.clip(spacing, SMALLEST_NORMAL, 2.0**127, out=spacing)
        spacing *= 2.0**-23
        errors = np.abs(y - exact)
        errors /= spacing
        odd = np.flatnonzero(~(errors < 1e30))
        if odd.size:
            rounded = exact[odd].astype(np.float32)
            right = (y[odd] == rounded) | (np.isnan(y[odd]) & np.isnan(rounded))
            errors[odd] = np.where(right, 0.0, np.inf)
    return errors


def worst_error(activation: Activation, x: Float32, targets: Sequence[str], worst: Worst) -> None:
    """Update `worst` with the errors at x."""
    with np.errstate(all="ignore"):
        y = native(activation, x, targets[0])
        for target in targets[1:]:
            other = native(activation, x, target)
            if not np.array_equal(y.view(np.uint32), other.view(np.uint32)):
                differ = (y.view(np.uint32) != other.view(np.uint32)) & ~(np.isnan(y) & np.isnan(other))
                worst.differing += int(differ.sum())
        worst.add(x, ulp_errors(y, reference.activate(activation, x.astype(np.float64))))


def all_floats() -> Iterator[Float32]:
    """Yield every float32 in chunks, including all NaNs."""
    for first in range(0, PATTERNS, CHUNK):
        yield np.arange(first, first + CHUNK, dtype=np.uint32).view(np.float32)


def main() -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    parser = argparse.ArgumentParser(description="Largest errors over all float32 numbers.")
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="such as Sigmoid; none for all")
    functions = parser.parse_args().functions or list(ACTIVATIONS)
    unknown = [name for name in functions if name not in ACTIVATIONS]
    if unknown:
        parser.error(f"{unknown[0]}: must be one of {', '.join(ACTIVATIONS)}")
    targets = fma_targets() or [_native.chosen_target()]

    console = Console()
    table = Table("function", "largest error, ULP", "at x", "targets that differ in bits", box=None)
    columns = TextColumn("{task.description:28}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        for activation in (a for a in MEASURED if a.name in functions):
            worst = Worst()
            task = progress.add_task(str(activation), total=PATTERNS)
            for x in all_floats():
                worst_error(activation, x, targets, worst)
                progress.advance(task, len(x))
            progress.remove_task(task)
            differ = f"on {worst.differing:,} inputs" if worst.differing else "none"
            row = str(activation), f"{worst.ulp:.3f}", f"{worst.x:.9g}", differ
            table.add_row(*row)
            progress.console.print(*row, highlight=False)
    console.print(f"\nOver all 2^32 patterns, on {', '.join(targets)}:\n", table, highlight=False)


if __name__ == "__main__":
    main()
