"""Compare a model in onegru and in every other installed runtime, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import onegru.verification.locate as faults
from onegru._native import version
from onegru.core.compare import INCONCLUSIVE, Comparison, compare, why_inconclusive
from onegru.core.errors import FormatError, OneGRUError
from onegru.models.inputs.lengths import count_steps
from onegru.models.inspect import report
from onegru.models.model import Model
from onegru.peers.base import Runtime
from onegru.peers.child import run_apart
from onegru.peers.registry import RUNTIMES
from onegru.verification.results import RuntimeResult, Verification
from onegru.verification.trace import tolerances, traced_run

Progress = Callable[[int, int], None]


def compare_runtimes(
    model: Model,
    inputs: Mapping[str, Any],
    *,
    runtimes: Sequence[Runtime] = RUNTIMES,
    tolerance: float | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Verification:
    """Run a model in every runtime that is installed, and compare with onegru's float64 reference."""
    # Each runtime runs the whole model, but with onegru, ONNX Runtime runs the other nodes. Each runs in a
    # separate process, so that a crash is a result.
    verifier = _Verifier(model, inputs, tolerance, timeout)
    present = [runtime for runtime in runtimes if runtime.version() is not None]
    absent = tuple(runtime.name for runtime in runtimes if runtime not in present)
    checks: list[Callable[[], RuntimeResult | None]] = [verifier.own]
    checks += (partial(verifier.check, runtime) for runtime in present)
    tell = progress or (lambda done, total: None)
    results: list[RuntimeResult | None] = []
    for done, check in enumerate(checks):
        tell(done, len(checks))
        results.append(check())
    tell(len(checks), len(checks))
    steps = max(count_steps(model, inputs).values(), default=None)
    return Verification(model.path, tuple(item for item in results if item is not None), absent, steps=steps)


class _Verifier:
    """Compares one model on one set of inputs."""

    def __init__(
        self, model: Model, inputs: Mapping[str, Any], tolerance: float | None, timeout: float
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.exact = traced_run(model, inputs, "reference")
        if why := why_inconclusive(self.exact.outputs):
            raise FormatError(f"{model.path}: {why}, {INCONCLUSIVE}; pass realistic inputs (inputs, -i)")
        self.tolerances = Tolerances(model, inputs, self.exact.outputs, tolerance)
        self.run = partial(run_apart, timeout=timeout)

    def own(self) -> RuntimeResult:
        """Return the result of the native engine, in this process, as in normal use."""
        trace = traced_run(self.model, self.inputs, "native")
        outputs = self._compare(trace.outputs, "onegru")
        result = partial(RuntimeResult, "onegru", version(), outputs=outputs)
        if all(item.agrees for item in outputs):
            return result("agrees")
        if words := self.tolerances.why_strict(self.exact.outputs, trace.outputs):
            return result("differs", words)
        return result("differs", fault=faults.fault_in(self.model, trace.values, "onegru"))

    def check(self, runtime: Runtime) -> RuntimeResult | None:
        """Return the result of a runtime; None if it does not read such files."""
        name, number = runtime.name, runtime.version() or ""
        result = partial(RuntimeResult, name, number, precision=runtime.precision)
        try:
            subject = faults.subject_of(self.model)
        except OneGRUError as error:
            return result("refuses", str(error))
        if runtime.refuses(subject) is not None:
            return None
        outcome = self.run(runtime, subject, self.inputs)
        if outcome.status != "ran":
            known = self._known_refusals(name) if outcome.status == "refuses" else ()
            return result(outcome.status, outcome.reason, known=known)
        outputs = self._compare(outcome.outputs, name)
        if all(item.agrees for item in outputs):
            return result("agrees", outputs=outputs)
        if words := self.tolerances.why_strict(self.exact.outputs, outcome.outputs):
            return result("differs", words, outputs)
        values = self.exact.values

        def differs(got: Mapping[str, Any]) -> bool:
            return not all(item.agrees for item in self._compare(got, name))

        fault, note = faults.find_fault(self.model, self.inputs, values, runtime, self.run, differs)
        return result("differs", note, outputs, fault)

    def _known_refusals(self, runtime: str) -> tuple[str, ...]:
        return tuple(
            f"{item.name}: {verdict.reason}"
            for item in report(self.model)
            for verdict in item.others
            if verdict.runtime == runtime and verdict.effect == "refuses"
        )

    def _compare(self, got: Mapping[str, Any], runtime: str) -> tuple[Comparison, ...]:
        return compare_outputs(self.exact.outputs, got, self.tolerances.allowed, runtime)


class Tolerances:
    """The tolerances of a model's outputs."""

    def __init__(
        self, model: Model, inputs: Mapping[str, Any], outputs: Mapping[str, Any], tolerance: float | None
    ) -> None:
        self._usual = cache(lambda: tolerances(model, inputs, outputs))
        self._given = tolerance
        self.allowed = self._usual() if tolerance is None else dict.fromkeys(outputs, tolerance)

    def why_strict(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
        """Return a note that the tolerance is below rounding effects, if outputs differ only by those."""
        if self._given is None:
            return ""
        items = compare_outputs(expected, got, self._usual())
        if not all(item.agrees for item in items):
            return ""
        usual = max(item.tolerance for item in items)
        return (
            f"differs only by rounding, which can be up to {usual:.3g} between runtimes; the tolerance is "
            f"{self._given:.3g}"
        )


def compare_outputs(
    expected: Mapping[str, Any], got: Mapping[str, Any], allowed: Mapping[str, float], runtime: str = "onegru"
) -> tuple[Comparison, ...]:
    """Compare each output, with its own tolerance."""
    return tuple(
        compare(want, got.get(name), allowed[name], name, runtime) for name, want in expected.items()
    )
