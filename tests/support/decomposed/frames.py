"""Write the bodies of Scan and Loop nodes: inputs, carried values and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from tests.support.decomposed.equations import Cell
from tests.support.decomposed.graph import Array, Graph, chance, pick
from tests.support.decomposed.models import Draft

#: Faults of a loop around a correct step.
LOOP_FAULTS = {
    "weights change": "the weights, states of the loop, are halved from step to step",
    "x fixed": "every step takes the first x",
    "order": "the steps of x are read in another order",
    "halved state": "the state is halved from one step to the next, the output is not",
    "early exit": "the loop ends as soon as the sum of the state is large",
    "held below": "the state is held below the lengths and goes on past them",
    "autoregressive": "a product of the state is added to x",
    "stale output": "the output of a step is the state before it",
}


@dataclass(frozen=True)
class Source:
    """Sequence with time at `axis`: its tensor, and its values with time first."""

    name: str
    axis: int
    values: Array


@dataclass
class Plan:
    """Properties of one direction of one layer.

    Attributes:
        kind: "Scan" or "Loop".
        fault: a mistake of `LOOP_FAULTS`.
        in_step: a mistake of `FAULTS` in the equations of the step.
        extra: the gate that is an output of the loop.
        masking: "", "lengths", or "mask".
        zero: whether outputs of held steps are zeros.
        faulty: whether the direction has a fault.
        right: the correct cell, if `cell` is wrong.
    """

    kind: str
    cell: Cell
    reverse: bool
    fault: str | None = None
    in_step: str | None = None
    extra: str | None = None
    masking: str = ""
    zero: bool = False
    arithmetic: bool = False
    carries: bool = False
    hoisted: bool = False
    faulty: bool = False
    right: Cell | None = None


@dataclass
class Setting:
    """Data that a model's loops share: the sequence X of T steps, and the active steps."""

    d: Draft
    T: int
    symbolic: bool
    X: Source
    lengths: tuple[str, Array] | None = None
    mask: Source | None = None
    scores: Source | None = None

    def steps(self) -> str:
        """Return the number of steps, constant or computed from X, as an int64 scalar."""
        graph = self.d.graph
        if not self.symbolic and chance(self.d.rng, 0.5):
            return graph.constant(np.array(self.T), "int64")
        shape = graph.op("Shape", self.X.name)
        return graph.op("Gather", shape, graph.constant(np.array(self.X.axis), "int64"), axis=0)

    def allowed(self) -> Array:
        """Return the active rows at each step, [T, B], in time."""
        if self.mask is not None:
            return self.mask.values.astype(bool)
        if self.lengths is not None:
            return np.arange(self.T)[:, None] < self.lengths[1][None, :]
        return np.ones((self.T, self.d.B), bool)


def swapped(T: int) -> list[int]:
    """Return the steps in order, with two in the middle or at the end swapped."""
    order = list(range(T))
    at = min(1, T - 2)
    order[at], order[at + 1] = order[at + 1], order[at]
    return order


