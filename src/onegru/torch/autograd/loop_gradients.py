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
_ROWS = 512  # rows that are kept, then multiplied at once
# Steps with more rows, or with fewer weights, gain less than the lists cost.
_MOST_ROWS, _LEAST_WEIGHTS = 64, 2**16


class SavedStep(NamedTuple):
    """The values of a cell's step that its weight gradients need."""

    tensors: Tensors  # as in the call
    gates: Tensor
    dY: Tensor


class StepsGradient(Tensor):
    """Gradient of `LoopWeights.token`: some steps of a loop, and the sums over others."""

    form: TorchGruConfig
    wanted: tuple[bool, ...]  # which weights need gradients
    steps: tuple[SavedStep, ...]  # steps with the same weights, which are not in the sums yet
    rows: int  # the number of their rows
    sums: Tensors  # the weight gradients of other steps; empty if there are none

    @staticmethod
    def of(
        like: Tensor,
        form: TorchGruConfig,
        wanted: tuple[bool, ...],
        steps: tuple[SavedStep, ...],
        rows: int,
        sums: Tensors,
    ) -> StepsGradient:
        """Return a gradient with the type of `like`."""
        made: StepsGradient = scalar_of_class(StepsGradient, like)
        made.form, made.wanted, made.steps, made.rows, made.sums = form, wanted, steps, rows, sums
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add two gradients, or copy one. Other operators see a zero."""
        if func is torch.ops.aten.add.Tensor and len(args) == 2 and all(type(x) is cls for x in args):
            return args[0].plus(args[1])
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            one = args[0]
            return cls.of(one, one.form, one.wanted, one.steps, one.rows, one.sums)
        zeros = [torch.zeros((), dtype=item.dtype) if type(item) is cls else item for item in args]
        return func(*zeros, **(kwargs or {}))

    def plus(self, other: StepsGradient) -> StepsGradient:
        """Return the sum of both; at most `_ROWS` rows are kept for later."""
        steps, rows, sums = self.steps, self.rows + other.rows, _added(self.sums, other.sums)
        if steps and other.steps and not _have_equal_weights(steps[0], other.steps[0]):
            steps, rows, sums = (), other.rows, _added(sums, self._gradients(steps))
        steps += other.steps
        if rows >= _ROWS:
            steps, rows, sums = (), 0, _added(sums, self._gradients(steps))
        return self.of(self, self.form, self.wanted, steps, rows, sums)

    def total(self) -> Tensors:
        """Return the weight gradients of all steps."""
        return _added(self.sums, self._gradients(self.steps)) if self.steps else self.sums

    def _gradients(self, steps: tuple[SavedStep, ...]) -> Tensors:
        """Return the weight gradients of steps, as of one step with the rows of all."""
        X, h, attention = (_rows([step.tensors[index] for step in steps]) for index in range(3))
        tensors = [X, h, attention, None, None, *steps[0].tensors[_WEIGHTS:]]
        gates = torch.cat([step.gates for step in steps], 2)
        dY = torch.cat([step.dY for step in steps])
        wanted = (False, False, False, *self.wanted)
        found = gradients_of_few_steps(self.form, tensors, gates, (dY, None), wanted)
        if found is None:
            raise SpecError(
                "weights of a loop of cells: their memory changed; must be the same until backward"
            )
        return found[3:]


def _rows(tensors: list[Tensor | None]) -> Tensor | None:
    """Return the rows of all steps."""
    return None if tensors[0] is None else torch.cat(tensors)


def _added(one: Tensors, other: Tensors) -> Tensors:
    """Return the sums of two lists of gradients; an empty list counts as zeros."""
    if not one or not other:
        return one or other
    return [None if a is None or b is None else a + b for a, b in zip(one, other, strict=True)]


def _have_equal_weights(one: SavedStep, other: SavedStep) -> bool:
    """Whether two steps have the same memory of weights, which assigned data or hooks may replace."""
    pairs = zip(one.tensors[_WEIGHTS:], other.tensors[_WEIGHTS:], strict=True)
    return all(a is b or (a is not None and b is not None and a.data_ptr() == b.data_ptr()) for a, b in pairs)


class LoopWeights:
    """The weights of a loop's steps, and the token through which their gradients pass."""

    def __init__(self, weights: Tensors) -> None:
        self.weights = weights
        # Kept, because `_SHARED` knows them by their addresses.
        self.nodes = [None if weight is None else weight.grad_fn for weight in weights]
        self.token: Tensor = OnegruLoopWeights.apply(*weights)


class OnegruLoopWeights(torch.autograd.Function):
    """Autograd function of the weights of a loop. Its name appears in `grad_fn` and in profiles."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor | None) -> Tensor:
        """Return a token, whose gradient stands for those of the weights."""
        ctx.set_materialize_grads(False)
        R = weights[1]
        assert R is not None
        return R.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        """Return the gradients of the weights."""
        if gradient is None:
            return (None,) * 4
        if not isinstance(gradient, StepsGradient):
            raise SpecError("gradient of a loop's weights: changed by a hook; must not be changed")
        return tuple(gradient.total())


_SHARED: WeakValueDictionary[Any, LoopWeights] = WeakValueDictionary()


def weights_of_loop(form: TorchGruConfig, tensors: Tensors) -> LoopWeights | None:
    """Return the weights that a step shares with its loop; None if its state has no recorded operation."""
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
        shared = _SHARED[key] = LoopWeights(weights)
    return shared
