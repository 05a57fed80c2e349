"""Networks that stream but for one part that cannot: none is accepted whose chunks differ from the whole."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import onegru
from onegru import SpecError
from onegru.core.dtypes import Array
from onegru.formats.graph import STREAM_KEY
from tests.rewriting.test_streaming import CAUSAL, FAR, Network, cut, padded, steps_of
from tests.support.files.onnx_models import graph, model, node, save, value

B, C, T = 2, 6, 12


class PerturbedModel(Network):
    """A network with one perturbed part.

    Args:
        rng: of its parts.
        fixed: whether its number of steps is fixed.
    """

    def __init__(self, rng: np.random.Generator, fixed: bool) -> None:
        super().__init__(rng)
        self.fixed = fixed
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.feeds: dict[str, Array] = {}

    def ints(self, *numbers: int) -> str:
        return self.constant(numbers, np.int64)

    def steps(self) -> str:
        """The number of steps as a float32."""
        return self.add("Cast", steps_of(self, self.last), to=TensorProto.FLOAT)

    def ones(self) -> str:
        """Ones, as many as steps."""
        one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
        return self.add("ConstantOfShape", steps_of(self, self.last), value=one)

    def rows(self) -> str:
        """[batch, time, C]."""
        return self.swapped(self.last, (0, 2, 1))

    def back(self, rows: str) -> str:
        return self.swapped(rows, (0, 2, 1))

    def merged(self) -> str:
        """[batch·time, C]."""
        return self.add("Reshape", self.rows(), self.ints(-1, C))

    def apart(self, merged: str) -> str:
        return self.back(self.add("Reshape", merged, self.add("Shape", self.rows())))

    def of_unknown_rank(self) -> str:
        shape = self.add("Shape", self.last)
        return self.add("Reshape", self.last, self.add("Compress", shape, self.constant([1, 1, 1], np.bool_)))

    def newest(self) -> str:
        return self.add("Gather", self.last, self.constant(-1, np.int64), axis=2)

    def output(self, name: str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, None))

    def whole(self, batch: int | str, opset: int) -> ModelProto:
        self.nodes.append(node("Identity", [self.last], ["Z"], name="end"))
        steps: int | str = T if self.fixed else "time"
        info = value("X", shape=[batch, C, steps])
        outputs = [value("Z", shape=[batch, C, T if self.fixed else None]), *self.outputs]
        return model(graph(self.nodes, [info, *self.inputs], outputs, self.constants), opset=opset)


Perturbation = Callable[[PerturbedModel], str]


def of_lengths(net: PerturbedModel, lengths: str) -> str:
    Y = net.add(
        "GRU", net.swapped(net.last), net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), "", lengths,
        hidden_size=C,
    )  # fmt: skip
    return net.swapped(net.add("Squeeze", Y, net.ints(1)), (1, 2, 0))


def lengths_as_an_input(net: PerturbedModel) -> str:
    net.inputs.append(helper.make_tensor_value_info("n", TensorProto.INT32, [B]))
    net.feeds["n"] = np.array([5, 3], np.int32)
    return of_lengths(net, "n")


def lengths_of_another_input(net: PerturbedModel) -> str:
    net.inputs.append(value("other", shape=["some"]))
    net.feeds["other"] = np.zeros(4, np.float32)
    return of_lengths(net, spread_lengths(net, net.add("Shape", "other")))


def spread_lengths(net: PerturbedModel, count: str) -> str:
    return net.add("Cast", net.add("Expand", count, net.ints(B)), to=TensorProto.INT32)


def lengths_that_stop(net: PerturbedModel) -> str:
    return of_lengths(net, spread_lengths(net, net.add("Min", steps_of(net, net.last), net.ints(4))))


def lengths_one_less(net: PerturbedModel) -> str:
    return of_lengths(net, spread_lengths(net, net.add("Sub", steps_of(net, net.last), net.ints(1))))


def gru_along_rows(net: PerturbedModel) -> str:
    x = net.add("Unsqueeze", net.merged(), net.ints(1))
    Y = net.add("GRU", x, net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), hidden_size=C)
    return net.apart(net.add("Squeeze", Y, net.ints(1, 2)))


def shift_along_rows(net: PerturbedModel) -> str:
    back = net.add("Pad", net.merged(), net.ints(2, 0, 0, 0))
    return net.apart(net.add("Slice", back, net.ints(0), net.ints(-2), net.ints(0)))


def convolution_along_rows(net: PerturbedModel) -> str:
    x = net.add("Transpose", net.add("Unsqueeze", net.merged(), net.ints(0)), perm=[0, 2, 1])
    y = net.add("Transpose", net.conv(x, 3, pads=(2, 0)), perm=[0, 2, 1])
    return net.apart(net.add("Squeeze", y, net.ints(0)))


def zeros_along_rows(net: PerturbedModel) -> str:
    joined = net.add("Concat", net.constant(np.zeros((1, C))), net.merged(), axis=0)
    return net.apart(net.add("Slice", joined, net.ints(0), net.ints(-1), net.ints(0)))


def newest_of_rows(net: PerturbedModel) -> str:
    net.output(net.add("Gather", net.merged(), net.constant(-1, np.int64), axis=0))
    return net.last


def rows_as_an_output(net: PerturbedModel) -> str:
    net.output(net.merged())
    return net.last


def trained_norm(net: PerturbedModel) -> str:
    numbers = [net.constant(net.rng.uniform(0.5, 1.5, C)) for _ in range(4)]
    return net.add("BatchNormalization", net.last, *numbers, outputs=3, training_mode=1)


def trained_dropout(net: PerturbedModel) -> str:
    off = net.constant(True, np.bool_)
    return net.add("Dropout", net.last, net.constant(0.0), off)  # draws, though it drops nothing here


def channels_that_are_time(net: PerturbedModel) -> str:
    return net.back(net.add("LRN", net.rows(), size=3, alpha=0.5))


def norm_of_each_step(net: PerturbedModel) -> str:
    numbers = [net.constant(net.rng.uniform(0.5, 1.5, T)) for _ in range(4)]
    return net.back(net.add("BatchNormalization", net.rows(), *numbers))


def product_of_each_step(net: PerturbedModel) -> str:
    y = net.add("MatMul", net.add("Unsqueeze", net.rows(), net.ints(2)), net.weights(T, C, C))
    return net.back(net.add("Squeeze", y, net.ints(2)))


def product_over_steps(net: PerturbedModel) -> str:
    return net.add("MatMul", net.last, net.weights(T, T))


def sum_of_each_step(net: PerturbedModel) -> str:
    return net.add("Einsum", net.last, net.weights(T, C, C), equation="bct,tcd->bdt")


def letters_of_each_step(net: PerturbedModel) -> str:
    return net.add("Einsum", net.last, net.weights(T), equation="bct,t->bct")


def gemm_of_each_step(net: PerturbedModel) -> str:
    row = net.add("Slice", net.rows(), net.ints(0), net.ints(1), net.ints(0))
    y = net.add("Gemm", net.add("Reshape", row, net.ints(-1, C)), net.weights(C, C), net.weights(T, C))
    return net.add("Add", net.last, net.back(net.add("Unsqueeze", y, net.ints(0))))


def scales_of_each_step(net: PerturbedModel) -> str:
    q = net.add("QuantizeLinear", net.last, net.constant(0.05), net.constant(128, np.uint8))
    return net.add("DequantizeLinear", q, net.constant(net.rng.uniform(0.02, 0.1, T)), axis=2)


def rounded_by_each_step(net: PerturbedModel) -> str:
    scales, zero = net.constant(net.rng.uniform(0.02, 0.1, T)), net.constant(np.full(T, 128), np.uint8)
    q = net.add("QuantizeLinear", net.last, scales, zero, axis=-1)
    return net.add("DequantizeLinear", q, net.constant(0.05), net.constant(128, np.uint8))


def joined_with_each_step(net: PerturbedModel) -> str:
    table = net.constant(net.rng.standard_normal((B, 2, T)))
    joined = net.add("Concat", net.last, table, axis=1)
    return net.add("Conv", joined, net.weights(C, C + 2, 1))


def with_each_step(kind: str) -> Perturbation:
    return lambda net: net.add(kind, net.last, net.constant(net.rng.uniform(0.3, 1.0, (1, 1, T))))


def chosen_at_each_step(net: PerturbedModel) -> str:
    return net.add("Where", net.constant(np.arange(T) % 3 > 0, np.bool_), net.last, net.constant(0.5))


def layer_norm_of_each_step(net: PerturbedModel) -> str:
    return net.back(net.add("LayerNormalization", net.rows(), net.constant(net.rng.uniform(0.5, 1, (T, C)))))


def start_of_each_step(net: PerturbedModel) -> str:
    row = net.add("Slice", net.rows(), net.ints(0), net.ints(1), net.ints(0))
    x = net.add("Transpose", row, perm=[2, 1, 0])  # [C, T, 1]
    weights = [net.weights(1, 6, 1), net.weights(1, 6, 2)]
    Y = net.add("GRU", x, *weights, "", "", net.constant(net.rng.standard_normal((1, T, 2))), hidden_size=2)
    mean = net.add("ReduceMean", net.add("Squeeze", Y, net.ints(1)), axes=[2], keepdims=1)
    return net.add("Add", net.last, net.add("Transpose", mean, perm=[2, 0, 1]))


def same_pads(net: PerturbedModel) -> str:
    """Strides along features, whose pads TensorFlow's exporters leave to the runtime."""
    x = net.add("Unsqueeze", net.last, net.ints(1))
    size, stride = int(net.rng.integers(2, 6)), int(net.rng.integers(2, 4))
    y = net.add(
        "Conv", x, net.weights(3, 1, size, int(net.rng.integers(1, 4))), strides=[stride, 1],
        auto_pad=str(net.rng.choice(["SAME_UPPER", "SAME_LOWER"])),
    )  # fmt: skip
    mean = net.add("ReduceMean", y, axes=[1, 2], keepdims=0)
    return net.add("Add", net.last, net.add("Unsqueeze", mean, net.ints(1)))


