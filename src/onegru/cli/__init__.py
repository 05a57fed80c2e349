"""The command line `onegru`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; exit code 2 and one line on bad input."""
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        from onegru.cli.app import run

        code = run()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        print("onegru: the command line needs typer and rich: pip install 'onegru[cli]'", file=sys.stderr)
        code = 2
    finally:
        signal.signal(signal.SIGINT, before)
    sys.exit(code)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import, exit at once, as compiled modules lose it or crash."""
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"onegru: interrupted\n")
            os._exit(130)
        at = at.f_back
    signal.default_int_handler(signum, frame)
