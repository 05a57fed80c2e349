"""Whole models in normal use, as ONNX files and OpenVINO IRs, in onegru and in the other runtimes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import onegru
from benchmarks.harness.peers import Prepared
from benchmarks.models.decomposed import DECOMPOSED
from benchmarks.models.real import REAL, Array, RealModel, draw_frames, exported, exported_ir
from benchmarks.models.ways import Way

__all__ = ["WHOLE", "WHOLE_CASES", "WholeCase", "exact", "whole_case"]

FOLDER = Path(__file__).resolve().parents[2] / "build" / "benchmarks" / "models"
OPENINGS = 3


class ModelFile(Protocol):
    """A file, its form as in `WholeCase`, and the model's inputs."""

    @property
    def form(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def feed(self) -> dict[str, Array]: ...


@dataclass(frozen=True)
class WholeCase:
    """A model in a form, with a number of frames."""

    model: str
    frames: int
    form: str

    def __str__(self) -> str:
        return f"{self.model} {self.frames} {self.form}"

    @property
    def peer(self) -> str:
        """The runtime to compare with."""
        return "openvino" if self.form.startswith("ir") else "onnxruntime"

    @property
    def real(self) -> RealModel:
        """The model."""
        return (DECOMPOSED if self.form == "fused" else REAL)[self.model]

    @property
    def feed(self) -> dict[str, Array]:
        """The inputs of the model."""
        return draw_frames(self.real, self.frames)

    @property
    def path(self) -> Path:
        """The model's file, written once."""
        make = exported_ir if self.form.startswith("ir") else exported
        return make(self.model, self.real, FOLDER)


# "fused": a file with a decomposed GRU, which the runtime runs unchanged. "ir": OpenVINO compiles
# the unchanged file; "ir, reshaped": for the sizes of the inputs.
WHOLE_CASES = tuple(
    WholeCase(name, frames, form)
    for form in ("onnx", "ir", "ir, reshaped")
    for name, real in REAL.items()
    for frames in ((real.fixed_frames,) if real.fixed_frames else (1, 100))
) + tuple(WholeCase(name, real.fixed_frames, "fused") for name, real in DECOMPOSED.items())


def whole_case(name: str) -> ModelFile:
    """Return the case with this name, from `WHOLE_CASES` or from the ways of encoding weights."""
    return next((case for case in WHOLE_CASES if str(case) == name), None) or Way.read(name)


def exact(case: WholeCase) -> Array:
    """Return the first output, from the float64 reference."""
    path = exported(case.model, case.real, FOLDER)
    model = onegru.load(path, engine="reference", fuse=case.form == "fused")
    return next(iter(model.run(case.feed).values()))


Run = Callable[[], Any]


def _onegru(case: ModelFile, threads: int) -> Run:
    onegru.set_num_threads(threads)
    model, feed = onegru.load(case.path, fuse=case.form == "fused"), case.feed
    return lambda: list(model.run(feed).values())


def _provider(case: ModelFile, threads: int) -> Run:
    if case.form.startswith("ir"):
        raise ValueError("is ONNX Runtime's")
    onegru.set_num_threads(threads)
    path = case.path
    if case.form == "fused":
        path = FOLDER / f"{path.stem}_fused.onnx"
        onegru.fuse(case.path, path)
    return _session(path, case, threads, [onegru.execution_provider.register(), "CPUExecutionProvider"])


def _onnxruntime(case: ModelFile, threads: int) -> Run:
    return _session(case.path, case, threads, ["CPUExecutionProvider"])


def _session(path: Path, case: ModelFile, threads: int, providers: list[str]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=providers, enable_fallback=0)
    feed = case.feed
    return lambda: session.run(None, feed)


def _replace_grus(case: ModelFile, threads: int) -> Run:
    onegru.set_num_threads(threads)
    return _openvino(case, threads, onegru.openvino.replace_grus)


def _openvino(case: ModelFile, threads: int, change: Callable[[Any], object] = id) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core, feed = openvino.Core(), case.feed
    model = core.read_model(case.path)
    if case.form == "ir, reshaped":
        model.reshape({name: array.shape for name, array in feed.items()})
    if change(model) == 0:
        raise ValueError("no layer was replaced")
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    tensors = {name: openvino.Tensor(array, shared_memory=True) for name, array in feed.items()}
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)

    def call(kept: object = (feed, tensors)) -> list[Array]:  # OpenVINO does not keep them alive
        return list(request.infer(share_outputs=True).values())

    return call


def _prepared(open_: Callable[[ModelFile, int], Run]) -> Callable[[ModelFile, int], Prepared]:
    def prepare(case: ModelFile, threads: int) -> Prepared:
        seconds: list[float] = []
        call: Run = list
        for _ in range(OPENINGS):
            began = time.perf_counter()
            call = open_(case, threads)
            seconds.append(time.perf_counter() - began)
        first = call()[0].copy()
        return Prepared(call, lambda: (first, first), min(seconds))

    return prepare


WHOLE: Mapping[str, Callable[[ModelFile, int], Prepared]] = {
    "onegru": _prepared(_onegru),
    "onegru provider": _prepared(_provider),
    "onegru replace_grus": _prepared(_replace_grus),
    "onnxruntime": _prepared(_onnxruntime),
    "openvino": _prepared(_openvino),
}
