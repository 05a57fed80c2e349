"""List the operators with their shapes, values and data flow."""

# The imports add the rows to the table.
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
