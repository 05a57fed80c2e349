"""Compute the weight gradients of a loop of cells once, from all its steps.

Each step of a loop would otherwise return gradients as large as the weights, and autograd would add them up.
Instead, a step returns a `StepsGradient`, which lists what the gradients need. All steps share one node of
the graph, `OnegruLoopWeights`, which receives the list and multiplies the rows of many steps at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from onegru.core.errors import SpecError
from onegru.torch.arguments import TorchGruConfig
from onegru.torch.autograd.few_steps import gradients_of_few_steps
from onegru.torch.autograd.memory import Tensors
from onegru.torch.autograd.watching import scalar_of_class

_WEIGHTS = 5  # the index of the first weight in the tensors of a step
_ROWS = 512  # rows that are copied and multiplied at once
# Steps with more rows, or with fewer weights, gain less than the lists cost.
_MOST_ROWS, _LEAST_WEIGHTS = 64, 2**16


class Step(NamedTuple):
    """The values of a cell's step that its weight gradients need."""

    tensors: Tensors  # as in the call
    gates: Tensor
    dY: Tensor


class StepsGradient(Tensor):
    """Gradient of `LoopWeights.token`: the steps of a loop, in a tree of pairs."""

    steps: Any  # a Step, or a pair of such trees

    @staticmethod
    def of(like: Tensor, steps: Any) -> StepsGradient:
        """Return a gradient of these steps."""
        made: StepsGradient = scalar_of_class(StepsGradient, like)
        made.steps = steps
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add two gradients by joining their steps. Other operators see a zero."""
        if func is torch.ops.aten.add.Tensor and len(args) == 2 and all(type(x) is cls for x in args):
            return cls.of(args[0], (args[0].steps, args[1].steps))
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0], args[0].steps)
        zeros = [torch.zeros((), dtype=item.dtype) if type(item) is cls else item for item in args]
        return func(*zeros, **(kwargs or {}))

    def all_steps(self) -> list[Step]:
        """Return the steps in the order in which they were added."""
        found, trees = [], [self.steps]
        while trees:
            tree = trees.pop()
            if isinstance(tree, Step):
                found.append(tree)
            else:
                trees += reversed(tree)
        return found


class LoopWeights:
    """The weights of a loop's steps, and the token through which their gradients pass."""

    def __init__(self, form: TorchGruConfig, weights: Tensors) -> None:
        self.weights = weights
        # Kept, because `_SHARED` knows them by their addresses.
        self.nodes = [None if weight is None else weight.grad_fn for weight in weights]
        self.token: Tensor = OnegruLoopWeights.apply(form, *weights)


class OnegruLoopWeights(torch.autograd.Function):
    """Autograd function of the weights of a loop. Its name appears in `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, form: TorchGruConfig, *weights: Tensor | None) -> Tensor:
        """Return a token, whose gradient stands for those of the weights."""
        ctx.form = form
        ctx.set_materialize_grads(False)
        R = weights[1]
        assert R is not None
        return R.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        """Return the gradients of the weights."""
        if gradient is None:
            return (None,) * 5
        if not isinstance(gradient, StepsGradient):
            raise SpecError("gradient of a loop's weights: changed by a hook; must not be changed")
        wanted = ctx.needs_input_grad[1:]
        return (None, *_gradients(ctx.form, gradient.all_steps(), wanted))


_SHARED: WeakValueDictionary[Any, LoopWeights] = WeakValueDictionary()


def weights_of_loop(form: TorchGruConfig, tensors: Tensors) -> LoopWeights | None:
    """Return the weights that a step shares with the other steps of its loop; None if it is not in a loop.

    It is in a loop if its state comes from a recorded operation.
    """
    h, weights = tensors[1], tensors[_WEIGHTS:]
    if h is None or h.grad_fn is None or h.shape[0] > _MOST_ROWS:
        return None
    if sum(weight.numel() for weight in weights if weight is not None) < _LEAST_WEIGHTS:
        return None
    if not any(weight is not None and weight.requires_grad for weight in weights):
        return None
    has_attention = tensors[2] is not None
    # An operation in place, or another type, gives a weight another node in the graph.
    nodes = (
        None if weight is None else (id(weight), id(weight.grad_fn), weight.requires_grad, weight.dtype)
        for weight in weights
    )
    key = (form, has_attention, *nodes)
    shared = _SHARED.get(key)
    if shared is None:
        shared = _SHARED[key] = LoopWeights(form, weights)
    return shared


def _gradients(form: TorchGruConfig, steps: list[Step], wanted: tuple[bool, ...]) -> Tensors:
    """Return the weight gradients of steps, as of a few steps with many rows."""
    total: list[Tensor | None] = []
    count = max(1, _ROWS // max(1, steps[0].dY.shape[0]))
    for first in range(0, len(steps), count):
        found = _gradients_of_rows(form, steps[first : first + count], wanted)
        if total:
            found = [
                None if one is None else one.add_(other) for one, other in zip(found, total, strict=True)
            ]
        total = list(found)
    return total


def _gradients_of_rows(form: TorchGruConfig, steps: list[Step], wanted: tuple[bool, ...]) -> Tensors:
    """Return the weight gradients of steps, as of one step with the rows of all."""
    X, h, attention = (_rows([step.tensors[index] for step in steps]) for index in range(3))
    tensors = [X, h, attention, None, None, *steps[0].tensors[_WEIGHTS:]]
    gates = torch.cat([step.gates for step in steps], 2)
    dY = torch.cat([step.dY for step in steps])
    found = gradients_of_few_steps(form, tensors, gates, (dY, None), (False, False, False, *wanted))
    if found is None:
        raise SpecError("weights of a loop of cells: their memory changed; must be the same until backward")
    return found[3:]


def _rows(tensors: list[Tensor | None]) -> Tensor | None:
    """Return the rows of all steps."""
    return None if tensors[0] is None else torch.cat(tensors)
