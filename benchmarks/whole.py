"""The whole model of `benchmarks.models` as its users run it: frame by frame, and over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onegru
from benchmarks.models import Array, draw_inputs, speech_model
from benchmarks.peers import Prepared

__all__ = ["WHOLE", "WHOLE_CASES", "WholeCase", "exact"]


@dataclass(frozen=True)
class WholeCase:
    """So many frames in a call, from states of zeros or from those of the call before."""

    frames: int
    streamed: bool

    def __str__(self) -> str:
        return f"{self.frames} frame{'s' if self.frames > 1 else ''}{', streamed' if self.streamed else ''}"


WHOLE_CASES = (WholeCase(1, True), WholeCase(10, True), WholeCase(100, False))


def exact(case: WholeCase, path: str) -> Array:
    """The mask of the first call, by the float64 reference."""
    return onegru.load(path, engine="reference").run(draw_inputs(case.frames))["mask"]


def _onegru(case: WholeCase, threads: int) -> Prepared:
    onegru.set_num_threads(threads)
    session = onegru.InferenceSession(speech_model().SerializeToString())
    feed = draw_inputs(case.frames)
    first = session.run(["mask"], feed)[0]
    if case.streamed:
        stream = session.model.stream()
        x = {"x": feed["x"]}
        return Prepared(lambda: stream.step(x), lambda: (first, first))
    return Prepared(lambda: session.run(None, feed), lambda: (first, first))


def _onnxruntime(case: WholeCase, threads: int) -> Prepared:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(speech_model().SerializeToString(), options)
    feed = draw_inputs(case.frames)
    first = session.run(["mask"], feed)[0]
    if not case.streamed:
        return Prepared(lambda: session.run(None, feed), lambda: (first, first))
    names = [output.name for output in session.get_outputs()]
    takers = [name.removesuffix("_out") for name in names]

    def step() -> None:
        results = session.run(names, feed)
        feed.update(zip(takers[1:], results[1:], strict=True))

    return Prepared(step, lambda: (first, first))


WHOLE: Mapping[str, Callable[[WholeCase, int], Prepared]] = {"onegru": _onegru, "onnxruntime": _onnxruntime}
