"""A lock between processes."""

from __future__ import annotations

import sys
from typing import IO


def try_lock(file: IO[str]) -> bool:
    """Lock an empty file until it is closed or the process ends; return False if another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
