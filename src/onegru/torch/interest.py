"""Run the attention GRUs of DeepCTR-Torch with onegru's kernels.

Its `DynamicGRU` runs a cell step by step over packed sequences and packed scores. With the update gate u,

    h = (1 - a·u)∘h + a·u∘n        AUGRUCell: attention "dien" with z = 1 - u
    h = (1 - a)·h + a·n            AGRUCell: the same with z = 0

So the weights of z are the negated weights of u, or zeros with a bias that closes the gate.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from onegru.core.compare import compare_scaled
from onegru.torch.arguments import form_of
from onegru.torch.autograd.function import gru_layer
from onegru.torch.packed import groups_of, joined

_PACKAGE = "deepctr_torch.layers.sequence"
_CELLS = ("AUGRUCell", "AGRUCell")
_FORM = form_of("forward", True, None, None, None, None, attention="dien")
_CLOSED = -800.0  # a bias whose sigmoid is 0, even in float64
#: Relative to the largest value. A difference of 4e-7 in float32 is detected.
_MOST_APART = {torch.float32: 1e-5, torch.float64: 1e-12}


class InterestGRU(nn.Module):
    """Base that precedes `DynamicGRU` in a module's class; see `replacement_class`."""

    def forward(self, inputs: Any, att_scores: Any = None, hx: Tensor | None = None) -> Any:
        """Return the states after all steps, as a PackedSequence. The arguments are those of `DynamicGRU`."""
        packed = isinstance(inputs, PackedSequence) and isinstance(att_scores, PackedSequence)
        plain = packed and not torch.is_autocast_enabled(inputs.data.device.type)
        if not plain or torch.compiler.is_compiling() or inputs.data.dtype not in _MOST_APART:
            return super().forward(inputs, att_scores, hx)
        weights = _weights(self.rnn)
        start = None if hx is None else hx[None]
        groups = groups_of(inputs, inputs.data.shape[1] + weights[1].shape[1])
        results = [
            gru_layer(
                _FORM,
                (
                    group.take(inputs.data),
                    None if start is None else start[:, group.rows],
                    group.take(att_scores.data.reshape(-1)),
                    group.lengths,
                    None,
                    *weights,
                ),
            )[0]
            for group in groups
        ]
        return inputs._replace(data=joined(groups, results))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty_copy, (type(self).__bases__[1],), self.__dict__


def _empty_copy(original: Any) -> Any:
    """Make an empty module of the class; copies and pickles then fill it."""
    kind = replacement_class(original)
    return kind.__new__(kind)


@functools.cache
def replacement_class(original: Any) -> Any:
    """Return a subclass of `DynamicGRU` that runs it with onegru's kernels."""
    return type(original.__name__, (InterestGRU, original), {"__module__": original.__module__})


def _weights(cell: nn.Module) -> list[Tensor]:
    """Return the cell's weights with z instead of its update gate."""
    W, R, b, c = (getattr(cell, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    if b is None:
        b = c = W.new_zeros(W.shape[0])
    if type(cell).__name__ == "AUGRUCell":
        return [_with_z(tensor, -tensor.chunk(3)[1]) for tensor in (W, R, b, c)]
    zero = [torch.zeros_like(tensor.chunk(3)[1]) for tensor in (W, R, b, c)]
    zero[2] = zero[2] + _CLOSED
    return [_with_z(tensor, z) for tensor, z in zip((W, R, b, c), zero, strict=True)]


def _with_z(tensor: Tensor, z: Tensor) -> Tensor:
    r, _, n = tensor.chunk(3)
    return torch.cat((r, z, n))


def is_dynamic_gru(module: nn.Module) -> bool:
    """Whether a module is DeepCTR-Torch's `DynamicGRU`, by its name."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == (_PACKAGE, "DynamicGRU") and not isinstance(
        module, InterestGRU
    )


def why_not_replaced(module: nn.Module) -> str:
    """Return the reason why a `DynamicGRU` is not replaced; "" if a trial run gives the same values."""
    cell = getattr(module, "rnn", None)
    if type(cell).__module__ != _PACKAGE or type(cell).__name__ not in _CELLS:
        return "its cell is unknown"
    assert isinstance(cell, nn.Module)
    if hasattr(cell, "parametrizations"):
        return "its parameters are computed from others"
    if cell.weight_ih.dtype not in _MOST_APART or cell.weight_ih.device.type != "cpu":
        return "its parameters are not float32 or float64, or not on the CPU"
    draw = torch.Generator().manual_seed(0)
    given = [
        pack_sequence([torch.randn((T, width), generator=draw).to(cell.weight_ih.dtype) for T in (5, 3, 1)])
        for width in (cell.weight_ih.shape[1], 1)
    ]
    try:
        with torch.no_grad():
            theirs = type(module).forward(module, *given).data
            ours = InterestGRU.forward(_Tried(module), *given).data
    except Exception:  # another version, which has other arguments
        return "the trial run failed"
    item = compare_scaled(theirs.numpy(), ours.numpy(), _MOST_APART[theirs.dtype])
    return "" if item.agrees else "the trial run returned other values"


class _Tried(InterestGRU):
    """Class for the trial run."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.rnn = module.rnn
