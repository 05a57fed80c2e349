"""The models of `benchmarks/models/ways.py` that no exporter writes: ONNX files and IRs, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.helper import make_graph, make_node, make_opsetid, make_tensor, np_dtype_to_tensor_dtype
from onnx.helper import make_tensor_value_info as info

from benchmarks.models.cases import Array

if TYPE_CHECKING:
    from benchmarks.models.ways import Way

__all__ = ["ir_model", "write_onnx"]

OPSET, IR_VERSION = 21, 10  # the first with int4
BLOCK = 16  # numbers that share a scale
FLOAT, INT64, BOOL = 1, 7, 9


class _Net:
    """Nodes and constants of a graph under construction, and the matrices among its constants."""

    def __init__(self, stored: str, prefix: str = "") -> None:
        self.stored, self.prefix = stored, prefix
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.matrices: list[Any] = []

    def node(self, kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """Add a node, and return its first output."""
        given = outputs or (f"{self.prefix}{kind}_{len(self.nodes)}",)
        self.nodes.append(make_node(kind, inputs, given, given[0], **attributes))
        return given[0]

    def constant(self, value: Any) -> str:
        """Add a constant: an array or a tensor."""
        tensor = value if hasattr(value, "dims") else onnx.numpy_helper.from_array(np.asarray(value))
        tensor.name = f"{self.prefix}c{len(self.tensors) + len(self.nodes)}"
        if self.stored == "Constant nodes":
            return self.node("Constant", [], tensor.name, value=tensor)
        self.tensors.append(tensor)
        return str(tensor.name)

    def matrix(self, value: Any) -> str:
        """Add the source of the GRU's matrices."""
        name = self.constant(value)
        self.matrices += self.tensors[-1:]
        return name


# Each function makes an array from the stored array, which `rest` adds.
Rest = Callable[[Array], str]
Link = Callable[[Any, _Net, Array, Rest], str]


