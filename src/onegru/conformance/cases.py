"""The cases of the suite: every level of every factor occurs at least once.

- One factor at a time: every level of every factor, with defaults for all others.
- Every activation in every position, in both reset modes, with its parameters given and by default.
- All combinations of direction, layout, reset mode, lengths, initial state and biases.
- Any two levels of any two factors together, in each version, as covering arrays. Values and sizes that crash
  runtimes are excluded.
- Edges: sizes of 0 and 1 with all factors that change axes. Extremes: infinities, NaN, huge and tiny values
  with all factors that bound values. Long sequences in each type.

Quantized cases are separate, because they test how weights and inputs reach the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path

from onegru.conformance.attributes import lacks_parameters
from onegru.conformance.case import Case
from onegru.conformance.factors import AT_THRESHOLD, POSITIONS, companions, factors_of
from onegru.core.activations import ACTIVATIONS
from onegru.core.errors import SpecError
from onegru.core.wording import count
from onegru.operators.onnx import AUGRU, GRU_VERSIONS
from onegru.operators.openvino import OPERATORS
from onegru.operators.schema import OpSchema

#: The operators of the suite, in the order of its cases.
KIT_OPERATORS: tuple[OpSchema, ...] = (*GRU_VERSIONS.values(), AUGRU, *OPERATORS.values())

# Functions with bounded results, so that infinities have limits. ScaledTanh's bounds depend on alpha.
_BOUNDED = frozenset({"ScaledTanh"} | {kind.name for kind in ACTIVATIONS.values() if kind.bounds})

# Factors whose levels are combined completely, by operator. ONNX's GRU has the version that runtimes have
# supported for years. Features of newer versions use the newest one.
_TURNED = {"direction": "none reverse bidirectional", "layout": "none 1"}
_HEART = {**_TURNED, "linear_before_reset": "none 1", "initial_h": "none given", "B": "given none"}
_EDGES = {**_TURNED, "initial_h": "none given", "shapes": "fixed open"}
_TYPES = "float32 float16 bfloat16 float64"
_VALUES = "saturating huge tiny zero infinite NaN"
_IN_FULL: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "GRU-14": (
        {**_HEART, "sequence_lens": "none/full/mixed/zero/all zero"},
        {"weights": "constant/given at run time", "shapes": "fixed open", "direction": _TURNED["direction"]}
        | {"sequence_lens": "none/full/mixed/zero/all zero", "clip": "none reached"},
        {**_EDGES, "seq_length": "0 1", "sequence_lens": "none full"},
        {**_EDGES, "batch_size": "0 1", "sequence_lens": "none full"},
        {**_TURNED, "hidden size": "5 1", "input_size": "4 1", "linear_before_reset": "none 1"},
        {"values": _VALUES, "direction": _TURNED["direction"]}
        | {"clip": "none reached", "linear_before_reset": "none 1", "sequence_lens": "none mixed"},
    ),
    "GRU-22": (
        {"type": _TYPES, "seq_length": "1000", "linear_before_reset": "none 1"}
        | {"direction": "none reverse"},
        {"type": _TYPES, "values": _VALUES},
    ),
    "AUGRU-1": (
        {**_TURNED, "A": "between 0 and 1/0/1/beyond 0 and 1", "linear_before_reset": "none 1"},
        {**_TURNED, "sequence_lens": "none mixed zero", "initial_h": "none given"},
    ),
    "GRUCell-3": (
        {"f": "Sigmoid Tanh Relu", "g": "Tanh Sigmoid Relu", "linear_before_reset": "none true"}
        | {"clip": "none 0 reached", "B": "given none"},
    ),
    "GRUSequence-5": (
        {"direction": _TURNED["direction"], "sequence_lengths": "full/mixed/zero/all zero"}
        | {"type of lengths": "int32 int64", "weights": "constant/given at run time", "shapes": "fixed open"},
        {"f": "Sigmoid Tanh Relu", "g": "Tanh Sigmoid Relu", "linear_before_reset": "none true"}
        | {"clip": "none 0 reached", "direction": _TURNED["direction"]},
    ),
    "AUGRUCell": ({"f": "Sigmoid Tanh", "g": "Tanh Sigmoid", "A": "between 0 and 1/0/1/beyond 0 and 1"},),
    "AUGRUSequence": (
        {"sequence_lengths": "full/mixed/zero/all zero", "A": "between 0 and 1/0/1/beyond 0 and 1"}
        | {"shapes": "fixed open"},
    ),
}

# The version of each quantized case's node, and its unusual levels. The other cases include each of them
# without quantization, so the cause of a failure is clear.
_QUANTIZED: tuple[tuple[int, Mapping[str, str]], ...] = (
    (7, {"stored": "int8 by row"}),
    (14, {"stored": "int8 by row"}),
    (14, {"stored": "int8 by tensor", "clip": "reached"}),
    (14, {"stored": "int8 with -128"}),
    (14, {"stored": "uint8 by row", "linear_before_reset": "1"}),
    (14, {"stored": "uint8 by tensor", "sequence_lens": "mixed", "initial_h": "given"}),
    (14, {"stored": "int8 of both directions", "direction": "bidirectional", "linear_before_reset": "1"}),
    (14, {"stored": "int8 in blocks"}),
    (14, {"stored": "uint4 in blocks", "hidden size": "16"}),
    (14, {"stored": "int8 with B in int32", "linear_before_reset": "1"}),
    (14, {"stored": "W 128 times R"}),
    (14, {"stored": "int8 with float16", "type": "float16"}),
    (22, {"stored": "int8 with output_dtype", "direction": "reverse"}),
    (14, {"rounded": "X"}),
    (14, {"stored": "int8 by row", "rounded": "X"}),
    (
        14,
        {"stored": "int8 by row", "rounded": "X, initial_h, Y", "linear_before_reset": "1"}
        | {"initial_h": "given"},
    ),
)

#: Covering arrays, by operator: the levels of each factor, and rows of their indices as hexadecimal digits.
#: `tests.conformance.covering` writes them.
COVERING = Path(__file__).parent / "covering.json"

Choices = Mapping[str, str]


@cache
def all_cases() -> tuple[Case, ...]:
    """Return every case of a plain node, operator by operator. Inputs are generated on demand."""
    found: dict[str, Case] = {}
    for operator in KIT_OPERATORS:
        factors = factors_of(operator)
        usual = {name: factor.usual for name, factor in factors.items()}
        for choices in _choices(operator):
            if may_be(operator, usual | dict(choices)):
                levels = {name: choices.get(name, level) for name, level in usual.items()}
                case = Case(operator, {name: levels[name] for name in usual if levels[name] != usual[name]})
                found.setdefault(case.name, case)
    return tuple(found.values())


@cache
def quantized_cases() -> tuple[Case, ...]:
    """Return the ONNX models that store W, R and B as integers, or quantize X, initial_h and Y."""
    return tuple(Case(GRU_VERSIONS[version], choices) for version, choices in _QUANTIZED)


@cache
def kit_cases() -> tuple[Case, ...]:
    """Return all cases, with the quantized ones last."""
    return all_cases() + quantized_cases()


def select_cases(cases: Iterable[Case], patterns: Sequence[str], argument: str = "cases") -> list[Case]:
    """Return the cases whose names match a pattern, in their order; all cases if there are no patterns."""
    found = list(cases)
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in found):
            raise SpecError.of(argument, f"{pattern!r}; must match one of the {count(len(found), 'case')}")
    return [case for case in found if not patterns or any(fnmatchcase(case.name, item) for item in patterns)]


def may_be(operator: OpSchema, choices: Choices) -> bool:
    """Whether levels can be combined."""
    lengths = choices.get("sequence_lens", choices.get("sequence_lengths", ""))
    T, B = choices.get("seq_length"), choices.get("batch_size")
    if (T in ("0", "1") and lengths in ("mixed", "zero", "all zero")) or (B == "0" and lengths == "zero"):
        return False
    if choices.get("output_sequence") == "1" and choices.get("outputs") == "Y_h":
        return False
    if choices.get("direction", "bidirectional") != "bidirectional" and any(
        choices[position] != factors_of(operator)[position].usual
        for position in POSITIONS
        if position.endswith("backward") and position in choices
    ):
        return False
    if choices.get("clip") == AT_THRESHOLD and not _is_only_at_threshold(operator, choices):
        return False
    # DIEN's scores beyond 1 let the state grow, in 16 bits too far for a useful tolerance.
    grows = choices.get("attention") == "dien" and choices.get("A") == "beyond 0 and 1"
    if grows and choices.get("type") in ("float16", "bfloat16"):
        return False
    return _has_parameters(operator, choices) and _has_limits(choices)


def _is_only_at_threshold(operator: OpSchema, choices: Choices) -> bool:
    """Whether all other levels are usual, except g, which must be the function with a threshold."""
    usual = {name: factor.usual for name, factor in factors_of(operator).items()}
    usual |= {"clip": AT_THRESHOLD} | companions("clip", AT_THRESHOLD)
    return choices.items() <= usual.items()


def _has_parameters(operator: OpSchema, choices: Choices) -> bool:
    """Whether each function without defaults gets its parameters."""
    known = {"direction": "bidirectional", **dict.fromkeys(POSITIONS, "Relu"), **choices}
    return operator.biases == "summed" or not lacks_parameters(operator, lambda name: known.get(name, ""))


def _has_limits(choices: Choices) -> bool:
    """Whether infinities and huge values have limits in any order of operations."""
    if choices.get("values") not in ("huge", "infinite") or choices.get("clip") == "reached":
        return True
    return _BOUNDED.issuperset(choices[position] for position in POSITIONS if position in choices)


def _choices(operator: OpSchema) -> Iterator[Choices]:
    """Yield the levels of each case, by factor; other levels are usual."""
    factors = factors_of(operator)
    for factor in factors.values():
        for level in factor.levels:
            yield {factor.name: level} | companions(factor.name, level)
    yield from _activations(operator)
    for block in _IN_FULL.get(str(operator), ()):
        levels = {
            name: text.split("/") if "/" in text else _listed(text, factors[name].levels)
            for name, text in block.items()
        }
        yield from (dict(zip(levels, row, strict=True)) for row in product(*levels.values()))
    yield from _covering(operator)


def _covering(operator: OpSchema) -> Iterator[Choices]:
    """Yield rows that contain each allowed pair of levels of two factors."""
    if (stored := json.loads(COVERING.read_text(encoding="utf-8")).get(str(operator))) is None:
        raise LookupError(f"{operator}: has no stored cases; run `python -m tests.conformance.covering`")
    for row in stored["rows"]:
        pairs = zip(stored["levels"].items(), row, strict=True)
        yield {name: levels[int(digit, 16)] for (name, levels), digit in pairs}


def _activations(operator: OpSchema) -> Iterator[Choices]:
    """Yield every activation in every position, with and without parameters, and with NaN."""
    factors = factors_of(operator)
    if str(operator) != "GRU-14":
        return
    for position in POSITIONS:
        for level in factors[position].levels:
            given = {position: level} | companions(position, level)
            for after, parameters in product(("none", "1"), ("given", "defaults")):
                yield given | {"linear_before_reset": after, "parameters": parameters}
            for values in ("NaN", "infinite", "saturating"):
                yield given | {"values": values}
    for level in factors["f"].levels:
        yield {"f": level, "g": level, "values": "NaN"}  # no other function returns the NaN


def _listed(text: str, levels: Mapping[str, str]) -> list[str]:
    """Return the levels in a text, separated by spaces if no level contains one."""
    return [text] if text in levels else text.split(" ")
