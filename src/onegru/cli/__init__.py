"""The command line: `onegru run`, `onegru inspect`, `onegru convert` and others."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit code 2 and one line on bad input."""
    # While modules are imported there is nothing to lose, and some turn an interrupt into another error.
    before = signal.signal(signal.SIGINT, _end)
    try:
        from onegru.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        print("onegru: the command line needs typer and rich: pip install 'onegru[cli]'", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGINT, before)
    sys.exit(run())


def _end(*_: object) -> None:
    os.write(2, b"onegru: interrupted\n")
    os._exit(130)
