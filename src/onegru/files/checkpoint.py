"""GRUs in PyTorch's checkpoints: `.pt` and `.pth` files, and `.safetensors` with PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onegru.dtypes import bfloat16
from onegru.errors import FormatError, MissingExtraError, SpecError, needs_extra
from onegru.files.safetensors_file import read_layers
from onegru.frameworks.pytorch import find_groups, is_recurrent, read_group
from onegru.layer import GRU
from onegru.stack import Stack

__all__ = ["read_pytorch", "read_safetensors"]

# The first version whose weights_only keeps its promise (CVE-2025-32434).
_SAFE = (2, 6)

# How deep the mappings of a checkpoint may be nested: {"state_dict": {"model": …}} is usual.
_DEPTH = 8


def read_safetensors(path: Path, name: str | None = None) -> dict[str, GRU | Stack]:
    """The GRUs of a safetensors file: those that onegru wrote, or those with PyTorch's names.

    Args:
        path: the file.
        name: the only one to read; None for all.

    Raises:
        FormatError: the file is broken.
        SpecError: a GRU's tensors are missing or do not fit.
        MissingExtraError: safetensors is not installed, or ml_dtypes where a tensor is bfloat16.
    """
    with needs_extra("safetensors", "safetensors", str(path)):
        import safetensors
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            own = "onegru" in metadata
            names = [] if own else [key for key in file.keys() if is_recurrent(key)]  # noqa: SIM118
            if any(file.get_slice(key).get_dtype() == "BF16" for key in names):
                bfloat16()  # NumPy has to know the type
            tensors = {key: file.get_tensor(key) for key in names}
    except MissingExtraError:
        raise
    except Exception as error:  # the package raises its own error, and NumPy's for types unknown to it
        raise FormatError(f"{path}: not a safetensors file ({error})") from None
    if own:
        return {"": read_layers(path)}
    return _layers(path, tensors, name)


def read_pytorch(path: Path, name: str | None = None) -> dict[str, GRU | Stack]:
    """The GRUs of a file that `torch.save` wrote, of which only tensors and plain data are read.

    Args:
        path: the file: a state dict, or mappings that hold one.
        name: the only one to read; None for all.

    Raises:
        FormatError: the file is broken, or holds other objects, which would run code.
        SpecError: a GRU's tensors are missing or do not fit.
        MissingExtraError: torch is not installed, or older than 2.6, which would run code.
    """
    with needs_extra("torch", "torch", str(path)):
        import torch
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE:
        raise MissingExtraError("torch 2.6 or newer", "torch", str(path))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises on bad bytes, of which there are many kinds
        # Not torch's own words, which advise to switch the safeguard off.
        raise FormatError(
            f"{path}: broken, or with more than tensors and plain data, which would run code "
            f"({type(error).__name__})"
        ) from None
    tensors: dict[str, object] = {}
    for key, tensor in _tensors(torch, path, content, "", _DEPTH, set()):
        if tensors.setdefault(key, tensor) is not tensor:
            raise FormatError(f"{path}: two tensors called {key!r}")
    return _layers(path, tensors, name)


def _tensors(
    torch: Any, path: Path, content: object, prefix: str, depth: int, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """The tensors of recurrent modules within nested mappings, by their names joined with dots."""
    if not isinstance(content, Mapping) or id(content) in seen:
        return
    seen.add(id(content))  # each once, as one that holds itself twice would never end
    for key, value in content.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, torch.Tensor):
            if is_recurrent(name):
                _check_size(path, name, value)
                yield name, value
        elif depth:
            yield from _tensors(torch, path, value, name, depth - 1, seen)


def _check_size(path: Path, name: str, tensor: Any) -> None:
    """Refuse a tensor that claims more numbers than the file gave it: a few bytes could fill the memory."""
    try:
        held = tensor.untyped_storage().nbytes()
    except Exception as error:  # of a layout that has no storage
        raise FormatError(f"{path}: {name}: no plain tensor ({error})") from None
    if tensor.is_meta or tensor.numel() * tensor.element_size() > held:
        raise FormatError(
            f"{path}: {name}: {list(tensor.shape)} numbers, of which the file does not hold each"
        )


def _layers(path: Path, tensors: Mapping[str, object], name: str | None) -> dict[str, GRU | Stack]:
    groups = find_groups(tensors)
    if name is not None:
        wanted = name.removesuffix(".")
        if wanted not in groups:
            there = ", ".join(repr(found) for found in groups) or "none"
            raise SpecError(f"name: {name!r}, which {path} does not hold; it holds {there}")
        return {wanted: read_group(groups[wanted], where=f"{path}: ")}
    return {
        found: read_group(group, where=f"{path}: ") for found, group in groups.items() if not group.refusal
    }
