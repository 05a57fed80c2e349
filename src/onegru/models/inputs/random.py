"""Generate random values for the inputs of a model or a GRU call."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.compare import arrays_in, count_finite
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import OneGRUError, SpecError
from onegru.core.machine import memory_size
from onegru.core.spec import Spec
from onegru.formats.graph import TensorInfo
from onegru.models.inputs.lengths import LengthsInput, find_lengths, steps_of
from onegru.models.inputs.sizes import Dims, Sizes, missing_shapes, size_plans
from onegru.models.model import Model
from onegru.operators.schema import CANONICAL_AXES, Role


def check_random_inputs(inputs: object, dims: Dims | None, seed: object) -> Dims | None:
    """Check the arguments of functions that use random inputs by default."""
    integer("seed", seed, 0)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise SpecError.of("inputs", f"{shown(inputs)}; must be a mapping from names to arrays")
    if dims is not None and not isinstance(dims, Mapping):
        raise SpecError.of("dims", f"{shown(dims)}; must be a mapping from names to sizes")
    if dims and inputs is not None:
        raise SpecError.of("dims", "has no effect together with inputs; remove it")
    return dims and {
        name: tuple(integer(f"dims[{name!r}]", size, 1) for size in asked)
        if isinstance(asked, tuple)
        else integer(f"dims[{name!r}]", asked, 1)
        for name, asked in dims.items()
    }


class Drawn(NamedTuple):
    """Inputs of a model, which are random except for defaults, and its outputs."""

    inputs: dict[str, Any]  # an array for each input that has no default
    outputs: Mapping[str, Any]  # the model's outputs for these inputs
    error: OneGRUError | None = None  # why the model does not run on them; None if it does
    # the number of values of each output that change with other random inputs; None if it was not counted
    moved: Mapping[str, int] | None = None


def draw_inputs(
    model: Model, seed: int, sizes: Sizes, dims: Dims | None = None, others: Sequence[Model] = ()
) -> Drawn:
    """Generate random inputs, with finite outputs if possible."""
    # Dimensions with the same name get the same size, and so do the steps and the rows of all GRU nodes.
    # Lengths are between 1 and the number of steps, and one row has all steps. Values are normally
    # distributed. If outputs are not finite, as for logarithms and roots, other distributions are tried.
    for name, asked in (dims or {}).items():
        if min(asked if isinstance(asked, tuple) else (asked,), default=1) < 1:
            raise SpecError.of("dims", f"{name} is {asked}; must be at least 1")
    shapes, _ = missing_shapes(model, {}, sizes, dims or {}, {}, "dims")
    return _Draw(model, {}, seed, shapes, others).best()


_AGAIN, _TURNS = 1 << 20, 4  # seed increment for other random inputs, and the number of attempts


def draw_twice(
    model: Model, seed: int, sizes: Sizes, dims: Dims | None = None, others: Sequence[Model] = ()
) -> Drawn:
    """Call `draw_inputs`, and count the output values that change with other random inputs."""
    drawn = draw_inputs(model, seed, sizes, dims, others)
    if drawn.error is not None:
        return drawn
    return drawn._replace(moved=count_moved(model, drawn, drawn.inputs, seed, others))


def count_moved(
    model: Model, run: Drawn, names: Collection[str], seed: int, others: Sequence[Model] = ()
) -> dict[str, int] | None:
    """Count the values of each output that change with other random inputs; None if no input is random."""
    if not names:
        return None
    shapes = {name: run.inputs[name].shape for name in names}
    given = {name: array for name, array in run.inputs.items() if name not in shapes}
    moved: dict[str, int] = {}
    for turn in range(1, _TURNS + 1):  # a few random integers may be equal
        again = _Draw(model, given, seed + turn * _AGAIN, shapes, others).best().outputs
        moved = {name: _count_moved(array, again.get(name)) for name, array in run.outputs.items()}
        if any(moved.values()):
            break
    return moved


def _count_moved(one: Any, other: Any) -> int:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray) or one.shape != other.shape:
        return 1  # another type or shape
    is_same = (one == other) | ((one != one) & (other != other))
    return int(one.size - np.sum(is_same))


def pick_inputs(
    model: Model,
    given: Mapping[str, Array],
    seed: int,
    dims: Dims,
    default: int | None = None,
    argument: str = "dims",
    sizes: Sizes | None = None,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Generate random arrays for inputs that are neither given nor have a default."""
    known = {
        size: given[info.name].shape[axis]
        for info in model.inputs
        if info.name in given and len(info.shape or ()) == given[info.name].ndim
        for axis, size in enumerate(info.shape or ())
        if isinstance(size, str)
    }
    first: OneGRUError | None = None
    plans = [*([sizes] if sizes else []), *size_plans(model)]
    for plan in plans if default is None else [(default, default, default)]:
        shapes, picked = missing_shapes(model, given, plan, dims, known, argument)
        if default is not None:
            picked = {}
        drawn = _Draw(model, given, seed, shapes).best() if shapes else Drawn({}, {}, None)
        if drawn.error is None or not picked:
            return drawn.inputs, picked
        first = first or drawn.error
    words = f"{model.path} does not run on random inputs of any size that onegru tried ({first}); pass inputs"
    raise SpecError.of("inputs", words)