def divided_by(number: Perturbation) -> Perturbation:
    return lambda net: net.add("Div", net.last, number(net))


def sum_of_ones(net: PerturbedModel) -> str:
    return net.add("ReduceSum", net.ones(), net.ints(0), keepdims=0)


def ones_found(net: PerturbedModel) -> str:
    found = net.add("NonZero", net.ones())
    return net.add("Cast", net.add("Gather", net.add("Shape", found), net.ints(1)), to=TensorProto.FLOAT)


def size_of_all(net: PerturbedModel) -> str:
    return net.add("Cast", net.add("Size", net.last), to=TensorProto.FLOAT)


def letters_of_ones(net: PerturbedModel) -> str:
    return net.add("Einsum", net.ones(), equation="t->")


def product_of_ones(net: PerturbedModel) -> str:
    ones = net.ones()
    return net.add("MatMul", ones, ones)


def places(net: PerturbedModel) -> str:
    count = net.add("Squeeze", steps_of(net, net.last), net.ints(0))
    zero, one = (net.constant(number, np.int64) for number in (0, 1))
    return net.add("Range", zero, count, one)


def numbered(net: PerturbedModel, first: str, last: str, step: int = 1) -> str:
    """Numbers from the first up to the last, as an axis of steps, next to what there is."""
    ends = [net.add("Squeeze", item, net.ints(0)) for item in (first, last)]
    numbers = net.add("Range", *ends, net.constant(step, np.int64))
    return net.add("Mul", net.last, net.add("Cast", numbers, to=TensorProto.FLOAT))