class Frame:
    """States, inputs and outputs of a body under construction."""

    def __init__(self, at: Setting, plan: Plan, body: Graph) -> None:
        self.at, self.plan, self.body = at, plan, body
        self.outer = at.d.graph
        self.states: list[tuple[str, str, str]] = []
        self.shapes: dict[str, tuple[Sequence[int | str] | None, str]] = {}
        self.go_on = ""
        self.in_time = True

    def state(self, initial: str, shape: Sequence[int | str] | None, dtype: str = "float32") -> str:
        inside = self.body.fresh()
        self.states.append((initial, inside, ""))
        self.shapes[inside] = (shape, dtype)
        return inside

    def ends(self, inside: str, going: str) -> None:
        self.states = [(a, b, going if b == inside else c) for a, b, c in self.states]

    def counter(self, dtype: str) -> str:
        """Add the time step as a state that counts up from 0, or down from the last step."""
        outer, body = self.outer, self.body
        start = outer.constant(np.array(0), dtype)
        if self.plan.reverse:
            last = outer.op("Sub", self.at.steps(), outer.constant(np.array(1), "int64"))
            start = last if dtype == "int64" else outer.op("Cast", last, to=TensorProto.INT32)
        t = self.state(start, [], dtype)
        one = body.constant(np.array(1), dtype)
        self.ends(t, body.op("Sub", t, one) if self.plan.reverse else body.either("Add", t, one))
        return t

    def below(self, t: str, dtype: str) -> str:
        """Return whether a step is below the lengths, [B, 1]."""
        body = self.body
        assert self.at.lengths is not None
        name, values = self.at.lengths
        where = pick(body.rng, [self.outer, body])
        column = where.op("Unsqueeze", name, where.integers(1))
        if str(values.dtype) != dtype:
            t = body.op(
                "Cast", t, to=TensorProto.INT32 if str(values.dtype) == "int32" else TensorProto.INT64
            )
        return body.op("Less", t, column) if chance(body.rng, 0.5) else body.op("Greater", column, t)

    def take(self, tensor: str, axis: int) -> str:
        raise NotImplementedError

    def mask(self) -> str:
        raise NotImplementedError

    def close(self, outputs: Sequence[str]) -> tuple[dict[str, str], list[str], int]:
        """Finish the body and write the node.

        Returns:
            the last states by their names in the body, the stacked outputs, and the axis of their time.
        """
        raise NotImplementedError

    def finish_states(self) -> None:
        """Add carried weights to the states, and declare all states."""
        for outside, inside, going in self.body.carried:
            self.states.append((outside, inside, going))
            self.shapes[inside] = (None, "float32")
        self.states = [self.states[i] for i in self.body.rng.permutation(len(self.states))]
        for _, inside, _ in self.states:
            shape, dtype = self.shapes[inside]
            self.body.input(inside, [] if shape is None else shape, dtype)
            if shape is None:
                self.body.inputs[-1].type.tensor_type.ClearField("shape")

    def last(self, outputs: Sequence[str]) -> dict[str, str]:
        """Return the last states among a node's outputs, by the states' names in the body."""
        return {inside: name for (_, inside, _), name in zip(self.states, outputs, strict=False)}


class ScanFrame(Frame):
    """Body of a Scan, with slices of x as inputs."""

    def __init__(self, at: Setting, plan: Plan, body: Graph) -> None:
        super().__init__(at, plan, body)
        self.scanned: list[tuple[str, str, int, str]] = []

    def take(self, tensor: str, axis: int) -> str:
        return self._scan(tensor, axis, "float32")

    def _scan(self, tensor: str, axis: int, dtype: str) -> str:
        inside = self.body.fresh()
        if axis == 1 and chance(self.body.rng, 0.3) and dtype == "float32":
            tensor, axis = self.outer.op("Transpose", tensor, perm=[1, 0, 2]), 0
        self.scanned.append((tensor, inside, axis, dtype))
        return inside

    def mask(self) -> str:
        body, at, outer = self.body, self.at, self.outer
        if at.mask is not None:
            name, axis = at.mask.name, at.mask.axis
        elif chance(body.rng, 0.5):
            dtype = pick(body.rng, ["int32", "int64"])
            return self.below(self.counter(dtype), dtype)
        else:
            assert at.lengths is not None
            lengths, values = at.lengths
            if str(values.dtype) == "int32":
                lengths = outer.op("Cast", lengths, to=TensorProto.INT64)
            zero, one = (outer.constant(np.array(value), "int64") for value in (0, 1))
            times = outer.op("Unsqueeze", outer.op("Range", zero, at.steps(), one), outer.integers(1))
            name, axis = outer.op("Less", times, lengths), 0
        return body.op("Unsqueeze", self._scan(name, axis, "bool"), body.integers(1))

    def close(self, outputs: Sequence[str]) -> tuple[dict[str, str], list[str], int]:
        body, rng, back = self.body, self.body.rng, int(self.plan.reverse)
        self.finish_states()
        for _, inside, _, dtype in self.scanned:
            body.input(inside, [], dtype)
            body.inputs[-1].type.tensor_type.ClearField("shape")
        for _, inside, going in self.states:
            body.output(body.fresh(), going, None, self.shapes[inside][1])
        for name in outputs:
            body.output(body.fresh(), name, None)
        axis = int(rng.integers(2))
        self.in_time = not self.plan.reverse or chance(rng, 0.7)
        more: dict[str, object] = {}
        axes = [axis for _, _, axis, _ in self.scanned]
        if any(axes):
            more["scan_input_axes"] = axes
        if back or chance(rng, 0.3):
            more["scan_input_directions"] = [back] * len(axes)
        if axis or chance(rng, 0.3):
            more["scan_output_axes"] = [axis] * len(outputs)
        if back and self.in_time:
            more["scan_output_directions"] = [1] * len(outputs)
        found = self.outer.several(
            "Scan",
            [*(state[0] for state in self.states), *(scanned[0] for scanned in self.scanned)],
            len(self.states) + len(outputs),
            body=body.graph("body"),
            num_scan_inputs=len(self.scanned),
            **more,
        )
        return self.last(found), found[len(self.states) :], axis


