"""Files that somebody broke, by accident or on purpose: in their bytes, or in what their format is made of.

Each function draws what it changes only from the random numbers, so that a seed gives the same file again.
"""

from __future__ import annotations

import copy
import io
import json
import math
import re
import struct
import warnings
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from onnx import ModelProto, TensorProto

from tests.fuzz.corpus import Files, corpus

__all__ = ["HARM", "SECRET", "changed", "mutated"]

#: A file outside the folder of each case, which nothing may open.
SECRET = "../secret.bin"

#: A folder that no file may come to make, and the pickle that does.
HARM = "harmed"
_HARMFUL = b"cos\nmkdir\n(S'" + HARM.encode() + b"'\ntR."

_LARGE = (255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1)
_INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, *_LARGE)
_PATHS = (SECRET, "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "..", "*/_ORT_MEM_ADDR_/", "m.data")
_VALUES = ("", "9" * 30, "1e999", "nan", "?", "...", "1..8", "\0", "é\ud7ff", "%s", "x" * 5000)
_NAMES = ("GRU", "GRUCell", "Loop", "Const", "Relu", "f32", "bf16", "string", "forward", "X", "Y", "W")
_WORDS = (*_VALUES, *_NAMES, *_PATHS)
_ODD: tuple[Any, ...] = (None, True, "x", [], {}, [[]], {"a": 1}, [1, 2], 1.5, math.nan, 2**70, *_INTEGERS)


def mutated(rng: Random, kind: str) -> Files:
    """Files of this kind, from one to three changes away from files that are whole."""
    files = rng.choice(corpus(kind))
    for _ in range(rng.choice((1, 1, 2, 3))):
        files = changed(rng, kind, files)
    return files


def changed(rng: Random, kind: str, files: Files) -> Files:
    """One change away from these files."""
    name = next(iter(files))
    if kind == "bin":
        name = name.replace(".xml", ".bin")
    if "m.data" in files and rng.random() < 0.2:
        return {**files, "m.data": _bytes(rng, files["m.data"])}
    if kind == "json" and rng.random() < 0.4:  # one of the files that it names
        name = rng.choice([*files][1:])
        return {**files, name: _changed(rng, "safetensors", files[name])}
    if rng.random() < 0.75:
        return {**files, name: _changed(rng, kind, files[name])}
    return {**files, name: _bytes(rng, files[name], rng.choice(corpus(kind)).get(name, b""))}


def _changed(rng: Random, kind: str, data: bytes) -> bytes:
    """Change a file as its format has it; where it can't be read as such any more, its bytes."""
    try:
        return _CHANGES.get(kind, _bytes)(rng, data)
    except Exception:  # whatever the readers stumble over
        return _bytes(rng, data)


def _bytes(rng: Random, data: bytes, other: bytes = b"") -> bytes:
    """Change bits, bytes, integers; leave out, double, exchange chunks; go on as another file."""
    out = bytearray(data or rng.randbytes(64))
    at, to = rng.randrange(len(out)), rng.randrange(len(out))
    length = min(rng.choice((1, 2, 4, 8, 16, 64, 256)), len(out) - at)
    chunk = out[at : at + length]
    match rng.randrange(8):
        case 0:
            out[at] ^= 1 << rng.randrange(8)
        case 1:
            out[at] = rng.randrange(256)
        case 2:
            del out[at : at + length]
        case 3:
            out[at:at] = rng.choice((chunk, chunk * 50, rng.randbytes(length)))
        case 4:
            out[to : to + length], out[at : at + length] = chunk, out[to : to + length]
        case 5 | 6:
            size = rng.choice((1, 2, 4, 8))
            number = (rng.choice(_INTEGERS) % 256**size).to_bytes(size, "little")
            out[at : at + size] = rng.choice((number, number[::-1]))
        case _:
            out[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(out)


def _text(rng: Random, text: str, others: Sequence[str]) -> str:
    """Another text: another number in it, one of the file's own in such a place, or one known for trouble."""
    numbers = list(re.finditer("[0-9]+", text))
    if numbers and rng.random() < 0.5:
        start, end = rng.choice(numbers).span()
        return text[:start] + str(rng.choice(_INTEGERS)) + text[end:]
    return rng.choice(others) if others and rng.random() < 0.5 else rng.choice(_WORDS)


# XML and protocol buffers: trees


def _xml(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.02:
        entities = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "lol"}">' for i in range(9))
        return f"<!DOCTYPE net [{entities}]><net>&e8;</net>".encode()
    if rng.random() < 0.01:
        depth = rng.choice((190, 1000, 100_000))
        return data.replace(b"<layers>", b"<layers>" + b"<a>" * depth + b"</a>" * depth)
    root = ET.fromstring(data)
    elements = list(root.iter())
    element, parent = rng.choice(elements), rng.choice([item for item in elements if len(item)])
    key = rng.choice(sorted(element.attrib) or [""])
    match rng.randrange(8):
        case 0:
            parent.remove(rng.choice(list(parent)))
        case 1:
            rng.choice([parent, element]).append(copy.deepcopy(rng.choice(list(parent))))
        case 2 if element.attrib:
            rng.choice(elements).set(key, element.attrib.pop(key))
        case 3:
            element.text = _text(rng, element.text or "", ["2", "5"])
        case _ if element.attrib:
            others = [item.attrib[key] for item in elements if key in item.attrib]
            element.set(key, _text(rng, element.attrib[key], others))
    return ET.tostring(root)


def _message(rng: Random, data: bytes, root: Any) -> bytes:
    """Change one field of a message, or of one within it."""
    root.ParseFromString(data)
    messages = [root]
    for message in messages:  # grows while it is walked
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                messages += [value] if hasattr(value, "ListFields") else list(value)
    message = rng.choice(messages)
    present = [field for field, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.85 else list(message.DESCRIPTOR.fields))
    value = getattr(message, field.name)
    if field.type == field.TYPE_MESSAGE:
        # As bytes: a message may be copied into itself.
        alike = [
            b"",
            *(item.SerializeToString() for item in messages if item.DESCRIPTOR is field.message_type),
        ]
        if not hasattr(value, "add"):
            message.ClearField(field.name)
            getattr(message, field.name).ParseFromString(rng.choice(alike))
        elif len(value) and rng.random() < 0.6:
            index = rng.randrange(len(value))
            del value[index : index + rng.choice((1, 1, 2))]
        else:
            value.add().ParseFromString(rng.choice(alike))
            value.sort(key=lambda item: rng.random())
        return bytes(root.SerializeToString(deterministic=True))
    near = [getattr(item, field.name) for item in messages if item.DESCRIPTOR is message.DESCRIPTOR]
    if not hasattr(value, "extend"):
        message.ClearField(field.name)
        if rng.random() < 0.85:
            setattr(message, field.name, _scalar(rng, field, value, near))
    else:
        index = rng.randrange(len(value) + 1)
        del value[index : index + rng.choice((0, 1, 1))]
        if rng.random() < 0.75:
            items = [item for each in near for item in each]
            value.insert(index, _scalar(rng, field, rng.choice(items) if items else None, items))
    return bytes(root.SerializeToString(deterministic=True))


def _scalar(rng: Random, field: Any, value: Any, near: Sequence[Any]) -> Any:
    if near and rng.random() < 0.3:
        return rng.choice(near)
    if field.type == field.TYPE_BYTES:
        return _bytes(rng, bytes(value or b""))
    if field.type == field.TYPE_STRING:
        return _text(rng, str(value or ""), near)
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e-45, 3e38, math.inf, -math.inf, math.nan))
    bits = 31 if field.cpp_type == field.CPPTYPE_INT32 else 63
    least = 0 if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else -(2**bits)
    return min(max(rng.choice((*range(28), *_INTEGERS)), least), 2**bits - 1)


