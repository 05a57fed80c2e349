"""Decompose a GRU node into operators that every runtime has.

Each direction becomes one matmul over all steps, and a Scan. A small, fixed number of steps is unrolled
instead, because small runtimes lack Scan and Shape. A wrong declared number of steps then fails in Split and
Squeeze.

16-bit types are computed in float32, like the operator, and rounded at the end. A row keeps its state in the
padding, at the start or the end of the sequence, so one mask suffices for both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onegru.core.errors import SpecError
from onegru.core.spec import reversed_directions
from onegru.formats.onnx.writing.edit import code_of
from onegru.formats.onnx.writing.gru_step import gru_step
from onegru.operators.onnx import DECOMPOSED_OPSET
from onegru.rewriting.nodes.node_config import GruNodeConfig, require_type_and_size
from onegru.rewriting.nodes.scope import Draft, Scope

_MOST_UNROLLED = 8  # steps


def decompose(draft: Draft, config: GruNodeConfig, _: object) -> list[GruNodeConfig]:
    """Add nodes that replace a GRU node with at least one step; none remains."""
    if (scope := draft.scope).opset < DECOMPOSED_OPSET:
        raise SpecError.of(
            "opset", f"{scope.opset}; must be at least {DECOMPOSED_OPSET} to decompose {config.label}"
        )
    dtype, hidden_size = require_type_and_size(scope, config, "decompose")
    expansion = _Expansion(draft, config, dtype, hidden_size)
    expansion.expand()
    count = sum(item.op_type == "Scan" for item in draft.nodes)
    loops = f"with {count} Scan{'s'[: count - 1]}" if count else "step by step"
    draft.done.append(f"decomposed into other operators, {loops}")
    if not expansion.T:  # open, or fixed at 0
        draft.notes.append("decomposed nodes need at least one step in each run")
    return []


@dataclass
class _Weights:
    """Weights of one direction, as names of constants or values in the graph."""

    W: str
    # one matrix for all gates if the reset gate is applied after the matmul, else (z and r) and h
    R: tuple[str, ...]
    input_bias: str | None  # of the matmul over all steps
    recurrent_bias: str | None  # of the recurrent matmul, if the reset gate is applied after it


class _Expansion:
    """The decomposition of one node."""

    def __init__(self, draft: Draft, config: GruNodeConfig, dtype: str, hidden_size: int) -> None:
        self.draft = draft
        self.scope = draft.scope
        self.config = config
        self.node_dtype = dtype
        self.dtype = "float64" if dtype == "float64" else "float32"  # of the computation
        self.H = hidden_size
        self.reversed = reversed_directions(config.direction)
        shape = self.scope.shape(config.origin.input[0])  # new values have no shape yet
        time_axis = 1 if config.source_attributes.get("layout") else 0
        self.T = None if shape is None or len(shape) != 3 else shape[time_axis]
        self.unrolled = self.T if self.T and self.T <= _MOST_UNROLLED else None  # steps; None for a Scan

    def expand(self) -> None:
        draft, config = self.draft, self.config
        # Casts are adjacent, because ONNX Runtime 1.31 crashes on some Transposes between two Casts.
        X = self._computed(config.inputs["X"], "X")
        if config.layout:
            X = draft.op("Transpose", [X], "X", perm=[1, 0, 2])
        shape = "" if self.unrolled else draft.op("Shape", [X], "shape")
        self.masks, alive = self._masks(shape)
        self.scores = self._scores()
        Ys: list[str] = []
        ends: list[str] = []
        for index in range(len(self.reversed)):
            weights = self._weights(index)
            products = draft.op("MatMul", [X, weights.W], f"{index}/XW")
            if weights.input_bias is not None:
                products = draft.op("Add", [products, weights.input_bias], f"{index}/XW_B")
            first = self._initial_state(index, shape)
            loop = self._unrolled if self.unrolled else self._scan
            end, Y = loop(index, weights, first, products)
            Ys.append(Y)
            ends.append(draft.op("Where", [alive, end, self._number(0.0)], f"{index}/end") if alive else end)
        if "Y" in config.outputs:
            self._write_output(Ys, 1, [2, 0, 1, 3], "Y")
        if "Y_h" in config.outputs:
            self._write_output(ends, 0, [1, 0, 2], "Y_h")

    # Around the loop

    def _number(self, value: float) -> str:
        return self.scope.number(value, self.dtype)

    def _computed(self, name: str, suffix: str) -> str:
        """Cast a value to the type of the computation."""
        if self.node_dtype == self.dtype:
            return name
        return self.draft.op("Cast", [name], f"{suffix}_{self.dtype}", dtype=self.dtype)

    def _masks(self, shape: str) -> tuple[list[str], str | None]:
        """Return masks of the valid steps, and a mask [B, 1] of rows with at least one step."""
        # A Scan gets one mask [T, B, 1], steps get a mask [B, 1] each; without lengths there are none.
        if "sequence_lens" not in self.config.inputs:
            return [], None
        draft, scope = self.draft, self.scope
        zero, one = (scope.integer(value) for value in (0, 1))
        lengths = draft.op("Cast", [self.config.inputs["sequence_lens"]], "lengths", dtype="int64")
        lengths = draft.op("Unsqueeze", [lengths], "lengths_column", axes=[1])
        if self.unrolled:
            masks = [draft.op("Less", [scope.integer(t), lengths], "mask") for t in range(self.unrolled)]
            return masks, masks[0]
        steps = draft.op("Range", [zero, draft.op("Gather", [shape, zero], "T"), one], "steps")
        steps = draft.op("Unsqueeze", [steps], "steps_column", axes=[1, 2])
        alive = draft.op("Less", [zero, lengths], "alive")
        return [draft.op("Less", [steps, lengths], "mask")], alive

    def _scores(self) -> str:
        """Return the attention scores [T, B, 1]; empty without attention."""
        if self.config.attention is None:
            return ""
        A = self._computed(self.config.inputs["A"], "A")
        return self.draft.op("Transpose", [A], "A", perm=[1, 0, 2]) if self.config.layout else A

    def _initial_state(self, index: int, shape: str) -> str:
        """Return the initial state [B, H]; zeros of unrolled steps are one row that broadcasts."""
        draft, scope = self.draft, self.scope
        if "initial_h" not in self.config.inputs and self.unrolled:
            return scope.shared_constant("onegru/zeros", np.zeros((1, self.H), self.dtype))
        if "initial_h" not in self.config.inputs:
            rows = draft.op("Gather", [shape, scope.integers(1)], f"{index}/rows")
            sizes = draft.op("Concat", [rows, scope.integers(self.H)], f"{index}/sizes", axis=0)
            zeros = onnx.numpy_helper.from_array(np.zeros(1, self.dtype))
            return draft.op("ConstantOfShape", [sizes], f"{index}/first", value=zeros)
        given, axis = self.config.inputs["initial_h"], 1 if self.config.layout else 0
        if len(self.config.activations) == 1:
            first = draft.op("Squeeze", [given], f"{index}/initial_h", axes=[axis])
        else:
            first = draft.op("Gather", [given, scope.integer(index)], f"{index}/initial_h", axis=axis)
        return self._computed(first, f"{index}/initial_h")

    def _write_output(self, parts: Sequence[str], axis: int, perm: Sequence[int], port: str) -> None:
        """Join the directions in the node's type and layout, under the output's name."""
        draft, config = self.draft, self.config
        steps: list[Callable[[str, str], str]] = []
        if config.layout:
            steps.append(lambda value, output: draft.op("Transpose", [value], port, output, perm=list(perm)))
        if self.node_dtype != self.dtype:
            steps.append(lambda value, output: draft.op("Cast", [value], port, output, dtype=self.node_dtype))
        last = config.outputs[port]
        joined = "" if steps else last
        many = len(parts) > 1
        values = [
            draft.op("Unsqueeze", [part], f"{index}/{port}", "" if many else joined, axes=[axis])
            for index, part in enumerate(parts)
        ]
        value = draft.op("Concat", values, port, joined, axis=axis) if many else values[0]
        for step in steps:
            value = step(value, last if step is steps[-1] else "")

    # Weights

    def _weights(self, index: int) -> _Weights:
        config = self.config
        # A constant W stays in its type; a loop's R does not, because OpenVINO needs a constant in the loop.
        W = self._computed(self._matrix("W", index), f"{index}/W")
        matrix = self._matrix("R", index)
        is_after = config.linear_before_reset
        parts = [matrix] if is_after else [self._gates(matrix, 0, 2, 1), self._gates(matrix, 2, 3, 1)]
        R = tuple(self._folded_cast(part, f"{index}/R") for part in parts)
        if "B" not in config.inputs:
            return _Weights(W, R, None, None)
        folded = self.draft.folded
        B = folded("Gather", [config.inputs["B"], self.scope.integer(index)], f"{index}/B", axis=0)
        B = self._folded_cast(B, f"{index}/B")
        if is_after:
            sums = folded("Add", [self._gates(B, 0, 2), self._gates(B, 3, 5)], f"{index}/biases")
            input_bias = folded("Concat", [sums, self._gates(B, 2, 3)], f"{index}/biases", axis=0)
            return _Weights(W, R, input_bias, self._gates(B, 5, 6))
        input_bias = folded("Add", [self._gates(B, 0, 3), self._gates(B, 3, 6)], f"{index}/biases")
        return _Weights(W, R, input_bias, None)

    def _matrix(self, name: str, index: int) -> str:
        """Return W or R of one direction, transposed: [I, 3H] or [H, 3H]."""
        folded, suffix = self.draft.folded, f"{index}/{name}"
        value = folded("Gather", [self.config.inputs[name], self.scope.integer(index)], suffix, axis=0)
        return folded("Transpose", [value], suffix, perm=[1, 0])

    def _gates(self, value: str, first: int, end: int, axis: int = 0) -> str:
        """Return gates of a weight, from a first one to an end."""
        bounds = [self.scope.integers(number) for number in (first * self.H, end * self.H, axis)]
        return self.draft.folded("Slice", [value, *bounds], f"{value.rpartition('/')[2]}_part")

    def _folded_cast(self, value: str, suffix: str) -> str:
        """Return a weight in the type of the computation."""
        if self.node_dtype == self.dtype:
            return value
        return self.draft.folded("Cast", [value], suffix, dtype=self.dtype)

    # The steps

    def _unrolled(self, index: int, weights: _Weights, state: str, products: str) -> tuple[str, str]:
        """Return the same as `_scan`, with unrolled steps."""
        T, masks, scores = self.unrolled or 1, self.masks, self.scores
        nodes = _Body(self.scope, f"{self.config.base}/{index}", self.dtype, self.H)
        names = [f"XW_{t}" for t in range(T)]
        parts = nodes.split(products, [1] * T, names, axis=0) if T > 1 else [products]
        attended = [scores] * T
        if scores and T > 1:
            attended = nodes.split(scores, [1] * T, [f"A_{t}" for t in range(T)], axis=0)
        Y = [""] * T
        for t in reversed(range(T)) if self.reversed[index] else range(T):
            row = nodes.op("Squeeze", [parts[t]], f"x_{t}", axes=[0])
            a = nodes.op("Squeeze", [attended[t]], f"a_{t}", axes=[0]) if scores else ""
            new = output = self._step(nodes, index, state, row, weights, a)
            if masks:
                output = nodes.op("Where", [masks[t], new, self._number(0.0)], f"y_{t}")
                new = nodes.op("Where", [masks[t], new, state], f"h_{t}")
            state = new
            if "Y" in self.config.outputs:
                Y[t] = nodes.op("Unsqueeze", [output], f"y_{t}", axes=[0])
        joined = Y[0] if T == 1 or not Y[0] else nodes.op("Concat", Y, "states", axis=0)
        self.draft.nodes += nodes.nodes
        return state, joined

    def _scan(self, index: int, weights: _Weights, first: str, products: str) -> tuple[str, str]:
        """Return the last state [B, H], and the states of all steps [T, B, H] if Y is an output."""
        draft, masks, scores = self.draft, self.masks, self.scores
        body = _Body(self.scope, f"{self.config.base}/{index}", self.dtype, self.H)
        state, row = body.fresh("h"), body.fresh("x")
        inside = body.fresh("inside") if masks else ""
        a = body.fresh("a") if scores else ""
        weights, carried = self._carried(body, weights)
        new = self._step(body, index, state, row, weights, a)
        output = new
        if masks:
            output = body.op("Where", [inside, new, self._number(0.0)], "y")
            new = body.op("Where", [inside, new, state], "h_kept")
        elif "Y" in self.config.outputs:
            output = body.op("Identity", [new], "y")  # a value can only be one output of a subgraph
        code = code_of(self.dtype)
        info = onnx.helper.make_tensor_value_info
        scanned = [(products, row, code, 3 * self.H)]
        scanned += [(mask, inside, TensorProto.BOOL, 1) for mask in masks]
        scanned += [(scores, a, code, 1)] if scores else []
        inputs = [info(state, code, [None, self.H])]
        outputs = [info(new, code, [None, self.H])]
        scan_inputs, scan_outputs = [first], [draft.fresh(f"{index}/last")]
        for name, (inner, rank) in carried.items():
            inputs.append(info(inner, code, [None] * rank))
            outputs.append(info(body.op("Identity", [inner], "carried"), code, [None] * rank))
            scan_inputs.append(name)
            scan_outputs.append(draft.fresh(f"{index}/carried"))
        states = len(scan_inputs)
        for name, inner, kind, size in scanned:
            scan_inputs.append(name)
            inputs.append(info(inner, kind, [None, size]))
        if "Y" in self.config.outputs:
            outputs.append(info(output, code, [None, self.H]))
            scan_outputs.append(draft.fresh(f"{index}/states"))
        graph = onnx.helper.make_graph(body.nodes, draft.fresh(f"{index}/step"), inputs, outputs)
        attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(scanned)}
        for side, count in (("input", len(scanned)), ("output", len(scan_outputs) - states)):
            if count:
                attributes[f"scan_{side}_directions"] = [int(self.reversed[index])] * count
        name = draft.fresh(f"{index}/Scan")
        draft.nodes.append(onnx.helper.make_node("Scan", scan_inputs, scan_outputs, name=name, **attributes))
        return scan_outputs[0], scan_outputs[-1]

    def _carried(self, body: Draft, weights: _Weights) -> tuple[_Weights, dict[str, tuple[str, int]]]:
        """Pass computed weights into the subgraph as states, because OpenVINO needs constants there."""
        carried: dict[str, tuple[str, int]] = {}

        def inside(name: str, rank: int) -> str:
            if self.scope.constant(name) is not None:
                return name
            carried[name] = (body.fresh("weights"), rank)
            return carried[name][0]

        R = tuple(inside(name, 2) for name in weights.R)
        recurrent_bias = None if weights.recurrent_bias is None else inside(weights.recurrent_bias, 1)
        return _Weights(weights.W, R, weights.input_bias, recurrent_bias), carried

    def _step(self, body: _Body, index: int, h: str, x: str, weights: _Weights, a: str) -> str:
        """Return the state after one step, with attention scores `a`."""
        H, activations = self.H, self.config.activations[index]
        x_zr, x_n = body.split(x, [2 * H, H], ["x_zr", "x_h"])
        product = body.op("MatMul", [h, weights.R[0]], "hR")
        attended: dict[str, Any] = {"attention": self.config.attention, "a": a}
        if not self.config.linear_before_reset:
            R_n, clip = weights.R[1], self.config.clip
            return gru_step(body, activations, clip, (x_zr, x_n), h, product, R_n=R_n, **attended)
        h_zr, h_n = body.split(product, [2 * H, H], ["h_zr", "h_h"])
        if weights.recurrent_bias is not None:
            h_n = body.op("Add", [h_n, weights.recurrent_bias], "h_h_B")
        return gru_step(body, activations, self.config.clip, (x_zr, x_n), h, h_zr, h_n=h_n, **attended)


class _Body(Draft):
    """Nodes of a Scan's subgraph or of unrolled steps, as `StepNodes` in `gru_step`."""

    def __init__(self, scope: Scope, base: str, dtype: str, hidden_size: int) -> None:
        super().__init__(scope, base)
        self.dtype = dtype
        self.hidden_size = hidden_size

    def number(self, value: float) -> str:
        return self.scope.number(value, self.dtype)

    def halves(self, value: str, names: tuple[str, str]) -> list[str]:
        return self.split(value, [self.hidden_size] * 2, names)
