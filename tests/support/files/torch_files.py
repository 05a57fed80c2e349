"""Write PyTorch checkpoints without PyTorch."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import Array

PROTO, STOP = b"\x80\x02", b"."


@dataclass(frozen=True)
class Global:
    """Name that a pickle would import."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    function: Global
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Raw:
    """Raw instructions of a pickle."""

    data: bytes


@dataclass
class Writer:
    """Writer of a pickle of plain values, arrays as tensors, and the above; it keeps the storages."""

    legacy: bool = False
    byteorder: str = "<"
    storages: list[tuple[str, bytes, int]] = field(default_factory=list)

    def pickle(self, value: Any) -> bytes:
        return PROTO + self.part(value) + STOP

    def part(self, value: Any) -> bytes:
        match value:
            case Raw():
                return value.data
            case None | True | False:
                return {None: b"N", True: b"\x88", False: b"\x89"}[value]
            case int():
                return b"\x8a\x0a" + value.to_bytes(10, "little", signed=True)
            case float():
                return b"G" + struct.pack(">d", value)
            case str():
                return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
            case tuple():
                return b"(" + b"".join(map(self.part, value)) + b"t"
            case list():
                return b"](" + b"".join(map(self.part, value)) + b"e"
            case Mapping():
                return (
                    b"}(" + b"".join(self.part(key) + self.part(item) for key, item in value.items()) + b"u"
                )
            case Global():
                return f"c{value.module}\n{value.name}\n".encode()
            case Call():
                return self.part(value.function) + self.part(value.arguments) + b"R"
            case np.ndarray():
                return self.part(self.tensor(value))
        raise TypeError(type(value))

    def storage(self, array: Array) -> Raw:
        """Return a storage of all values of an array."""
        kind = {
            "float16": "Half",
            "bfloat16": "BFloat16",
            "float32": "Float",
            "float64": "Double",
            "int64": "Long",
        }
        key = str(len(self.storages))
        data = array.view(f"u{array.itemsize}").astype(f"{self.byteorder}u{array.itemsize}").tobytes()
        self.storages.append((key, data, array.size))
        facts = ("storage", Global("torch", f"{kind[array.dtype.name]}Storage"), key, "cpu", array.size)
        return Raw(self.part((*facts, None) if self.legacy else facts) + b"Q")

    def tensor(self, array: Array) -> Call:
        steps = tuple(step // array.itemsize for step in np.zeros(array.shape, array.dtype).strides)
        return self.view(self.storage(array), 0, array.shape, steps)

    def view(self, storage: Raw, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Call:
        hooks = Call(Global("collections", "OrderedDict"), ())
        arguments = (storage, offset, shape, strides, False, hooks)
        return Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments)

    def write(self, path: Path, content: Any) -> Path:
        """Write a checkpoint with this content."""
        pickle = self.pickle(content)
        if self.legacy:
            order = self.byteorder == "<"
            parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": order}]
            keys = [key for key, _, _ in self.storages]
            data = b"".join(map(self.pickle, parts)) + pickle + self.pickle(keys)
            data += b"".join(count.to_bytes(8, "little") + content for _, content, count in self.storages)
            path.write_bytes(data)
            return path
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle)
            archive.writestr("archive/byteorder", "little" if self.byteorder == "<" else "big")
            for key, data, _ in self.storages:
                archive.writestr(f"archive/data/{key}", data)
            archive.writestr("archive/version", "3\n")
        return path


def write_checkpoint(path: Path, content: Any, **options: Any) -> Path:
    return Writer(**options).write(path, content)
