"""Describe recurrences in ONNX's and OpenVINO's forms."""

from __future__ import annotations

from collections.abc import Iterator

from onegru.dataflow.operator import Op, Shape
from onegru.dataflow.table.base import SUMS, Call, Move, Operator, operator_of, register
from onegru.operators.onnx import AUGRU_DOMAINS, GRU_VERSIONS


class RecurrentOperator(Operator):
    """ONNX's recurrence: inputs X, W, R, B, lengths and initial states; outputs Y and the last states."""

    dtype: str | int | None = 0
    lengths: int = 4  # the input with the lengths
    recurrent_weights: int = 2  # the input with R
    states: tuple[tuple[int, int], ...] = ((5, 1),)
    attention: int | None = None  # the input with attention scores for each step; None if it has none

    def is_batch_first(self, op: Op) -> bool:
        """Whether the batch axis precedes time in X, and directions in states."""
        return bool(op.attributes.get("layout", 0) == 1)

    def time_axis(self, op: Op) -> int:
        """Return the time axis of X."""
        return 1 if self.is_batch_first(op) else 0

    def shape(self, call: Call, output: int) -> Shape | None:
        """Return the shape of Y or a last state."""
        X, R = call.shape(), call.shape(self.recurrent_weights)
        if len(X) != 3 or len(R) != 3:
            return None
        if self.is_batch_first(call.op):
            return (X[0], X[1], R[0], R[2]) if output == 0 else (X[0], R[0], R[2])
        return (X[0], R[0], X[1], R[2]) if output == 0 else (R[0], X[1], R[2])

    def least_rank(self, call: Call, output: int) -> int:
        return 3 if output else 4

    def y_time(self, op: Op) -> int:
        """Return the time axis of Y."""
        return self.time_axis(op)

    def moves(self, call: Call) -> Iterator[Move]:
        time, y_time = self.time_axis(call.op), self.y_time(call.op)
        batch, y_batch, last = (0, 0, 0) if self.is_batch_first(call.op) else (1, 2, 1)
        direction, backwards = str(call.get("direction", "forward")).lower(), "runs from the last step"
        if direction == "bidirectional":
            backwards = f"is bidirectional: its second direction {backwards}"
        is_forward = direction in ("forward", "foward")
        yield Move(0, time, y_time) if is_forward else Move(0, time, y_time, 0, "reverses", backwards)
        yield Move(0, batch, y_batch)
        yield from (Move(0, batch, last, output) for output in range(1, len(call.op.outputs)))
        yield Move(0, 2, None, 0, "mixes", SUMS)
        if self.attention is not None:
            yield Move(self.attention, time, y_time)
            yield Move(self.attention, batch, y_batch)
        batch_axes = {self.lengths: 0} | {first: last for first, _ in self.states}  # of inputs for each row
        for index, axis in batch_axes.items():
            for output in range(len(call.op.outputs)) if call.is_given(index) else ():
                yield Move(index, axis, last if output else y_batch, output)


class IrSequence(RecurrentOperator):
    """OpenVINO's sequence: inputs X, initial states, lengths, W, R and B; outputs Y and the last states."""

    states: tuple[tuple[int, int], ...] = ((1, 1),)

    def __init__(self, kind: str, attributes: str, **facts: object) -> None:
        super().__init__(kind, attributes, **facts)
        self.lengths = 1 + len(self.states)
        self.recurrent_weights = self.lengths + 2

    def is_batch_first(self, op: Op) -> bool:
        return True

    def y_time(self, op: Op) -> int:
        return 2

    def shape(self, call: Call, output: int) -> Shape | None:
        X, R = call.shape(), call.shape(self.recurrent_weights)
        if len(X) != 3 or len(R) != 3:
            return None
        return (X[0], R[0], X[1], R[2]) if output == 0 else (X[0], R[0], R[2])


class IrCell(Operator):
    """OpenVINO's cell: one step for each row."""

    def moves(self, call: Call) -> Iterator[Move]:
        yield from (Move(0, 0, 0, output) for output in range(len(call.op.outputs)))
        yield Move(0, 1, None, 0, "mixes", SUMS)


def find_recurrence(op: Op) -> RecurrentOperator | None:
    """Return the row of a recurrence; None for other operators."""
    found = operator_of(op.kind)
    return found if isinstance(found, RecurrentOperator) else None


def recurrence_of(op: Op) -> RecurrentOperator:
    """Return the row of a recurrence."""
    found = operator_of(op.kind)
    assert isinstance(found, RecurrentOperator)
    return found


# Names of attributes.
_NAMES = " ".join(
    {name: "" for gru in GRU_VERSIONS.values() for name in gru.attributes} | {"input_forget": ""}
)
_IR_NAMES = f"{_NAMES} activations_alpha activations_beta"

register(
    *(RecurrentOperator(kind, _NAMES, max_inputs=6) for kind in ("GRU", "RNN")),
    RecurrentOperator("LSTM", _NAMES, max_inputs=8, states=((5, 1), (6, 2))),
    *(
        RecurrentOperator(f"{domain}::AUGRU", f"{_NAMES} attention", max_inputs=7, attention=6)
        for domain in dict.fromkeys(AUGRU_DOMAINS)
    ),
    *(IrSequence(f"openvino::{kind}", _IR_NAMES) for kind in ("GRUSequence", "RNNSequence")),
    IrSequence("openvino::AUGRUSequence", _IR_NAMES, attention=6),
    IrSequence("openvino::LSTMSequence", _IR_NAMES, states=((1, 1), (2, 2))),
    *(IrCell(f"openvino::{kind}", _IR_NAMES) for kind in ("GRUCell", "AUGRUCell", "LSTMCell", "RNNCell")),
)
