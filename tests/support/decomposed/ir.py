"""Write IRs with GRUs decomposed into other layers, as converters from TensorFlow and ONNX do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from onegru.core.dtypes import Array

B, T, I, H = 3, 5, 4, 6


def constant(*values: int) -> Any:
    """Return a constant of integers."""
    return ops.constant(np.array(values, np.int64))


def scalar(value: float) -> Any:
    """Return a constant of one number."""
    return ops.constant(np.float32(value))


@dataclass(frozen=True)
class Written:
    """Variant of a written GRU.

    Attributes:
        form: "TensorIterator", "Loop" or "unrolled".
        outside: whether x is multiplied by its weights before the loop.
        after: whether the reset gate acts after the recurrent product.
        reverse: whether the first step is the last in time.
        outputs: "last", "all" or "both".
        attention: whether each step has a score.
        open: whether the sizes of rows and steps are dynamic.
        state: whether the first state is an input; else it is zero.
        candidate: the activation of the candidate.
        half: whether weights are stored as float16.
        fault: whether the new state is not a blend of the old state and the candidate.
        ahead: the first operation of each step on x and h: "ones" multiplies by ones, "dense" is a layer.
    """

    form: str = "TensorIterator"
    outside: bool = False
    after: bool = False
    reverse: bool = False
    outputs: str = "both"
    attention: bool = False
    open: bool = True
    state: bool = True
    candidate: str = "tanh"
    half: bool = False
    fault: bool = False
    ahead: str = ""


class _Cell:
    """Cell that all steps share."""

    def __init__(self, how: Written, seed: int) -> None:
        rng = np.random.default_rng(seed)

        def draw(*shape: int) -> Any:
            return ops.constant(rng.uniform(-0.7, 0.7, shape).astype(np.float32))

        self.how = how
        self.gates, self.candidate = draw(I + H, 2 * H), draw(I + H, H)
        self.gates_bias, self.candidate_bias, self.after_bias = draw(2 * H), draw(H), draw(H)
        self.inputs, self.states = draw(I, 3 * H), draw(3 * H, H)
        self.dense, self.dense_bias = draw(I, I), draw(I)

    def projected(self, x: Any) -> Any:
        """Return the gates' products with x."""
        return ops.matmul(x, self.inputs, False, False)

    def step(self, x: Any, h: Any, a: Any) -> Any:
        """Return the new state; x may be projected already."""
        if self.how.ahead == "ones":
            x, h = (ops.multiply(ops.broadcast(scalar(1), ops.shape_of(item)), item) for item in (x, h))
        elif self.how.ahead == "dense":
            x = ops.tanh(ops.add(ops.matmul(x, self.dense, False, False), self.dense_bias))
        if self.how.outside or self.how.after:
            z, n = self._torch_like(x, h)
        else:
            z, n = self._tensorflow_like(x, h)
        if a is not None:
            z = ops.multiply(ops.subtract(scalar(1), a), z)
        kept = ops.multiply(z, h)
        share = z if self.how.fault else ops.subtract(scalar(1), z)
        return ops.add(kept, ops.multiply(share, n))

    def _tensorflow_like(self, x: Any, h: Any) -> tuple[Any, Any]:
        """Return the update gate and the candidate: reset before the product, x and h concatenated."""
        both = ops.matmul(ops.concat([x, h], 1), self.gates, False, False)
        parts = ops.split(ops.sigmoid(ops.add(both, self.gates_bias)), ops.constant(np.int64(1)), 2)
        r, z = parts.output(0), parts.output(1)
        product = ops.matmul(ops.concat([x, ops.multiply(r, h)], 1), self.candidate, False, False)
        return z, self._activation(ops.add(product, self.candidate_bias))

    def _torch_like(self, x: Any, h: Any) -> tuple[Any, Any]:
        """Return the same with separate x and h, and transposed weights of h."""
        wide = x if self.how.outside else self.projected(x)
        xs = ops.variadic_split(wide, ops.constant(np.int64(-1)), constant(H, H, -1))
        h_weights = ops.split(self.states, ops.constant(np.int64(0)), 3)
        hs = [ops.matmul(h, h_weights.output(place), False, True) for place in range(2)]
        z, r = (ops.sigmoid(ops.add(xs.output(place), hs[place])) for place in range(2))
        if self.how.after:
            inner = ops.add(ops.matmul(h, h_weights.output(2), False, True), self.after_bias)
            return z, self._activation(ops.add(xs.output(2), ops.multiply(r, inner)))
        inner = ops.matmul(ops.multiply(r, h), h_weights.output(2), False, True)
        return z, self._activation(ops.add(xs.output(2), inner))

    def _activation(self, value: Any) -> Any:
        if self.how.candidate == "hard_sigmoid":
            return ops.hard_sigmoid(value, scalar(0.25), scalar(0.5))
        return getattr(ops, self.how.candidate)(value)


