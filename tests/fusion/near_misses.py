"""`make near-misses`: drawn GRUs with one value perturbed; each is fused only where that changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from rich.console import Console
from rich.progress import Progress

import onegru
from tests.support.decomposed.perturbed import PerturbedModel, draw_perturbed, in_float64
from tests.support.models.fusing import Array, by_onnxruntime, error, fused

# How far outputs of a model, and of it fused, lie apart: float32 roundings of long sums of large numbers,
# which breakpoints enlarge, were 4e-4 at most over 4,000 models. A perturbation changes some output more.
_BOUND = 2e-3
_BOUND_FLOAT64 = 1e-11
# Up to where decomposed exponentials in float32 do not overflow yet.
_SCALES = (1.0, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0)
_BOUNDED = {"Sigmoid", "Tanh"}  # functions that map infinity to numbers that the next step can take
_SHAKEN, _SHAKEN_FLOAT64 = (
    1e-6,
    1e-14,
)  # of inputs: where outputs jump for that, as those of Floor do, rounding decides them


def check(case: PerturbedModel) -> tuple[str, bool]:
    """What is wrong with the fused model, in words, "" if nothing; and whether anything was fused."""
    model, search = fused(case.model)
    if search.refuted:
        return f"numbers refused what the algebra took for a GRU: {case.words}", False
    if not search.fused:
        return "", False
    rng, loaded = np.random.default_rng(1), onegru.load(model.SerializeToString())
    for scale in _SCALES:
        feeds = {name: _drawn(rng, name, array, scale) for name, array in case.case.feeds.items()}
        expected = by_onnxruntime(case.model, feeds)
        if all(np.isfinite(array).all() for array in expected.values()):
            apart = _error(_arrays(loaded.run(feeds)), expected)
            bound = _BOUND_FLOAT64 if _is_float64(feeds) else _BOUND
            if (
                apart > bound
                and apart > 10 * _rounding_sensitivity(case, feeds, expected)
                and not _is_right(case, feeds, _arrays(loaded.run(feeds)), bound)
                and not _overflows(case.model, feeds)
            ):
                return f"outputs {apart:.3g} apart: {case.words}", True
    if {name for item in search.fused for name in item.activations} <= _BOUNDED:
        for name in case.case.feeds:
            if name.lower().startswith("x") and (fault := _at_infinity(case, loaded, name)):
                return f"{fault}: {case.words}", True
    return "", True


def _at_infinity(case: PerturbedModel, loaded: onegru.Model, name: str) -> str:
    """Which numbers are lost where an input is infinite; "" if none.

    Rows in which the model itself has no number are not compared: a GRU makes one of them all of them.
    """
    for number in (np.inf, -np.inf):
        feeds = {key: np.array(array) for key, array in case.case.feeds.items()}
        if feeds[name].dtype.kind != "f":
            return ""
        feeds[name].reshape(-1, feeds[name].shape[-1])[::2, -1] = number
        found = _arrays(loaded.run(feeds))
        for output, array in by_onnxruntime(case.model, feeds).items():
            is_whole = np.isfinite(array).all(-1, keepdims=True)
            if np.any(is_whole & ~np.isfinite(found[output])):
                return f"{output!r} is no number where {name!r} is {number}"
    return ""


def _error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference, relative to the largest number of its output, however small that is."""
    sizes = {name: float(np.max(np.abs(array), initial=0.0)) or 1.0 for name, array in expected.items()}
    scaled = [{name: array / sizes[name] for name, array in arrays.items()} for arrays in (found, expected)]
    return error(*scaled)


def _is_float64(feeds: Mapping[str, Array]) -> bool:
    return any(array.dtype == np.float64 for array in feeds.values())


