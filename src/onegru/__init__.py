"""Fast, bit-reproducible GRUs on the CPU, for ONNX, OpenVINO, PyTorch, Keras and Flax.

The package has the operators as functions (`gru`, `gru_cell`, `gru_sequence`, `augru_cell`,
`augru_sequence`), a layer that packs its weights once (`GRU`), and models from files (`load`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from onegru._native import version
from onegru.core.activations import Activation
from onegru.core.errors import FormatError, MissingExtraError, OneGRUError, SpecError, SpecWarning
from onegru.core.spec import Spec, Weights
from onegru.engines.native import empty_cache, get_num_threads, set_num_threads, targets
from onegru.layers.functional import augru_cell, augru_sequence, gru, gru_cell, gru_sequence
from onegru.layers.gru import GRU
from onegru.layers.stack import Stack
from onegru.models.load import load
from onegru.models.model import Model

if TYPE_CHECKING:
    from onegru import conformance, execution_provider, openvino, reports, scoring
    from onegru.formats.save import save_layers
    from onegru.frameworks.flax import from_flax, to_flax
    from onegru.frameworks.keras import from_keras, to_keras, to_keras_weights
    from onegru.frameworks.pytorch import from_torch, to_torch, to_torch_state_dict
    from onegru.layers.padding import pad
    from onegru.models.inference_session import InferenceSession
    from onegru.models.inspect import inspect
    from onegru.models.layer_files.load import load_layers
    from onegru.quantization.quantize import quantize
    from onegru.rewriting.check import Check
    from onegru.rewriting.fuse import fuse
    from onegru.rewriting.make_streaming import make_streaming
    from onegru.rewriting.rewrite import rewrite
    from onegru.verification.verify import verify

__version__ = version()

__all__ = [
    "GRU",
    "Activation",
    "Check",
    "FormatError",
    "InferenceSession",
    "MissingExtraError",
    "Model",
    "OneGRUError",
    "Spec",
    "SpecError",
    "SpecWarning",
    "Stack",
    "Weights",
    "augru_cell",
    "augru_sequence",
    "conformance",
    "empty_cache",
    "execution_provider",
    "from_flax",
    "from_keras",
    "from_torch",
    "fuse",
    "get_num_threads",
    "gru",
    "gru_cell",
    "gru_sequence",
    "inspect",
    "load",
    "load_layers",
    "make_streaming",
    "openvino",
    "pad",
    "quantize",
    "reports",
    "rewrite",
    "save_layers",
    "scoring",
    "set_num_threads",
    "targets",
    "to_flax",
    "to_keras",
    "to_keras_weights",
    "to_torch",
    "to_torch_state_dict",
    "verify",
]

# These modules are imported at first use, so that `import onegru` is fast.
_LATER = {
    "Check": "onegru.rewriting.check",
    "InferenceSession": "onegru.models.inference_session",
    "from_flax": "onegru.frameworks.flax",
    "from_keras": "onegru.frameworks.keras",
    "from_torch": "onegru.frameworks.pytorch",
    "fuse": "onegru.rewriting.fuse",
    "inspect": "onegru.models.inspect",
    "load_layers": "onegru.models.layer_files.load",
    "make_streaming": "onegru.rewriting.make_streaming",
    "pad": "onegru.layers.padding",
    "quantize": "onegru.quantization.quantize",
    "rewrite": "onegru.rewriting.rewrite",
    "save_layers": "onegru.formats.save",
    "to_flax": "onegru.frameworks.flax",
    "to_keras": "onegru.frameworks.keras",
    "to_keras_weights": "onegru.frameworks.keras",
    "to_torch": "onegru.frameworks.pytorch",
    "to_torch_state_dict": "onegru.frameworks.pytorch",
    "verify": "onegru.verification.verify",
}

# Public modules that are imported at first use.
_MODULES = ("backend", "conformance", "execution_provider", "openvino", "reports", "scoring")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"onegru.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names and modules, and the names that every module has."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