def numbers_from_the_last(net: PerturbedModel) -> str:
    """T - 1 - arange(T)"""
    last = net.add("Sub", net.add("Squeeze", steps_of(net, net.last), net.ints(0)), net.constant(1, np.int64))
    back = net.add("Sub", last, places(net))
    return net.add("Mul", net.last, net.add("Cast", back, to=TensorProto.FLOAT))


def numbers_up_to_twice(net: PerturbedModel) -> str:
    count = steps_of(net, net.last)
    return numbered(net, count, net.add("Mul", count, net.ints(2)))


def every_other_number(net: PerturbedModel) -> str:
    """Half as many as steps, twice."""
    count = net.add("Mul", steps_of(net, net.last), net.ints(2))
    half = net.add("Range", *[net.add("Squeeze", x, net.ints(0)) for x in (net.ints(0), count, net.ints(4))])
    both = net.add("Concat", half, half, axis=0)
    both = net.add("Slice", both, net.ints(0), steps_of(net, net.last), net.ints(0))
    return net.add("Mul", net.last, net.add("Cast", both, to=TensorProto.FLOAT))


def numbers_of_rows(net: PerturbedModel) -> str:
    rows = net.merged()
    count = net.add("Gather", net.add("Shape", rows), net.constant(0, np.int64))
    numbers = net.add("Range", net.constant(0, np.int64), count, net.constant(1, np.int64))
    numbers = net.add("Unsqueeze", net.add("Cast", numbers, to=TensorProto.FLOAT), net.ints(1))
    return net.apart(net.add("Mul", rows, numbers))


def numbers_with_lengths(net: PerturbedModel) -> str:
    """`arange(T) < lengths`, where whoever calls a chunk may say how long that is."""
    net.inputs.append(helper.make_tensor_value_info("n", TensorProto.INT64, [B, 1, 1]))
    net.feeds["n"] = np.array([5, 3], np.int64).reshape(B, 1, 1)
    is_within = net.add("Cast", net.add("Less", places(net), "n"), to=TensorProto.FLOAT)
    return net.add("Mul", net.last, is_within)


def ones_with_lengths(net: PerturbedModel) -> str:
    """The same of a sum of ones."""
    net.inputs.append(value("n", shape=[B, 1, 1]))
    net.feeds["n"] = np.array([5, 3], np.float32).reshape(B, 1, 1)
    is_within = net.add("Less", net.add("Mul", running_ones(net), net.constant(1.0)), "n")
    return net.add("Mul", net.last, net.add("Cast", is_within, to=TensorProto.FLOAT))


def pairs_of_numbers(net: PerturbedModel) -> str:
    """`tril(ones(T, T)) @ x`"""
    numbers = places(net)
    earlier = net.add("LessOrEqual", numbers, net.add("Unsqueeze", numbers, net.ints(1)))
    x = net.add("MatMul", net.add("Cast", earlier, to=TensorProto.FLOAT), net.rows())
    return net.back(x)


def steps_by_numbers(net: PerturbedModel) -> str:
    return net.add("Gather", net.last, places(net), axis=2)


def steps_by(perturbed: Callable[[PerturbedModel, str], str]) -> Perturbation:
    """Steps by numbers that are not those of all steps, one after the other."""
    return lambda net: net.add("Gather", net.last, perturbed(net, places(net)), axis=2)


def cut_numbers(net: PerturbedModel, numbers: str) -> str:
    """0, 0, 1, 2 …"""
    less = net.add("Sub", numbers, net.ints(1))
    return net.add("Max", less, net.ints(0))


def table_of_each_step(net: PerturbedModel) -> str:
    table = net.constant(net.rng.standard_normal((T, C)), np.float32)
    rows = net.add("Gather", table, net.constant(np.arange(T), np.int64), axis=0)
    return net.back(net.add("Add", net.rows(), rows))


def expanded_to_written_steps(net: PerturbedModel) -> str:
    """One number for each feature, and the largest feature of each step, as often as there are steps."""
    scale = net.add("Expand", net.weights(1, C, 1), net.ints(B, C, T))
    peak = net.add("ReduceMax", net.last, axes=[1], keepdims=1)
    return net.add("Add", net.add("Mul", net.last, scale), net.add("Expand", peak, net.ints(B, C, T)))


def largest_places(net: PerturbedModel, axis: int, keep: int = 1) -> str:
    return net.add("ArgMax", net.last, axis=axis, keepdims=keep)


