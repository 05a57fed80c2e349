"""The command line: `onegru run`, `onegru inspect`, `onegru convert` and others."""

from __future__ import annotations

import os
import signal
import sys

from onegru.system.interrupts import INTERRUPTED, catch_interrupts


def main() -> None:
    """Run the command line; exit code 2 and one line on bad input."""
    before = catch_interrupts()
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
    if code == INTERRUPTED:
        os._exit(code)  # Python ends by the signal where KeyboardInterrupt came in an eval, caught or not
    sys.exit(code)
