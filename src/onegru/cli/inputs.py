"""Inputs of a run, from files or random."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onegru.cli.screen import Screen, safe, say
from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.core.machine import memory_size
from onegru.formats.format import format_of
from onegru.formats.graph import TensorInfo, by_name
from onegru.formats.opened import Opened, open_model
from onegru.models.inputs.check import check_fit
from onegru.models.inputs.random import pick_inputs
from onegru.models.inputs.sizes import dimension_name
from onegru.models.model import Model
from onegru.models.stream import first_states
from onegru.system.array_files import Header, read_npy, read_npz
from onegru.system.bounded import check_regular

_MOST_DIGITS = 12  # of a size in an option


def parse_pairs(
    option: str, texts: Sequence[str], what: str = "COLUMN", *, bare_names: bool = False
) -> dict[str, str]:
    """Parse NAME=VALUE, and return values by name. With `bare_names`, NAME means NAME=NAME."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or (separator and not value) or not (separator or bare_names):
            raise SpecError.of(option, f"{text!r}; must be NAME={what}" + (" or NAME" if bare_names else ""))
        if name in found:
            raise SpecError.of(option, f"{name!r} is given twice")
        found[name] = value if separator else name
    return found


def parse_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the axes of inputs, from NAME=AXIS,...; raise the errors of `parse_pairs`."""
    return {name: order.split(",") for name, order in parse_pairs("--axes", texts, "AXIS,...").items()}


def parse_dims(texts: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Return sizes of dynamic dimensions, from NAME=SIZE, and shapes of inputs, from NAME=SIZE,SIZE,..."""
    sizes: dict[str, int | tuple[int, ...]] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or re.fullmatch(r"[0-9]+(,[0-9]+)*", size) is None:
            raise SpecError.of(
                "--dim", f"{text!r}; must be NAME=SIZE, such as batch=4, or INPUT=SIZES, as X=2,3,8"
            )
        if max(map(len, size.split(","))) > _MOST_DIGITS:
            raise SpecError.of("--dim", f"{text!r}; must be at most {'9' * _MOST_DIGITS}")
        if name in sizes:
            raise SpecError.of("--dim", f"{name!r} is given twice")
        sizes[name] = tuple(map(int, size.split(","))) if "," in size else int(size)
    return sizes


def open_sizes(
    source: Opened, texts: Sequence[str], default: int | None
) -> dict[str, int | tuple[int, ...]] | None:
    """Return sizes of dynamic dimensions as `parse_dims` does, and `default` for others; None for none."""
    sizes = parse_dims(texts)
    if default is not None:
        file = open_model("SOURCE", source)
        open_names: dict[bool, set[str]] = {True: set(), False: set()}
        for info in format_of(file).read_graph(file, keep_parsed=True).inputs:
            open_names[info.name in sizes] |= {
                dimension_name(info, axis)
                for axis, size in enumerate(info.shape or ())
                if not isinstance(size, int)
            }
        # If --dim gives the shape of an input, it also sets its dimensions in other inputs.
        sizes = {**dict.fromkeys(open_names[False] - open_names[True], default), **sizes}
    return sizes or None


def split_name(text: str, known: Container[str]) -> tuple[str | None, str]:
    """Split [NAME=]FILE into name and file, at the first '=' that ends a known name, else at the last one."""
    for match in re.finditer("=", text):
        if text[: match.start()] in known:
            return text[: match.start()], text[match.end() :]
    name, separator, file = text.rpartition("=")
    return (name if separator else None), file


