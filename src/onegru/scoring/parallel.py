"""Run batches in parallel, one thread each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from onegru.core.dtypes import Array
from onegru.engines.native import asked_threads, get_num_threads, set_num_threads

#: Runs a function on batches, each a choice of rows, as `map` does.
BatchMap = Callable[[Callable[[Array], int], Iterable[Array]], Iterator[int]]

_lock = threading.Lock()
_running = 0
# As it was before the first of those that run: how many threads, and what was asked for.
_threads = 1
_asked: int | None = None


@contextmanager
def batch_map(parallel: bool) -> Iterator[BatchMap]:
    """`map`, or if `parallel` one that begins at once, in as many threads as onegru has.

    Calls of layers have one thread each meanwhile.
    """
    if not parallel:
        yield map
        return
    with _one_thread_each() as threads:
        if threads == 1:
            yield map
            return
        pool = ThreadPoolExecutor(threads)
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)


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
