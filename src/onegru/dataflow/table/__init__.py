"""The table of operators: shapes, values and data flow of each."""

# Their rows come into the table where they are imported.
from onegru.dataflow.table import (  # noqa: F401
    cutting,
    lookups,
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

__all__ = ["ENDLESS", "OPERATORS", "Call", "Elements", "Hazard", "LargeResultError", "Move"]
__all__ += ["Operator", "UnknownOpError", "evaluate", "movers", "operator_of"]
