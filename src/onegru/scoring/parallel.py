"""Run batches in parallel, one thread each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from onegru.engines.native import asked_threads, get_num_threads, set_num_threads

Item = TypeVar("Item")
Done = TypeVar("Done")

_lock = threading.Lock()
_running = 0
# As it was before the first of those that run: how many threads, and what was asked for.
_threads = 1
_asked: int | None = None


class Workers:
    """Runs batches side by side, in as many threads as onegru has; calls have one thread each meanwhile.

    Used as a context, after which all threads have ended, and calls have theirs again.
    """

    def __init__(self, parallel: bool) -> None:
        self._parallel = parallel
        self._stack = ExitStack()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self._parallel and (threads := self._stack.enter_context(_one_thread_each())) > 1:
            self._pool = ThreadPoolExecutor(threads)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=error is not None)
        self._stack.close()

    def start(self, work: Callable[[Item], Done], items: Iterable[Item]) -> Callable[[], list[Done]]:
        """Begin with `work` on each item, behind what was begun before; what it returns waits for the end."""
        if self._pool is None:
            return lambda: [work(item) for item in items]
        futures = [self._pool.submit(work, item) for item in items]
        return lambda: [future.result() for future in futures]


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Let each call of a layer have one thread; gives how many they had together."""
    global _running, _threads, _asked
    with _lock:
        if not _running:
            _threads, _asked = get_num_threads(), asked_threads()
            if _threads > 1:
                set_num_threads(1)
        _running += 1
        threads = _threads
    try:
        yield threads
    finally:
        with _lock:
            _running -= 1
            if not _running and threads > 1 and asked_threads() == 1:  # else it was set meanwhile
                set_num_threads(_asked)
