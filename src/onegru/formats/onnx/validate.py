"""Parse and validate untrusted .onnx files.

In the resulting ModelProto, names are text, tensors have the stated sizes, and external data are inside the
model's folder.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Container, Iterable, Iterator, MutableSequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto
from onnx import ModelProto as ModelProto  # for type annotations elsewhere

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, SpecError
from onegru.formats.opened import Opened
from onegru.operators.onnx import AUGRU, AUGRU_DOMAINS
from onegru.system.bounded import file_version

#: ONNX Runtime's name for the folder of a session's external data.
FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a model."""

    name: str  # its name in messages
    folder: Path | None = None  # the folder that must contain its external data; None if it may have none
    file: Path | None = None  # the file; None for a model in memory
    version: tuple[int, ...] = ()  # changes whenever the file is written
    # if its name is a link, the folder of the target. Links to external data may point there, as in the cache
    # of Hugging Face's hub
    target_folder: Path | None = None

    @classmethod
    def of(cls, file: Opened) -> Self:
        """Return the source for an opened file."""
        return cls.of_path(file.path, file.version)

    @classmethod
    def of_path(cls, path: Path, version: tuple[int, ...] = ()) -> Self:
        """Return the source for a file name."""
        target_folder = Path(os.path.realpath(path)).parent if path.is_symlink() else None
        return cls(str(path), path.parent, path, version, target_folder)

    def changed(self, path: Path) -> Source:
        """Return the source of the changed model for another file; external data stay in their folder."""
        return replace(self, name=str(path), file=None, version=())

    @property
    def is_unchanged(self) -> bool:
        """Whether it is a file that has not been written since."""
        try:
            return self.file is not None and file_version(self.file) == self.version
        except OSError:
            return False

    def error(self, message: str) -> FormatError:
        """Create a FormatError that names the file."""
        return FormatError(f"{self.name}: {message}")


#: A model, serialized and parsed.
Written = tuple[bytes, ModelProto]


def read_model(source: Source, data: bytes) -> ModelProto:
    """Parse and check a serialized model. External data are not read."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError is not in the public interface of every version
        if "depth" in str(error).lower():
            raise source.error("subgraphs are nested too deeply for protobuf") from error
        raise source.error(f"not an ONNX model, or truncated ({error})") from error
    if not model.HasField("graph"):
        raise source.error("contains no graph; not an ONNX model, or truncated")
    _check_text(source, model)
    for tensor in all_tensors(model):
        check_tensor(source, tensor)
    return model


def model_of(file: Opened) -> ModelProto:
    """Return a copy of the model in a file, which is parsed and checked only once."""
    return deepcopy(file.once(parse_file))


def parse_file(file: Opened) -> ModelProto:
    """Read the model in a file, for `Opened.once`."""
    return read_model(Source.of(file), file.data)


def serialized(source: Source, model: object, problem: str = "cannot be serialized") -> bytes:
    """Return the bytes of a ModelProto."""
    if not isinstance(model, ModelProto):
        raise SpecError.of("path", f"{type(model).__name__}; must be a ModelProto, bytes, or a file name")
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf's own
        raise source.error(f"{problem} ({error})") from error


def drop_named(field: MutableSequence[Any], names: Container[str]) -> None:
    """Remove the messages with these names from a repeated field."""
    for index in reversed(range(len(field))):
        if field[index].name in names:
            del field[index]


def is_onnx(thing: NodeProto | OperatorSetIdProto) -> bool:
    """Whether a node's operator, or an operator set, belongs to the ONNX standard."""
    return thing.domain in ("", "ai.onnx")


def trimmed(names: Iterable[str]) -> list[str]:
    """Return the inputs or outputs of a node without trailing absent ones."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def replace_nodes(owner: GraphProto | FunctionProto, nodes: Iterable[NodeProto]) -> None:
    """Replace the nodes of a graph or function; the new nodes can include old ones."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del owner.node[:]
    owner.node.extend(copies)


def is_gru(node: NodeProto) -> bool:
    """Whether a node is ONNX's GRU."""
    return node.op_type == "GRU" and is_onnx(node)


def is_augru(node: NodeProto) -> bool:
    """Whether a node is an AUGRU, onegru's operator for a GRU with attention."""
    return node.op_type == AUGRU.name and node.domain in AUGRU_DOMAINS


def is_augru_function(function: FunctionProto) -> bool:
    """Whether a function defines AUGRU nodes for other runtimes."""
    return function.name == AUGRU.name and function.domain in AUGRU_DOMAINS


def is_ours(node: NodeProto) -> bool:
    """Whether onegru runs a node."""
    return is_gru(node) or is_augru(node)


