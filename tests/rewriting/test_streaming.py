"""Models of whole sequences that become models of chunks: the same numbers, or a refusal that is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto

import onegru
from onegru import FormatError, SpecError
from onegru.core.dtypes import Array
from onegru.formats.graph import STREAM_KEY
from onegru.timeline.planning import plan, planner
from tests.support.comparison import assert_bits
from tests.support.files.int8_files import store_in_int8
from tests.support.files.onnx_models import graph, model, node, save, value

B, C, T = 2, 6, 23


@dataclass
class Network:
    """A network on X [batch, C, time] that grows node by node."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    last: str = "X"

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}.{index}" for index in range(1, outputs))]
        self.nodes.append(node(kind, list(inputs), names, name=name, **attributes))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) * 0.7 / np.sqrt(np.prod(shape[1:])))

    def conv(self, value: str, size: int, dilation: int = 1, pads: tuple[int, int] = (0, 0)) -> str:
        W = self.weights(C, C, size)
        return self.add("Conv", value, W, dilations=[dilation], kernel_shape=[size], pads=list(pads))

    def swapped(self, value: str, perm: tuple[int, ...] = (2, 0, 1)) -> str:
        return self.add("Transpose", value, perm=perm)

    def gru(self, kind: str = "GRU", direction: str = "forward", *, is_learned: bool = False) -> str:
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
        D = 2 if direction == "bidirectional" else 1
        W, R = self.weights(D, gates * C, C), self.weights(D, gates * C, C)
        count = 3 if kind == "LSTM" else 2
        x = self.swapped(self.last)
        start: list[str] = []
        if is_learned:
            rows, one = self.add("Gather", self.add("Shape", "X"), self.constant([0], np.int64)), [1]
            sizes = self.add(
                "Concat", self.constant(one, np.int64), rows, self.constant(one, np.int64), axis=0
            )
            h = self.constant(self.rng.standard_normal((1, 1, C)))
            start = ["", "", *[self.add("Expand", h, sizes)] * (count - 1)]
        Y = self.add(kind, x, W, R, *start, outputs=count, hidden_size=C, direction=direction)
        if D == 2:
            Y = self.add("ReduceMean", Y, axes=[1], keepdims=1)
        return self.swapped(self.add("Squeeze", Y, self.constant([1], np.int64)), (1, 2, 0))

    def proto(self, opset: int = 14) -> ModelProto:
        self.nodes.append(node("Identity", [self.last], ["Z"], name="end"))
        info = value("X", shape=["batch", C, "time"])
        return model(
            graph(self.nodes, [info], [value("Z", shape=["batch", C, None])], self.constants), opset=opset
        )


def padded_conv(net: Network) -> str:
    size, dilation = int(net.rng.integers(2, 5)), int(net.rng.integers(1, 4))
    pads = net.constant([0, 0, (size - 1) * dilation, 0, 0, 0], np.int64)
    padded = net.add("Pad", net.last, pads)
    if net.rng.integers(2):
        padded = net.add("Tanh", padded)
    return net.conv(padded, size, dilation)


def ahead_conv(net: Network) -> str:
    size = int(net.rng.integers(2, 5))
    return net.conv(net.last, size, pads=(size - 1, 0))


def chomped_conv(net: Network) -> str:
    size = int(net.rng.integers(2, 5))
    both = net.conv(net.last, size, pads=(size - 1, size - 1))
    ends = [net.constant(item, np.int64) for item in ([0], [1 - size], [2])]
    return net.add("Slice", net.add("Tanh", both), *ends)


