"""OpenVINO: the one module of `files` that imports it."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onegru.dtypes import Array, bfloat16
from onegru.errors import FormatError, needs_extra
from onegru.files.graph import ValueType
from onegru.files.openvino_words import ELEMENT_TYPES

__all__ = ["Network"]

# Where in its own sources a message arose, and the check that failed there.
_SOURCES = re.compile(
    r"Exception from \S+:\d+:|(Check '[^']*'|RuntimeError: Check '[^']*') failed at \S+:\d+:|RuntimeError:"
)

# What may be computed ahead of the runs: so many times the constants, and so much in any case.
_TIMES, _FREE = 16, 2**26

# Computing as the file says: no lower precision than its own, and one run at a time as fast as can be.
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class Network:
    """A network that OpenVINO runs on the CPU.

    Args:
        text: an IR's XML. The tensors of its inputs and outputs have names.
        weights: its constants, bytes; they are not copied.
        outputs: the names of the outputs, in the order in which `run` gives them.
        place: the file, for messages.
        where: what to call this part of the file.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        FormatError: OpenVINO refuses the network.
    """

    def __init__(self, text: str, weights: Array, outputs: Sequence[str], place: str, where: str) -> None:
        with needs_extra("openvino", "openvino", f"{place}: {where}"):
            import openvino
        self._openvino = openvino
        self._place = f"{place}: the part around {where}"
        self._weights = weights  # which OpenVINO looks into as long as it lives
        try:
            core = _core()
            network = core.read_model(text, openvino.Tensor(weights, shared_memory=True))
            self._check(network)
            self._compiled = core.compile_model(network, "CPU", _PROPERTIES)
            self._outputs = [self._compiled.output(name) for name in outputs]
        except FormatError:
            raise
        except Exception as error:  # whatever OpenVINO stumbles over
            raise FormatError(f"{self._place}: OpenVINO refuses it ({_one_line(error)})") from None
        self._names = tuple(outputs)
        self._idle: list[Any] = []

    @property
    def output_types(self) -> dict[str, ValueType]:
        """The type of each output, by NumPy's name, and its shape."""
        return {
            name: ValueType(self._dtype(port), _shape(port.partial_shape))
            for name, port in zip(self._names, self._outputs, strict=True)
        }

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for these inputs; threads may run it at the same time.

        Raises:
            FormatError: OpenVINO fails.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = None
        try:
            request = request or self._compiled.create_infer_request()
            tensors = {name: self._tensor(array) for name, array in feeds.items()}
            for name, tensor in tensors.items():
                request.set_tensor(name, tensor)
            request.infer()
            results = {
                name: _array(request.get_tensor(port))
                for name, port in zip(self._names, self._outputs, strict=True)
            }
        except Exception as error:  # whatever OpenVINO stumbles over
            raise FormatError(f"{self._place}: OpenVINO fails ({_one_line(error)})") from None
        self._idle.append(request)
        return results

    def _tensor(self, array: Array) -> Any:
        """A tensor on this array where OpenVINO can take it as it is, else on a copy."""
        openvino = self._openvino
        array = np.asarray(array, order="C")
        if array.dtype.name == "bfloat16":  # which its binding does not know, but the bits of which it takes
            return openvino.Tensor(np.array(array).view(np.uint16), list(array.shape), openvino.Type.bf16)
        return openvino.Tensor(array, shared_memory=array.flags.writeable and array.size > 0)

    def _dtype(self, port: Any) -> str:
        words = port.element_type.to_string()
        if words not in ELEMENT_TYPES:
            raise FormatError(f"{self._place}: gives {words}; must be one of {', '.join(ELEMENT_TYPES)}")
        return ELEMENT_TYPES[words]

    def _check(self, network: Any) -> None:
        """Refuse, before it is tried, what would end the process."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        constant: set[str] = set()  # layers that OpenVINO computes ahead of all runs
        ahead = 0
        for layer in _layers(network):
            place = f"{self._place}: {layer.get_type_name()} layer {layer.get_friendly_name()!r}"
            for port in layer.outputs():
                shape = _shape(port.get_partial_shape()) or ()
                least = math.prod(size for size in shape if size is not None) * port.get_element_type().size
                sizes = ", ".join("?" if size is None else str(size) for size in shape)
                if least > memory:
                    raise FormatError(f"{place} gives [{sizes}], which is beyond this machine's memory")
                if _is_constant(layer, constant) and None not in shape:
                    ahead += least
                    if ahead > _TIMES * self._weights.nbytes + _FREE:
                        raise FormatError(
                            f"{place} gives [{sizes}]; constants come to far more than the .bin"
                        )
            if layer.get_type_name() == "Gather":
                _check_gather(layer, place)


def _is_constant(layer: Any, constant: set[str]) -> bool:
    """Whether a layer computes something from constants alone; it is added to those that do or are one."""
    takes = [port.get_node().get_name() for port in layer.input_values()]
    if layer.get_type_name() == "Constant" or (takes and constant.issuperset(takes)):
        constant.add(layer.get_name())
    return bool(takes) and layer.get_name() in constant


def _layers(network: Any) -> Iterator[Any]:
    """The layers of a network, those of bodies included."""
    for layer in network.get_ordered_ops():
        yield layer
        if layer.get_type_name() == "If":
            yield from _layers(layer.get_then_body())
            yield from _layers(layer.get_else_body())
        elif layer.get_type_name() in ("Loop", "TensorIterator"):
            yield from _layers(layer.get_body())


def _check_gather(layer: Any, place: str) -> None:
    """OpenVINO's CPU reads one-dimensional data, such as a shape, at any index (seen on 2026.4)."""
    shape = _shape(layer.input_value(0).get_partial_shape())
    indices = layer.input_value(1).get_node()
    if shape is None or len(shape) != 1 or shape[0] is None or indices.get_type_name() != "Constant":
        return
    wrong = [index for index in np.ravel(indices.get_data()).tolist() if not -shape[0] <= index < shape[0]]
    if wrong:
        raise FormatError(f"{place}: index {wrong[0]}; must be within the {shape[0]} that there are")


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(None if size.is_dynamic else size.get_length() for size in shape)


def _array(tensor: Any) -> Array:
    """A copy of what a tensor holds: the next run writes to the same memory."""
    array = np.array(tensor.data)
    return array.view(bfloat16()) if tensor.element_type.to_string() == "bf16" else array


def _one_line(error: Exception) -> str:
    return " ".join(_SOURCES.sub("", str(error)).split())
