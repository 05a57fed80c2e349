"""Run models in OpenVINO; in this folder, only this module and `faults` import it."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onegru import _native
from onegru.core.dtypes import Array, bfloat16
from onegru.core.errors import FormatError, SpecError, needs_extra
from onegru.core.machine import foreign_threads_run
from onegru.engines.interface import DEFAULT_OPTIONS, EngineOptions
from onegru.engines.native import get_num_threads
from onegru.formats.graph import GruStep, Observer, QuickRun
from onegru.formats.openvino.faults import (
    check_compilation,
    check_network,
    kind_that_can_fail,
    layers_of,
    work_around_faults,
)
from onegru.formats.openvino.fields import ELEMENT_TYPES
from onegru.runtimes.openvino_graph import infer, run_of

# The location in OpenVINO's sources in a message, and the check that failed.
_SOURCES = re.compile(
    r"Exception from \S+:\d+:|(Check '[^']*'|RuntimeError: Check '[^']*') failed at \S+:\d+:|RuntimeError:"
)

# The message of a GRU layer with invalid inputs, within one of OpenVINO's.
_OURS = re.compile(r"OneGRU node '(.*?)': (.*?)(?: At: .*)?$")

# Limits of the sets of sizes that a model is compiled for, and that are remembered.
_MOST_SIZES, _MOST_SEEN = 4, 1000
_Sizes = tuple[tuple[int, ...], ...]
_Ports = Sequence[tuple[str, int]]  # public names, and indices of inputs or outputs
_PLAIN_TYPES = {"boolean", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}

# Fills the last element of each output before a run, as in native/python/sized_call.cc.
_UNWRITTEN = 0xFB

# Seconds to wait before a fork. After a run, OpenVINO's threads wait actively for less than 1 ms. A child
# that is forked in this time waits for them forever (3 of 100 did). On a busy machine they need longer. The
# limit is for other threads, which can compute for any time.
_REST, _MOST_REST = 0.01, 0.5

# No lower precision than the file's, and the lowest latency of single runs.
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class Network:
    """Model that OpenVINO runs with onegru's GRU layers, compiled for any sizes and for repeated sizes."""

    def __init__(
        self,
        text: str,
        weights: Array,
        file: str,
        where: str,
        grus: Sequence[GruStep],
        options: EngineOptions = DEFAULT_OPTIONS,
        observer: Observer | None = None,
    ) -> None:
        self._file = file
        self._text = text
        self._weights = weights  # must live as long as OpenVINO's model, which reads it
        self._model = _read(text, weights, file, where)
        work_around_faults(self._model)
        self._kept: list[object] = []
        self._operators = {gru.name: gru.operator.name for gru in grus}
        self._replace_layers(grus, options, observer)
        self._is_open = any(port.get_partial_shape().is_dynamic for port in self._model.inputs)
        self._is_observed = observer is not None
        self._for_any_sizes = self._compile_for_any_sizes()
        self._lock = threading.Lock()
        self._seen: set[_Sizes] = set()
        self._sized: dict[_Sizes, _Compiled] = {}
        self._quick = _native.SizedCall()
        self._quick_ports: tuple[_Ports, _Ports] = ([], [])
        self._next_quick: _Compiled | None = None  # the model to prepare for quick calls

    def _replace_layers(
        self, grus: Sequence[GruStep], options: EngineOptions, observer: Observer | None
    ) -> None:
        from onegru.runtimes.openvino_replace import layers_in, prepare, replace_layer

        for layer in list(layers_in(self._model)):
            number = _number_of(layer.node, self._file)
            gru = grus[number]
            layer.node.set_friendly_name(gru.name)
            watch = None if observer is None else functools.partial(observer, number, "done")
            ready = prepare(layer, gru.operator, gru.attributes, options, f"{self._file}: {gru}: ")
            replace_layer(
                ready, observer=watch, all_steps=gru.full_length, is_watched=True, keep=self._kept.append
            )
        try:
            self._model.validate_nodes_and_infer_types()
        except Exception as error:  # OpenVINO raises errors of many classes
            raise FormatError(f"{self._file}: OpenVINO refuses it ({_one_line(error)})") from error

    def _compile_for_any_sizes(self) -> _Compiled | None:
        """Compile for any sizes; None for a model that OpenVINO can compile only for fixed sizes."""
        try:
            return self._compile(self._model)
        except FormatError:
            ports = (port for layer in layers_of(self._model) for port in layer.outputs())
            if self._is_open and any(port.get_partial_shape().rank.is_dynamic for port in ports):
                return None
            raise

    def _compile(self, model: Any, sizes: _Sizes = ()) -> _Compiled:
        properties = {**_PROPERTIES, "INFERENCE_NUM_THREADS": get_num_threads()}
        check_compilation(model, sizes, self._file, self._text, self._weights)
        try:
            compiled = core_with_extensions().compile_model(model, "CPU", properties)
        except Exception as error:  # OpenVINO raises errors of many classes
            raise FormatError(f"{self._file}: OpenVINO refuses it ({_one_line(error)})") from error
        is_plain = _is_fixed(model) and not any(map(_is_input, model.outputs)) and not self._is_observed
        return _Compiled(compiled, self._file, is_plain, kind_that_can_fail(model))

    def run(self, arrays: Sequence[Any]) -> list[Array]:
        """Return the outputs for these inputs."""
        given = [np.asarray(array) for array in arrays]
        try:
            compiled = self._for_any_sizes
            if compiled is None or self._is_open:
                sizes = tuple(array.shape for array in given)
                compiled = self._sized.get(sizes) or self._compiled_for(sizes, given)
            results = compiled.run(given)
            if compiled is self._next_quick:
                self._prepare_quick(compiled)
            return results
        except FormatError:
            raise
        except (RuntimeError, ValueError, LookupError) as error:  # others are of signal handlers
            line = _one_line(error)
            if (ours := _OURS.search(line)) is not None:
                operator = self._operators.get(ours[1], "GRU")
                raise SpecError(f"{self._file}: {operator} node {ours[1]!r}: {ours[2]}") from error
            raise FormatError(f"{self._file}: OpenVINO fails ({line})") from error

    def quick_run(self, inputs: _Ports, outputs: _Ports) -> QuickRun:
        """Return a function for the sizes that were compiled last; it returns None if it cannot run."""
        self._quick_ports = inputs, outputs
        self._next_quick = self._for_any_sizes
        return self._quick

    def _prepare_quick(self, compiled: _Compiled) -> None:
        """Let the quick call run a model, unless another thread uses it."""
        request = compiled.take_sized_request()
        inputs, outputs = self._quick_ports
        if request is None or self._quick.prepare(
            [(name, request.inputs[index]) for name, index in inputs],
            [(name, request.outputs[index]) for name, index in outputs],
            request.run_here,
            request.settle,
            compiled.lost,
        ):
            self._next_quick = None
        else:
            compiled.idle.append(request)

    def _compiled_for(self, sizes: _Sizes, given: Sequence[Array]) -> _Compiled:
        """Return the model for these sizes; it is compiled for them when they occur a second time."""
        with self._lock:
            again = sizes in self._seen
            if not again and len(self._seen) < _MOST_SEEN:
                self._seen.add(sizes)
            is_full = len(self._sized) >= _MOST_SIZES
            if sizes in self._sized:
                return self._sized[sizes]
            if self._for_any_sizes is None:
                made = self._compile(self._reshaped(sizes), sizes)
                if is_full:
                    del self._sized[next(iter(self._sized))]
                self._sized[sizes] = made
                return made
            if is_full or not again or self._is_observed or any(0 in shape for shape in sizes):
                return self._for_any_sizes
            self._sized[sizes] = self._for_any_sizes
            try:
                made = self._compile(self._reshaped(sizes), sizes)
                # OpenVINO optimizes more if sizes are fixed, and sometimes wrongly (seen in 2026.4).
                if all(map(_agree, made.run(given), self._for_any_sizes.run(given))):
                    self._sized[sizes] = self._next_quick = made
            except Exception:  # some models can run these sizes only if sizes are dynamic
                pass
            return self._sized[sizes]

    def _reshaped(self, sizes: _Sizes) -> Any:
        model = self._model.clone()
        model.reshape({port: list(shape) for port, shape in zip(model.inputs, sizes, strict=True)})
        return model


