"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def run_threads(work: Callable[[Item], object], items: Iterable[Item], seconds: float = 300) -> None:
    """Call `work` with each item in a thread of its own, and wait until all have ended."""
    threads = [threading.Thread(target=work, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
