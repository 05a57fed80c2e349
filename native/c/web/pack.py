"""Puts the two WebAssembly modules into onegru.js.

Usage: pack.py SIMD SCALAR FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Each byte is a character: in UTF-8 larger than base64, but a quarter smaller after compression by a server.
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def main() -> None:
    """Writes FOLDER/onegru.js and FOLDER/onegru.d.ts."""
    simd, scalar, folder = map(Path, sys.argv[1:])
    text = (HERE / "onegru.js").read_text(encoding="utf-8")
    for name, path in (("simd", simd), ("scalar", scalar)):
        content = path.read_bytes().decode("latin-1").translate(_ESCAPES)
        # Tools that use C strings end the text at a NUL. \0 before a digit would be another escape.
        content = re.sub(r"\0(?=[0-9])", r"\\x00", content).replace("\0", r"\0")
        text = text.replace("{{" + name + "}}", content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "onegru.js").write_text(text, encoding="utf-8", newline="")
    shutil.copy(HERE / "onegru.d.ts", folder)


if __name__ == "__main__":
    main()
