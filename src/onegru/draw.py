"""Inputs for a check, drawn at random in shapes that a model with GRUs can take."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from onegru.dtypes import Array, numpy_dtype
from onegru.errors import SpecError
from onegru.files.graph import TensorInfo
from onegru.session import Model

__all__ = ["check_total", "draw_inputs", "draw_one", "longest_lengths", "memory_size", "size_plans"]

# Sizes to try for open dimensions, in order: steps, rows, all others.
_SIZES = ((7, 3, 4), (1, 1, 1), (16, 1, 16), (64, 2, 64))


def size_plans() -> Iterator[tuple[int, int, int]]:
    """Sizes of open dimensions, the likeliest first: steps, rows, all others."""
    yield from _SIZES


def draw_inputs(
    model: Model, seed: int, sizes: tuple[int, int, int], dims: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """An array for each input that has no default.

    Dimensions of the same name get the same size. Those that GRU nodes take at once get sizes that fit
    together: steps and rows; lengths lie between 1 and the number of steps.

    Args:
        model: the model.
        seed: of the random numbers.
        sizes: of open dimensions: steps, rows, all others.
        dims: sizes of named dimensions, which go before `sizes`.

    Raises:
        SpecError: an input is no tensor of a known shape and type, or `dims` names no dimension.
    """
    dims = dims or {}
    letters = _letters(model)
    by_name: dict[str, int] = dict(dims)
    for info in model.inputs:
        for axis, size in enumerate(info.shape or ()):
            letter = letters.get((info.name, axis), "")
            if isinstance(size, str) and size not in by_name and letter:
                by_name[size] = sizes["TB".index(letter)]
    known = {size for info in model.inputs for size in info.shape or () if isinstance(size, str)}
    for name in dims:
        if name not in known:
            words = ", ".join(sorted(map(repr, known))) or "none"
            raise SpecError(f"dims: {name!r}; must be an open dimension of an input: {words}")
        if dims[name] < 1:
            raise SpecError(f"dims: {name} is {dims[name]}; must be at least 1")
    shapes = {info.name: _shape(info, by_name, letters, sizes) for info in model.inputs if not info.optional}
    check_total(shapes.values())
    longest = longest_lengths(model, shapes)
    rng = np.random.default_rng(seed)
    return {
        info.name: draw_one(rng, info, shapes[info.name], longest.get(info.name))
        for info in model.inputs
        if not info.optional
    }


def check_total(shapes: Iterable[tuple[int, ...]]) -> None:
    """Raise SpecError if arrays of these shapes are too much for this machine."""
    total = sum(math.prod(shape) * 8 for shape in shapes)
    if total > memory_size() // 4:
        raise SpecError(f"inputs to draw: {total} bytes; too much for this machine's memory")


def memory_size() -> int:
    """This machine's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this system
        return 2**34


def _letters(model: Model) -> dict[tuple[str, int], str]:
    """Which dimensions of inputs are the steps (T) or rows (B) of a GRU node that takes them."""
    names = {info.value or info.name: info.name for info in model.inputs}
    found: dict[tuple[str, int], str] = {}
    for gru in model.gru_layers:
        layout = gru.node.attributes.get("layout", 0)
        for port in gru.node.operator.ports(layout if isinstance(layout, int) else 0):
            name = names.get(gru.node.inputs.get(port.name, ""))
            for axis, letter in enumerate(port.axes):
                if name is not None and letter in "TB":
                    found.setdefault((name, axis), letter)
    return found


def _shape(
    info: TensorInfo,
    by_name: Mapping[str, int],
    letters: Mapping[tuple[str, int], str],
    sizes: tuple[int, int, int],
) -> tuple[int, ...]:
    if info.shape is None or not info.is_tensor:
        raise SpecError(f"input {info.name!r}: has no known shape, so it cannot be drawn; give its value")
    shape: list[int] = []
    for axis, size in enumerate(info.shape):
        if isinstance(size, int):
            shape.append(size)
        elif isinstance(size, str) and size in by_name:
            shape.append(by_name[size])
        else:
            letter = letters.get((info.name, axis), "")
            shape.append(sizes["TB".index(letter)] if letter else sizes[2])
    return tuple(shape)


def longest_lengths(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int | None]:
    """For each input that holds lengths, the number of steps that they must fit; None where it is not known.

    Args:
        model: the model.
        shapes: of its inputs, by name.
    """
    names = {info.value or info.name: info.name for info in model.inputs}
    found: dict[str, int | None] = {}
    for gru in model.gru_layers:
        layout = gru.node.attributes.get("layout", 0)
        ports = {
            port.role: port for port in gru.node.operator.ports(layout if isinstance(layout, int) else 0)
        }
        lengths = ports.get("sequence_lens")
        name = names.get(gru.node.inputs.get(lengths.name, "")) if lengths is not None else None
        if name is None:
            continue
        shape = shapes.get(names.get(gru.node.inputs[ports["X"].name], ""), ())
        axis = ports["X"].axes.index("T")
        steps = shape[axis] if axis < len(shape) else None
        earlier = found.get(name, steps)
        found[name] = None if earlier is None or steps is None else min(earlier, steps)
    return found


def draw_one(
    rng: np.random.Generator, info: TensorInfo, shape: tuple[int, ...], longest: int | None
) -> Array:
    """Normal numbers, lengths up to `longest`, and for other integers 0 or 1, which any index allows.

    Raises:
        SpecError: its type cannot be drawn.
    """
    if info.dtype in ("str", "unknown"):
        raise SpecError(f"input {info.name!r}: type {info.dtype} cannot be drawn; give its value")
    dtype = numpy_dtype(info.dtype)
    if dtype.kind in "iu":
        return rng.integers(
            0 if longest is None else min(1, longest), 2 if longest is None else longest + 1, shape
        ).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