def describe(node: NodeProto) -> str:
    """Describe a node for messages."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    return f"{node.op_type} node with output {next(filter(None, node.output), '')!r}"


#: Attributes of these types contain only numbers or text, which `read_model` has checked.
PLAIN_TYPES = {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING}
PLAIN_TYPES |= {AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS}


def attribute_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """Iterate over the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type in PLAIN_TYPES:
            continue
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def element_type(code: int) -> np.dtype[Any] | None:
    """Return the element type with an ONNX code; None if there is none."""
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(code)
    except (KeyError, ValueError):
        return None


def to_array(source: Source, tensor: TensorProto) -> Array:
    """Return the values of a tensor, including external data."""
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = external_bytes(source, tensor)
        tensor = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw, name=tensor.name)
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # any error here is a defect of the tensor
        raise source.error(f"tensor {tensor.name!r}: cannot be read ({error})") from error


def external_files(source: Source, tensors: Iterable[TensorProto]) -> set[Path]:
    """Return the files with the data of external tensors."""
    return {external_location(source, tensor)[0] for tensor in tensors}


def external_tensors(model: ModelProto) -> list[TensorProto]:
    """Return the tensors of a model with external data."""
    return [tensor for tensor in all_tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def without_links(source: Source, data: bytes) -> tuple[bytes, Path | None]:
    """Return a serialized model and the folder of its external data, without links."""
    if source.folder is None or source.target_folder is None or b"location" not in data:
        return data, source.folder
    model = read_model(source, data)
    tensors = external_tensors(model)
    paths = [external_location(source, tensor)[0] for tensor in tensors]
    if all(path.is_relative_to(os.path.realpath(source.folder)) for path in paths):
        return data, source.folder
    for tensor, path in zip(tensors, paths, strict=True):
        if not path.is_relative_to(source.target_folder):
            raise source.error(
                f"tensor {tensor.name!r}: external data in another folder; must be the same folder for all"
            )
        (entry,) = (entry for entry in tensor.external_data if entry.key == "location")
        entry.value = str(path.relative_to(source.target_folder))
    return serialized(source, model), source.target_folder


def external_bytes(source: Source, tensor: TensorProto) -> bytes:
    """Return the bytes of a tensor with external data."""
    path, offset, length = external_location(source, tensor)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise source.error(
            f"tensor {tensor.name!r}: {path.name!r} cannot be read ({error.strerror})"
        ) from error


# Text

_PARTS = frozenset(("t", "g", "tp", "tensors", "graphs", "type_protos", "sparse_tensor", "sparse_tensors"))


def _check_text(source: Source, message: Message) -> None:
    """Raise FormatError if a string of a message is not UTF-8; protobuf returns such strings as bytes."""
    if isinstance(message, TensorProto):  # listing its fields would copy its values
        _check_strings(source, [message.name])
        for entry in message.external_data:
            _check_text(source, entry)
        return
    if isinstance(message, NodeProto) and not message.op_type:
        raise source.error("a node has no op_type; must have one")
    if isinstance(message, NodeProto) and message.op_type == "Einsum":
        _check_equation(source, message)
    is_plain = isinstance(message, AttributeProto) and message.type in PLAIN_TYPES
    for field, value in message.ListFields():
        if is_plain and field.name in _PARTS:
            raise source.error(f"attribute {message.name!r}: contains {field.name!r}, unlike its type")
        items = [value] if isinstance(value, Message | str | bytes) else value
        if field.type == field.TYPE_STRING:
            _check_strings(source, items)
        elif field.type == field.TYPE_MESSAGE:
            for item in items:
                _check_text(source, item)


def _check_equation(source: Source, node: NodeProto) -> None:
    """Reject an equation that makes onnx's shape inference loop forever."""
    for attribute in node.attribute:
        terms = attribute.s.replace(b"->", b",").replace(b" ", b"").split(b",")
        if attribute.name == "equation" and any(term.replace(b"...", b"", 1).count(b".") for term in terms):
            raise source.error(
                f"{describe(node)}: equation {attribute.s!r}; must have at most one ellipsis in a term"
            )


def _check_strings(source: Source, strings: Iterable[str | bytes]) -> None:
    for text in strings:
        if isinstance(text, bytes):
            raise source.error(f"{text!r}: not UTF-8; must be valid UTF-8")


# Tensors


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Iterate over all tensors of a model: in its graph, subgraphs, functions and attributes."""
    for owner in (model.graph, *model.functions):
        yield from _tensors_in(owner)


def _tensors_in(message: Message) -> Iterator[TensorProto]:
    if isinstance(message, TensorProto):  # without its fields, which would be copied
        yield message
    elif type(message) is not AttributeProto or message.type not in PLAIN_TYPES:
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                for part in (value,) if isinstance(value, Message) else value:
                    yield from _tensors_in(part)


def check_tensor(source: Source, tensor: TensorProto) -> None:
    """Raise FormatError if a tensor's data do not fit its shape, or its external data are missing."""
    if any(size < 0 for size in tensor.dims):
        raise source.error(f"tensor {tensor.name!r}: shape {list(tensor.dims)}; must not be negative")
    if tensor.HasField("segment"):
        raise source.error(f"tensor {tensor.name!r}: is a segment; must be a complete tensor")
    if tensor.data_location == TensorProto.EXTERNAL:
        path, offset, length = external_location(source, tensor)
        size = path.stat().st_size
        if offset + length > size:
            raise source.error(
                f"tensor {tensor.name!r}: external data end at byte {offset + length} of {path.name!r}, "
                f"which has {size}"
            )
        _check_size(source, tensor, length, _byte_count(source, tensor), "bytes")
    elif tensor.HasField("raw_data"):
        _check_size(source, tensor, len(tensor.raw_data), _byte_count(source, tensor), "bytes")
    else:
        bits = _bits(source, tensor)
        have = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
        # Complex numbers need two items; types smaller than a byte share one.
        parts = 2 if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else 1
        wanted = (math.prod(tensor.dims) * min(bits, 8) + 7) // 8 * parts
        _check_size(source, tensor, have, wanted, "values")


def _check_size(source: Source, tensor: TensorProto, have: int, wanted: int, unit: str) -> None:
    if have != wanted:
        shape = list(tensor.dims)
        raise source.error(f"tensor {tensor.name!r}: {have} {unit}; must be {wanted} for shape {shape}")


def _byte_count(source: Source, tensor: TensorProto) -> int:
    if tensor.data_type == TensorProto.STRING:
        raise source.error(f"tensor {tensor.name!r}: raw or external data of strings; must be numeric")
    return int(math.prod(tensor.dims) * _bits(source, tensor) + 7) // 8


def _bits(source: Source, tensor: TensorProto) -> int:
    """Return the number of bits of an element; 8 for a string."""
    dtype = element_type(tensor.data_type)
    if dtype is None:
        raise source.error(f"tensor {tensor.name!r}: unknown element type {tensor.data_type}")
    name = TensorProto.DataType.Name(tensor.data_type)
    if name.endswith(("INT4", "FLOAT4E2M1")):
        return 4
    if name.endswith("INT2"):
        return 2
    return 8 if name == "STRING" else dtype.itemsize * 8


def external_location(source: Source, tensor: TensorProto) -> tuple[Path, int, int]:
    """Return the file, offset and length of external data, and check that they are in the model's folder."""
    what = f"tensor {tensor.name!r}: external data"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data):
        raise source.error(f"{what} with a key that appears twice")
    path = _external_file(source, what, entries.get("location", ""))
    wanted = _byte_count(source, tensor)
    texts = entries.get("offset", "0"), entries.get("length", str(wanted))
    if any(re.fullmatch(r"-?[0-9]{1,99}", text) is None for text in texts):
        raise source.error(f"{what}: offset and length must be numbers")
    offset, length = map(int, texts)
    if offset < 0 or length < 0:
        raise source.error(f"{what}: offset {offset}, length {length}; must not be negative")
    return path, offset, length


def _external_file(source: Source, what: str, location: str) -> Path:
    if source.folder is None:
        raise source.error(
            f"{what} in {location!r}, but the model has no folder; load it from its file, or set the folder "
            f"in the session options ({FOLDER_OPTION})"
        )
    folder = Path(os.path.realpath(source.folder))
    if not location or "\0" in location:
        raise source.error(f"{what} without a location")
    # ONNX Runtime interprets some names with this prefix as addresses in its own memory.
    if location.startswith("*"):
        raise source.error(f"{what} in {location!r}, which is not a file")
    try:
        # Absolute paths are not accessed: on Windows, an access could contact another machine.
        absolute = Path(location).is_absolute()
        path = folder if absolute else Path(os.path.realpath(folder / location))
        inside = not absolute and path.is_relative_to(folder)
        if not (absolute or inside or source.target_folder is None):
            inside = ".." not in Path(location).parts and path.is_relative_to(source.target_folder)
        is_file = inside and path.is_file()
    except OSError as error:
        raise source.error(f"{what} in {location!r}, which cannot be read ({error.strerror})") from error
    if not inside:
        raise source.error(f"{what} in {location!r}, outside the model's folder")
    if not is_file:
        raise source.error(f"{what} in {location!r}, which is not a file")
    return path
