"""The conformance suite: test cases with expected outputs, and the results of runtimes.

results = onegru.conformance.try_runtime(my_gru, "gru_14__*")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onegru.conformance.case import Case
    from onegru.conformance.cases import kit_cases
    from onegru.conformance.comparison import compare
    from onegru.conformance.files import ir_files, onnx_model
    from onegru.conformance.own import try_runtime
    from onegru.conformance.results import Outcome, RuntimeResults

__all__ = [
    "Case",
    "Outcome",
    "RuntimeResults",
    "compare",
    "ir_files",
    "kit_cases",
    "onnx_model",
    "try_runtime",
]

# Imported on demand, because some modules need the onnx package.
_MODULES = {
    "Case": "case",
    "Outcome": "results",
    "RuntimeResults": "results",
    "compare": "comparison",
    "ir_files": "files",
    "kit_cases": "cases",
    "onnx_model": "files",
    "try_runtime": "own",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
