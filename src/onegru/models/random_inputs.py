"""Random inputs for a check, in shapes that a model with GRUs can take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.compare import arrays_in, count_finite
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import OneGRUError, SpecError
from onegru.core.machine import memory_size
from onegru.core.shapes import fits
from onegru.core.spec import Spec
from onegru.core.wording import count
from onegru.formats.graph import TensorInfo
from onegru.models.gru_node import step_of
from onegru.models.lengths import LengthsInput, find_lengths, steps_of
from onegru.models.model import Model, graph_in
from onegru.operators.schema import CANONICAL_AXES, Role

#: Sizes of open dimensions, by name, and whole shapes of inputs.
Dims = Mapping[str, int | tuple[int, ...]]


def check_random_inputs(inputs: object, dims: Dims | None, seed: object) -> Dims | None:
    """Check the arguments of functions that use random inputs unless `inputs` are given."""
    integer("seed", seed, 0)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise SpecError.of("inputs", f"{shown(inputs)}; must be a mapping from names to arrays")
    if dims is not None and not isinstance(dims, Mapping):
        raise SpecError.of("dims", f"{shown(dims)}; must be a mapping from names to sizes")
    if dims and inputs is not None:
        raise SpecError.of("dims", "has no effect together with inputs; remove it")
    return dims and {
        name: tuple(integer(f"dims[{name!r}]", size, 1) for size in told)
        if isinstance(told, tuple)
        else integer(f"dims[{name!r}]", told, 1)
        for name, told in dims.items()
    }


def size_plans(model: Model) -> Iterator[tuple[int, int, int]]:
    """Sizes to try for open dimensions of a model, the likeliest first: steps, rows, all others."""
    least = max((steps for _, steps in graph_in(model).least_steps.values()), default=1)
    plans = [(7, 3, 4), (1, 1, 1), (16, 1, 16), (64, 2, 64)]
    plans += [(steps, rows, width) for width in widths(model) for steps, rows in ((7, 3), (1, 1))]
    yield from ((max(steps, least), rows, other) for steps, rows, other in plans)


def widths(model: Model) -> list[int]:
    """How many features the layers of a model's GRU nodes take, which its open dimensions may be."""
    layers = (node.layer for node in model.gru_nodes)
    return list(dict.fromkeys(layer.spec.input_size for layer in layers if layer is not None))


class Drawn(NamedTuple):
    """Random inputs of a model."""

    inputs: dict[str, Array]  # an array for each input that has no default
    outputs: dict[str, Any]  # what the model gives for them
    error: OneGRUError | None  # why it does not run on them; None if it does


def draw_inputs(
    model: Model,
    seed: int,
    sizes: tuple[int, int, int],
    dims: Dims | None = None,
    others: Sequence[Model] = (),
) -> Drawn:
    """Random inputs on which a model runs, if it can be, with finite outputs.

    Dimensions of the same name get the same size, and so do the steps and the rows of all GRU nodes. Lengths
    lie between 1 and the number of steps, which one row has. Numbers are normal; where outputs are then not
    finite, as of logarithms and roots, they are drawn in other ways.
    """
    for name, told in (dims or {}).items():
        if min(told if isinstance(told, tuple) else (told,), default=1) < 1:
            raise SpecError.of("dims", f"{name} is {told}; must be at least 1")
    shapes, _ = _shapes_missing(model, {}, sizes, dims or {}, {}, "dims")
    return _Draw(model, {}, seed, shapes, others).finite()


_AGAIN, _TURNS = 1 << 20, 4  # what is added to the seed to draw again, and how often


def draw_twice(
    model: Model,
    seed: int,
    sizes: tuple[int, int, int],
    dims: Dims | None = None,
    others: Sequence[Model] = (),
) -> tuple[Drawn, dict[str, int] | None]:
    """As `draw_inputs`, and how many numbers of each output change as inputs are drawn again.

    The second is None of a model that takes no inputs, or does not run.
    """
    drawn = draw_inputs(model, seed, sizes, dims, others)
    if drawn.error is not None or not drawn.inputs:
        return drawn, None
    moved: dict[str, int] = {}
    for turn in range(1, _TURNS + 1):  # a few integers may come out the same
        again = draw_inputs(model, seed + turn * _AGAIN, sizes, dims, others).outputs
        moved = {name: _count_moved(array, again.get(name)) for name, array in drawn.outputs.items()}
        if any(moved.values()):
            break
    return drawn, moved


def count_moved(model: Model, inputs: Mapping[str, Array], drawn: Collection[str], seed: int) -> int | None:
    """How many numbers of a model's outputs change as inputs are drawn again; None if none is drawn."""
    shapes = {name: inputs[name].shape for name in drawn}
    given = {name: array for name, array in inputs.items() if name not in shapes}
    if not shapes:
        return None
    outputs, moved = model.run(inputs), 0
    for turn in range(1, _TURNS + 1):
        again = _Draw(model, given, seed + turn * _AGAIN, shapes).finite().outputs
        if moved := sum(_count_moved(array, again.get(name)) for name, array in outputs.items()):
            break
    return moved


