"""OpenVINO, on its CPU plugin; the one module of `peers` that imports it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onegru.core.dtypes import Array, bfloat16, contiguous
from onegru.peers.base import ModelUnderTest, Probe, Runtime
from onegru.runtimes.openvino_graph import infer

# By default it computes in 16 bits where the processor is fast at that, which few comparisons survive.
_OPTIONS = {"f32": {"INFERENCE_PRECISION_HINT": "f32"}, "default": {}}

# Its messages begin with the places that they passed through, and call nodes by numbers of its own.
_PLACES = re.compile(
    r"Exception from src/\S+:\d+:\s*|Check '[^']*' failed at src/\S+:\d+:\s*"
    r"|\[\w+\] END: node: .*? CALLBACK HAS THROWN: |(?<=[A-Za-z])_\d+\b"
)


@dataclass(frozen=True, slots=True)
class OpenVino(Runtime):
    """See `onegru.peers.base.Runtime`.

    Attributes:
        name: what to call it.
        precision: "f32" to compute in float32 where the model does, or "default" for its own choice.
    """

    name: str = "openvino"
    precision: str = "f32"

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Why it is not tried."""
        return None

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The wanted outputs."""
        try:
            return self._run(subject, inputs)
        except RuntimeError as error:
            raise RuntimeError(_PLACES.sub("", " ".join(str(error).split()))) from None

    def _run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        import openvino

        core = openvino.Core()
        if subject.is_file:  # from memory it takes some that it refuses as files, as programs read them
            model = core.read_model(subject.path)
        elif subject.model is not None:
            model = core.read_model(subject.model)
        else:  # given with its weights, an IR may have any suffix
            weights = Path(subject.path).with_suffix(".bin")
            model = core.read_model(subject.path, weights if weights.exists() else "")
        probed = {_key(_place(model, probe)): probe.value for probe in subject.probes}
        for probe in subject.probes:
            if _key(_place(model, probe)) not in map(_source, model.outputs):
                model.add_outputs([_place(model, probe)])
        wanted = [_wanted(output, subject, probed) for output in model.outputs]
        request = core.compile_model(model, "CPU", _OPTIONS[self.precision]).create_infer_request()
        for place in request.model_inputs:
            array = contiguous(_find(inputs, place))
            tensor = openvino.Tensor(place.element_type, openvino.Shape(array.shape))
            _as_bytes(tensor.data)[...] = _as_bytes(array)
            request.set_tensor(place, tensor)
        infer(request)
        results: dict[str, Any] = {}
        for index, names in enumerate(wanted):
            tensor = request.get_output_tensor(index)
            data = np.array(tensor.data)
            if tensor.element_type == openvino.Type.bf16:
                data = data.view(bfloat16())
            results.update(dict.fromkeys(names, data))
        return results


def _place(model: Any, probe: Probe) -> Any:
    """The output port of a probe's value."""
    found = [op for op in model.get_ops() if op.get_friendly_name() == probe.layer]
    if len(found) != 1:
        raise ValueError(f"{len(found)} layers are called {probe.layer!r}; must be one")
    if probe.side == "output":
        return found[0].output(probe.index)
    return found[0].input(probe.index).get_source_output()


def _key(port: Any) -> tuple[str, int]:
    """A unique key of an output port."""
    return port.node.get_friendly_name(), port.index


def _source(output: Any) -> tuple[str, int]:
    """The key of the port that an output of the model comes from."""
    return _key(output.node.input(0).get_source_output())


def _wanted(output: Any, subject: ModelUnderTest, probed: Mapping[tuple[str, int], str]) -> list[str]:
    """The subject's names for an output of the model: as an output, as a probe, or both."""
    own = output.get_names() | {output.node.get_friendly_name()}
    names = [name for name, aliases in subject.outputs.items() if own.intersection((name, *aliases))]
    probe = probed.get(_source(output))
    return names if probe is None else [*names, probe]


def _find(inputs: Mapping[str, Any], place: Any) -> Any:
    names = [*sorted(place.get_names()), place.node.get_friendly_name()]
    for name in names:
        if name in inputs:
            return inputs[name]
    raise ValueError(f"input {', '.join(map(repr, names))} has no value")


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
