"""The process in which libFuzzer runs `tests.fuzz.guided`: onegru is imported with a counter at each branch.

python -m tests.fuzz.target KIND OPTIONS...     options of libFuzzer, and folders of inputs
python -m tests.fuzz.target KIND INPUT          one input again
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any


class _PlainLoaders(MetaPathFinder):
    """Finds what the finders after it find, loaded as files: atheris counts nothing where an editable
    install's own loader stands between."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.origin is not None and spec.origin.endswith(".py"):
                    spec.loader = SourceFileLoader(fullname, spec.origin)
                return spec
        return None


def main() -> None:
    """Run libFuzzer; does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["onegru"]):
        sys.meta_path.insert(1, _PlainLoaders())  # after atheris's own
        import onegru

        for module in pkgutil.walk_packages(onegru.__path__, "onegru."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):  # of a package that is not installed
                    importlib.import_module(module.name)
        from tests.fuzz import guided
    guided.run(atheris, sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