def write(path: Path, how: Written, seed: int = 0) -> Path:
    """Write an IR of one GRU over x [B, T, I]; its outputs are "last" and "all"."""
    rows, steps = (-1, -1 if how.form != "unrolled" else T) if how.open else (B, T)
    inputs = {"x": ops.parameter([rows, steps, I], np.float32, name="x")}
    if how.state:
        inputs["h"] = ops.parameter([rows, H], np.float32, name="h")
    if how.attention:
        inputs["a"] = ops.parameter([rows, steps, 1], np.float32, name="a")
    cell = _Cell(how, seed)
    x = cell.projected(inputs["x"]) if how.outside else inputs["x"]
    h = inputs.get("h")
    if h is None:
        size = ops.gather(ops.shape_of(inputs["x"]), constant(0), ops.constant(np.int64(0)))
        h = ops.broadcast(scalar(0), ops.concat([size, constant(H)], 0))
    run = {"TensorIterator": _iterated, "Loop": _looped, "unrolled": _unrolled}[how.form]
    last, every = run(cell, x, h, inputs.get("a"), 3 * H if how.outside else I)
    results = []
    for name, value in (("last", last), ("all", every)):
        if how.outputs in (name, "both"):
            value = value if hasattr(value, "set_names") else value.output(0)
            value.set_names({name})
            results.append(ops.result(value))
    model = openvino.Model(results, list(inputs.values()), "test")
    openvino.save_model(model, path, compress_to_fp16=how.half)
    return path


def _iterated(cell: _Cell, x: Any, h: Any, a: Any, width: int) -> tuple[Any, Any]:
    """Write a TensorIterator that reads slices of axis 1."""
    axis = constant(1)
    x_slice, h_before = ops.parameter([-1, 1, width], np.float32), ops.parameter([-1, H], np.float32)
    a_slice = None if a is None else ops.parameter([-1, 1, 1], np.float32)
    score = None if a_slice is None else ops.squeeze(a_slice, axis)
    new = cell.step(ops.squeeze(x_slice, axis), h_before, score)
    kept = ops.unsqueeze(new, axis)
    loop = ops.tensor_iterator()
    parameters = [x_slice, h_before, *([] if a_slice is None else [a_slice])]
    loop.set_body(openvino.Model([ops.result(new), ops.result(kept)], parameters, "body"))
    cut = (-1, -1, 1, 0, 1) if cell.how.reverse else (0, 1, 1, -1, 1)
    loop.set_sliced_input(x_slice, x.output(0), *cut)
    if a_slice is not None:
        loop.set_sliced_input(a_slice, a.output(0), *cut)
    loop.set_merged_input(h_before, h.output(0), new.output(0))
    last = loop.get_iter_value(new.output(0), -1)
    return last, loop.get_concatenated_slices(kept.output(0), *cut)


def _looped(cell: _Cell, x: Any, h: Any, a: Any, width: int) -> tuple[Any, Any]:
    """Write a Loop whose body reads the slice of its iteration. Its outputs are in execution order."""
    axis = ops.constant(np.int64(1))
    iteration = ops.parameter([], np.int64)
    x_all, h_before = ops.parameter([-1, -1, width], np.float32), ops.parameter([-1, H], np.float32)
    a_all = None if a is None else ops.parameter([-1, -1, 1], np.float32)
    steps = ops.gather(ops.shape_of(x), axis, ops.constant(np.int64(0)))
    place = iteration
    if cell.how.reverse:
        count = ops.gather(ops.shape_of(x_all), axis, ops.constant(np.int64(0)))
        place = ops.subtract(ops.subtract(count, ops.constant(np.int64(1))), iteration)
    score = None if a_all is None else ops.gather(a_all, place, axis)
    new = cell.step(ops.gather(x_all, place, axis), h_before, score)
    kept = ops.unsqueeze(new, constant(1))
    goes_on = ops.constant(np.array(True))
    loop = ops.loop(steps, ops.constant(np.array(True)))
    parameters = [iteration, x_all, h_before, *([] if a_all is None else [a_all])]
    results = [ops.result(goes_on), ops.result(new), ops.result(kept)]
    loop.set_function(openvino.Model(results, parameters, "body"))
    loop.set_special_body_ports([0, 0])
    loop.set_invariant_input(x_all, x.output(0))
    if a_all is not None:
        loop.set_invariant_input(a_all, a.output(0))
    loop.set_merged_input(h_before, h.output(0), new.output(0))
    last = loop.get_iter_value(new.output(0), -1)
    return last, loop.get_concatenated_slices(kept.output(0), 0, 1, 1, -1, 1)


def _unrolled(cell: _Cell, x: Any, h: Any, a: Any, width: int) -> tuple[Any, Any]:
    """Write the steps without a loop."""
    states: dict[int, Any] = {}
    for t in range(T)[:: -1 if cell.how.reverse else 1]:
        begin, end = constant(0, t), constant(0, t + 1)
        one, masks = constant(1, 1), ([1, 0], [1, 0])
        step = ops.strided_slice(x, begin, end, one, *masks, shrink_axis_mask=[0, 1])
        score = None
        if a is not None:
            score = ops.squeeze(
                ops.slice(a, constant(t), constant(t + 1), constant(1), constant(1)), constant(1)
            )
        states[t] = h = cell.step(step, h, score)
    every = ops.concat([ops.unsqueeze(states[t], constant(1)) for t in range(T)], 1)
    return h, every


def feeds(how: Written, seed: int = 1) -> Mapping[str, Array]:
    """Return random inputs for a model."""
    rng = np.random.default_rng(seed)
    found = {"x": rng.standard_normal((B, T, I)).astype(np.float32)}
    if how.state:
        found["h"] = rng.standard_normal((B, H)).astype(np.float32)
    if how.attention:
        found["a"] = rng.uniform(0, 1, (B, T, 1)).astype(np.float32)
    return found