def largest_step(net: PerturbedModel) -> str:
    """What a GatherElements takes from the largest of all steps."""
    return net.add("Mul", net.last, net.add("GatherElements", net.last, largest_places(net, 2), axis=2))


def step_by_each(net: PerturbedModel) -> str:
    """Each step names another one, by its largest feature."""
    places = net.add("Expand", largest_places(net, 1), net.add("Shape", net.last))
    return net.add("GatherElements", net.last, places, axis=2)


def written_step(net: PerturbedModel) -> str:
    """The first step is written over by the newest."""
    newest = net.add("Unsqueeze", net.newest(), net.ints(2))
    first = net.add("Mul", largest_places(net, 2), net.ints(0))
    first = net.add("Expand", first, net.add("Shape", newest))
    return net.add("ScatterElements", net.last, first, newest, axis=2)


def row_by_newest(net: PerturbedModel) -> str:
    """A row of a table for all steps, as the newest one says."""
    place = net.add("ArgMax", net.newest(), axis=1, keepdims=0)
    row = net.add("Gather", net.weights(C, C), place, axis=0)
    return net.add("Add", net.last, net.add("Unsqueeze", row, net.ints(2)))


def one_hot_steps(net: PerturbedModel) -> str:
    """As many classes as steps; all but the newest are none."""
    depth = net.add("Squeeze", steps_of(net, net.last), net.ints(0))
    found = net.add("OneHot", largest_places(net, 1, 0), depth, net.constant([0.0, 1.0]), axis=1)
    return net.add("Add", net.last, net.add("ReduceSum", found, net.ints(1), keepdims=1))


def bands_as_long_as_steps(net: PerturbedModel) -> str:
    """A GRU along the features, as many of them as there are steps."""
    rows = net.add("Reshape", net.swapped(net.last, (1, 0, 2)), net.ints(C, -1, 1))
    count = net.add("Min", steps_of(net, net.last), net.ints(C))
    rows_of = net.add("Slice", net.add("Shape", rows), net.ints(1), net.ints(2), net.ints(0))
    lengths = net.add("Cast", net.add("Expand", count, rows_of), to=TensorProto.INT32)
    y = net.add("GRU", rows, net.weights(1, 3, 1), net.weights(1, 3, 1), "", lengths, hidden_size=1)
    y = net.add("Reshape", y, net.add("Shape", net.swapped(net.last, (1, 0, 2))))
    return net.swapped(y, (1, 0, 2))


def number_of_all(net: PerturbedModel) -> str:
    share = net.add("Div", net.add("Cast", places(net), to=TensorProto.FLOAT), net.steps())
    return net.add("Mul", net.last, share)


def sum_along_rows(net: PerturbedModel) -> str:
    return net.apart(net.add("CumSum", net.merged(), net.constant(0, np.int64)))


def written_ones(net: PerturbedModel) -> str:
    """As many steps as a list has elements, which are counted."""
    ones = net.add("ConstantOfShape", steps_of(net, net.last), value=helper.make_tensor("one", 7, [1], [1]))
    count = net.add("Cast", net.add("ReduceSum", ones, net.ints(0), keepdims=1), to=TensorProto.FLOAT)
    return net.add("Div", net.last, count)


def size_of_places(net: PerturbedModel) -> str:
    return net.add("Cast", net.add("Shape", places(net)), to=TensorProto.FLOAT)


def last_place(net: PerturbedModel) -> str:
    place = net.add("ReduceMax", net.add("Cast", places(net), to=TensorProto.FLOAT), axes=[0], keepdims=0)
    return net.add("Add", place, net.constant(1.0))


def running_ones(net: PerturbedModel) -> str:
    return net.add("CumSum", net.ones(), net.constant(0, np.int64))


def half_of_steps(net: PerturbedModel) -> str:
    half = net.add("Div", steps_of(net, net.last), net.ints(2))
    return net.add("Cast", net.add("Add", half, net.ints(1)), to=TensorProto.FLOAT)


def many_steps(net: PerturbedModel) -> str:
    is_long = net.add("Greater", steps_of(net, net.last), net.ints(7))
    return net.add("Where", is_long, net.constant(2.0), net.constant(1.0))


def sizes_of_rows(net: PerturbedModel) -> str:
    return net.add("Cast", net.add("Shape", net.merged(), start=0, end=1), to=TensorProto.FLOAT)


NUMBERS: dict[str, Perturbation] = {
    "steps": PerturbedModel.steps,
    "sum of ones": sum_of_ones,
    "ones that are found": ones_found,
    "size": size_of_all,
    "letters of ones": letters_of_ones,
    "product of ones": product_of_ones,
    "size of places": size_of_places,
    "last place": last_place,
    "running ones": running_ones,
    "half of the steps": half_of_steps,
    "many steps": many_steps,
    "size of rows": sizes_of_rows,
}


def newest_by(number: Perturbation) -> Perturbation:
    def perturb(net: PerturbedModel) -> str:
        net.output(net.add("Div", net.newest(), number(net)))
        return net.last

    return perturb


def number_itself(number: Perturbation) -> Perturbation:
    def perturb(net: PerturbedModel) -> str:
        net.output(number(net))
        return net.last

    return perturb


def state_by_steps(net: PerturbedModel) -> str:
    x = net.swapped(net.last)
    net.add("GRU", x, net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), outputs=2, hidden_size=C)
    net.output(net.add("Mul", net.nodes[-1].output[1], net.steps()))
    return net.last


