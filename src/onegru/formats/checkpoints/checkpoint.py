"""Read GRUs from PyTorch checkpoints: `.pt`, `.pth` and `.safetensors` files."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError, MissingExtraError, SpecError, needs_extra
from onegru.core.wording import an
from onegru.formats.checkpoints.pytorch import Tensor, Unknown, array_of, read_torch
from onegru.formats.checkpoints.safetensors import read_layers, read_metadata
from onegru.formats.checkpoints.shards import shards_of
from onegru.formats.opened import Kind, Opened
from onegru.frameworks.pytorch import find_groups, form_name, is_recurrent, may_be_form, module_of, read_group
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.layers.torch_form import KEY, LONGEST
from onegru.system.bounded import LARGEST_TEXT

# Depth limit for nested mappings of a checkpoint, such as {"state_dict": {"model": …}}.
_DEPTH = 16
_LONGEST_NAME = 1000

# Containers of tensors, by name or by index.
_Nested = Mapping[object, object] | list[object] | tuple[object, ...]

# Number of modules that an error message explains.
_MOST_WORDS = 3

# Placeholder for a tensor that does not belong to a GRU.
_OTHER = object()

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Alias:
    """Further occurrence of a container under another name."""

    first: str  # its first name


def read_safetensors(path: Opened, name: str | None = None) -> dict[str, GRU | Stack]:
    """Read the GRUs of a safetensors file: those that onegru wrote, or those with PyTorch's names."""
    with needs_extra("safetensors", "safetensors", str(path)):
        import safetensors
    shards, keys = shards_of(path), dict[str, Opened]()
    metadata = [read_metadata(shard) for shard in shards]
    if len(shards) == 1 and "onegru" in metadata[0]:
        return {"": read_layers(shards[0])}
    for shard in shards:
        with _format_errors(shard), safetensors.safe_open(shard, framework="np") as file:
            for key in file.keys():  # noqa: SIM118
                if keys.setdefault(key, shard) is not shard:
                    raise FormatError(f"{shard}: {key!r} is also in {keys[key].path.name}")
    shared = _shared_names(path, metadata, keys)
    own_forms = {form_name(str(module_of(key))) for key in (*keys, *shared) if is_recurrent(key)}
    shared_sources = {first for key, first in shared.items() if is_recurrent(key) or key in own_forms}
    tensors: dict[str, object] = dict.fromkeys(keys, _OTHER)
    for shard in shards:
        with _format_errors(shard), safetensors.safe_open(shard, framework="np") as file:
            own = [key for key in file.keys() if keys[key] is shard]  # noqa: SIM118
            names = [key for key in own if is_recurrent(key) or key in own_forms or key in shared_sources]
            names += [
                k for k in own if k not in names and may_be_form(k) and _may_hold_form(file.get_slice(k))
            ]
            if any(file.get_slice(key).get_dtype() == "BF16" for key in names):
                bfloat16()  # registers the type in NumPy
            tensors |= {key: file.get_tensor(key) for key in names}
    own_bytes = sum(tensor.nbytes for tensor in tensors.values() if isinstance(tensor, np.ndarray))
    tensors |= {key: tensors[first] for key, first in shared.items()}
    named_bytes = sum(tensor.nbytes for tensor in tensors.values() if isinstance(tensor, np.ndarray))
    if named_bytes > _most_shared(own_bytes):
        raise FormatError(
            f"{path}: shared tensors add up to more than four times the file's {own_bytes} bytes plus 256 "
            "MiB; write each shared layer once"
        )
    return _layers(path, tensors, name)


def _most_shared(size: int) -> int:
    """Return the limit of tensor bytes for a file of this size. Tied layers share tensors."""
    return 4 * size + (256 << 20)


def _shared_names(
    path: Opened, metadata: Sequence[Mapping[str, Any]], keys: Collection[str]
) -> dict[str, str]:
    """Return the names in safetensors' metadata, each with the tensor of `keys` that it shares."""
    entries = {key: first for entry in metadata for key, first in entry.items() if key not in keys}
    for key, first in entries.items():
        if is_recurrent(key) and first not in keys:
            raise FormatError(f"{path}: according to its metadata {key!r} shares {first!r}, which is missing")
    return {key: first for key, first in entries.items() if isinstance(first, str) and first in keys}


@contextmanager
def _format_errors(path: Opened) -> Iterator[None]:
    """Turn all errors of reading a safetensors file into FormatError."""
    try:
        yield
    except (MissingExtraError, FormatError):
        raise
    except Exception as error:  # the package's own error, or NumPy's for unknown types
        raise FormatError(f"{path}: not a safetensors file, or truncated ({error})") from error


