"""Child processes for work that can crash, hang or exhaust memory on a malicious file.

**Imports.** The child imports the parent's packages, and nothing from the current folder, whose files are
untrusted. If onegru itself is in the current folder, that folder comes last in the search path, so that
its files shadow no other module.

**Resources.** `Limits` bound what the child can use. It works in a separate folder and leaves its answer
there. It has no input, prints nothing, and leaves no core dump. If it is killed, its processes are killed
too. macOS cannot limit the address space. Windows limits only wall time, which the parent measures, and
kills only the child.

**Answer.** The child may have been subverted, so its answer is only a JSON head and plain arrays in a file.
No read blocks, and the size of each read is known before.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.machine import memory_size
from onegru.core.wording import printable
from onegru.system.bounded import LARGEST_TEXT, parse_json

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from onegru.system.child_process import main
main()
"""

_GIB = 1 << 30

#: The exit code of a killed child, also if it exceeds its CPU time.
KILLED = -9
# The exit code of a child that has lost its parent, or that notices first that its time is over.
_ALARM = None if sys.platform == "win32" else -signal.SIGALRM


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a child may use."""

    seconds: float  # of wall time, including its start
    cpu_seconds: int  # CPU time of all its threads
    memory: int | None  # bytes of address space, and of each file that it writes; None for no limit
    threads: int | None = None  # for libraries that read it from the environment; None for their defaults


#: Limits for reading weights from a file. A normal file takes about a second and 1 GiB, with libraries.
READING = Limits(seconds=60.0, cpu_seconds=30, memory=4 * _GIB, threads=1)


def run_limits(seconds: float) -> Limits:
    """Return limits for a runtime that runs a model: all cores, and all memory.

    Address space exceeds memory, because allocators reserve about 100 MiB of it for each thread.
    """
    cores = os.cpu_count() or 1
    return Limits(seconds, math.ceil(seconds) * cores, memory_size() + 16 * _GIB + cores * (_GIB >> 2))


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of a child process."""

    # its exit code, negative for a signal (not on Windows); None after a timeout
    code: int | None
    error: str = ""  # the last line of its stderr


# Seconds between two checks of a child.
_TURN = 0.02
# Seconds within which the system must end a killed child. A debugger that the child started can hold it.
_END_SECONDS = 10.0
# Bytes at the end of stderr that are searched for the last line.
_LAST_BYTES = 4096


@contextmanager
def child_folder() -> Iterator[Path]:
    """Create a folder for a child, and remove the folder and all its content at the end."""
    # Permissions are not changed for it, because `tempfile.TemporaryDirectory` follows links when it does so.
    folder = tempfile.mkdtemp(prefix="onegru-")
    try:
        yield Path(folder)
    finally:
        with suppress(RecursionError):  # folders nested too deep
            shutil.rmtree(folder, ignore_errors=True)


def run_child(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    limits: Limits,
    watch: Callable[[], object] | None = None,
) -> ChildResult:
    """Run `module.main(arguments)` in a separate process."""
    flags = ["-E", "-P", *["-s"] * sys.flags.no_user_site, *["-B"] * sys.dont_write_bytecode]
    request = json.dumps({"module": module, "arguments": list(arguments), "limits": asdict(limits)})
    command = [sys.executable, *flags, "-c", _START, json.dumps(_search_path()), request]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    if limits.threads is not None:
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment |= dict.fromkeys(names, str(limits.threads))
    with tempfile.TemporaryFile() as log:  # unnamed, so that it cannot be replaced
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=nowhere,
            stdout=nowhere,
            stderr=log,
            start_new_session=True,
        )
        code = _wait_for(process.pid, process.poll, limits.seconds, watch)
        return ChildResult(code, _last_line(log))


def run_forked(
    work: Callable[[], object], folder: Path, limits: Limits, watch: Callable[[], object] | None = None
) -> ChildResult:
    """Run a function in a copy of this process, without its other threads, as `run_child` runs a module."""
    import multiprocessing  # needed only in this function

    process = multiprocessing.get_context("fork").Process(target=_forked, args=(work, folder, limits))
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # about the missing threads
        process.start()
    assert process.pid is not None
    return ChildResult(_wait_for(process.pid, lambda: process.exitcode, limits.seconds, watch))


def _forked(work: Callable[[], object], folder: Path, limits: Limits) -> None:
    os.setsid()
    os.chdir(folder)
    _limit(limits)
    work()