#: Distributions of random values. The first one is used unless outputs are not finite. Integers are 0 and 1
#: in the first one, which are valid as most indices, and 1 and 2 in the others, which are valid as divisors.
DISTRIBUTIONS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
    "below 1": lambda rng, shape: rng.uniform(0.05, 0.95, shape),
    "above 1": lambda rng, shape: rng.uniform(2.0, 4.0, shape),
    "negative": lambda rng, shape: rng.uniform(-1.5, -0.5, shape),
    "whole": lambda rng, shape: rng.integers(1, 4, shape).astype(np.float64),
}
_NORMAL = next(iter(DISTRIBUTIONS))
_MOST_VARIED = 8  # largest number of inputs that get a separate distribution


class _Try(NamedTuple):
    """Random inputs, their distributions, and the finite fraction of the worst output and of all."""

    share: tuple[float, float]
    drawn: Drawn
    ways: dict[str, str]

    @property
    def is_finite(self) -> bool:
        return self.share == (1.0, 1.0)


class _Draw:
    """Generates random inputs of a model."""

    def __init__(
        self,
        model: Model,
        given: Mapping[str, Array],
        seed: int,
        shapes: Mapping[str, tuple[int, ...]],
        others: Sequence[Model] = (),
    ) -> None:
        total = sum(math.prod(shape) * 8 for shape in shapes.values())
        if total > memory_size() // 4:
            raise SpecError(f"random inputs: {total} bytes; must fit into a quarter of this machine's memory")
        self.model, self.given, self.seed, self.shapes = model, given, seed, shapes
        self.infos = [info for info in model.inputs if info.name in shapes]
        for info in self.infos:
            if info.dtype in ("str", "unknown"):
                raise SpecError(f"input {info.name!r}: type {info.dtype} cannot be random; pass its value")
        self.error: OneGRUError | None = None
        self.longest: dict[str, int] = {}
        for item in (model, *others):
            self._find_longest(item)

    def __call__(self, ways: Mapping[str, str]) -> dict[str, Array]:
        """Return the inputs, with other distributions for the named ones."""
        rng = np.random.default_rng(self.seed)
        return {
            info.name: _draw_lengths(rng, info, self.shapes[info.name], self.longest[info.name])
            if info.name in self.longest
            else draw_numbers(
                rng, numpy_dtype(info.dtype), self.shapes[info.name], ways.get(info.name, _NORMAL)
            )
            for info in self.infos
        }

    def best(self) -> Drawn:
        """Return inputs with finite outputs, or with the most finite values."""
        names = [info.name for info in self.infos if info.name not in self.longest]
        best: _Try | None = None
        for way in DISTRIBUTIONS if names else [_NORMAL]:
            best = self._better(best, dict.fromkeys(names, way))
            if best is not None and best.is_finite:
                return best.drawn
        for name in names[:_MOST_VARIED] if len(names) > 1 else ():
            for way in DISTRIBUTIONS if best is not None else ():
                best = self._better(best, {**(best.ways if best is not None else {}), name: way})
                if best is not None and best.is_finite:
                    return best.drawn
        return Drawn(self({}), {}, self.error) if best is None else best.drawn

    def _better(self, best: _Try | None, ways: dict[str, str]) -> _Try | None:
        """Return the inputs of these distributions if they are better than `best`."""
        inputs = self(ways)
        try:
            outputs = self.model.run({**self.given, **inputs})
        except OneGRUError as error:
            self.error = self.error or error
            return best
        share = _finite_share(outputs)
        if best is not None and share <= best.share:
            return best
        return _Try(share, Drawn(inputs, outputs, None), ways)

    # ---- lengths

    def _find_longest(self, model: Model) -> None:
        """Add the lengths inputs to `longest`, with the number of steps that they must fit."""
        shapes = {**{name: array.shape for name, array in self.given.items()}, **self.shapes}
        kinds = {info.name: _numpy_kind(info) for info in self.infos}
        wanted = {
            name for name, kind in kinds.items() if kind in "iu" or (kind == "f" and self._is_row(name))
        }
        wanted -= self.longest.keys()
        direct = _longest_lengths(model, shapes)
        self.longest |= {name: steps for name in wanted if (steps := direct.get(name)) is not None}
        if not (wanted := wanted - self.longest.keys()):
            return
        for name, lengths in find_lengths(model).items():
            # Floats may be fractions of the steps, or anything else if no recurrence reads them.
            is_doubtful = lengths.is_scaled or not lengths.is_sure
            if name not in wanted or (kinds[name] == "f" and is_doubtful):
                continue
            steps = steps_of(model, lengths, shapes)
            if steps is None and (steps := self._try_steps(model, name, lengths)) is None:
                self.longest.pop(name, None)
            else:
                self.longest[name] = steps

    def _is_row(self, name: str) -> bool:
        """Whether an input contains one value, or one value per row."""
        declared = {info.name: info.shape for info in self.infos}[name]
        shape = self.shapes[name] if declared is None else declared
        return len(shape) <= 2 and sum(size != 1 for size in shape) <= 1

    def _try_steps(self, model: Model, name: str, lengths: LengthsInput) -> int | None:
        """Find the step count for lengths by running the model; else 1, or None if unsure."""
        least = self.longest[name] = 1
        steps: list[int] = []
        if not lengths.is_scaled:
            try:
                steps = _steps_seen(model, {**self.given, **self({})}, lengths.is_sure)
            except OneGRUError:
                return least if lengths.is_sure else None
            if steps and lengths.is_sure:
                return min(steps)
        sizes = {size for shape in self.shapes.values() for size in shape}
        sizes |= {size for array in self.given.values() for size in array.shape}
        for size in [*steps, *sorted(sizes, reverse=True)[:_MOST_VARIED]]:
            self.longest[name] = size
            with suppress(OneGRUError):
                model.run({**self.given, **self({})})
                return size
        return least if lengths.is_sure else None


