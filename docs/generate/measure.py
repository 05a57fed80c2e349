"""Run the conformance suite in every installed runtime, for docs/conformance.md: `make conformance`.

onegru runs with both engines, and as ONNX Runtime's execution provider. Times and error sizes are not stored,
because they depend on the processor.
"""

from __future__ import annotations

import sys
import time

from docs.generate.conformance import RESULTS
from onegru.conformance.cases import kit_cases
from onegru.conformance.results import write_results
from onegru.conformance.runtimes.registry import ENGINES, RUNTIMES, configs
from onegru.conformance.runtimes.run import run_cases


def main() -> None:
    """Run the suite and write the results."""
    has_onnxruntime = RUNTIMES["onnxruntime"].version() is not None
    providers = ("OnegruExecutionProvider", "CPUExecutionProvider") if has_onnxruntime else ()
    results = []
    for config in configs(providers=providers, engines=ENGINES):
        began = time.monotonic()
        results.append(run_cases(config, kit_cases()))
        print(
            f"{results[-1].label}: {results[-1].summary()}; {time.monotonic() - began:.0f} s", file=sys.stderr
        )
    write_results(RESULTS, results, figures=False)


if __name__ == "__main__":
    main()
