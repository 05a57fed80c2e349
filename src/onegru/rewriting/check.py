"""What functions that change a whole model share: their targets, how they check them, what they report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onegru.core.arguments import flag, number
from onegru.core.errors import SpecError
from onegru.models.random_inputs import Dims, check_random_inputs


@dataclass(frozen=True, slots=True)
class OutputReport:
    """How far an output of the target lies from that of the source, which onegru ran.

    Attributes:
        name: the output.
        runtime: what ran the target: "onegru", "onnxruntime" or "openvino".
        max_abs: the largest absolute difference.
        max_ulp: the largest number of representable numbers in between.
        tolerance: the largest absolute difference that was allowed; of integers and booleans, the largest
            share of them that may differ.
        snr: the ratio of signal to noise in dB; None where nothing differs.
        compared: how many numbers were compared: those that are finite in the source.
        left_out: how many were not.
        moved: how many of those compared change with the random inputs, as the others say little; None of
            inputs that were given.
        steps: how many steps the longest row of a GRU took.
    """

    name: str
    runtime: str
    max_abs: float
    max_ulp: int
    tolerance: float
    snr: float | None = None
    compared: int = 0
    left_out: int = 0
    moved: int | None = None
    steps: int | None = None


def check_target(target: Path, suffix: str) -> None:
    """Raise SpecError unless a file of this name can be written."""
    if target.suffix.lower() != suffix:
        raise SpecError(f"target: {str(target)!r}; must end in {suffix}")
    if target.is_dir():
        raise SpecError(f"target: {str(target)!r} is a folder; must be a file")
    if not target.parent.is_dir():
        raise SpecError(f"target: folder {str(target.parent)!r} does not exist; must exist")


@dataclass(frozen=True, slots=True)
class Check:
    """What a caller wants checked.

    Attributes:
        is_wanted: whether to check at all.
        inputs: an array for each input; None for random ones.
        dims: sizes of open dimensions of random inputs.
        seed: of the random inputs.
        tolerance: the largest difference to allow; None for that of the type.
    """

    is_wanted: bool
    inputs: Mapping[str, object] | None
    dims: Dims | None
    seed: int
    tolerance: float | None

    @classmethod
    def of(
        cls,
        check: object,
        inputs: Mapping[str, object] | None,
        dims: Dims | None,
        seed: int,
        tolerance: float | None,
    ) -> Self:
        """The arguments of a function, checked.

        Raises:
            SpecError: one is not legal, or has no effect.
        """
        is_wanted = flag("check", check)
        dims = check_random_inputs(inputs, dims, seed)
        if tolerance is not None and not 0 <= number("tolerance", tolerance) < float("inf"):
            raise SpecError(f"tolerance: {tolerance}; must be at least 0 and finite")
        for name, value in (("inputs", inputs), ("dims", dims or None), ("tolerance", tolerance)):
            if value is not None and not is_wanted:
                raise SpecError(f"{name}: given with check=False, where it has no effect; must be left out")
        return cls(is_wanted, inputs, dims, seed, tolerance)
