"""Run models in other runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from onegru.core.dtypes import Array
from tests.support.files.onnx_models import Arrays


def onnxruntime_results(proto: ModelProto, feeds: Mapping[str, object]) -> Arrays:
    """Return ONNX Runtime's outputs of the whole model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    arrays = {name: item if isinstance(item, list) else np.asarray(item) for name, item in feeds.items()}
    return dict(zip(names, session.run(names, arrays), strict=True))


def openvino_results(model: Path | ModelProto, feeds: Mapping[str, Array]) -> Arrays:
    """Return OpenVINO's outputs of a model, in float32; feeds without an input are omitted."""
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    source = model if isinstance(model, Path) else core.read_model(model.SerializeToString())
    compiled = core.compile_model(source, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = {
        port: next(array for name, array in feeds.items() if name in port.names) for port in compiled.inputs
    }
    results = compiled(inputs)
    found = {name: np.array(results[port]) for port in compiled.outputs for name in port.names}
    return found if isinstance(model, Path) else {item.name: found[item.name] for item in model.graph.output}