def gather_inputs(
    model: Model,
    texts: Sequence[str],
    seed: int | None,
    dims: Sequence[str],
    default: int | None = None,
    draws: bool = True,
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return an array for each input, from files or random; without a seed, states have initial values."""
    for option, given in (("--dim", bool(dims)), ("--dims", default is not None)):
        if given and seed is None and (texts or not draws):
            drawn = (
                "random inputs; add --random SEED, or remove it"
                if draws
                else "random inputs; remove it, because -i sets the inputs"
            )
            raise SpecError.of(option, f"has no effect here; it applies to {drawn}")
    sizes = parse_dims(dims)
    infos = by_name(model.inputs)
    values: dict[str, Array] = {}
    if seed is None and draws and not texts:
        seed = 0
    for text in texts:
        for name, array in _read(text, model, infos).items():
            info = infos[name]
            if info.name in values:
                raise SpecError(f"-i {text}: {name!r} is given twice")
            values[info.name] = _as_bfloat16(info, array) if info.dtype == "bfloat16" else array
    made, picked = ({}, {}) if seed is None else pick_inputs(model, values, seed, sizes, default, "--dim")
    if picked:
        listed = ", ".join(f"{safe(name)}={size}" for name, size in picked.items())
        say(Screen(stderr=True), f"random inputs with {listed}; to change a size, add --dim NAME=SIZE")
    first = first_states(model.graph, values) if seed is None else {}
    values |= first or made
    if first and model.graph.keeps:
        kept = ", ".join(map(safe, first))
        say(Screen(stderr=True), f"{kept}: initial states; use Model.stream() to carry states between runs")
    missing = [info for info in model.inputs if info.name not in values and not info.optional]
    if missing:
        names = ", ".join(repr(info.name) for info in missing)
        otherwise = ", or add --random SEED" if draws else ""
        raise SpecError(f"input {names}: missing; pass it with -i {missing[0].name}=FILE{otherwise}")
    return values, tuple(made)


def _names(model: Model) -> str:
    return ", ".join(repr(info.name) for info in model.inputs) or "none"


# Files


def input_files(texts: Iterable[str], model: Model) -> list[Path]:
    """Return the files in [NAME=]FILE arguments."""
    return [_named_file(text, by_name(model.inputs))[1] for text in texts]


def _named_file(text: str, known: Container[str]) -> tuple[str | None, Path]:
    name, file = split_name(text, known)
    if name is not None and name not in known and Path(text).is_file():
        name, file = None, text  # the '=' is part of the file's name
    return name, Path(file)


def _read(text: str, model: Model, known: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """Return the arrays in [NAME=]FILE, by names of inputs."""
    name, path = _named_file(text, known)
    if name is not None and name not in known:
        raise SpecError(f"-i {text}: {name!r} is not an input; the model's inputs: {_names(model)}")
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz", ".pb"):
        raise SpecError(f"-i {text}: must end in .npy, .npz or .pb")
    if suffix == ".npz":

        def choose(headers: Mapping[str, Header]) -> Iterable[str]:
            """Return the names of arrays to read, checked against their inputs."""
            inputs = {item: item for item in headers}
            if name is not None:
                if name not in headers and len(headers) != 1:
                    held = ", ".join(map(repr, headers))
                    raise SpecError(f"-i {text}: the file contains {held}, not {name!r}")
                inputs = {name if name in headers else next(iter(headers)): name}
            _check_size(path, sum(headers[item].bytes for item in inputs))
            for item, taker in inputs.items():
                if taker not in known:
                    raise SpecError(
                        f"-i {text}: {taker!r} is not an input; the model's inputs: {_names(model)}"
                    )
                _check_header(known[taker], headers[item])
            return inputs

        arrays = read_npz(path, choose)
        return arrays if name is None else dict(zip([name], arrays.values(), strict=True))
    if suffix == ".npy":
        only = name or _only_input(text, model)

        def judge(header: Header) -> None:
            _check_size(path, header.bytes)
            _check_header(known[only], header)

        return {only: read_npy(path, judge)}
    with needs_extra("onnx", "onnx", str(path)):
        from onegru.formats.onnx.tensor_file import read_tensor
    check_regular(path)
    _check_size(path, path.stat().st_size)
    own_name, array = read_tensor(path)
    if name is not None:
        return {name: array}
    return {own_name if own_name in known else _only_input(text, model): array}


def _check_header(info: TensorInfo, header: Header) -> None:
    """Raise SpecError unless the header of an array fits an input."""
    if not info.is_tensor:
        return  # the run reports the error
    dtype, shape = header
    if info.dtype == "bfloat16" and dtype in (np.dtype("V2"), np.float32):
        dtype = bfloat16()
    check_fit(info, dtype, shape)


def _check_size(path: Path, size: int) -> None:
    if size > memory_size():
        raise FormatError(f"{path}: contains {size} bytes; must fit into this machine's memory")


def _only_input(text: str, model: Model) -> str:
    if len(model.inputs) != 1:
        raise SpecError(f"-i {text}: ambiguous input; must be NAME=FILE with one of {_names(model)}")
    return model.inputs[0].name


def _as_bfloat16(info: TensorInfo, array: Array) -> Array:
    """Return a bfloat16 array from a NumPy file, which holds its bytes, or the same values as float32."""
    if array.dtype == np.dtype("V2"):
        return array.view(bfloat16())
    if array.dtype == np.float32:
        rounded = array.astype(bfloat16())
        if not np.array_equal(rounded.astype(np.float32), array, equal_nan=True):
            raise SpecError(
                f"{info.name!r}: contains float32 values that bfloat16 cannot represent; round them first"
            )
        return rounded
    return array


# Random inputs


@contextmanager
def explained(model: Model, random_names: Sequence[str]) -> Iterator[None]:
    """If a model fails on partly random inputs, add to the error that they may be the reason."""
    try:
        yield
    except (FormatError, SpecError) as error:
        if not random_names or not str(error).startswith(f"{model.path}: "):  # it is about another file
            raise
        whole = {info.name for info in model.inputs if info.dtype.startswith(("int", "uint"))}
        name = next((name for name in random_names if name in whole), random_names[0])
        names = f"{', '.join(map(repr, random_names))} {'was' if len(random_names) == 1 else 'were'}"
        words = f"does not run on these inputs; {names} random ({error})"
        raise type(error)(
            f"{model.path}: {words}; if inputs must match each other, pass them with -i {name}=FILE, "
            "or change sizes with --dim"
        ) from error.__cause__
