"""Read and write layers as .safetensors files.

A file has canonical weights, and the `Spec` of each layer in its metadata. Tensors are `layers.0.W`,
`layers.0.R`, `layers.0.B` and so on, in the form of `onegru.GRU`. The metadata entry "onegru" is `{"format":
1, "stack": false, "layers": [...]}`; each layer has the fields of `Spec`. In format 2, W and R can be int8: w
= q·scale. The scales `layers.0.W_scale` are [D, 3H] (one for each row) or [D, 3H, groups] (one for each 32,
64 or 128 weights of a row). Files with only floats have format 1, which older versions can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.core.dtypes import (
    WEIGHT_STORAGES,
    Array,
    contiguous,
    default_float_mode,
    group_size,
    is_int8,
    numpy_dtype,
)
from onegru.core.errors import FormatError, SpecError, needs_extra, prefixed_errors
from onegru.core.spec import Spec, Weights
from onegru.core.spec_json import spec_from_json, spec_to_json
from onegru.core.wording import count
from onegru.engines.storage import dequantized, quantize_channels
from onegru.formats.opened import Opened, open_file
from onegru.formats.writing import Layers
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.system.bounded import LARGEST_TEXT, parse_json

_FORMAT, _FORMAT_INT8 = 1, 2
_KEY = "onegru"

_ELEMENT_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def safetensors_bytes(layers: Layers, stack: bool) -> bytes:
    """Return the content of a file."""
    with needs_extra("safetensors", "safetensors", "a .safetensors file"):
        import safetensors
    arrays: dict[str, Array] = {}
    for index, (_, weights, group) in enumerate(layers):
        parts = {"W": weights.W, "R": weights.R, "B": weights.B}
        if group is not None:
            for name in ("W", "R"):
                parts[name], scale = quantize_channels(parts[name], group)
                parts[f"{name}_scale"] = scale if group else scale[..., 0]
        for name, array in parts.items():
            arrays[f"layers.{index}.{name}"] = contiguous(array, array.dtype.newbyteorder("<"))
    version = _FORMAT if all(group is None for *_, group in layers) else _FORMAT_INT8
    document = {"format": version, "stack": stack, "layers": [spec_to_json(spec) for spec, *_ in layers]}
    tensors = {
        name: safetensors.TensorSpec(
            dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in arrays.items()
    }
    metadata = {_KEY: json.dumps(document, allow_nan=False)}
    return bytes(safetensors.serialize(tensors, metadata=metadata))


def read_metadata(path: Opened) -> Mapping[str, Any]:
    """Read a file's metadata first, because the package accepts headers of 100 MB with any depth."""
    with path.stream() as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(min(length, LARGEST_TEXT + 1))
    try:
        header = parse_json(text)
        metadata = header.get("__metadata__") or {} if isinstance(header, dict) else None
    except ValueError as error:
        raise FormatError(f"{path}: not a safetensors file, or truncated ({error})") from error
    if not isinstance(metadata, dict):
        raise FormatError(f"{path}: not a safetensors file (the metadata is not a mapping)")
    return metadata


def read_layers(path: str | os.PathLike[str]) -> GRU | Stack:
    """Read the layer or stack in a file."""
    path = open_file("path", path)
    with needs_extra("safetensors", "safetensors", str(path)):
        import safetensors
    metadata = read_metadata(path)
    with path.stream() as file:
        data = file.readall()
    # The package's stubs have no type for this function.
    deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
    try:
        found = dict(deserialize(data))
    except (safetensors.SafetensorError, ValueError) as error:
        raise FormatError(f"{path}: not a safetensors file, or truncated ({error})") from error
    if _KEY not in metadata:
        raise FormatError(f"{path}: no {_KEY!r} in its metadata, so the meaning of its tensors is unknown")
    try:
        with prefixed_errors(f"metadata {_KEY!r}: "):
            specs, stack = _read_document(metadata[_KEY])
        return _layers(specs, stack, found)
    except SpecError as error:
        raise FormatError(f"{path}: {error}") from error.__cause__


