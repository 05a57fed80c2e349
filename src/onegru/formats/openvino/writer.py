"""Write layers as an OpenVINO IR (version 11).

The layers are GRUSequence-5 or GRUCell-3; with attention, AUGRUSequence or AUGRUCell (version "extension").
OpenVINO has one bias for each gate, and the canonical form has two: they are added in the weights' type.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from onegru.core.dtypes import Array, numpy_dtype
from onegru.core.errors import SpecError
from onegru.core.shapes import arrange
from onegru.core.spec import Spec, Weights
from onegru.engines.storage import quantize_channels
from onegru.formats.openvino.builder import Net, Shape, Value
from onegru.formats.openvino.fields import ELEMENT_WORDS
from onegru.formats.writing import Interface, Layers, suffixes
from onegru.operators.openvino import AUGRU_CELL, AUGRU_SEQUENCE, GRU_CELL, GRU_SEQUENCE
from onegru.operators.schema import Operator, Port, Role
from onegru.system.atomic_write import write_files


def write_ir(path: Path, layers: Layers, cell: bool, interface: Interface) -> None:
    """Write an .xml, and its .bin beside it."""
    net = _net(layers, cell, interface)
    write_pair(path, net.xml, net.data)


def write_pair(path: Path, text: Callable[[int], bytes], data: Sequence[bytes]) -> None:
    """Write an .xml and its .bin so that the two belong together at each moment."""
    bin_path = path.with_suffix(".bin")

    def xml(shift: int = 0) -> tuple[Path, Callable[[IO[bytes]], object]]:
        return path, lambda file: file.write(text(shift))

    def weights(shift: int = 0, is_first: bool = False) -> tuple[Path, Callable[[IO[bytes]], object]]:
        return bin_path, lambda file: write_weights(file, shift, is_first)

    def write_weights(file: IO[bytes], shift: int, is_first: bool) -> None:
        """Write the new weights; with a shift at that position, after the old or the new weights."""
        if is_first:
            with bin_path.open("rb") as old:
                shutil.copyfileobj(old, file)
        elif shift:
            file.writelines(data)
        file.seek(shift)
        file.writelines(data)

    # OpenVINO reads the weights only from the .bin with the .xml's name, and two files cannot be replaced at
    # once. To keep the pair consistent, the new weights are first appended to the .bin. Then the .xml refers
    # to them. Finally both move to the front in the same way.
    if not path.exists():
        write_files([weights(), xml()])
    elif not bin_path.exists():  # the old .xml must not refer to the new weights
        write_files([xml(), weights()])
    else:
        shift = -(-max(bin_path.stat().st_size, sum(map(len, data))) // 64) * 64
        write_files([weights(shift, is_first=True), xml(shift), weights(shift), xml(), weights()])


def _net(layers: Layers, cell: bool, interface: Interface) -> Net:
    """Build the model."""
    net = Net()
    net.states_are_optional = interface.initial_h
    first = layers[0][0]
    operators = [operator_of(spec, cell) for spec, *_ in layers]
    graph = _Graph(net, interface, first)
    X = graph.parameter(operators[0], "X", first, "X")
    results: list[tuple[str, Value]] = []
    for index, ((spec, weights, group), suffix) in enumerate(zip(layers, suffixes(layers), strict=True)):
        is_last = index == len(layers) - 1
        Y, Y_h = graph.gru(operators[index], spec, weights, group, X, suffix, is_last)
        if Y is not None and is_last:
            results.insert(0, ("Y", Y))
        results.append((f"Ho{suffix}", Y_h))
        if not is_last:
            X = Y_h if Y is None else graph.side_by_side(Y, f"X_{index + 1}")
    for name, value in results:
        net.layer("Result", f"{name}/result", "opset1", {}, [value])
    return net


def version_of(operator: Operator) -> str:
    """Return the opset of an operator's layers."""
    return f"opset{operator.version}" if operator.version else "extension"


def operator_of(spec: Spec, cell: bool) -> Operator:
    """The operator of a layer."""
    if spec.attention:
        operator = AUGRU_CELL if cell else AUGRU_SEQUENCE
    else:
        operator = GRU_CELL if cell else GRU_SEQUENCE
    if spec.attention == "dien":
        raise SpecError.of("attention", f"'dien'; {operator} computes (1 - a)·z, \"openvino\"")
    direction = operator.attributes.get("direction")
    directions = ("forward",) if direction is None else direction.choices or ()
    if spec.direction not in directions:
        raise SpecError.of("direction", f"{spec.direction!r}; {operator} runs only forward")
    if len(set(spec.activations)) > 1:
        raise SpecError.of("activations", f"two pairs that differ; {operator} has one, for both directions")
    for function in spec.activations[0]:
        if function.name not in operator.activations:
            raise SpecError.of(
                "activations", f"{function}; {operator} has only {', '.join(operator.activations)}"
            )
    given = {"clip": spec.clip or 0.0, "linear_before_reset": spec.linear_before_reset}
    for name, value in given.items():
        choices = operator.attributes[name].choices
        if choices is not None and value not in choices:
            raise SpecError.of(name, f"{value}; {operator} has none")
    return operator


