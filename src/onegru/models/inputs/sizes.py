"""Choose the sizes of a model's dynamic dimensions, for random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.core.shapes import fits
from onegru.core.wording import count, shape_words
from onegru.formats.graph import TensorInfo
from onegru.models.model import Model

#: Sizes of dynamic steps, rows and other dimensions.
Sizes = tuple[int, int, int]
#: Sizes of dynamic dimensions, by name, and full shapes of inputs.
Dims = Mapping[str, int | tuple[int, ...]]


def size_plans(model: Model) -> Iterator[Sizes]:
    """Yield sizes to try for dynamic dimensions, the most likely first: steps, rows, all others."""
    least = max((steps for _, steps in model.graph.least_steps.values()), default=1)
    plans = [(7, 3, 4), (1, 1, 1), (16, 1, 16), (64, 2, 64)]
    plans += [(steps, rows, width) for width in widths(model) for steps, rows in ((7, 3), (1, 1))]
    yield from ((max(steps, least), rows, other) for steps, rows, other in plans)


def widths(model: Model) -> list[int]:
    """Return the input sizes of a model's GRU layers, as candidates for dynamic dimensions."""
    layers = (node.layer for node in model.gru_nodes)
    return list(dict.fromkeys(layer.spec.input_size for layer in layers if layer is not None))


def missing_shapes(
    model: Model, given: Mapping[str, Array], plan: Sizes, dims: Dims, known: Mapping[str, int], argument: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the shapes of the random inputs, and the sizes that come from `plan`."""
    # States of a streaming file have their initial sizes.
    graph = model.graph
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
            later = count(least - 1, "step")
            raise SpecError.of(argument, f"{words}, because outputs are delayed by {later}")
    return shapes, picked


def dimension_name(info: TensorInfo, axis: int) -> str:
    """Return the name of a dynamic dimension; without a name, its input and axis, as in "X.0"."""
    assert info.shape is not None
    size = info.shape[axis]
    return size if isinstance(size, str) else f"{info.name}.{axis}"


def shapes_of(
    infos: Sequence[TensorInfo], dims: Dims, otherwise: Callable[[TensorInfo, int], int], argument: str
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of random inputs. This is the only function that sizes dynamic dimensions."""
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
            raise SpecError.of(argument, f"{name!r}; must be a dynamic dimension of an input: {words}")
        shapes[name] = size if isinstance(size, tuple) else (size,)
        _add_sizes(info, shapes[name], sizes, argument)

    def decide(info: TensorInfo, axis: int) -> int:
        name = dimension_name(info, axis)
        return sizes[name] if name in sizes else otherwise(info, axis)

    for info in infos:
        if info.name in shapes:
            continue
        if info.shape is None or not info.is_tensor:
            raise SpecError(
                f"input {info.name!r}: has no known shape, so it cannot be random; pass its value"
            )
        shapes[info.name] = tuple(
            size if isinstance(size, int) else decide(info, axis) for axis, size in enumerate(info.shape)
        )
    return shapes


def _add_sizes(info: TensorInfo, shape: tuple[int, ...], sizes: dict[str, int], argument: str) -> None:
    """Add the sizes of dynamic dimensions from the full shape of an input."""
    location = f"{argument}: {info.name!r} is {','.join(map(str, shape))}"
    if info.shape is None:
        return
    if not fits(shape, info.shape):
        dims = [f"{info.name}.{axis}" if size is None else size for axis, size in enumerate(info.shape)]
        raise SpecError(f"{location}; must be {shape_words(dims)}")
    for axis, size in enumerate(shape):
        if not isinstance(info.shape[axis], int):
            name = dimension_name(info, axis)
            if sizes.setdefault(name, size) != size:
                raise SpecError(f"{location}; {name!r} must be {sizes[name]}, as in the other sizes")


def input_letters(model: Model) -> dict[tuple[str, int], str]:
    """Return the input axes that are the steps (T) or rows (B) of a GRU node."""
    names = {info.value: info.name for info in model.inputs}
    found: dict[tuple[str, int], str] = {}
    for gru in model.gru_nodes:
        for port in gru.step.ports:
            name = names.get(gru.step.inputs.get(port.name, ""))
            for axis, letter in enumerate(port.axes):
                if name is not None and letter in "TB":
                    found.setdefault((name, axis), letter)
    return found