def _count_moved(one: Any, other: Any) -> int:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray) or one.shape != other.shape:
        return 1  # whatever it is, it is another
    is_same = (one == other) | ((one != one) & (other != other))
    return int(one.size - np.sum(is_same))


def pick_inputs(
    model: Model,
    given: Mapping[str, Array],
    seed: int,
    dims: Dims,
    default: int | None = None,
    argument: str = "dims",
    sizes: tuple[int, int, int] | None = None,
) -> tuple[dict[str, Array], dict[str, int]]:
    """Random arrays for inputs that are not given and have no default, as of `draw_inputs`."""
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
        shapes, picked = _shapes_missing(model, given, plan, dims, known, argument)
        if default is not None:
            picked = {}
        drawn = _Draw(model, given, seed, shapes).finite() if shapes else Drawn({}, {}, None)
        if drawn.error is None or not picked:
            return drawn.inputs, picked
        first = first or drawn.error
    words = "of any size that was tried"
    raise SpecError.of("inputs", f"{model.path} does not run on random ones {words} ({first}); must be given")


def _shapes_missing(
    model: Model,
    given: Mapping[str, Array],
    plan: tuple[int, int, int],
    dims: Dims,
    known: Mapping[str, int],
    argument: str,
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """The shapes of inputs to draw, and the sizes that come from `plan`.

    States of a streaming file have the sizes that they have before its first run.
    """
    graph = graph_in(model)
    letters = {(name, axis): "T" for name, (axis, _) in graph.least_steps.items()} | input_letters(model)
    first = {
        dimension_name(info, axis): size
        for info in model.inputs
        for axis, size in enumerate(graph.starts.get(info.name, ()))
        if isinstance(size, int) and not isinstance((info.shape or {axis: 0})[axis], int)
    }
    known = {**first, **known}
    named: dict[str, str] = {}
    for info in model.inputs:
        for axis, size in enumerate(info.shape or ()):
            if isinstance(size, str) and (info.name, axis) in letters:  # the first one counts
                named.setdefault(size, letters[info.name, axis])
    picked: dict[str, int] = {}

    def otherwise(info: TensorInfo, axis: int) -> int:
        name = dimension_name(info, axis)
        if name in known:
            return known[name]
        letter = named.get(name) or letters.get((info.name, axis), "")
        return picked.setdefault(name, plan["TB".index(letter)] if letter else plan[2])

    infos = [info for info in model.inputs if info.name not in given and not info.optional]
    shapes = shapes_of(infos, dims, otherwise, argument)
    for name, (axis, least) in graph.least_steps.items() if first.keys().isdisjoint(dims) else ():
        if shapes.get(name, {axis: least})[axis] < least:
            words = f"{name!r} has {count(shapes[name][axis], 'step')}; must have at least {least}"
            raise SpecError.of(argument, f"{words}, as outputs come {count(least - 1, 'step')} later")
    return shapes, picked


#: How numbers are drawn: the first way unless outputs are then not finite. Integers are 0 and 1 in the first
#: way, which most indices allow, and 1 and 2 in the others, which most divisors do.
WAYS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
    "below 1": lambda rng, shape: rng.uniform(0.05, 0.95, shape),
    "above 1": lambda rng, shape: rng.uniform(2.0, 4.0, shape),
    "negative": lambda rng, shape: rng.uniform(-1.5, -0.5, shape),
    "whole": lambda rng, shape: rng.integers(1, 4, shape).astype(np.float64),
}
_NORMAL = next(iter(WAYS))
_MOST_VARIED = 8  # inputs that are drawn in another way than the rest


class _Try(NamedTuple):
    """Inputs drawn in some ways, and the share of finite numbers in the worst output and in all."""

    share: tuple[float, float]
    drawn: Drawn
    ways: dict[str, str]

    @property
    def is_finite(self) -> bool:
        return self.share == (1.0, 1.0)


