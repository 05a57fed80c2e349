"""onegru: one exact implementation of every GRU operator.

Operators as functions (`gru`, `gru_cell`, `gru_sequence`, `augru_cell`, `augru_sequence`), a layer whose
weights are prepared once (`GRU`), and files that hold them (`load`).
"""

from __future__ import annotations

from onegru._native import version
from onegru.errors import FormatError, MissingExtraError, OneGRUError, SpecError, SpecWarning
from onegru.functional import augru_cell, augru_sequence, gru, gru_cell, gru_sequence
from onegru.layer import GRU
from onegru.native import Targets, get_num_threads, set_num_threads, targets
from onegru.openvino_ops import openvino_extensions
from onegru.session import GruLayer, Model, load
from onegru.stack import Stack, StackStream
from onegru.stream import Stream

__version__ = version()

__all__ = [
    "GRU",
    "FormatError",
    "GruLayer",
    "MissingExtraError",
    "Model",
    "OneGRUError",
    "SpecError",
    "SpecWarning",
    "Stack",
    "StackStream",
    "Stream",
    "Targets",
    "__version__",
    "augru_cell",
    "augru_sequence",
    "get_num_threads",
    "gru",
    "gru_cell",
    "gru_sequence",
    "load",
    "openvino_extensions",
    "set_num_threads",
    "targets",
]