class _Graph:
    """Adds the parts of a model: its inputs, its GRUs, and the layers between them."""

    def __init__(self, net: Net, interface: Interface, first: Spec) -> None:
        self._net = net
        self._interface = interface
        self._first = first
        self._X: Value | None = None
        self._lengths: Value | None = None

    def parameter(self, operator: Operator, role: Role, spec: Spec, name: str) -> Value:
        """Add an input of the model with the shape of an input of the operator."""
        port = operator.input(role)
        assert port is not None
        dtype = "int32" if role == "sequence_lens" else spec.dtype
        shape = self._shape(port, spec)
        text = ",".join("?" if size is None else str(size) for size in shape)
        data = {"shape": text, "element_type": ELEMENT_WORDS[dtype]}
        value = self._net.layer("Parameter", name, "opset1", data, outputs=[(dtype, shape, name)])[0]
        if role == "X":
            self._X = value
        return value

    def gru(
        self,
        operator: Operator,
        spec: Spec,
        weights: Weights,
        group: int | None,
        X: Value,
        suffix: str,
        is_last: bool,
    ) -> tuple[Value | None, Value]:
        """Add a layer; return its Y (None for a cell) and its last state."""
        arrays = arranged_weights(spec, weights, operator)
        inputs: list[Value] = []
        for port in operator.inputs:
            if port.role == "X":
                inputs.append(X)
            elif port.role == "sequence_lens":
                inputs.append(self._sequence_lens(operator, port.name))
            elif port.role == "initial_h" and not self._interface.initial_h:
                inputs.append(self._zeros(self._shape(port, spec), spec.dtype, port.name + suffix))
            elif port.role in arrays:
                weight = arrays[port.role]
                if group is None or port.role == "B":
                    inputs.append(self._net.constant(port.name + suffix, weight))
                else:
                    inputs.append(self._in_int8(port.name + suffix, weight, group))
            else:
                inputs.append(self.parameter(operator, port.role, spec, port.name + suffix))
        outputs = [
            (spec.dtype, self._shape(port, spec), "Y" if port.name == "Y" and is_last else port.name + suffix)
            for port in operator.outputs
        ]
        version = version_of(operator)
        name = operator.name + suffix
        given = self._net.layer(operator.name, name, version, attributes_of(spec, operator), inputs, outputs)
        return (given[0] if len(given) == 2 else None), given[-1]

    def _in_int8(self, name: str, array: Array, group: int) -> Value:
        """Add an int8 weight and the layers that dequantize it."""
        K = array.shape[2]
        if group and K % group:  # an incomplete group cannot be an axis
            return self._net.constant(name, array)
        q, scale = quantize_channels(array, group)
        shape = (*array.shape[:2], K // group, group) if group else array.shape
        integers = self._net.constant(f"{name}/int8", q.reshape(shape))
        factors = self._net.constant(f"{name}/scale", scale[..., None] if group else scale)
        data = {"destination_type": ELEMENT_WORDS["float32"]}
        output = ("float32", shape, "")
        numbers = self._net.layer("Convert", f"{name}/numbers", "opset1", data, [integers], [output])
        made = self._net.layer(
            "Multiply", f"{name}/groups" if group else name, "opset1", {}, [*numbers, factors], [output]
        )
        if not group:
            return made[0]
        sizes = self._net.constant(f"{name}/sizes", np.array(array.shape, np.int64))
        whole = ("float32", array.shape, "")
        data = {"special_zero": "false"}
        return self._net.layer("Reshape", name, "opset1", data, [*made, sizes], [whole])[0]

    def side_by_side(self, Y: Value, name: str) -> Value:
        """Add layers that turn Y [B, D, T, H] into [B, T, D·H]."""
        B, D, T, H = Y.shape
        assert D is not None and H is not None
        shape = (B, T, D * H)
        if D == 1:
            axis = self._net.constant(f"{name}/axis", np.array([1], np.int64))
            return self._net.layer("Squeeze", name, "opset1", {}, [Y, axis], [(Y.dtype, shape, name)])[0]
        order = self._net.constant(f"{name}/order", np.array([0, 2, 1, 3], np.int64))
        rows = self._net.layer(
            "Transpose", f"{name}/rows", "opset1", {}, [Y, order], [(Y.dtype, (B, T, D, H), "")]
        )[0]
        sizes = self._net.constant(f"{name}/sizes", np.array([0, 0, D * H], np.int64))
        data = {"special_zero": "true"}  # a size of 0 means the existing size
        return self._net.layer("Reshape", name, "opset1", data, [rows, sizes], [(Y.dtype, shape, name)])[0]

    def _shape(self, port: Port, spec: Spec) -> Shape:
        sizes = {
            "T": self._interface.seq_length,
            "B": self._interface.batch_size,
            "I": spec.input_size,
            "D": spec.num_directions,
            "H": spec.hidden_size,
            "1": 1,
        }
        return tuple(sizes[axis] for axis in port.axes)

    def _sequence_lens(self, operator: Operator, name: str) -> Value:
        """Return the lengths for all layers: an input, or the number of steps of X for each row."""
        if self._lengths is None:
            if self._interface.sequence_lens:
                self._lengths = self.parameter(operator, "sequence_lens", self._first, name)
            else:
                T = self._size_of_X(1, f"{name}/steps")
                B = self._size_of_X(0, f"{name}/rows")
                self._lengths = self._broadcast(T, B, (self._interface.batch_size,), name)
        return self._lengths

    def _zeros(self, shape: Shape, dtype: str, name: str) -> Value:
        """Add a zero state with the batch size of X."""
        rest = self._net.constant(f"{name}/sizes", np.array(shape[1:], np.int64))
        parts = [self._size_of_X(0, f"{name}/rows"), rest]
        sizes = self._net.layer(
            "Concat", f"{name}/shape", "opset1", {"axis": "0"}, parts, [("int64", (len(shape),), "")]
        )[0]
        zero = self._net.constant(f"{name}/zero", np.zeros(1, numpy_dtype(dtype)))
        return self._broadcast(zero, sizes, shape, name)

    def _size_of_X(self, axis: int, name: str) -> Value:
        """Add layers for X's size along an axis, as a list of one element."""
        assert self._X is not None
        rank = (len(self._X.shape),)
        shape = self._net.layer(
            "ShapeOf", f"{name}/shape", "opset3", {"output_type": "i64"}, [self._X], [("int64", rank, "")]
        )[0]
        index = self._net.constant(f"{name}/index", np.array([axis], np.int64))
        zero = self._net.constant(f"{name}/axis", np.array(0, np.int64))
        return self._net.layer("Gather", name, "opset1", {}, [shape, index, zero], [("int64", (1,), "")])[0]

    def _broadcast(self, value: Value, sizes: Value, shape: Shape, name: str) -> Value:
        given = [(value.dtype, shape, "")]
        return self._net.layer("Broadcast", name, "opset3", {"mode": "numpy"}, [value, sizes], given)[0]


def attributes_of(spec: Spec, operator: Operator) -> dict[str, str]:
    """Return the attributes of a layer as text for an IR."""
    attributes = {
        "hidden_size": str(spec.hidden_size),
        "activations": ", ".join(function.name.lower() for function in spec.activations[0]),
        "activations_alpha": "",
        "activations_beta": "",
        "clip": "0" if spec.clip is None else str(np.float32(spec.clip)),
        "linear_before_reset": "true" if spec.linear_before_reset else "false",
    }
    if "direction" in operator.attributes:
        attributes["direction"] = spec.direction
    return attributes


def arranged_weights(spec: Spec, weights: Weights, operator: Operator) -> dict[Role, Array]:
    """Return W, R and B with the axes of a layer."""
    arrays = {"W": (weights.W, "DGI"), "R": (weights.R, "DGH"), "B": (_summed_biases(spec, weights.B), "DN")}
    return {
        port.role: arrange(*arrays[port.role], port.axes) for port in operator.inputs if port.role in arrays
    }


def _summed_biases(spec: Spec, B: Array) -> Array:
    """Return the summed biases: [D, 3H], or with linear_before_reset [D, 4H] (z, r, Wbh, Rbh)."""
    H = spec.hidden_size
    Wb, Rb = B[:, : 3 * H], B[:, 3 * H :]
    with np.errstate(over="ignore"):
        sums = Wb + Rb
    if not spec.linear_before_reset:
        return sums
    return np.concatenate([sums[:, : 2 * H], Wb[:, 2 * H :], Rb[:, 2 * H :]], axis=1)
