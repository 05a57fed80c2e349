"""Rewrite networks to work around wrong results of OpenVINO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onegru.formats.openvino.kinds import MORE_UNARY, UNARY
from onegru.runtimes.openvino_graph import bodies_of, sizes_of

_CONVOLUTIONS = ("Convolution", "GroupConvolution")
# Elementwise layers: each output element depends on one element of one input if the others are scalars.
_ELEMENTWISE = frozenset(
    {
        *(*UNARY.values(), *MORE_UNARY.values()),
        *("Relu", "Clamp", "Elu", "Gelu", "HSigmoid", "HardSigmoid", "Round", "Selu", "Swish"),
        *("Add", "Subtract", "Multiply", "Divide", "Power", "Maximum", "Minimum"),
    }
)


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