class _Draw:
    """Draws inputs of a model."""

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
            raise SpecError(f"inputs to draw: {total} bytes; too much for this machine's memory")
        self.model, self.given, self.seed, self.shapes = model, given, seed, shapes
        self.infos = [info for info in model.inputs if info.name in shapes]
        for info in self.infos:
            _check_drawable(info)
        self.error: OneGRUError | None = None
        self.longest: dict[str, int] = {}
        for item in (model, *others):
            self._find_longest(item)

    def __call__(self, ways: Mapping[str, str]) -> dict[str, Array]:
        """The inputs, those that are named drawn in another way than the first."""
        rng = np.random.default_rng(self.seed)
        return {
            info.name: _draw_lengths(rng, info, self.shapes[info.name], self.longest[info.name])
            if info.name in self.longest
            else draw_numbers(
                rng, numpy_dtype(info.dtype), self.shapes[info.name], ways.get(info.name, _NORMAL)
            )
            for info in self.infos
        }

    def finite(self) -> Drawn:
        """Inputs with finite outputs, or else those with the most of them."""
        names = [info.name for info in self.infos if info.name not in self.longest]
        best: _Try | None = None
        for way in WAYS if names else [_NORMAL]:
            best = self._better(best, dict.fromkeys(names, way))
            if best is not None and best.is_finite:
                return best.drawn
        for name in names[:_MOST_VARIED] if len(names) > 1 else ():
            for way in WAYS if best is not None else ():
                best = self._better(best, {**(best.ways if best is not None else {}), name: way})
                if best is not None and best.is_finite:
                    return best.drawn
        return Drawn(self({}), {}, self.error) if best is None else best.drawn

    def _better(self, best: _Try | None, ways: dict[str, str]) -> _Try | None:
        """What comes of drawing in these ways, if it is better."""
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
        """Add to `longest` the inputs that hold lengths, with the number of steps that they must fit."""
        shapes = {**{name: array.shape for name, array in self.given.items()}, **self.shapes}
        kinds = {info.name: numpy_kind(info) for info in self.infos}
        wanted = {
            name for name, kind in kinds.items() if kind in "iu" or (kind == "f" and self._is_row(name))
        }
        wanted -= self.longest.keys()
        direct = _longest_lengths(model, shapes)
        self.longest |= {name: steps for name in wanted if (steps := direct.get(name)) is not None}
        if not (wanted := wanted - self.longest.keys()):
            return
        for name, lengths in find_lengths(model).items():
            # Floats may be shares of the steps, or anything where no recurrence takes them.
            is_open = lengths.is_scaled or not lengths.is_sure
            if name not in wanted or (kinds[name] == "f" and is_open):
                continue
            steps = steps_of(model, lengths, shapes)
            if steps is None and (steps := self._tried(model, name, lengths)) is None:
                self.longest.pop(name, None)
            else:
                self.longest[name] = steps

    def _is_row(self, name: str) -> bool:
        """Whether an input holds one number, or one for each row."""
        declared = {info.name: info.shape for info in self.infos}[name]
        shape = self.shapes[name] if declared is None else declared
        return len(shape) <= 2 and sum(size != 1 for size in shape) <= 1

    def _tried(self, model: Model, name: str, lengths: LengthsInput) -> int | None:
        """How many steps lengths must fit, as runs show it; if none does, 1, or None of what may be none."""
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
    """The number of steps of what each GRU, or each with lengths, was given in a run."""
    found = []
    for gru, trace in zip(model.gru_nodes, model.trace(inputs), strict=True):
        ports = {port.role: port for port in step_of(gru).ports}
        lengths = ports.get("sequence_lens")
        is_wanted = not with_lengths or (lengths is not None and lengths.name in trace)
        if is_wanted and "T" in ports["X"].axes:
            found.append(trace[ports["X"].name].shape[ports["X"].axes.index("T")])
    return found


def _finite_share(outputs: Mapping[str, Any]) -> tuple[float, float]:
    """The share of finite numbers in the worst output, and in all."""
    arrays = [array for output in outputs.values() for array in arrays_in(output) if array.size]
    counts = [(count_finite(array), array.size) for array in arrays]
    total = sum(size for _, size in counts)
    shares = min((finite / size for finite, size in counts), default=1.0)
    return shares, sum(finite for finite, _ in counts) / total if total else 1.0


def random_call(spec: Spec, T: int, B: int, rng: np.random.Generator) -> dict[Role, Array]:
    """Random inputs of a GRU's call, with canonical axes: X, initial_h, sequence_lens and A.

    X is normal, states lie in -1…1 and attention scores in 0…1, all of the layer's type. Lengths are int32 in
    0…T, the first of them T.
    """
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


def dimension_name(info: TensorInfo, axis: int) -> str:
    """The name of an open dimension; without one, its input's name and its axis, as in "X.0"."""
    assert info.shape is not None
    size = info.shape[axis]
    return size if isinstance(size, str) else f"{info.name}.{axis}"


