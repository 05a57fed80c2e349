"""Open files, and detect their kind from the content."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from onegru.core.arguments import file_path
from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.system.bounded import LARGEST_TEXT, check_regular, file_version


class Kind(Enum):
    """A kind of file: its description, its content for onegru, and a remedy for the user."""

    ONNX = "an ONNX model", "model"
    OPENVINO = "an OpenVINO IR", "model"
    PYTORCH = "a PyTorch checkpoint", "layers"
    SAFETENSORS = "a safetensors file", "layers"
    KERAS = (
        "a Keras model",
        "layers",
        "for the whole model, call model.export('x.onnx', format='onnx') in Keras with a fixed number of "
        "steps, then `onegru fuse`",
    )
    TORCHSCRIPT = (
        "a TorchScript program",
        "",
        "for its layers, run torch.save(torch.jit.load(…).state_dict(), 'x.pt')",
    )
    NPZ = "a NumPy .npz archive", "", "or pass its arrays to onegru.from_torch or onegru.from_keras"
    NPY = "a NumPy .npy array", ""
    PICKLE = "a pickle, which could run code", ""
    TFLITE = "a TensorFlow Lite model", "layers"
    GZIP = "a gzip file", ""
    ZIP = "a zip archive of another kind", ""
    LFS = "a Git LFS pointer instead of the file", "", "run `git lfs pull`"
    HTML = "a web page", ""
    JSON = "JSON text", ""
    EXPORTED = (
        "a torch.export program",
        "",
        "for its layers, run torch.save(torch.export.load(…).state_dict, 'x.pt')",
    )
    SAVED_MODEL = (
        "a TensorFlow SavedModel",
        "",
        "convert its folder with `python -m tf2onnx.convert --saved-model FOLDER --output x.onnx`",
    )
    WEIGHTS = "the values of a model without its graph", "", "for an OpenVINO IR, pass the .xml file"
    EMPTY = "an empty file", "", "download or export it again"
    UNKNOWN = "of an unknown kind", ""

    def __init__(self, words: str, holds: Literal["model", "layers", ""], remedy: str = "") -> None:
        self.words = words
        self.holds = holds
        self.remedy = remedy


#: The start of files of PyTorch before 1.6: a number, as a pickle.
LEGACY_PYTORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# Bytes at or near the start of files, with their offsets.
_STARTS: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", Kind.KERAS),
    (0, LEGACY_PYTORCH, Kind.PYTORCH),
    (0, b"\x93NUMPY", Kind.NPY),
    (4, b"TFL3", Kind.TFLITE),
    (0, b"\x1f\x8b", Kind.GZIP),
    (0, b"version https://git-lfs", Kind.LFS),
    *((0, bytes((0x80, protocol)), Kind.PICKLE) for protocol in range(2, 6)),
)

# A SavedModel: its version, then a nested message with operators, tags or a version of TensorFlow.
_SAVED_MODEL = re.compile(
    rb"\x08\x01\x12~\x0a~[\x12\x22\x2a]".replace(b"~", rb"[\x80-\xff]{0,4}[\0-\x7f]"), re.DOTALL
)

# The keys of ModelProto's fields except ir_version: the names, model_version, graph, opset_import, …
_MODEL_FIELDS = {0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA, 0xD2}

# Characters after the first bracket of JSON text, in lower case; the end of the text is not allowed.
_JSON_NEXT = {bytes([char]) for char in b'"{}[]-0123456789tfn'}

# The kind of a file with unknown content, by its suffix; the reader then reports the problem.
_SUFFIXES = {
    ".xml": Kind.OPENVINO,
    ".safetensors": Kind.SAFETENSORS,
    **dict.fromkeys((".pt", ".pth", ".ckpt"), Kind.PYTORCH),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), Kind.KERAS),
    ".pt2": Kind.EXPORTED,
    ".bin": Kind.WEIGHTS,
    ".tflite": Kind.TFLITE,
}


def kind_of_start(start: bytes, size: int) -> Kind:
    """Detect the kind of a file from its first 1024 bytes and its size; all zip archives are one kind."""
    if start.startswith(b"PK"):
        return Kind.ZIP
    # Checked first: the length can look like the start of any other kind.
    if 2 <= int.from_bytes(start[:8], "little") <= min(size - 8, LARGEST_TEXT) and start[8:9] == b"{":
        return Kind.SAFETENSORS
    for offset, begin, kind in _STARTS:
        if start.startswith(begin, offset):
            return kind
    if _SAVED_MODEL.match(start):
        return Kind.SAVED_MODEL
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return Kind.HTML
    if text.startswith((b"{", b"[")) and text[1:].lstrip()[:1] in _JSON_NEXT:
        return Kind.JSON
    if text.startswith((b"<", b"\xff\xfe<", b"\xfe\xff\0<")):
        return Kind.OPENVINO
    # ir_version, which is small, then another field.
    is_model = len(start) > 2 and start[0] == 0x08 and 0 < start[1] < 32 and start[2] in _MODEL_FIELDS
    return Kind.ONNX if is_model else Kind.UNKNOWN


def _kind_of_zip(path: Path) -> Kind:
    """Detect the kind of a zip archive from the names of its members."""
    import zipfile  # slow to import, and rarely needed

    from onegru.formats.zip_file import open_zip

    try:
        with open_zip(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return Kind.UNKNOWN
    if {"config.json", "metadata.json"} <= names:
        return Kind.KERAS
    if any(re.fullmatch(r"([^/]+/models/[^/]+|serialized_exported_program)\.json", name) for name in names):
        return Kind.EXPORTED
    folders = {name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")}
    if any(f"{folder}constants.pkl" in names for folder in folders):
        return Kind.TORCHSCRIPT
    if folders:
        return Kind.PYTORCH
    return Kind.NPZ if names and all(name.endswith(".npy") for name in names) else Kind.ZIP


# Files that list the shards of a checkpoint: the end of their name, and the kind of the shards.
_SHARD_INDEXES = {".safetensors.index.json": Kind.SAFETENSORS, ".bin.index.json": Kind.PYTORCH}


def _kind_of_name(path: Path, detected: Kind) -> Kind:
    """Return the kind by file name if the content is ambiguous; otherwise the detected kind."""
    if detected is Kind.JSON:
        return next((kind for end, kind in _SHARD_INDEXES.items() if path.name.endswith(end)), detected)
    if detected in (Kind.UNKNOWN, Kind.ZIP):
        return _SUFFIXES.get(path.suffix.lower(), Kind.ONNX if detected is Kind.UNKNOWN else detected)
    return detected


# Number of attempts to read a file that is replaced while it is read.
_TRIES = 10

# Number of files in a folder that a message names.
_MOST_NAMED = 3

# Number of bytes for the detection of the kind.
_START = 1024

Parsed = TypeVar("Parsed")

#: The limit of the size of an ONNX model, from protobuf's limit for messages.
_ONNX_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Opened(os.PathLike[str]):
    """Opened file of a model or of layers, which is passed on so that it is not opened again."""

    path: Path  # its name
    kind: Kind  # the kind of reader
    detected: Kind  # the kind by content; `kind` depends on the name if the content is ambiguous
    version: tuple[int, ...]  # changes whenever the file is written
    # the bytes of an ONNX model or of an IR's .xml; empty for checkpoints, which are read in parts
    data: bytes = b""
    # the content of an IR's .bin, or the reason why it cannot be read; None for other kinds
    weights: Array | FormatError | OSError | None = None
    _parsed: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Opened, (self.path, self.kind, self.detected, self.version, self.data, self.weights)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.version[-1]

    def once(self, parse: Callable[[Opened], Parsed]) -> Parsed:
        """Call a function with the file and cache the result, which callers must not change."""
        if parse not in self._parsed:
            self._parsed[parse] = parse(self)
        found: Parsed = self._parsed[parse]
        return found

    def forget(self) -> None:
        """Drop what `once` has cached."""
        self._parsed.clear()

    def stream(self) -> io.FileIO:
        """Return a stream of the content, to read it in parts."""
        return io.FileIO(self.path)


def open_file(argument: str, path: object) -> Opened:
    """Open a file of any kind for reading."""
    if isinstance(path, Opened):
        return path
    file = file_path(argument, path)
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, _folder_message(file), str(file))
    for _ in range(_TRIES):
        check_regular(file)
        version = file_version(file)
        opened = _read(file, version)
        if file_version(file) == version:  # otherwise the .bin can belong to another .xml
            return opened
    raise FormatError(f"{file}: replaced repeatedly while it is read; try again when it is complete")


def _folder_message(folder: Path) -> str:
    """Describe a folder and the files to pass instead."""
    names = sorted(path.name for path in folder.iterdir())
    if "saved_model.pb" in names:
        return f"a folder, {Kind.SAVED_MODEL.words}; must be a file: {Kind.SAVED_MODEL.remedy}"
    indexes = [name for name in names if name.endswith(tuple(_SHARD_INDEXES))]
    files = [name for name in names if _SUFFIXES.get(Path(name).suffix.lower(), Kind.UNKNOWN).holds]
    onnx = [name for name in names if name.endswith(".onnx")]
    found = [*onnx, *indexes] or files or [name for name in names if name == "pytorch_model.bin"]
    if not found:
        return "a folder; must be a file; no file in it looks like a model"
    return f"a folder; must be a file: pass {' or '.join(str(folder / name) for name in found[:_MOST_NAMED])}"


def _read(path: Path, version: tuple[int, ...]) -> Opened:
    """Open a file, with its whole content if its reader needs it."""
    with path.open("rb") as file:
        start = file.read(_START)
        detected = kind_of_start(start, version[-1]) if start else Kind.EMPTY
        if detected is Kind.ZIP:
            detected = _kind_of_zip(path)
        kind = _kind_of_name(path, detected)
        # A sparse file would need memory for all its bytes, too.
        if kind in (Kind.ONNX, Kind.TFLITE) and version[-1] >= _ONNX_LIMIT:
            raise FormatError(f"{path}: {version[-1]} bytes; {kind.words} must have less than 2 GiB")
        data = start + file.read() if kind.holds == "model" else b""
    weights = _weights(path.with_suffix(".bin")) if kind is Kind.OPENVINO else None
    return Opened(path, kind, detected, version, data, weights)


def _weights(path: Path) -> Array | FormatError | OSError:
    """Read a .bin. Links are followed, because the file name comes from the user, not from the IR."""
    try:
        check_regular(path)
        return np.fromfile(path, np.uint8)
    except (FormatError, OSError) as error:
        return error


def open_layers(argument: str, path: object) -> Opened:
    """Open a file with GRU layers, a model or not."""
    file = open_file(argument, path)
    if not file.kind.holds:
        raise _refusal(file, file.kind)
    return file


def open_model(argument: str, path: object) -> Opened:
    """Open a runnable model: ONNX or OpenVINO."""
    file = open_layers(argument, path)
    if file.kind.holds == "layers":
        if file.detected not in (file.kind, Kind.JSON):  # an index is JSON, and its name has the kind
            raise _refusal(file, file.detected)
        raise FormatError(
            f"{file}: {file.kind.words}, which contains layers, not a runnable model: use "
            f"onegru.load_layers, or `onegru convert` to create a model"
            f"{f'; {file.kind.remedy}' if file.kind.remedy else ''}"
        )
    return file


def _refusal(file: Opened, kind: Kind) -> FormatError:
    wanted = ", ".join(known.words.split(" ", 1)[1] for known in Kind if known.holds)
    words = kind.words if kind is file.detected else f"{file.detected.words}, named like {kind.words}"
    remedy = f"; {kind.remedy}" if kind.remedy else ""
    return FormatError(f"{file}: {words}; must be one of these: {wanted}{remedy}")
