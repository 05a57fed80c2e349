"""onegru inside OpenVINO."""

from __future__ import annotations

from typing import Any

from onegru.core.errors import needs_extra


def openvino_exchange(model: Any) -> int:
    """Replace the GRU layers of an OpenVINO model by onegru's.

        core = openvino.Core()
        model = core.read_model("model.xml")
        onegru.openvino_exchange(model)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    GRUCell, GRUSequence, AUGRUCell and AUGRUSequence are replaced, also in the bodies of TensorIterator, Loop
    and If. Their weights are packed at once and kept outside the model, which then works only in this process
    and can no longer be saved. Without the hint OpenVINO computes the other layers in bfloat16 where that is
    the processor's default. `model.reshape` to the actual sizes makes it faster, as it does without onegru.

    Args:
        model: an `openvino.Model`; it is changed.

    Returns:
        the number of layers replaced.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        FormatError: it is older than 2025.0.
        SpecError: it is not a model, or a layer is not legal.
    """
    with needs_extra("openvino", "openvino", "openvino_exchange"):
        from onegru.runtimes.openvino_exchange import exchange_all
    return exchange_all(model)


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
