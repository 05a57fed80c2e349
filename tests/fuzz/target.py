"""The process in which libFuzzer runs `tests.fuzz.guided`: onegru is imported with a counter at each branch.

python -m tests.fuzz.target KIND OPTIONS...     options of libFuzzer, and folders of inputs
python -m tests.fuzz.target KIND INPUT          one input again
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Run libFuzzer; does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["onegru"]):
        import onegru

        for module in pkgutil.walk_packages(onegru.__path__, "onegru."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):  # of a package that is not installed
                    importlib.import_module(module.name)
        from tests.fuzz import guided
    guided.run(atheris, sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
