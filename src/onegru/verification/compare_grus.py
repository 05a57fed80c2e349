"""Compare two GRUs of any operators, as calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from onegru.core.compare import compare, merged, tolerance_of
from onegru.core.dtypes import Array, contiguous
from onegru.core.shapes import arrange
from onegru.core.spec import Spec
from onegru.layers.gru import GRU
from onegru.models.inputs.random import random_call
from onegru.operators.onnx import NEWEST
from onegru.operators.schema import CANONICAL_AXES
from onegru.verification.diagnose import diagnose
from onegru.verification.gru_call import GruCall, in_type
from onegru.verification.results import LayerResult

# Sizes of random inputs. All differ, and there are enough steps for every gate to matter.
_STEPS, _ROWS = 7, 3


def of_layer(layer: GRU) -> GruCall:
    """Return the call of a layer, without inputs, with ONNX's names."""
    return GruCall(NEWEST, layer.spec, layer.weights, NEWEST.ports(0), {}, ("Y", "Y_h"))


def on_random_inputs(call: GruCall) -> GruCall:
    """Return the call on random inputs, which are equal for all calls of the same sizes, in any layout."""
    canonical = random_call(call.spec, _STEPS, _ROWS, np.random.default_rng(0))
    values: dict[str, Array] = {}
    for port in call.ports:
        if port.role in ("X", "initial_h") or (port.role == "A" and call.spec.attention):
            array, axes = canonical[port.role], CANONICAL_AXES[port.role]
            if axes[0] not in port.axes:  # a cell has no axis for steps or directions
                array = array[:1]
            values[port.name] = contiguous(arrange(array, axes, port.axes))
        elif port.role == "sequence_lens" and port.required:
            values[port.name] = np.full(_ROWS, _STEPS, np.int64)
    return replace(call, values=values, outputs=_all_outputs(call))


def _all_outputs(call: GruCall) -> tuple[str, ...]:
    return tuple(port.name for port in call.ports if port.role in ("Y", "Y_h"))


def trace_pair(node: str, name: str, call: GruCall, reference: GruCall) -> LayerResult | None:
    """Compare two GRUs on their inputs in their models; return None if they do not read the same X."""
    one, other = (next(port for port in item.ports if port.role == "X") for item in (call, reference))
    X, other_X = call.values[one.name], reference.values[other.name]
    tolerance = 10.0 * max(tolerance_of(X.dtype.name), tolerance_of(other_X.dtype.name))
    X, other_X = X.astype(np.float64), other_X.astype(np.float64)
    if compare(other_X, X, tolerance).agrees:
        return compare_calls(node, name, call, reference, as_stored=True)
    # The same steps of the same rows, with the axes in another order.
    turned = arrange(X, one.axes, other.axes) if set(one.axes) == set(other.axes) else X
    if compare(other_X, turned, tolerance).agrees:
        return compare_calls(node, name, call, reference)
    return None


def compare_calls(
    node: str, name: str, call: GruCall, reference: GruCall, *, as_stored: bool = False
) -> LayerResult:
    """Compare two calls, and return the result."""
    words = _differences(call, reference)
    if not is_alike(call, reference):
        return LayerResult(node, name, False, differences=words)
    coarser = max(call.spec.dtype, reference.spec.dtype, key=tolerance_of)
    call, reference = (
        replace(item if item.spec.dtype == coarser else in_type(item, coarser), outputs=_all_outputs(item))
        for item in (call, reference)
    )
    expected = reference.run()
    got = _by_names_of(reference, call, call.run(), as_stored)
    found = reference.agreements(expected, got)
    total = merged(list(found.values()))
    max_abs = None if total.reason else total.max_abs
    if total.agrees:
        return LayerResult(node, name, True, max_abs, words)
    words += tuple(f"{key}: {item.reason}" for key, item in found.items() if item.reason)
    return LayerResult(node, name, False, max_abs, words, diagnose(reference, got))


def is_alike(call: GruCall, reference: GruCall) -> bool:
    """Whether two calls can take the same inputs and have outputs of the same size."""
    names = ("input_size", "hidden_size", "num_directions", "attention")
    return all(getattr(call.spec, name) == getattr(reference.spec, name) for name in names)


def _by_names_of(
    reference: GruCall, call: GruCall, results: Mapping[str, Array], as_stored: bool
) -> dict[str, Array]:
    """Return a call's outputs with the names and axes of another call."""
    kept = as_stored and call.operator.name == reference.operator.name
    own = {port.role: port for port in call.ports if port.name in results}
    return {
        port.name: results[own[port.role].name]
        if kept
        else arrange(results[own[port.role].name], own[port.role].axes, port.axes)
        for port in reference.ports
        if port.role in ("Y", "Y_h") and port.role in own
    }


def _differences(call: GruCall, reference: GruCall) -> tuple[str, ...]:
    """Describe the differences between two calls."""
    words = [
        f"{name}: {_words(call.spec, name)}; {_words(reference.spec, name)} in the reference"
        for name in (field.name for field in fields(Spec))
        if getattr(call.spec, name) != getattr(reference.spec, name)
    ]
    if call.ports[0].axes != reference.ports[0].axes and call.operator.name == reference.operator.name:
        words.append(f"X: axes {call.ports[0].axes}; {reference.ports[0].axes} in the reference")
    for role in ("initial_h", "sequence_lens"):
        given = [any(p.role == role and p.name in c.values for p in c.ports) for c in (call, reference)]
        if given[0] != given[1]:
            both = ["given" if item else "not given" for item in given]
            words.append(f"{role}: {both[0]}; {both[1]} in the reference")
    for field in ("W", "R", "B"):
        one, other = (np.asarray(getattr(c.weights, field), np.float64) for c in (call, reference))
        if one.shape == other.shape and one.size and not np.array_equal(one, other, equal_nan=True):
            with np.errstate(all="ignore"):
                words.append(f"{field}: largest difference {np.nanmax(np.abs(one - other)):.2g}")
    return tuple(words)


def _words(spec: Spec, field: str) -> str:
    value = getattr(spec, field)
    if field == "activations":
        return " | ".join(f"{f}, {g}" for f, g in value)
    return "none" if value is None else str(value)
