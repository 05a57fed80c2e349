"""Define the factors of the suite, their levels, and the requirement that each level checks.

Each factor names its section and sentence of the published specifications. If they are silent, the rule is
onegru's own, from docs/operators/index.md, and the source says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onegru.conformance.storage import STORAGES
from onegru.core.activations import ACTIVATIONS
from onegru.operators.onnx import AUGRU
from onegru.operators.schema import OpSchema

#: The factors that are sizes, by the letter of their axis.
SIZES = {"T": "seq_length", "B": "batch_size", "I": "input_size", "H": "hidden size"}

#: The factors that are activation functions, in the order of the attribute.
POSITIONS = ("f", "g", "f backward", "g backward")

#: The factors that do not need to be combined with others. They are varied one at a time.
APART = ("values", "seq_length", "batch_size")

#: The level with clip equal to ThresholdedRelu's alpha. It is not combined with other unusual levels.
AT_THRESHOLD = "at threshold"


@dataclass(frozen=True, slots=True)
class Factor:
    """Property that varies between cases."""

    name: str  # its name, if possible that of an attribute, input or axis in the specification
    section: str  # its section in the specification
    levels: Mapping[str, str]  # its values, the usual one first, each with the requirement that it checks

    @property
    def usual(self) -> str:
        """The level in cases that test other factors."""
        return next(iter(self.levels))


_USUAL = ""

_DTYPE = Factor(
    "type",
    "Type Constraints, T",
    {
        "float32": _USUAL,
        "float16": "Tensors can be float16, with sums in any type.",
        "bfloat16": "Tensors can be bfloat16, with sums in any type.",
        "float64": "Tensors may be float64, and results are as exact as that.",
    },
)
_WEIGHTS = Factor(
    "weights",
    "Inputs W, R and B, sentence 1 of each",
    {
        "constant": _USUAL,
        "given at run time": "W, R and B are inputs like any other: they can change in each run.",
    },
)
_SHAPES = Factor(
    "shapes",
    "Input X, its shape",
    {"fixed": _USUAL, "open": "The number of steps and the batch size can be dynamic."},
)
_BIAS = Factor("B", "Input B, last sentence", {"given": _USUAL, "none": "Without B all biases are 0."})
_CLIP = {
    "none": _USUAL,
    "reached": "Clip limits the inputs of all three activations, after the biases, but never the state.",
    "unreached": "A clip that is never reached changes nothing.",
    AT_THRESHOLD: "ThresholdedRelu returns x, not 0, if x equals alpha, as for a clip at alpha.",
}
_LENGTHS = {
    "full": "Lengths equal to the number of steps change nothing.",
    "mixed": "After the end of a row Y is 0, and Y_h is the state of the row's last step.",
    "zero": "A row of length 0 has Y = 0 and Y_h = 0, and does not change the other rows.",
    "all zero": "If all lengths are 0, so are Y and Y_h.",
}
_DIRECTIONS = {
    "forward": "The direction forward, written out, is the default.",
    "reverse": "In reverse, each row starts at its last step; Y is in the order of X, and Y_h is of step 0.",
    "bidirectional": "Two directions with separate weights; the second runs in reverse.",
}
_SIZE_LEVELS: Mapping[str, Mapping[str, str]] = {
    "seq_length": {
        "5": _USUAL,
        "1": "A single step.",
        "2": "The second step is the first one with a computed state.",
        "12": "State and errors accumulate over a dozen steps.",
        "0": "Without steps Y is empty and Y_h is 0.",
        "1000": "Errors do not build up over 1000 steps.",
    },
    "batch_size": {
        "3": _USUAL,
        "1": "A single row.",
        "8": "Rows do not influence each other in a batch of 8.",
        "0": "An empty batch returns empty outputs.",
    },
    "input_size": {"4": _USUAL, "1": "X has a single feature.", "19": "An odd number of features."},
    "hidden size": {
        "5": _USUAL,
        "1": "A single unit.",
        "16": "The number of units equals the vector length of many processors.",
        "33": "One unit more than full vectors.",
    },
}
_VALUES = Factor(
    "values",
    "Equations, every line",
    {
        "usual": _USUAL,
        "saturating": "Activations saturate without an overflow in intermediate results.",
        "huge": "Inputs near the largest number of the type give the limits, not NaN.",
        "tiny": "Inputs near the smallest number of the type cause no errors.",
        "zero": "With zero inputs only the biases matter.",
        "infinite": "An infinity in one row saturates the activations of that row only.",
        "NaN": "A NaN in one row changes the outputs of that row only.",
    },
)
_SCORES = Factor(
    "A",
    "Input A",
    {
        "between 0 and 1": _USUAL,
        "0": "A score of 0 leaves the update gate unchanged; in DIEN, it keeps the state.",
        "1": "A score of 1 closes the update gate: the state is the candidate; in DIEN, it has no effect.",
        "beyond 0 and 1": "Scores are not clamped, and do not change the reset gate.",
    },
)
_STORED = Factor(
    "stored",
    "Operator DequantizeLinear",
    {"plain": _USUAL, **{name: storage.checks for name, storage in STORAGES.items()}},
)
_ROUNDED = Factor(
    "rounded",
    "Operators QuantizeLinear and DequantizeLinear",
    {
        "none": _USUAL,
        "X": "X passes through QuantizeLinear and DequantizeLinear; the GRU reads the result in float32.",
        "X, initial_h, Y": "X, initial_h and Y pass through these operators, but not the state.",
    },
)

#: Storage of tensors around the node, which only quantized cases vary.
AROUND: Mapping[str, Factor] = {factor.name: factor for factor in (_STORED, _ROUNDED)}


_FACTORS: dict[str, Mapping[str, Factor]] = {}


def factors_of(operator: OpSchema) -> Mapping[str, Factor]:
    """Return the factors of an operator, by name, with the levels that its version allows."""
    if str(operator) not in _FACTORS:
        _FACTORS[str(operator)] = _factors(operator)
    return _FACTORS[str(operator)]


def companions(name: str, level: str) -> dict[str, str]:
    """Return the other levels that a level needs to have an effect."""
    if level == AT_THRESHOLD:
        return {"g": "ThresholdedRelu"}
    return {"direction": "bidirectional"} if name.endswith("backward") else {}


def all_factors_of(operator: OpSchema) -> Mapping[str, Factor]:
    """Return the factors of a case of an operator: those of its node, and those around it."""
    return {**factors_of(operator), **AROUND}


def _factors(operator: OpSchema) -> Mapping[str, Factor]:
    found = _onnx(operator) if operator.biases == "separate" else _openvino(operator)
    if operator.attention:
        found.append(_SCORES)
    return {factor.name: factor for factor in found}


_HIDDEN_SIZE = Factor(
    "hidden_size",
    "Attribute hidden_size, sentence 1",
    {"given": _USUAL, "none": "hidden_size is optional: the shape of R contains it."},
)


# Attributes that only some versions of ONNX's GRU have.
_LATER_ATTRIBUTES = (
    Factor(
        "linear_before_reset",
        "Attribute linear_before_reset, sentence 1; Equations, both lines of ht",
        {
            "none": _USUAL,
            "0": "0 is the default: the reset gate acts before the recurrent product.",
            "1": "The reset gate acts after the recurrent product and its bias.",
            "2": "Any value except 0 means after.",
        },
    ),
    Factor(
        "layout",
        "Attribute layout, sentences 2 and 3",
        {
            "none": _USUAL,
            "0": "0 is the default: time first.",
            "1": "Batch first in X, initial_h, Y and Y_h; weights and lengths are unchanged.",
        },
    ),
    Factor(
        "output_sequence",
        "Attribute output_sequence, sentence 1",
        {
            "none": _USUAL,
            "0": "Y is computed if the node names it, regardless of output_sequence.",
            "1": "Y is computed.",
        },
    ),
    Factor(
        "attention",
        "onegru's own; equation 16 of the paper on DIEN",
        {
            "none": _USUAL,
            "openvino": "openvino is the default: (1 - a)·z is the update gate.",
            "dien": "1 - a·(1 - z) is the update gate.",
        },
    ),
)


def _onnx(operator: OpSchema) -> list[Factor]:
    direction = {"none": _USUAL, **_DIRECTIONS}
    if operator.version == 1 and operator.name == "GRU":
        direction["foward"] = "The first version spells its own default this way; it means forward."
    found = [
        _only(_DTYPE, operator.element_types),
        Factor("direction", "Attribute direction, sentence 2", direction),
        Factor("sequence_lens", "Input sequence_lens, sentences 1 and 2", {"none": _USUAL, **_LENGTHS}),
        Factor(
            "initial_h",
            "Input initial_h, sentences 1 and 2",
            {
                "none": _USUAL,
                "given": "Each direction starts from its state in initial_h.",
            },
        ),
        _BIAS,
        Factor("clip", "Attribute clip, sentences 2 and 3", _CLIP),
        _HIDDEN_SIZE,
        Factor(
            "outputs",
            "Outputs Y and Y_h, which are optional",
            {"Y, Y_h": _USUAL, "Y": "Y_h is optional.", "Y_h": "Y is optional."}
            if not operator.outputs[1].required
            else {"Y, Y_h": _USUAL, "Y_h": "Y is optional."},
        ),
    ]
    found += [factor for factor in _LATER_ATTRIBUTES if factor.name in operator.attributes]
    section = "Activation functions, its line; Equations, lines zt, rt and ht"
    found += [_activation(name, section, tuple(ACTIVATIONS)) for name in POSITIONS]
    return [
        *found,
        Factor(
            "activations",
            "Attribute activations, sentences 1 and 3",
            {
                "as needed": _USUAL,
                "written": "The default activations, written out, change nothing.",
                "lower case": "Names of activations are matched without regard to case.",
            },
        ),
        Factor(
            "parameters",
            "Attributes activation_alpha and activation_beta, sentences 2 and 3",
            {
                "given": _USUAL,
                "defaults": "Missing values are the defaults of the ONNX operator of that name.",
                "first alone": "Functions with parameters get the values, in order; then defaults.",
                "left over": "Surplus values have no effect.",
            },
        ),
        _WEIGHTS,
        _SHAPES,
        *_sizes("TBIH"),
        _VALUES,
    ]


def _openvino(operator: OpSchema) -> list[Factor]:
    takes_time = operator.input("sequence_lens") is not None
    found = [_DTYPE]
    if "direction" in operator.attributes:
        choices = operator.attributes["direction"].choices or ()
        levels = {name: words for name, words in _DIRECTIONS.items() if name in choices}
        found.append(Factor("direction", "Attribute direction", {"none": _USUAL, **levels}))
    if takes_time:
        found.append(Factor("sequence_lengths", "Input sequence_lengths", {**_LENGTHS, "full": _USUAL}))
        found.append(
            Factor(
                "type of lengths",
                "Input sequence_lengths",
                {"int32": _USUAL, "int64": "Lengths may be int64 as well."},
            )
        )
    bias = operator.input("B")
    if bias is not None and not bias.required:
        found.append(_BIAS)
    clip = operator.attributes["clip"].choices
    levels = {"none": _USUAL, "0": "A clip of 0 means no clipping."}
    levels |= {} if clip else {name: _CLIP[name] for name in ("reached", "unreached")}
    found.append(Factor("clip", "Attribute clip", levels))
    if operator.attributes["linear_before_reset"].choices is None:
        levels = {
            "none": _USUAL,
            "false": "false is the default: the reset gate acts before the recurrent product.",
            "true": "The reset gate acts after the recurrent product; B is [4·hidden_size], with two biases "
            "for the candidate.",
        }
        found.append(Factor("linear_before_reset", "Attribute linear_before_reset", levels))
    found += [_activation(name, "Attribute activations", operator.activations) for name in POSITIONS[:2]]
    found.append(
        Factor(
            "activations",
            "Attribute activations",
            {
                "written": _USUAL,  # as in files
                "none": "Without activations they are sigmoid and tanh.",
                "with spaces": "Lists may have spaces after their commas.",
            },
        )
    )
    found.append(
        Factor(
            "parameters",
            "Attributes activations_alpha, activations_beta",
            {"none": _USUAL, "empty": "Empty lists of alpha and beta mean the defaults."},
        )
    )
    return [*found, _WEIGHTS, _SHAPES, *_sizes("TBIH" if takes_time else "BIH"), _VALUES]


def _only(factor: Factor, levels: tuple[str, ...]) -> Factor:
    kept = {name: words for name, words in factor.levels.items() if name in levels}
    return Factor(factor.name, factor.section, kept)


def _activation(position: str, section: str, names: tuple[str, ...]) -> Factor:
    usual = "Sigmoid" if position.startswith("f") else "Tanh"
    gates = "the update and reset gates" if position.startswith("f") else "the hidden gate"
    where = " of the second direction" if position.endswith("backward") else ""
    levels = {usual: _USUAL} | {
        name: f"{name} may be the activation of {gates}{where}." for name in names if name != usual
    }
    return Factor(position, section, levels)


def _sizes(axes: str) -> list[Factor]:
    return [Factor(SIZES[axis], "Shapes of inputs", _SIZE_LEVELS[SIZES[axis]]) for axis in axes]


# Levels that the specifications do not define, by factor.
_SILENT: Mapping[str, frozenset[str]] = {
    "seq_length": frozenset({"0"}),
    "batch_size": frozenset({"0"}),
    "values": frozenset({"huge", "tiny", "infinite", "NaN"}),
    "sequence_lens": frozenset({"zero", "all zero"}),
    "sequence_lengths": frozenset({"zero", "all zero"}),
    "direction": frozenset({"foward"}),
    "activations": frozenset({"lower case", "with spaces"}),
    "parameters": frozenset({"left over", "empty"}),
    "clip": frozenset({"0"}),
}
_OWN_RULE = "unspecified cases: docs/operators/index.md"


def words_of(operator: OpSchema, choices: Mapping[str, Any]) -> tuple[str, str]:
    """Return the requirement that a case checks, and its source in the specification."""
    factors = all_factors_of(operator)
    named = [factors[name] for name in choices]
    checks = " ".join(factor.levels[choices[factor.name]] for factor in named)
    sections = list(dict.fromkeys(factor.section for factor in named)) or ["Equations, every line"]
    if operator is AUGRU or any(level in _SILENT.get(name, ()) for name, level in choices.items()):
        sections.append(_OWN_RULE)
    where = f"{operator}: {'; '.join(sections)}"
    return checks or "The operator with all defaults.", where
