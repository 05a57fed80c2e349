"""ONNX Runtime on a whole model, by its CPU provider or by another one."""

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
    """See `onegru.peers.base.Runtime`."""

    name: str = "onnxruntime"  # what to call it
    # the execution provider that has to take the whole model, onegru's all of its GRUs; empty for the CPU's
    provider: str = ""

    def version(self) -> str | None:
        """Its version; None where it is not installed."""
        return installed_version("onnxruntime", "onnxruntime-gpu")

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The wanted outputs."""
        # Imported here, as both need onnx.
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
                session = Session(subject.model, source, alone=self.provider)
            return dict(zip(session.output_names, session.run(inputs), strict=True))
        except FormatError as error:  # only ONNX Runtime's own words are of interest
            raise FormatError(_FRAME.sub(r"\1", str(error))) from error.__cause__
