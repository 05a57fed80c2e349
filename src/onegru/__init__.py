"""onegru: one exact implementation of every GRU operator.

Operators as functions (`gru`, `gru_cell`, `gru_sequence`, `augru_cell`, `augru_sequence`), a layer whose
weights are prepared once (`GRU`), and files that hold them (`load`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from onegru._native import version
from onegru.activations import Activation
from onegru.errors import FormatError, MissingExtraError, OneGRUError, SpecError, SpecWarning
from onegru.functional import augru_cell, augru_sequence, gru, gru_cell, gru_sequence
from onegru.layer import GRU
from onegru.model_stream import ModelStream
from onegru.native import Targets, get_num_threads, release_memory, set_num_threads, targets
from onegru.session import GruLayer, Model, load
from onegru.spec import Spec, Weights
from onegru.stack import Stack, StackStream
from onegru.stream import Stream

if TYPE_CHECKING:
    from onegru import execution_provider
    from onegru.frameworks.flax import from_flax, to_flax
    from onegru.frameworks.keras3 import from_keras, to_keras, to_keras_weights
    from onegru.frameworks.pytorch import from_torch, to_torch, to_torch_state_dict
    from onegru.inference_session import InferenceSession
    from onegru.loading import load_layers
    from onegru.openvino_ops import openvino_exchange, openvino_extensions
    from onegru.padding import pad
    from onegru.report import inspect
    from onegru.saving import save

__version__ = version()

__all__ = [
    "GRU",
    "Activation",
    "FormatError",
    "GruLayer",
    "InferenceSession",
    "MissingExtraError",
    "Model",
    "ModelStream",
    "OneGRUError",
    "Spec",
    "SpecError",
    "SpecWarning",
    "Stack",
    "StackStream",
    "Stream",
    "Targets",
    "Weights",
    "__version__",
    "augru_cell",
    "augru_sequence",
    "execution_provider",
    "from_flax",
    "from_keras",
    "from_torch",
    "get_num_threads",
    "gru",
    "gru_cell",
    "gru_sequence",
    "inspect",
    "load",
    "load_layers",
    "openvino_exchange",
    "openvino_extensions",
    "pad",
    "release_memory",
    "save",
    "set_num_threads",
    "targets",
    "to_flax",
    "to_keras",
    "to_keras_weights",
    "to_torch",
    "to_torch_state_dict",
]

# Imported when first asked for, so that `import onegru` stays quick.
_LATER = {
    "InferenceSession": "onegru.inference_session",
    "from_flax": "onegru.frameworks.flax",
    "from_keras": "onegru.frameworks.keras3",
    "from_torch": "onegru.frameworks.pytorch",
    "inspect": "onegru.report",
    "load_layers": "onegru.loading",
    "openvino_exchange": "onegru.openvino_ops",
    "openvino_extensions": "onegru.openvino_ops",
    "pad": "onegru.padding",
    "save": "onegru.saving",
    "to_flax": "onegru.frameworks.flax",
    "to_keras": "onegru.frameworks.keras3",
    "to_keras_weights": "onegru.frameworks.keras3",
    "to_torch": "onegru.frameworks.pytorch",
    "to_torch_state_dict": "onegru.frameworks.pytorch",
}


# Public modules, likewise: what the onnx package and ONNX Runtime are given.
_MODULES = ("backend", "execution_provider")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"onegru.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What users need: the public names and modules, what every module has."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