def start_by_steps(net: PerturbedModel) -> str:
    h = net.add("Mul", net.constant(np.ones((1, B, C))), many_steps(net))
    Y = net.add(
        "GRU", net.swapped(net.last), net.weights(1, 3 * C, C), net.weights(1, 3 * C, C), "", "", h,
        hidden_size=C,
    )  # fmt: skip
    return net.swapped(net.add("Squeeze", Y, net.ints(1)), (1, 2, 0))


def branch_by_steps(net: PerturbedModel) -> str:
    bodies = {
        f"{way}_branch": graph(
            [node(kind, [net.last], [f"{way}_{len(net.nodes)}"])], [], [f"{way}_{len(net.nodes)}"]
        )
        for way, kind in (("then", "Tanh"), ("else", "Neg"))
    }
    many = net.add("Greater", net.add("Squeeze", steps_of(net, net.last), net.ints(0)), net.ints(7))
    return net.add("If", net.add("Squeeze", many, net.ints(0)), **bodies)


def as_long_as(kind: str) -> Perturbation:
    def perturb(net: PerturbedModel) -> str:
        x = net.newest()
        x = net.add("Unsqueeze", x, net.ints(2))
        return net.add(kind, x, net.add("Concat", net.ints(1, 1), steps_of(net, net.last), axis=0))

    return perturb


def to_written_steps(net: PerturbedModel) -> str:
    x = net.add("Slice", net.last, net.ints(-1), net.ints(FAR), net.ints(2))
    return net.add("Expand", x, net.ints(1, 1, T))


def next_to_itself(net: PerturbedModel) -> str:
    return net.add("Expand", net.last, net.ints(1, 1, T))


def resized_to(net: PerturbedModel) -> str:
    return net.add("Resize", net.last, "", "", net.ints(B, C, T), mode="linear")


def resized_by_steps(net: PerturbedModel) -> str:
    """Twice as long, and cut to what it was."""
    twice = net.add("Mul", steps_of(net, net.last), net.ints(2))
    sizes = net.add("Concat", net.ints(B, C), twice, axis=0)
    x = net.add("Resize", net.last, "", "", sizes, mode="linear")
    return cut(net, x, 0, steps_of(net, net.last))


def resized_to_more(net: PerturbedModel) -> str:
    """To the steps that it has with zeros in front."""
    sizes = net.add("Shape", padded(net, net.last, 2))
    x = net.add("Resize", net.last, "", "", sizes, mode="linear")
    return cut(net, x, 0, steps_of(net, net.last))


def first_step(net: PerturbedModel) -> str:
    net.output(net.add("Gather", net.last, net.constant(-T if net.fixed else 0, np.int64), axis=2))
    return net.last


def sum_after_unknown(net: PerturbedModel) -> str:
    return net.add("CumSum", net.of_unknown_rank(), net.constant(2, np.int64))


def mean_after_unknown(net: PerturbedModel) -> str:
    x = net.of_unknown_rank()
    return net.add("Sub", x, net.add("ReduceMean", x, axes=[2]))


def reversed_after_unknown(net: PerturbedModel) -> str:
    x = net.of_unknown_rank()
    return net.add("Slice", x, net.ints(-1), net.ints(-FAR), net.ints(2), net.ints(-1))


def table_after_unknown(net: PerturbedModel) -> str:
    return net.add("Mul", net.of_unknown_rank(), net.constant(net.rng.uniform(0.3, 1, (1, 1, T))))


def padded_by(mode: str) -> Perturbation:
    def perturb(net: PerturbedModel) -> str:
        return net.conv(net.add("Pad", net.last, net.ints(0, 0, 2, 0, 0, 0), mode=mode), 3)

    return perturb


def padded_with(number: Perturbation) -> Perturbation:
    def perturb(net: PerturbedModel) -> str:
        x = net.add("Pad", net.last, net.ints(0, 0, 2, 0, 0, 0), number(net))
        return net.conv(x, 3)

    return perturb


def padded_features(net: PerturbedModel) -> str:
    one = net.add("Reshape", net.add("Slice", net.newest(), *map(net.ints, (0, 1, 0))), net.ints(-1))
    number = net.add("Squeeze", net.add("Slice", one, net.ints(0), net.ints(1), net.ints(0)), net.ints(0))
    x = net.add("Pad", net.last, net.ints(0, 1, 0, 0, 0, 0), number)
    return net.add("Slice", x, net.ints(0), net.ints(C), net.ints(1))


def cut_where_newest(net: PerturbedModel) -> str:
    row = net.add("Slice", net.newest(), net.ints(0), net.ints(1), net.ints(0))
    first = net.add("Squeeze", net.add("ArgMax", row, axis=1, keepdims=1), net.ints(1))
    x = net.add("Slice", net.last, first, net.ints(FAR), net.ints(1))
    return net.add("Sub", net.last, net.add("ReduceSum", x, net.ints(1), keepdims=1))


def cut_by_steps(net: PerturbedModel) -> str:
    many = net.add("Min", net.add("Div", steps_of(net, net.last), net.ints(3)), net.ints(C))
    x = net.add("Slice", net.last, net.ints(0), many, net.ints(1))
    return net.add("Sub", net.last, net.add("ReduceSum", x, net.ints(1), keepdims=1))


