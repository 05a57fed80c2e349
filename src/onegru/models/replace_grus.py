"""Replace the GRU layers of an OpenVINO model in memory."""

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

    onegru replaces GRUCell, GRUSequence, AUGRUCell and AUGRUSequence, also in the bodies of TensorIterator,
    Loop and If. A TensorIterator or Loop over one axis that only runs a cell first becomes a sequence layer,
    named after the cell. A forward and a reverse loop over the same values may become one layer.

    The weights are packed now and stored outside the model. The model then works only in this process and
    cannot be saved. Weights that depend on the model's inputs are packed when the layer first runs, and again
    when they change.

    Set the hint as above, because OpenVINO otherwise computes the other layers in bfloat16 if that is the
    processor's default. Call `model.reshape` with the actual sizes for more speed, as without onegru.

    A layer with invalid inputs, such as lengths beyond X, raises an error in `infer`. OpenVINO on one thread
    loses all errors in `infer`, but not in `start_async` and `wait`. The layer's outputs are then NaN, a line
    on stderr gives the reason, and `onegru.openvino.errors` returns it. A `CACHE_DIR` saves no time: OpenVINO
    compiles a model with onegru's layers each time, and stores a file for each model.

    Args:
        model: an `openvino.Model`, which is changed in place.
        weight_storage: the storage type of the weights in float32 layers, as in `onegru.GRU`: one type for
            all layers, or a mapping from friendly names to types. Default: None (float32). Layers that a
            mapping does not name stay float32.
        activation_storage: the type to which activations are rounded, as in `onegru.GRU`: one type, or a
            mapping from friendly names to types. Default: None (int16 with int8 weights).
        flush_subnormals: whether to replace subnormal states by 0, as in `onegru.GRU`.

    Returns:
        the number of replaced layers.

    Raises:
        MissingExtraError: OpenVINO is not installed, or older than 2025.0.
        SpecError: `model` is not an `openvino.Model`, or a layer or an argument is invalid.

    Warns:
        RuntimeWarning: once, if this build of onegru has no C++ operator for this OpenVINO, so that layers
            run through Python (`onegru targets` reports it).
        SpecWarning: when the model runs, once for each layer with weights that change between runs.
    """
    options = model_options("auto", weight_storage, activation_storage, flush_subnormals)
    with needs_extra("openvino", "openvino", "onegru.openvino.replace_grus"):
        from onegru.fusion.openvino.in_memory import add_sequences
        from onegru.runtimes.openvino_replace import check_model, replace_all
    check_model(model)
    add_sequences(model)
    return replace_all(model, options)
