"""Streams and reports that functions of onegru return."""

from onegru.core.compare import Comparison
from onegru.engines.native import Targets
from onegru.formats.graph import TensorInfo
from onegru.layers.gates.trace import GateTrace
from onegru.layers.stack import StackStream
from onegru.layers.stream import Stream
from onegru.models.gru_node import GruNode
from onegru.models.inspect import Inspection
from onegru.models.report import GruReport
from onegru.models.stream import ModelStream
from onegru.quantization.report import ModeResult, Quantization, QuantizedGru
from onegru.rewriting.fuse import Fusion
from onegru.rewriting.rewrite import NodeReport, Rewriting
from onegru.verification.results import Verification

__all__ = [
    "Comparison",
    "Fusion",
    "GateTrace",
    "GruNode",
    "GruReport",
    "Inspection",
    "ModeResult",
    "ModelStream",
    "NodeReport",
    "Quantization",
    "QuantizedGru",
    "Rewriting",
    "StackStream",
    "Stream",
    "Targets",
    "TensorInfo",
    "Verification",
]
