"""Cells as quantizers write them: fused if only the matrices are integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onegru
from tests.support.models.fusing import Array, Net, Step, check_fused, one_step, reasons

pytest.importorskip("onnxruntime")
quantization: Any = pytest.importorskip("onnxruntime.quantization")

I, H = 3, 2
KINDS = {
    "dynamic": "DynamicQuantizeLinear",
    "QDQ": "QuantizeLinear",
    "QDQ of products": "QuantizeLinear",
    "QOperator": "QLinearMatMul",
}


class Numbers(quantization.CalibrationDataReader):  # type: ignore[misc]
    """What a quantizer is calibrated with."""

    def __init__(self, feeds: dict[str, Array]) -> None:
        self.feeds = iter([feeds])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def quantized(tmp_path: Path, net: Net, form: str) -> onnx.ModelProto:
    """A model as ONNX Runtime quantizes it."""
    source, target = str(tmp_path / "source.onnx"), str(tmp_path / "target.onnx")
    onnx.save(net.model(), source)
    if form == "dynamic":
        quantization.quantize_dynamic(source, target)
    else:
        kind = quantization.QuantFormat.QOperator if form == "QOperator" else quantization.QuantFormat.QDQ
        only = {"op_types_to_quantize": ["MatMul"]} if "products" in form else {}
        quantization.quantize_static(source, target, Numbers(net.feeds), quant_format=kind, **only)
    return onnx.load(target)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", KINDS)
def test_quantized_products_are_named(tmp_path: Path, form: str) -> None:
    path = tmp_path / "quantized.onnx"
    onnx.save(quantized(tmp_path, one_step(Step(I, H, after=True)), form), path)
    words = rf"matmuls are quantized \({KINDS[form]}\); fuse the model before you quantize it"
    with pytest.raises(onegru.FormatError, match=words):
        onegru.fuse(path, tmp_path / "fused.onnx")


class OfIntegers(Step):
    """Its matrices are those that DequantizeLinear makes of integers."""

    def __init__(self, form: str, **more: Any) -> None:
        super().__init__(4, 2, **more)
        self.form = form

    def weight(self, net: Net, name: str, *shape: int) -> str:
        if name in self.weights or len(shape) < 2:
            return super().weight(net, name, *shape)
        q = net.const(net.rng.integers(-9, 9, shape), "int8")
        if self.form == "tensor":
            self.weights[name] = net("DequantizeLinear", q, net.const(0.06), net.const(1, "int8"))
        elif self.form == "channel":
            scales = net.const(net.rng.uniform(0.01, 0.1, shape[1]))
            self.weights[name] = net("DequantizeLinear", q, scales, net.const([0] * shape[1], "int8"), axis=1)
        else:
            scales = net.const(net.rng.uniform(0.01, 0.1, (shape[0] // 2, shape[1])))
            self.weights[name] = net("DequantizeLinear", q, scales, axis=0, block_size=2)
        return self.weights[name]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("form", ["tensor", "channel", "blocks"])
def test_matrices_of_integers_become_weights(form: str, after: bool) -> None:
    net = one_step(OfIntegers(form, after=after), opset=21 if form == "blocks" else 13)
    model, search = check_fused(net.model(), net.feeds)
    assert len(search.fused) == 1 and not search.near_misses
    assert "DequantizeLinear" not in {node.op_type for node in model.graph.node}


def test_matrices_of_integers_that_are_given_are_not_weights() -> None:
    """Their scale is an input."""

    class Given(OfIntegers):
        def weight(self, net: Net, name: str, *shape: int) -> str:
            if len(shape) < 2 or not name.startswith("R"):
                return super().weight(net, name, *shape)
            return net("DequantizeLinear", net.const(np.ones(shape), "int8"), "scale")

    net = Net()
    net.input("scale")
    net("Identity", Given("tensor")(net, net.input("x", 2, 4), net.input("h", 2, 2)), output="y")
    net.output("y", (2, 2))
    assert not reasons(net.model()) and not check_fused(net.model(), net.feeds)[1].fused
