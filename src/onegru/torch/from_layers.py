"""Convert layers to PyTorch modules, for training."""

from __future__ import annotations

from typing import Any

import torch

from onegru.core.arguments import flag
from onegru.core.dtypes import Array
from onegru.core.errors import SpecError
from onegru.layers.gru import GRU as Layer
from onegru.layers.stack import Stack, layers_of
from onegru.torch.arguments import must_have_attention, swap_gates
from onegru.torch.modules import AUGRU, GRU

_SHARED = ("direction", "hidden_size", "linear_before_reset", "clip", "activations", "attention", "dtype")


def from_layers(source: Layer | Stack, *, batch_first: bool | None = None) -> GRU:
    """Create a module from a layer or stack, with a copy of its weights.

    `onegru.from_torch` is the inverse.

    Args:
        source: any variant except a single reverse layer. All layers of a stack must have the same variant
            and hidden size. Weights that are stored in fewer bits are converted to the module's type.
        batch_first: as in `torch.nn.GRU`. Default: None (the source's own layout).

    Returns:
        a `GRU`, or an `AUGRU` for a layer with attention, of the layer's type, on the CPU.

    Raises:
        SpecError: no module supports this variant.
    """
    layers = layers_of(source)
    first = layers[0].spec
    if first.direction == "reverse":
        raise SpecError.of("source", "direction 'reverse'; must be forward or bidirectional")
    if first.dtype not in ("float32", "float64"):
        raise SpecError.of("source", f"{first.dtype}; must be float32 or float64, which are trained")
    for index, layer in enumerate(layers):
        for name in _SHARED:
            mine, others = getattr(layer.spec, name), getattr(first, name)
            if mine != others:
                words = f"layer {index}: {name} {mine!r}; must be {others!r}, as in the first"
                raise SpecError.of("source", words)
    if first.attention and len(layers) > 1:
        raise SpecError.of("source", f"{len(layers)} layers with attention; must be one")
    functions = [item for pair in first.activations for item in pair]
    options: dict[str, Any] = {
        "batch_first": bool(source.layout) if batch_first is None else flag("batch_first", batch_first),
        "dtype": getattr(torch, first.dtype),
        "device": "meta",  # no initial values, so torch's random state stays unchanged
        "linear_before_reset": first.linear_before_reset,
        "clip": first.clip,
        "activations": [item.name for item in functions],
        "activation_alpha": [item.alpha for item in functions if item.alpha is not None],
        "activation_beta": [item.beta for item in functions if item.beta is not None],
    }
    if first.attention:
        kind = must_have_attention(first.attention)
        module: GRU = AUGRU(first.input_size, first.hidden_size, attention=kind, **options)
    else:
        both = first.direction == "bidirectional"
        module = GRU(first.input_size, first.hidden_size, len(layers), bidirectional=both, **options)
    module = module.to_empty(device="cpu")
    with torch.no_grad():
        for index, layer in enumerate(layers):
            for d, suffix in enumerate(("", "_reverse")[: layer.spec.num_directions]):
                for name, array in _arrays(layer, d).items():
                    module.get_parameter(f"{name}_l{index}{suffix}").copy_(torch.from_numpy(array))
    return module


def _arrays(layer: Layer, d: int) -> dict[str, Array]:
    """Return the parameters of a direction, by PyTorch's names."""
    weights, count = layer.weights, 3 * layer.spec.hidden_size
    own = {
        "weight_ih": weights.W[d],
        "weight_hh": weights.R[d],
        "bias_ih": weights.B[d, :count],
        "bias_hh": weights.B[d, count:],
    }
    return {name: swap_gates(array) for name, array in own.items()}
