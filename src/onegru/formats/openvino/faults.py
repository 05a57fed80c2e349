"""Work around faults of OpenVINO: wrong results, crashes, and errors that are lost on one thread."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError
from onegru.core.machine import memory_size
from onegru.formats.openvino.kinds import READ_ONLY_UNARY, UNARY
from onegru.runtimes.openvino_graph import bodies_of, sizes_of
from onegru.system.child_process import child_folder, run_child, run_limits

# Limit of bytes computed ahead of runs: a multiple of the constants, plus a constant.
_TIMES, _FREE = 16, 2**26

_SECONDS = 60.0  # for a compilation that can crash

_CONVOLUTIONS = ("Convolution", "GroupConvolution")
# Elementwise layers: each output element depends on one element of one input if the others are scalars.
_ELEMENTWISE = frozenset(
    {
        *(*UNARY.values(), *READ_ONLY_UNARY.values()),
        *("Relu", "Clamp", "Elu", "Gelu", "HSigmoid", "HardSigmoid", "Round", "Selu", "Swish"),
        *("Add", "Subtract", "Multiply", "Divide", "Power", "Maximum", "Minimum"),
    }
)
# Layers that cannot fail in a run if all sizes are known. Their lists of axes and sizes are then constants.
_CANNOT_FAIL = _ELEMENTWISE | {
    *("Parameter", "Constant", "Result", "Convert", "ConvertLike", "ShapeOf", "FakeQuantize", "PRelu"),
    *("Select", "SquaredDifference", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"),
    *("LogicalAnd", "LogicalOr", "LogicalXor", "MatMul", "Softmax", "LogSoftmax", "MVN", "NormalizeL2"),
    *("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"),
    *("MaxPool", "AvgPool", "BatchNormInference", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"),
    *("ReduceProd", "ReduceL1", "ReduceL2", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Concat"),
    *("Split", "VariadicSplit", "StridedSlice", "Slice", "Pad", "Broadcast", "Tile", "CumSum"),
}

# Layers that divide by sizes when a model is compiled: empty arrays of known sizes can crash the process
# (seen in 2026.4).
_DIVIDE_BY_SIZES = {
    *("Broadcast", "Gather", "Loop", "LSTMCell", "LSTMSequence", "RNNCell", "RNNSequence"),
}


def check_compilation(
    network: Any, sizes: Sequence[Sequence[int]], file: str, text: str, weights: Array
) -> None:
    """Reject a network whose empty arrays crash OpenVINO when it compiles, which a child process tries."""
    layer = next((layer for layer in layers_of(network) if _can_crash(layer)), None)
    if layer is None:
        return
    with child_folder() as folder:
        (folder / "model.xml").write_text(text, encoding="utf-8")
        weights.tofile(folder / "model.bin")
        (folder / "sizes").write_text(json.dumps(sizes))
        ended = run_child(__name__, [], folder, run_limits(_SECONDS))
    if ended.code != 0:  # a crash, or no end in time
        where = _place_of(layer, file)
        raise FormatError(
            f"{where}: an empty array, which OpenVINO cannot compile; must have elements, or a dynamic shape"
        )


def main(_: Sequence[str]) -> None:
    """Compile a network in a child process."""
    from onegru.runtimes.openvino_op import create_core

    core = create_core()
    with suppress(Exception):  # raised again by the parent
        network = core.read_model("model.xml")
        work_around_faults(network)
        if sizes := json.loads(Path("sizes").read_text()):
            network.reshape(dict(zip(network.inputs, sizes, strict=True)))
        core.compile_model(network, "CPU")


def _can_crash(layer: Any) -> bool:
    kind = layer.get_type_name()
    ports = [*layer.outputs(), *(layer.inputs() if kind == "Loop" else ())]
    return kind in _DIVIDE_BY_SIZES and any(0 in (_known_sizes(port) or ()) for port in ports)


def _known_sizes(port: Any) -> tuple[int, ...] | None:
    """Return the sizes of an input or output; None if one is dynamic."""
    shape = port.get_partial_shape()
    return None if shape.is_dynamic else tuple(shape.to_shape())


def check_network(network: Any, file: str, constants: int) -> None:
    """Reject models that would crash the process."""
    memory = memory_size()
    constant: set[str] = set()  # layers that OpenVINO computes ahead of runs
    ahead = 0
    for layer in layers_of(network):
        where = _place_of(layer, file)
        for port in layer.outputs():
            shape = sizes_of(port.get_partial_shape()) or ()
            least = math.prod(size for size in shape if size is not None) * port.get_element_type().size
            sizes = ", ".join("?" if size is None else str(size) for size in shape)
            if least > memory:
                raise FormatError(f"{where}: output shape [{sizes}] exceeds this machine's memory")
            if _is_computed_ahead(layer, constant) and None not in shape:
                ahead += least
                if ahead > _TIMES * constants + _FREE:
                    raise FormatError(
                        f"{where}: output shape [{sizes}]; constants are far larger than the .bin"
                    )
        if layer.get_type_name() == "Gather":
            _check_gather(layer, where)


def _is_computed_ahead(layer: Any, constant: set[str]) -> bool:
    """Whether a layer is computed only from constants; adds such layers and constants to `constant`."""
    sources = [port.get_node().get_name() for port in layer.input_values()]
    if layer.get_type_name() == "Constant" or (sources and constant.issuperset(sources)):
        constant.add(layer.get_name())
    return bool(sources) and layer.get_name() in constant


def _check_gather(layer: Any, where: str) -> None:
    """Check the index of a Gather: OpenVINO's CPU reads 1-D data outside its bounds (seen in 2026.4)."""
    shape = sizes_of(layer.input_value(0).get_partial_shape())
    indices = layer.input_value(1).get_node()
    if shape is None or len(shape) != 1 or shape[0] is None or indices.get_type_name() != "Constant":
        return
    wrong = [index for index in np.ravel(indices.get_data()).tolist() if not -shape[0] <= index < shape[0]]
    if wrong:
        raise FormatError(f"{where}: index {wrong[0]}; must be within the size {shape[0]} of the data")


