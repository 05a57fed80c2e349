"""Run batches in parallel, each in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from onegru.core.dtypes import Array
from onegru.engines.native import asked_threads, get_num_threads, set_num_threads

#: Function like `map` that runs a function on batches: arrays of rows.
BatchMap = Callable[[Callable[[Array], int], Iterable[Array]], Iterator[int]]

_lock = threading.Lock()
_running = 0
# Settings before the first parallel run: the number of threads, and the requested number.
_threads = 1
_asked: int | None = None


@contextmanager
def batch_map(parallel: bool) -> Iterator[BatchMap]:
    """Yield `map`, or a function that runs in worker threads, where a layer's call uses one thread."""
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
    """Limit each call of a layer to one thread; yield the former number of threads."""
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
            if not _running and threads > 1 and asked_threads() == 1:  # otherwise it was set meanwhile
                set_num_threads(_asked)
