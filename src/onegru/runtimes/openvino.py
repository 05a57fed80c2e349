"""onegru in programs that use OpenVINO."""

from __future__ import annotations

from typing import Any

from onegru.core.errors import needs_extra


def openvino_exchange(model: Any) -> int:
    """Exchange the GRU layers of an OpenVINO model for onegru's.

        core = openvino.Core()
        model = core.read_model("model.xml")
        onegru.openvino_exchange(model)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    GRUCell, GRUSequence, AUGRUCell and AUGRUSequence are exchanged, in the bodies of TensorIterator, Loop and
    If, too. Their weights are packed now, and lie outside of the model: it lives in this process, and cannot
    be saved any more. Without the hint OpenVINO computes the other layers in bfloat16 where that is the
    processor's default. `model.reshape` to the sizes that arrive makes it faster, as it does without onegru.

    Args:
        model: an `openvino.Model`; it is changed.

    Returns:
        how many layers it had.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        SpecError: it is no model, or a layer is not legal.
    """
    with needs_extra("openvino", "openvino", "openvino_exchange"):
        from onegru.runtimes.openvino_exchange import exchange_all
    return exchange_all(model)


def openvino_extensions() -> list[type[Any]]:
    """GRUCell, GRUSequence, AUGRUCell and AUGRUSequence as classes that an OpenVINO Core can be given.

    With them it reads and runs IRs whose layers of these types have the version "extension"; OpenVINO's
    own `Core.read_model` reads no AUGRU layer. onegru's native kernels compute them:

        core = openvino.Core()
        for operator in onegru.openvino_extensions():
            core.add_extension(operator)
        compiled = core.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    Without the hint OpenVINO computes its own layers in bfloat16 where that is the processor's default: what
    lies around these, and AUGRU layers that another extension adds as OpenVINO's own internal operators. A
    file whose layers are of version "ie_internal_opset" is read once its text says "extension" in its place.

    Each class also makes nodes of a network: `AUGRUCell([X, H_t, W, R, B, A], hidden_size=64)`. Inputs,
    outputs and attributes are those of the operators' texts, as in `onegru.gru_cell`, `onegru.gru_sequence`,
    `onegru.augru_cell` and `onegru.augru_sequence`; batch and time may be open. A layer's weights are
    prepared when it first runs, and anew only where they change.

    Returns:
        the four classes, subclasses of `openvino.Op`.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    with needs_extra("openvino", "openvino", "openvino_extensions"):
        from onegru.runtimes.openvino_op import CLASSES
    return list(CLASSES)
