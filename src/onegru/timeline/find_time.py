"""Find the time axis of inputs."""

from __future__ import annotations

from collections.abc import Mapping

from onegru.core.arguments import integer, shown
from onegru.core.errors import SpecError
from onegru.dataflow.operator import Size
from onegru.formats.graph import Graph
from onegru.timeline.analysis import TimeAnalysis, time_axis

_FORWARD = ("forward", "foward")  # a typo in the first versions of ONNX
_CELLS = {"openvino::GRUCell", "openvino::AUGRUCell"}


def asked_axes(graph: Graph, time: Mapping[str, int] | None) -> dict[str, int]:
    """Return the time axis of inputs, as named by the caller."""
    names = {info.name for info in graph.inputs}
    if not isinstance(time, Mapping | None):
        raise SpecError.of("time", f"{shown(time)}; must be a mapping from inputs to axes")
    for name in time or {}:
        if name not in names:
            listed = ", ".join(map(repr, sorted(names)))
            raise SpecError.of("time", f"{name!r} is not an input; must be one of {listed}")
    return {name: integer(f"time[{name!r}]", axis) for name, axis in (time or {}).items()}


def find_time(analysis: TimeAnalysis, asked: Mapping[str, int], example: str = "X") -> set[int]:
    """Return the factors of axes that are time."""
    if asked:
        return _as_asked(analysis, asked)
    times: list[tuple[set[int], Size]] = []  # the factors of the time axes of GRUs, and their sizes
    forward = [op for op in analysis.recurrent if op.attributes.get("direction", "forward") in _FORWARD]
    for op in forward or analysis.recurrent:
        axes, shape = analysis.axes_of.get(op.inputs[0]), analysis.shape(op.inputs[0])
        if axes is not None and shape is not None and len(axes) == 3:
            axis = time_axis(op)
            main = analysis.axes.main(axes[axis])
            if main not in [factors for factors, _ in times]:
                times.append((main, shape[axis]))
    of_inputs = {
        factor
        for name in analysis.inputs
        if name not in analysis.states
        for axis in analysis.axes_of.get(name) or ()
        for factor in analysis.axes.main(axis)
    }
    times = [time for time in times if time[0] <= of_inputs]
    if len(times) > 1:  # others go along frequencies, which have a fixed number
        times = [time for time in times if isinstance(time[1], str)] or times
    if len(times) != 1:
        what = "no GRU runs along an axis of an input" if not times else "GRUs run along several axes"
        if not times and any(op.kind in _CELLS for op in analysis.ops):
            raise SpecError.of(
                "time",
                "the model has cells, which run one step in each call; to carry states that are inputs and "
                "outputs, name them: stream({'h_out': 'h_in'})",
            )
        said = f"time={{{example!r}: 1}} (--time {example}=1)"
        raise SpecError.of("time", f"{what}; pass the time axis of an input, such as {said}")
    return times[0][0]


def _as_asked(analysis: TimeAnalysis, asked: Mapping[str, int]) -> set[int]:
    found: set[int] = set()
    for name, axis in asked.items():
        axes = analysis.axes_of.get(name)
        if axes is None:
            raise SpecError.of("time", f"the rank of input {name!r} is unknown; must be known")
        if not -len(axes) <= axis < len(axes):
            raise SpecError.of("time", f"axis {axis} of {name!r}; must be below its rank, {len(axes)}")
        found |= analysis.axes.main(axes[axis])
    return found
