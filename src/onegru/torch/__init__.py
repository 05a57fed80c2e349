"""GRUs for PyTorch, trained and run by onegru's kernels.

`GRU` and `GRUCell` are drop-in replacements for `torch.nn.GRU` and `torch.nn.GRUCell`, with the same
constructor, parameters and results. `accelerate` replaces the GRUs of an existing model. `AUGRU` and
`AUGRUCell` have attention. `from_layers` converts a layer to a module. `freeze` packs the weights of a model
for inference. onegru's kernels compute float32 and float64 on the CPU. Other types and devices use PyTorch's
own operators.
"""

from onegru.core.errors import needs_extra

with needs_extra("torch", "torch", "onegru.torch"):
    import torch as torch

from onegru.torch.acceleration import Acceleration, accelerate, freeze, restore
from onegru.torch.autograd import flops as flops  # registers the formulas
from onegru.torch.cells import AUGRUCell, GRUCell
from onegru.torch.from_layers import from_layers
from onegru.torch.functional import gru
from onegru.torch.modules import AUGRU, GRU

__all__ = [
    "AUGRU",
    "GRU",
    "AUGRUCell",
    "Acceleration",
    "GRUCell",
    "accelerate",
    "freeze",
    "from_layers",
    "gru",
    "restore",
]
