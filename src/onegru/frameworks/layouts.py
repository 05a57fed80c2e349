"""Describe the weight layouts of PyTorch, Keras and Flax as data.

`weights` converts between them. Sources: the documentation and the published sources of torch 2.13, Keras 2.1
to 3.15, and Flax 0.12.
Canonical gates are z, r, h; each framework names, orders, joins and transposes them differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from onegru.core.activations import Activation, onnx_names_in
from onegru.core.dtypes import to_float32

#: A block of the canonical weights: W, R, or their biases Wb and Rb.
Block = Literal["W", "R", "Wb", "Rb"]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Tensor of a framework's GRU, for one layer and direction."""

    name: str  # the framework's name, without prefixes and suffixes
    blocks: tuple[Block, ...]  # its blocks; several blocks are the rows of a leading axis
    gates: str  # the gates of each block in the framework's order, from "z", "r" and "h"

    @property
    def is_kernel(self) -> bool:
        """Whether it is a weight matrix; False for a bias."""
        return self.blocks[0] in ("W", "R")


@dataclass(frozen=True, slots=True)
class Framework:
    """Weight layout of a framework's GRU."""

    name: str  # its name
    # the tensors under each supported reset mode (linear_before_reset); a bias without a tensor is zero
    forms: Mapping[bool, tuple[TensorForm, ...]]
    transposed: bool  # whether kernels are [input, gates·H]; [gates·H, input] otherwise
    may_lack_biases: bool  # whether all biases together may be omitted
    # its functions by its own names, except those that onegru lacks or computes with another formula
    activations: Mapping[str, Activation]
    default_activations: tuple[str, str] = ("sigmoid", "tanh")  # its default names of (f, g)
    fixed_activations: bool = False  # whether it supports no other functions
    # its activation layers that can replace a function: the ONNX function, the configuration's entry for
    # alpha, and the required values of the other entries
    activation_layers: Mapping[str, tuple[str, str, Mapping[str, object]]] = field(default_factory=dict)


_EVERYWHERE = {
    "elu": Activation("Elu", 1.0),
    "celu": Activation("Elu", 1.0),  # the same function with its default alpha of 1
    "hard_sigmoid": Activation("HardSigmoid", to_float32(1 / 6), 0.5),
}


def _named(framework: str) -> dict[str, Activation]:
    return {name: Activation(kind) for name, kind in onnx_names_in(framework).items()} | _EVERYWHERE


PYTORCH = Framework(
    name="PyTorch",
    forms={
        True: (
            TensorForm("weight_ih", ("W",), "rzh"),
            TensorForm("weight_hh", ("R",), "rzh"),
            TensorForm("bias_ih", ("Wb",), "rzh"),
            TensorForm("bias_hh", ("Rb",), "rzh"),
        )
    },
    transposed=False,
    may_lack_biases=True,
    activations={"sigmoid": Activation("Sigmoid"), "tanh": Activation("Tanh")},
    fixed_activations=True,
)

_KERAS_KERNELS = (TensorForm("kernel", ("W",), "zrh"), TensorForm("recurrent_kernel", ("R",), "zrh"))

KERAS = Framework(
    name="Keras",
    forms={
        True: (*_KERAS_KERNELS, TensorForm("bias", ("Wb", "Rb"), "zrh")),
        False: (*_KERAS_KERNELS, TensorForm("bias", ("Wb",), "zrh")),
    },
    transposed=True,
    may_lack_biases=True,
    activations={
        **_named("Keras"),
        "linear": Activation("Affine", 1.0, 0.0),
        "leaky_relu": Activation("LeakyRelu", to_float32(0.2)),
        "sparse_sigmoid": Activation("HardSigmoid", 0.5, 0.5),
    },
    activation_layers={
        "LeakyReLU": ("LeakyRelu", "negative_slope", {}),
        "ELU": ("Elu", "alpha", {}),
        "ReLU": ("LeakyRelu", "negative_slope", {"max_value": None, "threshold": 0.0}),
    },
)

#: Keras 2, which has another hard_sigmoid.
KERAS_2 = replace(
    KERAS,
    name="Keras 2",
    activations={**KERAS.activations, "hard_sigmoid": Activation("HardSigmoid", to_float32(0.2), 0.5)},
    activation_layers={**KERAS.activation_layers, "LeakyReLU": ("LeakyRelu", "alpha", {})},
)

_FLAX_ACTIVATIONS = {**_named("Flax"), "leaky_relu": Activation("LeakyRelu", to_float32(0.01))}

FLAX_LINEN = Framework(
    name="Flax linen",
    forms={
        True: (
            *(TensorForm(f"i{own}.kernel", ("W",), gate) for own, gate in zip("rzn", "rzh", strict=True)),
            *(TensorForm(f"i{own}.bias", ("Wb",), gate) for own, gate in zip("rzn", "rzh", strict=True)),
            *(TensorForm(f"h{own}.kernel", ("R",), gate) for own, gate in zip("rzn", "rzh", strict=True)),
            TensorForm("hn.bias", ("Rb",), "h"),
        )
    },
    transposed=True,
    may_lack_biases=False,
    activations=_FLAX_ACTIVATIONS,
)

FLAX_NNX = Framework(
    name="Flax NNX",
    forms={
        True: (
            TensorForm("dense_i.kernel", ("W",), "rzh"),
            TensorForm("dense_i.bias", ("Wb",), "rzh"),
            TensorForm("dense_h.kernel", ("R",), "rzh"),
        )
    },
    transposed=True,
    may_lack_biases=False,
    activations=_FLAX_ACTIVATIONS,
)