def _agree(a: Array, b: Array) -> bool:
    """Whether two outputs differ only by roundings of different kernels."""
    if a.dtype.kind in "iub" or a.shape != b.shape:
        return np.array_equal(a, b)
    share = 1e-2 if a.dtype.itemsize == 2 else 1e-3
    a, b = a.astype(np.float64), b.astype(np.float64)
    allowed = share * np.max(np.abs(b), initial=0, where=np.isfinite(b))
    return bool(np.allclose(a, b, rtol=0, atol=allowed, equal_nan=True))


def _is_fixed(model: Any) -> bool:
    """Whether the sizes of all layers, including those in bodies, are known."""
    ports = (port for layer in layers_of(model) for port in layer.outputs())
    return not any(port.get_partial_shape().is_dynamic for port in ports)


def _is_input(output: Any) -> bool:
    """Whether an output is an unchanged input; OpenVINO confuses the arrays of such an input and output."""
    return bool(output.get_node().input_value(0).get_node().get_type_name() == "Parameter")


class _Compiled:
    """Compiled model with its requests, each with separate tensors."""

    def __init__(self, compiled: Any, file: str, is_fixed: bool, can_fail: str | None) -> None:
        self.model = compiled
        self.can_fail = can_fail  # the type of a layer whose errors OpenVINO can lose
        self.process = os.getpid()  # the process that compiled it and has its threads
        self.lost: list[object] = []  # requests whose errors were lost, and that OpenVINO can run again
        self.idle: list[_Request | _SizedRequest] = []
        ports = [*compiled.inputs, *compiled.outputs]
        types = [port.element_type.to_string() for port in ports]
        for words in types:
            if words not in ELEMENT_TYPES:
                raise FormatError(
                    f"{file}: an input or output is {words}; must be one of {', '.join(ELEMENT_TYPES)}"
                )
        is_sized = is_fixed and can_fail is None and _PLAIN_TYPES.issuperset(types)
        self._request = _SizedRequest if is_sized else _Request

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model and return its outputs."""
        try:
            request = self.idle.pop()
        except IndexError:
            request = self._request(self)
        results = request.run(arrays)
        self.idle.append(request)
        return results

    def take_sized_request(self) -> _SizedRequest | None:
        """Return a request that this model no longer uses; None if its requests are for any sizes."""
        if self._request is _Request:
            return None
        try:
            request = self.idle.pop()
        except IndexError:
            request = _SizedRequest(self)
        assert isinstance(request, _SizedRequest)
        return request


class _Request:
    """Request for any sizes and types."""

    def __init__(self, compiled: _Compiled) -> None:
        self._compiled = compiled
        self._request = compiled.model.create_infer_request()
        self._inputs = list(compiled.model.inputs)
        self._outputs = list(compiled.model.outputs)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        for port, array in zip(self._inputs, arrays, strict=True):
            tensor = self._request.get_tensor(port)
            if tuple(tensor.shape) != array.shape:
                tensor.shape = array.shape
            if array.size:
                if array.dtype.name == "bfloat16":  # unknown to OpenVINO's binding, so bits are copied
                    tensor.data.view(np.uint16)[...] = array.view(np.uint16)
                else:
                    tensor.data[...] = array
        if os.getpid() == self._compiled.process:
            infer(self._request)
        else:  # a forked child, which has no OpenVINO threads
            if (kind := self._compiled.can_fail) is not None:
                raise RuntimeError(
                    f"OpenVINO loses errors of its {kind} layer in a process that was forked after the model "
                    "was loaded; load the model in this process"
                )
            _run_here(run_of(self._request))
        return [_array(self._request.get_tensor(port)) for port in self._outputs]


def _run_here(run: Callable[[], object]) -> None:
    """Run a request in this thread: raises errors of GRU layers; errors of other layers can be lost."""
    if failure := _native.run_watched(run):
        raise RuntimeError(failure)


# Requests whose errors were lost. Their failed work stays in a queue of the thread, and the next run of any
# model in this thread executes it, so they must never be freed.
_KEPT: list[object] = []


class _SizedRequest:
    """Request for one set of sizes, with arrays that OpenVINO reads and writes in place."""

    # It runs in the caller's thread, which is faster. OpenVINO can lose errors there, so only models whose
    # layers cannot fail have such requests. If the last element of an output still has its marker, the run is
    # repeated in OpenVINO's thread.

    def __init__(self, compiled: _Compiled) -> None:
        import openvino

        self._compiled = compiled
        model = compiled.model
        self._request = model.create_infer_request()
        self.inputs, self.outputs = (
            [np.zeros(port.get_shape(), ELEMENT_TYPES[port.element_type.to_string()]) for port in ports]
            for ports in (model.inputs, model.outputs)
        )
        for ports, arrays in ((model.inputs, self.inputs), (model.outputs, self.outputs)):
            for port, array in zip(ports, arrays, strict=True):
                if array.size:
                    self._request.set_tensor(port, openvino.Tensor(array, shared_memory=True))
        self.run_here = run_of(self._request)
        self._ends = [array.reshape(-1)[-1:].view(np.uint8) for array in self.outputs if array.size]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        for own, array in zip(self.inputs, arrays, strict=True):
            own[...] = array
        if self._compiled.lost and not self._is_forked():
            infer(self._request)
        else:
            self._mark(_UNWRITTEN)
            _run_here(self.run_here)
            if self._is_marked(_UNWRITTEN):
                self.settle()
        return [array.copy() for array in self.outputs]

    def settle(self) -> None:
        """Run again if a run perhaps did not write an output, and find out whether an error was lost."""
        if self._is_forked():  # a child has no OpenVINO threads
            self._mark(_UNWRITTEN - 1)
            _run_here(self.run_here)
            if self._is_marked(_UNWRITTEN - 1):
                raise RuntimeError("a layer failed in a forked process, where OpenVINO loses the error")
            return
        is_lost = True
        try:
            infer(self._request)
            is_lost = not self._is_marked(_UNWRITTEN)
        finally:
            if is_lost:
                self._compiled.lost.append(self)
                _KEPT.append(self)

    def _is_forked(self) -> bool:
        return os.getpid() != self._compiled.process

    def _mark(self, marker: int) -> None:
        for end in self._ends:
            end.fill(marker)

    def _is_marked(self, marker: int) -> bool:
        return any(end.tobytes() == bytes([marker] * end.size) for end in self._ends)


def weights_of(
    text: str, weights: Array, file: str, where: str, grus: Sequence[GruStep]
) -> list[dict[str, Array]]:
    """Return the constant weights of each GRU layer, without weights that are computed in each run."""
    model = _read(text, weights, file, where)
    from onegru.runtimes.openvino_replace import layers_in, weights_in

    found: list[dict[str, Array]] = [{} for _ in grus]
    for layer in layers_in(model):
        number = _number_of(layer.node, file)
        arrays = weights_in(layer, grus[number].operator)
        found[number] = {name: array for name, array in arrays.items() if array is not None}
    return found


def _read(text: str, weights: Array, file: str, where: str) -> Any:
    with needs_extra("openvino", "openvino", f"{file}: {where}"):
        import openvino
    try:
        network = core_with_extensions().read_model(text, openvino.Tensor(weights, shared_memory=True))
        check_network(network, file, weights.nbytes)
    except FormatError:
        raise
    except Exception as error:  # OpenVINO raises errors of many classes
        raise FormatError(f"{file}: OpenVINO refuses it ({_one_line(error)})") from error
    return network


def _number_of(node: Any, file: str) -> int:
    """Return the number of a node among the file's GRU layers."""
    name = node.get_friendly_name()
    if not name.isdecimal():
        raise FormatError(f"{file}: a layer of type {node.get_type_name()} that has another type in the file")
    return int(name)


def _wait_for_threads() -> None:
    """Wait before a fork until OpenVINO's threads are idle."""
    end = time.monotonic() + _MOST_REST
    time.sleep(_REST)
    while foreign_threads_run() and time.monotonic() < end:
        time.sleep(_REST / 10)


@functools.cache
def core_with_extensions() -> Any:
    """Return the `openvino.Core` with onegru's operators, which is created once."""
    from onegru.runtimes.openvino_op import create_core

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait_for_threads)
    return create_core()


def _array(tensor: Any) -> Array:
    """Copy the content of a tensor, because the next run writes to the same memory."""
    array = np.array(tensor.data)
    return array.view(bfloat16()) if tensor.element_type.to_string() == "bf16" else array


def _one_line(error: Exception) -> str:
    return " ".join(_SOURCES.sub("", str(error)).split())
