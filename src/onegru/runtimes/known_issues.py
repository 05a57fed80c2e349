"""Known issues of other runtimes, as rules over the facts of one node.

Every rule was observed: the cases of the conformance suite (`onegru.conformance`) were run on the versions in
MEASURED. ONNX Runtime ran on its CPU provider. OpenVINO ran on its CPU plugin, with inference precision
float32, on the ONNX file or on an IR file. "onnx" is ONNX's own reference evaluator. Nodes without a rule
had the outputs that the suite expects, within its tolerance.

Issues that depend on the arrays or on other nodes are not listed:

- With T = 0 or an empty batch, ONNX Runtime aborts the process, unless T is 0 and sequence_lens is given.
  OpenVINO rejects both or crashes if the file has a fixed shape. With a dynamic shape, an empty batch is
  right, but for T = 0 Y_h is uninitialized memory. The evaluator rejects T = 0.
- ONNX Runtime rejects AUGRU's function.
- ONNX Runtime usually loses a NaN, even with the default activations, and reads infinity as the largest
  float32. OpenVINO loses a NaN if there is a clip, or Relu.
- Between a quantized X and int8 weights, OpenVINO stores the state as int8 as well, or rejects the node.
- With the batch first and a dynamic shape, OpenVINO rejects some sizes and miscomputes the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onegru.core.activations import ACTIVATIONS

Effect = Literal["refuses", "miscomputes"]

MEASURED: Mapping[str, str] = {"onnxruntime": "1.32.0", "openvino": "2026.4.1", "onnx": "1.23.2"}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The known facts about one GRU node of a file."""

    operator: str
    """"GRU", "AUGRU", "GRUCell", "GRUSequence", "AUGRUCell" or "AUGRUSequence"."""
    version: int
    """1, 3, 7, 14 or 22 for ONNX's GRU, 1 for AUGRU; 3 for GRUCell, 5 for GRUSequence, 0 for the others."""
    attributes: Mapping[str, Any]
    """The attributes in the file: ONNX's with their values, OpenVINO's as the strings of `<data>`."""
    dtype: str | None
    """"float32" and so on, or None if unknown."""
    present: frozenset[str]
    """The specification's names of the inputs and outputs present: "B", "sequence_lens", "Y_h"..."""
    fixed_shape: bool | None = None
    """Whether the file fixes every dimension of X, or None if unknown."""
    constant_weights: bool | None = None
    """Whether W, R and B are all constants of the file or computed from constants, or None if unknown."""
    full_length: bool = False
    """Whether the file shows that the lengths are X's number of steps in every run."""
    has_function: bool = True
    """Whether the file has the function by which other runtimes run an AUGRU node."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A known issue of a runtime with a node."""

    runtime: str
    version: str
    effect: Effect
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A known issue and the nodes that it affects."""

    runtime: str
    effect: Effect
    operators: Collection[str]
    reason: str
    condition: Callable[[NodeFacts], bool]

    def applies(self, facts: NodeFacts) -> bool:
        """Whether this issue affects this node."""
        return facts.operator in self.operators and self.condition(facts)


def verdicts(facts: NodeFacts) -> list[Verdict]:
    """Return the known issues with this node. For a runtime that refuses it, return only its refusals."""
    found = [rule for rule in (*RULES, *_WITHOUT_FUNCTION) if rule.applies(facts)]
    refusing = {rule.runtime for rule in found if rule.effect == "refuses"}
    return [
        Verdict(rule.runtime, MEASURED[rule.runtime], rule.effect, rule.reason)
        for rule in found
        if rule.effect == "refuses" or rule.runtime not in refusing
    ]


# ---- predicates ----

_TAKES_ALPHA = frozenset(name.lower() for name, kind in ACTIVATIONS.items() if "alpha" in kind.parameters)
_OPENVINO_HAS = frozenset({"relu", "sigmoid", "tanh"})
_DEFAULT = ["sigmoid", "tanh"]


def _is_bidirectional(facts: NodeFacts) -> bool:
    return facts.attributes.get("direction") == "bidirectional"


def _activations(facts: NodeFacts) -> list[str]:
    """Return the activations of all directions in lower case; the defaults if the file gives none."""
    given = facts.attributes.get("activations") or ()
    names = given.split(",") if isinstance(given, str) else given
    lowered = [name.strip().lower() for name in names]
    return lowered or _DEFAULT * (2 if _is_bidirectional(facts) else 1)


def _has_no_alpha(function: str) -> Callable[[NodeFacts], bool]:
    """Whether the list of alphas is used up before this function gets one."""

    def applies(facts: NodeFacts) -> bool:
        takers = [name for name in _activations(facts) if name in _TAKES_ALPHA]
        given = len(facts.attributes.get("activation_alpha") or ())
        return function in takers[given:]

    return applies


def _clips_to_threshold(facts: NodeFacts) -> bool:
    """Whether many inputs of a ThresholdedRelu equal its alpha, because the clip cuts them off there."""
    if not _is_clipped(facts):
        return False
    alphas = iter(facts.attributes.get("activation_alpha") or ())
    takers = [(name, next(alphas, 1.0)) for name in _activations(facts) if name in _TAKES_ALPHA]
    clip = float(facts.attributes["clip"])
    return any(name == "thresholdedrelu" and abs(alpha) == clip for name, alpha in takers)


def _is_backward_or_batch_first(facts: NodeFacts) -> bool:
    return facts.attributes.get("direction", "forward") != "forward" or _is_batch_first(facts)


def _is_batch_first(facts: NodeFacts) -> bool:
    return facts.attributes.get("layout") == 1


def _is_fixed_batch_first_with(name: str) -> Callable[[NodeFacts], bool]:
    """Whether X is batch first with a fixed shape, and this input, which has a batch axis too, is present."""
    return lambda facts: _is_batch_first(facts) and facts.fixed_shape is True and name in facts.present


def _spells_foward(facts: NodeFacts) -> bool:
    return facts.attributes.get("direction") == "foward"


def _has_other_activations_than_openvino(facts: NodeFacts) -> bool:
    return not _OPENVINO_HAS.issuperset(_activations(facts)[:2])


def _has_two_different_pairs(facts: NodeFacts) -> bool:
    names = _activations(facts)
    return _is_bidirectional(facts) and names[:2] != names[2:]


def _has_other_activations_than_default(facts: NodeFacts) -> bool:
    names = _activations(facts)
    return names != _DEFAULT * (len(names) // 2)


def _is_clipped(facts: NodeFacts) -> bool:
    clip = float(facts.attributes.get("clip", 0.0))
    return 0.0 < clip < math.inf


def _may_overflow_in_softplus(facts: NodeFacts) -> bool:
    bounded = _is_clipped(facts) and float(facts.attributes["clip"]) <= 88.0
    return "softplus" in _activations(facts) and not bounded


def _has_lengths(facts: NodeFacts) -> bool:
    given = facts.operator == "GRUSequence" or "sequence_lens" in facts.present
    return given and not facts.full_length


def _has_lengths_for_one_primitive(facts: NodeFacts) -> bool:
    """Whether lengths can reach OpenVINO's fused kernel, which ignores them; the rest runs as a loop."""
    # OpenVINO does not fuse GRUs with a clip, other activations, or default activations that a file repeats.
    default = _activations(facts) == _DEFAULT or not facts.attributes.get("activations")
    may_be_fused = default and not _is_clipped(facts) and facts.constant_weights is not False
    return _has_lengths(facts) and may_be_fused and facts.fixed_shape is not True


