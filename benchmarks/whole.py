"""Whole models as their users run them: one frame, and a hundred; as ONNX files and as OpenVINO's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onegru
from benchmarks.models.decomposed import DECOMPOSED
from benchmarks.models.real import REAL, Array, RealModel, draw_frames, exported, exported_ir
from benchmarks.peers import Prepared

__all__ = ["WHOLE", "WHOLE_CASES", "WholeCase", "exact"]

FOLDER = Path(__file__).parent.parent / "build" / "benchmarks" / "models"
OPENINGS = 3


@dataclass(frozen=True)
class WholeCase:
    """A model in a form, on so many frames."""

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
        """What it takes."""
        return draw_frames(self.real, self.frames)


# "fused": a file with a decomposed GRU, which the runtime runs as it is. "ir": OpenVINO compiles
# the file as it is; "ir, reshaped": for the sizes that arrive.
WHOLE_CASES = tuple(
    WholeCase(name, frames, form)
    for form in ("onnx", "ir", "ir, reshaped")
    for name, real in REAL.items()
    for frames in ((real.fixed_frames,) if real.fixed_frames else (1, 100))
) + tuple(WholeCase(name, real.fixed_frames, "fused") for name, real in DECOMPOSED.items())


def path_of(case: WholeCase) -> Path:
    make = exported_ir if case.form.startswith("ir") else exported
    return make(case.model, case.real, FOLDER)


def exact(case: WholeCase) -> Array:
    """The first output, by the float64 reference."""
    path = exported(case.model, case.real, FOLDER)
    model = onegru.load(path, engine="reference", fuse=case.form == "fused")
    return next(iter(model.run(case.feed).values()))


Run = Callable[[], Any]


def _onegru(case: WholeCase, threads: int) -> Run:
    onegru.set_num_threads(threads)
    model, feed = onegru.load(path_of(case), fuse=case.form == "fused"), case.feed
    return lambda: list(model.run(feed).values())


def _provider(case: WholeCase, threads: int) -> Run:
    if case.form.startswith("ir"):
        raise ValueError("is ONNX Runtime's")
    onegru.set_num_threads(threads)
    path = path_of(case)
    if case.form == "fused":
        path = FOLDER / f"{path.stem}_fused.onnx"
        onegru.fuse(path_of(case), path)
    return _session(path, case, threads, [onegru.execution_provider.register(), "CPUExecutionProvider"])


def _onnxruntime(case: WholeCase, threads: int) -> Run:
    return _session(path_of(case), case, threads, ["CPUExecutionProvider"])


def _session(path: Path, case: WholeCase, threads: int, providers: list[str]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    feed = case.feed
    return lambda: session.run(None, feed)


def _openvino(case: WholeCase, threads: int) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core, feed = openvino.Core(), case.feed
    model = core.read_model(path_of(case))
    if case.form == "ir, reshaped":
        model.reshape({name: array.shape for name, array in feed.items()})
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    tensors = {name: openvino.Tensor(array, shared_memory=True) for name, array in feed.items()}
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)

    def call(kept: object = (feed, tensors)) -> list[Array]:  # which OpenVINO does not keep alive
        return list(request.infer(share_outputs=True).values())

    return call


def _prepared(open_: Callable[[WholeCase, int], Run]) -> Callable[[WholeCase, int], Prepared]:
    def prepare(case: WholeCase, threads: int) -> Prepared:
        seconds: list[float] = []
        call: Run = list
        for _ in range(OPENINGS):
            began = time.perf_counter()
            call = open_(case, threads)
            seconds.append(time.perf_counter() - began)
        first = call()[0].copy()
        return Prepared(call, lambda: (first, first), min(seconds))

    return prepare


WHOLE: Mapping[str, Callable[[WholeCase, int], Prepared]] = {
    "onegru": _prepared(_onegru),
    "onegru provider": _prepared(_provider),
    "onnxruntime": _prepared(_onnxruntime),
    "openvino": _prepared(_openvino),
}
