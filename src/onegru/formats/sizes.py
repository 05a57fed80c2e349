"""Find the size of a GRU node's X, and whether its lengths cover all steps, as stated in a file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from onegru.dataflow.flow import Flow
from onegru.formats.graph import GruStep

_Key = TypeVar("_Key")


def with_sizes(
    grus: Mapping[_Key, GruStep],
    stated: Callable[[str], tuple[int | None, ...] | None],
    flow: Callable[[], Flow],
    name: Callable[[str], str] = str,
) -> dict[_Key, GruStep]:
    """Return the nodes with the known sizes of X, and whether their lengths are its steps."""
    read = functools.cache(flow)
    return {key: _with_sizes(gru, stated, read, name) for key, gru in grus.items()}


def _with_sizes(
    gru: GruStep,
    stated: Callable[[str], tuple[int | None, ...] | None],
    flow: Callable[[], Flow],
    name: Callable[[str], str],
) -> GruStep:
    X, lengths = gru.port("X"), gru.operator.input("sequence_lens")
    assert X is not None
    lens = None if lengths is None else gru.inputs.get(lengths.name)
    known = stated(gru.inputs[X.name])
    if lens is None and known is not None and None not in known:
        return replace(gru, x_shape=known, full_length=True)
    shape = flow().shape(name(gru.inputs[X.name]))
    is_full = lens is None
    if lens is not None and shape is not None and len(shape) == len(X.axes):
        is_full = flow().fill_value(name(lens)) == shape[X.axes.index("T")]
    x_shape = None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)
    return replace(gru, x_shape=x_shape, full_length=is_full)