def deconvolved(net: Network) -> str:
    """A deconvolution of groups whose last steps are cut, by its own pads or after it."""
    size, dilation, groups = (int(net.rng.integers(*ends)) for ends in ((2, 5), (1, 4), (1, 3)))
    reach = (size - 1) * dilation
    own, bias = int(net.rng.integers(reach + 1)), [net.weights(C)] * int(net.rng.integers(2))
    W = net.weights(C, C // groups, size)
    words: dict[str, Any] = {"dilations": [dilation], "group": groups}
    y = net.add("ConvTranspose", net.last, W, *bias, pads=[0, own], **words)
    return cut(net, y, 0, own - reach) if own < reach else y


def zeros_in_front(net: Network) -> str:
    shape = net.add("Shape", net.last)
    rows = net.add("Gather", shape, net.constant([0], np.int64))
    sizes = net.add("Concat", rows, net.constant([C, 2], np.int64), axis=0)
    zeros = net.add("ConstantOfShape", sizes)
    return net.conv(net.add("Concat", zeros, net.last, axis=2), 3)


def pooled(net: Network) -> str:
    padded = net.add("Pad", net.last, net.constant([0, 0, 2, 0, 0, 0], np.int64))
    return net.add("AveragePool", padded, kernel_shape=[3])


def residual(net: Network) -> str:
    return net.add("Add", net.last, ahead_conv(net))


def normalized(net: Network) -> str:
    numbers = [net.constant(net.rng.uniform(0.5, 1.5, C)) for _ in range(4)]
    return net.add("BatchNormalization", net.last, *numbers)


def over_channels(net: Network) -> str:
    return net.add("Softmax", net.last, axis=1)


def mixed_rows(net: Network) -> str:
    """[batch·time, C] through a product and back."""
    rows = net.add("Reshape", net.swapped(net.last, (0, 2, 1)), net.constant([-1, C], np.int64))
    done = net.add("MatMul", rows, net.weights(C, C))
    shape = net.add("Shape", net.swapped(net.last, (0, 2, 1)))
    return net.swapped(net.add("Reshape", done, shape), (0, 2, 1))


def grouped(net: Network) -> str:
    """A linear layer for each group of features, as DeepFilterNet has it."""
    equations = ["btgi,gih->btgh", "...gi,gih->...gh", "gih, b...gi -> b...gh", "tbgi,gih->tbgh"]
    equation = str(net.rng.choice(equations))
    groups = net.add("Reshape", net.swapped(net.last, (0, 2, 1)), net.constant([0, 0, 3, C // 3], np.int64))
    inputs = [groups, net.weights(3, C // 3, C // 3)]
    done = net.add("Einsum", *inputs[:: -1 if equation.startswith("gih") else 1], equation=equation)
    return net.swapped(net.add("Reshape", done, net.constant([0, 0, -1], np.int64)), (0, 2, 1))


FAR = 2**62


def cut(net: Network, value: str, start: Any, end: Any) -> str:
    """Steps from one to another; a bound may be a value."""
    bounds = [item if isinstance(item, str) else net.constant([item], np.int64) for item in (start, end)]
    return net.add("Slice", value, *bounds, net.constant([2], np.int64))


def padded(net: Network, value: str, before: int, after: int = 0) -> str:
    return net.add("Pad", value, net.constant([0, 0, before, 0, 0, after], np.int64))


def steps_of(net: Network, value: str) -> str:
    return net.add("Gather", net.add("Shape", value), net.constant([2], np.int64))


def cut_to_a_length(net: Network) -> str:
    """`y[..., :x.shape[-1]]`"""
    x, size = net.last, int(net.rng.integers(2, 5))
    y = net.conv(x, size, pads=(size - 1, size - 1))
    if net.rng.integers(2):
        return cut(net, y, 0, steps_of(net, x))
    return cut(net, y, 0, net.add("Sub", steps_of(net, y), net.constant([size - 1], np.int64)))


def last_steps_of_a_length(net: Network) -> str:
    """`y[..., -x.shape[-1]:]`"""
    x = net.last
    minus = net.add("Neg", steps_of(net, x))
    if net.rng.integers(2):
        minus = net.add("Mul", steps_of(net, x), net.constant([-1], np.int64))
    return cut(net, net.conv(padded(net, x, 4), 3), minus, FAR)


def padding_that_is_cut(net: Network) -> str:
    return net.conv(cut(net, padded(net, net.last, 5), 3, FAR), 3)


def shifted(net: Network) -> str:
    steps = int(net.rng.integers(1, 4))
    if net.rng.integers(2):
        return net.add("Sub", net.last, cut(net, padded(net, net.last, steps), 0, -steps))
    return net.add("Sub", net.last, padded(net, cut(net, net.last, 0, -steps), steps))


def shifted_by_one_pad(net: Network) -> str:
    """`F.pad(x, (n, -n))`, and then a convolution that reads across the first step."""
    steps = int(net.rng.integers(1, 6))
    y = padded(net, net.last, steps, -steps)
    return net.add("Add", net.last, net.conv(y, 2, pads=(1, 0)) if net.rng.integers(2) else y)


def shifted_by_zeros_like(net: Network) -> str:
    """`cat([zeros_like(x[..., :n]), x[..., :-n]], -1)`"""
    steps = int(net.rng.integers(1, 6))
    sizes = net.add("Shape", cut(net, net.last, 0, steps))
    zeros = net.add("Expand", net.constant(0.0), sizes) if steps % 2 else net.add("ConstantOfShape", sizes)
    return net.add("Add", net.last, net.add("Concat", zeros, cut(net, net.last, 0, -steps), axis=2))


def resized_features(net: Network) -> str:
    """`F.interpolate(x, (2 * x.shape[1], x.shape[2]))` of an image."""
    y = net.add("Unsqueeze", net.conv(padded(net, net.last, 2), 3), net.constant([1], np.int64))
    front = net.add("Slice", net.add("Shape", y), *(net.constant([item], np.int64) for item in (0, 2)))
    rows = net.constant([2 * C], np.int64)
    sizes = net.add("Concat", front, rows, steps_of(net, net.last), axis=0)
    y = net.add("Resize", y, "", "", sizes, mode="nearest")
    return net.add("Conv", net.add("Squeeze", y, net.constant([1], np.int64)), net.weights(C, 2 * C, 1))


def scaled_size(net: Network, value: str, axis: int, kind: str, factor: float) -> str:
    """[1], a size times a factor, as PyTorch's exporter writes it for `recompute_scale_factor`."""
    size = net.add("Gather", net.add("Shape", value), net.constant(axis, np.int64), axis=0)
    size = net.add("Floor", net.add(kind, net.add("Cast", size, to=1), net.constant(factor)))
    return net.add("Unsqueeze", net.add("Cast", size, to=7), net.constant([0], np.int64))


def resized_by_a_factor(net: Network, kind: str, factor: float, rows: int) -> str:
    """`F.interpolate(x, scale_factor=(0.5, 1), recompute_scale_factor=True)` of an image."""
    y = net.add("Unsqueeze", net.last, net.constant([1], np.int64))
    sizes = [net.add("Slice", net.add("Shape", y), *(net.constant([n], np.int64) for n in (0, 2)))]
    sizes += [scaled_size(net, y, 2, kind, factor), scaled_size(net, y, 3, "Mul", 1.0)]
    y = net.add("Resize", y, "", "", net.add("Concat", *sizes, axis=0), mode="linear")
    return net.add("Conv", net.add("Squeeze", y, net.constant([1], np.int64)), net.weights(C, rows, 1))


def split_off(net: Network) -> str:
    """The first of the parts, which is time without its last steps; and the first of features."""
    steps = int(net.rng.integers(1, 6))
    sizes = net.add("Concat", steps_of(net, net.last), net.constant([steps], np.int64), axis=0)
    y = net.add("Split", padded(net, net.last, steps), sizes, outputs=2, axis=2)
    y = net.add("Concat", net.add("Add", net.last, y), y, axis=1)
    return net.add("Split", y, net.constant([C, C], np.int64), outputs=2, axis=1)


def shifted_into_a_convolution(net: Network) -> str:
    back = net.add("Tanh", cut(net, padded(net, net.last, 2), 0, -2))
    b = net.constant(net.rng.standard_normal(C))
    return net.add("Conv", padded(net, back, 2), net.weights(C, C, 3), b)


def one_padding_for_two(net: Network) -> str:
    both = padded(net, net.last, 2)
    return net.add("Mul", net.conv(both, 3), net.add("Sigmoid", net.conv(both, 2, 2)))


def one_padding_for_two_sizes(net: Network) -> str:
    both = padded(net, net.last, 4)
    return net.add("Add", net.conv(cut(net, both, 2, FAR), 3), net.conv(both, 5))


def shuffled_twice(net: Network) -> str:
    y = net.last
    for sizes in ([0, 2, C // 2, -1], [0, 3, C // 3, -1]):
        y = net.add("Reshape", y, net.constant(sizes, np.int64))
        y = net.swapped(y, (0, 2, 1, 3))
        y = net.add("Reshape", y, net.constant([0, C, -1], np.int64))
    return y


def einsum_of_features(net: Network) -> str:
    equation = str(net.rng.choice(["bct,cd->bdt", "bc...,cd->bd...", "bct,cd", "cbt,bd->cdt"]))
    return net.add("Einsum", net.last, net.weights(C, C), equation=equation)


def halves_of_features(net: Network) -> str:
    """Every second feature, and halves whose size is computed."""
    x = net.swapped(net.last, (0, 2, 1))
    parts = [
        net.add("Slice", x, *(net.constant([i], np.int64) for i in (start, C, 2, 2))) for start in (1, 0)
    ]
    x = net.add("Concat", *parts, axis=2)
    size = net.add("Gather", net.add("Shape", x), net.constant([2], np.int64))
    half, axis = net.add("Div", size, net.constant([2], np.int64)), net.constant([2], np.int64)
    first = net.add("Slice", x, net.constant([0], np.int64), half, axis)
    second = net.add("Slice", x, half, net.constant([FAR], np.int64), axis)
    return net.swapped(net.add("Concat", net.add("Neg", second), first, axis=2), (0, 2, 1))


def gated(net: Network) -> str:
    return net.add("Mul", net.last, net.add("Sigmoid", net.conv(net.last, 1)))


def lookahead(net: Network) -> str:
    size = int(net.rng.choice([3, 5]))
    return net.conv(net.last, size, pads=(size // 2, size // 2))


def cut_in_front(net: Network) -> str:
    return cut(net, net.conv(net.last, 3, pads=(2, 2)), 2, FAR)


def step_ahead(net: Network) -> str:
    return net.add("Sub", net.last, padded(net, cut(net, net.last, 1, FAR), 0, 1))


def deconvolved_ahead(net: Network) -> str:
    return net.add("ConvTranspose", net.last, net.weights(C, C, 3), pads=[1, 1])


def lookahead_residual(net: Network) -> str:
    return net.add("Add", net.last, net.add("Tanh", lookahead(net)))


def largest(net: Network, keep: int = 1) -> str:
    """The place of the largest feature of each step."""
    return net.add("ArgMax", net.last, axis=1, keepdims=keep)


def ordered(net: Network, output: int) -> str:
    """The features in descending order, or their places."""
    values = net.add("TopK", net.last, net.constant([C], np.int64), outputs=2, axis=1)
    return f"{values}.1" if output else values


def looked_up(net: Network) -> str:
    """A row of a table for each step."""
    return net.swapped(net.add("Gather", net.weights(C, C), largest(net, 0)), (0, 2, 1))


def bags_of_rows(net: Network) -> str:
    """Sums of the rows that the features of each step name, [batch, C, time, C]."""
    rows = net.add("Gather", net.weights(C, C), ordered(net, 1))
    return net.swapped(net.add("ReduceSum", rows, net.constant([1], np.int64), keepdims=0), (0, 2, 1))


def looked_up_by_lists(net: Network) -> str:
    rows = net.add("GatherND", net.weights(C, C), net.swapped(largest(net), (0, 2, 1)))
    return net.swapped(rows, (0, 2, 1))


def one_hot(net: Network) -> str:
    depth, numbers = net.constant(C, np.int64), net.constant([-0.5, 1.5])
    return net.add("OneHot", largest(net, 0), depth, numbers, axis=1)


def written_over(net: Network) -> str:
    """Each feature where another one is, from place to place."""
    return net.add("ScatterElements", net.last, ordered(net, 1), net.add("Tanh", net.last), axis=1)


def each_step_by_its_number(net: Network) -> str:
    """As PyTorch's exporter writes windows of features: Gather by 0, 1, 2 …"""
    count = net.add("Squeeze", steps_of(net, net.last), net.constant([0], np.int64))
    numbers = net.add("Range", net.constant(0, np.int64), count, net.constant(1, np.int64))
    numbers = net.add("Unsqueeze", numbers, net.constant([0], np.int64))
    numbers = net.add("Add", numbers, net.constant([[0]], np.int64))
    steps = net.add("Gather", net.last, numbers, axis=2)
    return net.add("Squeeze", steps, net.constant([2], np.int64))


def resized_by_scales(net: Network) -> str:
    """Twice as many features; a convolution makes as many as before of them: its cache has that size."""
    twice = net.add("Resize", net.last, "", net.constant([1, 2, 1]), mode="nearest")
    W = net.weights(C, 2 * C, 2)
    return net.add("Conv", twice, W, kernel_shape=[2], pads=[1, 0])


def across_features(net: Network) -> str:
    """A GRU along the features of each step, all of them or as many as the step says."""
    x = net.swapped(net.last, (0, 2, 1))
    rows = net.add("Reshape", x, net.constant([-1, C, 1], np.int64))
    if net.rng.integers(2):
        count = net.add("Shape", rows)
        count = net.add("Slice", count, *(net.constant([bound], np.int64) for bound in (0, 1, 0)))
        lengths = net.add("Expand", net.constant([C], np.int64), count)
    else:
        places = net.add("ArgMax", x, axis=2, keepdims=0)
        lengths = net.add("Reshape", places, net.constant([-1], np.int64))
        lengths = net.add("Add", lengths, net.constant([1], np.int64))
    lengths = net.add("Cast", lengths, to=onnx.TensorProto.INT32)
    rows = net.swapped(rows, (1, 0, 2))
    Y = net.add("GRU", rows, net.weights(1, 3, 1), net.weights(1, 3, 1), "", lengths, hidden_size=1)
    Y = net.swapped(net.add("Squeeze", Y, net.constant([1], np.int64)), (1, 0, 2))
    return net.swapped(net.add("Reshape", Y, net.add("Shape", x)), (0, 2, 1))


def differences(net: Network) -> str:
    """From the step before; the first one is zero."""
    later, earlier = cut(net, net.last, 1, FAR), cut(net, net.last, 0, -1)
    return padded(net, net.add("Sub", later, earlier), 1)


def second_differences(net: Network) -> str:
    net.last = net.add("Tanh", differences(net))
    return net.conv(differences(net), 1)


def edge_in_front(net: Network) -> str:
    """Copies of the first step, for a convolution or a shift."""
    steps, cuts_end = int(net.rng.integers(1, 4)), int(net.rng.integers(2))
    pads = net.constant([0, 0, steps, 0, 0, -steps * cuts_end], np.int64)
    y = net.add("Pad", net.last, pads, mode="edge")
    return net.add("Sub", net.last, y) if cuts_end else net.conv(net.add("Tanh", y), steps + 1)


def differences_with_prepend(net: Network) -> str:
    """`torch.diff(x, prepend=x[..., :1])`"""
    y = net.add("Concat", cut(net, net.last, 0, 1), net.last, axis=2)
    return net.add("Sub", cut(net, y, 1, FAR), cut(net, y, 0, -1))


def differences_after_first_steps(net: Network) -> str:
    """`cat([x[..., :n], x[..., n:] - 0.97 * x[..., :-n]], -1)`, or the steps themselves, `x[..., :-n]`."""
    x, steps = net.last, int(net.rng.integers(1, 4))
    y = cut(net, x, 0, -steps)
    if net.rng.integers(2):
        y = net.add("Sub", cut(net, x, steps, FAR), net.add("Mul", y, net.constant(0.97)))
    return net.add("Concat", cut(net, x, 0, steps), y, axis=2)


def differences_over_steps(net: Network) -> str:
    """From so many steps before; the first ones are zeros or a number, and there may be more of them."""
    steps, more = int(net.rng.integers(2, 5)), int(net.rng.integers(3))
    y = net.add("Tanh", net.add("Sub", cut(net, net.last, steps, FAR), cut(net, net.last, 0, -steps)))
    if not more:
        return with_a_number(net, y, steps, 0, 0.5)
    return net.conv(padded(net, y, steps + more - 1), more)


def with_a_number(net: Network, value: str, before: int, after: int, number: float) -> str:
    pads = net.constant([0, 0, before, 0, 0, after], np.int64)
    return net.add("Pad", value, pads, net.constant(number))


def constant_in_front(net: Network) -> str:
    return net.conv(with_a_number(net, net.last, 3, 0, 0.7), 4)


def constant_in_front_of_an_activation(net: Network) -> str:
    return net.conv(net.add("Tanh", with_a_number(net, net.last, 2, 0, -1.5)), 3)


def shift_of_a_constant(net: Network) -> str:
    """In one Pad, or by a Slice after it; the other steps next to it come at once."""
    if net.rng.integers(2):
        moved = with_a_number(net, net.last, 2, -2, 0.7)
    else:
        moved = cut(net, with_a_number(net, net.last, 2, 0, 0.7), 0, -2)
    return net.add("Add", net.last, moved)


def constant_that_is_cut(net: Network) -> str:
    """More steps than the run has; a Slice drops some of them again."""
    moved = cut(net, with_a_number(net, net.last, 3, 0, 0.7), 1, FAR)
    return net.conv(moved, 3)


def maximum_after_infinity(net: Network) -> str:
    number = -np.inf if net.rng.integers(2) else float(np.finfo(np.float32).min)
    return net.add("MaxPool", with_a_number(net, net.last, 2, 0, number), kernel_shape=[3])


def maximum_with_pads(net: Network) -> str:
    both = net.add("MaxPool", net.last, kernel_shape=[3], pads=[2, 0])
    return net.add("MaxPool", net.add("Tanh", both), kernel_shape=[2], pads=[1, 0])


def branch_of_a_size(net: Network) -> str:
    """As PyTorch's exporter writes what depends on a size: an If that always runs one branch."""
    size = net.add("Gather", net.add("Shape", net.last), net.constant(1, np.int64), axis=0)
    is_known = net.add("Equal", size, net.constant(C, np.int64))
    branches = [
        onnx.helper.make_graph([node(kind, [net.last], ["out"])], kind, [], [value("out", shape=None)])
        for kind in ("Tanh", "Relu")
    ]
    return net.add("If", is_known, then_branch=branches[0], else_branch=branches[1])


CAUSAL: dict[str, Callable[[Network], str]] = {
    "GRU": Network.gru,
    "LSTM": lambda net: net.gru("LSTM"),
    "RNN": lambda net: net.gru("RNN"),
    "learned GRU": lambda net: net.gru(is_learned=True),
    "learned LSTM": lambda net: net.gru("LSTM", is_learned=True),
    "padded convolution": padded_conv,
    "convolution with pads ahead": ahead_conv,
    "convolution that is cut": chomped_conv,
    "deconvolution that is cut": deconvolved,
    "zeros in front": zeros_in_front,
    "pooling": pooled,
    "residual": residual,
    "batch normalization": normalized,
    "softmax over channels": over_channels,
    "rows of batch and time": mixed_rows,
    "linear layers of groups": grouped,
    "Einsum of features": einsum_of_features,
    "cut to a length that is computed": cut_to_a_length,
    "last steps of a length that is computed": last_steps_of_a_length,
    "padding that is cut": padding_that_is_cut,
    "halves of features": halves_of_features,
    "shift": shifted,
    "shift by one Pad": shifted_by_one_pad,
    "shift into a convolution": shifted_into_a_convolution,
    "one padding for two convolutions": one_padding_for_two,
    "one padding for two sizes": one_padding_for_two_sizes,
    "two shuffles of channels": shuffled_twice,
    "gate": gated,
    "differences": differences,
    "second differences": second_differences,
    "copies of the first step": edge_in_front,
    "differences with prepend": differences_with_prepend,
    "differences after first steps": differences_after_first_steps,
    "differences over steps": differences_over_steps,
    "constant in front": constant_in_front,
    "constant in front of an activation": constant_in_front_of_an_activation,
    "shift of a constant": shift_of_a_constant,
    "constant that is cut": constant_that_is_cut,
    "maximum after -inf": maximum_after_infinity,
    "maximum with pads": maximum_with_pads,
    "kernel of 1": lambda net: net.conv(net.last, 1),
    "a row for each step": looked_up,
    "bags of rows": bags_of_rows,
    "rows by lists of indices": looked_up_by_lists,
    "one-hot classes": one_hot,
    "ordered features": lambda net: ordered(net, 0),
    "features written over": written_over,
    "each step by its number": each_step_by_its_number,
    "features resized by scales": resized_by_scales,
    "a GRU across features": across_features,
    "an axis of 100 parts": lambda net: net.add("Sum", *[net.last] * 100),
}
#: What OpenVINO's converter writes in a way that is not followed.
OF_ONNX: dict[str, Callable[[Network], str]] = {
    "features resized to sizes": resized_features,
    "shift by zeros like steps": shifted_by_zeros_like,
    "shift by a Split": split_off,
    "twice as many features": lambda net: resized_by_a_factor(net, "Mul", 2.0, 12),
    "half of the features": lambda net: resized_by_a_factor(net, "Mul", 0.5, 3),
    "a share of features, rounded": lambda net: resized_by_a_factor(net, "Mul", 0.75, 4),
    "a quarter of features, rounded": lambda net: resized_by_a_factor(net, "Div", 4.0, 1),
    "a branch of a size": branch_of_a_size,
}
AHEAD: dict[str, Callable[[Network], str]] = {
    "symmetric convolution": lookahead,
    "symmetric residual": lookahead_residual,
    "symmetric deconvolution": deconvolved_ahead,
    "cut in front": cut_in_front,
    "difference from the next step": step_ahead,
}
LOOKED_UP = ("a row for each step", "bags of rows", "rows by lists of indices")
#: What may undo or hide that a network looks ahead.
UNDOES = {"shift into a convolution", "differences after first steps", "one-hot classes", *LOOKED_UP}
NEVER: dict[str, Callable[[Network], str]] = {
    "reverse GRU": lambda net: net.gru(direction="reverse"),
    "bidirectional GRU": lambda net: net.gru(direction="bidirectional"),
    "mean over time": lambda net: net.add("Sub", net.last, net.add("ReduceMean", net.last, axes=[2])),
    "softmax over time": lambda net: net.add("Softmax", net.last, axis=2),
    "Einsum over time": lambda net: net.add(
        "Einsum", net.last, net.last, net.last, equation="bct,bcs,bds->bdt"
    ),
    "instance normalization": lambda net: net.add(
        "InstanceNormalization", net.last, net.constant(np.ones(C)), net.constant(np.zeros(C))
    ),
    "reversed time": lambda net: net.add(
        "Slice", net.last, *(net.constant(item, np.int64) for item in ([-1], [-(2**40)], [2], [-1]))
    ),
}


def built(kinds: list[Callable[[Network], str]], seed: int) -> ModelProto:
    net = Network(np.random.default_rng(seed))
    for kind in kinds:
        net.last = kind(net)
    return net.proto()


def drawn(seed: int) -> tuple[list[str], ModelProto]:
    """A network with a GRU, of up to eight parts; a third of them look ahead, or are impossible."""
    rng = np.random.default_rng(seed)
    parts = {**CAUSAL}
    if seed % 3:
        parts |= AHEAD
    if seed % 3 == 2:
        parts |= NEVER
    names = [str(rng.choice(list(parts))) for _ in range(rng.integers(1, 8))]
    names.insert(int(rng.integers(len(names) + 1)), "GRU")
    return names, built([parts[name] for name in names], seed)


def chunks_of(rng: np.random.Generator, first: int) -> list[int]:
    sizes = [first + int(rng.integers(3))]
    while sum(sizes) < T:
        sizes.append(min(int(rng.integers(1, 7)), T - sum(sizes)))
    return sizes


def run_in_chunks(path: Path, X: Array, sizes: list[int]) -> Array:
    stream = onegru.load(path).stream()
    cuts = np.cumsum([0, *sizes])
    parts = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise(cuts)]
    return np.concatenate(parts, 2)


#: Of the largest output: roundings of other kernels were 2.9e-6 at most over 3,500 drawn networks.
ROUNDING = 5e-6


# 7000008 and 7000013 have an LSTM after a delay, so that the cache of the first chunk is empty.
@pytest.mark.parametrize("seed", [*range(240), 7000008, 7000013])
def test_drawn_networks(seed: int, tmp_path: Path) -> None:
    names, proto = drawn(seed)
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    if not set(names).isdisjoint(NEVER):
        with pytest.raises(SpecError, match=r"cannot run in chunks, because |^time: no GRU"):
            onegru.make_streaming(source, target, delay=True)
        assert not target.exists()
        return
    is_ahead = False
    if not set(names).isdisjoint(AHEAD):
        future = X.copy()
        future[:, :, -1] += 100.0
        changed = onegru.load(source).run({"X": future})["Z"]
        is_ahead = bool(np.any(changed[:, :, :-1] != whole[:, :, :-1]))
        # Later steps may undo what earlier ones look ahead, and classes or zeros may stay as they are.
        assert is_ahead or UNDOES & {*names} or not whole.any(), "it did not look ahead"
    if is_ahead:
        with pytest.raises(SpecError, match=r"its output comes \d steps? later"):
            onegru.make_streaming(source, target)
    try:
        report = onegru.make_streaming(source, target, delay=True)
    except FormatError as error:
        # Outputs are classes that random inputs do not change, or so small that they are rounding errors.
        is_noise = np.abs(whole).max() < 8 * np.finfo(np.float32).eps
        reasons = [
            "no output depends on the random inputs",
            *(["differs from the source"] if is_noise else []),
        ]
        assert ": not written: " in str(error) and any(reason in str(error) for reason in reasons)
        return
    assert report.outputs and report.outputs[0].max_abs <= report.outputs[0].tolerance
    onnx.checker.check_model(onnx.load(target), full_check=True)
    delays = json.loads(onnx.load(target).metadata_props[0].value)["delays"]
    later = delays.get("Z", 0)
    found = run_in_chunks(target, X, chunks_of(rng, later + 1))
    assert found.shape[2] == T - later
    allowed = ROUNDING * max(10.0, float(np.abs(whole).max()))
    np.testing.assert_allclose(found, whole[:, :, : T - later], rtol=0, atol=allowed)
    assert later > 0 if is_ahead else (later == 0 or not set(names).isdisjoint(AHEAD))


@pytest.mark.parametrize("name", [*CAUSAL, *OF_ONNX])
def test_each_part(name: str, tmp_path: Path) -> None:
    source = save(tmp_path, built([{**CAUSAL, **OF_ONNX}[name], CAUSAL["GRU"]], 1))
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    for sizes in ([1] * T, [7, 7, 7, 2], [22, 1], [T]):
        np.testing.assert_allclose(run_in_chunks(target, X, sizes), whole, atol=1e-5)
    in_memory = onegru.load(source).stream(rewrite=True)
    assert_bits(in_memory.step({"X": X[:, :, :9]})["Z"], run_in_chunks(target, X[:, :, :9], [9]))


@pytest.mark.parametrize("name", NEVER)
def test_what_never_streams_is_refused_by_name(name: str, tmp_path: Path) -> None:
    source = save(tmp_path, built([CAUSAL["GRU"], NEVER[name]], 1))
    with pytest.raises(SpecError) as caught:
        onegru.make_streaming(source, tmp_path / "t.onnx", delay=True)
    kinds = {"mean": "ReduceMean", "reversed": "Slice", "softmax": "Softmax", "Einsum": "Einsum"}
    kind = (kinds | {"instance": "InstanceNormalization"}).get(name.split()[0], "GRU")
    assert f"because {kind} node '{kind.lower()}" in str(caught.value)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    future = X.copy()
    future[:, :, -1] += 100.0
    whole, changed = (onegru.load(source).run({"X": array})["Z"] for array in (X, future))
    assert np.any(changed[:, :, :-1] != whole[:, :, :-1])


# ---- wrong rules


def shorter_cache(cache: plan.Cache) -> plan.Cache:
    return cache._replace(initial_steps=max(cache.initial_steps - 1, 0))


def older_steps(cache: plan.Cache) -> plan.Cache:
    return cache._replace(steps=cache.steps and cache.steps + 1, initial_steps=cache.initial_steps + 1)


WRONG: dict[str, tuple[list[str], Callable[[plan.StreamingPlan], object]]] = {
    "a cache one step short": (
        ["padded convolution", "GRU"],
        lambda made: made.caches.__setitem__(0, shorter_cache(made.caches[0])),
    ),
    "a cache one step long": (
        ["convolution with pads ahead", "GRU"],
        lambda made: made.caches.__setitem__(0, older_steps(made.caches[0])),
    ),
    "no cache": (["pooling", "GRU"], lambda made: made.caches.clear()),
    "no state": (["GRU"], lambda made: made.recurrent.clear()),
    "one state of two": (["GRU", "GRU"], lambda made: made.recurrent.pop()),
    "padding in each chunk": (["padded convolution", "GRU"], lambda made: made.removed_padding.clear()),
    "cutting each chunk": (["convolution that is cut", "GRU"], lambda made: made.removed_padding.pop()),
    "no shift": (["shift", "GRU"], lambda made: made.caches.clear()),
    "first steps that stay": (["difference from the next step", "GRU"], lambda made: made.cut_steps.clear()),
    "steps that do not wait": (
        ["symmetric residual", "GRU"],
        lambda made: made.caches.pop(next(i for i, cache in enumerate(made.caches) if cache.waits)) and None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, spoil = WRONG[name]
    source = save(tmp_path, built([{**CAUSAL, **AHEAD}[part] for part in parts], 4))
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target, delay=True)
    target.unlink()
    make = planner.Planner.plan

    def spoiled(own: planner.Planner) -> plan.StreamingPlan:
        made = make(own)
        spoil(made)
        return made

    monkeypatch.setattr(planner.Planner, "plan", spoiled)
    with pytest.raises((FormatError, SpecError), match=r"not written|fails|must be|no state to carry"):
        onegru.make_streaming(source, target, delay=True)
    assert not target.exists()


def test_states_of_another_gru_are_caught(tmp_path: Path) -> None:
    """A file whose metadata were changed gives other numbers than the whole: that is what the check sees."""
    source = save(tmp_path, built([CAUSAL["GRU"], CAUSAL["GRU"]], 5))
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    proto = onnx.load(target)
    document = json.loads(proto.metadata_props[0].value)
    first, second = document["states"]
    first["output"], second["output"] = second["output"], first["output"]
    proto.metadata_props[0].value = json.dumps(document)
    onnx.save(proto, target)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    assert np.abs(run_in_chunks(target, X, [5, 18]) - whole).max() > 1e-3


# ---- files


def test_the_file_is_plain_onnx(tmp_path: Path) -> None:
    """ONNX Runtime runs it by only the file's metadata."""
    source = save(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 2))
    target = tmp_path / "streaming.onnx"
    report = onegru.make_streaming(source, target)
    assert [item.name for item in report.nodes] == ["gru3"]
    assert report.nodes[0].done == ("its state is now gru3_state_in and gru3_state_out",)
    assert any("input steps is now conv" in words for words in report.notes)
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    document = json.loads(session.get_modelmeta().custom_metadata_map[STREAM_KEY])
    states = {
        item["input"]: np.zeros([B if size == "batch" else size for size in item["shape"]], np.float32)
        for item in document["states"]
    }
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    names = [output.name for output in session.get_outputs()]
    parts = []
    for step in range(T):
        results = dict(zip(names, session.run(None, {"X": X[:, :, step : step + 1], **states}), strict=True))
        states = {item["input"]: results[item["output"]] for item in document["states"]}
        parts.append(results["Z"])
    whole = session_of(source).run(None, {"X": X})[0]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_states_are_saved_and_rows_step_by_themselves(tmp_path: Path) -> None:
    source = save(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 2))
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = run_in_chunks(target, X, [T])
    stream = onegru.load(target).stream()
    stream.step({"X": X[:, :, :9]})
    stream.save(tmp_path / "state.npz")
    stream.step({"X": X[:1, :, 9:12]}, rows=[0])
    found = stream.step({"X": X[1:, :, 9:12]}, rows=[1])["Z"]
    np.testing.assert_allclose(found, whole[1:, :, 9:12], atol=1e-5)
    other = onegru.load(target).stream()
    other.load(tmp_path / "state.npz")
    np.testing.assert_allclose(other.step({"X": X[:, :, 9:]})["Z"], whole[:, :, 9:], atol=1e-5)


def test_states_that_are_outside_stay(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    x = net.swapped(ahead_conv(net))
    W, R = net.weights(1, 3 * C, C), net.weights(1, 3 * C, C)
    net.nodes.append(node("GRU", [x, W, R, "", "", "h"], ["Y", "h_out"], hidden_size=C, name="g"))
    infos = [value("X", shape=["batch", C, "time"]), value("h", shape=[1, "batch", C])]
    outputs = [value("Y", shape=[None, 1, "batch", C]), value("h_out", shape=[1, "batch", C])]
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants), opset=14))
    target = tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    pairs = onegru.load(target).stream().pairs
    assert pairs["h_out"] == "h" and len(pairs) == 2


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17])
def test_opsets(opset: int, tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = ahead_conv(net)
    x = net.swapped(net.last)
    Y = net.add("GRU", x, net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), hidden_size=C)
    axes: dict[str, Any] = {"axes": [1]} if opset < 13 else {}
    more = [] if opset < 13 else [net.constant([1], np.int64)]
    net.last = net.swapped(net.add("Squeeze", Y, *more, **axes), (1, 2, 0))
    source = save(tmp_path, net.proto(opset))
    onegru.make_streaming(source, tmp_path / "t.onnx")
    X = np.random.default_rng(2).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(tmp_path / "t.onnx", X, [9, 1, T - 10]), whole, atol=1e-5)


def test_a_body_that_reads_steps_is_refused_by_name(tmp_path: Path) -> None:
    """It takes them from the graph around it, and has no input that says so."""
    net = Network(np.random.default_rng(1))
    x = ahead_conv(net)
    branches = {
        f"{way}_branch": graph([node(kind, [x], [f"{way}_y"])], [], [f"{way}_y"])
        for way, kind in (("then", "Relu"), ("else", "Neg"))
    }
    known_in_runs = net.add("Greater", net.add("Det", net.constant(np.eye(2))), net.constant(0.0))
    net.last = net.add("If", known_in_runs, **branches)
    net.last = net.gru()
    source = save(tmp_path, net.proto())
    with pytest.raises(SpecError, match=r"If node 'if\d' has an unknown effect along time"):
        onegru.make_streaming(source, tmp_path / "t.onnx", time={"X": 2}, check=False)
    with pytest.raises(SpecError, match="--time X=1"):
        onegru.load(source).stream(rewrite=True)


def test_pads_that_mirror_steps_of_the_run(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("Pad", net.last, net.constant([0, 0, 2, 0, 0, 0], np.int64), mode="reflect")
    net.last = net.conv(net.last, 3)
    net.last = net.gru()
    words = r"Pad node 'pad\d' pads time with steps of the run \(mode 'reflect'\); must be constant, or"
    with pytest.raises(SpecError, match=words):
        onegru.make_streaming(save(tmp_path, net.proto()), tmp_path / "t.onnx", time={"X": 2})


def test_copies_of_a_step_that_comes_later(tmp_path: Path) -> None:
    """The first chunks may have no step to copy."""
    net = Network(np.random.default_rng(1))
    y = net.add("Pad", lookahead(net), net.constant([0, 0, 2, 0, 0, 1], np.int64), mode="edge")
    net.last = net.add("Add", net.last, net.conv(y, 4))
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, delay=True, time={"X": 2})
    later = json.loads(onnx.load(target).metadata_props[0].value)["delays"]["Z"]
    X = np.random.default_rng(2).standard_normal((B, C, T)).astype(np.float32)
    Z = run_in_chunks(target, X, [1 + later, *[1] * (T - 1 - later)])
    whole = onnxruntime.InferenceSession(source).run(None, {"X": X})[0]
    np.testing.assert_allclose(Z, whole[:, :, : T - later], atol=1e-6)


def test_copies_of_zeros_that_wait(tmp_path: Path) -> None:
    """The zeros in front of a Pad with copies come first, so the copies are zeros, too."""
    names = ["GRU", "symmetric convolution", "differences over steps", "copies of the first step"]
    parts = {**CAUSAL, **AHEAD}
    source = save(tmp_path, built([parts[name] for name in names], 1))
    onegru.make_streaming(source, tmp_path / "t.onnx", delay=True, check=False)
    X = np.random.default_rng(1).standard_normal((B, C, T)).astype(np.float32)
    found = run_in_chunks(tmp_path / "t.onnx", X, [9, 1, T - 10])
    whole = onegru.load(source).run({"X": X})["Z"][:, :, : found.shape[2]]
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


def test_first_steps_of_what_comes_later(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = lookahead(net)
    net.last = differences_with_prepend(net)
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, delay=True, time={"X": 2})
    later = json.loads(onnx.load(target).metadata_props[0].value)["delays"]["Z"]
    X = np.random.default_rng(2).standard_normal((B, C, T)).astype(np.float32)
    Z = run_in_chunks(target, X, [1 + later, *[1] * (T - 1 - later)])
    whole = onnxruntime.InferenceSession(source).run(None, {"X": X})[0]
    np.testing.assert_allclose(Z, whole[:, :, : T - later], atol=1e-6)


def test_first_steps_that_are_not_known_yet(tmp_path: Path) -> None:
    """The second step would be an output of the first chunk, which may have one."""
    net = Network(np.random.default_rng(1))
    y = net.add("Concat", cut(net, net.last, 0, 2), net.last, axis=2)
    net.last = net.add("Sub", cut(net, y, 2, FAR), cut(net, y, 0, -2))
    words = r"Concat node 'concat\d' inserts 2 steps of the run at the start"
    with pytest.raises(SpecError, match=words):
        onegru.make_streaming(save(tmp_path, net.proto()), tmp_path / "t.onnx", time={"X": 2})


def test_first_steps_in_opset_9(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.conv(net.add("Pad", net.last, pads=[0, 0, 2, 0, 0, 0], mode="edge"), 3)
    with pytest.raises(SpecError, match="a Slice has no computed bounds before opset 10; convert the model"):
        onegru.make_streaming(save(tmp_path, net.proto(9)), tmp_path / "t.onnx", time={"X": 2})


def test_a_convolution_that_waits_has_its_steps_in_the_first_chunk(tmp_path: Path) -> None:
    """A shift after it may not take back its delay: the first chunk would be too short for its window."""
    net = Network(np.random.default_rng(1))
    net.last = net.conv(net.last, 2, pads=(0, 1))
    net.last = cut(net, padded(net, net.last, 2), 0, -2)
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, delay=True, time={"X": 2})
    delays = json.loads(onnx.load(target).metadata_props[0].value)["delays"]
    first = 1 + max(delays.values(), default=0)
    X = np.random.default_rng(2).standard_normal((B, C, T)).astype(np.float32)
    Z = run_in_chunks(target, X, [first, *[1] * (T - first)])
    np.testing.assert_allclose(Z, onegru.load(source).run({"X": X})["Z"][:, :, : Z.shape[2]], atol=1e-6)


def test_what_was_rewritten_before_is_refused(tmp_path: Path) -> None:
    source, target = save(tmp_path, built([padded_conv, CAUSAL["GRU"]], 1)), tmp_path / "t.onnx"
    onegru.make_streaming(source, target)
    with pytest.raises(SpecError, match="was already rewritten for streaming; it runs in chunks as it is"):
        onegru.make_streaming(target, tmp_path / "again.onnx")
    with pytest.raises(SpecError, match="was already rewritten for streaming"):
        onegru.load(target).stream(rewrite=True)


@pytest.mark.parametrize("delay", [False, True])
def test_steps_that_wait_in_opset_9(delay: bool, tmp_path: Path) -> None:
    """What waits is as many steps in each run, so its bounds need not be computed."""
    net = Network(np.random.default_rng(1))
    back = net.add("Pad", "X", pads=[0, 0, 2, 0, 0, 0])
    net.last = net.add("Sub", "X", net.add("Slice", back, axes=[2], starts=[0], ends=[-2]))
    if delay:
        net.last = net.add("Add", net.last, net.conv(net.last, 3, pads=(1, 1)))
    source, target = save(tmp_path, net.proto(9)), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, time={"X": 2}, delay=delay)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    found = run_in_chunks(target, X, [2, 1, 7, 3, 10])
    np.testing.assert_allclose(found, whole[:, :, : T - delay], atol=1e-5)


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read by others"])
def test_a_shift_is_an_output(is_read: bool, tmp_path: Path) -> None:
    """The outputs of a model may be shifted, and other nodes may read what is."""
    net = Network(np.random.default_rng(1))
    shift = cut(net, padded(net, net.gru(), 3), 0, -3)
    infos, outputs = [value("X", shape=["batch", C, "time"])], [value(shift, shape=["batch", C, None])]
    if is_read:
        net.last = shift
        outputs.append(value(net.conv(padded(net, shift, 2), 3), shape=["batch", C, None]))
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants), opset=14))
    target = tmp_path / "t.onnx"
    onegru.make_streaming(source, target)
    onnx.checker.check_model(onnx.load(target), full_check=True)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole, stream = onegru.load(source).run({"X": X}), onegru.load(target).stream()
    parts = [stream.step({"X": X[:, :, a:b]}) for a, b in pairwise([0, 1, 2, 9, T])]
    assert [info.name for info in onegru.load(target).outputs][: len(outputs)] == [*whole]
    for name, array in whole.items():
        np.testing.assert_allclose(np.concatenate([part[name] for part in parts], 2), array, atol=1e-5)


