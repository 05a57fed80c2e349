"""Use onegru for the GRU layers of OpenVINO programs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any

from onegru import _native
from onegru.core.errors import needs_extra


def extensions() -> list[type[Any]]:
    """Return OpenVINO extensions for GRUCell, GRUSequence, AUGRUCell and AUGRUSequence.

    OpenVINO then reads IRs with layers of these types and the version "extension", and runs these layers with
    onegru's native kernels. Without an extension, `Core.read_model` does not read AUGRU layers.

        core = openvino.Core()
        for operator in onegru.openvino.extensions():
            core.add_extension(operator)
        compiled = core.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    Without the hint, OpenVINO computes its own layers in bfloat16 if that is the processor's default. This
    includes AUGRU layers that another extension adds as OpenVINO's internal operators. To read a file with
    layers of the version "ie_internal_opset", first replace this version by "extension".

    Each class also creates nodes of a model: `AUGRUCell([X, H_t, W, R, B, A], hidden_size=64)`. Inputs,
    outputs and attributes are as in the specifications, see `onegru.gru_cell`, `onegru.gru_sequence`,
    `onegru.augru_cell` and `onegru.augru_sequence`. The batch size and the number of steps can be dynamic. A
    layer's weights are packed when it first runs, and again when they change.

    Returns:
        the four classes, subclasses of `openvino.Op`.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        MissingExtraError: it is older than 2025.0.
    """
    with needs_extra("openvino", "openvino", "onegru.openvino.extensions"):
        from onegru.runtimes.openvino_op import CLASSES
    return list(CLASSES)


def errors() -> list[str]:
    """Return the errors of onegru's layers that OpenVINO dropped. The outputs of these layers are NaN.

    If `infer` runs on one thread, OpenVINO loses all its errors. This happens with one CPU, or if
    `INFERENCE_NUM_THREADS` is 1. Models from `onegru.load` lose no errors.

        compiled(inputs)
        for message in onegru.openvino.errors():
            print(message)

    Returns:
        the messages of all models in this process since the last call: each once, and at most 100.
    """
    return _native.take_lost_errors()


@dataclass(frozen=True, slots=True)
class OpenvinoOperator:
    """The implementation that runs GRU layers in OpenVINO on this machine."""

    version: str | None  # OpenVINO's version; None if it is not installed
    is_native: bool  # whether it is the C++ operator
    problem: str = ""  # why it is not the C++ operator; empty if it is, or without OpenVINO


def openvino_operator() -> OpenvinoOperator:
    """Return the implementation that runs GRU layers in OpenVINO on this machine."""
    try:
        version = metadata.version("openvino")
        from onegru.runtimes.openvino_replace import load_operator
    except (metadata.PackageNotFoundError, ImportError):
        return OpenvinoOperator(None, False)
    factory, problem = load_operator()
    return OpenvinoOperator(version, factory is not None, problem)