def _rounding_sensitivity(
    case: PerturbedModel, feeds: Mapping[str, Array], expected: Mapping[str, Array]
) -> float:
    """How far outputs move where inputs hardly do."""
    rng, most = np.random.default_rng(2), 0.0
    by = _SHAKEN_FLOAT64 if _is_float64(feeds) else _SHAKEN
    for _ in range(10):
        shaken = {
            name: (array * (1 + rng.uniform(-by, by, array.shape))).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in feeds.items()
        }
        most = max(most, _error(by_onnxruntime(case.model, shaken), expected))
    return most


def _is_right(
    case: PerturbedModel, feeds: Mapping[str, Array], found: Mapping[str, Array], bound: float
) -> bool:
    """Whether outputs agree with the model in float64: in float32, cancellation makes tiny ones wrong."""
    wide = in_float64(replace(case.case, model=case.model, feeds=dict(feeds)))
    for run in (by_onnxruntime, _by_evaluator):
        try:
            exact = run(wide.model, wide.feeds)
        except Exception:  # each lacks some operators in float64
            continue
        if all(exact[name].shape == found[name].shape for name in exact):
            return _error(found, exact) <= bound
    return False


def _by_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a model by onnx's evaluator."""
    with np.errstate(invalid="ignore"):  # BLAS may set the flag for unused lanes of a register
        arrays = ReferenceEvaluator(model).run(None, dict(feeds))
    return {output.name: array for output, array in zip(model.graph.output, arrays, strict=True)}


def _overflows(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether an operator overflows, as log(1 + exp(x)) does, although the outputs are finite."""
    shown = onnx.shape_inference.infer_shapes(model)
    shown.graph.output.extend(shown.graph.value_info)
    with contextlib.suppress(Exception):  # a model that only fails with these outputs stays a fault
        if not all(np.isfinite(array).all() for array in by_onnxruntime(shown, feeds).values()):
            return True
    try:
        with np.errstate(over="raise"):  # in the bodies of loops, too
            ReferenceEvaluator(model).run(None, dict(feeds))
    except FloatingPointError:
        return True
    except Exception:  # it lacks some operators
        return False
    return False


def _arrays(found: Mapping[str, object]) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in found.items()}


def _drawn(rng: np.random.Generator, name: str, like: Array, scale: float) -> Array:
    is_fixed = like.dtype.kind in "ib" or name.lower().startswith(
        "a"
    )  # masks, lengths, and scores of attention
    return like if is_fixed else (rng.standard_normal(like.shape) * scale).astype(like.dtype)


def of_seed(seed: int) -> tuple[int, str, str]:
    """The seed, the kind of result, and words for a fault. Every fourth model computes in float64."""
    try:
        case = draw_perturbed(np.random.default_rng(seed), is_float64=seed % 4 == 3)
        onnx.checker.check_model(case.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return seed, "not a model", ""
    try:
        fault, is_fused = check(case)
    except Exception as error:  # ONNX Runtime refuses a few, such as Loops whose states change their shapes
        is_foreign = type(error).__module__.startswith("onnxruntime") or isinstance(error, onegru.FormatError)
        return (
            seed,
            "refused by ONNX Runtime" if is_foreign else "fault",
            "" if is_foreign else repr(error)[:500],
        )
    return seed, "fault" if fault else "fused, the same outputs" if is_fused else "not fused", fault


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    results: Counter[str] = Counter()
    console = Console()
    with multiprocessing.Pool(os.cpu_count()) as pool, Progress(console=console) as progress:
        bar = progress.add_task("near misses", total=len(seeds))
        for seed, kind, fault in pool.imap_unordered(of_seed, seeds, 8):
            results[kind] += 1
            progress.advance(bar)
            if kind == "fault":
                console.print(f"seed {seed}: {fault}", markup=False, soft_wrap=True)
    for kind, number in sorted(results.items()):
        console.print(f"{number:,} {kind}")
    console.print(f"{results['fault']:,} faults")
    return int(bool(results["fault"]))


if __name__ == "__main__":
    sys.exit(main())
