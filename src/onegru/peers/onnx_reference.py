"""Run ONNX's own reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onegru.peers.base import ModelUnderTest, Runtime


@dataclass(frozen=True, slots=True)
class OnnxEvaluator(Runtime):
    """ONNX's reference evaluator; see `onegru.peers.base.Runtime`."""

    name: str = "onnx"

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wanted outputs."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        assert subject.model is not None, "refused before"
        model = onnx.load_from_string(subject.model)
        onnx.load_external_data_for_model(model, str(Path(subject.path).parent))
        evaluator = ReferenceEvaluator(model)
        with np.errstate(all="ignore"):
            results = evaluator.run(None, dict(inputs))
        return dict(zip(evaluator.output_names, results, strict=True))
