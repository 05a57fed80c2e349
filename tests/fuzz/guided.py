"""What libFuzzer runs for a kind of file: a case is kept, and changed further, where it reaches new code.

Its inputs are files as `tests.fuzz.mutate` changes them, after a number that says how they are read.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from onegru.formats import keras_archive
from onegru.system.child_process import ChildResult
from tests.fuzz.corpus import Files, corpus
from tests.fuzz.mutate import changed
from tests.fuzz.worker import judge_files, prepare

__all__ = ["LONGEST", "judge", "mutate", "packed", "run", "run_here", "seeds", "unpacked"]

#: The most bytes of an input: some more than those of the largest seed.
LONGEST = 100_000

# In so many ways the files of a kind are read.
_WAYS = 64


def packed(way: int, files: Files) -> bytes:
    """An input: the way to read the files, and these."""
    head = [way, [[name, len(data)] for name, data in files.items()]]
    return json.dumps(head).encode() + b"\n" + b"".join(files.values())


def unpacked(data: bytes, kind: str) -> tuple[int, Files]:
    """The way and the files of an input; of the first seed if invalid: libFuzzer begins with nothing."""
    head, _, rest = data.partition(b"\n")
    try:
        way, entries = json.loads(head)
    except ValueError:
        return 0, corpus(kind)[0]
    files: Files = {}
    for name, size in entries:
        files[name], rest = rest[:size], rest[size:]
    return way, files


def seeds(kind: str) -> list[bytes]:
    """An input for each file of the corpus, and each way to read it."""
    return [packed(way, files) for files in corpus(kind) for way in range(0, _WAYS, 8)]


def mutate(kind: str, data: bytes, most: int, seed: int, of_bytes: Callable[[bytes, int], bytes]) -> bytes:
    """An input near another one, of `most` bytes: as its format has it, or by libFuzzer's own `of_bytes`."""
    rng = Random(seed)
    way, files = unpacked(data, kind)
    choice = rng.random()
    if choice < 0.1:
        way = rng.randrange(_WAYS)
    elif choice < 0.3:
        name = rng.choice(list(files))
        files = {**files, name: of_bytes(files[name], max(1, most - len(data) + len(files[name])))}
    else:
        files = changed(rng, kind, files)
    out = packed(way, files)
    return out if len(out) <= most else packed(way, corpus(kind)[0])


def judge(kind: str, data: bytes, events: list[str]) -> str:
    """How reading an input ended.

    Raises:
        BaseException: whatever is wrong with that.
    """
    way, files = unpacked(data, kind)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        error, found = judge_files(kind, files, Random(way), events)
    if error is not None:
        raise error
    return str(found["outcome"])


def run_here(module: str, arguments: Sequence[str], folder: Path, limits: object) -> ChildResult:
    """As `run_child`, in this process, where the code of what reads files of Keras counts."""
    with chdir(folder):
        importlib.import_module(module).main(arguments)
    return ChildResult(0, "")


def run(atheris: Any, kind: str, options: Sequence[str]) -> None:
    """Run libFuzzer; does not return."""
    vars(keras_archive)["run_child"] = run_here
    options = [str(Path(item).absolute()) if Path(item).exists() else item for item in options]
    os.dup2(2, 1)  # a file, to which libraries may print what they like
    with tempfile.TemporaryDirectory(prefix="onegru-fuzz-") as place:
        folder = Path(place) / "case"
        folder.mkdir()
        events = prepare(folder)
        atheris.Setup(
            [sys.argv[0], *options],
            lambda data: judge(kind, data, events),
            custom_mutator=lambda data, most, seed: mutate(kind, data, most, seed, atheris.Mutate),
        )
        atheris.Fuzz()
