"""The command line: `onegru run`, `onegru inspect`, `onegru convert` and others."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit code 2 and one line on bad input."""
    try:
        from onegru.cli.app import run

        code = run()
    except KeyboardInterrupt:  # before there was anything that would say so
        print("onegru: interrupted", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        print("onegru: the command line needs typer and rich: pip install 'onegru[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(code)
