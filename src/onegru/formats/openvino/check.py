"""Checking a rewritten ONNX model in OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import FormatError, is_own_mistake, needs_extra
from onegru.runtimes.openvino_graph import infer


def run_openvino(model: bytes, where: str, feeds: Mapping[str, Array], outputs: list[str]) -> list[Array]:
    """Run a serialized ONNX model in OpenVINO's CPU plugin, at inference precision float32.

    Args:
        model: the model.
        where: what to call it in messages.
        feeds: an array for each input.
        outputs: the names of the outputs.

    Returns:
        an array for each output.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        FormatError: it refuses the model, or fails.
    """
    with needs_extra("openvino", "openvino", where):
        import openvino
    try:
        core = openvino.Core()
        compiled: Any = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        request = compiled.create_infer_request()
    except Exception as error:  # its exceptions share no base class
        raise _refusal(where, error) from None
    # An input that no node reads has lost its name, and takes whatever it is.
    names = {name for port in compiled.inputs for name in port.get_names()}
    taken = {name: array for name, array in feeds.items() if name in names}
    try:
        infer(request, taken)
        return [np.array(request.get_tensor(name).data) for name in outputs]
    except Exception as error:  # its exceptions share no base class
        raise _refusal(where, error) from None


def _refusal(where: str, error: Exception) -> Exception:
    if isinstance(error, MemoryError) or is_own_mistake(error):
        return error  # which is none of OpenVINO's
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return FormatError(f"{where}: OpenVINO refuses it ({lines[-1]})")