def test_a_shift_into_a_convolution_that_is_cut(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = cut(net, padded(net, net.gru(), 1), 0, -1)
    net.last = cut(net, net.conv(net.last, 3, 2, pads=(4, 4)), 0, -4)
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    onegru.make_streaming(source, target)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [1, 2, 7, 13]), whole, atol=1e-5)


@pytest.mark.parametrize("rows", ["batch", B])
def test_convolutions_after_a_gru_over_features(rows: str | int, tmp_path: Path) -> None:
    """The rows are steps, and sizes that are computed take them apart again; onnx cannot follow those."""
    net = Network(np.random.default_rng(1))
    x = net.add("Reshape", net.swapped("X", (1, 0, 2)), net.constant([C, -1, 1], np.int64))
    weights = [net.weights(2, 6, 1), net.weights(2, 6, 2)]
    Y = net.add("GRU", x, *weights, hidden_size=2, direction="bidirectional")
    Y = net.add("Reshape", net.swapped(Y, (0, 2, 1, 3)), net.constant([C, -1, 4], np.int64))
    sizes = net.add("Gather", net.add("Shape", "X"), net.constant([1, 0, 2], np.int64))
    y = net.add("Reshape", net.add("MatMul", Y, net.weights(4, 1)), sizes)
    net.last = net.swapped(y, (1, 0, 2))
    net.last = net.conv(padded(net, net.last, 2), 3)
    net.last = net.add("AveragePool", padded(net, net.last, 2), kernel_shape=[3])
    net.last = net.gru()
    infos = [value("X", shape=[rows, C, "time"])]
    outputs = [value(net.last, shape=[rows, C, None])]
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants), opset=14))
    target = tmp_path / "t.onnx"
    onegru.make_streaming(source, target, time={"X": 2})
    shapes = {info.name: info.shape for info in onegru.load(target).inputs}
    assert sorted(shapes.values(), key=str) == sorted(
        [(rows, C, "time"), (rows, C, 2), (rows, C, 2), (1, rows, C)], key=str
    )


