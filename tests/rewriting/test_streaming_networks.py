"""Networks as PyTorch's exporters write them, node by node, that stream once they are rewritten."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

import onegru
from onegru.core.dtypes import Array
from tests.rewriting.test_streaming import Network, T
from tests.support.files.onnx_models import I, graph, gru, model, node, save, value, weights

GROUPS, WIDTH, BANDS = 4, 16, 4
TIME = {"emb": 1, "e3": 2, "e0": 2}


class Decoder(Network):
    """DeepFilterNet 3's ERB decoder: linear layers of groups around two GRUs, back to bands, deconvolutions.

    Args:
        dynamo: whether it is as PyTorch's newer exporter writes it; else by TorchScript.
        equation: of the groups.
    """

    def __init__(self, dynamo: bool, equation: str) -> None:
        super().__init__(np.random.default_rng(0))
        self.dynamo, self.equation = dynamo, equation

    def size(self, value: str, axis: int) -> str:
        """A size as a tensor of one element."""
        if self.dynamo:
            return self.add("Shape", value, start=axis, end=axis + 1)
        size = self.add("Gather", self.add("Shape", value), self.constant(axis, np.int64), axis=0)
        return self.add("Unsqueeze", size, self.constant([0], np.int64))

    def reshaped(self, value: str, *sizes: str | int) -> str:
        names = [size if isinstance(size, str) else self.constant([size], np.int64) for size in sizes]
        attributes = {"allowzero": 1} if self.dynamo else {}
        return self.add("Reshape", value, self.add("Concat", *names, axis=0), **attributes)

    def groups(self, x: str, inputs: int, outputs: int) -> str:
        rows, steps = self.size(x, 0), self.size(x, 1)
        y = self.reshaped(x, rows, steps, GROUPS, inputs // GROUPS)
        W = self.weights(GROUPS, inputs // GROUPS, outputs // GROUPS)
        y = self.add("Einsum", y, W, equation=self.equation)
        if self.dynamo:
            return self.reshaped(y, rows, steps, outputs)
        bounds = (self.constant([item], np.int64) for item in (0, 2, 0))
        return self.reshaped(y, self.add("Slice", self.add("Shape", y), *bounds), -1)

    def layers(self, x: str) -> str:
        """Two GRUs; by TorchScript they begin at parts of one tensor of zeros."""
        x = self.swapped(x, (1, 0, 2))
        rows, width = self.size(x, 1), self.constant([WIDTH], np.int64)
        sizes = self.add("Concat", self.constant([1 if self.dynamo else 2], np.int64), rows, width, axis=0)
        zeros = (
            self.add("Expand", self.constant(0.0), sizes)
            if self.dynamo
            else self.add("ConstantOfShape", sizes)
        )
        for layer in range(2):
            bounds = (self.constant([item], np.int64) for item in (layer, layer + 1, 0))
            start = zeros if self.dynamo else self.add("Slice", zeros, *bounds)
            weights = [self.weights(1, 3 * WIDTH, WIDTH) for _ in range(2)]
            Y = self.add(
                "GRU", x, *weights, self.weights(1, 6 * WIDTH), "", start, hidden_size=WIDTH, outputs=2
            )
            x = self.add("Squeeze", Y, self.constant([1], np.int64))
        return self.swapped(x, (1, 0, 2))

    def whole(self, is_open: bool) -> ModelProto:
        y = self.add("Relu", self.groups("emb", 32, WIDTH))
        y = self.add("Relu", self.groups(self.layers(y), WIDTH, 32))
        y = self.reshaped(y, self.size("e3", 0), self.size("e3", 2), self.size("e3", 3), -1)
        y = self.swapped(y, (0, 3, 1, 2))
        y = self.add("Add", self.add("Conv", "e3", self.weights(8, 4, 1, 1)), y)
        y = self.add(
            "ConvTranspose",
            y,
            self.weights(8, 1, 1, 3),
            strides=[1, 2],
            pads=[0, 1, 0, 1],
            output_padding=[0, 1],
            group=8,
        )
        y = self.add("Conv", y, self.weights(4, 8, 1, 1))
        y = self.add("Add", self.add("Relu", y), self.add("Conv", "e0", self.weights(4, 4, 1, 1)))
        self.nodes.append(
            node("Sigmoid", [self.add("Conv", y, self.weights(1, 4, 1, 3), pads=[0, 1, 0, 1])], ["m"])
        )
        rows, names = ("rows", dict.fromkeys(TIME, "S")) if is_open else (2, dict.fromkeys(TIME, T))
        inputs = [
            value("emb", shape=[rows, names["emb"], 32]),
            value("e3", shape=[rows, 4, names["e3"], BANDS]),
            value("e0", shape=[rows, 4, names["e0"], 2 * BANDS]),
        ]
        return model(
            graph(self.nodes, inputs, [value("m", shape=[rows, 1, names["e0"], 8])], self.constants), opset=17
        )


def feeds_of(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"emb": (2, T, 32), "e3": (2, 4, T, BANDS), "e0": (2, 4, T, 2 * BANDS)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("equation", ["btgi,gih->btgh", "...gi,gih->...gh"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "fixed"])
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
def test_a_decoder_of_groups(dynamo: bool, is_open: bool, equation: str, tmp_path: Path) -> None:
    source, target = save(tmp_path, Decoder(dynamo, equation).whole(is_open)), tmp_path / "streaming.onnx"
    onegru.make_streaming(source, target)
    feeds = feeds_of(3)
    whole = onegru.load(source).run(feeds)["m"]
    stream = onegru.load(target).stream()
    assert len(stream.pairs) == 2
    parts = [
        stream.step({name: array.take(range(a, b), TIME[name]) for name, array in feeds.items()})["m"]
        for a, b in pairwise([0, 1, 2, 9, 17, T])
    ]
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-5)


def test_time_may_have_a_name_in_each_input(tmp_path: Path) -> None:
    proto = Decoder(False, "btgi,gih->btgh").whole(True)
    for info in proto.graph.input:
        info.type.tensor_type.shape.dim[TIME[info.name]].dim_param = f"{info.name}_steps"
    source, target = save(tmp_path, proto), tmp_path / "streaming.onnx"
    with pytest.raises(
        onegru.SpecError, match="Reshape node 'reshape51' splits the time axis into several axes"
    ):
        onegru.make_streaming(source, target)
    onegru.make_streaming(source, target, time=TIME)
    assert {info.shape[TIME[info.name]] for info in onegru.load(target).inputs[:3] if info.shape} == {
        "emb_steps"
    }


@pytest.mark.parametrize("check", [True, False])
def test_what_cannot_be_loaded_is_not_written(check: bool, tmp_path: Path) -> None:
    """An empty array joined along features, of more rows than the rest."""
    nodes = [gru("X", ["y"], name="g"), node("Concat", ["y", "empty"], ["Y"], axis=3)]
    constants = {**weights(), "empty": np.zeros((1, 1, 9, 0), np.float32)}
    X = value("X", "float32", ["time", 2, I])
    source, target = save(tmp_path, model(graph(nodes, [X], ["Y"], constants))), tmp_path / "streaming.onnx"
    with pytest.raises(onegru.FormatError, match="ONNX Runtime refuses it"):
        onegru.make_streaming(source, target, check=check)
    assert not target.exists()
