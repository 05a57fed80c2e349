"""Run whole models in ONNX Runtime, with its CPU provider or another one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onegru.core.errors import FormatError
from onegru.peers.base import ModelUnderTest, Runtime, installed_version
from onegru.runtimes.execution_provider import get_ep_name

# ONNX Runtime's message within a session's error.
_FRAME = re.compile(r".*: ONNX Runtime (?:refuses it|fails) \((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OnnxRuntime(Runtime):
    """ONNX Runtime; see `onegru.peers.base.Runtime`."""

    name: str = "onnxruntime"  # its name
    # the required execution provider: onegru's must run all GRUs, others the whole model; "" for the CPU's
    provider: str = ""

    def version(self) -> str | None:
        """Return the version; None if it is not installed."""
        return installed_version("onnxruntime", "onnxruntime-gpu")

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wanted outputs."""
        # Imported here, because both need onnx.
        from onegru.formats.onnx.validate import Source, read_model
        from onegru.formats.onnx.whole.optimizers import harmful_optimizers
        from onegru.formats.onnx.whole.session import Session

        assert subject.model is not None, "refused before"
        source = Source.of_path(Path(subject.path))
        try:
            if subject.has_others and self.provider == get_ep_name():
                disabled = harmful_optimizers(read_model(source, subject.model))
                session = Session(subject.model, source, provider={}, disabled=disabled)
            else:
                session = Session(subject.model, source, only_provider=self.provider)
            return dict(zip(session.output_names, session.run(inputs), strict=True))
        except FormatError as error:  # the message only needs ONNX Runtime's own words
            raise FormatError(_FRAME.sub(r"\1", str(error))) from error.__cause__