def test_a_fixed_number_of_steps_is_opened(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("Reshape", ahead_conv(net), net.constant([1, C, T], np.int64))
    net.last = net.gru()
    net.nodes.append(node("Identity", [net.last], ["Z"]))
    proto = model(
        graph(net.nodes, [value("X", shape=[1, C, T])], [value("Z", shape=[1, C, T])], net.constants),
        opset=14,
    )
    source, target = save(tmp_path, proto), tmp_path / "t.onnx"
    onegru.make_streaming(source, target)
    X = np.random.default_rng(3).standard_normal((1, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [1, 9, 13]), whole, atol=1e-5)
    assert onegru.load(target).inputs[0].shape == (1, C, "frames")


def test_a_quantized_model_streams_first(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    scale, zero = net.constant(0.05), net.constant(128, np.uint8)
    quantized = net.add("QuantizeLinear", padded(net, net.last, 2), scale, zero)
    net.last = net.conv(net.add("DequantizeLinear", quantized, scale, zero), 3)
    words = r"QuantizeLinear node .* reads leading zeros.*; convert the model for streaming before"
    with pytest.raises(SpecError, match=words):
        onegru.make_streaming(save(tmp_path, net.proto()), time={"X": 2})


def test_which_axis_is_time(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = ahead_conv(net)
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    words = r"^time: no GRU runs along an axis of an input; pass .*, such as time=\{'X': 1\} \(--time X=1\)"
    with pytest.raises(SpecError, match=words):
        onegru.make_streaming(source, target)
    onegru.make_streaming(source, target, time={"X": 2})
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    np.testing.assert_allclose(
        run_in_chunks(target, X, [3, T - 3]), onegru.load(source).run({"X": X})["Z"], atol=1e-5
    )


def test_in_int8(tmp_path: Path) -> None:
    """Streaming first, then quantized: the same file as by two commands."""
    source = save(tmp_path, built([CAUSAL["padded convolution"], CAUSAL["GRU"], CAUSAL["GRU"]], 4))
    both, first, second = (tmp_path / f"{name}.onnx" for name in ("both", "first", "second"))
    report = onegru.make_streaming(source, both, quantize=True)
    onegru.make_streaming(source, first)
    store_in_int8(first, second)
    assert both.read_bytes() == second.read_bytes()
    assert [len(node.done) for node in report.nodes] == [2, 2]
    assert report.nodes[0].done[1] == "W and R became int8, with a scale for each row"
    assert all(0 < output.max_abs < 0.1 and (output.snr or 0) > 30 for output in report.outputs)
    x = np.random.default_rng(0).standard_normal((B, C, T)).astype(np.float32)
    store_in_int8(
        first, second, check=onegru.Check(inputs={"X": x})
    )  # without the states, which the file tells of
    grouped = onegru.make_streaming(source, both, quantize=True, group_size=32, opset=21)
    assert grouped.opsets[1] == 21 and "32 weights of a row" in grouped.nodes[0].done[1]
    names = [node.name for node in report.nodes]
    one = onegru.make_streaming(source, both, quantize=names[:1])
    assert [len(node.done) for node in one.nodes] == [2, 1]
    with pytest.raises(SpecError, match=r"^quantize: no GRU node is called 'other'"):
        onegru.make_streaming(source, both, quantize=["other"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": {"Q": 1}}, "time: 'Q' is not an input; must be one of"),
        ({"time": {"X": 3}}, "time: axis 3 of 'X'; must be below its rank, 3"),
        ({"time": {"X": "1"}}, "time"),
        ({"opset": 15}, "opset: has no effect without quantize"),
        ({"group_size": 32}, "group_size: has no effect without quantize"),
        ({"delay": 2}, "delay: 2; must be True or False"),
        ({"quantize": 1}, "quantize: 1; must be True, False or names"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = save(tmp_path, built([CAUSAL["GRU"]], 1))
    with pytest.raises(SpecError, match=f"^{message}"):
        onegru.make_streaming(source, tmp_path / "t.onnx", **arguments)
    assert not (tmp_path / "t.onnx").exists()


def test_a_single_step_proves_little(tmp_path: Path) -> None:
    proto, target = built([CAUSAL["padded convolution"], CAUSAL["GRU"]], 1), tmp_path / "streaming.onnx"
    for steps in (12, 1):
        for item in (*proto.graph.input, *proto.graph.output):
            item.type.tensor_type.shape.dim[2].dim_value = steps
        notes = onegru.make_streaming(save(tmp_path, proto), target).notes
        assert any("runs one step at a time" in note for note in notes) == (steps == 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"states": 3}',
        '{"states": [{"input": "X"}]}',
        '{"states": [{"input": "nope", "output": "Z", "shape": [1, 2, 3]}]}',
        '{"states": [{"input": "X", "output": "nope", "shape": [1, 2, 3]}]}',
        '{"states": [{"input": "X", "output": "Z", "shape": [1, 2]}]}',
        '{"states": [{"input": "X", "output": "Z", "shape": [1, 2, -3]}]}',
        '{"states": [{"input": "X", "output": "Z", "shape": [1, 2, 1e9]}]}',
        '{"states": [{"input": ["X"], "output": "Z", "shape": [1, 2, 3]}]}',
        '{"states": [], "delays": 1}',
        '{"states": [], "delays": {"Z": "1"}}',
        '{"states": [], "delays": {"Z": 1}, "time": {"nope": 2}}',
        '{"states": [], "delays": {"Z": 1}, "time": {"X": -1}}',
        '{"states": [], "delays": {"Z": 1e9}, "time": {"X": 2}}',
        '{"states": [{"input": "X", "output": "Z", "shape": [1, 2, 3], "initial": 1%s}]}' % ("0" * 400),
        '{"states": [], "delays": {"nope": 1}, "time": {"X": 2}}',
        '{"states": [], "delays": {"Z": 1}, "time": {"X": 3}}',
        '{"states": [], "states": []}',
        '{"states": [], "more": ' + "[" * 70 + "]" * 70 + "}",
        "[" * 100_000,
    ],
)
def test_broken_metadata_are_refused(text: str, tmp_path: Path) -> None:
    proto = built([CAUSAL["GRU"]], 1)
    proto.metadata_props.add(key=STREAM_KEY, value=text)
    with pytest.raises(FormatError, match=rf"its metadata '{STREAM_KEY}' do not fit"):
        onegru.load(save(tmp_path, proto))


def biased(net: Network) -> str:
    padded = net.add("Pad", net.last, net.constant([0, 0, 2, 0, 0, 0], np.int64))
    one = net.add("Conv", padded, net.weights(C, C, 1), net.constant(np.ones(C)), kernel_shape=[1])
    return net.conv(one, 3)


def positions(net: Network) -> str:
    table = net.constant(net.rng.standard_normal((C, 64)))
    length = net.add("Gather", net.add("Shape", net.last), net.constant([2], np.int64))
    start, axis = net.constant([0], np.int64), net.constant([1], np.int64)
    return net.add("Add", net.last, net.add("Slice", table, start, length, axis))


def pooled_places(net: Network) -> str:
    pooled = net.add("MaxPool", net.last, outputs=2, kernel_shape=[1])
    return net.add("Add", pooled, net.add("Cast", f"{pooled}.1", to=1))


def step_count(net: Network) -> str:
    """[1], the number of steps, as an integer."""
    return net.add("Slice", net.add("Shape", net.last), *(net.constant([n], np.int64) for n in (2, 3)))


def lengths_of_another(net: Network) -> str:
    count = net.add("Expand", step_count(net), net.constant([B], np.int64))
    x = net.swapped(net.last)
    lengths = net.add("Cast", net.add("Sub", count, net.constant([2], np.int64)), to=6)
    Y = net.add("GRU", x, net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), "", lengths, hidden_size=C)
    return net.swapped(net.add("Squeeze", Y, net.constant([1], np.int64)), (1, 2, 0))


def merged_rows_gru(net: Network) -> str:
    rows = net.add("Reshape", net.swapped(net.last, (0, 2, 1)), net.constant([-1, 1, C], np.int64))
    Y = net.add("GRU", rows, net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), hidden_size=C)
    shape = net.add("Shape", net.swapped(net.last, (0, 2, 1)))
    return net.swapped(net.add("Reshape", Y, shape), (0, 2, 1))


def trained_norm(net: Network) -> str:
    numbers = [net.constant(net.rng.uniform(0.5, 1.5, C)) for _ in range(4)]
    return net.add("BatchNormalization", net.last, *numbers, outputs=3, training_mode=1)


def norm_over_time(net: Network) -> str:
    return net.swapped(net.add("LRN", net.swapped(net.last, (0, 2, 1)), size=3), (0, 2, 1))


def strided_same(net: Network) -> str:
    """As TensorFlow's exporter writes it: SAME with a stride along frequency."""
    x = net.add("Unsqueeze", net.last, net.constant([1], np.int64))
    y = net.add("Conv", x, net.weights(1, 1, 3, 3), auto_pad="SAME_LOWER", strides=[2, 1])
    y = net.add("Squeeze", net.add("ReduceMean", y, axes=[2], keepdims=1), net.constant([1], np.int64))
    return net.add("Add", net.last, y)


def summed_ones(net: Network) -> str:
    ones = net.add("ConstantOfShape", step_count(net), value=one_value())
    count = net.add("ReduceSum", ones, net.constant([0], np.int64), keepdims=0)
    return net.add("Div", net.last, count)


def one_value() -> Any:
    return onnx.numpy_helper.from_array(np.ones(1, np.float32))


def size_of_all(net: Network) -> str:
    return net.add("Div", net.last, net.add("Cast", net.add("Size", net.last), to=1))


def newest_by_the_count(net: Network) -> str:
    last = net.add("Gather", net.last, net.constant(-1, np.int64), axis=2)
    share = net.add("Div", last, net.add("Cast", step_count(net), to=1))
    return net.add("Add", net.last, net.add("Unsqueeze", share, net.constant([2], np.int64)))


def summed_of_unknown_rank(net: Network) -> str:
    sizes = net.add("Concat", net.add("Shape", net.last), net.add("Shape", net.constant([])), axis=0)
    again = net.add("Reshape", net.last, net.add("Compress", sizes, net.constant([1, 1, 1, 0], np.bool_)))
    return net.add("CumSum", again, net.constant(-1, np.int64))


REFUSED: dict[str, tuple[Callable[[Network], str], str]] = {
    "a bias on zeros in front": (biased, "Conv node 'conv1' adds to leading zeros"),
    "a table of positions": (positions, r"Add node 'add\d' uses the number of steps"),
    "places of a pooling": (pooled_places, "MaxPool node 'maxpool0' returns the indices of steps"),
    "lengths from a shape": (lengths_of_another, "GRU node 'gru[0-9]+'"),
    "statistics of a run": (trained_norm, "BatchNormalization node"),
    "a norm over steps": (norm_over_time, "LRN node"),
    "a sum of ones": (summed_ones, "ReduceSum node 'reducesum[0-9]+' computes over all steps"),
    "the size of all": (size_of_all, "Div node 'div[0-9]+' uses the number of steps"),
    "the newest by the count": (newest_by_the_count, "uses the number of steps|spreads one value"),
    "a value of unknown rank": (summed_of_unknown_rank, "cannot run in chunks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_chunks_would_compute_in_another_way(name: str, tmp_path: Path) -> None:
    """Without a comparison, too."""
    part, message = REFUSED[name]
    source = save(tmp_path, built([part, CAUSAL["GRU"]], 1))
    for call in (
        lambda: onegru.make_streaming(source, tmp_path / "t.onnx", check=False),
        lambda: onegru.load(source).stream(rewrite=True),
    ):
        with pytest.raises(SpecError, match=message):
            call()
    assert onegru.inspect(source).streaming.startswith("no: ")


def test_a_gru_along_rows_and_time(tmp_path: Path) -> None:
    source = save(tmp_path, built([merged_rows_gru], 1))
    for time in (None, {"X": 2}):
        with pytest.raises(SpecError, match=r"cannot run in chunks|GRUs run along|must have one"):
            onegru.make_streaming(source, tmp_path / "t.onnx", time=time, check=False)


def test_pads_that_depend_on_a_stride(tmp_path: Path) -> None:
    """Those of time are written down for the caches, and with them those of frequency, which are others."""
    source = save(tmp_path, built([strided_same, CAUSAL["GRU"]], 1))
    report = onegru.make_streaming(source, tmp_path / "t.onnx", delay=True)
    assert report.outputs and all(item.compared for item in report.outputs)


def merged(net: Network) -> ModelProto:
    """The model with the output [time·batch, C], as language models write their scores."""
    net.last = net.add("Reshape", net.swapped(net.last), net.constant([-1, C], np.int64))
    proto = net.proto()
    proto.graph.output[0].CopyFrom(value("Z", shape=[None, C]))
    return proto


@pytest.mark.parametrize("with_rows", [False, True])
def test_an_output_with_fewer_steps(with_rows: bool, tmp_path: Path) -> None:
    """[batch, C, time - 2] or [(time - 2)·batch, C] after a convolution without padding."""
    net = Network(np.random.default_rng(1))
    net.last = net.gru()
    net.last = net.conv(net.last, 3)
    proto = merged(net) if with_rows else net.proto()
    report = onegru.make_streaming(save(tmp_path, proto), tmp_path / "t.onnx", delay=True, time={"X": 2})
    assert report.outputs and report.outputs[0].compared > B * C
    assert report.outputs[0].max_abs <= report.outputs[0].tolerance


@pytest.mark.parametrize("delay", [0, 2])
def test_an_output_of_steps_and_rows_on_one_axis(delay: int, tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = lookahead(net) if delay else net.last
    net.last = net.gru()
    source, target = save(tmp_path, merged(net)), tmp_path / "t.onnx"
    report = onegru.make_streaming(source, target, delay=True, time={"X": 2})
    assert report.outputs and report.outputs[0].max_abs <= report.outputs[0].tolerance
    X = np.random.default_rng(2).standard_normal((B, C, T)).astype(np.float32)
    whole, stream = onegru.load(source).run({"X": X})["Z"], onegru.load(target).stream()
    later = json.loads(onnx.load(target).metadata_props[0].value)["delays"].get("Z", 0)
    assert (later > 0) == (delay > 0)
    bounds = [0, later + 1, *range(later + 2, T + 1)]
    parts = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise(bounds)]
    np.testing.assert_allclose(np.concatenate(parts), whole[: B * (T - later)], atol=1e-5)


def test_steps_that_wait_with_rows(tmp_path: Path) -> None:
    """A cache of [batch·time, C] would take the steps of other rows."""
    net = Network(np.random.default_rng(1))
    x, y = (net.swapped(item, (0, 2, 1)) for item in (net.last, lookahead(net)))
    rows = [net.add("Reshape", item, net.constant([-1, C], np.int64)) for item in (x, y)]
    both = net.add("Reshape", net.add("Add", *rows), net.add("Shape", x))
    net.last = net.swapped(both, (0, 2, 1))
    net.last = net.gru()
    model = onegru.load(save(tmp_path, net.proto()))
    with pytest.raises(
        SpecError, match=r"Add node 'add\d' reads earlier steps along an axis that is not only time"
    ):
        model.stream(rewrite=True, delay=True)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_numbers_with_steps_of_zeros(value: float, tmp_path: Path) -> None:
    """Steps of zeros before the first step also have the channels that a Pad adds."""
    net = Network(np.random.default_rng(1))
    net.last = cut(net, padded(net, net.gru(), 2), 0, -2)
    pads = net.constant([0, 1, 0, 0, 1, 0], np.int64)
    wide = net.add("Pad", net.last, pads, net.constant(value))
    net.last = net.add("Conv", wide, net.weights(C, C + 2, 3), kernel_shape=[3], pads=[2, 0])
    source, target = save(tmp_path, net.proto()), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, check=False)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [1, 2, 7, 13]), whole, atol=1e-5)


def optimized(path: Path, level: str) -> Path:
    """A model as ONNX Runtime's optimizer writes it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path.with_name("optimized.onnx"))
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return path.with_name("optimized.onnx")


FUSED: dict[str, Any] = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.3},
    "Tanh": {},
    "Sigmoid": {},
    "HardSigmoid": {"alpha": 0.4},
}


@pytest.mark.parametrize("in_front", [False, True], ids=["first", "after steps of zeros"])
@pytest.mark.parametrize("activation", [*FUSED, "Clip"])
def test_convolutions_that_a_runtime_has_fused(activation: str, in_front: bool, tmp_path: Path) -> None:
    """With the activation after them, which may make other numbers of steps of zeros."""
    net = Network(np.random.default_rng(1))
    bounds = [net.constant(0.1), net.constant(0.6)] if activation == "Clip" else []
    if in_front:
        net.last = net.add("Tanh", padded(net, net.last, 2))
        net.last = net.add(activation, net.conv(net.last, 1), *bounds, **FUSED.get(activation, {}))
        net.last = net.conv(net.last, 3)
    else:
        W, bias = net.weights(C, C, 3), net.weights(C)
        net.last = net.add("Conv", net.last, W, bias, dilations=[2], pads=[4, 0])
        net.last = net.add(activation, net.last, *bounds, **FUSED.get(activation, {}))
    net.last = net.gru()
    source, target = optimized(save(tmp_path, net.proto()), "EXTENDED"), tmp_path / "t.onnx"
    assert "FusedConv" in {item.op_type for item in onnx.load(source).graph.node}
    if in_front and activation not in ("Relu", "LeakyRelu", "Tanh"):
        with pytest.raises(
            SpecError, match=r"FusedConv node '\w+' adds to leading zeros that another operator added"
        ):
            onegru.make_streaming(source, target, check=False)
        return
    onegru.make_streaming(source, target, check=False)
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(tmp_path / "model.onnx").run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [3, 1, 7, 12]), whole, atol=1e-5)


@pytest.mark.parametrize("change", ["sum", "activation"])
def test_fused_convolutions_of_other_kinds(change: str, tmp_path: Path) -> None:
    """One that adds a fourth input, or has an activation that is not known."""
    net = Network(np.random.default_rng(1))
    net.last = net.add("Relu", net.conv(net.last, 3, pads=(2, 0)))
    net.last = net.gru()
    proto = onnx.load(optimized(save(tmp_path, net.proto()), "EXTENDED"))
    (fused,) = (item for item in proto.graph.node if item.op_type == "FusedConv")
    if change == "sum":
        fused.input.extend(["", "X"])
    else:
        next(item for item in fused.attribute if item.name == "activation").s = b"Softmax"
    with pytest.raises(SpecError, match="has an unknown effect along time"):
        onegru.make_streaming(save(tmp_path, proto), tmp_path / "t.onnx", check=False)


@pytest.mark.parametrize("along", ["time", "channels"])
def test_what_no_output_needs_goes(along: str, tmp_path: Path) -> None:
    """It would need more steps than the outputs, in each run."""
    net = Network(np.random.default_rng(1))
    unused = net.conv("X", 3)
    if along == "time":
        net.last = unused
        net.gru()
    else:
        net.add(
            "GRU",
            net.swapped(unused, (1, 0, 2)),
            *(net.weights(1, 3, size) for size in (T - 2, 1)),
            hidden_size=1,
        )
    net.last = "X"
    net.last = net.gru()
    proto = net.proto()
    for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, (B, C, T), strict=True):
        dim.dim_value = size
    source, target = save(tmp_path, proto), tmp_path / "t.onnx"
    onegru.make_streaming(source, target, time={"X": 2})
    assert len(onegru.load(target).stream().pairs) == 1
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    whole = onegru.load(source).run({"X": X})["Z"]
    np.testing.assert_allclose(run_in_chunks(target, X, [1, 2, 20]), whole, atol=1e-5)


def test_a_state_outside_that_comes_later_than_all_outputs(tmp_path: Path) -> None:
    """Its GRU needs a step in each run, which the outputs do not."""
    net = Network(np.random.default_rng(1))
    x = net.swapped(net.conv(net.conv("X", 3), 3))
    W, R = net.weights(1, 3 * C, C), net.weights(1, 3 * C, C)
    net.nodes.append(node("GRU", [x, W, R, "", "", "h"], ["", "h_out"], hidden_size=C, name="g"))
    net.nodes.append(node("Tanh", [net.conv("X", 3)], ["Z"]))
    infos = [value("X", shape=["batch", C, "time"]), value("h", shape=[1, "batch", C])]
    outputs = [value("Z", shape=["batch", C, None]), value("h_out", shape=[1, "batch", C])]
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants), opset=14))
    target = tmp_path / "t.onnx"
    onegru.make_streaming(source, target, delay=True)
    assert json.loads(onnx.load(target).metadata_props[0].value)["delays"] == {"Z": 2, "h_out": 4}
    X = np.random.default_rng(3).standard_normal((B, C, T)).astype(np.float32)
    h = np.random.default_rng(4).standard_normal((1, B, C)).astype(np.float32)
    whole = onegru.load(source).run({"X": X, "h": h})
    stream = onegru.load(target).stream()
    stream.state = {"h": h}
    with pytest.raises(SpecError, match="4 steps in the first run; must be at least 5"):
        stream.step({"X": X[:, :, :4]})
    parts = [stream.step({"X": X[:, :, a:b]})["Z"] for a, b in pairwise([0, 5, 6, T])]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole["Z"], atol=1e-5)
    np.testing.assert_allclose(stream.state["h"], whole["h_out"], atol=1e-5)


def test_states_outside_and_a_fixed_number_of_steps(tmp_path: Path) -> None:
    """A model that takes all of its steps at once does not run in chunks of any size as it is."""
    net = Network(np.random.default_rng(1))
    rows = net.add("Reshape", "X", net.constant([-1, C, 1], np.int64))
    Y = net.add(
        "GRU", net.swapped(rows, (1, 0, 2)), net.weights(1, 3, 1), net.weights(1, 3, 1), hidden_size=1
    )
    x = net.swapped(
        net.add("Reshape", net.swapped(Y, (2, 0, 1, 3)), net.constant([1, T, C], np.int64)), (1, 0, 2)
    )
    W, R = net.weights(1, 3 * C, C), net.weights(1, 3 * C, C)
    net.nodes.append(node("GRU", [x, W, R, "", "", "h"], ["Z", "h_out"], hidden_size=C, name="g"))
    infos = [value("X", shape=[1, T, C]), value("h", shape=[1, 1, C])]
    outputs = [value("Z", shape=[T, 1, 1, C]), value("h_out", shape=[1, 1, C])]
    source = save(tmp_path, model(graph(net.nodes, infos, outputs, net.constants), opset=14))
    target = tmp_path / "t.onnx"
    with pytest.raises(SpecError, match="time: GRUs run along several axes"):
        onegru.make_streaming(source, target, check=False)
    assert onegru.inspect(source).streaming.startswith("yes")
    onegru.load(source).stream()
    onegru.make_streaming(source, target, time={"X": 1})
    assert onegru.load(target).inputs[0].shape == (1, "frames", C)


def test_a_last_state_that_comes_later(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    x = net.swapped(lookahead(net))
    W, R = net.weights(1, 3 * C, C), net.weights(1, 3 * C, C)
    net.nodes.append(node("GRU", [x, W, R], ["Y", "Z"], hidden_size=C, name="g"))
    proto = model(graph(net.nodes, [value("X", shape=["batch", C, "time"])], ["Z"], net.constants), opset=14)
    with pytest.raises(SpecError, match="GRU node 'g' returns its last state, which comes later"):
        onegru.make_streaming(save(tmp_path, proto), tmp_path / "t.onnx", delay=True)


def test_a_table_for_a_fixed_number_of_steps(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("Add", "X", net.weights(1, C, T))
    net.nodes.append(node("Identity", [net.gru()], ["Z"]))
    proto = model(
        graph(net.nodes, [value("X", shape=[1, C, T])], [value("Z", shape=[1, C, T])], net.constants),
        opset=14,
    )
    with pytest.raises(SpecError, match="Add node 'add0' uses the number of steps"):
        onegru.load(save(tmp_path, proto)).stream(rewrite=True)


def test_nothing_to_carry(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    net.last = net.add("Tanh", "X")
    with pytest.raises(SpecError, match="has no state to carry from one chunk to the next"):
        onegru.make_streaming(save(tmp_path, net.proto()), tmp_path / "t.onnx", time={"X": 2})


@pytest.mark.parametrize("exclusive", [0, 1])
def test_a_product_from_the_first_step(exclusive: int, tmp_path: Path) -> None:
    net = Network(np.random.default_rng(1))
    X, axis = net.swapped("X"), net.constant(0, np.int64)
    net.nodes.append(node("CumProd", [X, axis], ["P"], name="p", exclusive=exclusive))
    net.nodes.append(node("GRU", ["P", net.weights(1, 9, C), net.weights(1, 9, 3)], ["Z"], hidden_size=3))
    proto = graph(net.nodes, [value("X", shape=["batch", C, "time"])], ["Z"], net.constants)
    made = onegru.make_streaming(save(tmp_path, model(proto, opset=26)))  # compares chunks with the whole
    assert made.outputs and "p_prod_in" in made.nodes[0].done[0]
