"""Read cells from OpenVINO's GRUCell and AUGRUCell layers."""

from __future__ import annotations

import warnings

import numpy as np

from onegru.core.dtypes import Array
from onegru.core.errors import SpecError, SpecWarning
from onegru.core.spec import attention_of
from onegru.dataflow.operator import Op
from onegru.dataflow.view import COLUMNS, ROWS, View
from onegru.fusion.cells.cell import Cell
from onegru.fusion.cells.expression import Expressions
from onegru.fusion.nodes.sources import source_views
from onegru.operators.lowering import Lowered, lower
from onegru.operators.openvino import CELLS
from onegru.operators.schema import WEIGHTS


def layer_cell(exprs: Expressions, name: str) -> Cell | None:
    """Return the cell of the layer that computes a value, except for axes of size 1; else None."""
    whole = exprs.whole(name)
    if whole is None:
        return None
    for view in source_views(exprs, whole):
        op = exprs.flow.find_producer(view.name)
        if op is not None and op.kind in CELLS and view.name == op.outputs[0]:
            return _cell_of(exprs, op) if _is_row(exprs, view, whole.width) else None
    return None


def _cell_of(exprs: Expressions, op: Op) -> Cell | None:
    operator = CELLS[op.kind]
    inputs: dict[str, str] = dict(zip((port.role for port in operator.inputs), op.inputs, strict=False))
    lowered = _lowered(exprs, op, [inputs.get(role, "") for role in WEIGHTS])
    x, h = (exprs.whole(inputs.get(role, "")) for role in ("X", "initial_h"))
    if lowered is None or x is None or h is None or x.width != lowered.spec.input_size:
        return None
    spec, weights = lowered.spec, lowered.weights
    state = source_views(exprs, h)[-1]
    if not _is_row(exprs, state, spec.hidden_size) or exprs.flow.dtype(op.outputs[0]) != spec.dtype:
        return None
    attention = None
    if operator.attention:
        if (shape := exprs.flow.shape(inputs.get("A", ""))) is None or len(shape) != 2 or shape[1] != 1:
            return None
        attention = View(inputs["A"], (ROWS, 0), np.zeros((0, spec.hidden_size), np.int64))
    W, R, B = (array[0].astype(np.float64) for array in (weights.W, weights.R, weights.B))
    return Cell(
        output=op.outputs[0],
        state=state,
        inputs=(x,),
        W=W,
        R=R,
        B=B,
        activations=spec.activations[0],
        linear_before_reset=spec.linear_before_reset,
        clip=spec.clip,
        attention=attention,
        inverts_attention=False,
        masks=(),
        name=op.name,
        attention_kind=attention_of(spec.attention) or "openvino",
    )


def _is_row(exprs: Expressions, view: View, width: int) -> bool:
    """Whether a view is a whole value: all of its last axis, in all rows."""
    shape = exprs.flow.shape(view.name)
    if shape is None or shape[-1:] != (width,) or len(view.coordinates) != 1:
        return False
    rows = zip(view.roles[:-1], shape, strict=False)
    are_all = all(role == ROWS or (role == 0 and size == 1) for role, size in rows)
    return are_all and view.roles[-1] == COLUMNS and np.array_equal(view.coordinates[0], np.arange(width))


def _lowered(exprs: Expressions, op: Op, names: list[str]) -> Lowered | None:
    """Return the layer's attributes and weights; None if they are not constants, or invalid."""
    arrays: list[Array | None] = [exprs.flow.constant(name) if name else None for name in names]
    if any(name and array is None for name, array in zip(names, arrays, strict=True)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)  # given when the model is loaded
            return lower(CELLS[op.kind], op.attributes, *arrays)
    except SpecError:
        return None
