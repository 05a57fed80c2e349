"""Targets, checks and reports of functions that rewrite models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onegru.core.arguments import file_path, number, shown
from onegru.core.compare import Comparison
from onegru.core.errors import SpecError
from onegru.formats.opened import Opened
from onegru.models.inputs.random import check_random_inputs
from onegru.models.inputs.sizes import Dims


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
        inputs: an array for each input of the model. You can omit states that the file's metadata name; they
            get the initial values in the metadata. Default: None (random inputs).
        dims: sizes of dynamic dimensions of random inputs, by name ("X.0" for a dimension without a name), or
            full shapes of inputs, by input name. Default: None (several sizes are tried).
        seed: the seed of the random inputs. Default: 0.
        tolerance: the largest allowed absolute difference. It is multiplied by the output's largest absolute
            value if that is above 1. For integers and booleans, it is the allowed fraction of different
            values, unless onegru can compare the floating-point values that they are computed from.
            Default: None (the function's tolerance for the type; larger if the model amplifies rounding,
            smaller for outputs not above that tolerance).

    Raises:
        SpecError: an argument is invalid, or has no effect.
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


def output_facts(outputs: Iterable[Comparison]) -> list[tuple[str, str]]:
    """Return the largest difference of each output, for a card."""
    return [(f"{item.name} by {item.runtime}", f"differs by {item.max_abs:.2g} at most") for item in outputs]


def wanted_check(check: object) -> Check | None:
    """Return the `Check` for a function's `check` argument; None for no check."""
    if isinstance(check, Check):
        return check
    if not isinstance(check, bool | np.bool_):
        raise SpecError.of("check", f"{shown(check)}; must be True, False or an onegru.Check")
    return Check() if check else None


def as_target(file: Opened, target: str | os.PathLike[str] | None, suffix: str) -> tuple[Path | None, Path]:
    """Return the file to write, or None, and its label in messages."""
    if target is None:
        return None, Path(f"{file}, changed")
    path = file_path("target", target)
    check_target(path, suffix)
    return path, path
