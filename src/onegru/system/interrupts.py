"""Ctrl-C in the command, from its first line on."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

#: The shells' exit code for Ctrl-C, which typer uses as well.
INTERRUPTED = 130


def catch_interrupts() -> Any:
    """Let Ctrl-C raise KeyboardInterrupt, and end imports at once; what it did before."""
    return signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import, exit at once, as compiled modules lose it or crash."""
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"onegru: interrupted\n")
            os._exit(INTERRUPTED)
        at = at.f_back
    signal.default_int_handler(signum, frame)