# ---- the table ----

_ONNX, _AUGRU = ("GRU",), ("AUGRU",)

# By runtime, effect and operators.
_ISSUES: Mapping[tuple[str, Effect, Collection[str]], Sequence[tuple[str, Callable[[NodeFacts], bool]]]] = {
    ("onnxruntime", "refuses", _ONNX): (
        ("has no kernel for GRU before opset 7", lambda facts: facts.version < 7),
        ("has no kernel for bfloat16", lambda facts: facts.dtype == "bfloat16"),
        ("loads float64 but fails when it runs", lambda facts: facts.dtype == "float64"),
        ("does not support layout = 1", _is_batch_first),
        ("requires hidden_size", lambda facts: "hidden_size" not in facts.attributes),
    ),
    ("onnxruntime", "refuses", _AUGRU): (
        ("has no kernels for bfloat16 in AUGRU's function", lambda facts: facts.dtype == "bfloat16"),
    ),
    ("onnxruntime", "miscomputes", _ONNX): (
        ("uses 0 as the default alpha of Affine", _has_no_alpha("affine")),
        (
            "uses 0 instead of 1 as the default alpha of ThresholdedRelu",
            _has_no_alpha("thresholdedrelu"),
        ),
        (
            "returns 0 instead of x if x equals ThresholdedRelu's alpha, as for a clip at alpha",
            _clips_to_threshold,
        ),
        ("overflows to infinity in Softplus if its input exceeds 88", _may_overflow_in_softplus),
    ),
    ("openvino", "refuses", _ONNX): (
        ("requires hidden_size", lambda facts: "hidden_size" not in facts.attributes),
        ('does not support the direction "foward"', _spells_foward),
        ("supports only the activations Relu, Sigmoid and Tanh", _has_other_activations_than_openvino),
        (
            "ignores layout, so the shapes of X and initial_h conflict unless batch and time are both 1",
            _is_fixed_batch_first_with("initial_h"),
        ),
        (
            "ignores layout, so the shapes of X and sequence_lens conflict unless batch and time are equal",
            _is_fixed_batch_first_with("sequence_lens"),
        ),
    ),
    ("openvino", "refuses", ("GRUCell", "GRUSequence")): (
        ("fails on a node without B", lambda facts: "B" not in facts.present),
    ),
    ("openvino", "refuses", ("GRUSequence",)): (
        ("fails on a GRUSequence without activations", lambda facts: not facts.attributes.get("activations")),
    ),
    ("openvino", "refuses", _AUGRU): (
        (
            "has no operator AUGRU, and does not run model functions, such as the one that defines AUGRU",
            lambda facts: True,
        ),
    ),
    ("openvino", "refuses", ("AUGRUCell", "AUGRUSequence")): (
        (
            "does not read AUGRU layers without an extension, such as onegru.openvino.extensions()",
            lambda facts: True,
        ),
    ),
    ("openvino", "miscomputes", _ONNX): (
        (
            "ignores layout and reads X as [seq, batch, input], which is correct only if both are 1",
            _is_batch_first,
        ),
        ("uses the forward direction's activations for both directions", _has_two_different_pairs),
    ),
    ("openvino", "miscomputes", ("GRU", "GRUSequence")): (
        (
            "ignores lengths shorter than X if the weights are constants and X's shape is dynamic",
            _has_lengths_for_one_primitive,
        ),
    ),
    ("openvino", "miscomputes", ("GRU", "GRUCell", "GRUSequence")): (
        ("computes float64 in float32", lambda facts: facts.dtype == "float64"),
    ),
    ("onnx", "refuses", _ONNX): (
        ("fails on the attribute output_sequence", lambda facts: "output_sequence" in facts.attributes),
        ('does not support the direction "foward"', _spells_foward),
    ),
    ("onnx", "refuses", _AUGRU): (
        (
            "supports only forward Scans over the first axis",
            _is_backward_or_batch_first,
        ),
    ),
    ("onnx", "miscomputes", _ONNX): (
        ("ignores activations: always uses Sigmoid and Tanh", _has_other_activations_than_default),
        ("ignores clip, which matters if a value exceeds it", lambda facts: "clip" in facts.attributes),
        ("ignores sequence_lens if a length is shorter than X", _has_lengths),
    ),
}

RULES: tuple[Rule, ...] = tuple(
    Rule(*key, reason, condition) for key, issues in _ISSUES.items() for reason, condition in issues
)

# Exporters write AUGRU nodes without their function, which the conformance suite's files always have.
_WITHOUT_FUNCTION = tuple(
    Rule(
        runtime,
        "refuses",
        _AUGRU,
        "has no operator AUGRU, and the file lacks the function that defines it",
        lambda facts: not facts.has_function,
    )
    for runtime in ("onnxruntime", "onnx")
)