def _may_hold_form(entry: Any) -> bool:
    """Whether a tensor of a safetensors file has the size and type of a form."""
    shape = entry.get_shape()
    return len(shape) == 1 and shape[0] <= LONGEST and entry.get_dtype() in ("F16", "BF16", "F32", "F64")


def read_pytorch(path: Opened, name: str | None = None) -> dict[str, GRU | Stack]:
    """Read the GRUs of a file from `torch.save`: only its tensors, and without PyTorch."""
    contents = [_state_dict(shard) for shard in shards_of(path)]
    size = sum(size for _, size in contents)
    found: dict[str, Tensor | Array] = {}
    others: dict[str, object] = {}
    bytes_left = _most_shared(size)
    letters_left = 4 * size + LARGEST_TEXT // 16
    aliases: dict[str, str] = {}
    every = (item for content, _ in contents for item in _tensors(path, content, "", _DEPTH, {}))
    for key, tensor in every:
        letters_left -= len(key)
        if letters_left < 0:
            raise FormatError(f"{path}: names exceed four times the file's {size} bytes")
        if isinstance(tensor, _Alias):
            aliases.setdefault(key, tensor.first)
            continue
        if not is_recurrent(key):
            others[key] = tensor
            continue
        if isinstance(tensor, Unknown):
            raise FormatError(f"{path}: {key}: {an(tensor.name)}, not tensors and plain data")
        assert isinstance(tensor, Tensor | np.ndarray), "forms have other names"
        bytes_left -= tensor.nbytes
        if bytes_left < 0:
            raise FormatError(f"{path}: tensors exceed four times the file's {size} bytes plus 256 MiB")
        if found.setdefault(key, tensor) is not tensor:
            raise FormatError(f"{path}: two tensors called {key!r}")
    tensors = {key: _numbers(path, key, tensor) for key, tensor in found.items()}
    for key in filter(may_be_form, others):
        if isinstance(form := others[key], Tensor) and form.nbytes <= bytes_left:
            with suppress(ValueError):  # otherwise not a form
                others[key] = form.numbers()
    return _layers(path, {**tensors, **others}, name, aliases)


def other_tensors(path: Opened, grus: Collection[str]) -> tuple[str, ...]:
    """Return the names of a checkpoint's tensors that do not belong to its GRUs."""
    names: list[str] = []
    aliases: dict[str, str] = {}
    tensors: list[tuple[str, object]]
    for shard in shards_of(path) if path.kind in (Kind.PYTORCH, Kind.SAFETENSORS) else ():
        if shard.kind is Kind.PYTORCH:
            tensors = [*_tensors(shard, _state_dict(shard)[0], "", _DEPTH, {})]
            aliases |= {name: value.first for name, value in tensors if isinstance(value, _Alias)}
            names += [name for name, value in tensors if isinstance(value, Tensor | np.ndarray)]
        elif "onegru" not in (metadata := read_metadata(shard)):
            import safetensors

            with safetensors.safe_open(shard, framework="np") as file:
                own = dict.fromkeys(file.keys())
            names += [*own, *(key for key, first in metadata.items() if key not in own and first in own)]
    modules = {module: module for module in map(module_of, names) if module is not None}
    _add_names(path, modules, aliases)
    used = {modules.get(gru, gru) for gru in grus}
    return tuple(dict.fromkeys(name for name in names if module_of(name) not in used))


def _state_dict(path: Opened) -> tuple[_Nested, int]:
    """Return the content of a PyTorch file, and its size."""
    content, size = read_torch(path)
    if isinstance(content, Unknown) and content.is_module:
        content = _of_module(content, "")
    if not isinstance(content, Mapping | list | tuple):
        words = content.name if isinstance(content, Unknown) else type(content).__name__
        raise FormatError(
            f"{path}: {an(words)}, not tensors and plain data; must be a state dict: save model.state_dict()"
        )
    return content, size


# Modules with a GRU's parameters. Subclasses can compute something else.
_GRUS = (
    *("torch.nn.modules.rnn.GRU", "torch.nn.modules.rnn.GRUCell"),
    *("onegru.torch.modules.TorchGRU", "onegru.torch.cells.TorchGRUCell"),
)


# Attributes with packed weights of dynamic quantization, by their names in state dicts; not parameters.
_PACKED = ("param", "_packed_weight_ih", "_packed_weight_hh")


def _of_module(module: Unknown, name: str) -> dict[object, object]:
    """Return the parameters and submodules of a module that was saved as an object."""
    parameters, modules = module.state["_parameters"], module.state["_modules"]
    is_other = module.name not in _GRUS and any(is_recurrent(str(key)) for key in parameters)
    state = module.state if ".quantized.dynamic." in module.name else {}
    packed = {key: value for key, value in state.items() if key in _PACKED}
    return {**({"": module} if is_other else parameters), **modules, **packed}


