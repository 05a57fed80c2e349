"""Create a GRU node, with masks and lengths."""

from __future__ import annotations

import numpy as np

from onegru.core.activations import ACTIVATIONS
from onegru.core.dtypes import Array
from onegru.dataflow.operator import Op
from onegru.dataflow.view import View
from onegru.fusion.cells.cell import Cell, MissError
from onegru.fusion.nodes.emit import Emitter
from onegru.operators.onnx import gru_attributes

#: The operator for a GRU with attention, which ONNX lacks.
AUGRU = "onegru::AUGRU"
_INTEGER_MAX = 12  # from this opset on, Max and Min accept integers
_SATURATED = {"float16": 3e4}  # saturates a sigmoid, regardless of the other terms


def mask_steps(emitter: Emitter, X: str, mask: str, cell: Cell) -> tuple[str, Array]:
    """Return X and W for masked steps: a new column of X is 1 there, and saturates the update gate at 1."""
    f = cell.activations[0]
    has_ends = ACTIVATIONS[f.name].bounds is not None
    saturates = has_ends and (f.name != "HardSigmoid" or f.parameters[0] > 0)
    if cell.clip is not None or not saturates:
        raise MissError("masks steps, but its update gate cannot become 1")
    T, B, width = emitter.shape(X)
    kept = emitter.op("Where", [mask, X, emitter.number(0.0)], "X_kept", (T, B, width))
    off = emitter.op("Not", [mask], "off", (T, B, 1))
    number = emitter.op("Cast", [off], "off", (T, B, 1), dtype=emitter.dtype)
    X = emitter.op("Concat", [kept, number], "X_masked", (T, B, int(width) + 1), axis=2)
    column = np.zeros((len(cell.W), 1))
    column[: cell.hidden_size] = _SATURATED.get(emitter.dtype, 1e30)
    return X, np.concatenate([cell.W, column], axis=1)


def add_size(emitter: Emitter, X: str, axis: int, hint: str) -> str:
    """Return the size of an axis of X, [1]."""
    bounds = [emitter.ints(number) for number in (axis, axis + 1, 0)]
    return emitter.op("Slice", [emitter.op("Shape", [X], "X_shape", (3,)), *bounds], hint, (1,))


def add_lengths(emitter: Emitter, view: View, X: str) -> str:
    """Return the node's sequence_lens from a value with the number of steps of each row."""
    rows = emitter.squeeze(emitter.rows(view, "sequence_lens"), [1], "sequence_lens")
    (B,) = emitter.shape(rows)
    steps = emitter.shape(X)[0]
    most = emitter.ints(steps) if isinstance(steps, int) else add_size(emitter, X, 0, "steps")
    zero = emitter.ints(0)
    dtype = "int64" if emitter.opset >= _INTEGER_MAX else "float64"
    if dtype == "float64":
        zero, most = (emitter.op("Cast", [name], "sequence_lens", (1,), dtype=dtype) for name in (zero, most))
    wide = emitter.op("Cast", [rows], "sequence_lens", (B,), dtype=dtype)
    least = emitter.op("Max", [wide, zero], "sequence_lens", (B,))
    bounded = emitter.op("Min", [least, most], "sequence_lens", (B,))
    return emitter.op("Cast", [bounded], "sequence_lens", (B,), dtype="int32")


def add_mask(emitter: Emitter, view: View, X: str) -> str:
    """Return a mask [T, B, 1] of the steps within each row's length."""
    lengths = emitter.rows(view, "sequence_lens")
    rows, _ = emitter.shape(lengths)
    steps = emitter.shape(X)[0]
    if isinstance(steps, int):
        counts = emitter.constant("counts", np.arange(steps).reshape(-1, 1, 1))
    else:
        shape = emitter.op("Shape", [X], "X_shape", (3,))
        count = emitter.gather(shape, 0, 0, "steps")
        numbers = emitter.op("Range", [emitter.scalar(0), count, emitter.scalar(1)], "counts", (steps,))
        counts = emitter.unsqueeze(numbers, [1, 2], "counts")
    wide = emitter.op("Cast", [lengths], "sequence_lens", (rows, 1), dtype="int64")
    return emitter.op("Less", [counts, wide], "mask", (steps, rows, 1))


def add_gru(
    emitter: Emitter,
    cell: Cell,
    X: str,
    W: Array,
    lengths: str,
    initial_h: str,
    attention: str,
    direction: str,
    outputs: tuple[bool, bool],
) -> tuple[str, str]:
    """Add the GRU; return Y [T, B, H] and Y_h [B, H], or "" for an output that is not requested."""
    T, B, _ = emitter.shape(X)
    H = cell.hidden_size
    arrays = {"W": W, "R": cell.R, "B": cell.B}
    weights = [emitter.constant(name, array[None]) for name, array in arrays.items()]
    if not cell.B.any():
        emitter.constants.pop(weights.pop())
        weights.append("")
    attributes = gru_attributes(cell, direction, [cell.activations])
    inputs = [X, *weights, lengths, initial_h]
    if attention:
        inputs.append(attention)
        attributes |= {"attention": cell.attention_kind} if cell.attention_kind != "openvino" else {}
    while not inputs[-1]:
        inputs.pop()
    Y, Y_h = (emitter.fresh(name) if used else "" for name, used in zip(("Y", "Y_h"), outputs, strict=True))
    kind = AUGRU if attention else "GRU"
    given = (Y, Y_h) if Y_h else (Y,)
    name = cell.name if cell.name not in ("", *emitter.names) else emitter.fresh(kind.rpartition(":")[2])
    emitter.names.add(name)
    emitter.ops.append(Op(kind, tuple(inputs), given, attributes, name=name))
    if Y:
        emitter.flow.set_shape(Y, (T, 1, B, H))
        Y = emitter.squeeze(Y, [1], "Y_steps")
    if Y_h:
        emitter.flow.set_shape(Y_h, (1, B, H))
        Y_h = emitter.squeeze(Y_h, [0], "Y_last")
    return Y, Y_h
