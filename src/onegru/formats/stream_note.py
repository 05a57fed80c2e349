"""Read and write the metadata of streaming models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import BROKEN
from onegru.formats.graph import TensorInfo, by_name
from onegru.system.bounded import parse_json


@dataclass(frozen=True, slots=True)
class State:
    """State that a streaming model carries from one run to the next."""

    input: str  # the input
    output: str  # the output with its next value
    node: str  # the node that has the state, or needs the earlier steps
    first_shape: tuple[int | str, ...]  # its shape before the first run; names refer to sizes of other inputs
    steps: int | None = None  # the number of steps that it contains; None for the state of a recurrence
    start: Array | None = None  # its initial value, perhaps one row for all; None for zeros


def write_note(
    states: Sequence[State],
    initial: Mapping[str, Array],
    time: Mapping[str, int],
    delays: Mapping[str, int],
    sizes: Mapping[str, Sequence[int | str]] | None = None,
    keeps: bool = False,
) -> str:
    """Return the metadata entry of a model."""
    document: dict[str, Any] = {
        "states": [
            {"input": item.input, "output": item.output, "shape": item.first_shape}
            | ({"initial": _as_json(initial[item.input])} if item.input in initial else {})
            for item in states
        ],
        "time": dict(time),
        "delays": dict(delays),
    }
    if sizes is not None:
        document["sizes"] = {name: list(shape) for name, shape in sizes.items()}
    if keeps:
        document["keeps"] = True
    return json.dumps(document)


def read_note(
    text: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> dict[str, Any] | None:
    """Read the attributes of a `Graph` from an entry; None if it is broken or does not fit the model."""
    pairs: tuple[tuple[str, str], ...] = ()
    kept: dict[str, Any] = {}
    shapes: dict[str, tuple[int | str, ...]] = {}
    initial: dict[str, Array] = {}
    least: dict[str, tuple[int, int]] = {}
    try:
        document = parse_json(text)
        states = document["states"]
        pairs = tuple((state["output"], state["input"]) for state in states)
        shapes = {state["input"]: tuple(state["shape"]) for state in states}
        kept = {"keeps": True, "zero_inputs": frozenset(shapes)} if document.get("keeps") is True else {}
        numbers_by_input = {state["input"]: state["initial"] for state in states if "initial" in state}
        initial = {name: np.array(numbers, np.float64) for name, numbers in numbers_by_input.items()}
        delay = max(document.get("delays", {}).values(), default=0)
        time = document.get("time", {}).items() if delay else ()
        least = {name: (axis, delay + 1) for name, axis in time}
        is_sound = all(isinstance(item, list) for item in (states, *(one["shape"] for one in states)))
        takers, givers = {info.name: info for info in inputs}, {info.name for info in outputs}
        is_sound = is_sound and len({*shapes}) == len({output for output, _ in pairs}) == len(pairs)
        is_sound = is_sound and takers.keys() >= least.keys()
        for output, taker in pairs:
            known, shape = takers[taker].shape, shapes[taker]
            is_sound = is_sound and output in givers and known is not None and len(shape) == len(known)
            is_sound = is_sound and all(isinstance(size, str) or _is_size(size) for size in shape)
        for taker, array in initial.items():
            sizes = zip(array.shape, shapes[taker], strict=True)
            is_sound = is_sound and all(have in (1, size) for have, size in sizes)
            with np.errstate(over="ignore"):
                start = array.astype(numpy_dtype(str(takers[taker].dtype)))
            same = np.isfinite(start.astype(np.float64)) == np.isfinite(array)
            is_sound = is_sound and bool(same.all()) and not np.isnan(array).any()
        is_sound = is_sound and all(map(_is_size, (delay, *chain(*least.values()))))
        is_sound = is_sound and document.get("delays", {}).keys() <= givers
        ranks = {name: len(takers[name].shape or ()) or axis + 1 for name, (axis, _) in least.items()}
        is_sound = is_sound and all(axis < ranks[name] for name, (axis, _) in least.items())
    except BROKEN:
        is_sound = False
    if not is_sound:
        return None
    return {"states": pairs, "starts": shapes, "initial": initial, "least_steps": least, **kept}


def kept_states_of(text: str) -> list[State]:
    """Read the states that a model itself stores from its entry; empty if it stores none or is broken."""
    with suppress(*BROKEN):
        document = json.loads(text)
        if document.get("keeps") is True:
            return [
                State(
                    *(item["input"], item["output"], "", tuple(item["shape"])),
                    start=np.array(item["initial"], np.float64) if "initial" in item else None,
                )
                for item in document["states"]
            ]
    return []


def named_states(text: str, side: str, infos: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Return inputs or outputs of an IR under the names that an entry uses for states."""
    known, names = by_name(infos), dict[int, str]()
    with suppress(*BROKEN):
        names = {id(known[state[side]]): state[side] for state in parse_json(text)["states"]}
    return tuple(
        replace(info, name=name, aliases=tuple(word for word in (info.name, *info.aliases) if word != name))
        for info in infos
        for name in [names.get(id(info), info.name)]
    )


def named_sizes(text: str, inputs: Sequence[TensorInfo]) -> tuple[TensorInfo, ...] | None:
    """Return inputs with the entry's names of their dynamic sizes; None if these do not fit."""
    found: list[TensorInfo] = []
    try:
        sizes = parse_json(text).get("sizes", {})
        for info in inputs:
            shape = tuple(sizes.get(info.name, info.shape or ()))
            pairs = zip(info.shape or (), shape, strict=True)
            if info.name in sizes and not all(
                type(new) is int and new == have if isinstance(have, int) else isinstance(new, str)
                for have, new in pairs
            ):
                return None
            found.append(replace(info, shape=shape) if info.name in sizes else info)
    except BROKEN:
        return None
    return tuple(found)


def _as_json(array: Array) -> Any:
    """Convert values for JSON; infinities become the strings "inf" and "-inf"."""
    numbers = array.astype(float)
    return np.where(np.isfinite(numbers), numbers.astype(object), numbers.astype(str).astype(object)).tolist()


def _is_size(number: object) -> bool:
    """Whether a value from a file is a valid size."""
    return type(number) is int and 0 <= number < 2**31
