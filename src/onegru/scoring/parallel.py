"""Batches side by side: a thread that runs a batch by itself waits for no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from onegru.engines.native import get_num_threads, set_num_threads

Item = TypeVar("Item")
Done = TypeVar("Done")

_lock = threading.Lock()
_running = 0
_threads = 1  # as it was before the first of those that run


def in_parallel(work: Callable[[Item], Done], items: Iterable[Item]) -> list[Done]:
    """`work` on each item, in as many threads as onegru has, whose calls have one thread each meanwhile."""
    items = list(items)
    with _one_thread_each() as threads:
        if threads == 1 or len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Let each call of a layer have one thread; gives how many they had together."""
    global _running, _threads
    with _lock:
        if not _running:
            _threads = get_num_threads()
            if _threads > 1:
                set_num_threads(1)
        _running += 1
        threads = _threads
    try:
        yield threads
    finally:
        with _lock:
            _running -= 1
            if not _running and threads > 1:
                set_num_threads(threads)
