"""Read untrusted NumPy files: headers are checked before any data are read."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onegru.core.errors import FormatError, OneGRUError
from onegru.system.bounded import check_regular

# NumPy refuses longer headers as well, but only after reading them.
_MAX_HEADER = 10_000


class Header(NamedTuple):
    """The type and shape of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of the array's data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(
    path: Path, choose: Callable[[Mapping[str, Header]], Iterable[str]], kind: str = "an .npz file"
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file, by name."""
    with _format_errors(path, kind), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        headers: dict[str, Header] = {}
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in entries:
                raise ValueError(f"{name!r} appears twice")
            with archive.open(entry) as stream:
                headers[name], entries[name] = _header(stream, entry.file_size), entry
        arrays: dict[str, NDArray[Any]] = {}
        for name in choose(headers):
            with archive.open(entries[name]) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return arrays


def read_npy(path: Path, judge: Callable[[Header], object]) -> NDArray[Any]:
    """Return the array of a .npy file, unless `judge` raises on its header."""
    with _format_errors(path, "a .npy file"), path.open("rb") as file:
        judge(_header(file, path.stat().st_size))
        file.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _header(file: IO[bytes], size: int) -> Header:
    """Return the header at the beginning of a file of `size` bytes."""
    begin = file.read(12)
    version = np.lib.format.read_magic(io.BytesIO(begin))
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format version {version}; must be 1.0 or 2.0")
    start = 10 if version == (1, 0) else 12
    length = int.from_bytes(begin[8:start], "little")
    if length > _MAX_HEADER:
        raise ValueError(f"a header of {length} bytes; must be at most {_MAX_HEADER}")
    header = io.BytesIO(begin[8:] + file.read(start + length - len(begin)))
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with np.errstate(all="ignore"):
        shape, _, dtype = read(header)
    if dtype.hasobject:
        raise ValueError("it contains Python objects; must contain numbers or text")
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {list(shape)}; must not be negative")
    found = Header(dtype, shape)
    wanted = start + length + found.bytes
    if size != wanted:
        raise ValueError(f"{size} bytes; must be {wanted} for {dtype} {list(shape)}")
    return found


@contextmanager
def _format_errors(path: Path, kind: str) -> Iterator[None]:
    """Convert the many exceptions of NumPy and zipfile for broken files to one that names the file."""
    try:
        check_regular(path)
        yield
    except MemoryError as error:
        raise FormatError(f"{path}: needs more memory than is available") from error
    except Exception as error:
        if isinstance(error, OneGRUError) or (isinstance(error, OSError) and error.filename is not None):
            raise  # raised by onegru, or the file cannot be opened
        words = str(error) or type(error).__name__
        raise FormatError(f"{path}: not {kind}, or truncated ({words})") from error
