"""onegru: one exact implementation of every GRU operator.

Operators as functions (`gru`, `gru_cell`, `gru_sequence`, `augru_cell`, `augru_sequence`), a layer whose
weights are prepared once (`GRU`), and files that hold them (`load`).
"""

from __future__ import annotations

from onegru._native import version
from onegru.errors import FormatError, MissingExtraError, OneGRUError, SpecError, SpecWarning
from onegru.frameworks.flax import from_flax, to_flax
from onegru.frameworks.keras3 import from_keras, to_keras, to_keras_weights
from onegru.frameworks.pytorch import from_torch, to_torch, to_torch_state_dict
from onegru.functional import augru_cell, augru_sequence, gru, gru_cell, gru_sequence
from onegru.inference_session import InferenceSession
from onegru.layer import GRU
from onegru.loading import load_layers
from onegru.model_stream import ModelStream
from onegru.native import Targets, get_num_threads, set_num_threads, targets
from onegru.saving import save
from onegru.session import GruLayer, Model, load
from onegru.stack import Stack, StackStream
from onegru.stream import Stream

__version__ = version()

__all__ = [
    "GRU",
    "FormatError",
    "GruLayer",
    "InferenceSession",
    "MissingExtraError",
    "Model",
    "ModelStream",
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
    "from_flax",
    "from_keras",
    "from_torch",
    "get_num_threads",
    "gru",
    "gru_cell",
    "gru_sequence",
    "load",
    "load_layers",
    "save",
    "set_num_threads",
    "targets",
    "to_flax",
    "to_keras",
    "to_keras_weights",
    "to_torch",
    "to_torch_state_dict",
]