def _unsqueeze(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    if 1 not in array.shape:
        return _squeeze(rng, net, array, rest)
    axis = array.shape.index(1)
    return net.node("Unsqueeze", [rest(array.squeeze(axis)), net.constant([axis])])


def _squeeze(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    axis = rng.integers(array.ndim + 1)
    return net.node("Squeeze", [rest(np.expand_dims(array, axis)), net.constant([axis])])


def _reshape(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    stored = array.reshape(((-1,), (-1, array.shape[-1]), (1, *array.shape))[rng.integers(3)])
    return net.node("Reshape", [rest(stored), net.constant(array.shape)])


def _transpose(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    perm = rng.permutation(array.ndim)
    return net.node("Transpose", [rest(array.transpose(np.argsort(perm)))], perm=perm.tolist())


def _cast(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    other = {"float32": np.float16, "float16": np.float32}.get(array.dtype.name, np.int32)
    return net.node("Cast", [rest(array.astype(other))], to=np_dtype_to_tensor_dtype(array.dtype))


def _part(net: _Net, whole: str, begin: int, size: int, axis: int) -> str:
    return net.node("Slice", [whole, *(net.constant([number]) for number in (begin, begin + size, axis))])


def _slice(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    axis, more = int(rng.integers(array.ndim)), int(rng.integers(1, 4))
    longer = np.concatenate([array.take([0] * more, axis), array, array.take([0], axis)], axis)
    return _part(net, rest(longer), more, array.shape[axis], axis)


def _concat(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    """Reorder gates as PyTorch's exporters do."""
    axis = int(np.argmax(array.shape))
    z, r, n = np.array_split(array, 3, axis)
    sizes = [part.shape[axis] for part in (r, z, n)]
    whole = rest(np.concatenate([r, z, n], axis))
    parts = [_part(net, whole, sum(sizes[:place]), sizes[place], axis) for place in range(3)]
    return net.node("Concat", [parts[1], parts[0], parts[2]], axis=axis)


def _identity(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
    return net.node("Identity", [rest(array)])


def _unit(array: Array) -> Any:
    """Return the unit: an array, or a part of one, holds small multiples of it."""
    return np.abs(array[array != 0]).min().astype(np.float32)


def _dequantised(is_int4: bool, is_half: bool) -> Link:
    """Dequantize by one scale, by one for each index of an axis, or by one for each block."""

    def link(rng: Any, net: _Net, array: Array, rest: Rest) -> str:
        axis, kind = int(rng.integers(array.ndim)), rng.integers(3)
        block = BLOCK if kind == 2 and array.shape[axis] % BLOCK == 0 else 0
        shape = [size // (block or 1) if place == axis else size for place, size in enumerate(array.shape)]
        wide = shape if block else [size if kind and place == axis else 1 for place, size in enumerate(shape)]
        scales = _unit(array) / 2.0 ** rng.integers(0, 1 if is_int4 else 4, wide)
        integers = array / (scales.repeat(block, axis) if block else scales)
        dtype = np.float16 if is_half or array.dtype == np.float16 else np.float32
        scales = scales.astype(dtype).reshape(wide if block else [-1] if kind else [])
        attributes = {"axis": axis} | ({"block_size": block} if block else {})
        if is_int4:
            values = integers.astype(np.int8).ravel()
            inputs = [
                net.matrix(make_tensor("", onnx.TensorProto.INT4, array.shape, values)),
                net.constant(scales),
            ]
        else:
            zero = np.full(scales.shape, *((128, np.uint8) if rng.integers(2) else (3, np.int8)))
            stored = rest((integers + zero.flat[0]).astype(zero.dtype))
            inputs = [stored, net.constant(scales), net.constant(zero)]
        found = net.node("DequantizeLinear", inputs, **attributes)
        return found if dtype == array.dtype else net.node("Cast", [found], to=FLOAT)

    return link


_LINKS: Mapping[str, Link] = {
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Cast": _cast,
    "Slice": _slice,
    "Concat": _concat,
    "Identity": _identity,
    "int8": _dequantised(False, False),
    "float16 scales": _dequantised(False, True),
    "int4": _dequantised(True, False),
}


def _chain(rng: Any, net: _Net, links: tuple[str, ...], array: Array) -> str:
    if not links:
        return net.matrix(array)
    return _LINKS[links[0]](rng, net, array, lambda stored: _chain(rng, net, links[1:], stored))


def write_onnx(way: Way, path: Path) -> None:
    """Write a file with a GRU node, its surroundings, and the chains."""
    s, rng = way.case.shape, np.random.default_rng((way.seed, way.number, 2))
    main, functions = _Net(way.stored), []
    links = {"W": way.links, "R": way.links, "B": way.links if rng.integers(2) else ()}
    known: dict[str, str] = {}

    def weights(net: _Net) -> dict[str, str]:
        return known or {name: _chain(rng, net, links[name], way.arrays[name]) for name in links}

    def gru(net: _Net, x: str, h: str, Y: str, Y_h: str) -> None:
        inputs = [x, *weights(net).values(), *(["", h] if way.has_state else [])]
        direction = "bidirectional" if s.D == 2 else "forward"
        reset = int(way.case.linear_before_reset)
        net.node("GRU", inputs, Y, Y_h, hidden_size=s.H, linear_before_reset=reset, direction=direction)

    def body(prefix: str, x: str, h: str, *ports: Any) -> Any:
        """Return the GRU in a subgraph: the body of a branch, or of a loop, with the loop's ports."""
        net, outputs = (
            _Net(way.stored, prefix),
            [info(f"{prefix}{name}", FLOAT, None) for name in ("Y_h", "Y")],
        )
        gru(net, x, h, f"{prefix}Y", f"{prefix}Y_h")
        if any(port.name == "go" for port in ports):
            net.node("Identity", ["go"], "goes")
            outputs.insert(0, info("goes", BOOL, []))
        return make_graph(net.nodes, prefix, ports, outputs, net.tensors)

    if not way.inside:
        known = weights(main)
    state = info("state", FLOAT, [s.D, None, s.H])
    if way.place == "main":
        gru(main, "X", "h0", "Y", "h")
    elif way.place == "If":
        branches = {f"{name}_branch": body(f"{name}_", "X", "h0") for name in ("then", "else")}
        main.node("If", ["on"], "h", "Y", **branches)
    elif way.place == "function":
        net, names = _Net("Constant nodes", "f_"), ["X", *["h0"] * way.has_state, *known.values()]
        gru(net, "X", "h0", "Y", "h")
        opset = [make_opsetid("", OPSET)]
        functions.append(onnx.helper.make_function("local", "Layer", names, ["Y", "h"], net.nodes, opset))
        main.node("Layer", names, "Y", "h", domain="local")
    elif way.place == "Loop":
        loop = body("loop_", "X", "state", info("i", INT64, []), info("go", BOOL, []), state)
        main.node("Loop", [main.constant(2), main.constant(True), "h0"], "h", "all", body=loop)
    else:
        scan = body("scan_", "x", "state", state, info("x", FLOAT, [None, None, s.I]))
        main.node("Scan", ["h0", "X"], "h", "all", body=scan, num_scan_inputs=1)
    if way.place in ("Loop", "Scan"):
        main.node("Gather", ["all", main.constant(1)], "Y", axis=0)
    rows = main.node("Transpose", ["Y"], perm=[0, 2, 1, 3])
    flat = main.node("Reshape", [rows, main.constant([0, 0, -1])])
    product = main.node("MatMul", [flat, main.constant(way.arrays["dense"])])
    main.node("Add", [product, main.constant(way.arrays["bias"])], "out")

    steps, batch = ("steps", "rows") if way.is_open else (s.T, s.B)
    sizes = {"X": [*[2] * (way.place == "Scan"), steps, batch, s.I], "h0": [s.D, batch, s.H], "on": []}
    inputs = [info(name, BOOL if name == "on" else FLOAT, sizes[name]) for name in way.feed]
    outputs = [info("out", FLOAT, [steps, batch, way.arrays["bias"].size])]
    outputs += [info("h", FLOAT, sizes["h0"])] * way.has_state
    if way.stored == "defaults of inputs":
        inputs += [info(tensor.name, tensor.data_type, tensor.dims) for tensor in main.matrices]
    proto = onnx.helper.make_model(
        make_graph(main.nodes, "way", inputs, outputs, main.tensors),
        opset_imports=[make_opsetid("", OPSET), make_opsetid("local", 1)],
        ir_version=IR_VERSION,
        functions=functions,
    )
    external = path.with_name(f"{path.name}.data")
    external.unlink(missing_ok=True)  # otherwise onnx appends to the file
    is_external = way.stored == "external data"
    onnx.save_model(proto, path, save_as_external_data=is_external, location=external.name)


def ir_model(way: Way) -> Any:
    """Return an OpenVINO model with the layers that NNCF or Model Optimizer write."""
    import openvino
    from openvino import opset13 as ops

    s, given, rng = way.case.shape, way.arrays, np.random.default_rng((way.seed, way.number, 2))
    steps, batch = (-1, -1) if way.is_open else (s.T, s.B)

    def whole(*numbers: int) -> Any:
        return ops.constant(np.array(numbers))

    def rows_first(value: Any) -> Any:
        return ops.transpose(value, whole(1, 0, 2))

    x, h0 = (ops.parameter(size, np.float32) for size in ([steps, batch, s.I], [s.D, batch, s.H]))
    rows, state = rows_first(x), rows_first(h0)
    lengths, count = (ops.gather(ops.shape_of(rows), whole(place), whole(0)) for place in (1, 0))
    if not way.has_state:
        state = ops.broadcast(ops.constant(np.float32(0)), ops.concat([count, whole(s.D, s.H)], 0))
    Wb, Rb = np.split(given["B"].reshape(s.D, 6, s.H), 2, 1)
    after = way.case.linear_before_reset
    parts = [(Wb + Rb)[:, :2], Wb[:, 2:], Rb[:, 2:]] if after else [Wb + Rb]
    arrays = [given["W"], given["R"], np.concatenate(parts, 1).reshape(s.D, -1)]
    form = {"activations": ["sigmoid", "tanh"], "linear_before_reset": after}
    if way.writer == "NNCF":
        weights = [_as_nncf(array, way.links, rng) for array in arrays[:2]] + [ops.constant(arrays[2])]
        direction = "bidirectional" if s.D == 2 else "forward"
        layer = ops.gru_sequence(rows, state, ops.broadcast(lengths, count), *weights, s.H, direction, **form)
        Y, h = ops.transpose(layer.output(0), whole(2, 0, 1, 3)), layer.output(1)
    else:
        one, before = ops.parameter([batch, 1, s.I], np.float32), ops.parameter([batch, s.H], np.float32)
        weights = [ops.constant(array[0]) for array in arrays]
        cell = ops.gru_cell(ops.squeeze(one, whole(1)), before, *weights, s.H, **form)
        ends = [ops.result(cell), ops.result(ops.unsqueeze(cell, whole(1)))]
        loop = ops.tensor_iterator()
        loop.set_body(openvino.Model(ends, [one, before], "body"))
        loop.set_sliced_input(one, rows.output(0), 0, 1, 1, -1, 1)
        loop.set_merged_input(before, ops.squeeze(state, whole(1)).output(0), ends[0].output(0))
        h = ops.unsqueeze(loop.get_iter_value(ends[0].output(0), -1), whole(1))
        Y = rows_first(loop.get_concatenated_slices(ends[1].output(0), 0, 1, 1, -1, 1))
    product = ops.matmul(
        ops.reshape(Y, whole(0, 0, s.D * s.H), True), ops.constant(given["dense"]), False, False
    )
    named = {"out": ops.add(product, ops.constant(given["bias"])), "h": rows_first(h), "X": x, "h0": h0}
    for name, value in named.items():
        value.output(0).set_names({name})
    states = int(way.has_state)
    results = [ops.result(named[name]) for name in ("out", "h")[: 1 + states]]
    return openvino.Model(results, [x, h0][: 1 + states], "way")


def _as_nncf(array: Array, links: tuple[str, ...], rng: Any) -> Any:
    """Return integers, minus a zero point if unsigned, times a scale for each row."""
    import openvino
    from openvino import opset13 as ops

    held, dtype = links[0], np.dtype(links[1].split()[0])
    scales = _unit(array) / 2.0 ** rng.integers(0, 1 if held == "int4" else 4, (*array.shape[:2], 1))
    zero = np.full(scales.shape, 128, np.uint8)
    integers = array / scales
    if held == "uint8":
        stored = ops.convert(ops.constant((integers + zero).astype(np.uint8)), dtype)
        stored = ops.subtract(stored, ops.convert(ops.constant(zero), dtype))
    else:
        kind = openvino.Type.i4 if held == "int4" else openvino.Type.i8
        stored = ops.convert(ops.constant(integers.astype(np.int8), kind), dtype)
    value = ops.multiply(stored, ops.constant(scales.astype(dtype)))
    return value if dtype == np.float32 else ops.convert(value, np.float32)
