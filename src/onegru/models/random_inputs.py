"""Random inputs for a check, in shapes that a model with GRUs can take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from onegru.core.arguments import integer, shown
from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import OneGRUError, SpecError
from onegru.core.machine import memory_size
from onegru.core.shapes import fits
from onegru.core.spec import Spec
from onegru.formats.graph import TensorInfo
from onegru.models.model import Model
from onegru.operators.schema import CANONICAL_AXES, Role

#: Sizes of open dimensions, by name, and whole shapes of inputs.
Dims = Mapping[str, int | tuple[int, ...]]


def check_random_inputs(inputs: object, dims: Dims | None, seed: object) -> Dims | None:
    """Check the arguments of functions that use random inputs unless `inputs` are given.

    Returns:
        `dims`, its sizes as Python's integers.

    Raises:
        SpecError: one is not legal, or `dims` is given as well as `inputs`.
    """
    integer("seed", seed, 0)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise SpecError(f"inputs: {shown(inputs)}; must be a mapping from names to arrays")
    if dims is not None and not isinstance(dims, Mapping):
        raise SpecError(f"dims: {shown(dims)}; must be a mapping from names to sizes")
    if dims and inputs is not None:
        raise SpecError("dims: given with inputs, whose sizes are their own; must be left out")
    return dims and {
        name: tuple(integer(f"dims[{name!r}]", size, 1) for size in told)
        if isinstance(told, tuple)
        else integer(f"dims[{name!r}]", told, 1)
        for name, told in dims.items()
    }


def size_plans() -> Iterator[tuple[int, int, int]]:
    """Sizes to try for open dimensions, the likeliest first: steps, rows, all others."""
    yield from ((7, 3, 4), (1, 1, 1), (16, 1, 16), (64, 2, 64))


def draw_inputs(
    model: Model, seed: int, sizes: tuple[int, int, int], dims: Dims | None = None
) -> dict[str, Array]:
    """A random array for each input that has no default.

    Dimensions of the same name get the same size, and so do the steps and the rows of all GRU nodes; lengths
    lie between 1 and the number of steps.

    Args:
        model: the model.
        seed: of the random numbers.
        sizes: of open dimensions: steps, rows, all others.
        dims: sizes that override `sizes`, as for `shapes_of`; at least 1.

    Raises:
        SpecError: an input is not a tensor of known shape and type, or `dims` does not fit the inputs.
    """
    for name, told in (dims or {}).items():
        if min(told if isinstance(told, tuple) else (told,), default=1) < 1:
            raise SpecError(f"dims: {name} is {told}; must be at least 1")
    return _draw_missing(model, {}, seed, sizes, dims or {}, {}, "dims")[0]


def pick_inputs(
    model: Model,
    given: Mapping[str, Array],
    seed: int,
    dims: Dims,
    default: int | None = None,
    argument: str = "dims",
) -> tuple[dict[str, Array], dict[str, int]]:
    """Random arrays for inputs that are not given and have no default, of sizes on which the model runs.

    Args:
        model: the model.
        given: the other inputs.
        seed: of the random numbers.
        dims: sizes of open dimensions, as for `shapes_of`.
        default: the size of those that are neither in `dims` nor in a given input; None to pick the first of
            `size_plans` on which the model runs.
        argument: the caller's name for `dims`.

    Returns:
        the arrays, and the sizes that were picked, by the names of their dimensions.

    Raises:
        SpecError: an input is not a tensor of known shape and type, `dims` does not fit the inputs, or the
            model runs on no sizes that were tried.
    """
    known = {
        size: given[info.name].shape[axis]
        for info in model.inputs
        if info.name in given and len(info.shape or ()) == given[info.name].ndim
        for axis, size in enumerate(info.shape or ())
        if isinstance(size, str)
    }
    first: OneGRUError | None = None
    for plan in size_plans() if default is None else [(default, default, default)]:
        inputs, picked = _draw_missing(model, given, seed, plan, dims, known, argument)
        if default is not None or not picked:
            return inputs, {}
        try:
            model.run({**given, **inputs})
        except OneGRUError as error:
            first = first or error
        else:
            return inputs, picked
    words = "of any size that was tried"
    raise SpecError(f"inputs: {model.path} does not run on random ones {words} ({first}); must be given")


def _draw_missing(
    model: Model,
    given: Mapping[str, Array],
    seed: int,
    plan: tuple[int, int, int],
    dims: Dims,
    known: Mapping[str, int],
    argument: str,
) -> tuple[dict[str, Array], dict[str, int]]:
    """The arrays for `draw_inputs` and `pick_inputs`, and the sizes that come from `plan`."""
    letters = input_letters(model)
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
    drawn = draw(
        model, np.random.default_rng(seed), shapes, {name: array.shape for name, array in given.items()}
    )
    return drawn, picked


def draw(
    model: Model,
    rng: np.random.Generator,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Array]:
    """A random array for each input that `shapes` names.

    Args:
        model: the model.
        rng: the source of the numbers.
        shapes: of the inputs to draw, by name.
        given: of the inputs already there, likewise.

    Raises:
        SpecError: an input is of a type that cannot be random, or the memory does not suffice.
    """
    total = sum(math.prod(shape) * 8 for shape in shapes.values())
    if total > memory_size() // 4:
        raise SpecError(f"inputs to draw: {total} bytes; too much for this machine's memory")
    longest = _longest_lengths(model, {**(given or {}), **shapes})
    return {
        info.name: _draw_one(rng, info, shapes[info.name], longest.get(info.name))
        for info in model.inputs
        if info.name in shapes
    }


def random_call(spec: Spec, T: int, B: int, rng: np.random.Generator) -> dict[Role, Array]:
    """Random inputs of a GRU's call, with canonical axes: X, initial_h, sequence_lens and A.

    X is normal, states lie in -1…1 and attention scores in 0…1, all of the layer's type. Lengths are int32 in
    0…T, the first of them T.

    Args:
        spec: the GRU.
        T: the number of steps.
        B: the number of rows.
        rng: the source of the numbers.
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
    """The shapes of random inputs: the one place that decides the sizes of open dimensions.

    Args:
        infos: the inputs.
        dims: sizes of open dimensions, by `dimension_name`, and whole shapes of inputs, by their names. A
            size in such a shape holds for its dimension wherever that occurs.
        otherwise: the size of an open axis that is not in `dims`.
        argument: the caller's name for `dims`.

    Raises:
        SpecError: an input's shape is not known, or `dims` does not fit the inputs.
    """
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
            raise SpecError(f"{argument}: {name!r} is {size}; must be one size, as it is no whole input")
        if info is None or (isinstance(size, int) and info.shape is not None and len(info.shape) != 1):
            words = ", ".join(sorted(map(repr, names))) or "none"
            raise SpecError(f"{argument}: {name!r}; must be an open dimension of an input: {words}")
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
        for port in gru._step.ports:
            name = names.get(gru._step.inputs.get(port.name, ""))
            for axis, letter in enumerate(port.axes):
                if name is not None and letter in "TB":
                    found.setdefault((name, axis), letter)
    return found


