"""Run models in a runtime that crashes, hangs or returns wrong results; child processes import it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onegru.conformance.case import Case
from onegru.conformance.cases import all_cases
from onegru.peers.base import ModelUnderTest
from tests.support.models.mutants import Fake


def named(*names: str) -> list[Case]:
    """Return cases of GRU-14, by their unusual levels."""
    known = {case.name: case for case in all_cases()}
    return [known[f"gru_14__{name}"] for name in names]


@dataclass(frozen=True)
class FaultyRuntime(Fake):
    """Runtime that runs ONNX models in onegru, except for a fault selected by the case's name."""

    faults: Mapping[str, str] = field(default_factory=dict)
    place: int = 0

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results = super().run(subject, inputs)
        match self.faults.get(subject.path, ""):
            case "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(3)
            case "leaves":
                os._exit(0)
            case "hang":
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                time.sleep(600)
            case "memory":
                np.ones(1 << 37)
            case "memory and abort":
                os.write(2, b"terminate called\n  what():  std::bad_alloc\n")
                os.abort()
            case "raise":
                raise RuntimeError("no such\noperator")
            case "tell":
                raise RuntimeError(f"cannot read {Path.cwd()}/{self.place}/model.xml")
            case "garbage":
                number = sum(name.name.startswith("answer-") for name in Path().iterdir())
                Path(f"answer-{number}").write_bytes(b"\xff" * 100)
                os._exit(0)
            case "no folder":
                shutil.rmtree(Path.cwd())
                os._exit(0)
            case "pipe":
                number = sum(name.name.startswith("answer-") for name in Path().iterdir())
                os.mkfifo(f"answer-{number}")
                for number in range(10):
                    Path(f"ready-{number}").unlink(missing_ok=True)
                    Path(f"ready-{number}").mkdir()
                time.sleep(600)
            case "nothing":
                return {}
            case "type":
                return {name: array.astype(np.float64) for name, array in results.items()}
            case "shape":
                return {name: array[..., None] for name, array in results.items()}
            case "off":
                results["Y"][2, 0, 1, 3] += np.float32(0.5)
        return results