def repeated_by_steps(net: PerturbedModel) -> str:
    many = net.add("Div", steps_of(net, net.last), net.ints(T))
    many = net.add("Max", many, net.ints(1))
    x = net.add("Tile", net.last, net.add("Concat", net.ints(1), many, net.ints(1), axis=0))
    return net.add("Sub", net.last, net.add("ReduceSum", x, net.ints(1), keepdims=1))


def folded_steps(net: PerturbedModel) -> str:
    """The features of each step next to those of others."""
    x = net.add("Reshape", net.last, net.ints(0, -1, C))
    return net.add("Reshape", net.add("Softmax", x, axis=1), net.add("Shape", net.last))


def flattened_steps(net: PerturbedModel) -> str:
    rows = net.add("Softmax", net.add("Flatten", net.last, axis=-1), axis=1)
    return net.add("Reshape", rows, net.add("Shape", net.last))


def uncut(net: PerturbedModel) -> str:
    """What a deconvolution gives after the last step stays."""
    return net.add("ConvTranspose", net.last, net.weights(C, C, 3))


def stretched(net: PerturbedModel) -> str:
    x = net.add("ConvTranspose", net.last, net.weights(C, C, 3), strides=[2])
    return cut(net, x, 0, steps_of(net, net.last))


def zeros_like_first(net: PerturbedModel) -> tuple[str, str]:
    """Steps with two zeros in front, and these."""
    zeros = net.add("ConstantOfShape", net.add("Shape", cut(net, net.last, 0, 2)))
    return net.add("Concat", zeros, cut(net, net.last, 0, -2), axis=2), zeros


def counted_zeros(net: PerturbedModel) -> str:
    y, zeros = zeros_like_first(net)
    return net.add("Add", y, net.add("ReduceSum", net.add("Exp", zeros), net.ints(2), keepdims=1))


def zeros_and_first(net: PerturbedModel) -> str:
    y, _ = zeros_like_first(net)
    return net.add("Add", y, net.add("ReduceMax", cut(net, net.last, 0, 2), axes=[2], keepdims=1))


def both_parts(net: PerturbedModel) -> str:
    sizes = net.add("Concat", steps_of(net, net.last), net.ints(2), axis=0)
    y = net.add("Split", padded(net, net.last, 2), sizes, outputs=2, axis=2)
    return net.add("Add", y, net.add("ReduceMax", net.nodes[-1].output[1], axes=[2], keepdims=1))


def first_part(net: PerturbedModel) -> str:
    """The first steps, as many as there are but for two."""
    rest = net.add("Sub", steps_of(net, net.last), net.ints(2))
    sizes = net.add("Concat", net.ints(2), rest, axis=0)
    first = net.add("Split", net.last, sizes, outputs=2, axis=2)
    return net.add("Sub", net.last, net.add("ReduceMax", first, axes=[2], keepdims=1))


def two_by_two(net: PerturbedModel) -> str:
    x = net.add("MaxPool", padded(net, net.last, 1), kernel_shape=[2], strides=[1], outputs=2)
    places = net.add("Cast", net.nodes[-1].output[1], to=TensorProto.FLOAT)
    return net.add("Add", x, net.add("Mul", places, net.constant(0.01)))


def normal(kind: str, **attributes: Any) -> Perturbation:
    return lambda net: net.add(kind, net.last, **attributes)


