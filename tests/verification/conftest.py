"""What tests of verification share."""

from __future__ import annotations

import pytest

from onegru.peers.base import ModelUnderTest, Runtime
from onegru.peers.child import RunResult
from tests.support.files.onnx_models import Arrays


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes run here, as they do no harm, and a process for each would take a second."""

    def run(runtime: Runtime, subject: ModelUnderTest, inputs: Arrays, timeout: float) -> RunResult:
        try:
            return RunResult("ran", runtime.run(subject, inputs))
        except Exception as error:
            return RunResult("refuses", reason=repr(error))

    monkeypatch.setattr("onegru.verification.compare_runtimes.run_apart", run)
