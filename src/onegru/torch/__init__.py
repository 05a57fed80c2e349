"""GRUs for PyTorch, trained and run by onegru's kernels.

`GRU` and `GRUCell` take the place of `torch.nn.GRU` and `torch.nn.GRUCell`: the same constructor, the same
names and shapes of parameters, the same results. `accelerate` replaces those of a finished model. `AUGRU`
and `AUGRUCell` have attention. `from_layers` makes a module of a layer. `freeze` packs the weights of a model
that only runs. onegru runs float32 and float64 on the CPU; for other types and devices the same is computed
by PyTorch's own operators.
"""

from onegru.core.errors import needs_extra

with needs_extra("torch", "torch", "onegru.torch"):
    import torch as torch

from onegru.torch.acceleration import Acceleration, accelerate, freeze, restore
from onegru.torch.autograd import flops as flops  # registers them
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
