"""Read files of `torch.save` without PyTorch and without running code.

A pickle is a program that can call any function. Here `pickletools` reads its instructions, which create only
containers, plain values and tensors; anything else becomes `Unknown`. No function is called, and no
instruction needs more memory than the size of the file.
"""

from __future__ import annotations

import functools
import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import IO, Any

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import FormatError, OneGRUError
from onegru.formats.opened import LEGACY_PYTORCH, Opened
from onegru.formats.zip_file import open_zip, read_member
from onegru.system.bounded import LARGEST_TEXT

# Limit of instructions in a pickle. A tensor needs about 60; a million take about a second.
_MOST_INSTRUCTIONS = 4_000_000

# Types of storages by PyTorch's names: the bytes per element, and the type if it is floating-point.
_STORAGES: Mapping[str, tuple[int, str | None]] = {
    "HalfStorage": (2, "float16"),
    "BFloat16Storage": (2, "bfloat16"),
    "FloatStorage": (4, "float32"),
    "DoubleStorage": (8, "float64"),
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage", "UntypedStorage"), (1, None)),
    **dict.fromkeys(("QInt8Storage", "QUInt8Storage"), (1, None)),
    "ShortStorage": (2, None),
    **dict.fromkeys(("IntStorage", "QInt32Storage"), (4, None)),
    **dict.fromkeys(("LongStorage", "ComplexFloatStorage"), (8, None)),
    "ComplexDoubleStorage": (16, None),
}


