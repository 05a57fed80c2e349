"""The cases of the kit."""

from __future__ import annotations

from functools import cache

from onegru.conformance.case import Case
from onegru.conformance.factors import factors_of
from onegru.operators.onnx import AUGRU, GRU_VERSIONS
from onegru.operators.openvino import OPERATORS


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, operator by operator; arrays are drawn when they are first asked for."""
    found: dict[str, Case] = {}
    for operator in (*GRU_VERSIONS.values(), AUGRU, *OPERATORS.values()):
        for factor in factors_of(operator).values():
            for level in factor.levels:
                choices = {} if level == factor.usual else {factor.name: level}
                if factor.name.endswith("backward"):
                    choices = {"direction": "bidirectional", **choices}
                case = Case(operator, choices)
                found.setdefault(case.name, case)
    return tuple(found.values())
