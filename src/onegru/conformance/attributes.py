"""Choose the attributes of a case's node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onegru.conformance.factors import AT_THRESHOLD, POSITIONS
from onegru.core.activations import ACTIVATIONS
from onegru.operators.schema import OpSchema

#: Values of alpha and beta, in order, for all functions that have them.
ALPHA, BETA = (0.75, 0.375, 1.25, 0.5), (0.625, 0.25, 0.5, 0.875)

_CLIPS = {"0": 0.0, "reached": 0.25, "unreached": 1e6, AT_THRESHOLD: ALPHA[0]}
_FLAGS = {"0": 0, "1": 1, "2": 2, "false": False, "true": True}

Level = Callable[[str], str]


def attributes_of(operator: OpSchema, level: Level) -> dict[str, Any]:
    """Return the attributes with the names and types of the specification."""
    found: dict[str, Any] = {}
    if level("hidden_size") != "none":
        found["hidden_size"] = int(level("hidden size"))
    for name in ("direction", "layout", "linear_before_reset", "output_sequence"):
        if (given := level(name)) not in ("", "none"):
            found[name] = given if name == "direction" else _FLAGS[given]
    if "attention" in operator.attributes and level("attention") != "none":
        found["attention"] = level("attention")
    if (clip := level("clip")) != "none":
        found["clip"] = _CLIPS[clip]
    return found | _activations(operator, level)


def has_two_directions(level: Level) -> bool:
    """Whether there is a second direction."""
    return level("direction") == "bidirectional"


def functions_of(operator: OpSchema, level: Level) -> list[str]:
    """Return the activation functions of all directions, by ONNX's names."""
    shared = operator.activation_count == "shared"
    positions = POSITIONS if has_two_directions(level) and not shared else POSITIONS[:2]
    return [level(position) for position in positions]


def takers(names: list[str], parameter: str) -> list[str]:
    """Return the functions with a parameter alpha or beta."""
    return [name for name in names if parameter in ACTIVATIONS[name].parameters]


def lacks_parameters(operator: OpSchema, level: Level) -> bool:
    """Whether a function without a default gets no value."""
    given = level("parameters")
    if given not in ("defaults", "first alone"):
        return False
    return any(
        ACTIVATIONS[name].default(parameter) is None
        for parameter in ("alpha", "beta")
        for name in takers(functions_of(operator, level), parameter)[given == "first alone" :]
    )


def _activations(operator: OpSchema, level: Level) -> dict[str, Any]:
    names = functions_of(operator, level)
    written = level("activations")
    if written in ("as needed", "none") and names == ["Sigmoid", "Tanh"] * (len(names) // 2):
        found: dict[str, Any] = {}
    else:
        lower = operator.biases == "summed" or written == "lower case"
        found = {"activations": [name.lower() if lower else name for name in names]}
    given = level("parameters")
    if given == "empty":
        return found | {"activations_alpha": [], "activations_beta": []}
    if operator.biases == "summed" or given == "defaults":
        return found
    for parameter, values in (("alpha", ALPHA), ("beta", BETA)):
        count = len(takers(names, parameter))
        count = {"first alone": min(count, 1), "left over": count + 1}.get(given, count)
        if count:
            found[f"activation_{parameter}"] = list((values * 2)[:count])
    return found