def _layers(specs: Sequence[Spec], stack: bool, found: Mapping[str, Mapping[str, Any]]) -> GRU | Stack:
    """Create the layer or stack from the metadata and the tensors; raises SpecError."""
    wanted = {f"layers.{index}.{name}" for index in range(len(specs)) for name in "WRB"}
    scaled = {name for name in wanted if name in found and found[name]["dtype"] == "I8" and name[-1] != "B"}
    wanted |= {f"{name}_scale" for name in scaled}
    if wanted != found.keys():
        missing, spare = sorted(wanted - found.keys()), sorted(found.keys() - wanted)
        raise SpecError(
            f"tensor {missing[0]!r}: missing" if missing else f"tensor {spare[0]!r}: belongs to no layer"
        )
    layers = []
    for index, spec in enumerate(specs):
        with prefixed_errors(f"layer {index}: "):
            W, R, B = (_weight(found, f"layers.{index}.{name}") for name in "WRB")
            layers.append(GRU.from_canonical(spec, Weights(W, R, B)))
    if stack:
        return Stack(layers)
    if len(layers) != 1:
        raise SpecError(f"{count(len(layers), 'layer')} without a stack; must be 1")
    return layers[0]


def _weight(found: Mapping[str, Mapping[str, Any]], name: str) -> Array:
    """Read a weight and dequantize it if it is int8."""
    if f"{name}_scale" not in found:
        return _array(found[name])
    q, scale = np.frombuffer(found[name]["data"], np.int8), _array(found[f"{name}_scale"])
    q = q.reshape(found[name]["shape"])
    if scale.dtype != np.float32 or scale.shape[:2] != q.shape[:2]:
        what = f"{scale.dtype.name} {list(scale.shape)}"
        wanted = f"float32 {list(q.shape[:2])} or [D, 3H, groups]"
        raise SpecError(f"tensor '{name}_scale': {what}; must be {wanted}, like {name!r}")
    if q.ndim != 3:
        return q.astype(np.float32)  # the layer rejects the shape
    scales = scale if scale.ndim == 3 else scale[..., None]
    K = q.shape[2]
    for group in map(group_size, filter(is_int8, WEIGHT_STORAGES)):
        if scales.ndim == 3 and scales.shape[2] == (-(-K // group) if group else 1):
            with default_float_mode(), np.errstate(over="ignore", invalid="ignore"):
                return dequantized(q, scales, group)
    raise SpecError(f"tensor '{name}_scale': shape {list(scale.shape)}; must match a supported group size")


def _array(tensor: Mapping[str, Any]) -> Array:
    dtype = _ELEMENT_TYPES.get(tensor["dtype"])
    if dtype is None:
        raise SpecError(f"tensors of type {tensor['dtype']}; must be one of {', '.join(_ELEMENT_TYPES)}")
    array = np.frombuffer(tensor["data"], numpy_dtype(dtype).newbyteorder("<"))
    return array.reshape(tensor["shape"]).astype(numpy_dtype(dtype), copy=False)


# The Spec as JSON


def _read_document(text: str) -> tuple[list[Spec], bool]:
    try:
        document = parse_json(text)
    except ValueError as error:
        raise SpecError(f"not JSON ({error})") from error
    if not isinstance(document, dict):
        raise SpecError("must be a JSON object")
    version = document.get("format")
    if type(version) is not int or version not in (_FORMAT, _FORMAT_INT8):
        raise SpecError(f"format {version!r}; must be {_FORMAT} or {_FORMAT_INT8}")
    if document.keys() != {"format", "stack", "layers"}:
        raise SpecError(f"has {', '.join(document)}; must have format, stack, layers")
    layers, stack = document["layers"], document["stack"]
    if not isinstance(layers, list) or not layers or type(stack) is not bool:
        raise SpecError("layers must be a non-empty list, and stack must be true or false")
    specs = []
    for index, item in enumerate(layers):
        with prefixed_errors(f"layer {index}: "):
            specs.append(spec_from_json(item))
    return specs, stack