def shapes_of(
    infos: Sequence[TensorInfo], dims: Dims, otherwise: Callable[[TensorInfo, int], int], argument: str
) -> dict[str, tuple[int, ...]]:
    """The shapes of random inputs: the one place that decides the sizes of open dimensions."""
    known = {info.name: info for info in infos if info.is_tensor}
    names = {
        dimension_name(info, axis): None
        for info in known.values()
        for axis, size in enumerate(info.shape or ())
        if not isinstance(size, int)
    }
    sizes = {name: size for name, size in dims.items() if isinstance(size, int) and name in names}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in dims.items():
        if name in sizes:
            continue
        info = known.get(name)
        if info is None and name in names:
            raise SpecError.of(argument, f"{name!r} is {size}; must be one size, because it is not an input")
        if info is None or (isinstance(size, int) and info.shape is not None and len(info.shape) != 1):
            words = ", ".join(sorted(map(repr, names))) or "none"
            raise SpecError.of(argument, f"{name!r}; must be an open dimension of an input: {words}")
        shapes[name] = size if isinstance(size, tuple) else (size,)
        _learn(info, shapes[name], sizes, argument)

    def decide(info: TensorInfo, axis: int) -> int:
        name = dimension_name(info, axis)
        return sizes[name] if name in sizes else otherwise(info, axis)

    for info in infos:
        if info.name in shapes:
            continue
        if info.shape is None or not info.is_tensor:
            raise SpecError(f"input {info.name!r}: has no known shape, so it cannot be drawn; give its value")
        shapes[info.name] = tuple(
            size if isinstance(size, int) else decide(info, axis) for axis, size in enumerate(info.shape)
        )
    return shapes


def _learn(info: TensorInfo, shape: tuple[int, ...], sizes: dict[str, int], argument: str) -> None:
    """Add the sizes of open dimensions from the whole shape of an input."""
    place = f"{argument}: {info.name} is {','.join(map(str, shape))}"
    if info.shape is None:
        return
    if not fits(shape, info.shape):
        raise SpecError(f"{place}; must be {_shape_words(info)}")
    for axis, size in enumerate(shape):
        if not isinstance(info.shape[axis], int):
            name = dimension_name(info, axis)
            if sizes.setdefault(name, size) != size:
                raise SpecError(f"{place}; {name} must be {sizes[name]}, as it is elsewhere")


def _shape_words(info: TensorInfo) -> str:
    sizes = (
        str(size) if isinstance(size, int) else dimension_name(info, axis)
        for axis, size in enumerate(info.shape or ())
    )
    return f"[{', '.join(sizes)}]"


def input_letters(model: Model) -> dict[tuple[str, int], str]:
    """The axes of inputs that are the steps (T) or rows (B) of a GRU node that takes them."""
    names = {info.value: info.name for info in model.inputs}
    found: dict[tuple[str, int], str] = {}
    for gru in model.gru_nodes:
        for port in step_of(gru).ports:
            name = names.get(step_of(gru).inputs.get(port.name, ""))
            for axis, letter in enumerate(port.axes):
                if name is not None and letter in "TB":
                    found.setdefault((name, axis), letter)
    return found


def _longest_lengths(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int | None]:
    """For each input that holds lengths, the number of steps that they must fit; None if it is unknown."""
    names = {info.value: info.name for info in model.inputs}
    found: dict[str, int | None] = {}
    for gru in model.gru_nodes:
        ports = {port.role: port for port in step_of(gru).ports}
        lengths = ports.get("sequence_lens")
        name = names.get(step_of(gru).inputs.get(lengths.name, "")) if lengths is not None else None
        if name is None:
            continue
        shape = shapes.get(names.get(step_of(gru).inputs[ports["X"].name], ""), ())
        axis = ports["X"].axes.index("T")
        steps = shape[axis] if axis < len(shape) else None
        earlier = found.get(name, steps)
        found[name] = None if earlier is None or steps is None else min(earlier, steps)
    return found


def numpy_kind(info: TensorInfo) -> str:
    """The kind of an input's type, by NumPy's letter; empty for what is no number."""
    return "" if info.dtype in ("str", "unknown") or not info.is_tensor else numpy_dtype(info.dtype).kind


def _check_drawable(info: TensorInfo) -> None:
    if info.dtype in ("str", "unknown"):
        raise SpecError(f"input {info.name!r}: type {info.dtype} cannot be drawn; give its value")


def draw_numbers(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], way: str = _NORMAL
) -> Array:
    """Random numbers of a type, in one of `WAYS`."""
    if dtype.kind in "iub":
        least = int(way != _NORMAL and dtype.kind != "b")
        return rng.integers(least, least + 2, shape).astype(dtype)
    return WAYS[way](rng, shape).astype(dtype)


def _draw_lengths(rng: np.random.Generator, info: TensorInfo, shape: tuple[int, ...], longest: int) -> Array:
    """Lengths from 1 to the longest, which the first row has."""
    drawn = np.asarray(rng.integers(min(1, longest), longest + 1, shape))
    drawn.reshape(-1)[:1] = longest
    return drawn.astype(numpy_dtype(info.dtype))
