"""Which runtimes there are."""

from __future__ import annotations

from onegru.runtimes.onnx_evaluator import OnnxEvaluator
from onegru.runtimes.onnxruntime import OnnxRuntime
from onegru.runtimes.openvino import OpenVino
from onegru.runtimes.subject import Runtime

__all__ = ["RUNTIMES"]

#: Every runtime that models are checked against, where it is installed.
RUNTIMES: tuple[Runtime, ...] = (OnnxRuntime(), OpenVino(), OnnxEvaluator())
