"""What kind of file a file is, by its content, as names say little."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Literal

from onegru.core.errors import FormatError, needs_extra
from onegru.system.bounded import LARGEST_TEXT, check_regular


class Kind(Enum):
    """A kind of file: what to call it, and what onegru finds in it."""

    ONNX = "an ONNX model", "model"
    OPENVINO = "an OpenVINO IR", "model"
    PYTORCH = "a PyTorch checkpoint", "layers"
    SAFETENSORS = "a safetensors file", "layers"
    KERAS = "a Keras model", "layers"
    TORCHSCRIPT = "a TorchScript program", ""
    NPZ = "an .npz archive of NumPy", ""
    NPY = "an .npy array of NumPy", ""
    PICKLE = "a pickle, which could run code", ""
    TFLITE = "a TensorFlow Lite model", ""
    ORT = "a model in ONNX Runtime's own format", ""
    GZIP = "a gzip file", ""
    ZIP = "a zip archive of another kind", ""
    LFS = "a pointer of Git LFS in place of the file itself", ""
    HTML = "a web page", ""
    JSON = "JSON text", ""
    UNKNOWN = "of an unknown kind", ""

    def __init__(self, words: str, holds: Literal["model", "layers", ""]) -> None:
        self.words = words
        self.holds = holds


#: What files of PyTorch before 1.6 begin with: a number, as a pickle.
LEGACY_PYTORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# The bytes that files have at their beginning, or a few bytes behind it.
_STARTS: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", Kind.KERAS),
    (0, LEGACY_PYTORCH, Kind.PYTORCH),
    (0, b"\x93NUMPY", Kind.NPY),
    (4, b"TFL3", Kind.TFLITE),
    (4, b"ORTM", Kind.ORT),
    (0, b"\x1f\x8b", Kind.GZIP),
    (0, b"version https://git-lfs", Kind.LFS),
    *((0, bytes((0x80, protocol)), Kind.PICKLE) for protocol in range(2, 6)),
)

# The keys of ModelProto's fields but ir_version: the names, model_version, graph, opset_import, …
_MODEL_FIELDS = {0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA, 0xD2}

# What may follow the first bracket of JSON text, in lower case; an empty end of `text` is not among them.
_JSON_NEXT = {bytes([char]) for char in b'"{}[]-0123456789tfn'}

# What reads a file whose content says nothing, by the end of its name; the reader says what is wrong with it.
_NAMES = {
    ".xml": Kind.OPENVINO,
    ".safetensors": Kind.SAFETENSORS,
    **dict.fromkeys((".pt", ".pth", ".ckpt"), Kind.PYTORCH),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), Kind.KERAS),
}


def kind_of(path: Path) -> Kind:
    """The kind of a file.

    Raises:
        FormatError: it is no regular file.
        OSError: it cannot be opened.
    """
    check_regular(path)
    with path.open("rb") as file:
        start = file.read(1024)
        size = file.seek(0, 2)
    kind = kind_of_start(start, size)
    return _kind_of_zip(path) if kind is Kind.ZIP else kind


def kind_of_start(start: bytes, size: int) -> Kind:
    """The kind of a file by its first 1024 bytes and its size; all zip archives are of one kind here."""
    if start.startswith(b"PK"):
        return Kind.ZIP
    # A length first, which may look like the start of anything.
    if 2 <= int.from_bytes(start[:8], "little") <= min(size - 8, LARGEST_TEXT) and start[8:9] == b"{":
        return Kind.SAFETENSORS
    for place, begin, kind in _STARTS:
        if start.startswith(begin, place):
            return kind
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return Kind.HTML
    if text.startswith((b"{", b"[")) and text[1:].lstrip()[:1] in _JSON_NEXT:
        return Kind.JSON
    if text.startswith((b"<", b"\xff\xfe<", b"\xfe\xff\0<")):
        return Kind.OPENVINO
    # ir_version, which is small, and another field.
    is_model = len(start) > 2 and start[0] == 0x08 and 0 < start[1] < 32 and start[2] in _MODEL_FIELDS
    return Kind.ONNX if is_model else Kind.UNKNOWN


def _kind_of_zip(path: Path) -> Kind:
    import zipfile  # slow to import, and rarely needed

    from onegru.formats.zip_file import open_zip

    try:
        with open_zip(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return Kind.UNKNOWN
    if {"config.json", "metadata.json"} <= names:
        return Kind.KERAS
    folders = {name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")}
    if any(f"{folder}constants.pkl" in names for folder in folders):
        return Kind.TORCHSCRIPT
    if folders:
        return Kind.PYTORCH
    return Kind.NPZ if names and all(name.endswith(".npy") for name in names) else Kind.ZIP


def layers_kind(path: Path) -> Kind:
    """The kind of a file that holds GRU layers, within a model or without.

    Raises:
        FormatError: it is of a kind that holds none.
        OSError: it cannot be opened.
    """
    kind = kind_of(path)
    if kind in (Kind.UNKNOWN, Kind.ZIP):
        kind = _NAMES.get(path.suffix.lower(), Kind.ONNX if kind is Kind.UNKNOWN else kind)
    if not kind.holds:
        raise _refusal(path, kind)
    return kind


def _refusal(path: Path, kind: Kind) -> FormatError:
    wanted = ", ".join(known.words.split(" ", 1)[1] for known in Kind if known.holds)
    return FormatError(f"{path}: {kind.words}; must be one of these: {wanted}")


def model_kind(path: Path) -> Kind:
    """The kind of a model that runs: ONNX or OpenVINO.

    Raises:
        FormatError: it is of another kind; the message says what can be done with it.
        OSError: it cannot be opened.
    """
    kind = layers_kind(path)
    if kind.holds == "layers":
        if (told := kind_of(path)) is not kind:  # by its name alone
            raise _refusal(path, told)
        raise FormatError(
            f"{path}: {kind.words}, which holds layers and no model that runs: read them with "
            f"onegru.load_layers, or make a model of them with `onegru convert`"
        )
    return kind


def files_of(path: Path) -> list[Path]:
    """The files of a model: itself, an IR's weights, an ONNX model's external data.

    Raises:
        FormatError, OSError: it cannot be read.
        MissingExtraError: it is an ONNX model, and onnx is not installed.
    """
    kind = layers_kind(path)
    if kind is Kind.OPENVINO:
        return [path, *filter(Path.is_file, [path.with_suffix(".bin")])]
    if kind is not Kind.ONNX:
        return [path]
    with needs_extra("onnx", "onnx", str(path)):
        from onegru.formats.onnx.read import Source, external_files, external_tensors, read_model
    source = Source(str(path), path.parent)
    return [path, *sorted(external_files(source, external_tensors(read_model(source, path.read_bytes()))))]
