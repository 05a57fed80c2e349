"""Run models in OpenVINO's CPU plugin. Only this module of `peers` imports OpenVINO."""

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

# By default, it computes in 16 bits on CPUs that are fast at it, which is too inexact for most comparisons.
_OPTIONS = {"f32": {"INFERENCE_PRECISION_HINT": "f32"}, "default": {}}

# OpenVINO's messages begin with source locations, and name nodes by its own numbers.
_PLACES = re.compile(
    r"Exception from src/\S+:\d+:\s*|Check '[^']*' failed at src/\S+:\d+:\s*"
    r"|\[\w+\] END: node: .*? CALLBACK HAS THROWN: |(?<=[A-Za-z])_\d+\b"
)


@dataclass(frozen=True, slots=True)
class OpenVino(Runtime):
    """OpenVINO; see `onegru.peers.base.Runtime`."""

    name: str = "openvino"  # its name
    # "f32" to compute float32 models in float32, or "default" for OpenVINO's choice
    precision: str = "f32"

    def refuses(self, subject: ModelUnderTest) -> str | None:
        """Return None, because every model is tried."""
        return None

    def run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wanted outputs."""
        try:
            return self._run(subject, inputs)
        except RuntimeError as error:
            raise RuntimeError(_PLACES.sub("", " ".join(str(error).split()))) from error

    def _run(self, subject: ModelUnderTest, inputs: Mapping[str, Any]) -> dict[str, Any]:
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        import openvino

        core = openvino.Core()
        if subject.is_file:  # from memory, it accepts models that it rejects as files, which programs use
            model = core.read_model(subject.path)
        elif subject.model is not None:
            model = core.read_model(subject.model)
        else:  # with its weights in memory, an IR may have any suffix
            weights = Path(subject.path).with_suffix(".bin")
            model = core.read_model(subject.path, weights if weights.exists() else "")
        probed = {_key(_probed_port(model, probe)): probe.value for probe in subject.probes}
        for probe in subject.probes:
            if _key(_probed_port(model, probe)) not in map(_source, model.outputs):
                model.add_outputs([_probed_port(model, probe)])
        wanted = [_wanted(output, subject, probed) for output in model.outputs]
        kept = {op.get_attributes()["variable_id"]: op for op in model.get_sinks()}
        first = {
            op.get_attributes()["variable_id"]: op
            for op in model.get_ops()
            if op.get_type_name() == "ReadValue"
        }
        request = core.compile_model(model, "CPU", _OPTIONS[self.precision]).create_infer_request()
        for port in request.model_inputs:
            request.set_tensor(port, _tensor(port, _find(inputs, port)))
        for state in request.query_state():
            port = first[state.name].output(0)
            state.state = _tensor(port, _find(inputs, port, state.name))
        infer(request)
        results: dict[str, Any] = {}
        for state in request.query_state():
            names = _wanted(kept[state.name].input(0).get_source_output(), subject, {}, state.name)
            results.update(dict.fromkeys(names, _array(state.state)))
        for index, names in enumerate(wanted):
            results.update(dict.fromkeys(names, _array(request.get_output_tensor(index))))
        return results


def _tensor(port: Any, array: Any) -> Any:
    """Convert an array to a tensor for a port of the model."""
    import openvino

    data = contiguous(array)
    tensor = openvino.Tensor(port.element_type, openvino.Shape(data.shape))
    _as_bytes(tensor.data)[...] = _as_bytes(data)
    return tensor


def _array(tensor: Any) -> Array:
    """Return a copy of a tensor's values."""
    data = np.array(tensor.data)
    return data.view(bfloat16()) if tensor.element_type.to_string() == "bf16" else data


def _probed_port(model: Any, probe: Probe) -> Any:
    """Return the output port of a probe's value."""
    found = [op for op in model.get_ops() if op.get_friendly_name() == probe.layer]
    if len(found) != 1:
        raise ValueError(f"{len(found)} layers are called {probe.layer!r}; must be exactly one")
    if probe.side == "output":
        return found[0].output(probe.index)
    return found[0].input(probe.index).get_source_output()


def _key(port: Any) -> tuple[str, int]:
    """Return a unique key of an output port."""
    return port.node.get_friendly_name(), port.index


def _source(output: Any) -> tuple[str, int]:
    """Return the key of the port that supplies an output of the model."""
    return _key(output.node.input(0).get_source_output())


def _wanted(
    output: Any, subject: ModelUnderTest, probed: Mapping[tuple[str, int], str], also: str = ""
) -> list[str]:
    """Return the names of an output in the subject: as an output, as a probe, or both."""
    own = output.get_names() | {also or output.node.get_friendly_name()}
    names = [name for name, aliases in subject.outputs.items() if own.intersection((name, *aliases))]
    probe = probed.get(_source(output)) if probed else None
    return names if probe is None else [*names, probe]


def _find(inputs: Mapping[str, Any], port: Any, also: str = "") -> Any:
    names = [*sorted(port.get_names()), also or port.node.get_friendly_name()]
    for name in names:
        if name in inputs:
            return inputs[name]
    raise ValueError(f"input {', '.join(map(repr, names))} has no value")


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
