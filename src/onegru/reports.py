"""What the functions of onegru return beside arrays, layers and models: records to read, print or draw."""

from onegru.engines.native import Targets
from onegru.formats.graph import TensorInfo
from onegru.layers.gates.trace import GateTrace
from onegru.models.gru_node import GruNode
from onegru.models.inspect import Inspection
from onegru.models.report import GruReport
from onegru.quantization.report import Measured, Quantization, QuantizedGru
from onegru.rewriting.check import OutputReport
from onegru.rewriting.fuse import Fusion
from onegru.rewriting.rewrite import NodeReport, Rewriting
from onegru.verification.results import Verification

__all__ = [
    "Fusion",
    "GateTrace",
    "GruNode",
    "GruReport",
    "Inspection",
    "Measured",
    "NodeReport",
    "OutputReport",
    "Quantization",
    "QuantizedGru",
    "Rewriting",
    "Targets",
    "TensorInfo",
    "Verification",
]