def _place_of(layer: Any, file: str) -> str:
    return f"{file}: {layer.get_type_name()} layer {layer.get_friendly_name()!r}"


def kind_that_can_fail(network: Any) -> str | None:
    """Return the type of a layer that can fail in a run without a record; None if there is none."""
    return next((layer.get_type_name() for layer in layers_of(network) if _can_fail(layer)), None)


def _can_fail(layer: Any) -> bool:
    if layer.get_type_info().version_id == "extension":  # onegru's layers record failures
        return False
    match layer.get_type_name():
        case "Gather":
            return not _has_valid_indices(layer)
        case "If" | "Loop" | "TensorIterator" as kind:
            if any(_known_sizes(port) is None for port in (*layer.inputs(), *layer.outputs())):
                return True
            # OpenVINO checks the number of steps of a TensorIterator when it compiles.
            return kind == "Loop" and not _has_valid_steps(layer)
        case kind:
            return kind not in _CANNOT_FAIL


def _has_valid_steps(loop: Any) -> bool:
    """Whether a Loop has a constant number of steps, and each sliced input has as many elements."""
    count = loop.input_value(0).get_node()
    if count.get_type_name() != "Constant":
        return False
    (_, inputs), steps = bodies_of(loop)[0], count.get_data().item()
    slices = [item for item in inputs if item.get_type_info().name == "SliceInputDescription"]
    return steps > 0 and all(
        (item.start, item.stride, item.end, item.part_size) in ((0, 1, -1, 1), (-1, -1, 0, 1))
        and loop.input_value(item.input_index).get_shape()[item.axis] >= steps
        for item in slices
    )