@dataclass(frozen=True, slots=True)
class Unknown:
    """Object in a file that is neither a plain value nor a tensor."""

    name: str  # of its class or function
    arguments: tuple[Any, ...] = field(default=(), compare=False, repr=False)  # the arguments of its call
    # its attributes that have names
    state: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_module(self) -> bool:
        """Whether it is a PyTorch module, or an instance of a subclass."""
        return all(isinstance(self.state.get(name), dict) for name in ("_parameters", "_modules"))


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """Tensor whose values are read on demand."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    _fetch: Callable[[_Storage], Array]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * _STORAGES[self.storage.kind][0]

    def numbers(self) -> Array:
        """Return its values, a view of the storage in memory."""
        if _STORAGES[self.storage.kind][1] is None:
            raise ValueError(f"a {self.storage.kind}; must have a floating-point type")
        last = self.offset + sum(
            (size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)
        )
        count = math.prod(self.shape)
        if count > self.storage.count or (count and last >= self.storage.count):
            raise ValueError(f"shape {list(self.shape)}; the file does not contain all values")
        whole = self._fetch(self.storage)
        strides = [step * whole.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(whole[self.offset if count else 0 :], self.shape, strides)


def read_torch(path: Opened) -> tuple[object, int]:
    """Return the content of a file (containers, plain values, `Tensor` and `Unknown`) and its size."""
    try:
        with path.stream() as file:
            is_legacy = file.read(len(LEGACY_PYTORCH)) == LEGACY_PYTORCH
        return (_read_legacy(path) if is_legacy else _read_zip(path)), path.size
    except (OneGRUError, OSError):
        raise
    except Exception as error:  # zipfile, pickletools and bad instructions raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(f"{path}: not a file that torch.save wrote, or broken ({reason})") from error


def _read_zip(path: Opened) -> object:
    with open_zip(path) as archive:
        names = set(archive.namelist())
        texts = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(texts) != 1:
            raise ValueError(f"contains {'no' if not texts else 'more than one'} data.pkl")
        folder = texts[0].removesuffix("data.pkl")
        if f"{folder}constants.pkl" in names:
            raise FormatError(f"{path}: a TorchScript program; must be a state dict from torch.save")
        order = "little"
        if f"{folder}byteorder" in names:
            order = read_member(path, archive, f"{folder}byteorder", 10).decode()
        content = read_member(path, archive, texts[0])

    def fetch(storage: _Storage) -> bytearray:
        with open_zip(path) as archive:
            info = archive.getinfo(f"{folder}data/{storage.key}")
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != _size(storage):
                raise ValueError(f"storage {storage.key!r} has a different size than the file states")
            data = bytearray(info.file_size)
            with archive.open(info) as member:
                offset = 0
                while part := member.read(1 << 20):
                    data[offset : offset + len(part)] = part
                    offset += len(part)
            return data

    return _Machine(_cached(fetch, order)).run(io.BytesIO(content))


def _read_legacy(path: Opened) -> object:
    """Read four pickles, the last with the content, then a pickle with the storage keys, and the storages."""
    with path.stream() as file:
        head = io.BytesIO(file.read(LARGEST_TEXT))
    offsets: dict[str, int] = {}

    def fetch(storage: _Storage) -> bytearray:
        data = bytearray(_size(storage))
        with path.stream() as file:
            file.seek(offsets[storage.key])
            if file.readinto(data) != len(data):
                raise ValueError(f"storage {storage.key!r} truncated")
        return data

    facts = [_Machine(None).run(head) for _ in range(3)][2]
    order = "little" if not isinstance(facts, dict) or facts.get("little_endian", True) else "big"
    machine = _Machine(_cached(fetch, order))
    content = machine.run(head)
    keys = _Machine(None).run(head)
    if not isinstance(keys, list):
        raise ValueError("no list of storages")
    offset = head.tell()
    for key in keys:
        offsets[key] = offset + 8
        offset += 8 + _size(machine.storages[key])
    if offset != path.size:
        raise ValueError("storages have a different size than the file states")
    return content


def _size(storage: _Storage) -> int:
    return storage.count * _STORAGES[storage.kind][0]


def _cached(fetch: Callable[[_Storage], bytearray], order: str) -> Callable[[_Storage], Array]:
    """Return a function that reads each storage once."""

    @functools.cache
    def numbers(storage: _Storage) -> Array:
        size, name = _STORAGES[storage.kind]
        assert name is not None, "checked by the tensor"
        array = np.frombuffer(fetch(storage), f"{'<' if order == 'little' else '>'}u{size}")
        return array.astype(array.dtype.newbyteorder("="), copy=False).view(numpy_dtype(name))

    return numbers


class _Machine:
    """Interpreter of a pickle's instructions that create containers, plain values and tensors."""

    def __init__(self, fetch: Callable[[_Storage], Array] | None) -> None:
        self._fetch = fetch
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._left = _MOST_INSTRUCTIONS
        self.storages: dict[str, _Storage] = {}

    def run(self, file: IO[bytes]) -> object:
        """Return the value of the pickle that starts here."""
        for opcode, argument, _ in pickletools.genops(file):
            self._spend(1)
            if opcode.name in _PLAIN:
                self._stack.append(argument)
            elif opcode.name in _VALUES:
                self._stack.append(_VALUES[opcode.name]())
            elif opcode.name == "STOP":
                return self._stack.pop()
            elif opcode.name not in ("PROTO", "FRAME"):
                self._step(opcode.name, argument)
        raise ValueError("a pickle without a STOP instruction")

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"more than {_MOST_INSTRUCTIONS} instructions")

    def _step(self, name: str, argument: Any) -> None:
        stack, memo = self._stack, self._memo
        match name:
            case "MARK":
                self._marks.append(len(stack))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self._pop_to_mark()
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "LIST" | "FROZENSET":
                stack.append(self._pop_to_mark())
            case "APPEND" | "APPENDS" | "ADDITEMS":
                items = [stack.pop()] if name == "APPEND" else self._pop_to_mark()
                _fill(stack[-1], list, items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _fill(stack[-1], dict, [(key, value)])
            case "SETITEMS" | "DICT":
                items = self._pop_to_mark()
                if name == "DICT":
                    stack.append({})
                _fill(stack[-1], dict, zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                stack.append(Unknown(str(argument).replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                own, module = stack.pop(), stack.pop()
                stack.append(Unknown(f"{module}.{own}" if isinstance(own, str) else "?"))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call_result(function, arguments))
            case "NEWOBJ_EX":
                function = stack[-3]
                stack[-3:] = [Unknown(function.name if isinstance(function, Unknown) else "?")]
            case "BUILD":
                state, made = stack.pop(), stack[-1]
                if isinstance(made, Unknown):  # attributes; those of plain values do not matter
                    _fill(made.state, dict, state.items() if isinstance(state, dict) else [("", state)])
            case "BINPERSID":
                stack.append(self._storage(stack.pop()))
            case _:
                raise ValueError(f"unsupported instruction {name}")

    def _pop_to_mark(self) -> list[Any]:
        """Pop the items above the last mark."""
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _storage(self, value: Any) -> object:
        """Return the object of a persistent id."""
        if isinstance(value, tuple) and value[:1] == ("module",) and len(value) > 1:
            return value[1]  # a class with its source, from old versions
        kind, key, _, count = value[1:5]
        view = value[5] if len(value) > 5 else None
        own = kind.name.removeprefix("torch.storage.").removeprefix("torch.")
        fits = isinstance(key, str) and type(count) is int and count >= 0 and value[0] == "storage"
        if own not in _STORAGES or not fits or view is not None:
            return Unknown(kind.name)
        storage = _Storage(key, own, count)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"storage {key!r} has two types")
        return storage

    def _call_result(self, function: Any, arguments: Any) -> object:
        """Return the result of a known call, otherwise `Unknown`."""
        name = function.name if isinstance(function, Unknown) else "?"
        if not isinstance(arguments, tuple):
            return Unknown(name)
        if name == "copyreg._reconstructor" and arguments and isinstance(arguments[0], Unknown):
            return Unknown(arguments[0].name)
        match name, arguments:
            case ("collections.OrderedDict" | "collections.defaultdict", ()):
                return {}
            case "collections.defaultdict", (_,):
                return {}
            case "collections.OrderedDict", (list() as pairs,):  # Python 2's
                self._spend(len(pairs))
                made: dict[Any, Any] = {}
                _fill(made, dict, pairs)
                return made
            case "torch.Size", (tuple() as sizes,):
                return sizes
            case (
                "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state",
                (Tensor() as tensor, *_),
            ):
                return tensor
            case "torch._tensor._rebuild_from_type_v2", (Unknown() as inner, Unknown() as kind, given, _):
                if kind.name in ("torch.Tensor", "torch.nn.parameter.Parameter") and inner != function:
                    return self._call_result(inner, given)
            case "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor", (_Storage(), *_):
                return self._tensor(*arguments) or Unknown(name)
            case "_codecs.encode", (str() as text, "latin1"):
                return text.encode("latin1", "replace")
        return Unknown(name, arguments)

    def _tensor(self, storage: _Storage, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor | None:
        numbers = (offset, *shape, *strides)
        if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
            return None
        is_other = len(rest) > 2 and bool(rest[2])  # lazy operations, such as negation
        if len(shape) != len(strides) or len(shape) > 16 or is_other or self._fetch is None:
            return None
        return Tensor(storage, offset, tuple(shape), tuple(strides), self._fetch)


def _fill(container: Any, kind: type[Any], items: Any) -> None:
    """Add items to a container of this kind; ignore unknown objects."""
    if isinstance(container, Unknown):
        return
    if not isinstance(container, kind):
        raise ValueError(f"items for a {type(container).__name__}")
    if kind is list:
        container.extend(items)
    else:  # other keys must not be hashed: the hash of a deeply nested tuple recurses
        known = (
            (key if isinstance(key, _KEYS) else Unknown(type(key).__name__), value) for key, value in items
        )
        container.update(known)


_KEYS = (str, bytes, int, float, bool, NoneType)


def array_of(made: Unknown) -> Array | None:
    """Read a NumPy array from an unknown object; None unless it is a C-contiguous float array."""
    state, types = made.state.get(""), {"f2": "float16", "f4": "float32", "f8": "float64"}
    if not made.name.endswith("multiarray._reconstruct") or not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, dtype, is_fortran, data = state
    if not isinstance(dtype, Unknown) or dtype.name != "numpy.dtype" or dtype.arguments[:1] == ():
        return None
    kind, order = types.get(str(dtype.arguments[0])), dtype.state.get("", (0, "<"))
    if kind is None or is_fortran or not isinstance(data, bytes) or not isinstance(shape, tuple):
        return None
    if any(type(size) is not int or size < 0 for size in shape) or len(shape) > 16:
        return None
    swapped = np.dtype(kind).newbyteorder(">" if order[1:2] == (">",) else "<")
    if math.prod(shape) * swapped.itemsize != len(data):
        return None
    return np.frombuffer(data, swapped).reshape(shape).astype(kind)


# Instructions whose argument is the value, then instructions with a fixed value.
_PLAIN = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_PLAIN |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"}
_PLAIN |= {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_VALUES: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_DICT": dict,
}
