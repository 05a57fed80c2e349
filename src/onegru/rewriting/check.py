"""Targets, checks and reports of functions that change models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onegru.core.arguments import file_path, number, shown
from onegru.core.errors import SpecError
from onegru.formats.opened import Opened
from onegru.models.random_inputs import Dims, check_random_inputs


@dataclass(frozen=True, slots=True)
class OutputReport:
    """Difference between an output of the target and of the source.

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
        input_dependent: how many of those compared change with the random inputs, as the others say little;
            None of inputs that were given.
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
    input_dependent: int | None = None
    steps: int | None = None


OutputReport.__module__ = "onegru.reports"


def check_target(target: Path, suffix: str) -> None:
    """Raise SpecError unless a file of this name can be written."""
    if target.suffix.lower() != suffix:
        raise SpecError.of("target", f"{str(target)!r}; must end in {suffix}")
    if target.is_dir():
        raise SpecError.of("target", f"{str(target)!r} is a folder; must be a file")
    if not target.parent.is_dir():
        raise SpecError.of("target", f"folder {str(target.parent)!r} does not exist; must exist")


@dataclass(frozen=True, slots=True)
class Check:
    """Options of the check in `rewrite`, `fuse` and `make_streaming`.

        onegru.fuse("model.onnx", "fused.onnx", check=onegru.Check(inputs={"X": X}))

    Args:
        inputs: an array for each of the model's inputs; None for random ones. States that the metadata of the
            file tell of may be left out: they are what those say of the first run.
        dims: sizes of open dimensions of random inputs, by name ("X.0" for one without), and whole shapes of
            inputs, by their names.
        seed: of the random inputs.
        tolerance: the largest absolute difference to allow, times the largest number of the output if that is
            above 1. None for that of the type and the change, which the function tells; or more where the
            model amplifies a rounding of its inputs more, and less for an output that is not larger than
            that. Of integers and booleans it is the share that may differ, unless the numbers in front of
            them can be compared.

    Raises:
        SpecError: one is invalid, or has no effect.
    """

    __module__ = "onegru"

    inputs: Mapping[str, object] | None = None
    dims: Dims | None = None
    seed: int = 0
    tolerance: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", check_random_inputs(self.inputs, self.dims, self.seed))
        if self.tolerance is not None and not 0 <= number("tolerance", self.tolerance) < float("inf"):
            raise SpecError.of("tolerance", f"{self.tolerance}; must be at least 0 and finite")


def output_facts(outputs: Iterable[OutputReport]) -> list[tuple[str, str]]:
    """For each output, how far that of the target is from that of the source."""
    return [(f"{item.name} by {item.runtime}", f"differs by {item.max_abs:.2g} at most") for item in outputs]


def wanted_check(check: object) -> Check | None:
    """What a function's `check` asks for; None for no check."""
    if isinstance(check, Check):
        return check
    if not isinstance(check, bool | np.bool_):
        raise SpecError.of("check", f"{shown(check)}; must be True, False or an onegru.Check")
    return Check() if check else None


def as_target(file: Opened, target: str | os.PathLike[str] | None, suffix: str) -> tuple[Path | None, Path]:
    """The file to write, None for none, and what messages call it."""
    if target is None:
        return None, Path(f"{file}, changed")
    path = file_path("target", target)
    check_target(path, suffix)
    return path, path
