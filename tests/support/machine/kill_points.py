"""Kill a process at each of its calls that change the file system."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator

#: Calls of file writers. The process is killed before one of them.
CALLS = ("open", "fchmod", "fsync", "close", "link", "rename", "replace", "unlink", "truncate")
SECONDS = 60


def kill_points(run: Callable[[], object]) -> Iterator[int]:
    """Run child processes. The n-th one is killed at its n-th call, for every n until one finishes.

    Yields:
        n, while the files are as the killed process left them.
    """
    for n in range(1, 1000):
        child = os.fork()
        if child == 0:
            try:
                # A runtime's object collected here would wait for threads that this process lacks.
                gc.disable()
                signal.alarm(SECONDS)
                _kill_at(n)
                run()
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), f"the child ended with status {status}"
        yield n
        if status == 0:
            return
    raise AssertionError("never ends")


def _kill_at(n: int) -> None:
    count = 0

    def wrapped(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def step(*arguments: object, **keywords: object) -> object:
            nonlocal count
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return None if name == "fsync" else call(*arguments, **keywords)  # a process needs no disk

        return step

    for name in CALLS:
        setattr(os, name, wrapped(name))
