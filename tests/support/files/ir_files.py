"""Write OpenVINO IR files for tests, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

import onegru
from onegru.core.dtypes import Array

ELEMENT_TYPES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
}

PRECISIONS = {
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "int32": "I32",
    "int64": "I64",
}

OPERATORS = {
    "gru_cell": ("GRUCell", "opset3", ("Ho",)),
    "gru_sequence": ("GRUSequence", "opset5", ("Y", "Ho")),
    "augru_cell": ("AUGRUCell", "ie_internal_opset", ("Ho",)),
    "augru_sequence": ("AUGRUSequence", "ie_internal_opset", ("Y", "Ho")),
}


@dataclass
class IrWriter:
    """IR under construction. A value is the (layer, port) that computes it."""

    layers: list[str] = field(default_factory=list)
    edges: list[str] = field(default_factory=list)
    weights: bytearray = field(default_factory=bytearray)
    types: dict[tuple[int, int], str] = field(default_factory=dict)

    def layer(
        self,
        kind: str,
        name: str,
        data: Mapping[str, str],
        inputs: Sequence[tuple[int, int]] = (),
        outputs: int = 1,
        *,
        version: str = "opset1",
        skip_ports: Sequence[int] = (),
        names: Sequence[str] = (),
        dtype: str = "float32",
    ) -> list[tuple[int, int]]:
        """Add a layer, and return its output values. Port ids omit `skip_ports`."""
        index = len(self.layers)
        ids = [
            number for number in range(len(inputs) + outputs + len(skip_ports)) if number not in skip_ports
        ]
        input_ports, output_ports = ids[: len(inputs)], ids[len(inputs) :]
        attributes = " ".join(f"{key}={quoteattr(value)}" for key, value in data.items())
        parts = [f'<layer id="{index}" name={quoteattr(name)} type="{kind}" version="{version}">']
        parts.append(f"<data {attributes}/>" if data else "")
        ports = "".join(f'<port id="{port}"/>' for port in input_ports)
        parts.append(f"<input>{ports}</input>" if input_ports else "")
        tensor_names = [f"names={quoteattr(name)}" for name in names] + [""] * outputs
        ports = "".join(
            f'<port id="{port}" precision="{PRECISIONS[dtype]}" {tensor}/>'
            for port, tensor in zip(output_ports, tensor_names, strict=False)
        )
        parts.append(f"<output>{ports}</output>" if output_ports else "")
        parts.append("</layer>")
        self.layers.append("".join(parts))
        for port, (giver, giver_port) in zip(input_ports, inputs, strict=True):
            self.edges.append(
                f'<edge from-layer="{giver}" from-port="{giver_port}" to-layer="{index}" to-port="{port}"/>'
            )
        values = [(index, port) for port in output_ports]
        self.types.update(dict.fromkeys(values, dtype))
        return values

    def parameter(self, name: str, dtype: str, shape: str) -> tuple[int, int]:
        """Add an input."""
        data = {"shape": shape, "element_type": ELEMENT_TYPES[dtype]}
        return self.layer("Parameter", name, data, names=[name], dtype=dtype)[0]

    def const(self, name: str, array: Array) -> tuple[int, int]:
        """Add a constant."""
        raw = np.ascontiguousarray(array).tobytes()
        data = {
            "element_type": ELEMENT_TYPES[array.dtype.name],
            "shape": ", ".join(map(str, array.shape)),
            "offset": str(len(self.weights)),
            "size": str(len(raw)),
        }
        self.weights += raw
        return self.layer("Const", name, data, dtype=array.dtype.name)[0]

    def convert(self, name: str, value: tuple[int, int], dtype: str) -> tuple[int, int]:
        """Add a conversion."""
        return self.layer("Convert", name, {"destination_type": ELEMENT_TYPES[dtype]}, [value], dtype=dtype)[
            0
        ]

    def result(self, name: str, value: tuple[int, int]) -> None:
        """Add an output."""
        self.layer("Result", name, {}, [value], 0)

    def gru(
        self, function: str, name: str, attributes: Mapping[str, Any], inputs: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Add a layer of the GRU family."""
        kind, version, outputs = OPERATORS[function]
        data = {key: text(value) for key, value in attributes.items()}
        names = [f"{name}.{output}" for output in outputs]
        return self.layer(
            kind, name, data, inputs, len(outputs), version=version, names=names, dtype=self.types[inputs[0]]
        )

    def write(self, path: Path) -> Path:
        """Write `path` and its .bin."""
        path.write_text(
            f'<?xml version="1.0"?><net name="test" version="11"><layers>{"".join(self.layers)}</layers>'
            f"<edges>{''.join(self.edges)}</edges><rt_info/></net>"
        )
        path.with_suffix(".bin").write_bytes(bytes(self.weights))
        return path


def text(value: object) -> str:
    """Return an attribute's value as text for an IR."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def write_case(
    path: Path, function: str, inputs: Mapping[str, Array | None], attributes: Mapping[str, Any]
) -> Path:
    """Write an IR of one layer: W, R, B are constants, other inputs parameters; outputs are gru.NAME."""
    ir = IrWriter()
    values = []
    for name, array in inputs.items():
        if array is None:
            continue
        if name in ("W", "R", "B"):
            values.append(ir.const(name, array))
        else:
            values.append(ir.parameter(name, array.dtype.name, ",".join(map(str, array.shape))))
    outputs = ir.gru(function, "gru", attributes, values)
    for value, name in zip(outputs, OPERATORS[function][2], strict=True):
        ir.result(name, value)
    return ir.write(path)


def edit(path: Path, change: Callable[[str], str]) -> Path:
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)
    return path


def refuse(path: Path, message: str, error: type[Exception] = onegru.FormatError) -> None:
    with pytest.raises(error, match=message) as caught:
        onegru.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