def _tensors(
    path: Opened, content: _Nested, prefix: str, depth: int, seen: dict[int, tuple[object, str]]
) -> Iterator[tuple[str, object]]:
    """Find tensors, unknown objects and forms in nested containers, by their names joined with dots."""
    # Each container is visited once. Further occurrences outside the container itself yield an `_Alias`.
    seen[id(content)] = content, prefix
    for key, given in content.items() if isinstance(content, Mapping) else enumerate(content):
        if not isinstance(key, str) and type(key) is not int:
            continue
        value: object = given
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(given, Unknown) and key != "":
            if given.is_module and depth and id(given) not in seen:
                seen[id(given)] = given, name
                value = _of_module(given, str(key))
            elif (array := array_of(given)) is not None:
                value = array
        is_form = isinstance(key, str) and key.rpartition(".")[2] == KEY
        if not is_form and not isinstance(value, Mapping | list | tuple | Tensor | Unknown | np.ndarray):
            continue
        if len(name) > _LONGEST_NAME:
            raise FormatError(f"{path}: a name of {len(name)} characters; must have at most {_LONGEST_NAME}")
        if key != "" and id(value) in seen:
            first = seen[id(value)][1]
            if first and not name.startswith(f"{first}."):
                yield name, _Alias(first)
        elif is_form or isinstance(value, Tensor | Unknown | np.ndarray):
            yield name.removesuffix("."), value
        elif isinstance(value, Mapping | list | tuple) and depth:
            yield from _tensors(path, value, name, depth - 1, seen)


def _numbers(path: Opened, name: str, tensor: Tensor | Array) -> Array:
    if not isinstance(tensor, Tensor):
        return tensor
    try:
        return tensor.numbers()
    except MissingExtraError:
        raise
    except Exception as error:  # including errors of the archive
        raise FormatError(f"{path}: {name}: {error}") from error


def _add_names(path: Opened, found: dict[str, _T], aliases: Mapping[str, str]) -> None:
    """Add entries under the other names of their containers; `aliases` has the first name of each."""
    keys, letters_left = sorted(found), LARGEST_TEXT // 16
    for name, first in aliases.items():
        within = keys[bisect_left(keys, f"{first}.") : bisect_left(keys, f"{first}/")]  # "/" follows "."
        for key in (first, *within) if first in found else within:
            more = name + key.removeprefix(first)
            letters_left -= len(more)
            if letters_left < 0:
                raise FormatError(f"{path}: additional GRU names exceed {LARGEST_TEXT // 16} bytes")
            if found.setdefault(more, found[key]) is found[key]:
                insort(keys, more)


def _layers(
    path: Opened, tensors: Mapping[str, object], name: str | None, aliases: Mapping[str, str] | None = None
) -> dict[str, GRU | Stack]:
    groups = find_groups(tensors)
    _add_names(path, groups, aliases or {})
    if name is not None:
        wanted = name.removesuffix(".")
        if wanted not in groups:
            there = ", ".join(repr(found) for found in groups) or "none"
            raise SpecError.of("name", f"no GRU {name!r} in {path}; available: {there}")
        return {wanted: read_group(groups[wanted], where=f"{path}: ")}
    made: dict[int, GRU | Stack] = {}  # each is read once, even with several names
    layers: dict[str, GRU | Stack] = {}
    for found, group in groups.items():
        if not group.refusal:
            made[id(group)] = layers[found] = made.get(id(group)) or read_group(group, where=f"{path}: ")
    if not layers:
        for found, group in groups.items():
            if group.is_packed:
                raise FormatError(f"{path}: {found}{': ' if found else ''}{group.refusal}")
        why = [f"{found!r} has {group.refusal}" for found, group in groups.items()]
        why += [
            f"{key!r} is {an(value.name)}, not tensors and plain data: save its state_dict()"
            for key, value in tensors.items()
            if isinstance(value, Unknown) and not groups
        ]
        bare = [key for key in tensors if key.rpartition(".")[2].isdecimal()]
        if bare and not groups:
            why.append(f"{bare[0]!r} has a number instead of a name, as in a list: save a state_dict()")
        more = f" and {len(why) - _MOST_WORDS} more" if len(why) > _MOST_WORDS else ""
        there = f": {'; '.join(why[:_MOST_WORDS])}{more}" if why else ""
        raise FormatError(f"{path}: no GRU with its own weights{there}")
    return layers
