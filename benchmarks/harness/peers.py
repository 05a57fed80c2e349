"""The contenders, each at its best: constant weights, static shapes, no copies, threads set explicitly.

A thread count of 0 lets onegru and ONNX Runtime choose the number.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.models.cases import Case, layer_of, torch_gru

Array = NDArray[Any]
Call = Callable[[], object]

__all__ = ["PEERS", "Prepared", "Preparer", "pin", "spinning_session", "version"]


class Prepared:
    """A call that is ready for timing, with access to its outputs."""

    def __init__(
        self, call: Call, outputs: Callable[[], tuple[Array, Array]], opening: float | None = None
    ) -> None:
        self.call = call
        self.outputs = outputs
        self.opening = opening  # seconds to load a model


class Preparer(Protocol):
    def __call__(self, case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared: ...


def _outputs(case: Case) -> tuple[Array, Array]:
    s = case.shape
    return np.empty((s.T, s.D, s.B, s.H), np.float32), np.empty((s.D, s.B, s.H), np.float32)


def _layer(case: Case, arrays: Mapping[str, Array], threads: int, **options: Any) -> Any:
    import onegru

    if threads:
        onegru.set_num_threads(threads)
    return layer_of(case, arrays, "native", **options)


def onegru_layer(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    layer, X, h0, out = _layer(case, arrays, threads), arrays["X"], arrays["h0"], _outputs(case)
    return Prepared(lambda: layer(X, h0, out=out), lambda: out)


def onegru_alloc(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    layer, X, h0 = _layer(case, arrays, threads), arrays["X"], arrays["h0"]
    return Prepared(lambda: layer(X, h0), lambda: layer(X, h0))


def onegru_bfloat16(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    layer = _layer(case, arrays, threads, weight_storage="bfloat16")
    X, h0, out = arrays["X"], arrays["h0"], _outputs(case)
    return Prepared(lambda: layer(X, h0, out=out), lambda: out)


def onegru_rounded(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    """Return onegru with weights and activations in bfloat16."""
    options = {"weight_storage": "bfloat16", "activation_storage": "bfloat16"}
    layer, X, h0 = _layer(case, arrays, threads, **options), arrays["X"], arrays["h0"]
    out = _outputs(case)
    return Prepared(lambda: layer(X, h0, out=out), lambda: out)


def onegru_step(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    """Return a stream. It keeps its state between calls, so only the first step is checked."""
    stream = _layer(case, arrays, threads).stream(case.shape.B)
    x, out = arrays["X"][0].copy(), _outputs(case)
    h = out[0][0, 0]

    def first() -> tuple[Array, Array]:
        stream.state = arrays["h0"][0]
        stream.step(x, out=h)
        return h[None, None], h[None]

    return Prepared(lambda: stream.step(x, out=h), first)


def onnx_runtime(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        _onnx_file(case, arrays), options, providers=["CPUExecutionProvider"]
    )
    binding, out = session.io_binding(), _outputs(case)
    binding.bind_cpu_input("X", arrays["X"])
    binding.bind_cpu_input("h0", arrays["h0"])
    for name, array in zip(("Y", "Y_h"), out, strict=True):
        binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    return Prepared(lambda: session.run_with_iobinding(binding), lambda: out)


def spinning_session() -> Call:
    """Return a call of a small model on ONNX Runtime's default threads, which spin for a while afterwards."""
    import onnx
    import onnxruntime

    info, size = onnx.helper.make_tensor_value_info, [256, 256]
    weights = np.full(size, 1 / 256, np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "spinning",
        [info("x", 1, size)],
        [info("y", 1, size)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"x": np.ones(size, np.float32)}
    return lambda: session.run(None, feed)


def openvino_default(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    """Return OpenVINO with its default precision, which is bfloat16 on CPUs with AMX."""
    return openvino(case, arrays, threads, {})


def openvino(
    case: Case,
    arrays: Mapping[str, Array],
    threads: int,
    precision: Mapping[str, str] = MappingProxyType({"INFERENCE_PRECISION_HINT": "f32"}),
) -> Prepared:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **precision}
    file = _onnx_file(case, arrays)  # OpenVINO may still read the weights there
    compiled = core.compile_model(core.read_model(file), "CPU", settings)
    request = compiled.create_infer_request()
    request.set_tensor("X", openvino.Tensor(arrays["X"], shared_memory=True))
    request.set_tensor("h0", openvino.Tensor(arrays["h0"], shared_memory=True))

    def outputs() -> tuple[Array, Array]:
        assert file and arrays  # keeps them alive as long as the request
        return request.get_tensor("Y").data.copy(), request.get_tensor("Y_h").data.copy()

    return Prepared(request.infer, outputs)


def torch(case: Case, arrays: Mapping[str, Array], threads: int) -> Prepared:
    import torch

    if not case.linear_before_reset:
        raise NotImplementedError("torch.nn.GRU has only reset after")
    torch.set_num_threads(threads)
    s = case.shape
    module = torch_gru(s, arrays)
    X, h0 = torch.from_numpy(arrays["X"]), torch.from_numpy(arrays["h0"])

    def call() -> Any:
        with torch.inference_mode():
            return module(X, h0)

    def outputs() -> tuple[Array, Array]:
        Y, Y_h = call()
        return Y.numpy().reshape(s.T, s.B, s.D, s.H).transpose(0, 2, 1, 3), Y_h.numpy()

    return Prepared(call, outputs)


def _onnx_file(case: Case, arrays: Mapping[str, Array]) -> bytes:
    import onnx

    s = case.shape
    node = onnx.helper.make_node(
        "GRU",
        ["X", "W", "R", "B", "", "h0"],
        ["Y", "Y_h"],
        hidden_size=s.H,
        linear_before_reset=int(case.linear_before_reset),
        direction="bidirectional" if s.D == 2 else "forward",
    )
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "case",
        [info("X", 1, [s.T, s.B, s.I]), info("h0", 1, [s.D, s.B, s.H])],
        [info("Y", 1, [s.T, s.D, s.B, s.H]), info("Y_h", 1, [s.D, s.B, s.H])],
        [onnx.numpy_helper.from_array(arrays[name], name) for name in ("W", "R", "B")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    return bytes(model.SerializeToString())


#: The contenders by name: first onegru's interfaces, then the other runtimes.
PEERS: Mapping[str, Preparer] = {
    "onegru": onegru_layer,
    "onegru step": onegru_step,
    "onegru alloc": onegru_alloc,
    "onegru bfloat16": onegru_bfloat16,
    "onegru W16A16": onegru_rounded,
    "onnxruntime": onnx_runtime,
    "openvino": openvino,
    "openvino default": openvino_default,
    "torch": torch,
}


def version(name: str) -> str:
    """Return the version of the package for a name in `PEERS`."""
    from importlib.metadata import version as find

    package = name.split()[0]
    found = getattr(importlib.import_module(package), "__version__", None) or find(package)
    return str(found).split("-")[0]  # OpenVINO appends its build


def pin(threads: int) -> None:
    """Pin this process to as many cores as it may use threads."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, cores)