class LoopFrame(Frame):
    """Body of a Loop, which gathers x from outside by the step index."""

    def __init__(self, at: Setting, plan: Plan, body: Graph) -> None:
        super().__init__(at, plan, body)
        self.iteration = body.input(body.fresh(), [], "int64")
        self.condition = body.input(body.fresh(), [], "bool")
        self.index_type = "int64"
        self.index = self._index()

    def _index(self) -> str:
        body = self.body
        if chance(body.rng, 0.4):
            self.index_type = pick(body.rng, ["int32", "int64"])
            return self.counter(self.index_type)
        if not self.plan.reverse:
            return self.iteration
        last = self.outer.op("Sub", self.at.steps(), self.outer.constant(np.array(1), "int64"))
        return body.op("Sub", last, self.iteration)

    def take(self, tensor: str, axis: int) -> str:
        body, outer = self.body, self.outer
        step = self.index
        if self.plan.fault == "x fixed" and (self.at.scores is None or tensor != self.at.scores.name):
            step = body.constant(np.array(0), "int64")
        elif self.plan.fault == "order" and (self.at.scores is None or tensor != self.at.scores.name):
            order = swapped(self.at.T)
            if self.plan.reverse:
                order = [self.at.T - 1 - i for i in order][::-1]
            step = body.op("Gather", body.constant(np.array(order), "int64"), self.index, axis=0)
        if chance(body.rng, 0.15):
            tensor, axis = outer.op("Transpose", tensor, perm=[1, 0, 2]), 1 - axis
        if chance(body.rng, 0.2):
            part = body.op("Gather", tensor, body.op("Unsqueeze", step, body.integers(0)), axis=axis)
            return body.op("Squeeze", part, body.integers(axis))
        return body.op("Gather", tensor, step, axis=axis)

    def mask(self) -> str:
        if self.at.mask is None:
            return self.below(self.index, self.index_type)
        mask = self.at.mask
        row = self.body.op("Gather", mask.name, self.index, axis=mask.axis)
        return self.body.op("Unsqueeze", row, self.body.integers(1))

    def close(self, outputs: Sequence[str]) -> tuple[dict[str, str], list[str], int]:
        body, outer, rng = self.body, self.outer, self.body.rng
        trips, begin = self._trips()
        self.finish_states()
        body.output(body.fresh(), self.go_on, [], "bool")
        for _, inside, going in self.states:
            body.output(body.fresh(), going, None, self.shapes[inside][1])
        for name in outputs:
            body.output(body.fresh(), name, None)
        found = outer.several(
            "Loop",
            [trips, begin, *(state[0] for state in self.states)],
            len(self.states) + len(outputs),
            body=body.graph("body"),
        )
        scans = found[len(self.states) :]
        axis = 0
        if self.plan.reverse and chance(rng, 0.7):
            edges = (outer.integers(-1), outer.integers(-(2**63)), outer.integers(0), outer.integers(-1))
            scans = [outer.op("Slice", scan, *edges) for scan in scans]
        else:
            self.in_time = not self.plan.reverse
        if chance(rng, 0.4):
            scans, axis = [outer.op("Transpose", scan, perm=[1, 0, 2]) for scan in scans], 1
        return self.last(found), scans, axis

    def _trips(self) -> tuple[str, str]:
        """Return the trip count and the first condition; store the body's condition in `go_on`."""
        body, outer, rng = self.body, self.outer, self.body.rng
        true = outer.constant(np.array(True), "bool")
        if self.go_on:
            return self.at.steps(), true
        form = pick(rng, ["identity", "constant", "none", "limit"])
        if form == "limit":
            limit, dtype = self.at.steps(), pick(rng, ["int32", "int64"])
            if dtype == "int32":
                limit = outer.op("Cast", limit, to=TensorProto.INT32)
            zero = outer.constant(np.array(0), dtype)
            count = self.state(zero, [], dtype)
            following = body.either("Add", count, body.constant(np.array(1), dtype))
            self.ends(count, following)
            self.go_on = body.op("Less", following, limit)
            trips = pick(rng, ["", outer.constant(np.array(2**63 - 1), "int64")])
            return trips, outer.op("Less", zero, limit)
        if form == "identity":
            self.go_on = body.op("Identity", self.condition)
        else:
            self.go_on = body.op("Identity", body.constant(np.array(True), "bool"))
        return self.at.steps(), "" if form == "none" else true