PERTURBATIONS: dict[str, Perturbation] = {
    "lengths as an input": lengths_as_an_input,
    "lengths of another input": lengths_of_another_input,
    "lengths that stop": lengths_that_stop,
    "lengths one less": lengths_one_less,
    "a GRU along rows": gru_along_rows,
    "a shift along rows": shift_along_rows,
    "a convolution along rows": convolution_along_rows,
    "zeros along rows": zeros_along_rows,
    "the newest of rows": newest_of_rows,
    "rows as an output": rows_as_an_output,
    "a norm in training": trained_norm,
    "channels that are time": channels_that_are_time,
    "pads of the same size": same_pads,
    **{f"divided by {name}": divided_by(number) for name, number in NUMBERS.items()},
    **{f"the newest by {name}": newest_by(NUMBERS[name]) for name in NUMBERS if name != "running ones"},
    **{f"{name} as an output": number_itself(NUMBERS[name]) for name in NUMBERS if name != "running ones"},
    "numbers from the last": numbers_from_the_last,
    "numbers up to twice": numbers_up_to_twice,
    "every other number": every_other_number,
    "numbers of rows": numbers_of_rows,
    "numbers with lengths": numbers_with_lengths,
    "a sum of ones with lengths": ones_with_lengths,
    "pairs of numbers": pairs_of_numbers,
    "steps by their numbers": steps_by_numbers,
    "steps by the numbers before": steps_by(lambda net, numbers: net.add("Sub", numbers, net.ints(1))),
    "steps by numbers that wait": steps_by(cut_numbers),
    "steps by half their numbers": steps_by(lambda net, numbers: net.add("Div", numbers, net.ints(2))),
    "the largest step": largest_step,
    "a step that each step names": step_by_each,
    "the first step written over": written_step,
    "a row by the newest step": row_by_newest,
    "one-hot as wide as steps": one_hot_steps,
    "bands as long as steps": bands_as_long_as_steps,
    "a number by that of all": number_of_all,
    "a sum along rows": sum_along_rows,
    "a list of ones": written_ones,
    "a sum from the last": lambda net: net.add("CumSum", net.last, net.constant(-1, np.int64), reverse=1),
    "a state by steps": state_by_steps,
    "a start by steps": start_by_steps,
    "a branch by steps": branch_by_steps,
    "the newest at each step": as_long_as("Expand"),
    "the newest repeated": as_long_as("Tile"),
    "the first step": first_step,
    "a sum after an unknown rank": sum_after_unknown,
    "a mean after an unknown rank": mean_after_unknown,
    "reversed after an unknown rank": reversed_after_unknown,
    **{f"padded by {mode}": padded_by(mode) for mode in ("reflect", "edge")},
    "padded with a number": padded_with(lambda net: net.constant(0.5)),
    "padded with steps": padded_with(lambda net: net.add("Squeeze", net.steps(), net.ints(0))),
    "padded features": padded_features,
    "cut where the newest is largest": cut_where_newest,
    "cut by steps": cut_by_steps,
    "repeated by steps": repeated_by_steps,
    "folded steps": folded_steps,
    "flattened steps": flattened_steps,
    "a deconvolution that is not cut": uncut,
    "a deconvolution with a stride": stretched,
    "zeros in front that are counted": counted_zeros,
    "zeros in front and the first steps": zeros_and_first,
    "both parts of steps": both_parts,
    "the first part of steps": first_part,
    "resized by steps": resized_by_steps,
    "resized to more steps": resized_to_more,
    "places of a pooling": two_by_two,
    "a norm over time": normal("MeanVarianceNormalization", axes=[0, 2]),
    "a norm over each sequence": normal("LpNormalization", axis=2),
    "a sum from the first": lambda net: net.add("CumSum", net.last, net.constant(-1, np.int64)),
}
OF_FIXED: dict[str, Perturbation] = {
    "a table of each step": table_of_each_step,
    "expanded to written steps": expanded_to_written_steps,
    "a norm of each step": norm_of_each_step,
    "a product of each step": product_of_each_step,
    "a product over steps": product_over_steps,
    "a sum of each step": sum_of_each_step,
    "letters of each step": letters_of_each_step,
    "a Gemm of each step": gemm_of_each_step,
    "scales of each step": scales_of_each_step,
    "rounded by each step": rounded_by_each_step,
    "joined with each step": joined_with_each_step,
    **{f"{kind} with each step": with_each_step(kind) for kind in ("Add", "Mul", "PRelu", "Max", "Pow")},
    "chosen at each step": chosen_at_each_step,
    "a layer norm of each step": layer_norm_of_each_step,
    "a start of each step": start_of_each_step,
    "to written steps": to_written_steps,
    "next to itself": next_to_itself,
    "resized to what it is": resized_to,
    "a table after an unknown rank": table_after_unknown,
}
#: What streams after some parts, and is computed rightly then.
_MAY_STREAM = (
    *("pads of the same size", "to written steps", "resized to what it is"),
    *("a sum from the first", "divided by running ones", "steps by their numbers"),
    *("expanded to written steps", "next to itself", "padded with a number"),
    "padded by edge",
)
#: What streams only where a run always has the same number of steps: 12 are more than 6 features, or than 7.
_MAY_STREAM_FIXED = ("bands as long as steps", "a branch by steps")


def positive(net: PerturbedModel) -> str:
    """Numbers; only some have a logarithm, a root, a power."""
    kind = int(net.rng.integers(3))
    x = net.add("Abs", net.last) if kind else net.add("Exp", net.last)
    x = net.add("Add", x, net.constant(0.5))
    return net.add("Log", x) if kind == 1 else net.add("Sqrt", x)


PARTS = {**CAUSAL, "positive": positive}


def drawn(seed: int, names: list[str]) -> tuple[str, PerturbedModel, ModelProto]:
    """A network with a GRU, and one part that is perturbed; without names, none is."""
    rng = np.random.default_rng(seed)
    name = names[seed % len(names)] if names else "Identity"
    fixed = name in OF_FIXED or bool(rng.integers(3) == 0)
    net = PerturbedModel(rng, fixed)
    parts = [str(rng.choice(list(PARTS))) for _ in range(rng.integers(0, 4))] + ["GRU"]
    parts = [str(part) for part in rng.permutation(parts)]
    parts.insert(int(rng.integers(len(parts) + 1)), name)
    for part in parts:
        net.last = {**PARTS, **PERTURBATIONS, **OF_FIXED, "Identity": normal("Identity")}[part](net)
    return name, net, net.whole(B if fixed or rng.integers(2) else "batch", 17)


