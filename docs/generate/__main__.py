"""Command line of `python -m docs.generate`."""

from __future__ import annotations

import sys

from docs.generate import FILES, ROOT, update


def main() -> int:
    """Update the files. With --check, only list those that are out of date."""
    stale = []
    for name in FILES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = update(old)
        if new == old:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date' if '--check' in sys.argv else 'updated'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