def _steps_seen(model: Model, inputs: Mapping[str, Array], with_lengths: bool) -> list[int]:
    """Return the number of steps in X of each GRU in a run, or only of each GRU with lengths."""
    found = []
    for gru, trace in zip(model.gru_nodes, model.trace(inputs), strict=True):
        lengths, axis = gru.step.port("sequence_lens"), gru.step.axis("X", "T")
        if axis >= 0 and (not with_lengths or (lengths is not None and lengths.name in trace)):
            found.append(trace["X"].shape[axis])
    return found


def _finite_share(outputs: Mapping[str, Any]) -> tuple[float, float]:
    """Return the fraction of finite values in the worst output, and in all outputs."""
    arrays = [array for output in outputs.values() for array in arrays_in(output) if array.size]
    counts = [(count_finite(array), array.size) for array in arrays]
    total = sum(size for _, size in counts)
    shares = min((finite / size for finite, size in counts), default=1.0)
    return shares, sum(finite for finite, _ in counts) / total if total else 1.0


def random_call(spec: Spec, T: int, B: int, rng: np.random.Generator) -> dict[Role, Array]:
    """Generate random inputs of a GRU call, with canonical axes: X, initial_h, sequence_lens and A."""
    dtype = numpy_dtype(spec.dtype)
    sizes = {"T": T, "B": B, "I": spec.input_size, "D": spec.num_directions, "H": spec.hidden_size}
    X, h, a = ([sizes[axis] for axis in CANONICAL_AXES[role]] for role in ("X", "initial_h", "A"))
    lengths = np.concatenate((np.full(min(B, 1), T), rng.integers(0, T + 1, max(B - 1, 0))))
    return {
        "X": rng.standard_normal(X).astype(dtype),
        "initial_h": rng.uniform(-1.0, 1.0, h).astype(dtype),
        "sequence_lens": lengths.astype(np.int32),
        "A": rng.uniform(0.0, 1.0, a).astype(dtype),
    }


def _longest_lengths(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int | None]:
    """Return the number of steps for each lengths input of a GRU node; None if unknown."""
    names = {info.value: info.name for info in model.inputs}
    found: dict[str, int | None] = {}
    for gru in model.gru_nodes:
        name = names.get(gru.step.value("sequence_lens"))
        if name is None:
            continue
        shape, axis = shapes.get(names.get(gru.step.value("X"), ""), ()), gru.step.axis("X", "T")
        steps = shape[axis] if axis < len(shape) else None
        earlier = found.get(name, steps)
        found[name] = None if earlier is None or steps is None else min(earlier, steps)
    return found


def _numpy_kind(info: TensorInfo) -> str:
    """Return NumPy's letter for the kind of an input's type; empty if it is not numeric."""
    return "" if info.dtype in ("str", "unknown") or not info.is_tensor else numpy_dtype(info.dtype).kind


def draw_numbers(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], way: str = _NORMAL
) -> Array:
    """Generate random values of a type, from one of the distributions in `DISTRIBUTIONS`."""
    if dtype.kind in "iub":
        least = int(way != _NORMAL and dtype.kind != "b")
        return rng.integers(least, least + 2, shape).astype(dtype)
    return DISTRIBUTIONS[way](rng, shape).astype(dtype)


def _draw_lengths(rng: np.random.Generator, info: TensorInfo, shape: tuple[int, ...], longest: int) -> Array:
    """Generate lengths from 1 to `longest`; the first row has `longest`."""
    drawn = np.asarray(rng.integers(min(1, longest), longest + 1, shape))
    drawn.reshape(-1)[:1] = longest
    return drawn.astype(numpy_dtype(info.dtype))
