"""onegru inside OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from onegru import _native
from onegru.core.errors import needs_extra
from onegru.engines.select import model_options


def openvino_exchange(
    model: Any,
    *,
    weight_storage: str | Mapping[str, str] | None = None,
    activation_storage: str | Mapping[str, str] | None = None,
) -> int:
    """Replace the GRU layers of an OpenVINO model by onegru's.

        core = openvino.Core()
        model = core.read_model("model.xml")
        onegru.openvino_exchange(model)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    GRUCell, GRUSequence, AUGRUCell and AUGRUSequence are replaced, also in the bodies of TensorIterator, Loop
    and If. Their weights are packed at once and kept outside the model, which then works only in this process
    and can no longer be saved; weights that are not computed from constants alone are packed when the layer
    first runs, and again when they change. Without the hint OpenVINO computes the other layers in bfloat16
    where that is the processor's default. `model.reshape` to the actual sizes makes it faster, as it does
    without onegru.

    A layer with illegal inputs, such as lengths beyond X, raises in `infer`. On one thread OpenVINO
    loses every error there, but not in `start_async` and `wait`: the layer's outputs are then NaN, a line on
    stderr says why, and `onegru.openvino_errors` returns it. A `CACHE_DIR` saves no time: OpenVINO compiles a
    model with onegru's layers each time, and keeps one file for each model there.

    Args:
        model: an `openvino.Model`; it is changed.
        weight_storage: what layers of float32 keep their weights in, as in `onegru.GRU`: one type for all, or
            a mapping from their friendly names to types; None, or a layer left out, for float32.
        activation_storage: likewise.

    Returns:
        the number of layers replaced.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        FormatError: it is older than 2025.0.
        SpecError: it is not a model, or a layer or an argument is not legal.

    Warns:
        RuntimeWarning: once, if this build of onegru has no operator in C++ for this OpenVINO, so that layers
            run by way of Python (`onegru targets` says so).
        SpecWarning: when the model runs, once for each layer whose weights change from run to run.
    """
    options = model_options("auto", weight_storage, activation_storage)
    with needs_extra("openvino", "openvino", "openvino_exchange"):
        from onegru.runtimes.openvino_exchange import exchange_all
    return exchange_all(model, options)


def openvino_extensions() -> list[type[Any]]:
    """GRUCell, GRUSequence, AUGRUCell and AUGRUSequence as extensions of an OpenVINO Core.

    With them it reads and runs IRs whose layers of these types have the version "extension", with onegru's
    native kernels; OpenVINO's own `Core.read_model` reads no AUGRU layer.

        core = openvino.Core()
        for operator in onegru.openvino_extensions():
            core.add_extension(operator)
        compiled = core.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    Without the hint OpenVINO computes its own layers in bfloat16 where that is the processor's default: the
    layers around these, and AUGRU layers that another extension adds as OpenVINO's own internal operators. A
    file whose layers are of version "ie_internal_opset" can be read after replacing that by "extension".

    Each class also makes nodes of a network: `AUGRUCell([X, H_t, W, R, B, A], hidden_size=64)`. Inputs,
    outputs and attributes are those of the specifications, as in `onegru.gru_cell`, `onegru.gru_sequence`,
    `onegru.augru_cell` and `onegru.augru_sequence`; batch and time may be open. A layer's weights are
    prepared when it first runs, and again only when they change.

    Returns:
        the four classes, subclasses of `openvino.Op`.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        FormatError: it is older than 2025.0.
    """
    with needs_extra("openvino", "openvino", "openvino_extensions"):
        from onegru.runtimes.openvino_op import CLASSES
    return list(CLASSES)


def openvino_errors() -> list[str]:
    """What onegru's layers in OpenVINO's models refused, where OpenVINO lost it: what they gave is NaN.

    OpenVINO loses every error of `infer` on one thread: with one CPU, or `INFERENCE_NUM_THREADS` of 1.
    `onegru.load` does not.

        compiled(inputs)
        for message in onegru.openvino_errors():
            print(message)

    Returns:
        the messages since the last call, of all models of this process, each once, and at most 100.
    """
    return _native.take_lost_errors()


@dataclass(frozen=True, slots=True)
class OpenvinoOperator:
    """What runs GRU layers in OpenVINO here.

    Attributes:
        version: OpenVINO's; None if it is not installed.
        is_native: whether it is the operator in C++.
        problem: why it is not; empty if it is, or without OpenVINO.
    """

    version: str | None
    is_native: bool
    problem: str = ""


def openvino_operator() -> OpenvinoOperator:
    """What runs GRU layers in OpenVINO here."""
    try:
        version = metadata.version("openvino")
        from onegru.runtimes.openvino_exchange import load_operator
    except (metadata.PackageNotFoundError, ImportError):
        return OpenvinoOperator(None, False)
    factory, problem = load_operator()
    return OpenvinoOperator(version, factory is not None, problem)
