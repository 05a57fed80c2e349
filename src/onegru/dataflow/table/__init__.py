"""The table of operators: what each of them means."""

from onegru.dataflow.table import (
    cutting,
    making,
    moving,
    pointwise,
    products,
    recurrences,
    reductions,
    windows,
)
from onegru.dataflow.table.base import (
    ENDLESS,
    OPERATORS,
    Call,
    Elements,
    Hazard,
    LargeResultError,
    Move,
    Operator,
    UnknownOpError,
    evaluate,
    movers,
    operator_of,
)

FAMILIES = (cutting, making, moving, pointwise, products, recurrences, reductions, windows)

__all__ = ["ENDLESS", "FAMILIES", "OPERATORS", "Call", "Elements", "Hazard", "LargeResultError", "Move"]
__all__ += ["Operator", "UnknownOpError", "evaluate", "movers", "operator_of"]
