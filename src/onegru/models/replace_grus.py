"""`onegru.openvino.replace_grus`: onegru instead of an OpenVINO model's GRU layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onegru.core.errors import needs_extra
from onegru.engines.select import model_options


def replace_grus(
    model: Any,
    *,
    weight_storage: str | Mapping[str, str] | None = None,
    activation_storage: str | Mapping[str, str] | None = None,
    flush_subnormals: bool = False,
) -> int:
    """Replace the GRU layers of an OpenVINO model with onegru's.

        core = openvino.Core()
        model = core.read_model("model.xml")
        onegru.openvino.replace_grus(model)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    GRUCell, GRUSequence, AUGRUCell and AUGRUSequence are replaced, also in the bodies of TensorIterator, Loop
    and If. A TensorIterator or Loop that does nothing but what a cell does, at each step of one axis, becomes
    a sequence first, named after the cell; one that goes forward and one that goes back over the same values
    may become one layer. Weights are packed at once and kept outside the model, which then works only in this
    process and can no longer be saved; weights that are not computed from constants alone are packed when the
    layer first runs, and again when they change. Without the hint OpenVINO computes the other layers in
    bfloat16 where that is the processor's default. `model.reshape` to the actual sizes makes it faster, as it
    does without onegru.

    A layer with invalid inputs, such as lengths beyond X, raises in `infer`. On one thread OpenVINO
    loses every error there, but not in `start_async` and `wait`: the layer's outputs are then NaN, a line on
    stderr says why, and `onegru.openvino.errors` returns it. A `CACHE_DIR` saves no time: OpenVINO compiles a
    model with onegru's layers each time, and keeps one file for each model there.

    Args:
        model: an `openvino.Model`; it is changed.
        weight_storage: storage type of the weights of float32 layers, as in `onegru.GRU`: one type for all,
            or a mapping from their friendly names to types; None, or a layer left out, for float32.
        activation_storage: type of activations with int8 weights, as in `onegru.GRU`.
        flush_subnormals: whether states that are almost 0 count as 0, as in `onegru.GRU`.

    Returns:
        the number of layers replaced.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        MissingExtraError: it is older than 2025.0.
        SpecError: it is not a model, or a layer or an argument is invalid.

    Warns:
        RuntimeWarning: once, if this build of onegru has no operator in C++ for this OpenVINO, so that layers
            run by way of Python (`onegru targets` says so).
        SpecWarning: when the model runs, once for each layer whose weights change from run to run.
    """
    options = model_options("auto", weight_storage, activation_storage, flush_subnormals)
    with needs_extra("openvino", "openvino", "onegru.openvino.replace_grus"):
        from onegru.fusion.openvino.in_memory import add_sequences
        from onegru.runtimes.openvino_replace import check_model, replace_all
    check_model(model)
    add_sequences(model)
    return replace_all(model, options)