def _longest_lengths(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int | None]:
    """For each input that holds lengths, the number of steps that they must fit; None if it is unknown.

    Args:
        model: the model.
        shapes: of its inputs, by name.
    """
    names = {info.value: info.name for info in model.inputs}
    found: dict[str, int | None] = {}
    for gru in model.gru_nodes:
        ports = {port.role: port for port in gru._step.ports}
        lengths = ports.get("sequence_lens")
        name = names.get(gru._step.inputs.get(lengths.name, "")) if lengths is not None else None
        if name is None:
            continue
        shape = shapes.get(names.get(gru._step.inputs[ports["X"].name], ""), ())
        axis = ports["X"].axes.index("T")
        steps = shape[axis] if axis < len(shape) else None
        earlier = found.get(name, steps)
        found[name] = None if earlier is None or steps is None else min(earlier, steps)
    return found


def _draw_one(
    rng: np.random.Generator, info: TensorInfo, shape: tuple[int, ...], longest: int | None
) -> Array:
    """Normal numbers, lengths up to `longest`, or for other integers 0 and 1, which most indices allow.

    Raises:
        SpecError: its type cannot be random.
    """
    if info.dtype in ("str", "unknown"):
        raise SpecError(f"input {info.name!r}: type {info.dtype} cannot be drawn; give its value")
    dtype = numpy_dtype(info.dtype)
    if dtype.kind in "iu" and longest is not None:
        return rng.integers(min(1, longest), longest + 1, shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