def _has_valid_indices(gather: Any) -> bool:
    """Whether the indices of a Gather are constants within the size of the axis, or are 0 or -1."""
    data, indices, axis = (gather.input_value(index) for index in range(3))
    sizes = sizes_of(data.get_partial_shape())
    if sizes is None or not all(node.get_node().get_type_name() == "Constant" for node in (indices, axis)):
        return False
    size = sizes[axis.get_node().get_data().item()]
    numbers, bound = indices.get_node().get_data(), 1 if size is None else size
    return bool(((-bound <= numbers) & (numbers < bound)).all())


def layers_of(network: Any) -> Iterator[Any]:
    """Iterate over the layers of a network and its bodies."""
    for layer in network.get_ordered_ops():
        yield layer
        for body, _ in bodies_of(layer):
            yield from layers_of(body)


def work_around_faults(network: Any) -> None:
    """Rewrite layers that OpenVINO computes wrongly (seen in 2026.4) to equivalent ones."""
    for layer in list(layers_of(network)):
        if layer.get_type_name().startswith("Reduce") and not layer.get_attributes()["keep_dims"]:
            _keep_reduced_axes(layer)
        elif _moves_a_convolution(layer):
            _compute_before_transpose(layer)


def _keep_reduced_axes(layer: Any) -> None:
    """Make a reduction keep its axes, and remove them with a Squeeze."""
    # Otherwise OpenVINO drops a following Reshape, or a Transpose that moves only axes of size 1, as if the
    # axes still existed (OpenVINO's issues 37959 and 37962).
    from openvino import opset13

    axes = layer.input_value(1)
    sizes = sizes_of(axes.get_partial_shape())
    if sizes is None or not all(sizes):
        return  # the list of axes can be empty, and a Squeeze without axes removes all axes of size 1
    targets = list(layer.output(0).get_target_inputs())
    layer.set_attribute("keep_dims", True)
    layer.validate_and_infer_types()
    squeezed = opset13.squeeze(layer, axes).output(0)
    for target in targets:
        target.replace_source_output(squeezed)


def _compute_before_transpose(layer: Any) -> None:
    """Swap an elementwise layer with the Transpose before it."""
    # Between the Transpose of a one-dimensional convolution's output and its inverse, OpenVINO applies
    # elementwise layers to the wrong elements if all sizes are fixed.
    from openvino import opset13

    index = _data_input(layer)
    transpose = layer.input_value(index).get_node()
    targets = list(layer.output(0).get_target_inputs())
    layer.input(index).replace_source_output(transpose.input_value(0))
    layer.validate_and_infer_types()
    moved = opset13.transpose(layer, transpose.input_value(1)).output(0)
    for target in targets:
        target.replace_source_output(moved)


def _data_input(layer: Any, *, single: bool = True) -> int | None:
    """Return the only non-constant (or non-scalar) input of an elementwise layer; None for other layers."""
    if layer.get_type_name() not in _ELEMENTWISE:
        return None
    sources = [layer.input_value(index) for index in range(layer.get_input_size())]
    indices = [index for index, source in enumerate(sources) if not _is_constant(source, single)]
    return indices[0] if len(indices) == 1 else None


def _is_constant(source: Any, single: bool) -> bool:
    sizes = sizes_of(source.get_partial_shape())
    return source.get_node().get_type_name() == "Constant" and (not single or sizes in ((), (1,)))


def _moves_a_convolution(layer: Any) -> bool:
    """Whether an elementwise layer follows a Transpose of a convolution, with elementwise layers between."""
    index = _data_input(layer)
    if index is None or layer.input_value(index).get_node().get_type_name() != "Transpose":
        return False
    source = layer.input_value(index).get_node().input_value(0).get_node()
    while (index := _data_input(source, single=False)) is not None:
        source = source.input_value(index).get_node()
    return source.get_type_name() in _CONVOLUTIONS