def _wait_for(
    pid: int, code: Callable[[], int | None], seconds: float, watch: Callable[[], object] | None
) -> int | None:
    """Wait for a child, kill all processes that it started, and return its exit code (None: timeout)."""
    found, end = None, time.monotonic() + seconds
    try:
        while (found := code()) is None and time.monotonic() < end:
            if watch is not None:
                watch()
            time.sleep(_TURN)
    finally:
        with suppress(OSError):  # no process is left; the group's number is not reused while a member lives
            if sys.platform != "win32":
                os.killpg(pid, signal.SIGKILL)
            elif found is None:
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + _END_SECONDS
        while code() is None and time.monotonic() < end:
            time.sleep(_TURN)
    return None if found == _ALARM else found


def _last_line(log: BinaryIO) -> str:
    """Return the last line of a child's stderr; processes that it started may still write to it."""
    with suppress(OSError):  # the child can set flags of the open file
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = log.read(_LAST_BYTES).decode(errors="replace").split("\n")
        return printable(next((line.strip()[:200] for line in reversed(lines) if line.strip()), ""))
    return ""


def _search_path() -> list[str]:
    """Return the import search path of the child."""
    try:
        here = os.path.realpath(Path.cwd())
    except OSError:  # the folder is gone
        here = ""
    path = [
        entry
        for entry in sys.path
        if isinstance(entry, str) and Path(entry).is_absolute() and os.path.realpath(entry) != here
    ]
    own = str(Path(__file__).absolute().parents[2])
    return path if own in path else [*path, own]


def main() -> None:
    """Run the child."""
    request = json.loads(sys.argv[1])
    _limit(Limits(**request["limits"]))
    importlib.import_module(request["module"]).main(request["arguments"])


def _limit(limits: Limits) -> None:
    if sys.platform == "win32":
        return
    import resource

    signal.setitimer(signal.ITIMER_REAL, limits.seconds)  # if the parent is gone
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.memory),
    ):
        if value is None:
            continue
        highest = resource.getrlimit(kind)[1]
        value = value if highest == resource.RLIM_INFINITY else min(value, highest)
        with suppress(ValueError, OSError):  # macOS cannot limit the address space
            resource.setrlimit(kind, (value, value))


# Answers


# The types of arrays: text, or names that NumPy cannot read as a structure.
_TYPE = re.compile(r"<U[0-9]{1,7}|[a-z][a-z0-9_]*")


def write_answer(head: Mapping[str, Any], arrays: Sequence[Array] = (), name: str = "answer") -> None:
    """Write an answer to a file in the current folder atomically."""
    types = [
        (array.dtype.str if array.dtype.kind == "U" else array.dtype.name, array.shape) for array in arrays
    ]
    text = json.dumps({**head, "arrays": types}).encode()
    with Path("unfinished").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.tobytes())
    Path("unfinished").rename(name)


def read_answer(folder: Path, name: str = "answer") -> tuple[dict[str, Any], list[Array]]:
    """Return the head and the arrays of the answer with this name in the child's folder."""
    try:
        with open(folder / name, "rb", opener=_open_answer) as file:
            return _parse_answer(file)
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        raise ValueError(f"an unreadable answer ({error})") from error


def _open_answer(path: str, flags: int) -> int:
    """Open a file in a child's folder without following links or waiting for pipes; return its descriptor."""
    if sys.platform == "win32":
        return os.open(path, flags)
    # The child can replace its folder, too
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return os.open(Path(path).name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


def _parse_answer(file: BinaryIO) -> tuple[dict[str, Any], list[Array]]:
    """Parse an answer. It may change meanwhile, so only as many bytes are read as it had at first."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # another name may belong to another file
        raise ValueError("an answer that is not a regular file with one name")
    if status.st_size > memory_size() // 2:
        raise ValueError(f"an answer of {status.st_size} bytes; must fit into half of the memory")
    length = int.from_bytes(file.read(8), "little")
    left = status.st_size - 8 - length
    if length > LARGEST_TEXT or left < 0:
        raise ValueError("an unreadable answer")
    head = parse_json(file.read(length))
    types = head.pop("arrays", None) if isinstance(head, dict) else None
    if not isinstance(types, list):
        raise ValueError("an answer without a list of arrays")
    arrays: list[Array] = []
    for item in types:
        dtype, shape = _type_and_shape(item)
        size = math.prod(shape) * dtype.itemsize
        left -= size
        if left < 0:
            break
        arrays.append(np.fromfile(file, np.uint8, size).view(dtype).reshape(shape))
    if left:
        raise ValueError("an answer whose length does not match its arrays")
    return head, arrays


def _type_and_shape(item: Any) -> tuple[np.dtype[Any], list[int]]:
    match item:
        case [str(name), [*shape]] if (
            _TYPE.fullmatch(name)
            and len(shape) <= 32
            and all(type(size) is int and size >= 0 for size in shape)
        ):
            with suppress(TypeError):
                dtype = numpy_dtype(name)
                if dtype.itemsize and not dtype.hasobject:
                    return dtype, shape
    raise ValueError("an array without a valid type and shape")