def in_chunks(path: Path, feeds: dict[str, Array], steps: int, rng: np.random.Generator) -> dict[str, Array]:
    """What ONNX Runtime gives in chunks by the file's metadata: steps joined, or those of the newest one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    document = json.loads(session.get_modelmeta().custom_metadata_map[STREAM_KEY])
    types = {item.name: np.int64 if "int64" in item.type else np.float32 for item in session.get_inputs()}
    states = {
        item["input"]: np.full(
            [B if size == "batch" else size for size in item["shape"]],
            item.get("initial", 0),
            types[item["input"]],
        )
        for item in document["states"]
    }
    sizes = [min(steps, 1 + max(document["delays"].values(), default=0) + int(rng.integers(3)))]
    while sum(sizes) < steps:
        sizes.append(min(int(rng.integers(1, 6)), steps - sum(sizes)))
    names, found = [item.name for item in session.get_outputs()], list[dict[str, Array]]()
    for begin, end in pairwise(np.cumsum([0, *sizes])):
        chunk = {key: array[:, :, begin:end] if key == "X" else array for key, array in feeds.items()}
        found.append(dict(zip(names, session.run(None, chunk | states), strict=True)))
        states = {item["input"]: found[-1][item["output"]] for item in document["states"]}
    is_joined = all(part["Z"].shape[2] <= size for part, size in zip(found, sizes, strict=True))
    joined = {"Z": np.concatenate([part["Z"] for part in found], 2)} if is_joined else {}
    return {key: joined.get(key, array) for key, array in found[-1].items()}


def is_wrong(source: Path, target: Path, net: PerturbedModel, seed: int) -> bool:
    """Whether chunks give something else than the whole, for any number of steps."""
    rng = np.random.default_rng(seed)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    for steps in (T,) if net.fixed else (T, 5, 31):
        X = rng.standard_normal((B, C, steps)).astype(np.float32)
        feeds = {"X": np.abs(X) if rng.integers(2) else X, **net.feeds}
        names = [item.name for item in session.get_outputs()]
        whole = dict(zip(names, session.run(None, feeds), strict=True))
        try:
            found = in_chunks(target, feeds, steps, rng)
        except Exception:  # of no particular class: the file does not run
            return True
        for name, array in whole.items():
            array = array[:, :, : found["Z"].shape[2]] if name == "Z" else array
            if found[name].shape != array.shape or not np.allclose(found[name], array, atol=2e-5, rtol=1e-4):
                return True
    return False


def verdict(seed: int, folder: Path, names: list[str]) -> tuple[str, str]:
    """The perturbed part, and "refused", "equal", "wrong", or "equal by chance" if it must be refused."""
    name, net, proto = drawn(seed, names)
    source, target = save(folder, proto), folder / f"{seed}.onnx"
    try:
        onegru.make_streaming(source, target, delay=True, check=False, time={"X": 2})
    except SpecError as error:
        assert "cannot run in chunks, because" in str(error) or "has no state to carry" in str(error), (
            name,
            error,
        )
        return name, "refused"
    may_stream = not names or name in _MAY_STREAM or (net.fixed and name in _MAY_STREAM_FIXED)
    found = "equal" if may_stream else "equal by chance"
    found = "wrong" if is_wrong(source, target, net, seed) else found
    target.unlink()
    return name, found


ALL = [*PERTURBATIONS, *OF_FIXED]


@pytest.mark.parametrize("name", ALL)
def test_each_perturbation(name: str, tmp_path: Path) -> None:
    for seed in range(2):
        _, found = verdict(seed, tmp_path, [name])
        assert found in ("refused", "equal"), (seed, found)


def test_a_delay_does_not_hide_that_an_output_is_longer(tmp_path: Path) -> None:
    """The last steps of a deconvolution, after a difference that comes one step later."""
    assert verdict(2161, tmp_path, ALL) == ("a deconvolution that is not cut", "refused")


def test_none_is_refused_that_is_not_perturbed(tmp_path: Path) -> None:
    assert {verdict(seed, tmp_path, []) for seed in range(25)} == {("Identity", "equal")}


@pytest.mark.parametrize("part", range(50))
def test_none_is_accepted_that_cannot_stream(part: int, tmp_path: Path) -> None:
    seen = Counter[str]()
    for seed in range(100 * part, 100 * part + 100):
        name, found = verdict(seed, tmp_path, ALL)
        assert found in ("refused", "equal"), (seed, name, found)
        seen[found] += 1
    assert seen["refused"] >= 100 - len(_MAY_STREAM) - len(_MAY_STREAM_FIXED)


def with_own_state(name: str, is_after: bool) -> ModelProto:
    """A GRU whose state is an input and an output, and a perturbation after or before it."""
    net = PerturbedModel(np.random.default_rng(0), fixed=False)
    net.last = "X"

    def gru() -> None:
        x = net.swapped(net.last)
        weights = [net.weights(1, 3 * C, C) for _ in "WR"]
        net.nodes.append(node("GRU", [x, *weights, "", "", "h"], ["gy", "h_out"], hidden_size=C))
        net.last = net.swapped(net.add("Squeeze", "gy", net.ints(1)), (1, 2, 0))

    if is_after:
        gru()
    net.last = {**PERTURBATIONS, **OF_FIXED}[name](net)
    if not is_after:
        gru()
    net.nodes.append(node("Identity", [net.last], ["Z"]))
    inputs = [value("X", shape=[B, C, "time"]), value("h", shape=[1, B, C]), *net.inputs]
    outputs = [value("Z", shape=None), value("h_out", shape=[1, B, C]), *net.outputs]
    return model(graph(net.nodes, inputs, outputs, net.constants), opset=17)


#: What chunks compute as a whole run does, where the state is outside.
_RIGHT_IN_CHUNKS = {"to written steps", "steps by their numbers"}


@pytest.mark.parametrize("is_after", [True, False])
@pytest.mark.parametrize("name", [*PERTURBATIONS, *OF_FIXED])
def test_a_perturbation_near_a_state_is_reported(name: str, is_after: bool, tmp_path: Path) -> None:
    try:
        path = save(tmp_path, with_own_state(name, is_after))
        loaded = onegru.load(path)
    except (KeyError, AttributeError, SpecError, onegru.FormatError):
        pytest.skip("no such network")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loaded.stream()
        except SpecError:
            return
    is_warned = any(issubclass(item.category, onegru.SpecWarning) for item in caught)
    assert is_warned or name in _RIGHT_IN_CHUNKS