# JSON, and what has some within


def _json(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.03:
        depth = rng.choice((100, 1000, 100_000))
        return rng.choice((b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth + b"]" * depth))
    content = [json.loads(data)]
    holders: list[Any] = [content]
    for holder in holders:  # grows while it is walked
        items = holder.values() if isinstance(holder, dict) else holder
        holders += [item for item in items if isinstance(item, dict | list)]
    holder = rng.choice([holder for holder in holders if holder])
    key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.randrange(5):
        case 0 if holder is not content:
            del holder[key]
        case 1:
            holder[key] = copy.deepcopy(rng.choice(holders[1:] or [None]))
        case 2 if isinstance(holder[key], str):
            holder[key] = _text(rng, holder[key], [])
        case _:
            holder[key] = rng.choice(_ODD)
    return json.dumps(content[0]).encode()


def _safetensors(rng: Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.1:
        return struct.pack("<Q", rng.choice(_INTEGERS) % 2**64) + data[8:]
    document = json.loads(header)
    own = document.get("__metadata__", {}).get("onegru")
    if own is not None and rng.random() < 0.6:
        document["__metadata__"]["onegru"] = _changed(rng, "json", own.encode()).decode(errors="replace")
        header = json.dumps(document).encode()
    else:
        header = _changed(rng, "json", header)
    return struct.pack("<Q", len(header)) + header + body


def _hdf5(rng: Random, data: bytes) -> bytes:
    """Change an attribute, or put a link or another array in an object's place."""
    import h5py

    stream = io.BytesIO(data)
    with h5py.File(stream, "a") as file:
        names = ["/"]
        file.visit(names.append)
        node = file[rng.choice(names)]
        if len(node.attrs) and rng.random() < 0.7:
            key = rng.choice(list(node.attrs))
            value = node.attrs[key]
            if isinstance(value, str) and value.startswith("{"):
                node.attrs[key] = _changed(rng, "json", value.encode()).decode(errors="replace")
            else:
                node.attrs[key] = rng.choice(
                    ("3.0", "2.15.0", "../a", 3, [1.5, 2.5], [b"a", b"b"], "m" * 60_000)
                )
        else:
            name = node.name
            del file[name]
            match rng.randrange(4):
                case 0:
                    file[name] = h5py.SoftLink(rng.choice(names))
                case 1:
                    file[name] = h5py.ExternalLink(SECRET, "/x")
                case 2:
                    shape = rng.choice(((0,), (2**40,), (5, 9), (2**20, 2**20)))
                    file.create_dataset(
                        name, shape, rng.choice(("f4", "f8", "S3")), chunks=rng.choice((None, True))
                    )
    return stream.getvalue()


# Archives, arrays, pickles


def _zip(rng: Random, data: bytes) -> bytes:
    """Change a member of an archive, or how the archive has it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    index, packed = rng.randrange(len(members)), zipfile.ZIP_STORED
    name, content = members[index]
    choice = rng.random()
    if choice < 0.1:
        members[index : index + 1] = rng.choice(([], [members[index]] * 2))
    elif choice < 0.2:
        members[index] = (rng.choice((*_PATHS, members[0][0], name + "/", "../" + name)), content)
    elif choice < 0.3:
        packed = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    elif choice > 0.31:
        members[index] = (name, _changed(rng, name.rpartition(".")[2], content))
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")  # a name that appears twice is what we want
        for key, item in members:
            archive.writestr(zipfile.ZipInfo(key), item, packed)
        if 0.3 <= choice <= 0.31:
            _add_bomb(rng, archive, name, content)
    return stream.getvalue()


def _add_bomb(rng: Random, archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a member of 1.5 GiB, nearly all of it one block again and again, in 2 MB."""
    if name.endswith(".npy"):
        content = _npy_header("'<f4'", "False", str((3 << 27,)))
    packer = zlib.compressobj(wbits=-15)
    start = packer.compress(content[:-1]) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(rng.choice((b"\0\0", b"[[", b"  ", b"1,")) * 2**19) + packer.flush(
        zlib.Z_FULL_FLUSH
    )
    info = zipfile.ZipInfo(name)
    archive.writestr(info, start + block * 1536 + b"\3\0")
    # The directory, which is written last, has the word.
    info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, (3 << 29) + len(content) - 1


def _npy(rng: Random, data: bytes) -> bytes:
    """Another header: type, order, shape."""
    body = data[10 + int.from_bytes(data[8:10], "little") :]
    types = (
        "<f4",
        ">f4",
        "<f8",
        "<i8",
        "|O",
        "|V0",
        "<U1000000",
        "|S0",
        "<M8[s]",
        "|b1",
        "<c16",
        "f4, O",
        "<f4,<f4",
    )
    descr = rng.choice((repr("<f4"), repr(rng.choice(types)), "[('a', '<f4', (2,))]", "[]", "None"))
    sizes = [rng.choice((2, 4, 5, *_INTEGERS)) for _ in range(rng.choice((0, 1, 2, 3, 3, 40)))]
    shape = rng.choice(
        ("(4, 2, 5)", *[str(tuple(sizes))] * 3, repr(sizes), "(" * 200 + ")" * 200, "(1e3,)", "None")
    )
    if "O" in descr and rng.random() < 0.7:
        body = _HARMFUL
    order = rng.choice(("False", "False", "True", "1", "None"))
    return _npy_header(descr, order, shape, rng.choice((1, 1, 2, 3, 9))) + body


def _npy_header(descr: str, order: str, shape: str, version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return (
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header
    )


def _pt(rng: Random, data: bytes) -> bytes:
    return _zip(rng, data) if data[:2] == b"PK" else _pickle(rng, data)


def _pickle(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    inserts = (
        _HARMFUL[:-1],
        _HARMFUL,
        b"(" * 5000,
        b"]" * 5000,
        b"\x8c\x02os\x8c\x06system\x93",
        b"J\xff\xff\xff\x7f",
    )
    return data[:at] + rng.choice(inserts) + data[at:] if rng.random() < 0.3 else _bytes(rng, data)


_CHANGES: Mapping[str, Callable[[Random, bytes], bytes]] = {
    "onnx": lambda rng, data: _message(rng, data, ModelProto()),
    "pb": lambda rng, data: _message(rng, data, TensorProto()),
    "xml": _xml,
    "json": _json,
    "safetensors": _safetensors,
    "h5": _hdf5,
    "keras": _zip,
    "npz": _zip,
    "npy": _npy,
    "pt": _pt,
    "pkl": _pickle,
}
